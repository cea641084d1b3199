"""What a rotation says of each config that took turns in one process: its gain by neighbouring turns. Pure.

A screening means: the configs share a process, so that what one leaves behind may meet the next one. It ranks, and is
never a proof's figure.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tuner.analysis.ranks import have_ranks, united
from tuner.analysis.resources import ResourceSample, lost_share
from tuner.analysis.stats import Interval, student_t_quantile
from tuner.analysis.turns import DISTURBED, Turn, calm_pairs, gain_interval, log_ratio, together
from tuner.child.counts import EpochUse
from tuner.child.records import (
    Block,
    DisturbedTurn,
    Facts,
    Failure,
    LeftRotation,
    LoaderStarted,
    Phase,
    RankEnded,
    Record,
    ScriptException,
    SwitchedTo,
    WindowEnd,
)
from tuner.child.rounds import Noise, are_fed_beside, counts_of, weights_around
from tuner.child.wire import Entry
from tuner.model import BASELINE, Config, Ratio, Rotated

ENDED = "the process ended while it had its turn"
TOO_FEW = "it had too few turns to tell"
FEWEST_CALM = 2
"""Of a config's pairs, of which there are three: with so many the disturbed ones are left out. Of two the interval is
wide, and shuts nothing out unless they are as one."""
_OF_VALUES = re.compile(r"\bnan\b|\binf(s|inity)?\b|finite|diverg|^AssertionError|^FloatingPointError", re.IGNORECASE)
"""How scripts and libraries tell of numbers that aren't finite."""
Pair = tuple[Turn, Turn]


@dataclass
class _Member:
    """One config of a rotation: its turns (``firsts``: those that warm up) and pairs of turns, and why it left;
    ``behind``: for nothing but its rate.
    """

    firsts: list[Turn] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)
    pairs: Sequence[Pair] = ()
    left: str = ""
    behind: bool = False


def rotation_of(entries: Sequence[Entry], samples: Sequence[ResourceSample]) -> tuple[Rotated, ...]:
    """Each config's gain over the script as written, in the order of their first turns; empty without a rotation.

    Each turn is held against the two turns of the script as written around it, so that what drifts meets both sides
    alike. A process that ended in a config's turn is told as that config's fault. One that left because it was far
    behind has a gain like the others, by the turns that it had.
    """
    culprits = _culprits(entries)
    entries = united(entries)
    switches = {entry.record.turn: entry.record for entry in entries if isinstance(entry.record, SwitchedTo)}
    members: dict[Config, _Member] = {Config(each.config): _Member() for each in switches.values()}
    for entry in entries:
        if isinstance(entry.record, LeftRotation):
            member = members.setdefault(Config(entry.record.config), _Member())
            member.behind = entry.record.behind
            member.left = "" if member.behind else entry.record.reason
    for turn in _turns(entries, samples):
        switch = switches.get(turn.number)
        if switch is not None:
            member = members[Config(switch.config)]
            (member.firsts if switch.warm_up else member.turns).append(turn)
    for culprit in culprits:
        members[culprit].left = members[culprit].left or ENDED
    written = _Written(
        [number for number, switch in switches.items() if not switch.config],
        {turn.number: turn for turn in members.pop(BASELINE, _Member()).turns},
    )
    for member in members.values():
        member.pairs = calm_pairs(list(written.pairs(member.turns)), FEWEST_CALM)
        member.pairs = written.calm(member.pairs) if member.behind else member.pairs
    noise = written.noise(member.pairs for member in members.values())
    gains = (_behind_interval(of, written, noise) if of.behind else gain_interval(of.pairs) for of in members.values())
    slower = _slower_by_starts(entries, switches)
    blocks = (entry.record for entry in entries if isinstance(entry.record, Block))
    hidden = not _loads(entries) and are_fed_beside(blocks)
    return tuple(
        replace(_rotated(config, member, gain, slower(BASELINE) / slower(config)), without_wait=hidden)
        for (config, member), gain in zip(members.items(), gains, strict=True)
    )


def rotates(entries: Iterable[Entry]) -> bool:
    """Whether configs took turns in the process."""
    return any(isinstance(entry.record, SwitchedTo) for entry in entries)


