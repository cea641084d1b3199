"""Keras' ``Model.fit``, whatever the backend: what the script passes to it, the knobs at its entry, its metrics."""

from __future__ import annotations

import inspect
import sys
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from types import ModuleType
from typing import Any

from ..evidence import SetBy
from ..knobs import EFFECTIVE_BATCH
from ..patches import patch
from ..session import Session
from ..tensorflow import FRAMEWORK
from ..tensorflow.data.watch import DatasetWatch
from ..tensorflow.loops import LoopWatch
from ..tensorflow.types import Result
from . import callbacks, freezing, settings
from .devices import DistributionWatch
from .fit_call import DRAWN_ALIKE, FitCall, Nesting
from .masks import MaskWatch
from .model import accumulation_of, has_own_step, makes_own_function
from .obstacles import ObstacleWatch
from .on_batch import OnBatchWatch
from .predictions import PredictionWatch
from .rates import RateWatch
from .settings import MODEL_KNOBS
from .split import OWN_LOSS, OWN_PARTS, SplitWatch
from .stages import StageWatch
from .steps import StepWatch
from .trajectory import TrajectoryWatch
from .types import Callback, Logs, Model

DEFAULT_BATCH_SIZE = 32  # what Keras takes for arrays where the script says nothing
_OF_OTHERS = (
    ("loader", ("DataLoader",), "torch.utils.data"),
    ("grain", ("MapDataset", "IterDataset", "DataLoader"), "grain."),
    ("distributed", ("DistributedDataset", "DistributedDatasetsFromFunction"), "tensorflow.python."),
    ("adapter", ("DataAdapter",), "keras.src."),
)
"""What ``fit`` takes besides: names of classes, and what the names of their modules begin with. Keras goes by these."""
FitArguments = dict[str, Any]
"""``Model.fit``'s arguments by name, of whatever kind the script passes."""


