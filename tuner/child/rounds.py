"""The rounds of a rotation: in which order configs have their turns, and which are so far behind that they leave.

Pure, and known to both sides: the child goes by it, and the parent foresees its length and derives gains by it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TypeVar

from .records import Block

ROUNDS = 3
"""A config that stays has so many measured turns."""
GROUP = 3
"""So many configs at most have their turns between two of the script as written."""
BEHIND = 1.2
"""A config leaves only where the best one is faster by more than that: by so much a rotation may be off in itself."""
SURE = 3.0
"""And by so many standard errors of what lies between them: see tests/benchmarks/rotation.py for what that costs."""
MOST_SHUFFLED = 64
"""Elements in the buffer of a shuffle, in the pipelines of tf.data that begin anew with each turn."""
PRIOR_NOISE, PRIOR_DEGREES = 0.07, 4.0
"""How far a turn's ratio is off (standard deviation of its logarithm) before a rotation's own turns say more, and for
how many degrees of freedom of theirs that counts."""

Member = TypeVar("Member")


@dataclass(frozen=True)
class Noise:
    """The variance of the logarithm of a turn's ratio to the turns of the script as written around it, and by how many
    degrees of freedom it is known.
    """

    variance: float
    degrees: float

    @classmethod
    def of(cls, written: Sequence[float], gains: Iterable[Sequence[float]]) -> Noise:
        """What the prior says together with a rotation's own turns: logarithms of the rates of the script as written,
        in their order, and of each config's ratios.
        """
        # The difference of two turns has twice a turn's variance, a ratio to the mean of two one and a half times.
        squares, degrees = PRIOR_DEGREES * PRIOR_NOISE**2, PRIOR_DEGREES
        for one, other in itertools.pairwise(written):
            squares += 0.75 * (one - other) ** 2
            degrees += 1
        for own in gains:
            squares += sum((each - fmean(own)) ** 2 for each in own)
            degrees += max(0, len(own) - 1)
        return cls(squares / degrees, degrees)


def counts_of(blocks: Iterable[Block], *, loads: bool = False) -> dict[int, tuple[float, float]]:
    """What was counted in each turn of a window, samples or else steps, and in how many seconds, by the turn's number.

    Where batches are made beside the loop, what it waited for them counts for nobody: others' turns filled the queue.
    Where configs have loaders of their own (``loads``) it counts in full, and what lay ready before counts for nobody.
    What an epoch's start took there beyond a usual wait is left out: few turns hold one, and all epochs begin so.
    """
    blocks = list(blocks)
    counted, beside = any(block.samples for block in blocks), are_fed_beside(blocks)
    found: dict[int, tuple[float, float]] = {}
    for number in dict.fromkeys(block.turn for block in blocks):
        own = [block for block in blocks if block.turn == number]
        seconds = sum(block.seconds for block in own)
        amount = sum(block.samples if counted else float(block.steps) for block in own)
        if loads:
            seconds -= sum(map(_start_excess_s, own))
            amount += _grown(own) if counted else 0.0
        elif beside:
            seconds -= sum(block.wait_s for block in own)
        found[number] = max(0.0, amount), seconds
    return found


def are_fed_beside(blocks: Iterable[Block]) -> bool:
    """Whether batches are made beside the loop."""
    return any(block.ready_before is not None for block in blocks)


def _grown(blocks: Sequence[Block]) -> float:
    """By how many samples the queue grew, less than 0 where the loop lived on it: with them what the loader made.

    Of a queue that grew by more than a batch, as it does by fits and starts, the loop is the slower side, and what that
    took counts. Where an epoch began nothing is known.
    """
    known = [
        (block.ready_after - block.ready_before, block.samples / max(1, block.steps)) for block in blocks
        if block.ready_after is not None and block.ready_before is not None and not block.starts
    ]  # fmt: skip
    return sum(min(grown, batch) for grown, batch in known)


def _start_excess_s(block: Block) -> float:
    """What the starts of epochs in a block took beyond a usual wait, where workers make the batches."""
    if not block.starts or (block.ready_before is None and block.ready_after is None):
        return 0.0
    usual_s = (block.wait_s - block.start_s) / max(1, block.steps - block.starts)
    return max(0.0, block.start_s - block.starts * usual_s)


def groups(members: Sequence[Member], round_number: int) -> list[list[Member]]:
    """The members in the order of a round (from 0), in groups that differ by one in size at most.

    Every other round goes backwards, and every second one begins with another member: what drifts, and what the config
    before leaves behind, doesn't meet the same one each time.
    """
    begins = round_number // 2 % max(1, len(members))
    turned = [*members[begins:], *members[:begins]][:: -1 if round_number % 2 else 1]
    count = _group_count(len(turned))
    ends = [len(turned) * number // count for number in range(count + 1)] if count else [0]
    return [turned[begin:end] for begin, end in itertools.pairwise(ends)]


def turns_of_round(count: int) -> int:
    """Turns of a round of so many configs, with those of the script as written after each group."""
    return count + _group_count(count)


def turns_of(count: int) -> int:
    """Turns of a rotation of so many configs that all stay: a first one of each, one of the script as written, and the
    rounds.
    """
    return count + 1 + ROUNDS * turns_of_round(count)


def weights_around(number: int, written: Sequence[int]) -> dict[int, float]:
    """Which turns of the script as written a turn is held against, and how much each of them counts, in all 2.

    They are the one before and the one after it; one may be missing. The nearer one counts for more: halfway between
    them by their numbers, at which the machine's drift meets both sides alike.
    """
    before = max((each for each in written if each < number), default=None)
    after = min((each for each in written if each > number), default=None)
    if before is None or after is None:
        return {each: 1.0 for each in (before, after) if each is not None}
    return {before: 2 * (after - number) / (after - before), after: 2 * (number - before) / (after - before)}


def behind(gains: Mapping[Member, Sequence[float]], firsts: Mapping[Member, float], noise: Noise) -> list[Member]:
    """The members that are so far behind the fastest one that they leave, by the logarithms of their ratios so far.

    ``firsts`` are those of first turns: kernels were made in them, so that a config is at least as fast as that, and
    whoever wasn't behind then may have been disturbed since. The script as written, whose own ratio's logarithm is 0,
    may be the fastest one itself.
    """
    best: Sequence[float] = max(gains.values(), key=fmean, default=())
    if not best or fmean(best) < 0:
        best = (0.0,) * ROUNDS

    def lead(own: Sequence[float]) -> float:
        return max(math.log(BEHIND), SURE * math.sqrt(noise.variance * (1 / len(own) + 1 / len(best))))

    known = {member: max(fmean(own), firsts.get(member, -math.inf)) for member, own in gains.items()}
    return [member for member, own in gains.items() if fmean(best) - known[member] > lead(own)]


def _group_count(count: int) -> int:
    return -(-count // GROUP)
