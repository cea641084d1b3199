"""Keras' ``Model.fit``, whatever the backend: what it was given, its knobs at its entry, its steps, its metrics."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from ..patches import patch
from ..session import Session
from .counters import BatchMeter, GraphMeter
from .gradients import GradientWatch
from .model import accumulation_of

FRAMEWORK = "keras"
DEFAULT_BATCH_SIZE = 32  # what Keras takes for arrays where the script says nothing
MODEL_KNOBS = ("run_eagerly", "jit_compile", "steps_per_execution")
FED_AT = (0, 2)  # the calls at which the plan of the data is looked at: before the first fetch, and once more
_STEPPING = "_autotune_stepping"


class FitWatch:
    """Patches the trainer's ``fit``, ``evaluate``, ``predict`` and the function that a training step is."""

    def __init__(self, session: Session, keras: ModuleType, datasets: Any, loops: Any) -> None:
        self.session = session
        self.keras = keras
        self.datasets = datasets  # None where TensorFlow wasn't imported
        self.loops = loops
        self.backend: str = keras.backend.backend()
        self.graph: GraphMeter | None = None
        self.gradients: GradientWatch | None = None  # likewise TensorFlow's
        self.batches = BatchMeter(session)
        self.depth = 0
        self.evaluating = 0
        self.calls = 0  # of the training function
        self.micro = 0
        self.model: Any = None
        self.logs: Any = None
        self.kind = ""
        self.written: dict[str, Any] = {}
        self.dataset_len: int | None = None
        self.workers = 0  # that prepare the batches of a PyDataset
        self.step_function: Any = None
        self.sets_rate = False
        self.custom_step = False
        self.on_epoch: Callable[[], None] = lambda: None
        self.metrics: Any = None
        self._taken = 0  # steps of this epoch
        self._making = False
        self._awaits_iterator = False

    @property
    def active(self) -> bool:
        """Whether a method of a model runs: what happens meanwhile is Keras' own, not the script's loop."""
        return self.depth > 0 or self.evaluating > 0

    def install(self) -> None:
        """Patches the class that defines ``fit``: every model inherits from it."""
        trainer = next(cls for cls in self.keras.Model.__mro__ if "fit" in cls.__dict__)
        patch(trainer, "fit", self._fit)
        if not self.session.measuring:
            return
        patch(trainer, "evaluate", self._evaluate)
        patch(trainer, "predict", self._evaluate)
        patch(trainer, "make_train_function", self._make_train_function)
        if self.session.probe == "loader":
            holder = next(cls for cls in trainer.__mro__ if "get_metrics_result" in cls.__dict__)
            patch(holder, "get_metrics_result", self._metrics_result)
        if self.backend == "tensorflow":
            tf = sys.modules["tensorflow"]
            self.graph = GraphMeter(self.session, tf)
            self.graph.install()
            self.gradients = GradientWatch(self.session, tf)
            self.gradients.install()
            patch(trainer, "_autoconvert_optionals", self._count_in_graph)
            patch(sys.modules[trainer.__module__].TFEpochIterator, "__init__", self._epoch_iterator)
        else:
            module = sys.modules[trainer.__module__]
            names = {"jax": "JAXEpochIterator", "torch": "TorchEpochIterator"}
            self.batches.install(getattr(module, names[self.backend]))

    def _enters(self, by: int, *, evaluating: bool = False) -> None:
        self.depth += 0 if evaluating else by
        self.evaluating += by if evaluating else 0
        if self.loops is not None:
            self.loops.fitting = self.active

    # entry

    def _fit(self, original: Any) -> Any:
        signature = inspect.signature(original)

        def fit(model: Any, *args: Any, **kwargs: Any) -> Any:
            if self.active or not self.session.here:
                return original(model, *args, **kwargs)
            try:
                bound = signature.bind(model, *args, **kwargs)
            except TypeError:
                return original(model, *args, **kwargs)  # raises the script's own TypeError
            self.session.claim(FRAMEWORK)
            self._prepare(model, bound.arguments)
            self._enters(1)
            self._awaits_iterator = True
            try:
                return original(*bound.args, **bound.kwargs)
            finally:
                self._enters(-1)
                self.batches.counting = False

        return fit

    def _prepare(self, model: Any, given: dict[str, Any]) -> None:
        try:
            self._meet(model, given)
            self._turn(model, given)
            if self.session.measuring:
                self._watch(model, given)
        except Exception as error:
            # What is ours to mend must not be told as the script's own fault.
            self.session.note(f"Model.fit could not be prepared: {type(error).__name__}: {error}")

    def _meet(self, model: Any, given: dict[str, Any]) -> None:
        """What the script wrote, as it stands before anything is turned."""
        self.model = model
        x: Any = given.get("x")
        self.kind = self._kind_of(x)
        self.custom_step = type(model).train_step is not _base_step(model)
        self.written = {
            "run_eagerly": bool(model.run_eagerly),
            "jit_compile": bool(model.jit_compile),
            "steps_per_execution": int(model.steps_per_execution),
        }
        if self.kind == "arrays":
            self.written["batch_size"] = given.get("batch_size") or DEFAULT_BATCH_SIZE
            self.dataset_len = self._rows(given)
        elif self.kind == "dataset":
            self.datasets.meet(x, batched=True)
        elif self.kind == "pydataset":
            self.workers = self.written["workers"] = int(x.workers)
        callbacks = given.get("callbacks")
        listed = getattr(callbacks, "callbacks", callbacks) or ()
        self.sets_rate = any("LearningRateScheduler" in type(c).__name__ for c in _as_list(listed))

    def _kind_of(self, x: Any) -> str:
        if self.datasets is not None and self.datasets.is_dataset(x):
            return "dataset"
        if isinstance(x, self.keras.utils.PyDataset):
            return "pydataset"
        if hasattr(x, "__next__"):
            return "generator"
        return "loader" if type(x).__module__.startswith("torch.utils.data") else "arrays"

    def _rows(self, given: dict[str, Any]) -> int | None:
        flat = self.keras.tree.flatten(given.get("x"))
        rows = next((len(x) for x in flat if hasattr(x, "shape") and len(x.shape)), None)
        share = given.get("validation_split") or 0.0
        return None if rows is None else int(rows * (1 - share)) if given.get("validation_data") is None else rows

    def _turn(self, model: Any, given: dict[str, Any]) -> None:
        session, config = self.session, self.session.config
        turned = [knob for knob in MODEL_KNOBS if session.wants(knob) and getattr(model, knob) != config[knob]]
        for knob in turned:
            setattr(model, knob, config[knob])
        if turned or (session.measuring and not hasattr(model.train_function, _STEPPING)):
            model.train_function = None  # one that was made before knows nothing of this
        if session.wants("workers") and self.kind == "pydataset":
            given["x"].workers = self.workers = int(config["workers"])
        factor = 1.0
        if self.kind == "dataset":
            given["x"] = self.datasets.adapt(given["x"], batched=True)
            factor = self.datasets.factor(given["x"])
        elif self.kind == "arrays" and session.wants("batch_size"):
            factor = config["batch_size"] / self.written["batch_size"]
            # What validates does so by the batch size of training, unless the script says otherwise.
            given["validation_batch_size"] = given.get("validation_batch_size") or self.written["batch_size"]
            given["batch_size"] = int(config["batch_size"])
        if factor != 1.0 and given.get("steps_per_epoch"):
            given["steps_per_epoch"] = max(1, round(given["steps_per_epoch"] / factor))

    def _watch(self, model: Any, given: dict[str, Any]) -> None:
        watch = self

        class Metrics(self.keras.callbacks.Callback):  # type: ignore[misc, name-defined]
            def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
                if not watch.calls:  # a model of the script's own may do without the usual training function
                    watch.session.step(FRAMEWORK)

            def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
                watch._taken = 0
                watch.on_epoch()

            def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
                numbers = {name: float(value) for name, value in (logs or {}).items() if _is_number(value)}
                watch.session.report(numbers)

        self.metrics = Metrics()
        callbacks: Any = given.get("callbacks")
        if hasattr(callbacks, "append") and not isinstance(callbacks, list):
            callbacks.append(self.metrics)  # a CallbackList
        else:
            given["callbacks"] = [*_as_list(callbacks or ()), self.metrics]
        if self.graph is not None and self.gradients is not None:
            self.graph.prepare()
            self.gradients.prepare(model)

    def _evaluate(self, original: Any) -> Any:
        def evaluate(model: Any, *args: Any, **kwargs: Any) -> Any:
            if not self.session.here:
                return original(model, *args, **kwargs)
            if not self.evaluating:
                self.session.check_stop()
                self.session.clock.validation_begins(original.__name__)
            self._enters(1, evaluating=True)
            counting, self.batches.counting = self.batches.counting, False
            try:
                return original(model, *args, **kwargs)
            finally:
                self._enters(-1, evaluating=True)
                self.batches.counting = counting

        return evaluate

    # steps

    def _make_train_function(self, original: Any) -> Any:
        def make_train_function(model: Any, *args: Any, **kwargs: Any) -> Any:
            self._making = True
            try:
                result = original(model, *args, **kwargs)
            finally:
                self._making = False
            function = model.train_function
            if self.depth and function is not None and not hasattr(function, _STEPPING):
                model.train_function = self._stepping(model, function)
            self.batches.counting = bool(self.depth)  # what was fetched before only told the model its shapes
            return result

        return make_train_function

    def _stepping(self, model: Any, function: Any) -> Any:
        per_call = int(model.steps_per_execution)

        def train_function(*args: Any) -> Any:
            self.session.check_stop()
            if self.session.clock.validating:
                self.session.clock.training_resumes()
            result = self._run(function, args, timed=per_call == 1)
            self.logs = result[0] if isinstance(result, tuple) else result
            self.calls += 1
            self._stepped(model, per_call)
            return result

        setattr(train_function, _STEPPING, True)
        return train_function

    def _run(self, function: Any, args: tuple[Any, ...], *, timed: bool) -> Any:
        if self.kind == "dataset" and self.calls in FED_AT and self.graph is not None:
            self.datasets.fed_by(args[-1])
        if self.graph is None:
            return self._batch_only(args) if self.session.probe == "loader" else function(*args)
        # With several steps in one call the next batch is fetched while the last one computes: no wait can be seen.
        self.graph.timing = timed
        try:
            return self._fetch_only(args[-1]) if self.session.probe == "loader" else function(*args)
        finally:
            self.graph.timing = False

    def _batch_only(self, args: tuple[Any, ...]) -> Any:
        """As ``_fetch_only``, where batches pass through Python."""
        if hasattr(args[-1], "__next__"):
            next(args[-1])
        return ({}, args[0]) if self.backend == "jax" else {}  # there the model's state comes in and goes out

    def _fetch_only(self, iterator: Any) -> dict[str, Any]:
        """The probe's loader side: a batch that nobody trains on."""
        assert self.graph is not None
        tf = sys.modules["tensorflow"]
        try:
            self.graph.count(iterator.get_next(), tf.distribute.get_strategy())
        except tf.errors.OutOfRangeError as error:
            raise StopIteration from error
        return {}

    def _metrics_result(self, original: Any) -> Any:
        def get_metrics_result(model: Any) -> Any:
            # What the model was compiled with is made in its first step, and here there is none.
            return original(model) if self.evaluating or not self.depth else {}

        return get_metrics_result

    def _stepped(self, model: Any, per_call: int) -> None:
        accumulated = accumulation_of(model)
        in_epoch = self.metrics.params.get("steps") if self.metrics is not None else None
        taken = per_call if in_epoch is None else max(1, min(per_call, in_epoch - self._taken))
        self._taken += taken
        before = self.micro // accumulated
        self.micro += taken
        updates = self.micro // accumulated - before
        if self.gradients is not None and self.gradients.waiting and self.graph is not None:
            self.gradients.stepped(updates, self.graph.samples, self.graphs())
        if updates:
            self.session.step(FRAMEWORK, updates)

    def _count_in_graph(self, original: Any) -> Any:
        def _autoconvert_optionals(model: Any, step_function: Any) -> Any:
            run = original(model, step_function)
            if not self._making or self.graph is None:
                return run
            self.step_function = step_function
            graph, gradients = self.graph, self.gradients

            def counted(data: Any) -> Any:
                graph.count(data, model.distribute_strategy)
                if gradients is not None:
                    gradients.took(data)
                return run(data)

            return sys.modules["tensorflow"].autograph.experimental.do_not_convert(counted)

        return _autoconvert_optionals

    def _epoch_iterator(self, original: Any) -> Any:
        def __init__(iterator: Any, *args: Any, **kwargs: Any) -> None:
            original(iterator, *args, **kwargs)
            trains, self._awaits_iterator = self._awaits_iterator, False
            if trains and self.session.probe == "compute":
                dataset = iterator._distributed_dataset
                iterator._distributed_dataset = dataset.take(1).cache().repeat()

        return __init__

    # what it shows

    def graphs(self) -> list[Any]:
        """What the training step was traced into, on TensorFlow."""
        traced = getattr(self.step_function, "_list_all_concrete_functions", list)
        return list(traced())

    @property
    def largest_batch(self) -> int:
        """Rows of the largest batch that a step was given."""
        return self.graph.largest if self.graph is not None else self.batches.largest

    def traces(self) -> int:
        """How often the step function was traced; 0 where that can't be told."""
        count = getattr(self.step_function, "experimental_get_tracing_count", None)
        return int(count()) if count is not None else 0


def _base_step(model: Any) -> Any:
    """Keras' own training step for the backend."""
    own = (cls for cls in type(model).__mro__ if cls.__module__.startswith("keras.src.backend."))
    return next((cls.__dict__["train_step"] for cls in own if "train_step" in cls.__dict__), None)


def _as_list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _is_number(value: Any) -> bool:
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return True
