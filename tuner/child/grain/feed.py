"""Grain as what feeds a loop of JAX's: how long it keeps that waiting, and its knobs."""

from __future__ import annotations

from collections.abc import Mapping

from ..applied import Effect
from ..feeds import Feed
from ..records import LoaderUse
from ..resting import THREADS_REST, OwnThreads
from ..sources import TrainingSources
from . import KNOBS, NAME, PUT_AHEAD
from .places import GrainSource
from .watch import GrainWatch, ready

NO_SIZE = (
    "nothing turns the batch of a Grain loader: where the script has an option for its size, bind it, as in"
    " -- --batch-size={batch_size}"
)
NOT_READ = "no Grain loader of the training was read"


class GrainFeed(Feed):
    """Of one trial."""

    name = NAME
    knobs = KNOBS

    def __init__(self, watch: GrainWatch) -> None:
        self.session = watch.session
        self.watch = watch
        self._threads = OwnThreads()

    @property
    def sources(self) -> TrainingSources[GrainSource]:
        """Places where loaders are made, and datasets iterated."""
        return self.watch.sources

    def ready(self) -> float | None:
        """What was made and the loop hasn't fetched, but for what workers have read ahead themselves."""
        primary = self.sources.primary
        iterator = primary.newest() if primary is not None else None
        if primary is None or primary.pipeline is None or iterator is None:
            return None
        return ready(iterator, primary.pipeline, primary.usual_size)

    def at_work(self, computing: float) -> float:
        """What threads of this process read or make at once, where they rest. 0 of workers, of which it isn't seen how
        much they have ready themselves: loops are told 0.94 to 1.06 of their rate, and with longer turns 1.09 to 1.12.
        """
        primary = self.sources.primary
        if primary is None or primary.pipeline is None:
            return 0.0
        live, shape, size = primary.live, primary.pipeline, max(1, primary.usual_size)
        if live.get("num_workers"):
            return 0.0
        threads = int(live.get("read_threads") or 0)
        reads = min(threads, int(live.get("read_buffer") or 0)) * (1 if shape.reads_singles else size)
        # One thread makes what is put ahead, of what it reads itself where no others do.
        made = reads or (size if live.get(PUT_AHEAD) else 0)
        share = self._threads.share(max(1, reads and threads), computing) if made else 0.0
        return float(made) if share > THREADS_REST else 0.0

    @property
    def begins_as_taken(self) -> bool:
        """What is read and what lies ready are as many together as the buffer holds."""
        live = self.sources.primary.live if self.sources.primary is not None else {}
        return int(live.get("read_buffer") or 0) < 2 * int(live.get("read_threads") or 0)

    @property
    def capacity(self) -> int:
        """Batches that can lie ready, in workers and before them."""
        primary = self.sources.primary
        if primary is None or primary.pipeline is None:
            return 0
        live, shape, size = primary.live, primary.pipeline, max(1, primary.usual_size)
        count = int(live.get("num_workers") or 0)
        read = max(1, count) * int(live.get("read_buffer") or 0) if live.get("read_threads") else 0
        # Grain keeps so many in each worker, and as many of its in the training process.
        made = 2 * count * int(live.get("prefetch_factor") or 0)
        ahead = int(live.get(PUT_AHEAD) or 0)
        return ahead + made // (size if shape.gives_singles else 1) + read // (size if shape.reads_singles else 1)

    def observe(self) -> None:
        """Facts, and evidence of the knobs."""
        facts, primary, knobs = self.session.facts, self.sources.primary, self.session.knobs
        facts.training_loaders = [source.key for source in self.sources.training()]
        facts.loaders = [LoaderUse(source.key, source.fetches, source.made) for source in self.sources]
        facts.left_out["batch_size"] = NO_SIZE
        if primary is None:
            return
        if self.sources.wait_is_hidden:
            facts.hide_wait("another thread fetches it from Grain")
        if self.session.is_as_written:
            facts.batch_waits = self.sources.told_waits()
        facts.as_written.update(primary.written)
        facts.left_out.update(primary.refused)
        for knob in self.knobs:
            if knob not in knobs.requested:
                continue
            if knobs.wants(knob) and knob in primary.refused and knob not in primary.changed:
                knobs.inapplicable(knob, primary.refused[knob])
            else:
                trains = self.sources.training()
                changed = sum(knob in source.changed for source in trains)
                knobs.compare(knob, self._live(primary, knob), sites=len(trains), changed=changed)

    def _live(self, source: GrainSource, knob: str) -> object:
        """What is seen at work: batches are put ahead where steps were given them."""
        putting = self.session.feeds.putting
        is_seen = knob != PUT_AHEAD or (putting is not None and putting.reached > 0)
        return source.live.get(knob) if is_seen else 0

    def effects(self) -> Mapping[str, Effect]:
        """Of its knobs, for ``autotune run``."""
        told: dict[str, Effect] = {}
        for knob in self.knobs:
            if self.session.knobs.wants(knob):
                value = self.session.request.config[knob]
                at = [source for source in self.sources if self._live(source, knob) == value and knob in source.changed]
                refused = (source.refused.get(knob, "") for source in self.sources)
                told[knob] = Effect(len(at), next(filter(None, refused), NOT_READ))
        return told
