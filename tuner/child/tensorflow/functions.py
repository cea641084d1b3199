"""tf.function: which one is the training step, how often it steps and is traced, and XLA by promotion."""

from __future__ import annotations

import re
import sys
import weakref
from collections import Counter, deque
from collections.abc import Callable, Hashable, Sequence
from types import ModuleType
from typing import Any, TypeVar

from ..call_sites import line_stack
from ..patches import patch
from ..session import Session
from .counters import Counters
from .entries import Compilation, Given, TracedFunction, code_of, owner_of, specs_of
from .fetches import Fetches
from .graphs import is_compiled, trainable_updated, xla_threads
from .kept_traces import KeptTraces
from .progress import Progress
from .replicas import ReductionWatch, current
from .tracing import TraceWatch
from .types import Arguments, ConcreteFunction, Function, Graph, Keywords, Optimizer, Structure, Tensor

CALLS_READ = 3
KEPT_FUNCTIONS = 8
KEPT_GRAPHS = 4
Wrapped = TypeVar("Wrapped", bound=Callable[..., Any])
Call = Callable[..., object]


def outermost(tf: ModuleType) -> Graph:
    """The graph of the function that is being traced; those of its loops and branches lie within."""
    graph: Graph = tf.compat.v1.get_default_graph()
    while hasattr(getattr(graph, "outer_graph", None), "outer_graph"):  # FuncGraph has one, eager's doesn't
        graph = graph.outer_graph
    return graph


