"""PyTorch's DataLoader as what feeds a loop of JAX's: how long it keeps that waiting, and its knobs."""

from __future__ import annotations

from collections.abc import Mapping

from ..applied import Effect
from ..feeds import Feed
from ..resting import RESTS, Rest
from ..sources import TrainingSources
from .applied import AppliedKnobs
from .loader_facts import LoaderFacts
from .loader_places import Loader
from .loader_workers import workers_of
from .starting import FORK, WORKERS, is_usual, start_method
from .watches import TorchWatches

FORKED = (
    "the script's DataLoader forks its workers beside JAX's threads, which JAX warns of: they may wait forever, and"
    ' can\'t with multiprocessing_context="spawn"'
)


class LoaderFeed(Feed):
    """Of one trial."""

    name = "DataLoader"
    knobs = ("batch_size", *WORKERS)

    def __init__(self, watches: TorchWatches) -> None:
        self.session = watches.session
        self.torch = watches.torch
        self.watches = watches
        self.loaders = watches.loaders
        self._rest = Rest()

    @property
    def sources(self) -> TrainingSources[Loader]:
        """Places where loaders are made."""
        return self.loaders.sources

    def ready(self) -> float | None:
        """What its workers have made and the loop hasn't fetched."""
        return self.loaders.ready_samples()

    def at_work(self, computing: float) -> float:
        """A batch of each worker, where they rest."""
        primary = self.sources.primary
        if primary is None:
            return 0.0
        share = self._rest.share(worker.pid for worker in workers_of(primary.newest()))
        return float(primary.at_work) if share > RESTS else 0.0

    @property
    def capacity(self) -> int:
        """Batches that its workers keep ready."""
        return self.loaders.prefetch_capacity

    def observe(self) -> None:
        """Facts, and evidence of the workers."""
        session, seen = self.session, LoaderFacts(self.session, self.torch, self.loaders)
        for loader in self.sources:
            loader.refused = {**loader.refused_beside, **loader.refused}
        seen.written()
        primary = self.sources.primary
        if primary is None:
            return
        if not primary.written["num_workers"] and is_usual():  # those that a config adds last
            session.facts.as_written["persistent_workers"] = "persistent_workers" not in primary.refused
        for knob in WORKERS:
            if knob in session.knobs.requested:
                seen.evidence(knob, primary, None)
        if primary.written["num_workers"] and start_method() == FORK and not primary.has_context:
            session.facts.remark(FORKED)

    def effects(self) -> Mapping[str, Effect]:
        """Of the loader's knobs."""
        looks = AppliedKnobs(self.watches)
        return {knob: looks.loader(knob) for knob in self.knobs if self.session.knobs.wants(knob)}
