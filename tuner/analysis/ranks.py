"""What several ranks of one trial sent, as the records of one process: their rate, their losses, their evidence. Pure.

Ranks cut their blocks after the same steps (``tuner.child.unison``), though one may have cuts of its own, such as where
it alone validates. So blocks are joined between steps at which all ranks have one.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from tuner.child.records import (
    Block,
    Evidence,
    Facts,
    FirstStep,
    KnobReport,
    Loss,
    Note,
    Phase,
    RankEnded,
    Record,
)
from tuner.child.wire import Entry

LARGE_SKEW = 0.1
"""The share of a step that ranks wait for one of them, from which on people are told."""
SAME_BATCHES = (
    "each of its {0} ranks gets the same batches from its loader: samples/s counts every sample {0} times, and all"
    " train on the same unless each takes a part of it (a DistributedSampler gives each rank its own)"
)
_WORST_FIRST = (Evidence.CONTRADICTED, Evidence.UNVERIFIABLE, Evidence.NOT_APPLICABLE, Evidence.VERIFIED)
Kind = TypeVar("Kind", bound=Record)
_Cell = Sequence[Sequence[Block]]
"""The blocks of each rank between two steps after which all of them have ended one."""


@dataclass
class _Rank:
    """One rank's records, and its blocks, each with the moment at which it ended."""

    entries: list[Entry] = field(default_factory=list)
    blocks: list[tuple[float, Block]] = field(default_factory=list)

    def between(self, after: int, until: int) -> list[Block]:
        return [block for _, block in self.blocks if after < block.at <= until]

    def by_ends(self, ends: Sequence[int]) -> list[list[tuple[float, Block]]]:
        """Its blocks up to each of these numbers of steps, from the one before.

        What was set apart goes with the steps behind it, in which those wait that were through sooner.
        """
        found: list[list[tuple[float, Block]]] = [[] for _ in ends]
        apart: list[tuple[float, Block]] = []
        for t, block in self.blocks:
            apart.append((t, block))
            if not block.flagged:
                place = bisect_left(ends, block.at)
                if place < len(ends):
                    found[place] += apart
                apart = []
        return found

    def all_of(self, kind: type[Kind]) -> list[Kind]:
        return [entry.record for entry in self.entries if isinstance(entry.record, kind)]


def have_ranks(entries: Iterable[Entry]) -> bool:
    """Whether these are the records of several ranks."""
    return any(entry.rank or isinstance(entry.record, RankEnded) for entry in entries)


def united(entries: Sequence[Entry]) -> list[Entry]:
    """As if one process had trained: the records of rank 0, with what the others add. Those of one stay as they are.

    Blocks hold the samples of all ranks, by the time of the slowest; a loss is the mean over the ranks; of a knob the
    worst evidence counts. Steps, and what the script is made of, are as in rank 0.
    """
    if not have_ranks(entries):
        return list(entries)
    ranks = _by_rank(entries)
    blocks, losses = _joined_blocks(ranks), _mean_losses(ranks)
    skew = skew_of(entries)
    remarks = [skew.text] if skew is not None and skew.share >= LARGE_SKEW else []
    remarks += [SAME_BATCHES.format(len(ranks))] if _get_the_same(ranks) else []
    result = []
    for entry in ranks[0].entries:
        record = entry.record
        if isinstance(record, (Block, Loss, Note, RankEnded)):
            continue
        result.append(replace(entry, record=_of_all(record, ranks, remarks)))
    at = ranks[0].entries[0].t if ranks[0].entries else 0.0
    merged = [*result, *blocks, *losses, *(Entry(at, note) for note in _notes(ranks))]
    return sorted(merged, key=lambda entry: entry.t)


def _get_the_same(ranks: Sequence[_Rank]) -> bool:
    """Whether each loader that trains gave the same first batch in all ranks."""
    told = [facts[-1] for rank in ranks if (facts := rank.all_of(Facts))]
    first = [tuple(use.first for use in facts.loaders if use.key in facts.training_loaders) for facts in told]
    return len(ranks) == len(first) > 1 and len({*first}) == 1 and bool(first[0]) and "" not in first[0]


@dataclass(frozen=True)
class Skew:
    """For which rank the others wait, and for what ``share`` of a step more than the first one to come takes."""

    rank: int
    share: float

    @property
    def text(self) -> str:
        """For people."""
        return (
            f"rank {self.rank} comes to its backward {self.share:.0%} of a step later than the first one, which waits:"
            " the slowest rank's data, or its share of the cores, hold up all"
        )


