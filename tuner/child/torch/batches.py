"""What a batch holds: its tensors, its samples, its tokens."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sized
from dataclasses import dataclass
from types import ModuleType
from typing import Any, cast

from ..own_batches import Spot
from .types import Tensor

_MASK, _IDS = "attention_mask", "input_ids"
_MOST_ARRAYS, _MOST_DIMENSIONS = 8, 4
_MOST_TOLD, _FEWEST_UNLIKE = 4096, 8
"""Numbers of each tensor, and how many unlike ones a tensor has that tells samples apart."""


def tensors_of(torch: ModuleType, batch: object, depth: int = 0) -> list[Tensor]:
    """The tensors of a batch, whatever it is made of; what can't be looked into holds none."""
    try:
        return _tensors_in(torch, batch, depth)
    except Exception:  # the script's own classes, which may raise anything
        return []


def _tensors_in(torch: ModuleType, batch: Any, depth: int) -> list[Tensor]:
    if isinstance(batch, torch.Tensor):
        return [batch]
    if depth > 3:
        return []
    if isinstance(batch, dict) or _is_mapping(batch):
        batch = list(batch.values())
    if isinstance(batch, (list, tuple)):
        return [t for item in batch[:8] for t in tensors_of(torch, item, depth + 1)]
    attributes = vars(batch).values() if hasattr(batch, "__dict__") else ()
    return [value for value in attributes if isinstance(value, torch.Tensor)]


def _is_mapping(batch: object) -> bool:
    """Whether it is like one; the ``values`` of a table are an array."""
    return all(callable(getattr(batch, name, None)) for name in ("values", "keys"))


def _first_dimensions(torch: ModuleType, batch: object) -> list[int]:
    """Of its tensors; 0 of one without any."""
    return [int(t.size(0)) if t.dim() else 0 for t in tensors_of(torch, batch)]


def told_apart_by(torch: ModuleType, batch: object) -> str:
    """A digest of its numbers, by which batches of other samples differ from it; "" where it has too few unlike ones.

    What is alike in all samples (a mask, zeros) tells none of them apart.
    """
    digest, is_telling = 0, False
    for tensor in tensors_of(torch, batch)[:_MOST_ARRAYS]:
        try:
            numbers = tensor.detach().flatten()[:_MOST_TOLD].tolist()
        except Exception:  # a sparse or nested one, another library's
            continue
        is_telling |= len({*numbers}) >= _FEWEST_UNLIKE
        digest = zlib.crc32(repr(numbers).encode(), digest)
    return f"{digest:08x}" if is_telling else ""


def leading_dimension(torch: ModuleType, batch: object) -> int:
    """The first dimension of most of its tensors, of as many alike the first one's; 0 where none has one."""
    sizes = [size for size in _first_dimensions(torch, batch) if size]
    return max(dict.fromkeys(sizes), key=sizes.count) if sizes else 0


def _is_short(torch: ModuleType, batch: object, asked: int) -> bool:
    """Whether it holds fewer samples than it was asked to: all of the data, where a batch is larger than these are."""
    listed = isinstance(batch, (list, tuple)) and len(batch) == asked
    shown = listed or any(asked in tensor.shape for tensor in tensors_of(torch, batch) if not tensor.is_nested)
    return not shown and leading_dimension(torch, batch) < asked


def shows_one(torch: ModuleType, batch: object) -> bool:
    """Whether anything in the batch shows that one item was asked for, or it holds no tensors to tell by.

    A list of one, or a tensor that holds one along its first dimension, or all of them along their second one (time
    comes first there). Where nothing does, the script's own ``collate_fn`` may drop all items but one.
    """
    told = [tensor for tensor in tensors_of(torch, batch) if tensor.dim() and not tensor.is_nested]
    if not told or _lists_one(batch) or any(tensor.size(0) == 1 for tensor in told):
        return True
    deep = [tensor for tensor in told if tensor.dim() > 1]
    return bool(deep) and all(tensor.size(1) == 1 for tensor in deep)


def _lists_one(batch: object, depth: int = 0) -> bool:
    if isinstance(batch, Mapping):
        return depth < 3 and any(_lists_one(entry, depth + 1) for entry in batch.values())
    if not isinstance(batch, (list, tuple)):
        return False
    return len(batch) == 1 or (depth < 3 and any(_lists_one(entry, depth + 1) for entry in batch))


