"""``train_on_batch`` in loops of the script's own: every call is a training step on the batch that it is given."""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable, Mapping
from typing import Any, SupportsFloat

from ..leader import Turns
from ..metrics import number_of
from ..patches import patch
from ..session import Session
from ..tensorflow import FRAMEWORK
from ..tensorflow.loops import LoopWatch
from ..tensorflow.types import Result
from .counters import leading_dimension
from .model import inner_optimizer
from .predictions import PredictionWatch
from .rates import RateWatch
from .trajectory import TrajectoryWatch
from .types import Model
from .weights import ModelWeights
from .witness import COUNTED_AT, StepWitness

OWN_BATCHES = "the script passes its batches to train_on_batch by itself"


class OnBatchWatch:
    """Patches ``train_on_batch`` and the methods beside it.

    On TensorFlow its call is one of a ``tf.function``, which ``loops`` watches: it is told the rows of the batch. On
    the other backends the steps are counted here; of several models that step on the same batch the first one's are,
    and of those that train one after another each one's.

    ``is_inside``: whether another method of a model runs, whose steps are counted elsewhere. ``called``: whether the
    script has trained so; ``begins``: told of each such call. ``newest``: the model of the newest step that was
    counted here; ``averages``: whether what a call gives is a mean over all of them, as before Keras 3.15. On
    TensorFlow ``loops`` sets what is predicted apart, but for what acts in the loop.
    """

    def __init__(
        self, session: Session, backend: str, rates: RateWatch, weights: ModelWeights, predictions: PredictionWatch,
        *, trajectory: TrajectoryWatch, witness: StepWitness, is_inside: Callable[[], bool],
    ) -> None:  # fmt: skip
        self.session = session
        self.predictions = predictions
        self.trajectory = trajectory
        self.witness = witness
        self.backend = backend
        self.rates = rates
        self.is_inside = is_inside
        self.loops: LoopWatch | None = None
        self.weights = weights
        self.called = False
        self._calls = 0
        self.averages = False
        self.newest: Callable[[], Model | None] = lambda: None
        self.begins: Callable[[], None] = lambda: None
        self._turns = Turns()
        self._loss: float | None = None

    def install(self, trainer: type) -> None:
        """Patches the class that defines ``fit``."""
        names = inspect.unwrap(vars(trainer)["train_on_batch"]).__code__.co_names
        self.averages = "reset_metrics" not in names
        patch(trainer, "train_on_batch", self._train)
        if self.session.measuring:
            patch(trainer, "predict_on_batch", self._predict)
        if self.session.measuring and self.backend != "tensorflow":
            patch(trainer, "test_on_batch", self._validate)

    def _train(self, original: Callable[..., Result]) -> Callable[..., Result]:
        def train_on_batch(model: Model, *args: object, **kwargs: object) -> Result:
            if self.is_inside() or not self.session.here:
                return original(model, *args, **kwargs)
            self.rates.update_begins(inner_optimizer(model))  # before JAX traces it
            if not self.session.measuring:
                return original(model, *args, **kwargs)
            self.session.check_stop()
            self.called = True
            self.session.claim(FRAMEWORK)
            self.begins()
            rows = leading_dimension(args[0] if args else kwargs.get("x"))
            if self.backend != "tensorflow":
                self.session.clock.fetch_begins()
                self.weights.step_begins(model)
                self.trajectory.fit_begins(model)
                result = self._run(original, (model, *args), kwargs)
                self.trajectory.fit_stepped(model, 1)
                self.weights.stepped(model)
                self._stepped(model, rows, result)
                return result
            if self.loops is None:
                return original(model, *args, **kwargs)
            self.loops.rows_given = rows
            try:
                return original(model, *args, **kwargs)
            finally:
                self.loops.rows_given = 0

        return train_on_batch

    def _run(self, original: Callable[..., Result], args: tuple[object, ...], kwargs: dict[str, Any]) -> Result:
        """A step. On PyTorch the products of one are counted, where it has to show in what it computes."""
        asked = self.backend == "torch" and self._calls == COUNTED_AT and "precision" in self.session.request.config
        self._calls += 1
        if asked and not self.witness.compiled:
            return self.witness.run(lambda *given: original(*given, **kwargs), args)
        return original(*args, **kwargs)

    def _validate(self, original: Callable[..., Result]) -> Callable[..., Result]:
        def on_batch(model: Model, *args: object, **kwargs: object) -> Result:
            if self.session.here and self.called and not self.is_inside():
                self.session.clock.validation_begins(original.__name__)
            return original(model, *args, **kwargs)

        return on_batch

    def _predict(self, original: Callable[..., Result]) -> Callable[..., Result]:
        validating = self._validate(original)

        def predict_on_batch(model: Model, *args: object, **kwargs: object) -> Result:
            if self.is_inside() or not self.session.here:
                return original(model, *args, **kwargs)
            acts = self.predictions.acts(model, args[0] if args else kwargs.get("x"))
            if self.loops is None or self.backend != "tensorflow":
                return (original if acts else validating)(model, *args, **kwargs)
            self.loops.acting = acts
            try:
                return original(model, *args, **kwargs)
            finally:
                self.loops.acting = False

        return predict_on_batch

    def _stepped(self, model: Any, rows: int, result: object) -> None:
        count = self._turns.counted(model, 1, 0)
        if count is None:
            return
        self._loss, self.newest = _loss_in(result), weakref.ref(model)
        self.session.clock.add_samples(rows * count, 0.0)
        self.session.step(FRAMEWORK, count)

    def take_loss(self) -> float | None:
        """The newest step's loss; None where none was seen since the last time."""
        loss, self._loss = self._loss, None
        return loss


def _loss_in(result: object) -> float | None:
    """The loss in what ``train_on_batch`` gives back: by its name, or the first figure."""
    if isinstance(result, Mapping):
        result = result.get("loss")
    elif isinstance(result, (list, tuple)):
        result = result[0] if result else None
    return number_of(result) if isinstance(result, SupportsFloat) else None