class FunctionWatch:
    """Patches the call of tf.function.

    ``stands_aside``: whether calls are to be left alone now. ``prepare``: the arguments to call a function with.
    ``called``: receives a training function after each call of it, the steps that it took, and what it was given; also
    one that takes no gradient and updates what is trained.
    """

    def __init__(
        self, session: Session, tf: ModuleType, stands_aside: Callable[[], bool],
        called: Callable[[TracedFunction, float, Given], None],
        prepare: Callable[[TracedFunction, Given], Arguments],
    ) -> None:  # fmt: skip
        self.session = session
        self.tf = tf
        self.stands_aside = stands_aside
        self.called = called
        self.prepare = prepare
        self.tracing = TraceWatch(session)
        self.progress = Progress(tf)
        self.current: TracedFunction | None = None
        self.training: deque[TracedFunction] = deque(maxlen=KEPT_FUNCTIONS)
        self.traces: Counter[Hashable] = Counter()
        self.calls: Counter[Hashable] = Counter()
        self.compiled = 0
        self.gradients_traced = 0
        self.is_retracing = False
        self._entries: weakref.WeakKeyDictionary[Function, TracedFunction] = weakref.WeakKeyDictionary()
        self._concrete: weakref.WeakKeyDictionary[ConcreteFunction, TracedFunction] = weakref.WeakKeyDictionary()
        self._kept = KeptTraces()

    def install(self) -> None:
        """Patches the classes of what ``tf.function`` returns, and of what it is traced to."""
        kind = type(self.tf.function(lambda: None))
        patch(kind, "__call__", self._call)
        patch(kind, "get_concrete_function", self._get_concrete)
        patch(sys.modules["tensorflow.python.eager.polymorphic_function.concrete_function"].ConcreteFunction,
              "__call__", self._call_concrete)  # fmt: skip
        self.tracing.install()
        ReductionWatch(self.tf, self.loss_averaged).install()

    def _is_outermost(self) -> bool:
        return self.current is None and not self.stands_aside() and bool(self.tf.executing_eagerly())

    def _call(self, original: Call) -> Call:
        def __call__(function: Function, *args: object, **kwargs: object) -> object:
            if self.tf.config.functions_run_eagerly():
                return original(function, *args, **kwargs)
            if self._is_outermost():
                return self._outermost(original, function, args, kwargs)
            if self.current is None or self.is_retracing:
                return original(function, *args, **kwargs)
            return self._within(original, function, args, kwargs)

        return not_converted(__call__)

    def _within(self, original: Call, function: Function, args: Arguments, kwargs: Keywords) -> object:
        """A function is called by another one that is being traced: its own trace may have been kept from before."""
        with self._kept.calling(function):
            before = self.gradients_traced
            result = original(function, *args, **kwargs)
        held = self._kept.of(function)
        if held is not None and self.current is not None and self.gradients_traced == before:
            self._takes_gradients(self.current)
            self.apply_traced(held.optimizer)
            self._kept.hold(self.current.function, held.counters, held.optimizer)
            if all(held.counters is not known for known in (self.current.counters, *self.current.others)):
                self.current.others.append(held.counters)
        if self.current is not None and self.gradients_traced > before:
            self.current.fetched.gradient_traced((args, kwargs))  # from here on its graph has none of the caller's
        return result

    def _entry(self, function: Function) -> TracedFunction:
        entry = self._entries.get(function)
        if entry is None:
            entry = self._entries[function] = TracedFunction(
                weakref.ref(function), function.name, bool(function._jit_compile), code_of(function),
                Counters(self.tf), Fetches(self.tf), owner_of(function),
            )  # fmt: skip
        return entry

    def _get_concrete(self, original: Callable[..., ConcreteFunction]) -> Callable[..., ConcreteFunction]:
        """Patches what traces a function without calling it: the trace is kept for calls."""

        def get_concrete_function(function: Function, *args: object, **kwargs: object) -> ConcreteFunction:
            if not self._is_outermost():
                return original(function, *args, **kwargs)
            entry = self._entry(function)
            entry.trace_begins()
            self.current = entry
            try:
                concrete = original(function, *args, **kwargs)
            finally:
                self.current = None
            self._concrete[concrete] = entry
            return concrete

        return not_converted(get_concrete_function)

    def _call_concrete(self, original: Call) -> Call:
        """Patches the call of what a function was traced to: it runs as it was traced."""

        def __call__(concrete: ConcreteFunction, *args: object, **kwargs: object) -> object:
            entry = self._concrete.get(concrete)
            if entry is None or not self._is_outermost():
                return original(concrete, *args, **kwargs)
            self.session.check_stop()
            given = self.prepare(entry, (args, kwargs)), kwargs
            self.current = entry
            try:
                result = original(concrete, *given[0], **kwargs)
            finally:
                self.current = None
            if entry.takes_gradients or (entry.optimizer is not None and self.session.measuring):
                if not entry.calls:
                    self._traced(entry, [concrete], *given)
                self._ended(entry, given)
            entry.calls += 1
            return result

        return not_converted(__call__)

    def _outermost(self, original: Call, function: Function, args: Arguments, kwargs: Keywords) -> object:
        self.session.check_stop()
        entry = self._entry(function)
        args = self.prepare(entry, (args, kwargs))
        chosen = self._choose(entry, function)
        entry.trace_begins()
        self.current = entry
        self.tracing.call_begins()
        try:
            if chosen is function or entry.promoted_calls:
                result = original(chosen, *args, **kwargs)
            else:
                result = self._first_promoted(original, entry, function, args, kwargs)
        finally:
            self.current = None
            self.tracing.call_ended()
        if entry.takes_gradients or (entry.optimizer is not None and self.session.measuring):
            self._look_at_traces(entry, entry.chosen or function, args, kwargs)
            self._ended(entry, (args, kwargs))
        elif self.session.measuring and self._updates_without_gradient(entry, function):
            self.called(entry, 0.0, (args, kwargs))
        entry.calls += 1
        if entry.refused and self.session.measuring:
            self.session.fail("compile-failure", entry.refused)
            self.session.stop("XLA can't compile the training step", complete=False)
        return result

    # XLA

    def _choose(self, entry: TracedFunction, function: Function) -> Function:
        """The script's function, or from its second call on one compiled as the config says: variables exist then."""
        if entry.chosen is not None or entry.is_refused:
            return entry.chosen or function
        wanted = self.session.knobs.wanted("jit_compile")
        if not (wanted is not None and bool(wanted) != entry.written_jit and entry.calls and entry.takes_gradients):
            return function
        # What was traced stays as it was compiled: only a copy that hasn't been traced can be compiled otherwise.
        entry.chosen = function._clone(None)
        entry.chosen._jit_compile = bool(wanted)
        entry.traces = 0
        self.traces[entry.code] -= 1
        return entry.chosen

    def _first_promoted(
        self, original: Call, entry: TracedFunction, function: Function, args: Arguments, kwargs: Keywords
    ) -> object:
        """The first call of what was compiled; the script's own function, and ``refused`` set, where XLA can't."""
        try:
            result = original(entry.chosen, *args, **kwargs)
        except Exception as error:
            entry.chosen, entry.is_refused = None, True
            entry.trace_begins()
            result = original(function, *args, **kwargs)  # raises what the script's own function raises
            entry.refused = f"XLA refused {entry.name}: {_first_sentence(error)}"
            return result
        entry.promoted_calls += 1
        self.compiled += 1
        return result

    # tracing

    def gradient_traced(self, target: object, site: str, place: tuple[object, ...]) -> None:
        """A tape's gradient of ``target`` is being traced: the outermost function is a training step.

        ``site``: what its loss is known by. ``place``: where that is, as exactly as can be told.
        """
        entry = self.current
        if entry is None or self.is_retracing:
            return
        self._takes_gradients(entry)
        # Threads and replicas trace apart, and a GAN has several tapes: the first of all counts.
        replica = current(self.tf)
        own = (replica.tracer, *place)
        entry.leading_place = entry.leading_place or own
        entry.leading_tracer = entry.leading_tracer or replica.tracer
        entry.leading_site = entry.leading_site or site
        self._kept.hold(entry.function, entry.counters)
        if not self.session.measuring:
            return
        entry.fetched.gradient_traced(target)
        if own != entry.leading_place:
            return
        leads = site == entry.leading_site and replica.number is not None
        scalar = target if leads and isinstance(target, self.tf.Tensor) else None
        if not replica.is_further:
            entry.leading_loss, entry.replicas = scalar, replica.of
        entry.counters.add(loss=scalar, is_part=replica.is_further, gradients=int(not replica.is_further))

    def loss_averaged(self, part: object) -> None:
        """The mean of something over replicas is being traced; ``part``: the first replica's."""
        entry = self.current
        if entry is not None and part is not None and part is entry.leading_loss:
            entry.averages = True

    def _takes_gradients(self, entry: TracedFunction) -> None:
        """One more gradient is part of what is traced now."""
        self.gradients_traced += 1
        self._keep_graph(entry)
        if not entry.takes_gradients:
            entry.takes_gradients = True
            if self.session.applied is not None:
                self._let_the_dead_go()
            self.training.append(entry)

    def _let_the_dead_go(self) -> None:
        """An applied run goes on to its real end, and the graphs of functions that are gone hold weights."""
        for entry in self.training:
            if entry.function is None:
                entry.let_go()

    def _keep_graph(self, entry: TracedFunction) -> None:
        graph = outermost(self.tf)
        if all(other is not graph for other in entry.graphs):
            entry.graphs = [*entry.graphs, graph][-KEPT_GRAPHS:]

    def apply_traced(self, optimizer: Optimizer | None) -> None:
        """A Keras optimizer's update is being traced."""
        if self.current is None or optimizer is None:
            return
        self._kept.hold(self.current.function, self.current.counters, optimizer)
        if self.current.optimizer is None:
            self.current.optimizer = optimizer
            self.progress.begins(optimizer)

    def samples_traced(self, element: Structure, count: Tensor | int, key: str | None, *, trained: bool) -> None:
        """``count`` samples are being fetched inside of the graph: it counts them while it runs."""
        if self.current is not None:
            self.current.fetches = True
            if self.session.measuring:
                self.current.fetched.traced(element, count, line_stack(), key, trains=trained)

    # counting

    def _look_at_traces(self, entry: TracedFunction, chosen: Function, args: Arguments, kwargs: Keywords) -> None:
        """A call of a training function has ended: what was traced in it."""
        if chosen.experimental_get_tracing_count() == entry.traces:
            return
        # A first call that makes variables is traced twice.
        new = chosen.experimental_get_tracing_count() - entry.traces if entry.traces else 1
        entry.traces = chosen.experimental_get_tracing_count()
        self.traces[entry.code] += new
        self._traced(entry, chosen._list_all_concrete_functions(), args, kwargs)

    def _traced(
        self, entry: TracedFunction, concretes: Sequence[ConcreteFunction], args: Arguments, kwargs: Keywords
    ) -> None:
        changes = entry.optimizer is None and any(trainable_updated(graph) is not False for graph in entry.graphs)
        entry.updates = entry.updates or changes
        entry.example = specs_of(self.tf, args, kwargs)
        if "jit_compile" in self.session.request.config:  # asked now: at the end the function may be gone
            entry.is_compiled = any(map(is_compiled, concretes))

    def _ended(self, entry: TracedFunction, given: Given) -> None:
        """A call of a training function has ended: how many steps it took."""
        self.calls[entry.code] += 1
        if self.session.applied is not None:
            self.session.applied.stepped()
        if not self.session.measuring:
            return
        if entry.is_steady:
            count = self.progress.assumed(entry)
        else:
            count = self.progress.taken(entry)
            entry.is_steady = entry.calls >= CALLS_READ and count == 1 and entry.counted == entry.calls
        entry.counted += count
        self.called(entry, count, given)

    def _updates_without_gradient(self, entry: TracedFunction, function: Function) -> bool:
        """Whether it changes what can be trained, though it takes no gradient: a copy of a network, a sum's use."""
        traces = function.experimental_get_tracing_count()
        if traces != entry.traces:
            entry.traces = traces
            graphs = [concrete.graph for concrete in function._list_all_concrete_functions()]
            entry.updates = entry.updates or any(map(trainable_updated, graphs))
        return entry.updates

    def settle(self) -> tuple[float, float | None, int]:
        """Samples that graphs have counted since the last time, the mean of their losses, the largest batch."""
        samples = losses = total = 0.0
        for entry in self.training:
            now, before = entry.counters.read(), entry.taken
            entry.taken = now
            # One step a call was assumed since the first ones: where that is wrong, every call is asked again.
            entry.is_steady = entry.is_steady and self.progress.is_as_assumed(entry)
            samples += entry.fetched.read()
            losses += now.losses - before.losses
            total += (now.loss_sum - before.loss_sum) / (entry.replicas if entry.averages else 1)
        largest = max((entry.fetched.largest for entry in self.training if entry.fetches), default=0)
        return samples, total / losses if losses else None, largest

    # what was seen

    @property
    def newest(self) -> TracedFunction | None:
        """The training function that is called most."""
        return max(self.training, key=lambda entry: entry.calls, default=None)

    def retraces(self) -> tuple[int, int]:
        """Traces after the first one and calls, of the training function that is called most often."""
        if not self.calls:
            return 0, 0
        code, calls = self.calls.most_common(1)[0]
        return max(0, self.traces[code] - 1), calls

    def compilation(self) -> Compilation | None:
        """What XLA has compiled of the training functions; None where there are none that were called twice.

        Functions that differ, and those that never ran compiled, are the opposite of what the config asks for.
        """
        wanted = bool(self.session.request.config.get("jit_compile"))
        functions = [entry for entry in self.training if entry.calls > 1]
        if not functions:
            return None
        changed = sum(entry.promoted_calls > 0 for entry in functions)
        flags = [entry.is_compiled for entry in functions]
        if any(flag != wanted for flag in flags):
            why = f"{sum(flags)} of {len(flags)} training functions are compiled"
            return Compilation(not wanted, len(flags), changed, why)
        if wanted and self.session.device.xla_runs_in_threads and not xla_threads():
            return Compilation(False, len(flags), changed, "no code of XLA's has run")
        return Compilation(wanted, len(flags), changed)


def not_converted(function: Wrapped) -> Wrapped:
    """Marks a wrapper so that autograph calls it as it is instead of rewriting it."""
    function.autograph_info__ = {}  # type: ignore[attr-defined]  # a function takes any attribute
    return function


def _first_sentence(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = re.sub(r"\[_XlaMustCompile[^]]*\]", "", lines[0] if lines else "")
    return f"{type(error).__name__}: {text}"[:250]
