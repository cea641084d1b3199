"""tf.data as what feeds a loop of JAX's: how long it keeps that waiting, and its knobs."""

from __future__ import annotations

from collections.abc import Mapping

from ..applied import Effect
from ..feeds import Feed
from ..records import LoaderUse
from ..sources import TrainingSources
from .data.refused import Applied
from .data.watch import KNOBS, DatasetWatch
from .iteration import DatasetSource, IterationWatch

NO_DATASET = "no tf.data dataset of the training was changed"


class DatasetFeed(Feed):
    """Of one trial. ``datasets``: what records how they are made; None where its watch is off."""

    name = "tf.data dataset"
    knobs = KNOBS

    def __init__(self, iterations: IterationWatch, datasets: DatasetWatch | None) -> None:
        self.session = iterations.session
        self.iterations = iterations
        self.datasets = datasets

    @property
    def sources(self) -> TrainingSources[DatasetSource]:
        """Places where datasets are iterated."""
        return self.iterations.sources

    def gradient_ran(self) -> None:
        """What was fetched fed a step."""
        self.iterations.gradient_ran()

    def ready(self) -> float | None:
        """What was made of the data, and wasn't fetched; not asked in a screen, where nothing is timed."""
        return None if self.session.request.window.until_samples else self.iterations.ready_samples()

    def at_work(self, computing: float) -> float:
        """What its threads make at once, where they rest."""
        return self.iterations.pipeline.at_work(self.iterations.size, computing)

    @property
    def begins_as_taken(self) -> bool:
        """What is made and what lies ready are as many together as calls run in parallel."""
        return True

    @property
    def capacity(self) -> int:
        """Batches that can lie ready."""
        prefetched = self.datasets.prefetched if self.datasets is not None else 0
        return self.iterations.pipeline.capacity(self.iterations.size) or (
            prefetched if isinstance(prefetched, int) else 0
        )

    def activity(self) -> int:
        """Other data came to train, or a cache is full by now."""
        full = int(self.datasets is not None and self.datasets.filling.begins_anew)
        return full + self.sources.changes_of_primary

    def written_size(self) -> int | None:
        """The size of most batches, where elements are batches."""
        return self.iterations.size or None if self.iterations.size_is_a_batchs else None

    def observe(self) -> None:
        """Facts, and evidence of the data's knobs."""
        facts, training = self.session.facts, self.iterations.training()
        self.iterations.meet_training()
        if self.datasets is not None:
            self.datasets.observe()
        facts.training_loaders = [source.key for source in training]
        facts.loaders = [LoaderUse(source.key, source.fetches) for source in self.sources]
        if self.sources.wait_is_hidden:
            facts.hide_wait("another thread fetches it from the dataset")
        if self.session.is_as_written:
            facts.batch_waits = self.sources.told_waits()
        if not self.session.request.config and self.iterations.size:
            facts.keep_sizes([source.usual_size for source in training if source.fetches], self.iterations.size)

    def effects(self) -> Mapping[str, Effect]:
        """Of the data's knobs."""
        applied = self.datasets.applied if self.datasets is not None else {}
        wanted = [knob for knob in self.knobs if self.session.knobs.wants(knob)]
        outcomes = {knob: applied.get(knob, Applied()) for knob in wanted}
        return {knob: Effect(each.changed, each.refused or NO_DATASET) for knob, each in outcomes.items()}