def of_the_script_as_written(entries: Sequence[Entry]) -> Sequence[Entry]:
    """The records without the blocks of other configs' turns, nor those that warm up or held something else; all,
    without a rotation.
    """
    own = {e.record.turn for e in entries if isinstance(e.record, SwitchedTo) and not e.record.config}
    own -= {entry.record.turn for entry in entries if isinstance(entry.record, DisturbedTurn)}
    if not rotates(entries):
        return entries
    return [
        entry for entry in entries
        if not isinstance(entry.record, Block) or entry.record.phase is not Phase.WINDOW or entry.record.turn in own
    ]  # fmt: skip


@dataclass(frozen=True)
class _Written:
    """The script as written in a rotation: the ``numbers`` of all its turns, and ``turns``, those with a figure."""

    numbers: Sequence[int]
    turns: Mapping[int, Turn]

    def pairs(self, turns: Iterable[Turn]) -> Iterator[Pair]:
        """Each turn with the two of the script as written around it, which count as one.

        One may be missing. One that others disturbed would spoil the turns on both its sides: the calm one stands
        alone. However many there are, and however near, in all they count as much as in every other pair: what the
        machine was during one pair would else count for more on one side of the ratio of all.
        """
        for turn in turns:
            weights = weights_around(turn.number, self.numbers)
            around = {each: weight for each, weight in weights.items() if each in self.turns}
            around = {each: of for each, of in around.items() if self.turns[each].lost <= DISTURBED} or around
            whole = sum(around.values())
            if around:
                yield turn, together([_weighted(self.turns[each], of / whole) for each, of in around.items()])

    @property
    def most_lost(self) -> float:
        """A turn of which others had a larger share says nothing; on a machine that is hardly ever calm all do."""
        calm = sum(turn.lost <= DISTURBED for turn in self.turns.values())
        return DISTURBED if 2 * calm >= len(self.turns) else math.inf

    def calm(self, pairs: Iterable[Pair]) -> list[Pair]:
        """The pairs that say something."""
        return [pair for pair in pairs if max(turn.lost for turn in pair) <= self.most_lost]

    def noise(self, pairs: Iterable[Sequence[Pair]]) -> Noise:
        """By all turns that say something; ``pairs`` are each config's."""
        turns = [turn for turn in self.turns.values() if turn.lost <= self.most_lost and turn.amount > 0]
        rates = [math.log(turn.amount / turn.seconds) for turn in turns]
        return Noise.of(rates, [list(map(log_ratio, self.calm(of))) for of in pairs])


def _rotated(config: Config, member: _Member, found: Interval | None, factor: float) -> Rotated:
    """``factor``: what the ratio of the turns is multiplied by."""
    if found is None or member.left:
        return Rotated(config, None, len(member.pairs), member.left or TOO_FEW)
    ends = (found.low, found.estimate, found.high)
    low, estimate, high = (factor * math.exp(max(-700.0, min(end, 700.0))) for end in ends)
    return Rotated(config, Ratio(estimate, low, high), len(member.pairs))


def _slower_by_starts(entries: Sequence[Entry], switches: Mapping[int, SwitchedTo]) -> Callable[[Config], float]:
    """Config → by what factor the starts of its epochs make it slower than its turns were; 1 where that isn't known.

    Turns are too few for that to show in each. A loader of its own is started once in a rotation, in a turn that isn't
    measured; in a trial with each epoch, unless its workers last. The batches that come without waiting right after a
    start are set off against it: the first of each worker.
    """
    if not _loads(entries):
        return lambda config: 1.0
    records = [entry.record for entry in entries]
    epochs = [record.epoch for record in records if isinstance(record, Facts) and record.epoch is not None]
    started = {Config(each.config): each for each in records if isinstance(each, LoaderStarted)}
    blocks: dict[Config, list[Block]] = {}
    for record in records:
        if isinstance(record, Block) and record.phase is Phase.WINDOW and not record.flagged:
            switch = switches.get(record.turn)
            if switch is not None and not switch.warm_up:
                blocks.setdefault(Config(switch.config), []).append(record)

    def factor(config: Config) -> float:
        own, epoch = blocks.get(config, []), epochs[-1] if epochs else None
        seconds, samples = sum(block.seconds for block in own), sum(block.samples for block in own)
        if epoch is None or epoch.samples <= 0 or seconds <= 0:
            return 1.0
        of = started.get(config)
        start_s, workers = (_start_s(epoch), epoch.workers) if of is None else (of.seconds * of.respawns, of.workers)
        waited_s = sum(block.wait_s - block.start_s for block in own) / max(1, sum(block.steps for block in own))
        excess_s = max(0.0, start_s - max(1, workers) * max(0.0, waited_s))
        return 1 + excess_s * epoch.begun(samples) / seconds

    return factor


