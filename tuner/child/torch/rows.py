"""The rows of what a module takes and gives: tensors that hold one row a sample, and some of their rows at a time."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any

from ..data_state import UNCHANGING
from .types import Tensor

Given = tuple[tuple[object, ...], Mapping[str, object]]
"""What a module is called with: its arguments, and those by name."""
LOSS_INSIDE = "the model computes its loss itself"
NO_ROWS = "no tensor that the model takes has the samples along its first dimension"
OTHER_ROWS = "what the model gives isn't one row a sample"


class UnsplittableError(Exception):
    """Which rows belong to a sample can't be told. The text is for people."""


def tensors(torch: ModuleType, value: object) -> Iterator[Tensor]:
    """The tensors in nested tuples, lists and mappings."""
    if isinstance(value, torch.Tensor):
        tensor: Any = value
        yield tensor
    elif isinstance(value, Mapping):
        for entry in value.values():
            yield from tensors(torch, entry)
    elif isinstance(value, (tuple, list)):
        for entry in value:
            yield from tensors(torch, entry)


def versions(torch: ModuleType, given: object) -> list[int]:
    """How often each of its tensors was written to."""
    held: list[Any] = list(tensors(torch, given))
    return [tensor._version for tensor in held if not tensor.is_inference()]


def count(torch: ModuleType, given: Given, expected: int = 0) -> int:
    """How many rows a call is about: ``expected`` where a tensor has so many, else those of the first tensor.

    Raises ``UnsplittableError`` where no tensor has any.
    """
    sizes = [tensor.shape[0] for tensor in tensors(torch, given) if tensor.dim()]
    if not sizes:
        raise UnsplittableError(NO_ROWS)
    return expected if expected and expected in sizes else sizes[0]


def part(torch: ModuleType, given: Given, rows: int, start: int, stop: int) -> Given:
    """The call with the rows from ``start`` to ``stop`` only; what doesn't have ``rows`` rows stays as it is.

    Raises ``UnsplittableError`` for an argument whose rows can't be told.
    """
    return _changed(torch, given, rows, lambda tensor: tensor[start:stop])


def copied(torch: ModuleType, given: Given) -> Given:
    """The call with tensors of its own, for a module that changes what it is given in place."""
    return _changed(torch, given, None, lambda tensor: tensor.clone())


def exchanged(torch: ModuleType, given: Given, rows: int, start: int, stop: int) -> Given:
    """The call with the same rows from ``start`` to ``stop``, and each of the others replaced by the first of these."""

    def change(tensor: Any) -> object:
        changed = tensor[start : start + 1].expand(tensor.shape).clone()
        changed[start:stop] = tensor[start:stop]
        return changed

    return _changed(torch, given, rows, change)


def signature(torch: ModuleType, given: Given, rows: int) -> str:
    """The same for calls that differ in nothing but their tensors' values and sizes, and in numbers."""
    return repr(_outlined(torch, given, rows))


def numbers(value: object) -> Iterator[int | float | complex]:
    """The plain numbers in nested tuples, lists and mappings."""
    if isinstance(value, (int, float, complex)):
        yield value
    elif isinstance(value, Mapping):
        for entry in value.values():
            yield from numbers(entry)
    elif isinstance(value, (tuple, list)):
        for entry in value:
            yield from numbers(entry)


def _outlined(torch: ModuleType, value: object, rows: int) -> object:
    if isinstance(value, torch.Tensor):
        tensor: Any = value
        return tensor.dim(), str(tensor.dtype), bool(tensor.dim()) and tensor.shape[0] == rows
    if isinstance(value, Mapping):
        return {key: _outlined(torch, entry, rows) for key, entry in value.items()}
    if isinstance(value, (tuple, list)):
        return [_outlined(torch, entry, rows) for entry in value]
    return value if isinstance(value, (bool, str)) else type(value).__name__


def _changed(torch: ModuleType, given: Given, rows: int | None, change: Callable[[Any], object]) -> Given:
    """The call with its tensors of so many rows changed; with all of them where that is None."""
    arguments, named = given
    changed = tuple(_mapped(torch, value, rows, change) for value in arguments)
    return changed, {name: _mapped(torch, value, rows, change) for name, value in named.items()}


