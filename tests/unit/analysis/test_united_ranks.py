"""What several ranks sent, told as one: rates, losses, evidence, who waits for whom."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from tuner.analysis.measurement import knob_reports, measurement_of
from tuner.analysis.ranks import LARGE_SKEW, SAME_BATCHES, skew_of, united, unlike_steps
from tuner.child.records import (
    Block,
    Evidence,
    Facts,
    FirstStep,
    Hello,
    KnobReport,
    LoaderUse,
    Loss,
    Note,
    Phase,
    Record,
    WindowEnd,
)
from tuner.child.wire import Entry

FACTS = Facts(framework="torch", unit="samples", samples=100.0)


def _block(at: int, *, steps: int = 10, samples: float = 160.0, seconds: float = 1.0, **more: object) -> Block:
    fields: dict[str, object] = {"phase": Phase.WINDOW, "wait_s": 0.1, **more}
    return Block(steps=steps, samples=samples, seconds=seconds, at=at, **fields)  # type: ignore[arg-type]  # by name


def _entries(*ranks: list[Record]) -> list[Entry]:
    return [Entry(float(i), record, rank) for rank, records in enumerate(ranks) for i, record in enumerate(records)]


def _whole(blocks: list[Block], *others: Record) -> list[Record]:
    return [Hello(1, "3", "python"), FirstStep(1.0), *blocks, *others, FACTS, WindowEnd(complete=True)]


def _blocks(entries: list[Entry]) -> list[Block]:
    return [entry.record for entry in united(entries) if isinstance(entry.record, Block)]


def test_records_of_one_process_stay_as_they_are() -> None:
    entries = _entries(_whole([_block(0), _block(0)]))
    assert united(entries) == entries
    assert unlike_steps(entries) == ""


def test_samples_add_up_by_the_time_of_the_slowest() -> None:
    """The second rank's last batches are short, and its blocks a little longer."""
    own = [_block(at) for at in (11, 21, 31, 41)]
    other = [_block(at, samples=40.0, seconds=1.25) for at in (11, 21, 31, 41)]
    entries = _entries(_whole(own), _whole(other))
    assert [(block.samples, block.seconds, block.steps) for block in _blocks(entries)] == [(200.0, 1.25, 10)] * 4
    measurement = measurement_of(entries, [])
    assert measurement is not None and round(measurement.rate, 6) == 160.0 and round(measurement.steps_per_s, 6) == 8.0


def test_the_loop_waits_for_the_rank_that_waits_longest() -> None:
    own, other = [_block(at, wait_s=0.1) for at in (11, 21)], [_block(at, wait_s=0.7) for at in (11, 21)]
    assert [block.wait_s for block in _blocks(_entries(own, other))] == [0.7, 0.7]  # type: ignore[arg-type]  # records


def test_blocks_are_joined_where_not_all_ranks_have_cut() -> None:
    own = [_block(11), _block(15, steps=4, samples=64.0, seconds=0.4), _block(21, steps=6, samples=96.0, seconds=0.6)]
    other = [_block(11), _block(21), _block(25, steps=4)]
    joined = _blocks(_entries([*own], [*other]))
    assert [(block.at, block.steps, round(block.samples, 6), block.seconds) for block in joined] == [
        (11, 10, 320.0, 1.0), (21, 10, 320.0, 1.0),
    ]  # fmt: skip


def test_where_one_rank_validates_the_others_wait() -> None:
    """Rank 0 alone validates for five seconds, which no rate holds: the other's block is that much longer."""
    validation = _block(15, steps=0, samples=0.0, seconds=5.0, flagged=True)
    before, after = _block(15, steps=4, samples=64.0, seconds=0.4), _block(21, steps=6, samples=96.0, seconds=0.6)
    own = [_block(11), before, validation, after]
    other = [_block(11), _block(21, seconds=6.0)]
    joined = [block for block in _blocks(_entries([*own], [*other])) if not block.flagged]
    assert [(block.at, block.samples, block.seconds) for block in joined] == [(11, 320.0, 1.0), (21, 320.0, 1.0)]