def skew_of(entries: Sequence[Entry]) -> Skew | None:
    """By the blocks of the window; None where they don't tell. What a rank takes within its backward isn't seen."""
    ranks = _by_rank(entries)
    ends = _ends_of_all(ranks)
    window = _window(ranks[0].blocks)
    after, until = (window[0].at - window[0].steps, window[-1].at) if window else (0, 0)
    if len(ranks) < 2 or len([end for end in ends if after < end <= until]) < 2:
        return None
    alone_s, step_s = [], []
    for rank in ranks:
        plain = [block for block in rank.between(after, until) if not block.flagged]
        seconds, steps = sum(block.seconds for block in plain), sum(block.steps for block in plain)
        if not seconds or not steps:
            return None
        alone_s.append(sum(block.alone_s for block in plain) / steps)
        step_s.append(seconds / steps)
    slowest = max(range(len(alone_s)), key=lambda rank: alone_s[rank])
    # One that waits for another's validation has longer steps by it: the shortest are those of training alone.
    return Skew(slowest, (alone_s[slowest] - min(alone_s)) / min(step_s))


def unlike_steps(entries: Sequence[Entry]) -> str:
    """Why no rate can be told though rank 0 was measured, for people; "" where the ranks take the same steps."""
    if not have_ranks(entries):
        return ""
    ranks = _by_rank(entries)
    if len(ranks[0].blocks) < 3 or len(_ends_of_all(ranks)) >= 2:
        return ""
    last = [max((block.at for _, block in rank.blocks), default=0) for rank in ranks]
    taken = ", ".join(f"rank {number} {steps}" for number, steps in enumerate(last))
    return f"its ranks don't take the same steps ({taken} that could be seen): together they can't be measured"


def _by_rank(entries: Iterable[Entry]) -> list[_Rank]:
    """Of every rank that sent anything, and those before it."""
    ranks: list[_Rank] = [_Rank()]
    for entry in entries:
        while len(ranks) <= entry.rank:
            ranks.append(_Rank())
        rank = ranks[entry.rank]
        rank.entries.append(entry)
        if isinstance(entry.record, Block) and is_sound(entry.record):
            rank.blocks.append((entry.t, entry.record))
    return ranks


def is_sound(block: Block) -> bool:
    """Whether a block's figures can be figures: a script of the user's own may write to any descriptor."""
    return 0 < block.seconds < math.inf and 0 <= block.samples < math.inf and block.steps >= 0


def _ends_of_all(ranks: Sequence[_Rank]) -> list[int]:
    """The numbers of steps after which a block of every rank ended.

    What all set apart ends none: those that wait for the last one to be through do so in the steps behind it.
    """
    sets = [{block.at for _, block in rank.blocks if not block.flagged} for rank in ranks]
    return sorted(set.intersection(*sets))


def _window(blocks: Sequence[tuple[float, Block]]) -> list[Block]:
    last = max((i for i, (_, block) in enumerate(blocks) if block.phase is Phase.WARMUP), default=-1)
    return [block for _, block in blocks[last + 1 :]]


def _joined_blocks(ranks: Sequence[_Rank]) -> list[Entry]:
    """A block for all ranks between two steps at which all have ended one; what rank 0 set apart stays by itself."""
    ends = _ends_of_all(ranks)
    timed = [rank.by_ends(ends) for rank in ranks]
    cells = [[[block for _, block in of] for of in pieces] for pieces in zip(*timed, strict=True)]
    slowest = _slowest(cells)
    joined = [Entry(t, block) for t, block in ranks[0].blocks if block.flagged]
    for own, pieces in zip(timed[0], cells, strict=True):
        plain = [(t, block) for t, block in own if not block.flagged]
        if plain:
            joined.append(Entry(plain[-1][0], _joined(pieces, slowest[_stretch(pieces)])))
    return joined


def _stretch(pieces: _Cell) -> tuple[bool, int]:
    """What the blocks between two steps belong to, as rank 0 has it: the warm-up or the window, and the turn."""
    blocks = [block for block in pieces[0] if not block.flagged]
    return any(block.phase is Phase.WARMUP for block in blocks), blocks[-1].turn if blocks else 0


def _slowest(cells: Sequence[_Cell]) -> dict[tuple[bool, int], int]:
    """The rank that took longest in each stretch, by what nobody set anything apart in.

    What a rank takes at a turn's end is seen in its own blocks alone: each turn has a slowest rank of its own.
    """
    taken_s: dict[tuple[bool, int], list[float]] = {}
    for pieces in cells:
        seconds = taken_s.setdefault(_stretch(pieces), [0.0] * len(pieces))
        if not any(block.flagged for of in pieces for block in of):
            for rank, of in enumerate(pieces):
                seconds[rank] += sum(block.seconds for block in of)
    return {stretch: seconds.index(max(seconds)) for stretch, seconds in taken_s.items()}


