"""The first pass over the data fills a cache, and gains nothing: when it is over, and how that is told."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ...clock_limits import FILL_S
from ...records import ProbeSide
from ...session import Session
from .batches import BATCHERS
from .caches import ENDLESS_COUNT, Place
from .recipes import Node

FILLS = "the first pass over the data fills it and gains nothing, later ones read it"
LATER = "its first pass over the data is over before anything is measured, in which the script as written was measured"
EARLIER = "its first pass over the data takes longer than {:.0f} s: the script as written was measured behind its own"
STILL_FILLING = "the trial ended before its first pass over the data: what a filled cache gains isn't in its rate"

LONGEST_FILL_S = 60.0
"""So long it is waited for where the script as written was measured behind its first pass: that took less than half."""
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

    A cache may be the script's own. Whether the window lies behind its first pass is decided for the script as written,
    and all other trials do likewise: rates of either side can't be held against each other. So one ends with its first
    pass, or waits until that is over.
    """

    def __init__(self, session: Session, trained: Callable[[], float]) -> None:
        self._session = session
        self._trained = trained
        self._elements = 0
        self._in_batches: bool | None = None
        self._is_scripts = False
        self._looked: tuple[float, float] | None = None
        """When it was asked first whether to wait, and the samples that were trained on by then."""
        session.clock.is_filling = lambda: self.is_waited_for
        session.clock.fill_s = lambda: LONGEST_FILL_S if self._was_over else FILL_S
        session.clock.is_past = lambda: self.is_past

    def begins(self, place: Place) -> None:
        """A dataset that trains has a cache there from now on. The first one counts."""
        above = [link.method for link in (*place.reordering, *place.above)]
        self._begins(place.elements, [link.method for link in place.prefix.all()], above)

    def met(self, node: Node) -> None:
        """A dataset trains as the script made it: with a cache of its own in memory, perhaps."""
        above = []
        while node.method != "cache":
            if len(node.inputs) != 1:
                return
            above.append(node.method)
            node = node.inputs[0]
        elements = 0 if node.arguments.get("filename") else int(node.own.cardinality())
        if not self._elements and 0 < elements < ENDLESS_COUNT:
            self._is_scripts = True
            self._begins(elements, [link.method for link in node.all()], above)

    def _begins(self, elements: int, kept: Sequence[str], above: Sequence[str]) -> None:
        if not self._elements:
            self._elements, self._in_batches = elements, _in_batches(kept, above)

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

    @property
    def begins_anew(self) -> bool:
        """Whether a window has to begin anew, since what is trained on comes out of the cache by now."""
        return self.is_over and not self._was_under_way

    @property
    def is_past(self) -> bool:
        """Whether the first pass is over, in which alone the script as written was measured."""
        is_timed = not (self._is_unread or self._session.request.window.until_samples)
        return is_timed and self._was_under_way and self._session.request.knowledge.samples > 0 and self.is_over

    @property
    def is_waited_for(self) -> bool:
        """Whether the window is to wait: for a cache of the script's own only where that is likely to be in time."""
        if self._is_unread or not self.is_under_way or self._was_under_way:
            return False
        return not self._is_scripts or self._was_over or self._is_soon_over()

    @property
    def _is_unread(self) -> bool:
        return self._session.request.probe is ProbeSide.COMPUTE

    def _is_soon_over(self) -> bool:
        now, trained = self._session.clock.now, self._trained()
        if self._looked is None:
            self._looked = now, trained
        since_s, more = now - self._looked[0], trained - self._looked[1]
        return since_s <= 0 or since_s * (self.samples - trained) <= (FILL_S - since_s) * more

    @property
    def _was_under_way(self) -> bool:
        """Whether the trial of the script as written saw nothing but its first pass, with a cache of its own."""
        known = self._session.request.knowledge
        return self._is_scripts and bool(known.framework) and known.samples <= self.samples

    @property
    def _was_over(self) -> bool:
        """Whether the trial of the script as written has got through its first pass, with a cache of its own."""
        known = self._session.request.knowledge
        return self._is_scripts and bool(known.framework) and known.samples > self.samples > 0

    def told(self) -> str:
        """For people: from when on a cache gains, which no rate of a few seconds says."""
        if not self.samples:
            return FILLS
        return f"{STILL_FILLING if self.is_under_way else FILLS} (about {self.samples:,} samples in a pass)"

    def observe(self) -> None:
        """Says of a cache of the script's own that it wasn't full; ends what can't be held against the baseline."""
        self._refuse()
        if self._is_scripts and self.is_under_way:
            self._session.facts.remark(
                f"its data fill a cache in their first pass (about {self.samples:,} samples), and the trial ended"
                " before that was over: rates are those of this pass, and what gains in it may gain nothing later"
            )

    def _refuse(self) -> None:
        session = self._session
        request, clock = session.request, session.clock
        if request.probe is not None or request.rotation or request.window.until_samples:
            return
        if self.is_past and not clock.is_measurable:
            session.fail("unsupported", LATER)
        elif self._was_over and self.is_under_way and clock.is_measurable:
            session.fail("unsupported", EARLIER.format(LONGEST_FILL_S))


def _in_batches(kept: Sequence[str], above: Sequence[str]) -> bool | None:
    """Whether the elements that are kept are batches, or else samples; None where neither is known.

    ``kept``: methods of what makes them, ``above``: of what is made of them.
    """
    batchers = sum(method in BATCHERS for method in kept)
    if batchers > 1 or (batchers and not _TAKING_APART.isdisjoint(kept)):
        return None
    if any(method not in (*_KEEPING, *(() if batchers else BATCHERS)) for method in above):
        return None
    return batchers == 1
