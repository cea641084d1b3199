"""PyTorch's DataLoader: which one trains, what it was given, what it gives, how long it keeps the script waiting."""

from __future__ import annotations

import inspect
import sys
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from ..call_sites import inside_library, user_stack
from ..patches import patch
from ..session import Session

LOADER_KNOBS = ("batch_size", "num_workers", "prefetch_factor", "pin_memory", "persistent_workers")


@dataclass
class Loader:
    """What is known of the loaders made at one place of the user's code."""

    key: str
    stack: str
    written: dict[str, Any]
    refused: dict[str, str]
    changed: set[str] = field(default_factory=set)
    fetches: int = 0
    samples: float = 0.0
    training_gaps: int = 0
    sizes: dict[int, int] = field(default_factory=dict)
    leads: bool = True  # whether the samples lie along the first dimension of the batch's tensors
    live_workers: int = 0
    live: dict[str, Any] = field(default_factory=dict)
    dataset_len: int | None = None
    dataset: Callable[[], Any] = lambda: None
    map_style: bool = True
    made: int = 0
    iterated: bool = False


class LoaderWatch:
    """Patches DataLoader: overrides at construction, counts and times at iteration."""

    def __init__(self, session: Session, torch: ModuleType) -> None:
        self.session = session
        self.torch = torch
        self.loaders: dict[str, Loader] = {}
        self.gap: dict[str, None] = {}
        self.gaps = 0
        self.primary: str | None = None
        self.changes_of_primary = 0
        self._of_object: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
        self._queues: weakref.WeakKeyDictionary[Any, list[int]] = weakref.WeakKeyDictionary()
        self._loader_of: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
        self._kept: dict[str, tuple[Any, int]] = {}
        self.on_batch: Callable[[str, Any, int], None] = lambda key, batch, count: None
        known = session.knowledge.get("training_loaders")
        self.known: set[str] | None = set(known) if known else None

    def install(self) -> None:
        """Patches what the mode needs: under "apply" only the construction, and only if a knob asks for it."""
        data = self.torch.utils.data
        wanted = [k for k in LOADER_KNOBS if self.session.wants(k)]
        if self.session.measuring or wanted:
            patch(data.DataLoader, "__init__", self._init)
            patch(data.DataLoader, "__iter__", self._iter)
        if self.session.measuring:
            base = sys.modules["torch.utils.data.dataloader"]._BaseDataLoaderIter
            patch(base, "__next__", self._next)
            patch(base, "_next_index", self._next_index)

    # construction

    def _init(self, original: Any) -> Any:
        signature = inspect.signature(original)

        def __init__(loader: Any, *args: Any, **kwargs: Any) -> None:
            try:
                bound = signature.bind(loader, *args, **kwargs)
            except TypeError:
                original(loader, *args, **kwargs)  # raises the script's own TypeError
                return
            if not self.session.here:
                original(loader, *args, **kwargs)
                return
            given = dict(bound.arguments)
            entry = self._register(loader, given)
            if self._is_training(entry, given):
                self._override(entry, given)
            original(**_by_name(signature, given))

        return __init__

    def _register(self, loader: Any, given: dict[str, Any]) -> Loader:
        dataset = given.get("dataset")
        stack = user_stack()
        entry = self._known_entry(stack, dataset, given)
        if entry is None:
            same_place = sum(1 for other in self.loaders.values() if other.stack == stack)
            entry = Loader(f"{stack}#{same_place}", stack, _written(given), self._refusals(given))
            entry.map_style = not isinstance(dataset, self.torch.utils.data.IterableDataset)
            entry.dataset_len = _length(dataset) if entry.map_style else None
            self.loaders[entry.key] = entry
        entry.dataset = _reference(dataset)
        entry.made += 1
        self._of_object[loader] = entry.key
        return entry

    def _known_entry(self, stack: str, dataset: Any, given: dict[str, Any]) -> Loader | None:
        """The loader that this one stands for: the same data wrapped by a library, or the same line an epoch later."""
        if inside_library():
            # accelerate, Fabric and Lightning make a loader anew around the same dataset: it stays the same loader.
            for entry in reversed(self.loaders.values()):
                if entry.dataset() is dataset:
                    return entry
        for entry in self.loaders.values():
            if entry.stack == stack and entry.iterated and entry.written == _written(given):
                alike = entry.map_style and entry.dataset_len == _length(dataset)
                if alike or entry.dataset() is dataset:
                    return entry
        return None

    def _is_training(self, entry: Loader, given: dict[str, Any]) -> bool:
        if self.known is not None:
            return entry.key in self.known
        # Without a baseline's knowledge (a profile applied to a changed script) training shows by its shuffling.
        sampler = type(given.get("sampler")).__name__
        return bool(given.get("shuffle")) or "Random" in sampler or "Distributed" in sampler

    def _refusals(self, given: dict[str, Any]) -> dict[str, str]:
        data = self.torch.utils.data
        refused: dict[str, str] = {}
        batch_sampler = given.get("batch_sampler")
        if batch_sampler is not None and type(batch_sampler) is not data.BatchSampler:
            refused["batch_size"] = f"the script batches by its own {type(batch_sampler).__name__}"
        elif batch_sampler is None and given.get("batch_size", 1) is None:
            refused["batch_size"] = "the dataset makes its batches itself (batch_size=None)"
        dataset = given.get("dataset")
        if isinstance(dataset, data.IterableDataset) and not _shards_itself(dataset):
            reason = "an iterable dataset that doesn't ask which worker it is in: every worker would repeat the data"
            refused["num_workers"] = refused["prefetch_factor"] = refused["persistent_workers"] = reason
        elif given.get("num_workers", 0) == 0 and given.get("multiprocessing_context") is None:
            unpicklable = _cannot_fork(given)
            if unpicklable:
                refused["num_workers"] = unpicklable
        return refused

    def _override(self, entry: Loader, given: dict[str, Any]) -> None:
        config = self.session.config
        for knob in LOADER_KNOBS:
            if not self.session.wants(knob) or knob in entry.refused:
                continue
            old = given.get("batch_sampler") if knob == "batch_size" else None
            if old is not None and type(old) is not self.torch.utils.data.BatchSampler:
                continue  # a library's own, around the sampler of the loader that was changed already
            if old is not None:
                given["batch_sampler"] = type(old)(old.sampler, int(config[knob]), old.drop_last)
            else:
                given[knob] = config[knob]
            entry.changed.add(knob)
        if int(given.get("num_workers", 0)) == 0:
            for dependent in ("prefetch_factor", "persistent_workers", "timeout", "multiprocessing_context"):
                given.pop(dependent, None)

    # iteration

    def _iter(self, original: Any) -> Any:
        def __iter__(loader: Any) -> Any:
            key = self._of_object.get(loader)
            if key is None or not self.session.here:
                return original(loader)
            entry = self.loaders[key]
            entry.iterated = True
            if key == self.primary:
                self.session.clock.fetch_begins()
            began = time.perf_counter()
            iterator = original(loader)
            if self.session.measuring:
                if key == self.primary:
                    self.session.clock.add_samples(0, time.perf_counter() - began)
                self._look_at(entry, loader, iterator)
            return iterator

        return __iter__

    def _look_at(self, entry: Loader, loader: Any, iterator: Any) -> None:
        self._of_object[iterator] = entry.key
        self._loader_of[iterator] = loader
        workers = getattr(iterator, "_workers", None) or []
        entry.live_workers = sum(1 for worker in workers if worker.is_alive())
        entry.live.update(
            num_workers=entry.live_workers, prefetch_factor=loader.prefetch_factor,
            persistent_workers=loader.persistent_workers, pin_memory=loader.pin_memory,
        )  # fmt: skip

    def _next_index(self, original: Any) -> Any:
        def _next_index(iterator: Any) -> Any:
            index = original(iterator)
            self._queues.setdefault(iterator, []).append(len(index) if isinstance(index, list) else 1)
            return index

        return _next_index

    def _next(self, original: Any) -> Any:
        def __next__(iterator: Any) -> Any:
            if not self.session.here:
                return original(iterator)
            self.session.check_stop()
            key = self._of_object.get(iterator)
            clock = self.session.clock
            if key is not None and key == self.primary:
                clock.fetch_begins()
            elif key is not None and self.primary is not None and not self._trains(key):
                clock.validation_begins(key)
            if key is not None and self.session.probe and key in (self.known or ()):
                return self._probe(original, iterator, self.loaders[key])
            began = time.perf_counter()
            batch = original(iterator)
            wait_s = time.perf_counter() - began
            if key is not None:
                self._count(self.loaders[key], iterator, batch, wait_s)
            return batch

        return __next__

    def _probe(self, original: Any, iterator: Any, entry: Loader) -> Any:
        """One side of the loop by itself: the first batch again and again, or batches that nobody trains on."""
        if self.session.probe == "compute":
            if entry.key not in self._kept:
                batch = original(iterator)
                queue = self._queues.get(iterator)
                self._kept[entry.key] = batch, (queue.pop(0) if queue else 0) or _leading_dimension(self.torch, batch)
            batch, count = self._kept[entry.key]
            self.session.clock.add_samples(count, 0.0)
            self.gap[entry.key] = None
            entry.fetches += 1
            entry.sizes[count] = entry.sizes.get(count, 0) + 1
            return batch
        while True:
            began = time.perf_counter()
            try:
                batch = original(iterator)
            except StopIteration:
                iterator = iter(self._loader_of[iterator])
                continue
            self._count(entry, iterator, batch, time.perf_counter() - began)
            self.session.step("torch")

    def _trains(self, key: str) -> bool:
        return self.gap_share(key) >= 0.5

    def _count(self, entry: Loader, iterator: Any, batch: Any, wait_s: float) -> None:
        queue = self._queues.get(iterator)
        count = queue.pop(0) if queue else 0
        if count == 0 or entry.written["batch_size"] is None:
            count = _leading_dimension(self.torch, batch) or count
        elif not entry.map_style and entry.leads:
            # An iterable dataset is asked for whole batches; how many samples its last one has shows in the tensors.
            leading = _leading_dimension(self.torch, batch)
            entry.leads = entry.fetches > 0 or leading == count
            count = leading if entry.leads else count
        entry.fetches += 1
        entry.samples += count
        entry.sizes[count] = entry.sizes.get(count, 0) + 1
        if entry.fetches <= 3 or entry.fetches % 64 == 0:
            entry.live["pinned"] = _is_pinned(self.torch, batch)
        self.on_batch(entry.key, batch, count)
        self.gap.pop(entry.key, None)
        self.gap[entry.key] = None  # the last one fetched comes last
        if (self.primary is None or entry.key == self.primary) and self.session.may_be_of("torch"):
            self.session.clock.add_samples(count, wait_s)

    def gap_share(self, key: str) -> float:
        """In which share of the gaps between backwards the loader was fetched."""
        return self.loaders[key].training_gaps / self.gaps if self.gaps else 0.0

    def backward_ran(self) -> None:
        """What was fetched since the last backward fed it, if that was fetched in most such gaps."""
        if not self.gap:
            return
        self.gaps += 1
        for key in self.gap:
            self.loaders[key].training_gaps += 1
        newest = next(reversed(self.gap))
        self.gap.clear()
        if self.primary is None:
            self.primary = newest
        elif self.loaders[newest].training_gaps > self.loaders[self.primary].training_gaps:
            # The first backwards came from something else: a search for a learning rate, an earlier stage.
            self.primary = newest
            self.changes_of_primary += 1


