"""Data that another library gives to a framework without loaders of its own: PyTorch's loaders and tf.data to JAX.

The adapter of such a library adds a ``Feed`` when it is imported, whoever trains. The framework that trains says when
steps end (``stepped``). Of several libraries the one that has given the newest batch feeds the step: a loader may read
another one's data. Its batches then count as waits only: how many samples a step has the framework knows by itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import FrameType
from typing import Any, Protocol

from .applied import Effect
from .sources import Reader, TrainingSources

FED = ("jax",)
"""Frameworks without loaders of their own."""


class Feed(Protocol):
    """One library's watch on its loaders. ``name``: what feeds, for people; ``knobs``: those that it turns."""

    name: str
    knobs: tuple[str, ...]

    @property
    def sources(self) -> TrainingSources[Any]:
        """Its loaders, and which of them trains."""
        ...

    def gradient_ran(self) -> None:
        """A step was taken on what was fetched since the last one."""
        self.sources.gradient_ran()

    def ready(self) -> float | None:
        """Samples that lie ready for the loop; None where that can't be seen."""
        return None

    def at_work(self, computing: float) -> float:
        """Samples that are being made at once by what rests meanwhile, as ``TurnGiver.at_work`` has it; asked once a
        block. ``computing``: as ``OwnThreads.share`` takes it.
        """
        return 0.0

    @property
    def begins_as_taken(self) -> bool:
        """As ``TurnGiver.begins_as_taken``."""
        return False

    @property
    def capacity(self) -> int:
        """Batches that can lie ready."""
        return 0

    def activity(self) -> int:
        """A number that changes with whatever a steady window must not hold, such as another loader that trains."""
        return self.sources.changes_of_primary

    def written_size(self) -> int | None:
        """Samples in the batches that it gives, as the script wrote it; None where that isn't known."""
        primary = self.sources.primary
        return (primary.usual_size or None) if primary is not None else None

    def observe(self) -> None:
        """Facts, and evidence of its knobs but the batch size, where it feeds the steps."""

    def effects(self) -> Mapping[str, Effect]:
        """What became of its knobs, for ``autotune run``."""
        return {}


class Putting(Protocol):
    """The framework's part where batches are put on the device before the loop asks for them.

    ``reached``: training calls that were seen to be given what was put.
    """

    reached: int

    def why_not(self, frame: FrameType) -> str:
        """Why the batches of an iteration that this frame of the script's begins can't be; "" where they can."""
        ...

    def put(self, element: Any) -> Any:
        """A batch, on the device. In any thread."""
        ...


class Feeds(Reader):
    """Of one trial. ``name``: the framework that trains on them, "" while none is seen to.

    ``lead``: tells how long what computes had nothing to do, where it may be behind the script. ``putting``: puts
    batches on the device; None where no framework does.
    """

    def __init__(self, trained_by: str) -> None:
        self.name = trained_by if trained_by in FED else ""
        self.all: list[Feed] = []
        self.lead = Reader()
        self.putting: Putting | None = None
        self._feeding: Feed | None = None

    @property
    def is_there(self) -> bool:  # type: ignore[override]  # it may come
        """Whether a framework without loaders of its own trains."""
        return bool(self.name)

    def fetch_begins(self) -> None:
        """A batch is asked for, which is no iteration's first."""
        self.lead.fetch_begins()

    def idle_s(self, wait_s: float) -> float:
        """Seconds of the wait in which the device had nothing to do."""
        return self.lead.idle_s(wait_s)

    def add(self, feed: Feed) -> None:
        """A library with loaders was imported."""
        self.all.append(feed)

    @property
    def feeding(self) -> Feed | None:
        """What gave the newest batch before most steps, or is drained; None before the first one."""
        return self._feeding or next((feed for feed in self.all if feed.sources.primary is not None), None)

    def stepped(self, name: str) -> None:
        """A step of such a framework has ended."""
        self.name = name
        fetched = [feed for feed in self.all if feed.sources.has_fetched]
        newest = max(fetched, key=lambda feed: feed.sources.newest_s, default=None)
        for feed in fetched:
            if feed is newest:
                feed.gradient_ran()
            else:
                feed.sources.forget_gap()
        if newest is not None and (self._feeding is None or _steps_fed(newest) > _steps_fed(self._feeding)):
            self._feeding = newest


def _steps_fed(feed: Feed) -> int:
    return feed.sources.primary.training_gaps if feed.sources.primary is not None else 0
