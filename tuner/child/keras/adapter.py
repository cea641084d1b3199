"""Instruments Keras and TensorFlow: installs the watches, and answers the clock.

One adapter for all of Keras' backends: what differs between them lies below ``Model.fit``.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from types import ModuleType
from typing import Any

from ..adapter import Adapter, Library
from ..session import Session
from ..tensorflow import files
from ..tensorflow.data.watch import DatasetWatch
from ..tensorflow.loops import LoopWatch
from ..tensorflow.seeds import seed
from ..tensorflow.strategies import StrategyWatch
from .evidence import Observation
from .fit import FRAMEWORK, FitWatch
from .model import OptimizerWatch, PolicyWatch

SUPPORTED = (3, 3)


class KerasAdapter(Adapter):
    """One trial's watches on Keras and TensorFlow. Either may be imported first, or alone."""

    framework = FRAMEWORK

    def __init__(self, session: Session) -> None:
        self.session = session
        self.cuda = session.device.startswith("cuda")
        self.tf: Any = None
        self.keras: Any = None
        self.datasets: DatasetWatch | None = None
        self.loops: LoopWatch | None = None
        self.fits: FitWatch | None = None
        self.strategies: StrategyWatch | None = None
        self.policy = PolicyWatch(session)
        self.optimizers: OptimizerWatch | None = None
        self._loss_read = (0.0, 0.0)
        self._loss_at = 0.0
        if session.measuring:
            session.attend(FRAMEWORK, self, self.observe)

    @property
    def libraries(self) -> Mapping[str, Library]:
        """TensorFlow, Keras, and what writes past ``open``."""
        writing = {name: Library(partial(install, self.session)) for name, install in files.ADAPTERS.items()}
        return {"tensorflow": Library(self.meet_tensorflow), "keras": Library(self.meet_keras), **writing}

    def meet_tensorflow(self, tf: ModuleType) -> None:
        """Right after ``import tensorflow``, before its runtime starts."""
        session = self.session
        self.tf = tf
        session.recorder.emit("framework", name="tensorflow", version=tf.__version__, device=session.device)
        if session.seed is not None:
            seed(session.seed, tf)
        if session.wants("threads"):
            tf.config.threading.set_intra_op_parallelism_threads(int(session.config["threads"]))
        if session.wants("inter_op_threads"):
            tf.config.threading.set_inter_op_parallelism_threads(int(session.config["inter_op_threads"]))
        self._cap_memory(tf)
        if session.measuring:
            files.install(session, tf)
        if session.may_be_of(FRAMEWORK):
            self.strategies = StrategyWatch(session, tf)
            self.strategies.install()
            self.datasets = DatasetWatch(session, tf)
            self.datasets.install()
            self.loops = LoopWatch(session, tf, self.datasets)
            self.loops.install()
            self._join()

    def _cap_memory(self, tf: ModuleType) -> None:
        """A config that takes too much fails here, and no neighbour on the card does.

        A card whose memory is taken as it is needed can't be capped as well: there the limit is only held against.
        """
        cards = tf.config.list_physical_devices("GPU") if self.cuda else []
        limit = self.session.request.get("max_device_bytes")
        if self.session.wants("memory_growth"):
            for card in cards:
                tf.config.experimental.set_memory_growth(card, bool(self.session.config["memory_growth"]))
        elif cards and limit and self.session.config:
            cap = tf.config.LogicalDeviceConfiguration(memory_limit=limit // 2**20)
            tf.config.set_logical_device_configuration(cards[0], [cap])

    def meet_keras(self, keras: ModuleType) -> None:
        """Right after ``import keras``. Raises ``RuntimeError`` for versions that weren't tried."""
        session = self.session
        version = tuple(int(part) for part in keras.__version__.split(".")[:2])
        if version < SUPPORTED:
            raise RuntimeError(f"keras {keras.__version__} is older than {SUPPORTED[0]}.{SUPPORTED[1]}")
        self.keras = keras
        session.recorder.emit("framework", name=FRAMEWORK, version=keras.__version__, device=session.device)
        if not session.may_be_of(FRAMEWORK):
            return
        self.policy.install()
        self.optimizers = OptimizerWatch(session, keras)
        self.policy.on_first = self.optimizers.on_first = self._model_begins
        self.optimizers.install()
        self.fits = FitWatch(session, keras, self.datasets, self.loops)
        self.fits.on_epoch = self._epoch_begins
        self.fits.install()
        self._join()

    def _join(self) -> None:
        """Acquaints the watches with each other. TensorFlow imports Keras while it is imported: Keras is met first."""
        if self.fits is None or self.loops is None:
            return
        self.fits.datasets, self.fits.loops = self.datasets, self.loops
        if self.fits.backend == "tensorflow":
            self.loops.note_keras(self.keras)

    def _model_begins(self) -> None:
        if self.strategies is not None and self.keras.backend.backend() == "tensorflow":
            self.strategies.begin()

    def _epoch_begins(self) -> None:
        self._loss_read = (0.0, 0.0)

    # the clock's questions

    def synchronize(self) -> None:
        if self.cuda and self.tf is not None:
            self.tf.test.experimental.sync_devices()
        if self.fits is not None and self.fits.graph is not None:
            self.fits.graph.settle()
        if self.loops is not None:
            self.loops.synchronize()

    def activity(self) -> int:
        in_loops = self.loops.activity() if self.loops is not None else 0
        return in_loops + (self.fits.traces() if self.fits is not None else 0)

    def on_block(self) -> None:
        progress, self._loss_at = self._loss_at, self.session.clock.progress
        # Nothing was trained on since: what the model's metrics hold now is of its validation.
        loss = self._loss() if self._loss_at > progress else None
        if loss is not None:
            self.session.loss(loss)

    def _loss(self) -> float | None:
        """The training loss since the last time: Keras' own figure is a mean over the epoch so far."""
        fits = self.fits
        if fits is None or not fits.logs:
            return self.loops.take_loss() if self.loops is not None else None
        # jax holds the metrics' state elsewhere while it trains.
        tracked = self._tracked_loss(fits.model) if fits.backend != "jax" else None
        if tracked is not None:
            total, count = tracked
            before, self._loss_read = self._loss_read, (total, count)
            return (total - before[0]) / (count - before[1]) if count > before[1] else None
        name = next((name for name in ("loss", *fits.logs) if name in fits.logs and "loss" in name), None)
        return None if name is None else float(fits.logs[name])

    def _tracked_loss(self, model: Any) -> tuple[float, float] | None:
        """Sum and count of the metric that holds the training loss, as Keras or the model's own train_step keeps it."""
        read = self.keras.ops.convert_to_numpy  # a strategy's variable is no number by itself
        found = [m for m in model.metrics if m.name == "loss" and hasattr(m, "total") and hasattr(m, "count")]
        values = [(float(read(metric.total)), float(read(metric.count))) for metric in reversed(found)]
        # A model with its own train_step leaves the one that Keras made unused.
        return next(((total, count) for total, count in values if count), None)

    def observe(self) -> None:
        if self.session.trained_by == FRAMEWORK:
            Observation(self).observe()
