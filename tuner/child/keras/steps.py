"""The training steps of ``Model.fit``: where each ends, what it was given, and the probe's two sides of it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from ..applied import AppliedRun
from ..patches import instead, patch
from ..records import ProbeSide
from ..session import Session
from ..tensorflow import FRAMEWORK
from ..tensorflow.data.ready import ReadyWatch
from ..tensorflow.data.watch import DatasetWatch
from ..tensorflow.functions import not_converted
from ..tensorflow.literals import literal_rows_of_step
from ..tensorflow.loops import LoopWatch
from ..tensorflow.types import ConcreteFunction, DatasetIterator, Function, Result, Structure
from .by_turns import Made, StepsByTurns
from .calls import STEPPING, making_for
from .counters import BatchCounters, GraphCounters
from .fit_call import Nesting
from .gradients import GradientWatch
from .model import accumulation_of
from .newest import NewestState
from .queues import FitQueues
from .scaling import LossScaleWatch
from .trajectory import TrajectoryWatch
from .types import Callback, EpochIterator, Logs, Model, StepIterator, TrainFunction
from .updates import UpdateWatch
from .weights import ModelWeights
from .witness import COUNTED_AT, StepWitness

# The calls at which the plan of the data is looked at: before the first fetch, and once more.
_PLAN_READ_AT = (0, 2)


class StepWatch:
    """Patches the function that is a training step.

    ``datasets``: of the current ``fit``, where a tf.data dataset feeds it. ``calls``: of the training function.
    ``logs``: what its last call returned. ``callback``: the current ``fit``'s, which knows the steps of an epoch.
    ``batches_trained``: by the training function, and ``scaling`` the updates among them that were skipped.
    ``on_step`` is called after each call with the model. ``by_turns``: None where no configs take turns.
    ``made``: the training function that was made last, and the step in it; see ``Made``. ``newest``: on JAX, what the
    newest step gave.
    """

    def __init__(
        self, session: Session, nesting: Nesting, backend: str, trajectory: TrajectoryWatch,
        on_step: Callable[[Model], None] = lambda model: None,
    ) -> None:  # fmt: skip
        self.session = session
        self.trajectory = trajectory
        self.nesting = nesting
        self.backend = backend
        self.on_step = on_step
        self.graph: GraphCounters | None = None
        self.gradients: GradientWatch | None = None
        self.batches = BatchCounters(session)
        self.datasets: DatasetWatch | None = None
        self.callback: Callback | None = None
        self.witness = StepWitness(backend)
        self.scaling = LossScaleWatch()
        self.updates = UpdateWatch()
        self.weights = ModelWeights(session)
        self.queues = FitQueues(ReadyWatch(sys.modules["tensorflow"]) if backend == "tensorflow" else None)
        self.loops: LoopWatch | None = None
        self.calls = 0
        self.logs: Logs = {}
        self.batches_trained = 0
        self.by_turns: StepsByTurns | None = None
        self.made = Made(None, None)
        self.newest = NewestState()
        self._epoch_steps = 0
        self._making = False
        self._awaits_iterator = False
        session.clock.instruments.listeners.append(lambda passed: trajectory.missed())
        self._making_counted: Callable[[Model], AbstractContextManager[None]] = self._counted_by_name

    def install(self, trainer: type) -> None:
        """Patches the class that defines ``fit``, and the backend's iterator over an epoch."""
        patch(trainer, "make_train_function", self._make_train_function)
        if self.session.request.probe is ProbeSide.LOADER:
            holder = next(cls for cls in trainer.__mro__ if "get_metrics_result" in cls.__dict__)
            patch(holder, "get_metrics_result", self._metrics_result)
        module = sys.modules[trainer.__module__]
        self.queues.install()
        if self.backend == "tensorflow":
            tf = sys.modules["tensorflow"]
            self.graph = GraphCounters(self.session, tf)
            self.graph.install()
            self.gradients = GradientWatch(self.session, tf)
            self.gradients.install()
            self.by_turns = StepsByTurns(tf) if self.session.request.rotation else None
            if hasattr(trainer, "_autoconvert_optionals"):  # since Keras 3.12
                patch(trainer, "_autoconvert_optionals", self._count_in_graph)
                self._making_counted = lambda model: nullcontext()
            patch(module.TFEpochIterator, "__init__", self._epoch_iterator)
        else:
            names = {"jax": "JAXEpochIterator", "torch": "TorchEpochIterator"}
            self.batches.install(getattr(module, names[self.backend]))

    def install_for_applied(self, trainer: type, applied: AppliedRun) -> None:
        """Patches the same class in an applied run, to tell it of the steps and of nothing else."""
        patch(trainer, "make_train_function", making_for(applied, self.backend))

    # the script's call of fit

    def fit_begins(self) -> None:
        """The next iterator over an epoch that Keras makes is the one of training."""
        self._awaits_iterator = True

    def prepare(self, model: Model, callback: Callback, datasets: DatasetWatch | None) -> None:
        """Before training: makes the variables that count. ``datasets`` where one of them feeds the model."""
        self.callback, self.datasets = callback, datasets
        if self.backend == "jax":  # there an epoch's state is elsewhere
            self.batches.runs_ahead(self._newest_logs)
        else:
            self.scaling.begin(model)
        if self.graph is not None and self.gradients is not None:
            self.graph.prepare()
            self.gradients.prepare(model)

    def _newest_logs(self) -> Iterable[Any]:
        return self.logs.values()

    def remake(self, model: Model, *, always: bool) -> None:
        """Has the model make its training function anew, unless it is one that is counted and may stay."""
        if always or (self.session.measuring and not hasattr(model.train_function, STEPPING)):
            model.train_function = None

    def epoch_begins(self) -> None:
        """The callback's."""
        self._epoch_steps = 0
        if self.by_turns is not None and self.graph is not None:
            self.by_turns.epoch_begins(self.graph.samples, self.batches_trained, self.graph.largest)

    def fit_ended(self) -> None:
        """The script's call has returned, or raised."""
        self.batches.counting = False
        self.updates.fit_ended()

    # the training function

    def _make_train_function(self, original: Callable[..., Result]) -> Callable[..., Result]:
        def make_train_function(model: Model, *args: object, **kwargs: object) -> Result:
            anew = model.train_function is None or bool(args or kwargs)  # every fit and train_on_batch asks for it
            earlier = self.traces + 1 if self.made.function is not None and self.by_turns is None else 0
            self._making = True
            try:
                with self.witness.watching(model, anew=anew), self._making_counted(model):
                    result = original(model, *args, **kwargs)
            finally:
                self._making = False
            function = model.train_function
            if self.nesting.fits and function is not None and not hasattr(function, STEPPING):
                self.made = self.made._replace(function=function, earlier=self.made.earlier + earlier)
                model.train_function = self._stepping(model, function)
            self.batches.counting = bool(self.nesting.fits)  # what was fetched before only gave the model its shapes
            return result

        return make_train_function

    def _stepping(self, model: Model, function: TrainFunction) -> TrainFunction:
        per_call = int(model.steps_per_execution)

        def train_function(*args: object) -> object:
            if not self.nesting.fits:
                return function(*args)  # train_on_batch uses it as well
            if self.backend != "jax":
                self.updates.call_begins(model)
            if self.session.clock.instruments.off:
                return self._unwatched(model, function, args, per_call)
            self.session.check_stop()
            if self.session.clock.validating:
                self.session.clock.training_resumes()
            state: Any = args[0] if self.backend == "jax" else None
            self.trajectory.fit_begins(model, state)
            if self.loops is None:
                self.weights.step_begins(model, None if state is None else state[0])
            # Where calls of several steps have turns as well, no wait is timed: theirs couldn't be.
            timed = per_call == 1 and self.by_turns is None
            result = self._run(function, self._fed(args, per_call), timed=timed)
            self._look_at_weights(model, result)
            self._returned(result)
            self.on_step(model)
            updates = self._updates_of(model, per_call if self.by_turns is None else self.by_turns.taken)
            self.scaling.stepped(self.batches_trained)
            if self.gradients is not None and self.gradients.waiting and self.graph is not None:
                self.gradients.stepped(updates, self.graph.samples, self.graphs())
            if updates:
                self.session.step(FRAMEWORK, updates)
            return result

        setattr(train_function, STEPPING, True)
        return train_function

    def _unwatched(self, model: Model, function: TrainFunction, args: tuple[object, ...], per_call: int) -> object:
        """A call while the instruments are off: its batches are counted all the same, and nothing is looked at."""
        result = self._run(function, args, timed=per_call == 1)
        self._returned(result)
        if updates := self._updates_of(model, per_call):
            self.session.clock.instruments.passed(updates)
        return result

    def _returned(self, result: object) -> None:
        logs = result[0] if isinstance(result, tuple) else result
        self.logs = logs if isinstance(logs, Mapping) else {}
        self.calls += 1

    def _fed(self, args: tuple[object, ...], per_call: int) -> tuple[object, ...]:
        """The arguments of a call. A pipeline that isn't the script's ends once no frame refers to it any more."""
        if self.by_turns is None:
            return args
        return (*args[:-1], self.by_turns.fed(args[-1], self.calls, per_call))

    def _run(self, function: TrainFunction, args: tuple[object, ...], *, timed: bool) -> object:
        """The training function's result; on the probe's loader side a batch is fetched in its place."""
        if self.datasets is not None and self.calls in _PLAN_READ_AT and self.graph is not None:
            self.datasets.fed_by(args[-1])  # type: ignore[arg-type]  # Keras passes the iterator last
        if self.graph is None:
            return self._in_python(function, args)
        self.queues.fetches_from(args[-1])  # type: ignore[arg-type]  # likewise
        # With several steps in one call the next batch is fetched while the last one computes: no wait can be seen.
        self.graph.timing = timed
        if self.loops is not None:
            self.loops.functions.tracing.call_begins()
        try:
            if self.session.request.probe is ProbeSide.LOADER:
                return self._fetch_only(self.graph, args[-1])  # type: ignore[arg-type]  # likewise
            return function(*args)
        finally:
            self.graph.timing = False
            if self.loops is not None:
                self.loops.functions.tracing.call_ended()

    def iterated(self, iterator: DatasetIterator) -> None:
        """Something iterates over a dataset: training does, where it is fed by one and waits for a batch in Python."""
        if self.batches.fetching and self.queues.is_dataset:
            self.queues.fetches_from(iterator)
            if self.datasets is not None and not self.calls:
                self.datasets.fed_by(iterator)

    def _in_python(self, function: TrainFunction, args: tuple[object, ...]) -> object:
        """As ``_run``, where batches pass through Python."""
        if self.session.request.probe is ProbeSide.LOADER:
            return self._batch_only(args)
        asked = self.backend == "torch" and self.calls == COUNTED_AT and "precision" in self.session.request.config
        return self.witness.run(function, args) if asked and not self.witness.compiled else function(*args)

    def _batch_only(self, args: tuple[object, ...]) -> object:
        """As ``_fetch_only``, where batches pass through Python."""
        fetch: Callable[[], Structure] | None = getattr(args[-1], "__next__", None)
        if fetch is not None:
            fetch()
        return ({}, args[0]) if self.backend == "jax" else {}  # there the model's state comes in and goes out

    def _fetch_only(self, graph: GraphCounters, iterator: StepIterator) -> Logs:
        """The probe's loader side: a batch that nobody trains on. Raises ``StopIteration`` where the data end."""
        tf = sys.modules["tensorflow"]
        try:
            graph.count(iterator.get_next(), tf.distribute.get_strategy())
        except tf.errors.OutOfRangeError as error:
            raise StopIteration from error
        return {}

    def _metrics_result(self, original: Callable[[Model], Logs]) -> Callable[[Model], Logs]:
        def get_metrics_result(model: Model) -> Logs:
            # What the model was compiled with is made in its first step, and here there is none.
            return original(model) if self.nesting.evaluations or not self.nesting.fits else {}

        return get_metrics_result

    def _look_at_weights(self, model: Model, result: Any) -> None:
        """After a call of the training function, which on JAX gives the model's state as well."""
        if self.backend == "jax":
            self.newest.stepped(*result)
        if self.loops is not None:
            self.loops.weights.stepped()
        else:
            self.weights.stepped(model, result[1][0] if self.backend == "jax" else None)

    def _updates_of(self, model: Model, per_call: int) -> int:
        """A call of the training function has ended: how many updates it made."""
        accumulated = accumulation_of(model)
        endless = self.by_turns is not None and self.by_turns.own is not None
        in_epoch = self.callback.params.get("steps") if self.callback is not None and not endless else None
        micro_steps = per_call if in_epoch is None else max(1, min(per_call, in_epoch - self._epoch_steps))
        self._epoch_steps += micro_steps
        before = self.batches_trained // accumulated
        self.batches_trained += micro_steps
        self.trajectory.fit_stepped(model, micro_steps)
        return self.batches_trained // accumulated - before

    # in the graph

    def _count_in_graph(self, original: Callable[..., TrainFunction]) -> Callable[..., TrainFunction]:
        def _autoconvert_optionals(model: Model, step_function: TrainFunction) -> TrainFunction:
            run = original(model, step_function)
            if not self._making:
                return run
            self.made = self.made._replace(step=step_function)
            return self._counted(model, run)

        return _autoconvert_optionals

    def _counted(self, model: Model, run: TrainFunction) -> TrainFunction:
        """A step that counts its batch, outside of what is compiled."""
        graph, gradients = self.graph, self.gradients
        is_compiled = graph is not None and model.jit_compile and not model.run_eagerly
        number = graph.shapes.another_function() if graph is not None and is_compiled else 0

        def counted(data: Structure) -> object:
            if self.nesting.fits and graph is not None:
                graph.count(data, model.distribute_strategy, compiled=number)
                if gradients is not None:
                    gradients.batch_begins(data)
            return run(data)

        return not_converted(counted)

    @contextmanager
    def _counted_by_name(self, model: Model) -> Iterator[None]:
        """Before Keras 3.12: the first ``tf.function`` that the training function is made of is the step on a batch.

        Without any, the model's own ``train_step`` is.
        """
        if self.graph is None:
            yield
            return
        tf: Any = sys.modules["tensorflow"]
        function = tf.function

        def first(step: TrainFunction, *args: object, **kwargs: object) -> TrainFunction:
            tf.function = function
            made = function(step, *args, **kwargs)
            self.made = self.made._replace(step=made)
            return self._counted(model, made)

        if model.run_eagerly:
            step = model.train_step
            self.made = self.made._replace(step=step)
            with instead(model, "train_step", self._counted(model, step)):
                yield
            return
        tf.function = first
        try:
            yield
        finally:
            tf.function = function

    def _epoch_iterator(self, original: Callable[..., None]) -> Callable[..., None]:
        def __init__(iterator: EpochIterator, *args: object, **kwargs: object) -> None:
            original(iterator, *args, **kwargs)
            trains, self._awaits_iterator = self._awaits_iterator, False
            if trains and self.session.request.probe is ProbeSide.COMPUTE:
                iterator._distributed_dataset = iterator._distributed_dataset.take(1).cache().repeat()
            if trains and self.by_turns is not None:
                self.by_turns.goes_through(iterator)

        return __init__

    # what was seen

    def synchronize(self) -> None:
        """Waits for the newest step, and takes what graphs have counted."""
        if self.graph is not None:
            self.graph.settle()
        elif self.backend == "jax":
            sys.modules["jax"].block_until_ready(self.logs)  # they come with all else that a step computes
        else:
            self.session.device.torch_synchronize(sys.modules["torch"])

    @property
    def step_function(self) -> Function | None:
        """The traced training step, on TensorFlow; None where none was made."""
        return self.made.traced

    def graphs(self) -> Sequence[ConcreteFunction]:
        """What the training step was traced into, on TensorFlow."""
        return list(self.step_function._list_all_concrete_functions()) if self.step_function is not None else []

    def literal_rows(self, *, is_own: bool) -> dict[str, str]:
        """Why another batch size wouldn't reach all of a step, by its knob, where TensorFlow's graph shows that."""
        step, rows = self.step_function, self.largest_batch
        found = literal_rows_of_step(sys.modules["tensorflow"], step, rows, is_own=is_own) if step and rows else ""
        return {"batch_size": found} if found else {}

    @property
    def largest_batch(self) -> int:
        """Rows of the largest batch that a step was given; 0 where none was seen."""
        return self.graph.largest if self.graph is not None else self.batches.largest

    @property
    def traces(self) -> int:
        """How often the step function was traced; 0 where that can't be seen."""
        return self.step_function.experimental_get_tracing_count() if self.step_function is not None else 0
