"""What of a window's blocks a loop can keep up: without what lay ready before, with what each epoch begins with. Pure.

Blocks are the child's, as they were recorded; see ``tuner.child.records.Block``. Seconds and samples.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, stdev

from tuner.child.counts import EpochUse
from tuner.child.records import Block

AT_ONCE = 0.005
"""A loop doesn't wait for its loader where it does so for no more than that share of its time."""
CHARGED = 10.0
"""By turns, what queues grew or shrank by counts as far as that is so many times of what the loop took, times the share
of its wait. Where a wait of 2% had it count in full, and a shorter one not at all, a loop whose workers sleep for 0.4 s
was told 1.39 or 0.51 of its rate, and scattered by 30% from trial to trial for 12% (tests/benchmarks/held.py).
"""

MIN_AGREEING, SURE = 3, 2.0
"""So many blocks at least, whose mean is so many standard errors away from 0, tell what a queue does in others."""
COMES_NO_MORE = 2.0
"""What was set apart once, and not again while so many times as long was trained as before it, is no validation: a
first rollout that isn't known for one yet, or a teacher that is put into ``eval()`` once it has been trained.
"""


def sustained_amounts(blocks: Sequence[Block]) -> list[float]:
    """The samples of each block that its loader made in it, where the window lived on what lay ready; else as counted.

    A queue that a slow start has filled feeds the loop faster than the loader can: what the loader made is what the
    loop took plus what the queue grew by. Where the queue grew, the loop was the slower side, and what it took counts.
    Blocks whose queue can't be compared (an iteration began, or an epoch came to its end) follow the others.

    By turns the queue grows between two blocks, by what was under way when the trial was held: of a loop that waits for
    its loader, what that made in the blocks counts, whether it was more or less than the loop took, and of one that
    hardly waits a part of the difference (``CHARGED``). Blocks whose queue can't be compared follow the others where
    these agree: the few of short epochs differ by a batch at random. What an epoch begins with is no such wait.

    Otherwise the window lived on its queue only if that was longer at first than ever in the last third: a queue comes
    and goes by as many batches as there are workers, and taking off what it lacks at one moment would make rates too
    low.
    """
    known = [block for block in blocks if _change(block) is not None]
    grown, taken = sum(_change(block) or 0.0 for block in known), sum(block.samples for block in known)
    if any(block.turn for block in blocks):
        share = _charged_share(blocks, known)
        return _made(blocks, max(0.0, 1 + share * grown / taken) if taken > 0 and _agree(known) else 1.0, share)
    last = [block.ready_after or 0.0 for block in known[-math.ceil(len(known) / 3) :]]
    if not known or taken <= 0 or grown >= 0 or (known[0].ready_before or 0.0) <= max(last):
        return [block.samples for block in blocks]
    return _made(blocks, max(0.0, 1 + grown / taken))


def _charged_share(blocks: Sequence[Block], known: Sequence[Block]) -> float:
    """As how much of what queues grew or shrank by that counts: between 0 and 1, without a jump."""
    seconds, changed = sum(block.seconds for block in blocks), sum(abs(_change(block) or 0.0) for block in known)
    waited = sum(block.wait_s - block.start_s for block in blocks) / seconds if seconds > 0 else 0.0
    most = CHARGED * max(0.0, waited - AT_ONCE) * sum(block.samples for block in known)
    return min(1.0, most / changed) if changed > 0 else 1.0


def _agree(known: Sequence[Block]) -> bool:
    """Whether queues grew, or shrank, by more than blocks differ in that by chance."""
    changes = [_change(block) or 0.0 for block in known]
    if len(changes) < MIN_AGREEING:
        return False
    return abs(fmean(changes)) > SURE * stdev(changes) / math.sqrt(len(changes))


def _made(blocks: Sequence[Block], kept: float, share: float = 1.0) -> list[float]:
    """The samples that the loader made in each block; ``kept``: their share of what the loop took, where one can't
    tell. Of what it made more or less than the loop took only that ``share`` counts.
    """
    amounts = []
    for block in blocks:
        change = _change(block)
        amounts.append(block.samples * kept if change is None else max(0.0, block.samples + share * change))
    return amounts


def _change(block: Block) -> float | None:
    """What the queue grew by in the block; None where that can't be known."""
    if block.ready_before is None or block.ready_after is None or block.starts:
        return None
    return block.ready_after - block.ready_before


def epoch_starts_s(blocks: Sequence[Block], epoch: EpochUse | None) -> float:
    """The seconds that the window lacks, or has too much, of what its share of an epoch costs to begin.

    An epoch that is longer than the window has its beginning outside of it, or by chance within. One that the script
    breaks off is as long as what it takes of it: where it fetches ``next(iter(loader))``, a batch. What a beginning
    takes is known from later ones that were seen, else from the first one where each starts its workers anew. The
    batches that came without waiting right after it are set off against it: the first of each worker.

    ``epoch`` is as one trial has seen it. A process that lives on through others, such as the script as written between
    their turns, comes to beginnings that this one was too short for: then those in ``blocks`` tell it.
    """
    if epoch is None or epoch.samples <= 0:
        return 0.0
    samples, seen = sum(block.samples for block in blocks), sum(block.starts for block in blocks)
    if epoch.later:
        start_s = epoch.later_s
    elif seen:
        start_s = sum(block.start_s for block in blocks) / seen
    elif epoch.respawns:
        start_s = epoch.first_s
    else:
        return 0.0
    batches = samples / epoch.samples * epoch.batches
    waited_s = sum(block.wait_s - block.start_s for block in blocks) / batches if batches else 0.0
    excess_s = max(0.0, start_s - max(1, epoch.workers) * max(0.0, waited_s))
    return max((epoch.begun(samples) - seen) * excess_s, -sum(block.start_s for block in blocks))


def validation_share(blocks: Sequence[Block]) -> float | None:
    """The share of the time that validation takes, by whole rounds of training and validation; None where none is seen.

    ``blocks`` are all of the trial, in their order. The first round has the warm-up: it counts if there is no other,
    and one may yet come.
    """
    ends = [
        place for place, block in enumerate(blocks, 1)
        if block.flagged and (place == len(blocks) or not blocks[place].flagged)
    ]  # fmt: skip
    if not ends:
        return None
    before, after = (sum(b.seconds for b in part if not b.flagged) for part in (blocks[: ends[0]], blocks[ends[0] :]))
    if len(ends) == 1 and after > COMES_NO_MORE * before:
        return None
    rounds = blocks[ends[0] if len(ends) > 1 else 0 : ends[-1]]
    return sum(block.seconds for block in rounds if block.flagged) / sum(block.seconds for block in rounds)
