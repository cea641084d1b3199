"""torch_xla's ParallelLoader, and MpDeviceLoader around it: batches that threads fetch, and upload, ahead of the loop.

They are counted as the queue gives them, and the loop waits there: what the threads wait is no wait of its own. What
lies ready is what they have fetched and the loop hasn't.
"""

from __future__ import annotations

import inspect
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple

from ..call_sites import user_stack
from ..patches import patch
from ..records import ProbeSide
from ..session import Session
from .batches import leading_dimension
from .loader import LoaderWatch
from .loader_places import LOADER_KNOBS, Loader
from .xla_options import Options, XlaOptions

NO_LOADER = "the loader is none of PyTorch's"


class _Batch(NamedTuple):
    """One that a thread has fetched: where from, its samples, its tokens."""

    source: Loader
    samples: int
    tokens: int


class _Feed:
    """One ParallelLoader. ``batches``: fetched by its thread and not given to the loop. ``anew``: makes one like it."""

    def __init__(self, stack: str, anew: Callable[[], Any], capacity: int, options: Options) -> None:
        self.stack = stack
        self.anew = anew
        self.capacity = capacity
        self.options = options
        self.batches: deque[_Batch] = deque()
        self.source: Loader | None = None

    def put(self, source: Loader, samples: int, tokens: int) -> None:
        """Takes what the thread has fetched."""
        self.batches.append(_Batch(source, samples, tokens))


class XlaLoaderWatch:
    """Patches ``ParallelLoader``, once its module is imported."""

    def __init__(self, session: Session, torch: ModuleType, loaders: LoaderWatch) -> None:
        self.session = session
        self.torch = torch
        self.loaders = loaders
        self.sources = loaders.sources
        self.options = XlaOptions(session, loaders)
        self._feeds: weakref.WeakKeyDictionary[Any, _Feed] = weakref.WeakKeyDictionary()
        self._newest: _Feed | None = None
        self._waited_s = 0.0

    def install(self, module: ModuleType) -> None:
        """Patches what is needed to count, and the making alone where nothing is measured and a knob asks for it."""
        if self.session.measuring or self.options.wanted:
            patch(module.ParallelLoader, "__init__", self._init)
        if self.session.measuring:
            patch(module.ParallelLoader, "_loader_worker", self._fetching)
            patch(module.ParallelLoader, "next_item", self._next_item)

    @property
    def capacity(self) -> int:
        """Batches that can lie in the queues of the loader that trains."""
        return self._newest.capacity if self._newest is not None else 0

    def ready_samples(self) -> float | None:
        """Samples that workers have made or the threads have fetched, and the loop hasn't; None where it isn't seen."""
        feed, of_workers, primary = self._newest, self.loaders.ready_samples(), self.sources.primary
        if feed is None:
            return of_workers
        if feed.source is not None or (of_workers is None and primary is not None and primary.live.get("num_workers")):
            return None
        return (of_workers or 0.0) + sum(batch.samples for batch in list(feed.batches))

    def take_waits(self) -> float:
        """Seconds that the loop waited here since the last call, the first batch of an epoch left out."""
        waited_s, self._waited_s = self._waited_s, 0.0
        return waited_s

    def _init(self, original: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(original)

        def __init__(loader: Any, *args: Any, **kwargs: Any) -> None:
            if not self.session.here:
                original(loader, *args, **kwargs)
                return
            stack = user_stack()
            try:
                options, named = self.options.given(signature, loader, args, kwargs, stack)
            except TypeError:
                original(loader, *args, **kwargs)  # raises the script's own TypeError
                return
            capacity = named.get("loader_prefetch_size", 0) + named.get("device_prefetch_size", 0)
            made = self._feeds[loader] = _Feed(stack, lambda: type(loader)(*args, **kwargs), capacity, options)
            if self._newest is not None and self._newest.stack == made.stack:
                self._newest = made  # the next epoch's: it fetches from now on
            original(loader, **named)

        return __init__

    def _fetching(self, original: Callable[..., None]) -> Callable[..., None]:
        def _loader_worker(loader: Any) -> None:
            feed = self._feeds.get(loader)
            if feed is None:
                original(loader)
                return
            thread = threading.get_ident()
            self.sources.feeders[thread] = feed.put
            try:
                original(loader)
            finally:
                del self.sources.feeders[thread]

        return _loader_worker

    def _next_item(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def next_item(loader: Any, device: object) -> Any:
            feed = self._feeds.get(loader)
            if feed is None or not self.session.here:
                return original(loader, device)
            self.session.check_stop()
            source = feed.batches[0].source if feed.batches else feed.source
            probe = self.session.request.probe
            if probe is not None and source is not None and source.key in self.sources.known:
                return self._probe(probe, original, loader, device, source)
            if source is not None:
                self.sources.fetch_begins(source)
            item, fetched, wait_s = self._timed(original, loader, device)
            if fetched is not None:
                if fetched.source is self.sources.primary and not fetched.source.is_beginning:
                    self._waited_s, wait_s = self._waited_s + wait_s, 0.0
                self.sources.fetched(fetched.source, fetched.samples, wait_s, fetched.tokens)
                if self.sources.is_training(fetched.source):
                    self.options.gave(feed.options, loader)
            return item

        return next_item

    def _timed(self, original: Callable[..., Any], loader: Any, device: object) -> tuple[Any, _Batch | None, float]:
        """The next item (None at the end of the data), what is known of it, and the seconds waited for it."""
        feed = self._newest = self._feeds[loader]
        began = time.perf_counter()
        item = original(loader, device)
        wait_s = time.perf_counter() - began
        if item is None:
            return None, None, wait_s
        if feed.batches:
            return item, feed.batches.popleft(), wait_s
        feed.source = feed.source or self._source(feed.stack)
        return item, _Batch(feed.source, leading_dimension(self.torch, item), 0), wait_s

    def _source(self, stack: str) -> Loader:
        """Of a loader that nobody else watches: a generator of made-up samples, say."""
        made_here = [each for each in self.sources.at(stack) if each.written.get("batch_size") is None]
        if made_here:
            return made_here[-1]
        written, refused = dict.fromkeys(LOADER_KNOBS), dict.fromkeys(LOADER_KNOBS, NO_LOADER)
        key = f"{stack}#{len(self.sources.at(stack))}"
        return self.sources.add(Loader(key, stack, written={**written}, refused=refused, map_style=False))

    def _probe(
        self, side: ProbeSide, original: Callable[..., Any], loader: Any, device: object, source: Loader
    ) -> Any:
        """One side of the loop by itself."""
        if side is ProbeSide.COMPUTE:

            def fetch() -> tuple[Any, int]:
                item, fetched, _ = self._timed(original, loader, device)
                return item, fetched.samples if fetched is not None else 0

            return self.sources.first_again(source, fetch)
        newest = loader

        def fetch_on() -> tuple[int, float]:
            nonlocal newest
            item, fetched, wait_s = self._timed(original, newest, device)
            if item is None:
                newest = self._feeds[newest].anew()
                item, fetched, more_s = self._timed(original, newest, device)
                wait_s += more_s
            return fetched.samples if fetched is not None else 0, wait_s

        return self.sources.drain(source, fetch_on, lambda: self.session.step("torch"))