def _by_name(signature: inspect.Signature, given: dict[str, Any]) -> dict[str, Any]:
    """Arguments by name; the first parameter (the loader) included under the name it has in the signature."""
    flat = dict(given)
    for name, parameter in signature.parameters.items():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            flat.update(flat.pop(name, {}))
    return flat


def _written(given: dict[str, Any]) -> dict[str, Any]:
    workers = int(given.get("num_workers", 0) or 0)
    batch_sampler = given.get("batch_sampler")
    batch_size = given.get("batch_size", 1) if batch_sampler is None else getattr(batch_sampler, "batch_size", None)
    return {
        "batch_size": batch_size,
        "shuffle": bool(given.get("shuffle")),
        "num_workers": workers,
        "prefetch_factor": given.get("prefetch_factor") or 2,
        "pin_memory": bool(given.get("pin_memory", False)),
        "persistent_workers": bool(given.get("persistent_workers", False)),
    }


def _reference(dataset: Any) -> Callable[[], Any]:
    """The dataset as long as it lives; a list, say, can't be referred to weakly and is never recognised."""
    try:
        return weakref.ref(dataset)
    except TypeError:
        return object  # a new one with each call: identical to nothing


def _length(dataset: Any) -> int | None:
    try:
        return len(dataset)
    except (TypeError, NotImplementedError):
        return None