def ready_rows(torch: ModuleType, batch: object) -> int:
    """Rows of what a loader of single items gives, where the item is a batch that the dataset made; else 0.

    It is one where nothing shows one item, and several tensors (inputs, targets) have the same first dimension.
    """
    if shows_one(torch, batch):
        return 0
    rows = leading_dimension(torch, batch)
    alike = [tensor for tensor in tensors_of(torch, batch) if tensor.dim() and tensor.size(0) == rows]
    return rows if len(alike) > 1 and any(tensor.dim() > 1 for tensor in alike) else 0


def asked_for(index: object) -> int:
    """The samples that a batch sampler asks for: it may give any sequence. 0 where that can't tell."""
    try:
        return len(cast("Sized", index))
    except TypeError:
        return 0


@dataclass
class Asked:
    """Samples of batches that an iterable dataset is asked for: how many the last one has shows in its tensors.

    ``leads``: whether they lie along the first dimension of a tensor; other tensors may hold tokens along theirs.
    ``_places``: the numbers of those tensors that held what was asked for in all whole batches.
    """

    leads: bool = True
    _places: frozenset[int] | None = None

    def count(self, torch: ModuleType, batch: object, asked: int) -> int:
        """Called once with each batch of one source; ``asked``: the samples of a whole one."""
        if not self.leads:
            return asked
        sizes = _first_dimensions(torch, batch)
        held = frozenset(place for place, size in enumerate(sizes) if size == asked)
        if self._places is None:
            self._places = held
            self.leads = bool(held) or _is_short(torch, batch, asked)
        elif held & self._places:
            self._places &= held
        if held & self._places or not self.leads:
            return asked
        shown = [sizes[place] for place in sorted(self._places) if place < len(sizes) and sizes[place] < asked]
        return shown[0] if shown else leading_dimension(torch, batch)


def sizes_of(torch: ModuleType, call: str, values: Iterable[object]) -> dict[Spot, int]:
    """How long each dimension is of the first arrays that ``call`` was given."""
    given = tensors_of(torch, list(values))[:_MOST_ARRAYS]
    return {
        (call, array, dimension): int(size)
        for array, tensor in enumerate(given) if not tensor.is_nested
        for dimension, size in enumerate(tensor.shape[:_MOST_DIMENSIONS])
    }  # fmt: skip


def is_on_device(torch: ModuleType, batch: object) -> bool:
    """Whether an accelerator holds all its tensors already: there is nothing to copy from the host."""
    tensors = tensors_of(torch, batch)
    return bool(tensors) and all(t.device.type != "cpu" for t in tensors)


def is_pinned(torch: ModuleType, batch: object) -> bool:
    """Whether all its tensors lie in page-locked memory."""
    tensors = tensors_of(torch, batch)
    return bool(tensors) and torch.cuda.is_available() and all(t.is_pinned() for t in tensors)


def tokens_of(torch: ModuleType, batch: object) -> int:
    """Tokens of a batch that names them as the transformers library does; 0 of any other batch.

    An attention mask shows which are padding. Without one, a row's last token again and again is: padding is one token
    repeated. Tensors that lie on a device aren't counted: that would make the loop wait for it.
    """
    if not isinstance(batch, Mapping):
        return 0
    mask, ids = _rows(torch, batch.get(_MASK)), _rows(torch, batch.get(_IDS))
    if mask is not None:
        return int(torch.count_nonzero(mask))
    if ids is None:
        return 0
    repeated = (ids == ids[:, -1:]).flip(1).long().cumprod(1).sum(1)
    return int(ids.numel() - repeated[repeated > 1].sum())


def _rows(torch: ModuleType, value: object) -> Any:
    """The value if it is a tensor of rows of numbers in the host's memory; else None."""
    if not isinstance(value, torch.Tensor):
        return None
    tensor: Tensor = value
    plain = tensor.device.type == "cpu" and not tensor.is_sparse and not getattr(tensor, "is_nested", False)
    return tensor if plain and tensor.dim() == 2 and tensor.numel() > 0 else None
