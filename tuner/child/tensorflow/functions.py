"""tf.function: which one is the training step, how often it steps and is traced, and XLA by promotion."""

from __future__ import annotations

import re
import threading
import weakref
from collections import Counter, deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from types import ModuleType
from typing import Any, TypeVar

from ..patches import patch
from ..session import Session
from .counters import Counters, Counts
from .entries import Given, TracedFunction
from .graphs import draws, is_compiled, trainable_updated, xla_threads
from .tracing import TraceWatch
from .types import Arguments, Function, Graph, Keywords, Optimizer, Tensor

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


@dataclass(frozen=True)
class Compilation:
    """Whether the training functions ran compiled; ``why`` they didn't as asked for. ``changed``: by the config."""

    compiled: bool
    sites: int
    changed: int
    why: str = ""


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
        self.current: TracedFunction | None = None
        self.training: deque[TracedFunction] = deque(maxlen=KEPT_FUNCTIONS)
        self.traces: Counter[Hashable] = Counter()
        self.calls: Counter[Hashable] = Counter()
        self.compiled = 0
        self.gradients_traced = 0
        self.is_retracing = False
        self._entries: weakref.WeakKeyDictionary[Function, TracedFunction] = weakref.WeakKeyDictionary()

    def install(self) -> None:
        """Patches the class of what ``tf.function`` returns."""
        patch(type(self.tf.function(lambda: None)), "__call__", self._call)
        self.tracing.install()

    def _call(self, original: Call) -> Call:
        def __call__(function: Function, *args: object, **kwargs: object) -> object:
            outermost = self.current is None and not self.stands_aside()
            if not outermost or not self.tf.executing_eagerly() or self.tf.config.functions_run_eagerly():
                return original(function, *args, **kwargs)
            return self._outermost(original, function, args, kwargs)

        return not_converted(__call__)

    def _outermost(self, original: Call, function: Function, args: Arguments, kwargs: Keywords) -> object:
        self.session.check_stop()
        entry = self._entries.get(function)
        if entry is None:
            entry = self._entries[function] = TracedFunction(
                weakref.ref(function), function.name, bool(function._jit_compile), _code_of(function), Counters(self.tf)
            )
        args = self.prepare(entry, (args, kwargs))
        chosen = self._choose(entry, function)
        entry.leading_site, entry.leading_thread = "", 0
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
            self._ended(entry, entry.chosen or function, args, kwargs)
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
            entry.leading_site, entry.leading_thread = "", 0
            result = original(function, *args, **kwargs)  # raises what the script's own function raises
            entry.refused = f"XLA refused {entry.name}: {_first_sentence(error)}"
            return result
        entry.promoted_calls += 1
        self.compiled += 1
        return result

    # tracing

    def gradient_traced(self, target: object, site: str) -> None:
        """A tape's gradient of ``target`` is being traced at ``site``: the outermost function is a training step."""
        entry = self.current
        if entry is None or self.is_retracing:
            return
        self.gradients_traced += 1
        self._keep_graph(entry)
        if not entry.takes_gradients:
            entry.takes_gradients = True
            if self.session.applied is not None:
                self._let_the_dead_go()
            self.training.append(entry)
        # Each replica traces in a thread of its own, and a GAN has several tapes: the first of both counts.
        entry.leading_thread = entry.leading_thread or threading.get_ident()
        entry.leading_site = entry.leading_site or site
        if not self.session.measuring or (threading.get_ident(), site) != (entry.leading_thread, entry.leading_site):
            return
        replica = self.tf.distribute.get_replica_context()
        alone = replica is None or replica.num_replicas_in_sync == 1
        scalar = target if alone and isinstance(target, self.tf.Tensor) else None
        entry.counters.add(loss=scalar, gradients=1)

    def _let_the_dead_go(self) -> None:
        """An applied run goes on to its real end, and the graphs of functions that are gone hold weights."""
        for entry in self.training:
            if entry.function is None:
                entry.let_go()

    def _keep_graph(self, entry: TracedFunction) -> None:
        graph = outermost(self.tf)
        if all(other is not graph for other in entry.graphs):
            entry.graphs = [*entry.graphs, graph][-KEPT_GRAPHS:]

    def apply_traced(self, optimizer: Optimizer) -> None:
        """A Keras optimizer's update is being traced."""
        if self.current is not None and self.current.optimizer is None:
            self.current.optimizer = optimizer
            self.current.updates_before = self._updates(optimizer)

    def samples_traced(self, count: Tensor | int) -> None:
        """``count`` samples are being fetched inside of the graph: it counts them while it runs."""
        if self.current is not None:
            self.current.fetches = True
            if self.session.measuring:
                self.current.counters.add_batch(count)

    # counting

    def _ended(self, entry: TracedFunction, chosen: Function, args: Arguments, kwargs: Keywords) -> None:
        """A call of a training function has ended: what was traced in it, and how many steps it took."""
        if chosen.experimental_get_tracing_count() != entry.traces:
            # A first call that makes variables is traced twice.
            new = chosen.experimental_get_tracing_count() - entry.traces if entry.traces else 1
            entry.traces = chosen.experimental_get_tracing_count()
            self.traces[entry.code] += new
            changes = entry.optimizer is None and any(trainable_updated(graph) is not False for graph in entry.graphs)
            entry.updates = entry.updates or changes
            entry.example = self._specs(args, kwargs)
            if "jit_compile" in self.session.request.config:  # asked now: at the end the function may be gone
                entry.is_compiled = any(map(is_compiled, chosen._list_all_concrete_functions()))
        self.calls[entry.code] += 1
        if self.session.applied is not None:
            self.session.applied.stepped()
        if not self.session.measuring:
            return
        if entry.is_steady:
            count = 1.0
        else:
            count = self._progress(entry)
            entry.is_steady = entry.calls >= CALLS_READ and count == 1 and entry.counted == entry.calls
        entry.counted += count
        self.called(entry, count, (args, kwargs))

    def _updates_without_gradient(self, entry: TracedFunction, function: Function) -> bool:
        """Whether it changes what can be trained, though it takes no gradient: a copy of a network, a sum's use."""
        traces = function.experimental_get_tracing_count()
        if traces != entry.traces:
            entry.traces = traces
            graphs = [concrete.graph for concrete in function._list_all_concrete_functions()]
            entry.updates = entry.updates or any(map(trainable_updated, graphs))
        return entry.updates

    def _progress(self, entry: TracedFunction) -> float:
        """Steps since the last time this was asked; waits for the device."""
        return max(0.0, self._done(entry, entry.counters.read()) - entry.counted)

    def _done(self, entry: TracedFunction, now: Counts) -> float:
        """Steps since the beginning: the optimizer knows, and without one every gradient is a step."""
        if entry.optimizer is None:
            return now.gradients
        return self._updates(entry.optimizer) - entry.updates_before

    def _updates(self, optimizer: Optimizer) -> int:
        try:
            with self.tf.init_scope():
                return int(optimizer.iterations.numpy())
        except Exception:
            return 0  # its variables are being made by this very trace

    def _recheck(self, entry: TracedFunction, now: Counts) -> None:
        """One step a call was assumed since the first ones: where that is wrong, every call is asked again."""
        if entry.is_steady:
            entry.is_steady = self._done(entry, now) == entry.counted

    def settle(self) -> tuple[float, float | None, int]:
        """Samples that graphs have counted since the last time, the mean of their losses, the largest batch."""
        samples = losses = total = 0.0
        for entry in self.training:
            now, before = entry.counters.read(), entry.taken
            entry.taken = now
            self._recheck(entry, now)
            samples += now.samples - before.samples
            losses += now.losses - before.losses
            total += now.loss_sum - before.loss_sum
        largest = max((entry.counters.largest for entry in self.training if entry.fetches), default=0)
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

    def literal_rows(self, rows: int, *, retrace: bool) -> str:
        """Why another batch size wouldn't reach the whole training step; "" where nothing says so.

        A traced graph holds numbers whatever they come from; one traced at another size, with ``retrace``, shows which
        were written down.
        """
        for entry in list(self.training):
            graphs = list(entry.graphs)
            if retrace and any(_leading(tensor) == rows for graph in graphs for tensor in graph.inputs):
                graphs = self._retraced(entry, rows)
            names = [name for graph in graphs for name in draws(self.tf, graph, rows)]
            if names:
                return f"the training step itself draws tensors of {rows} rows ({names[0]})"
        return ""

    def _retraced(self, entry: TracedFunction, rows: int) -> list[Graph]:
        """The function's graph for batches of one row more; none where it can't be traced so."""
        tf = self.tf

        def widen(spec: object) -> object:
            if isinstance(spec, tf.TensorSpec) and spec.shape.rank and spec.shape[0] == rows:
                return tf.TensorSpec([rows + 1, *spec.shape[1:]], spec.dtype)
            return spec

        function = entry.function
        if entry.example is None or function is None:
            return []
        args, kwargs = tf.nest.map_structure(widen, entry.example)
        self.is_retracing = True
        try:
            return [function._clone(None).get_concrete_function(*args, **kwargs).graph]
        except Exception:
            return []  # a partial batch would fail as well; the trial will tell
        finally:
            self.is_retracing = False

    def _specs(self, args: Arguments, kwargs: Keywords) -> tuple[Arguments, Keywords] | None:
        """The arguments with a specification in each tensor's place, so that no batch stays alive; None with data."""
        tf = self.tf

        def spec(value: object) -> object:
            return tf.TensorSpec(value.shape, value.dtype) if isinstance(value, tf.Tensor) else value

        sources = (tf.data.Dataset, tf.data.Iterator, tf.distribute.DistributedValues)
        if any(isinstance(value, sources) for value in tf.nest.flatten((args, kwargs))):
            return None
        specs: tuple[Arguments, Keywords] = tf.nest.map_structure(spec, (args, kwargs))
        return specs


def not_converted(function: Wrapped) -> Wrapped:
    """Marks a wrapper so that autograph calls it as it is instead of rewriting it."""
    function.autograph_info__ = {}  # type: ignore[attr-defined]  # a function takes any attribute
    return function


def _leading(tensor: Tensor) -> int | None:
    shape = tensor.shape
    return shape[0] if shape.rank else None


def _code_of(function: Function) -> Hashable:
    """The code that the script wrote, the same for a function that it makes anew with each epoch.

    What Keras makes has the same code for every model: there it is the function itself.
    """
    python: Any = function.python_function
    while hasattr(python, "__wrapped__"):
        python = python.__wrapped__
    python = getattr(python, "__func__", python)
    code: Hashable = getattr(python, "__code__", function.name)
    return (code, id(function)) if str(getattr(python, "__module__", "")).startswith("keras.src.") else code


def _first_sentence(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = re.sub(r"\[_XlaMustCompile[^]]*\]", "", lines[0] if lines else "")
    return f"{type(error).__name__}: {text}"[:250]
