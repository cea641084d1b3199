"""A recorded grid, served: what was read of each config, with its noise drawn anew."""

from __future__ import annotations

import statistics
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support import worlds
from support.grids import made_up_grid

from tuner.analysis.accuracy import AccuracyLimits
from tuner.errors import GridError
from tuner.model import BASELINE, Config, OutcomeKind, Phase, Side
from tuner.runner.grid_replay import GridReplay
from tuner.runner.replay import ReplayRunner
from tuner.search.chain import Chain
from tuner.search.history import History
from tuner.search.structured import StructuredSampler
from tuner.search.tpe import TpeSampler
from tuner.space.choose import Spaces
from tuner.storage.grid import Grid, GridRow, read_grid
from tuner.storage.grid_space import search_space_of
from tuner.study.run import run_study

FASTER = Config(workers=4, prefetch=4)


@pytest.fixture(scope="module")
def grid() -> Grid:
    return made_up_grid()


def gain(replay: GridReplay, config: Config) -> float:
    measurement = replay.outcome(config).measurement
    assert measurement is not None and measurement.reference is not None
    return measurement.reference.gain.ratio


def test_without_a_seed_it_is_what_was_recorded(grid: Grid) -> None:
    replay = GridReplay(grid)
    outcome = replay.outcome(FASTER)
    reading = grid.configs[FASTER].reading
    assert outcome.measurement is not None and reading is not None
    own = sum(pair[0] for pair in reading.pairs) / sum(pair[1] for pair in reading.pairs)
    other = sum(pair[3] for pair in reading.pairs) / sum(pair[4] for pair in reading.pairs)
    assert outcome.measurement.rate == pytest.approx(own)
    assert outcome.measurement.reference is not None
    assert outcome.measurement.reference.gain.ratio == pytest.approx(own / other)
    assert replay.true_gain(FASTER) == pytest.approx(own / other)
    assert gain(replay, FASTER) == gain(replay, FASTER)
    assert outcome.measurement.data_wait_share == reading.wait_share
    assert outcome.measurement.steps_per_s == pytest.approx(reading.steps_per_s)
    assert outcome.seconds == 10.0 == replay.seconds(FASTER)


def test_what_was_measured_for_longer_is_what_is_true(grid: Grid) -> None:
    def twice(row: GridRow) -> GridRow:
        assert row.reading is not None
        pairs = tuple((2 * pair[0], *pair[1:]) for pair in row.reading.pairs)
        return replace(row, reading=replace(row.reading, pairs=pairs))

    longer = replace(grid, rows=(grid.baseline, twice(grid.configs[FASTER])))
    replay, short = GridReplay(grid, longer=longer), GridReplay(grid)
    assert replay.true_gain(FASTER) == pytest.approx(2 * short.true_gain(FASTER))
    assert replay.outcome(FASTER) == short.outcome(FASTER), "a trial still reads what a short one does"
    others = [config for config in grid.configs if config != FASTER]
    assert [*map(replay.true_gain, others)] == [*map(short.true_gain, others)]
    # What fills its memory in time works for a short trial only.
    failed = replace(longer.rows[1], kind=OutcomeKind.INFEASIBLE, reason="host-oom", reading=None, seconds=99.0)
    replay = GridReplay(grid, longer=replace(longer, rows=(grid.baseline, failed)))
    assert (replay.true_gain(FASTER), replay.outcome(FASTER).reason) == (0.0, "host-oom")
    assert replay.seconds(FASTER) == short.seconds(FASTER) and replay.best[0] != FASTER
    # A fault of the machine, or a lack of time, is none of the config's.
    for kind in (OutcomeKind.INFRASTRUCTURE, OutcomeKind.UNFINISHED):
        replay = GridReplay(grid, longer=replace(longer, rows=(grid.baseline, replace(failed, kind=kind))))
        assert replay.true_gain(FASTER) == short.true_gain(FASTER) and replay.outcome(FASTER).complete


