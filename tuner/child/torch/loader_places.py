"""What is known of the DataLoaders made at one place of the user's code, and of what they were given."""

from __future__ import annotations

import inspect
import time
import weakref
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, Generic, NamedTuple

from ..evidence import SetBy
from ..identities import ByIdentity
from ..knobs import EFFECTIVE_BATCH, not_as_studied
from ..records import Value
from ..session import Session
from ..sources import DataSource
from .batches import Asked
from .datasets import reference
from .types import Arguments, DataLoader, LoaderIterator, Result

LOADER_KNOBS = ("batch_size", "num_workers", "prefetch_factor", "pin_memory", "persistent_workers")


@dataclass
class Loader(DataSource):
    """What is known of the loaders made at one place of the user's code.

    ``written``: knob → the script's own value. ``refused``: knob → why it can't be turned. ``changed``: knobs that
    were. ``live``: knob → what the newest iterator works with. ``made``: how many loaders were, the newest of them at
    ``made_s``, by ``time.perf_counter``. ``dataset_len``:
    samples of a map-style dataset. ``asked``: counts those of an iterable one.
    ``loader``, ``newest``: weak references to the newest loader, and iterator. ``anew``: iterations that began with a
    loader of their own.
    ``made_first``: how many loaders were made before the first of them.
    ``refused_beside``: as ``refused``, beside threads of JAX's.
    ``has_context``: whether the script says how its workers start. ``starts_anew``: whether the config has added some,
    which are started anew. ``first``: see ``LoaderUse``.
    """

    written: dict[str, Value | None] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    refused_beside: dict[str, str] = field(default_factory=dict)
    has_context: bool = False
    starts_anew: bool = False
    changed: set[str] = field(default_factory=set)
    live: dict[str, Any] = field(default_factory=dict)
    made: int = 0
    made_s: float = 0.0
    dataset_len: int | None = None
    map_style: bool = True
    asked: Asked = field(default_factory=Asked)
    loader: Callable[[], DataLoader | None] = lambda: None
    newest: Callable[[], LoaderIterator | None] = lambda: None
    anew: int = 0
    made_first: int = 0
    first: str = ""
    _begun: ByIdentity[bool] = field(default_factory=ByIdentity)

    def is_made(self, torch: ModuleType, loader: DataLoader, given: Arguments) -> None:
        """A loader is made here, or by a library in its place."""
        self.dataset, self.made, self.made_s = reference(given.get("dataset")), self.made + 1, time.perf_counter()
        self.loader = weakref.ref(loader)
        if why := _unsized(torch, given):
            self.refused.setdefault("batch_size", why)

    def begins_with(self, loader: DataLoader, iterator: LoaderIterator) -> None:
        """This loader begins an iteration."""
        self.newest = weakref.ref(iterator)
        self.made_first = self.made_first or self.made
        self.anew += loader not in self._begun
        self._begun[loader] = True

    @property
    def is_made_for_each(self) -> bool:
        """Whether each of several iterations had a loader of its own: no worker lasts from one to the next.

        Of those that were made together, before any was iterated, each may be iterated again.
        """
        return 0 < self.later_starts < self.anew and self.made > self.made_first

    def respawns(self, batches: int) -> bool:
        """Whether each iteration of so many batches starts its workers anew. One that goes on beyond them repeats its
        sampler by itself, as YOLO's and timm's do, and lasts.
        """
        return bool(self.live.get("num_workers")) and not self.live.get("persistent_workers") and self.given <= batches

    @property
    def at_work(self) -> int:
        """Samples that its workers make at once: a batch each."""
        return int(self.live.get("num_workers") or 0) * self.usual_size

    @property
    def takes_single_items(self) -> bool:
        """Whether each of its batches is made of one item."""
        return self.written.get("batch_size") == 1 and "batch_size" not in self.changed


class Fetched(NamedTuple, Generic[Result]):
    """A batch, its samples, the seconds that it took, and its tokens, 0 where none are counted."""

    batch: Result
    samples: int
    wait_s: float
    tokens: int


def by_name(signature: inspect.Signature, given: Arguments) -> Arguments:
    """Arguments by name; the first parameter (the loader) included under the name it has in the signature."""
    flat = dict(given)
    for name, parameter in signature.parameters.items():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            flat.update(flat.pop(name, {}))
    return flat


def stands_for(entries: Iterable[Loader], given: Arguments) -> Loader | None:
    """That in whose place a library makes a loader of these arguments, around the same dataset; None for none.

    Of several, as of a split by samplers, the one whose sampler it is given, else one with as large batches.
    """
    around = [entry for entry in reversed(list(entries)) if entry.dataset() is given.get("dataset")]
    held = [getattr(entry.loader(), "__dict__", {}) for entry in around]
    size, samplers = as_written(given)["batch_size"], _samplers(given)
    by_sampler = [entry for entry, of in zip(around, held, strict=True) if samplers & _samplers(of)]
    by_size = [entry for entry, of in zip(around, held, strict=True) if of and as_written(of)["batch_size"] == size]
    return next(iter([*by_sampler, *by_size, *around]), None)


def _samplers(given: Mapping[str, Any]) -> set[int]:
    """Identities of what a loader's samples are drawn by; a batch sampler may wrap another one."""
    batches = given.get("batch_sampler")
    within = getattr(batches, "__dict__", {})
    found = given.get("sampler"), batches, within.get("sampler"), within.get("batch_sampler")
    return {id(each) for each in found if each is not None}


def _unsized(torch: ModuleType, given: Arguments) -> str:
    """Why the batches of a loader have no size to turn; "" where they have. Opacus draws each sample by chance, with a
    share that it takes of the script's own loader, and from which it tells how private the training is.
    """
    sampler = given.get("batch_sampler")
    sized = sampler is None or isinstance(sampler, torch.utils.data.BatchSampler)
    if sized or type(getattr(sampler, "batch_size", None)) is int:
        return ""
    return f"its batches are drawn by {type(sampler).__name__}, which knows no size of them"


def other_size(session: Session, given: Arguments) -> dict[str, str]:
    """Why a loader keeps its batches that has others than the config is for; {} for any other."""
    known, size = session.request.knowledge.as_written.get("batch_size"), as_written(given)["batch_size"]
    why = not_as_studied("the loader has batches of", size, known)
    is_ours = session.knobs.set_by("batch_size") is SetBy.PATCH and any(map(session.knobs.wants, EFFECTIVE_BATCH))
    return {"batch_size": why} if why and is_ours else {}


def as_written(given: Arguments) -> dict[str, Value | None]:
    """Knob → the script's own value, by the arguments of a constructor."""
    batch_sampler = given.get("batch_sampler")
    batch_size = given.get("batch_size", 1) if batch_sampler is None else getattr(batch_sampler, "batch_size", None)
    return {
        "batch_size": batch_size, "shuffle": bool(given.get("shuffle")),
        "num_workers": int(given.get("num_workers", 0) or 0), "prefetch_factor": given.get("prefetch_factor") or 2,
        "pin_memory": bool(given.get("pin_memory")), "persistent_workers": bool(given.get("persistent_workers")),
    }  # fmt: skip


def drop_for_none(given: Arguments) -> None:
    """Takes away what a constructor refuses, or doesn't need, where it is given no workers."""
    if not given.get("num_workers"):
        for dependent in ("prefetch_factor", "persistent_workers", "timeout", "multiprocessing_context"):
            given.pop(dependent, None)