@pytest.mark.parametrize("ends_at", [20, 21])
def test_where_one_rank_validates_between_two_blocks_the_others_wait(ends_at: int) -> None:
    """As where steps are long, so that every one is a block. The fetch that training resumes with may count already."""
    validation = _block(ends_at, steps=0, samples=0.0, seconds=5.0, flagged=True)
    own = [_block(10), _block(20), validation, _block(21, steps=1, samples=16.0, seconds=0.1), _block(30, steps=9)]
    other = [_block(10), _block(20), _block(21, steps=1, samples=16.0, seconds=5.1), _block(30, steps=9)]
    joined = [block for block in _blocks(_entries([*own], [*other])) if not block.flagged]
    assert [(block.at, block.seconds) for block in joined] == [(10, 1.0), (20, 1.0), (21, 0.1), (30, 1.0)]


@pytest.mark.parametrize("ends_at", [20, 21])
def test_where_all_validate_the_others_wait_for_the_one_that_validates_longest(ends_at: int) -> None:
    """Rank 1 validates for five seconds and rank 0 for one, which then waits for four in its next step."""

    def rank(validation_s: float, waits_s: float) -> list[Record]:
        validation = _block(ends_at, steps=0, samples=0.0, seconds=validation_s, flagged=True)
        return [_block(10), _block(20), validation, _block(30, seconds=1.0 + waits_s), _block(40)]

    joined = [block for block in _blocks(_entries(rank(1.0, 4.0), rank(5.0, 0.0))) if not block.flagged]
    assert [(block.at, block.seconds) for block in joined] == [(10, 1.0), (20, 1.0), (30, 1.0), (40, 1.0)]


def test_the_slowest_rank_is_that_of_each_turn() -> None:
    """What comes once a turn is seen in one rank, and a warm-up says nothing of turns."""
    own = [
        _block(10, phase=Phase.WARMUP, seconds=9.0), _block(20, turn=1), _block(30, turn=1, seconds=1.5),
        _block(40, turn=2, seconds=1.25), _block(50, turn=2),
    ]  # fmt: skip
    other = [
        _block(10, phase=Phase.WARMUP, seconds=2.0), _block(20, turn=1, seconds=1.75), _block(30, turn=1),
        _block(40, turn=2), _block(50, turn=2, seconds=1.125),
    ]  # fmt: skip
    joined = _blocks(_entries([*own], [*other]))
    assert [block.seconds for block in joined] == [9.0, 1.75, 1.0, 1.25, 1.0]


def test_a_loss_is_the_mean_at_the_samples_of_all() -> None:
    def rank(values: tuple[float, float]) -> list[Record]:
        first, second = values
        return _whole([], _block(11), Loss(160.0, first, "a"), _block(21), Loss(320.0, second, "a"))

    losses = [e.record for e in united(_entries(rank((1.0, 0.5)), rank((3.0, 0.7)))) if isinstance(e.record, Loss)]
    assert [(loss.samples, loss.value) for loss in losses] == [(320.0, 2.0), (640.0, 0.6)]


def test_the_worst_evidence_of_a_knob_counts() -> None:
    good = KnobReport("num_workers", 2, 1, 1, Evidence.VERIFIED, observed=2)
    bad = KnobReport("num_workers", 2, 1, 0, Evidence.CONTRADICTED, "it has 0", observed=0)
    (report,) = [e.record for e in united(_entries([good], [bad])) if isinstance(e.record, KnobReport)]
    assert (report.evidence, report.reason) == (Evidence.CONTRADICTED, "rank 1: it has 0")


