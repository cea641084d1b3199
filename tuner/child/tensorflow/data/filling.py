"""The first pass over the data fills a cache, and gains nothing: when it is over, and how that is told."""

from __future__ import annotations

from collections.abc import Callable

from ...session import Session
from .batches import BATCHERS
from .caches import Place

FILLS = "the first pass over the data fills it and gains nothing, later ones read it"
STILL_FILLING = "the trial ended before its first pass over the data: what a filled cache gains isn't in its rate"

# Behind these a pass has as many samples as its cache has elements, or fewer, however they are put together.
_KEEPING = (
    "map", "filter", "shuffle", "repeat", "prefetch", "with_options", "enumerate", "skip", "ignore_errors",
    "assert_cardinality",
)  # fmt: skip
_TAKING_APART = frozenset({"unbatch", "flat_map", "interleave"})


class Filling:
    """Whether the cache of a trial is full. ``trained`` gives the samples that were trained on.

    It is full once as many samples were trained on as a pass has, but for a last batch that may be short: what is
    fetched ahead is ahead of that. Where nobody knows how many a pass has it never counts as filling.
    """

    def __init__(self, session: Session, trained: Callable[[], float]) -> None:
        self._session = session
        self._trained = trained
        self._elements = 0
        self._in_batches: bool | None = None

    def begins(self, place: Place) -> None:
        """A dataset that trains has a cache there from now on. The first one counts."""
        if not self._elements:
            self._elements, self._in_batches = place.elements, _in_batches(place)

    @property
    def samples(self) -> int:
        """Those of a pass, or a few more; 0 where there is no cache, or that isn't known."""
        facts = self._session.facts
        size, batches = facts.as_written.get("batch_size"), facts.cardinality or 0
        if not self._elements or type(size) is not int:
            return 0
        if self._in_batches is None:
            return max(0, batches) * size
        return self._elements * (size if self._in_batches else 1)

    @property
    def is_over(self) -> bool:
        """Whether what is trained on comes out of the cache by now."""
        samples, size = self.samples, self._session.facts.as_written.get("batch_size")
        # The last batch of a pass may hold as little as one sample.
        return type(size) is int and samples > 0 and self._trained() > samples - size

    @property
    def is_under_way(self) -> bool:
        """Whether the cache is known not to be full yet."""
        return self.samples > 0 and not self.is_over

    def told(self) -> str:
        """For people: from when on a cache gains, which no rate of a few seconds says."""
        if not self.samples:
            return FILLS
        return f"{STILL_FILLING if self.is_under_way else FILLS} (about {self.samples:,} samples in a pass)"


def _in_batches(place: Place) -> bool | None:
    """Whether the elements that are kept are batches, or else samples; None where neither is known."""
    above = [link.method for link in (*place.reordering, *place.above)]
    kept = [link.method for link in place.prefix.all()]
    batchers = sum(method in BATCHERS for method in kept)
    if batchers > 1 or (batchers and not _TAKING_APART.isdisjoint(kept)):
        return None
    if any(method not in (*_KEEPING, *(() if batchers else BATCHERS)) for method in above):
        return None
    return batchers == 1