class FitWatch:
    """Patches the trainer's ``fit``, ``evaluate`` and ``predict``; ``call`` is None until the script calls ``fit``.

    ``datasets`` and ``loops`` are None as long as TensorFlow isn't imported. ``on_epoch`` is called as each begins.
    """

    def __init__(
        self, session: Session, keras: ModuleType, rates: RateWatch, datasets: DatasetWatch | None,
        loops: LoopWatch | None, *, trajectory: TrajectoryWatch, on_epoch: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        self.session = session
        self.keras = keras
        self.rates = rates
        self.datasets = datasets
        self.loops = loops
        self.trajectory = trajectory
        self.on_epoch = on_epoch
        self.backend: str = keras.backend.backend()
        self.nesting = Nesting()
        self.masks = MaskWatch(keras)
        self.obstacles = ObstacleWatch(keras)
        self.steps = StepWatch(session, self.nesting, self.backend, trajectory, self.obstacles.stepped)
        self.split = SplitWatch(session, self.backend, self.masks, self.obstacles)
        self.predictions = PredictionWatch(session, keras)
        self.on_batch = OnBatchWatch(
            session, self.backend, rates, self.steps.weights, self.predictions, trajectory=trajectory,
            witness=self.steps.witness, is_inside=lambda: self.nesting.active,
        )  # fmt: skip
        self.devices = DistributionWatch(session, keras)
        self.on_batch.begins = self.devices.begins
        self.stages = StageWatch(session)
        self.call: FitCall | None = None
        self.as_written: Callable[[], AbstractContextManager[None]] = nullcontext
        """What has the model as the script wrote it for a while, where configs take turns."""

    def install(self) -> None:
        """Patches the class that defines ``fit``: every model inherits from it."""
        trainer = next(cls for cls in self.keras.Model.__mro__ if "fit" in cls.__dict__)
        patch(trainer, "fit", self._fit)
        self.split.install(trainer)
        if self.session.measuring or "grad_accumulation" in self.session.request.config:
            self.masks.install()
            self.obstacles.install()
        if self.session.measuring or self.rates.may_be_dropped:
            self.on_batch.install(trainer)
        if self.session.measuring or any(map(self.session.knobs.wants, MODEL_KNOBS)):
            patch(trainer, "evaluate", self._evaluate)
            patch(trainer, "predict", self._evaluate)
        if self.session.measuring:
            self.steps.install(trainer)
        elif self.session.applied is not None and self.session.request.config:
            self.steps.install_for_applied(trainer, self.session.applied)
            self.session.applied.counts_devices(self.devices.trained_on)

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
            if self.session.measuring:
                self.session.clock.fetch_begins()
            self.devices.begins()
            self.stages.begins(model)
            self._prepare(model, bound.arguments)
            self._enter(fits=1)
            self.masks.model = self.obstacles.model = model
            self.steps.fit_begins()
            try:
                result = original(*bound.args, **bound.kwargs)
                if self.session.applied is not None and getattr(result, "epoch", None):
                    self.session.applied.trains()
                return result
            finally:
                self._enter(fits=-1)
                self.stages.ended(model)
                self.steps.fit_ended()
                self.split.end()
                self.rates.fit_factor = self.masks.model = self.obstacles.model = None

        return fit

    def _prepare(self, model: Model, arguments: FitArguments) -> None:
        """Notes what the script wrote, then changes the arguments by the config and adds the callback.

        What goes wrong is noted: a fault of ours must not look like one of the script.
        """
        try:
            # Kept before it is read: what fits all the same is held against the config, whatever goes wrong.
            self.call = call = self._begin(model, arguments)
            with self.as_written():
                self._read(call, arguments)
            self.stages.has_batches(self._written_size(call, arguments))
            self._apply(call, arguments)
            if self.session.measuring:
                self._watch(call, arguments)
            elif self.session.applied is not None:
                self.session.applied.training_begins()
        except Exception as error:
            self.session.note(f"Model.fit could not be prepared: {type(error).__name__}: {error}")

    def _begin(self, model: Model, arguments: FitArguments) -> FitCall:
        listed, x = callbacks.listed(arguments.get("callbacks")), arguments.get("x")
        return FitCall(
            model, self._kind_of(x), custom_step=has_own_step(type(model)),
            sets_rate=callbacks.sets_rate(listed), lowers_rate=callbacks.lowers_rate(listed),
            stored=callbacks.stored(listed, freezing.own_kinds(model)), acts_by_batch=callbacks.acts_by_batch(listed),
            saves_by_batch=callbacks.saves_by_batch(listed), epoch_steps=int(arguments.get("steps_per_epoch") or 0),
            validation_steps=int(arguments.get("validation_steps") or 0),
            dataset=weakref.ref(x) if _is_dataset(x) else lambda: None,
        )  # fmt: skip

    def _read(self, call: FitCall, arguments: FitArguments) -> None:
        """What the script wrote, as it stands before any knob is applied."""
        model, x = call.model, arguments.get("x")
        call.written = {
            "run_eagerly": bool(settings.own(model, "run_eagerly")),
            "jit_compile": bool(settings.own(model, "jit_compile")),
            "steps_per_execution": int(settings.own(model, "steps_per_execution")),
        }
        if call.fed_by == "arrays":
            call.dataset_len = self._rows(arguments)
            call.written["batch_size"] = arguments.get("batch_size") or _size(call.dataset_len, call.epoch_steps)
        elif call.fed_by == "dataset" and self.datasets is not None and x is not None:
            self.datasets.meet(x, batched=True)
        elif call.fed_by == "pydataset" and x is not None:
            call.workers = call.written["workers"] = int(x.workers)
            if x.use_multiprocessing and call.workers <= 1:
                call.refused["workers"] = self.session.facts.left_out["workers"] = DRAWN_ALIKE
        self.steps.queues.pydataset = x if call.fed_by == "pydataset" else None
        self.steps.queues.is_dataset = call.fed_by == "dataset"

    def _written_size(self, call: FitCall, arguments: FitArguments) -> object:
        """Samples in the batches of this call, as the script wrote them; None where that isn't known."""
        if call.fed_by == "dataset" and self.datasets is not None:
            return self.datasets.batch_size(arguments["x"])
        return call.written.get("batch_size")

    def _kind_of(self, x: object) -> str:
        if _is_dataset(x):
            return "dataset"
        if isinstance(x, self.keras.utils.PyDataset):
            return "pydataset"
        if hasattr(x, "__next__"):
            return "generator"
        return next((kind for kind, names, module in _OF_OTHERS if _is_of(type(x), names, module)), "arrays")

    def _rows(self, arguments: FitArguments) -> int | None:
        """Rows of the arrays that train; None where there are none."""
        rows = self._rows_of(arguments.get("x"))
        share = arguments.get("validation_split") or 0.0
        return None if rows is None else int(rows * (1 - share)) if arguments.get("validation_data") is None else rows

    def _rows_of(self, arrays: object) -> int | None:
        flat = self.keras.tree.flatten(arrays)
        return next((int(x.shape[0]) for x in flat if hasattr(x, "shape") and len(x.shape)), None)

    def _validation_size(self, call: FitCall, arguments: FitArguments) -> int:
        """Rows in the batches of arrays that validate, as written."""
        given, apart = arguments.get("validation_data"), arguments.get("validation_batch_size")
        if apart or arguments.get("batch_size"):
            return int(apart or arguments["batch_size"])
        rows = (self._rows_of(arguments.get("x")) or 0) - (call.dataset_len or 0)
        return _size(self._rows_of(given[0]) if isinstance(given, (tuple, list)) else rows, call.validation_steps)

    def _apply(self, call: FitCall, arguments: FitArguments) -> None:
        """The knobs of the model, and those among the arguments."""
        session, config, model = self.session, self.session.request.config, call.model
        parts, factor = self._resize(call, arguments)
        accumulates = accumulation_of(model) > 1
        if parts > 1 and (call.custom_step or accumulates):
            # A step takes all parts at once: where they make up the script's own batch, that stays as it is.
            call.refused["grad_accumulation"] = OWN_PARTS if accumulates else OWN_LOSS
            parts = 1
        if factor != 1.0 and call.epoch_steps:
            arguments["steps_per_epoch"] = round(call.epoch_steps / factor)  # a whole number: see why_no_such_batches
        wanted: dict[str, Any] = {knob: config[knob] for knob in MODEL_KNOBS if session.knobs.wants(knob)}
        if "steps_per_execution" in wanted:
            wanted["steps_per_execution"] = self._steps_in_call(call, int(arguments.get("steps_per_epoch") or 0))
        differs = settings.put(model, wanted)
        written = session.request.knowledge.as_written.get("jit_compile")
        if session.knobs.wants("strategy") and "jit_compile" not in config and isinstance(written, bool):
            # Keras decides on XLA by itself, and against it under a strategy: to undo one isn't to compile.
            differs |= bool(model.jit_compile) != written
            model.jit_compile = written
        if session.knobs.wants("workers") and call.fed_by == "pydataset" and "workers" not in call.refused:
            arguments["x"].workers = call.workers = int(config["workers"])
        is_new = self.split.begin(model, parts)
        has_new_rate = self.rates.fit_begins(model, factor)
        self.steps.remake(model, always=differs or is_new or has_new_rate)

    def _steps_in_call(self, call: FitCall, epoch_steps: int) -> int:
        """The config's ``steps_per_execution``, or the script's own where an epoch of so many steps is against it."""
        own, wanted = int(call.written["steps_per_execution"]), int(self.session.request.config["steps_per_execution"])
        why = call.why_not_several_steps(wanted, epoch_steps, self.backend) if wanted != own else ""
        if why:
            call.refused["steps_per_execution"] = why
            return own
        return wanted

    def _resize(self, call: FitCall, arguments: FitArguments) -> tuple[int, float]:
        """The batches of the config: into how many parts a step splits one, and its samples by those as written.

        Batches are as large as all parts of one: where these make up the script's own batch, it stays as it is. They
        stay so, too, where they aren't those that the config is for, where an epoch of the script's steps can't be made
        of others: that is known before any is made, and where the script was told the size by its own arguments: it
        makes whole batches of it (``Knowledge.given``).
        """
        knobs = self.session.knobs
        parts = self.split.wanted if call.fed_by in ("arrays", "dataset") else 1
        if knobs.set_by("batch_size") is not SetBy.PATCH:
            if call.fed_by == "dataset" and self.datasets is not None:
                arguments["x"] = self.datasets.adapt(arguments["x"], batched=True)
            return parts, 1.0
        if call.fed_by == "dataset" and self.datasets is not None:
            return self._resize_dataset(call, arguments, self.datasets, parts)
        if call.fed_by == "arrays" and (knobs.wants("batch_size") or parts > 1):
            written = int(call.written["batch_size"])
            size = int(knobs.wanted("batch_size") or written) * parts
            if self._refuse_batches(call, written, size):
                return 1, 1.0
            # What validates does so by the batch size of training, unless the script says otherwise.
            arguments["validation_batch_size"] = self._validation_size(call, arguments)
            arguments["batch_size"] = size
            return parts, size / written
        return parts, 1.0

    def _resize_dataset(
        self, call: FitCall, arguments: FitArguments, datasets: DatasetWatch, parts: int
    ) -> tuple[int, float]:
        x = arguments["x"]
        resizes = self.session.knobs.wants("batch_size") or parts > 1
        old = datasets.batch_size(x) if resizes else None
        new = int(self.session.knobs.wanted("batch_size") or old or 0) * parts
        if resizes and self._refuse_batches(call, old, new):
            arguments["x"] = datasets.adapt(x, batched=True, resizes=False)
            return 1, 1.0
        arguments["x"] = datasets.adapt(x, batched=True, parts=parts)
        if parts > 1 and datasets.refused("batch_size"):
            call.refused["grad_accumulation"] = datasets.refused("batch_size")
            return 1, datasets.factor(arguments["x"])
        return parts, datasets.factor(arguments["x"])

    def _refuse_batches(self, call: FitCall, old: int | None, new: int) -> bool:
        """Whether batches of ``new`` samples are refused in this call, whose own ones have ``old``."""
        why = call.why_no_such_batches(old, new, self.session.request.knowledge.as_written.get("batch_size"))
        if why:
            call.refused.update({knob: why for knob in EFFECTIVE_BATCH if self.session.knobs.wants(knob)})
        return bool(why)

    # metrics

    def _watch(self, call: FitCall, arguments: FitArguments) -> None:
        self.trajectory.follows_the_loss |= call.lowers_rate
        callback, given = self._callback(call.model), arguments.get("callbacks")
        if given is not None and hasattr(given, "append") and not isinstance(given, list):
            given.append(callback)  # a CallbackList
        else:
            arguments["callbacks"] = [*callbacks.listed(given), callback]
        self.steps.prepare(call.model, callback, self.datasets if call.fed_by == "dataset" else None)

    def _callback(self, model: Model) -> Callback:
        session, steps, on_epoch = self.session, self.steps, self.on_epoch

        class Metrics(self.keras.callbacks.Callback):  # type: ignore[misc, name-defined]
            def on_epoch_begin(self, epoch: int, logs: Logs | None = None) -> None:
                session.clock.fetch_begins()  # what an epoch begins with is no part of the validation before it
                steps.epoch_begins()
                on_epoch()

            def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
                figures = ((name, _as_float(value)) for name, value in (logs or {}).items())
                session.report({name: figure for name, figure in figures if figure is not None})

        class EachBatch(Metrics):
            def on_train_batch_end(self, batch: int, logs: Logs | None = None) -> None:
                if not steps.calls:
                    session.step(FRAMEWORK)

        # A model of the script's own may do without the usual training function. Elsewhere nothing is called with a
        # batch: Keras shows its progress in another thread then, as it does without us.
        callback: Callback = (EachBatch if makes_own_function(model) else Metrics)()
        return callback

    def _evaluate(self, original: Callable[..., Result]) -> Callable[..., Result]:
        def evaluate(model: Model, *args: object, **kwargs: object) -> Result:
            if not self.session.here:
                return original(model, *args, **kwargs)
            # What fit validates on runs as it trains: of its steps is known that they are no fewer than asked for.
            validates = "_use_cached_eval_dataset" in kwargs
            own: AbstractContextManager[None] = nullcontext() if validates else settings.as_written(model)
            if not self.session.measuring:
                with own:
                    return original(model, *args, **kwargs)
            if not self.nesting.evaluations:
                self.session.check_stop()
                if not self._acts(model, original.__name__, args, kwargs):
                    self.session.clock.validation_begins(original.__name__)
            self._enter(evaluations=1)
            batches = self.steps.batches
            counting, batches.counting = batches.counting, False
            try:
                with self.as_written(), own:
                    return original(model, *args, **kwargs)
            finally:
                self._enter(evaluations=-1)
                batches.counting = counting

        return evaluate

    def _acts(self, model: Model, name: str, args: tuple[object, ...], kwargs: FitArguments) -> bool:
        """Whether it is a prediction in a loop of the script's own that is part of what is trained on."""
        given = args[0] if args else kwargs.get("x")
        asked = name == "predict" and not self.nesting.fits and self._kind_of(given) == "arrays"
        return asked and self.predictions.acts(model, given)


def _size(rows: int | None, steps: int) -> int:
    """Rows in the batches that Keras cuts arrays into where the script doesn't say: into ``steps``, if it says that."""
    return -(-rows // steps) if rows and steps else DEFAULT_BATCH_SIZE


def _is_of(kind: type, names: tuple[str, ...], module: str) -> bool:
    """Whether a class, or one that it inherits, has one of these names in such a module."""
    return any(cls.__name__ in names and cls.__module__.startswith(module) for cls in kind.__mro__)


def _is_dataset(x: object) -> bool:
    """Whether it is one of tf.data, also where nothing watches those."""
    tf = sys.modules.get("tensorflow")
    return tf is not None and isinstance(x, tf.data.Dataset)


def _as_float(value: object) -> float | None:
    """The value as a number; None for what isn't one."""
    try:
        return float(value)  # type: ignore[arg-type]  # what isn't one raises TypeError
    except (TypeError, ValueError):
        return None
