"""Keras' ``Model.fit``, whatever the backend: what the script passes to it, the knobs at its entry, its metrics."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from ..patches import patch
from ..records import Value
from ..session import Session
from ..tensorflow import FRAMEWORK
from ..tensorflow.data.watch import DatasetWatch
from ..tensorflow.loops import LoopWatch
from ..tensorflow.types import Result
from .steps import Nesting, StepWatch
from .types import Callback, Logs, Model

DEFAULT_BATCH_SIZE = 32  # what Keras takes for arrays where the script says nothing
MODEL_KNOBS = ("run_eagerly", "jit_compile", "steps_per_execution")
FitArguments = dict[str, Any]
"""``Model.fit``'s arguments by name, of whatever kind the script passes."""


@dataclass
class FitCall:
    """The newest call of ``fit`` by the script.

    ``fed_by``: "arrays", "dataset" (of tf.data), "pydataset", "generator" or "loader" (of torch). ``written``: knob →
    the script's own value. ``workers``: that prepare the batches of a PyDataset. ``sets_rate``: whether a callback sets
    the learning rate. ``custom_step``: whether the model has a training step of its own.
    """

    model: Model
    fed_by: str
    custom_step: bool
    sets_rate: bool
    written: dict[str, Value] = field(default_factory=dict)
    dataset_len: int | None = None
    workers: int = 0