def test_a_trial_goes_on_as_long_as_is_asked_for_by_turns_of_the_longest_recording(grid: Grid) -> None:
    """Six pairs of a quarter of a second were recorded, and as many that are twice as fast."""
    row = grid.configs[FASTER]
    assert row.reading is not None
    twice = tuple((2 * pair[0], *pair[1:]) for pair in row.reading.pairs)
    beside = replace(row, reading=replace(row.reading, pairs=twice))
    replay = GridReplay(grid, 1, replace(grid, rows=(grid.baseline, beside)))
    short = GridReplay(grid, 1).outcome(FASTER)
    assert replay.outcome(FASTER, lambda pairs: len(pairs) == 6) == short
    start_s = short.seconds - 12 * 0.25
    for count, by in ((60, 1.9), (3, 1.0)):
        found = replay.outcome(FASTER, lambda pairs, count=count: len(pairs) == count)  # type: ignore[misc]
        assert found.measurement is not None and found.measurement.reference is not None
        assert found.measurement.turns == count and found.seconds == pytest.approx(start_s + 2 * count * 0.25)
        assert found.measurement.reference.gain.ratio == pytest.approx(by * gain(GridReplay(grid), FASTER), rel=0.05)
    fresh = replay.longer(FASTER, lambda pairs: len(pairs) == 40)
    assert fresh.measurement is not None and fresh.measurement.reference is not None
    assert fresh.measurement.reference.gain.ratio == pytest.approx(replay.true_gain(FASTER), rel=0.03)
    assert fresh.seconds == pytest.approx(1.5 + 40 * 0.25), "a start, a warm-up, and its own turns"


@pytest.mark.slow  # 3 s beside three others
def test_what_a_trial_reads_and_what_it_is_judged_by_may_be_turns_apart(grid: Grid) -> None:
    """Of twenty-four pairs of a recording the later twelve are twice as fast; of seven no half would tell anything."""
    row = grid.configs[FASTER]
    assert row.reading is not None
    slow = row.reading.pairs
    fast = tuple((2 * pair[0], *pair[1:]) for pair in slow)

    def beside(pairs: Sequence[tuple[float, ...]]) -> Grid:
        reading = replace(row.reading, pairs=tuple(pairs))  # type: ignore[type-var]
        return replace(grid, rows=(grid.baseline, replace(row, reading=reading)))

    once, found = GridReplay(grid).true_gain(FASTER), set()
    longer = beside([*slow, *slow, *fast, *fast])
    for seed in range(8):
        replay = GridReplay(grid, seed, longer, apart=True)
        judged = replay.true_gain(FASTER) / once
        read = replay.longer(FASTER, lambda pairs: len(pairs) == 40).measurement
        assert read is not None and read.reference is not None
        assert read.reference.gain.ratio / once == pytest.approx(2 / judged, rel=0.05)
        assert GridReplay(grid, seed, longer).true_gain(FASTER) / once == pytest.approx(1.5)
        found.add(round(judged, 6))
    assert sorted(found) == pytest.approx([1.0, 2.0]), "either half, by the seed"
    brief = GridReplay(grid, 1, beside([*fast, slow[0]]), apart=True).true_gain(FASTER) / once
    assert 1.5 < brief < 2.0


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"script_sha256": "0"}, "script"), ({"arguments": ("--x",)}, "arguments"), ({"knobs": ()}, "knobs and values"),
        ({"ranks": 2}, "number of ranks"),
    ],
)
def test_what_was_measured_for_longer_is_of_the_same_search(grid: Grid, change: Mapping[str, Any], what: str) -> None:
    longer = replace(grid, header=replace(grid.header, **change))
    with pytest.raises(GridError, match=f"was recorded with another {what} than"):
        GridReplay(grid, longer=longer)


def test_the_noise_is_that_of_the_turns(grid: Grid) -> None:
    """Six pairs of turns whose ratios scatter with 3% on each side."""
    drawn = [gain(replay, FASTER) for seed in range(20) for replay in [GridReplay(grid, seed)] for _ in range(10)]
    true = GridReplay(grid).true_gain(FASTER)
    assert statistics.fmean(drawn) == pytest.approx(true, rel=0.01)
    reading = grid.configs[FASTER].reading
    assert reading is not None
    ratios = [(own / own_s) / (other / other_s) for own, own_s, _, other, other_s, _ in reading.pairs]
    expected = statistics.pstdev(ratios) / true / len(ratios) ** 0.5
    assert statistics.pstdev(drawn) / true == pytest.approx(expected, rel=0.25)


def test_a_seed_gives_the_same_whatever_came_before_and_another_trial_something_else(grid: Grid) -> None:
    one, other = GridReplay(grid, 3), GridReplay(grid, 3)
    other.outcome(Config(workers=2))
    first = gain(one, FASTER)
    assert gain(other, FASTER) == first
    assert gain(one, FASTER) != first
    assert gain(GridReplay(grid, 4), FASTER) != first


def test_failures_are_served_as_they_were(grid: Grid) -> None:
    outcome = GridReplay(grid, 1).outcome(Config(batch_size=512))
    assert (outcome.kind, outcome.reason, outcome.measurement) == (OutcomeKind.INFEASIBLE, "device-oom", None)
    assert outcome.seconds == 5.0
    assert GridReplay(grid).true_gain(Config(batch_size=512)) == 0.0