def test_of_each_rank_the_last_report_of_a_knob_counts() -> None:
    """As in a trial of one process: an earlier one is taken back by it, for better or worse."""
    early = KnobReport("compile", True, 0, 0, Evidence.NOT_APPLICABLE, "nothing is compiled yet")
    late = KnobReport("compile", True, 1, 1, Evidence.VERIFIED, observed=True)
    doubt = KnobReport("compile", True, 1, 1, Evidence.UNVERIFIABLE, "what else it did wasn't seen")

    def told(*ranks: list[Record]) -> set[tuple[Evidence, str]]:
        reports = knob_reports([entry.record for entry in united(_entries(*ranks))])
        return {(report.evidence, report.reason) for report in reports}

    assert told([early, late], [early, late]) == {(Evidence.VERIFIED, "")}
    assert told([early, late], [late, doubt]) == {(Evidence.UNVERIFIABLE, "rank 1: what else it did wasn't seen")}
    assert told([late], [late, early]) == {(Evidence.NOT_APPLICABLE, "rank 1: nothing is compiled yet")}


def test_the_slowest_rank_to_come_is_named() -> None:
    late = [_block(at, alone_s=0.6) for at in (11, 21, 31, 41)]
    early = [_block(at, alone_s=0.2) for at in (11, 21, 31, 41)]
    entries = _entries(_whole(early), _whole(late))
    skew = skew_of(entries)
    assert skew is not None and (skew.rank, round(skew.share, 6)) == (1, 0.4)
    remarks = [e.record.remarks for e in united(entries) if isinstance(e.record, Facts)]
    assert len(remarks) == 1 and "rank 1 comes to its backward 40%" in remarks[0][0]
    alike = united(_entries(_whole(early), _whole(early)))
    assert [e.record.remarks for e in alike if isinstance(e.record, Facts)] == [()] and LARGE_SKEW < 0.4


def test_a_rank_that_waits_for_anothers_validation_holds_nobody_up() -> None:
    waits = [_block(at, seconds=seconds, alone_s=0.5) for at, seconds in ((10, 1.0), (20, 5.0), (30, 5.0), (40, 5.0))]
    validates = [_block(at, alone_s=0.5) for at in (10, 20, 30, 40)]
    skew = skew_of(_entries([*waits], [*validates]))
    assert skew is not None and skew.share == 0.0


@pytest.mark.parametrize(
    ("firsts", "is_told"),
    [("aa", True), ("ab", False), (("", ""), False), (("a", None), False), ("aaa", True), (("a", "a", None), False)],
)
def test_ranks_that_get_the_same_batches_are_told(firsts: Sequence[str | None], *, is_told: bool) -> None:
    """Without a sampler that gives each rank its own each sample counts in all of them. What one has said nothing of
    isn't known of all.
    """
    ranks: list[list[Record]] = []
    for first in firsts:
        own: list[Record] = [Hello(1, "3", "python"), FirstStep(1.0), *(_block(at) for at in (11, 21, 31))]
        if first is not None:
            uses = (LoaderUse("train", 9, first=first), LoaderUse("test", 1, first="t"))
            own.append(replace(FACTS, loaders=uses, training_loaders=("train",)))
        ranks.append(own)
    remarks = [r for e in united(_entries(*ranks)) if isinstance(e.record, Facts) for r in e.record.remarks]
    assert (SAME_BATCHES.format(len(ranks)) in remarks) is is_told


def test_ranks_that_take_other_steps_give_no_rate() -> None:
    entries = _entries(_whole([_block(at) for at in (11, 21, 31, 41)]), [Hello(2, "3", "python")])
    assert measurement_of(entries, []) is None
    assert "rank 0 41, rank 1 0" in unlike_steps(entries)


def test_a_note_of_another_rank_is_told_as_its_own() -> None:
    notes = [e.record for e in united(_entries([Note("a")], [Note("a"), Note("b")])) if isinstance(e.record, Note)]
    assert [note.text for note in notes] == ["a", "rank 1: b"]