def _joined(pieces: _Cell, slowest: int) -> Block:
    """One block of what each rank took between two steps, by the time of the one that is ``slowest`` in its turn: of
    ranks that wait for each other now one and now another notices it a little later.

    Where a rank set something apart, such as a validation, those that set less apart waited for it meanwhile: the time
    is that of the one that set the most apart, which waited for none.
    """
    plain = [[block for block in of if not block.flagged] for of in pieces]
    steps = [sum(block.steps for block in of) for of in plain]
    seconds = [sum(block.seconds for block in of) for of in plain]
    apart_s = [sum(block.seconds for block in of if block.flagged) for of in pieces]
    timed_by = apart_s.index(max(apart_s)) if any(apart_s) else slowest
    slowest_s = seconds[timed_by] or max(seconds)
    # A step that one rank set apart is left out of what the others did, too.
    shares = [steps[0] / each if each else 0.0 for each in steps]

    def total(amounts: Iterable[float]) -> float:
        return sum(amount * share for amount, share in zip(amounts, shares, strict=True))

    first, last = [of[0] if of else None for of in plain], [of[-1] if of else None for of in plain]
    waits = [sum(block.wait_s for block in of) for of in plain]
    return Block(
        phase=Phase.WARMUP if any(block.phase is Phase.WARMUP for block in plain[0]) else Phase.WINDOW,
        steps=steps[0],
        samples=total(sum(block.samples for block in of) for of in plain),
        seconds=slowest_s,
        wait_s=min(max(waits), slowest_s),
        ready_before=_sum_known(block.ready_before if block else None for block in first),
        ready_after=_sum_known(block.ready_after if block else None for block in last),
        tokens=total(sum(block.tokens for block in of) for of in plain),
        starts=sum(block.starts for block in plain[0]),
        start_s=min(max(sum(block.start_s for block in of) for of in plain), slowest_s),
        turn=plain[0][-1].turn,
        at=plain[0][-1].at,
        alone_s=max(sum(block.alone_s for block in of) for of in plain),
    )


def _sum_known(amounts: Iterable[float | None]) -> float | None:
    known = list(amounts)
    return None if any(amount is None for amount in known) else sum(amount or 0.0 for amount in known)


def _mean_losses(ranks: Sequence[_Rank]) -> list[Entry]:
    """Each loss that all ranks sent after the same step: the mean, at the samples of all of them."""
    seen = [_losses_by_step(rank) for rank in ranks]
    counts_samples = any(facts.samples and facts.unit != "steps" for facts in ranks[0].all_of(Facts))
    means = []
    for key, (t, loss) in seen[0].items():
        if not all(key in of for of in seen):
            continue
        each = [of[key][1] for of in seen]
        samples = sum(one.samples for one in each) if counts_samples else loss.samples
        means.append(Entry(t, replace(loss, value=sum(one.value for one in each) / len(each), samples=samples)))
    return means


def _losses_by_step(rank: _Rank) -> Mapping[tuple[int, str, str], tuple[float, Loss]]:
    """A loss is sent right behind the block whose steps it is of."""
    found: dict[tuple[int, str, str], tuple[float, Loss]] = {}
    at = 0
    for entry in rank.entries:
        if isinstance(entry.record, Block):
            at = entry.record.at
        elif isinstance(entry.record, Loss):
            found[at, entry.record.site, entry.record.objective] = (entry.t, entry.record)
    return found


def _of_all(record: Record, ranks: Sequence[_Rank], remarks: Sequence[str]) -> Record:
    """A record of rank 0, with what the other ranks add to it, and ``remarks`` on all of them."""
    if isinstance(record, FirstStep):
        return replace(record, seconds=max(first.seconds for rank in ranks for first in rank.all_of(FirstStep)))
    if isinstance(record, KnobReport):
        return _worst(record, ranks)
    if isinstance(record, Facts):
        others = [rank.all_of(Facts)[-1] for rank in ranks[1:] if rank.all_of(Facts)]
        epoch = record.epoch
        if epoch is not None:
            known = [epoch, *(facts.epoch for facts in others if facts.epoch is not None)]
            epoch = replace(epoch, samples=sum(each.samples for each in known))
        return replace(
            record, samples=record.samples + sum(facts.samples for facts in others), epoch=epoch,
            unseen_samples=record.unseen_samples + sum(facts.unseen_samples for facts in others),
            left_out={**{knob: why for facts in others for knob, why in facts.left_out.items()}, **record.left_out},
            remarks=tuple(
                dict.fromkeys([*record.remarks, *(one for facts in others for one in facts.remarks), *remarks])
            ),
        )  # fmt: skip
    return record


def _worst(report: KnobReport, ranks: Sequence[_Rank]) -> KnobReport:
    """The report of the rank whose evidence is worst, of several the first; the last report of each rank counts."""
    last = [{each.knob: each for each in rank.all_of(KnobReport)} for rank in ranks]
    of_knob = [(number, each[report.knob]) for number, each in enumerate(last) if report.knob in each]
    number, worst = min(of_knob, key=lambda found: (_WORST_FIRST.index(found[1].evidence), found[0]))
    reason = f"rank {number}: {worst.reason}" if number and worst.reason else worst.reason
    return replace(worst, reason=reason)


def _notes(ranks: Sequence[_Rank]) -> list[Note]:
    """What rank 0 notes, and what another does beyond that."""
    said = {note.text: note for note in ranks[0].all_of(Note)}
    for number, rank in enumerate(ranks):
        for note in rank.all_of(Note):
            said.setdefault(note.text, Note(f"rank {number}: {note.text}"))
    return list(said.values())