def _mapped(torch: ModuleType, value: Any, rows: int | None, change: Callable[[Any], object]) -> object:
    if isinstance(value, torch.Tensor):
        if value.layout is not torch.strided or value.is_nested:
            raise UnsplittableError("the model takes a tensor that is sparse or nested")
        return change(value) if rows is None or (value.dim() and value.shape[0] == rows) else value
    if isinstance(value, (*UNCHANGING, torch.dtype, torch.device)):
        return value
    if type(value) in (dict, OrderedDict):
        return type(value)((key, _mapped(torch, entry, rows, change)) for key, entry in value.items())
    if type(value) in (tuple, list):
        if len(value) == rows and not any(True for _ in tensors(torch, value)):
            raise UnsplittableError("the model takes a list with an entry for each sample")
        return type(value)(_mapped(torch, entry, rows, change) for entry in value)
    # A packed sequence, a graph, a list of images: its rows lie in no first dimension.
    raise UnsplittableError(f"the model is given an object of {type(value).__name__}, of which no part can be taken")


def joined(torch: ModuleType, pieces: Sequence[Any], sizes: Sequence[int]) -> Any:
    """What a module gave for each part, as it would give it for the whole. ``sizes``: the rows of each part.

    Raises ``UnsplittableError`` where that isn't one row for each that went in.
    """
    first = pieces[0]
    if isinstance(first, torch.Tensor):
        return _joined_tensors(torch, pieces, sizes)
    if any(type(piece) is not type(first) for piece in pieces):
        raise UnsplittableError(OTHER_ROWS)
    if isinstance(first, UNCHANGING):
        if any(piece != first for piece in pieces):
            raise UnsplittableError(OTHER_ROWS)
        return first
    if isinstance(first, dict):
        return _joined_mappings(torch, pieces, sizes)
    if isinstance(first, (tuple, list)):
        if any(len(piece) != len(first) for piece in pieces):
            raise UnsplittableError(OTHER_ROWS)
        entries = [joined(torch, column, sizes) for column in zip(*pieces, strict=True)]
        return type(first)(*entries) if hasattr(first, "_fields") else type(first)(entries)
    raise UnsplittableError(f"the model gives a {type(first).__name__}")


def _joined_mappings(torch: ModuleType, pieces: Sequence[Any], sizes: Sequence[int]) -> Any:
    first = pieces[0]
    if any(list(piece) != list(first) for piece in pieces):
        raise UnsplittableError(OTHER_ROWS)
    entries = {key: joined(torch, [piece[key] for piece in pieces], sizes) for key in first}
    kind: Callable[..., object] = type(first)
    # transformers' outputs are dataclasses that are mappings, too.
    return kind(**entries) if dataclasses.is_dataclass(kind) else kind(entries)


def _joined_tensors(torch: ModuleType, pieces: Sequence[Any], sizes: Sequence[int]) -> object:
    first = pieces[0]
    for piece, size in zip(pieces, sizes, strict=True):
        if not isinstance(piece, torch.Tensor) or piece.layout is not torch.strided:
            raise UnsplittableError(OTHER_ROWS)
        if not piece.dim():
            raise UnsplittableError(LOSS_INSIDE)
        if piece.shape[0] != size or piece.shape[1:] != first.shape[1:] or piece.dtype != first.dtype:
            raise UnsplittableError(OTHER_ROWS)
    return first if len(pieces) == 1 else torch.cat(tuple(pieces))


def alike(torch: ModuleType, one: object, other: object, tolerance: float) -> bool:
    """Whether two outputs are the same up to ``tolerance``, a share of the largest finite value of each tensor."""
    ones, others = list(tensors(torch, one)), list(tensors(torch, other))
    return len(ones) == len(others) and all(
        _same_values(torch, a, b, tolerance) for a, b in zip(ones, others, strict=True)
    )


def _same_values(torch: ModuleType, one: Any, other: Any, tolerance: float) -> bool:
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    if not (one.is_floating_point() or one.is_complex()):
        return bool(torch.equal(one, other))
    finite = one[one.isfinite()].abs()
    scale = float(finite.max()) if finite.numel() else 0.0
    return bool(torch.allclose(one, other, rtol=tolerance, atol=tolerance * scale, equal_nan=True))


def is_coarse(torch: ModuleType, output: object) -> bool:
    """Whether any of it has but half of float32's digits."""
    return any(tensor.dtype in (torch.bfloat16, torch.float16) for tensor in tensors(torch, output))


def some(torch: ModuleType, output: object, start: int, stop: int) -> list[object]:
    """The rows from ``start`` to ``stop`` of each tensor in an output."""
    found: list[Any] = list(tensors(torch, output))
    return [tensor[start:stop] for tensor in found]