class FitWatch:
    """Patches the trainer's ``fit``, ``evaluate`` and ``predict``; ``call`` is None until the script calls ``fit``.

    ``datasets`` and ``loops`` are None as long as TensorFlow isn't imported. ``on_epoch`` is called as each begins.
    """

    def __init__(
        self, session: Session, keras: ModuleType, datasets: DatasetWatch | None, loops: LoopWatch | None,
        on_epoch: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        self.session = session
        self.keras = keras
        self.datasets = datasets
        self.loops = loops
        self.on_epoch = on_epoch
        self.backend: str = keras.backend.backend()
        self.nesting = Nesting()
        self.steps = StepWatch(session, self.nesting, self.backend)
        self.call: FitCall | None = None

    def install(self) -> None:
        """Patches the class that defines ``fit``: every model inherits from it."""
        trainer = next(cls for cls in self.keras.Model.__mro__ if "fit" in cls.__dict__)
        patch(trainer, "fit", self._fit)
        if self.session.measuring:
            patch(trainer, "evaluate", self._evaluate)
            patch(trainer, "predict", self._evaluate)
            self.steps.install(trainer)

    def _enter(self, *, fits: int = 0, evaluations: int = 0) -> None:
        self.nesting.fits += fits
        self.nesting.evaluations += evaluations
        if self.loops is not None:
            self.loops.fitting = self.nesting.active

    # entry

    def _fit(self, original: Callable[..., Result]) -> Callable[..., Result]:
        signature = inspect.signature(original)

        def fit(model: Model, *args: object, **kwargs: object) -> Result:
            if self.nesting.active or not self.session.here:
                return original(model, *args, **kwargs)
            try:
                bound = signature.bind(model, *args, **kwargs)
            except TypeError:
                return original(model, *args, **kwargs)  # raises the script's own TypeError
            self.session.claim(FRAMEWORK)
            self._prepare(model, bound.arguments)
            self._enter(fits=1)
            self.steps.fit_begins()
            try:
                return original(*bound.args, **bound.kwargs)
            finally:
                self._enter(fits=-1)
                self.steps.fit_ended()

        return fit

    def _prepare(self, model: Model, arguments: FitArguments) -> None:
        """Notes what the script wrote, then changes the arguments by the config and adds the callback.

        What goes wrong is noted: a fault of ours must not look like one of the script.
        """
        try:
            # Kept before it is read: what fits all the same is held against the config, whatever goes wrong.
            self.call = call = self._begin(model, arguments)
            self._read(call, arguments)
            self._apply(call, arguments)
            if self.session.measuring:
                self._watch(call, arguments)
            elif self.session.applied is not None:
                self.session.applied.training_begins()
        except Exception as error:
            self.session.note(f"Model.fit could not be prepared: {type(error).__name__}: {error}")

    def _begin(self, model: Model, arguments: FitArguments) -> FitCall:
        callbacks = arguments.get("callbacks")
        listed = getattr(callbacks, "callbacks", callbacks) or ()
        return FitCall(
            model, self._kind_of(arguments.get("x")), custom_step=_has_own_step(type(model)),
            sets_rate=any("LearningRateScheduler" in type(callback).__name__ for callback in _as_list(listed)),
        )  # fmt: skip

    def _read(self, call: FitCall, arguments: FitArguments) -> None:
        """What the script wrote, as it stands before any knob is applied."""
        model, x = call.model, arguments.get("x")
        call.written = {
            "run_eagerly": bool(model.run_eagerly),
            "jit_compile": bool(model.jit_compile),
            "steps_per_execution": int(model.steps_per_execution),
        }
        if call.fed_by == "arrays":
            call.written["batch_size"] = arguments.get("batch_size") or DEFAULT_BATCH_SIZE
            call.dataset_len = self._rows(arguments)
        elif call.fed_by == "dataset" and self.datasets is not None and x is not None:
            self.datasets.meet(x, batched=True)
        elif call.fed_by == "pydataset" and x is not None:
            call.workers = call.written["workers"] = int(x.workers)

    def _kind_of(self, x: object) -> str:
        if self.datasets is not None and self.datasets.is_dataset(x):
            return "dataset"
        if isinstance(x, self.keras.utils.PyDataset):
            return "pydataset"
        if hasattr(x, "__next__"):
            return "generator"
        return "loader" if type(x).__module__.startswith("torch.utils.data") else "arrays"

    def _rows(self, arguments: FitArguments) -> int | None:
        """Rows of the arrays that train; None where there are none."""
        flat = self.keras.tree.flatten(arguments.get("x"))
        rows = next((int(x.shape[0]) for x in flat if hasattr(x, "shape") and len(x.shape)), None)
        share = arguments.get("validation_split") or 0.0
        return None if rows is None else int(rows * (1 - share)) if arguments.get("validation_data") is None else rows

    def _apply(self, call: FitCall, arguments: FitArguments) -> None:
        """The knobs of the model, and those among the arguments."""
        session, config, model = self.session, self.session.request.config, call.model
        differing = [knob for knob in MODEL_KNOBS if session.knobs.wants(knob) and getattr(model, knob) != config[knob]]
        for knob in differing:
            setattr(model, knob, config[knob])
        self.steps.remake(model, always=bool(differing))
        if session.knobs.wants("workers") and call.fed_by == "pydataset":
            arguments["x"].workers = call.workers = int(config["workers"])
        factor = 1.0
        if call.fed_by == "dataset" and self.datasets is not None:
            arguments["x"] = self.datasets.adapt(arguments["x"], batched=True)
            factor = self.datasets.factor(arguments["x"])
        elif call.fed_by == "arrays" and session.knobs.wants("batch_size"):
            written = int(call.written["batch_size"])
            factor = int(config["batch_size"]) / written
            # What validates does so by the batch size of training, unless the script says otherwise.
            arguments["validation_batch_size"] = arguments.get("validation_batch_size") or written
            arguments["batch_size"] = int(config["batch_size"])
        if factor != 1.0 and arguments.get("steps_per_epoch"):
            arguments["steps_per_epoch"] = max(1, round(arguments["steps_per_epoch"] / factor))

    # metrics

    def _watch(self, call: FitCall, arguments: FitArguments) -> None:
        callback = self._callback()
        callbacks = arguments.get("callbacks")
        if callbacks is not None and hasattr(callbacks, "append") and not isinstance(callbacks, list):
            callbacks.append(callback)  # a CallbackList
        else:
            arguments["callbacks"] = [*_as_list(callbacks or ()), callback]
        self.steps.prepare(call.model, callback, self.datasets if call.fed_by == "dataset" else None)

    def _callback(self) -> Callback:
        session, steps, on_epoch = self.session, self.steps, self.on_epoch

        class Metrics(self.keras.callbacks.Callback):  # type: ignore[misc, name-defined]
            def on_train_batch_end(self, batch: int, logs: Logs | None = None) -> None:
                if not steps.calls:  # a model of the script's own may do without the usual training function
                    session.step(FRAMEWORK)

            def on_epoch_begin(self, epoch: int, logs: Logs | None = None) -> None:
                steps.epoch_begins()
                on_epoch()

            def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
                figures = ((name, _as_float(value)) for name, value in (logs or {}).items())
                session.report({name: figure for name, figure in figures if figure is not None})

        callback: Callback = Metrics()
        return callback

    def _evaluate(self, original: Callable[..., Result]) -> Callable[..., Result]:
        def evaluate(model: Model, *args: object, **kwargs: object) -> Result:
            if not self.session.here:
                return original(model, *args, **kwargs)
            if not self.nesting.evaluations:
                self.session.check_stop()
                self.session.clock.validation_begins(original.__name__)
            self._enter(evaluations=1)
            batches = self.steps.batches
            counting, batches.counting = batches.counting, False
            try:
                return original(model, *args, **kwargs)
            finally:
                self._enter(evaluations=-1)
                batches.counting = counting

        return evaluate


def _has_own_step(kind: type) -> bool:
    """Whether a class of models has another training step than Keras' own for the backend."""
    own = (cls for cls in kind.__mro__ if cls.__module__.startswith("keras.src.backend."))
    base = next((cls.__dict__["train_step"] for cls in own if "train_step" in cls.__dict__), None)
    return getattr(kind, "train_step", None) is not base


def _as_list(value: object) -> list[object]:
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _as_float(value: object) -> float | None:
    """The value as a number; None for what isn't one."""
    try:
        return float(value)  # type: ignore[arg-type]  # what isn't one raises TypeError
    except (TypeError, ValueError):
        return None