def _start_s(epoch: EpochUse) -> float:
    """Seconds until the first batch of an epoch of the script as written, where a loader starts workers for it."""
    if not epoch.workers:
        return 0.0
    return epoch.later_s if epoch.later else epoch.first_s if epoch.respawns else 0.0


def _behind_interval(member: _Member, written: _Written, noise: Noise) -> Interval | None:
    """The logarithm of the gain of a config that left early; None where others disturbed all the turns that it had.

    It had too few for an interval of its own: how wide it is is told by the noise of all turns. Its first turn is no
    measurement, since kernels were made in it; but the config is as fast as that at least.
    """
    pairs = member.pairs
    if not pairs:
        return None
    estimate = log_ratio((together([own for own, _ in pairs]), together([other for _, other in pairs])))
    half = student_t_quantile(0.975, noise.degrees) * math.sqrt(noise.variance / len(pairs))
    firsts = (log_ratio(pair) for pair in written.pairs(member.firsts) if min(turn.amount for turn in pair) > 0)
    return Interval(estimate, estimate - half, max([estimate + half, *firsts]))


def _weighted(turn: Turn, weight: float) -> Turn:
    return turn._replace(amount=turn.amount * weight, seconds=turn.seconds * weight)


def _turns(entries: Sequence[Entry], samples: Sequence[ResourceSample]) -> Iterator[Turn]:
    """The turns of the last window, of all configs, with what was counted in each; none that held something else."""
    timed = [(entry.t, entry.record) for entry in entries if isinstance(entry.record, Block)]
    begins = max((at for at, (_, block) in enumerate(timed) if block.phase is Phase.WARMUP), default=-1) + 1
    disturbed = {entry.record.turn for entry in entries if isinstance(entry.record, DisturbedTurn)}
    window = [
        (t, block) for t, block in timed[begins:]
        if block.turn and block.turn not in disturbed and not block.flagged and block.seconds > 0
    ]  # fmt: skip
    for number, (amount, seconds) in counts_of((block for _, block in window), loads=_loads(entries)).items():
        of = [(t, block) for t, block in window if block.turn == number]
        if seconds > 0:
            yield Turn(number, amount, seconds, lost_share(samples, of[0][0] - of[0][1].seconds, of[-1][0]))


def _is_own_doing(record: Record) -> bool:
    """Whether a rank ended the trial by it, on purpose: others that miss it then fail."""
    return isinstance(record, Failure) or (isinstance(record, WindowEnd) and record.complete)


def _loads(entries: Iterable[Entry]) -> bool:
    """Whether configs have loaders of their own."""
    return any(isinstance(entry.record, SwitchedTo) and entry.record.loads for entry in entries)


def _culprits(entries: Sequence[Entry]) -> list[Config]:
    """The config in whose turn an error ended the script, or something its process; none where it was nobody's doing:
    the script may come to its own end, or to that of its time.

    An error over numbers that aren't finite, before a block of the turn was measured, may have been the doing of the
    one before: what the last step of a config does to the weights shows in the next turn only. Of several ranks any
    may end so; those that end the trial themselves say why, and others may miss them.
    """
    records = [entry.record for entry in entries]
    if have_ranks(entries) and any(map(_is_own_doing, records)):
        return []
    ends = [each for each in records if isinstance(each, (WindowEnd, ScriptException))]
    of_values = any(isinstance(end, ScriptException) and _OF_VALUES.search(f"{end.type}: {end.text}") for end in ends)
    failed = any(isinstance(each, ScriptException) or (isinstance(each, RankEnded) and each.status) for each in records)
    if ends and not failed:
        return []
    switches = [entry.record for entry in entries if isinstance(entry.record, SwitchedTo)]
    last = switches[-1].turn if switches else 0
    measured = any(isinstance(entry.record, Block) and entry.record.turn == last for entry in entries)
    blamed = switches[-2:] if of_values and not measured else switches[-1:]
    return [config for config in dict.fromkeys(Config(each.config) for each in blamed) if config]