def test_what_was_not_recorded_is_refused(grid: Grid) -> None:
    for config in (Config(workers=3), Config(prefetch=4), Config(workers=True)):
        with pytest.raises(GridError, match="has no config") as raised:
            GridReplay(grid, 1).outcome(config)
        assert raised.value.slug == "grid" and raised.value.hint


def test_disturbed_pairs_are_left_out(grid: Grid) -> None:
    row = grid.configs[FASTER]
    assert row.reading is not None
    disturbed = (999.0, 0.25, 0.9, 1.0, 0.25, 0.0)
    rows = tuple(
        replace(each, reading=replace(row.reading, pairs=(*row.reading.pairs, disturbed))) if each is row else each
        for each in grid.rows
    )
    assert GridReplay(replace(grid, rows=rows)).true_gain(FASTER) == GridReplay(grid).true_gain(FASTER)


def test_without_turns_a_rate_is_held_against_the_script_as_written_of_that_time(grid: Grid) -> None:
    """The machine had slowed down to half of its speed."""
    baseline = GridReplay(grid).trials()[0].measurement
    row = grid.configs[FASTER]
    assert row.reading is not None and baseline is not None
    alone = replace(row.reading, pairs=(), blocks=((100.0, 1.0), (110.0, 1.0)), reference_rate=baseline.rate / 2)
    rows = tuple(replace(each, reading=alone) if each is row else each for each in grid.rows)
    replay = GridReplay(replace(grid, rows=rows))
    assert replay.true_gain(FASTER) == pytest.approx(105.0 / (baseline.rate / 2))
    measurement = replay.outcome(FASTER).measurement
    assert measurement is not None and measurement.reference is None
    assert measurement.rate / baseline.rate == pytest.approx(replay.true_gain(FASTER))


def test_what_a_study_knows_before_its_search(grid: Grid) -> None:
    replay = GridReplay(grid, 0)
    trials = replay.trials()
    assert [(trial.number, trial.phase, trial.config, trial.side) for trial in trials] == [
        (0, Phase.BASELINE, BASELINE, None), (1, Phase.PROBE, BASELINE, Side.COMPUTE),
    ]  # fmt: skip
    history = History(replay.space, worlds.OBJECTIVE, trials)
    assert history.bottleneck is not None and history.bottleneck.compute == pytest.approx(250.0)


def test_our_own_search_runs_on_it(grid: Grid) -> None:
    replay = GridReplay(grid, 5)
    trials, sampler = replay.trials(), Chain(StructuredSampler(), TpeSampler(5))
    for _ in range(25):
        history = History(replay.space, worlds.OBJECTIVE, trials)
        proposal = sampler.propose(history)
        assert proposal is not None
        trials.append(
            replace(trials[0], number=len(trials), phase=Phase.SEARCH, config=proposal.config,
                    outcome=replay.outcome(proposal.config))
        )  # fmt: skip
    best = History(replay.space, worlds.OBJECTIVE, trials).best
    assert best is not None
    assert replay.true_gain(best.config) > 0.9 * replay.best[1]


def test_the_search_of_a_whole_study_runs_on_it(grid: Grid, tmp_path: Path) -> None:
    """On nothing but the file. Its finals prove nothing: they compare fresh processes, and there is one of each."""
    replay = GridReplay(grid, 6)
    plan = worlds.plan(
        tmp_path, spaces=Spaces((search_space_of(grid),)), trials=15, cores=grid.header.cores,
        accuracy=AccuracyLimits(None),
    )  # fmt: skip
    result = run_study(
        plan, ReplayRunner(replay.outcome), Chain(StructuredSampler(), TpeSampler(6)), lambda event: None,
        threading.Event(),
    )  # fmt: skip
    assert result.winner is None and result.best is not None
    assert replay.true_gain(result.best.config) > 0.9 * replay.best[1]


def test_the_recorded_grid_of_the_tests_is_read_and_served() -> None:
    """From a real machine, busy with other work at that time: its figures show what a file looks like, nothing else."""
    path = Path(__file__).parents[2] / "assets" / "grid-small.jsonl.gz"
    replay = GridReplay(read_grid(path), 0)
    assert len(replay.grid.configs) == 18
    assert {row.reason for row in replay.grid.rows if not row.complete} == {"deadline"}
    for config in replay.grid.configs:
        assert replay.space.canonical(config) == config and replay.space.allows(config)
        replay.outcome(config)
