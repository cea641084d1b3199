"""The watches on TensorFlow and Keras: made as each is imported, in either order, and made known to each other."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

from ..session import Session
from ..tensorflow.data.ends import IteratorEnds
from ..tensorflow.data.watch import DatasetWatch
from ..tensorflow.feed import DatasetFeed
from ..tensorflow.generated import GeneratedSources
from ..tensorflow.iteration import IterationWatch
from ..tensorflow.loops import LoopWatch
from ..tensorflow.mixed_precision import MixedPrecisionWatch
from ..tensorflow.sessions import SessionWatch
from ..tensorflow.strategies import StrategyWatch
from ..tensorflow.threads import ThreadWatch
from ..watch import Watch
from .fit import FitWatch
from .model import OptimizerWatch, PolicyWatch
from .trajectory import TrajectoryWatch


class Watches:
    """One trial's watches; those of a library that isn't imported are None. ``on_epoch``: called as each begins."""

    def __init__(self, session: Session, on_epoch: Callable[[], None] = lambda: None) -> None:
        self.session = session
        self.on_epoch = on_epoch
        self.tf: ModuleType | None = None
        self.keras: ModuleType | None = None
        self.strategies: StrategyWatch | None = None
        self.datasets: DatasetWatch | None = None
        self.ends: IteratorEnds | None = None
        self.loops: LoopWatch | None = None
        self.mixed_precision: MixedPrecisionWatch | None = None
        self.policy = PolicyWatch(session)
        self.trajectory = TrajectoryWatch(session)
        self.optimizers: OptimizerWatch | None = None
        self.fits: FitWatch | None = None

    @property
    def backend(self) -> str:
        """What Keras computes with; TensorFlow where there is no Keras, or where a loop of TensorFlow's own trains."""
        return str(self.keras.backend.backend()) if self.keras is not None and not self._is_beside else "tensorflow"

    @property
    def _is_beside(self) -> bool:
        """Whether Keras, which TensorFlow imports, has no part in the training that was seen so far."""
        fits, loops = self.fits, self.loops
        uses_keras = fits is not None and (fits.call is not None or fits.on_batch.called)
        return loops is not None and loops.trained and not uses_keras

    def watch_tensorflow(self, tf: ModuleType) -> None:
        """Right after ``import tensorflow``, before its runtime starts."""
        self.tf = tf
        GeneratedSources(self.session).install()
        if self.session.uses(Watch.TF_DATA):
            self.datasets = self._watch_datasets(tf)
        if self.session.uses(Watch.TENSORFLOW):
            self.strategies = StrategyWatch(self.session, tf)
            self.strategies.install()
            self.loops = LoopWatch(self.session, tf, self.datasets)
            self.loops.install()
            self.mixed_precision = MixedPrecisionWatch(self.session, tf)
            self.mixed_precision.configure()
            threads = ThreadWatch(self.session, tf, then=self.mixed_precision.gradient_taken)
            self.loops.gradient_taken = threads.gradient_taken
            self._feed(self.loops.iterations, self.datasets)
            SessionWatch(self.session, tf).install()
        self._join()

    def watch_data(self, tf: ModuleType) -> None:
        """The same where another framework trains, which TensorFlow's data may feed: these alone."""
        if not self.session.uses(Watch.TENSORFLOW):
            return
        datasets = self._watch_datasets(tf) if self.session.uses(Watch.TF_DATA) else None
        iterations = LoopWatch(self.session, tf, datasets).iterations
        if self.session.measuring or (iterations.sources.known and datasets is not None):
            iterations.install()
        self._feed(iterations, datasets)
        if self.session.applied is not None:
            self.session.applied.attend(self.session.feeds.all[-1].effects)

    def _watch_datasets(self, tf: ModuleType) -> DatasetWatch:
        if self.session.clock.turns is not None or self.session.request.rotation:
            self.ends = IteratorEnds(self.session, tf)
            self.ends.install()
        datasets = DatasetWatch(self.session, tf)
        datasets.install()
        return datasets

    def _feed(self, iterations: IterationWatch, datasets: DatasetWatch | None) -> None:
        self.session.feeds.add(DatasetFeed(iterations, datasets))

    def watch_keras(self, keras: ModuleType) -> None:
        """Right after ``import keras``, before a layer is made."""
        self.keras = keras
        if self.session.uses(Watch.KERAS):
            self.policy.install(keras)
            self.optimizers = OptimizerWatch(self.session, keras)
            self.policy.on_first = self.optimizers.on_first = self._model_begins
            self.optimizers.install()
            rates = self.optimizers.rates
            self.trajectory.keras, self.trajectory.rate_watch = keras, rates
            self.fits = FitWatch(
                self.session, keras, rates, self.datasets, self.loops,
                trajectory=self.trajectory, on_epoch=self.on_epoch,
            )  # fmt: skip
            self.fits.install()
        self._join()

    def _join(self) -> None:
        """Makes the watches known to each other. TensorFlow imports Keras while it is imported: Keras comes first."""
        if self.fits is not None:
            self.fits.datasets, self.fits.loops, self.fits.on_batch.loops = self.datasets, self.loops, self.loops
        if self.optimizers is not None and self.datasets is not None:
            datasets = self.datasets
            self.optimizers.rates.loop_factor = lambda: datasets.newest_factor
        if self.loops is not None and self.fits is not None:
            self.loops.iterations.iterated = self.fits.steps.iterated
        if self.loops is not None and self.keras is not None and self.backend == "tensorflow":
            self.loops.note_keras(self.keras)
            self.loops.begins, self.loops.stepped = self.trajectory.batch_begins, self.trajectory.stepped
            if self.fits is not None:
                self.fits.steps.loops = self.loops

    def _model_begins(self) -> None:
        if self.strategies is not None and self.backend == "tensorflow":
            self.strategies.begin()
