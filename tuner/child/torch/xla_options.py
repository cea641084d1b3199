"""The options of torch_xla's ParallelLoader that are knobs: given where one is made, and read off what it then has."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..applied import Effect
from ..records import Value
from ..session import Session
from .loader import LoaderWatch

TOGETHER = "batches_per_execution"
SIZES = ("loader_prefetch_size", "device_prefetch_size", "host_to_device_transfer_threads")
KNOBS = (*SIZES, TOGETHER)
NOT_MADE = "no ParallelLoader or MpDeviceLoader of torch_xla's feeds the training"
WRAPPED = "it wraps a loader of the script's, by which it isn't known again in another run"
GIVES_ITSELF = "the script itself gives the device each graph (sync, mark_step, a compiled step)"
EAGER = "the script computes in eager mode: there are no graphs of whole steps"
_MOSTLY = 0.9


@dataclass
class Options:
    """Of one ParallelLoader. ``written``: what the script gave it, with the library's own values for what it didn't.
    ``changed``: knobs that were given another one. ``key``: of the training's source that it was known by; "" if none.
    """

    written: dict[str, Value] = field(default_factory=dict)
    changed: set[str] = field(default_factory=set)
    key: str = ""
    live: dict[str, Value] = field(default_factory=dict)


class XlaOptions:
    """Those of every ParallelLoader of a trial, or of an applied run."""

    def __init__(self, session: Session, loaders: LoaderWatch) -> None:
        self.session = session
        self.loaders = loaders
        self.trains: Options | None = None
        """Of the one that gave the newest batch of the training."""
        self._made: list[Options] = []
        self.is_eager: Callable[[], bool] = lambda: False
        self._batches = 0
        self._graphs: Counter[int] = Counter()
        self._by_loader = 0

    @property
    def wanted(self) -> dict[str, Value]:
        """Knob → the value that a ParallelLoader is to be given."""
        knobs, config = self.session.knobs, self.session.request.config
        return {knob: config[knob] for knob in KNOBS if knobs.wants(knob)}

    def given(
        self, signature: inspect.Signature, loader: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], stack: str
    ) -> tuple[Options, dict[str, Any]]:
        """What a ParallelLoader is made with, by name, with the knobs of the config where it is the training's.

        Raises ``TypeError`` as the call itself would.
        """
        bound = signature.bind(loader, *args, **kwargs)
        bound.apply_defaults()
        named = dict(list(bound.arguments.items())[1:])
        options = Options({knob: named[knob] for knob in KNOBS if knob in named})
        options.key = self._known_by(named.get("cpu_loader"), stack)
        if options.key:
            for knob, value in self.wanted.items():
                if knob in named:
                    named[knob] = value
                    options.changed.add(knob)
        self._made.append(options)
        del self._made[:-64]
        return options, named

    def _known_by(self, cpu_loader: object, stack: str) -> str:
        """The key of the source that trained in the baseline and feeds this one; in the baseline its place."""
        sources = self.loaders.sources
        entry = self.loaders.entry_of(cpu_loader)
        if entry is not None:
            return entry.key if not sources.known or entry.key in sources.known else ""
        if not sources.known:
            return stack
        return next((key for key in sources.known if key.startswith(f"{stack}#")), "")

    # what happens to them

    def gave(self, options: Options, loader: Any) -> None:
        """The loader has given the training a batch."""
        self._batches += 1
        if options is self.trains:
            return
        self.trains = options
        [queues, *others] = loader._queues.values()
        threads = len(loader._threads) - 1  # one fetches
        options.live = {
            "loader_prefetch_size": queues.cpu_loader_queue.max_size(),
            "device_prefetch_size": queues.queue.max_size(),
            "host_to_device_transfer_threads": threads // (1 + len(others)),
        }

    def graph_given(self, by_loader: bool) -> None:
        """A graph was given to the device, with what the batches since the one before have brought."""
        if self._batches:
            self._graphs[self._batches] += 1
            self._by_loader += by_loader
            self._batches = 0

    @property
    def usual(self) -> int:
        """Batches that most graphs trained on; 0 before the first one."""
        return max(self._graphs, key=lambda batches: self._graphs[batches], default=0)

    def _obstacle(self, knob: str) -> str:
        if self.trains is None:
            return NOT_MADE
        primary = self.loaders.sources.primary
        if primary is None or not primary.key.startswith(self.trains.key or "?"):
            return WRAPPED
        if knob == TOGETHER and self.is_eager():
            return EAGER
        given = self._graphs.total()
        return GIVES_ITSELF if knob == TOGETHER and given and self._by_loader < _MOSTLY * given else ""

    # what is told

    def written(self) -> None:
        """The facts of the script's own values."""
        facts = self.session.facts
        for knob in KNOBS:
            why = self._obstacle(knob)
            if why:
                facts.left_out[knob] = why
            elif self.trains is not None and type(self.trains.written.get(knob)) is int:
                facts.as_written[knob] = self.trains.written[knob]

    def report(self) -> None:
        """Evidence of each that the config asks for."""
        knobs, trains = self.session.knobs, self.trains
        for knob in KNOBS:
            if knob not in knobs.requested:
                continue
            if trains is None:
                knobs.inapplicable(knob, NOT_MADE, sites=0)
                continue
            why = self._obstacle(knob) if knob not in trains.changed or knob == TOGETHER else ""
            seen = self.usual if knob == TOGETHER else trains.live.get(knob)
            knobs.compare(knob, seen, changed=int(knob in trains.changed), why=why)

    def effect(self, knob: str) -> Effect:
        """For an applied run: at how many ParallelLoaders the knob's value was given."""
        changed = sum(knob in options.changed for options in self._made)
        return Effect(changed, WRAPPED if self._made else NOT_MADE)

