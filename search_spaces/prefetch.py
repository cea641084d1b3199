"""How many batches have to lie ready so that slow ones among them keep no loop waiting."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from search_spaces import batches
from tuner.knowledge import Knowledge
from tuner.model import Value
from tuner.space import Known

MOST_AHEAD = 64
"""Batches that each worker, or the one thread of a pipeline, keeps ready at most: each of them takes memory."""
LEFT = 0.01
"""A share of its time that the loop may wait beyond what no number of batches spares it."""
FEWEST = 50
"""Fewer batches than that show no spread."""
_FEW = 0.05
_MOST_OF_IT = 0.8
_PASSES = 4
_SLOW = 0.99


@dataclass(frozen=True)
class Ahead:
    """What is to lie ready: ``depth`` batches for each of ``workers``. ``usual_s``, ``slow_s``: the median of what was
    seen, and the slowest in a hundred; ``loop_s``: what a batch takes the loop beside its wait. ``unhidden``:
    what was seen is what workers left of it.
    """

    depth: int
    workers: int
    usual_s: float
    slow_s: float
    loop_s: float
    unhidden: bool = False

    @property
    def why(self) -> str:
        """For people."""
        of = f" for each of {self.workers} workers" if self.workers > 1 else ""
        takes = "keep the loop waiting for" if self.unhidden else "take"
        spread = f"batches {takes} {_text(self.usual_s)}, one in a hundred {_text(self.slow_s)} or more"
        return f"{spread}: {self.depth} ahead{of} hide that from steps of {_text(self.loop_s)}"


def of_workers(known: Known) -> Ahead | None:
    """For a DataLoader's workers; None where its batches don't differ enough for that to matter, or weren't seen.

    Of a loop that makes its batches itself each wait is what a batch takes: with so many workers as would keep up with
    the loop. Of workers nothing but what they don't hide is seen: where a few batches make up nearly all of the wait
    these are slow ones, and no sign of too few workers.
    """
    knowledge, waits = known.knowledge, known.knowledge.batch_waits
    loop_s, workers = knowledge.loop_s, batches.count(knowledge.as_written, "num_workers", 0)
    if not loop_s or len(waits) < FEWEST:
        return None
    if not workers:
        keeping_up = max(1, min(known.cores, math.ceil(statistics.fmean(waits) / loop_s)))
        return _ahead(waits, loop_s, keeping_up)
    return _beyond(knowledge, loop_s, workers)


def of_pipeline(known: Known) -> Ahead | None:
    """The same for the one thread that fills the prefetch of a pipeline, where the script has none."""
    knowledge, waits = known.knowledge, known.knowledge.batch_waits
    if not knowledge.loop_s or len(waits) < FEWEST or knowledge.as_written.get("prefetch") != 0:
        return None
    return _ahead(waits, knowledge.loop_s, 1)


def factors(known: Known) -> Sequence[Value]:
    """Batches that each worker of a DataLoader keeps ready: its own default, a few more, and what hides the spread."""
    found = of_workers(known)
    return [2, 4, 8] if found is None else sorted({2, 4, max(2, found.depth)})


def factors_told(known: Known) -> str:
    """Why there is a value that no other script would have, for people; "" where there is none."""
    found = of_workers(known)
    return "" if found is None or found.depth <= 4 else found.why


def depths_told(known: Known) -> str:
    """The same of a pipeline's prefetch."""
    found = of_pipeline(known)
    return "" if found is None or found.depth in (1, 4) else found.why


def waiting(times: Sequence[float], loop_s: float, workers: int, depth: int) -> float:
    """The share of its time that a loop waits which takes each batch for ``loop_s`` seconds.

    Workers make the batches in turn, which take them ``times``; each is asked for when as many as ``depth`` for each of
    them are on their way, and given in its turn. The batches come again and again, so that how it begins counts little.
    """
    free, taken, waited = [0.0] * workers, list[float](), 0.0
    for number, seconds in enumerate([*times] * _PASSES):
        asked = taken[number - workers * depth] if number >= workers * depth else 0.0
        worker = number % workers
        free[worker] = max(free[worker], asked) + seconds
        due = taken[-1] + loop_s if taken else free[worker]
        taken.append(max(due, free[worker]))
        waited += taken[-1] - due
    return waited / taken[-1] if taken and taken[-1] > 0 else 0.0


def _ahead(times: Sequence[float], loop_s: float, workers: int) -> Ahead:
    """The fewest batches with which the loop waits hardly longer than with any number of them."""
    most = waiting(times, loop_s, workers, MOST_AHEAD) + LEFT
    low, high = 0, MOST_AHEAD
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if waiting(times, loop_s, workers, middle) <= most else (middle, high)
    return _told(high, workers, times, loop_s)


def _beyond(knowledge: Knowledge, loop_s: float, workers: int) -> Ahead | None:
    """By the waits that workers leave: what has to lie ready beside that, where these are of slow batches."""
    waits = sorted(knowledge.batch_waits, reverse=True)
    total, few = sum(waits), sum(waits[: math.ceil(_FEW * len(waits))])
    if total < LEFT * len(waits) * loop_s or few < _MOST_OF_IT * total:
        return None
    hidden_s = next((s for s in reversed(waits) if _beside(waits, s) <= LEFT * len(waits) * loop_s), waits[0])
    own = batches.count(knowledge.as_written, "prefetch_factor", 2)
    depth = min(MOST_AHEAD, own + math.ceil(hidden_s / loop_s / workers))
    return _told(depth, workers, knowledge.batch_waits, loop_s, unhidden=True)


def _beside(waits: Sequence[float], hidden_s: float) -> float:
    return sum(max(0.0, seconds - hidden_s) for seconds in waits)


def _told(depth: int, workers: int, times: Sequence[float], loop_s: float, *, unhidden: bool = False) -> Ahead:
    ordered = sorted(times)
    slow_s = ordered[min(len(ordered) - 1, math.ceil(_SLOW * len(ordered)))]
    return Ahead(depth, workers, statistics.median(times), slow_s, loop_s, unhidden)


def _text(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"