def _shards_itself(dataset: Any) -> bool:
    """Whether the dataset's ``__iter__`` asks for ``get_worker_info``, as PyTorch's documentation demands."""
    code = getattr(getattr(type(dataset), "__iter__", None), "__code__", None)
    if code is None:
        return False
    return "get_worker_info" in code.co_names or type(dataset).__module__.startswith("torch.")


def _cannot_fork(given: dict[str, Any]) -> str:
    """Workers are forked on Linux; only a dataset that holds a generator on a CUDA device can't follow."""
    generator = given.get("generator")
    if generator is not None and getattr(generator.device, "type", "cpu") == "cuda":
        return "the loader's random generator lives on the GPU, which a worker can't reach"
    return ""


def tensors_of(torch: ModuleType, batch: Any, depth: int = 0) -> list[Any]:
    """The tensors of a batch, whatever it is made of."""
    if isinstance(batch, torch.Tensor):
        return [batch]
    if depth > 3:
        return []
    if isinstance(batch, dict) or (hasattr(batch, "values") and hasattr(batch, "keys")):
        batch = list(batch.values())
    if isinstance(batch, (list, tuple)):
        return [t for item in batch[:8] for t in tensors_of(torch, item, depth + 1)]
    attributes = vars(batch).values() if hasattr(batch, "__dict__") else ()
    return [value for value in attributes if isinstance(value, torch.Tensor)]


def _leading_dimension(torch: ModuleType, batch: Any) -> int:
    sizes = [t.shape[0] for t in tensors_of(torch, batch) if t.dim() > 0]
    return max(set(sizes), key=sizes.count) if sizes else 0


def _is_pinned(torch: ModuleType, batch: Any) -> bool:
    tensors = tensors_of(torch, batch)
    return bool(tensors) and torch.cuda.is_available() and all(t.is_pinned() for t in tensors)
