"""The benchmark of samplers: each of them plays by the rules, and the scores say what is true of what it recommends."""

from __future__ import annotations

import itertools
import xml.etree.ElementTree as ET
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import cast

import grid_samplers
import pytest
import samplers_on_grids
from grid_claims import lead, leads, targets
from grid_ours import PATIENCE, Ours
from grid_players import FINALISTS, ROUNDS, Player, ThenFinals
from grid_races import FINALS_S, WINDOW_S, raced
from grid_samplers import PLAYERS, BatchDoubling, DeepSpeedOrder, Random, _Indexed, missing
from grid_scores import Played, Step, as_declared, play, score, tenth
from support import worlds
from support.grids import made_up_grid

from tuner.analysis.gain import WORTH_HAVING
from tuner.cli.study import sampler_of
from tuner.model import BASELINE, Config, Phase, Trial
from tuner.objective import RATE
from tuner.runner.grid_replay import GridReplay
from tuner.search.additive import AdditiveSampler
from tuner.search.chain import Chain
from tuner.search.history import History
from tuner.space.registry import load_space
from tuner.space.resolved import ResolvedSpace
from tuner.storage.grid import Grid, GridRow, read_grid, write_grid
from tuner.storage.grid_space import space_of
from tuner.study.lengths import window_s
from tuner.study.plan import StudyPlan
from tuner.study.search import CALM

PRESENT = [name for name in PLAYERS if not missing(name)]
FEW = 6
"""A Gaussian process takes a second for each."""


@pytest.fixture(scope="module")
def grid() -> Grid:
    return made_up_grid(worlds.World(fits=128), space=worlds.resolved("workers", "precision", "batch_size"))


def ran(grid: Grid, make: Callable[[ResolvedSpace, int], Player], seed: int, most: int) -> tuple[list[Trial], Config]:
    """The trials of a game after the script as written, and what is recommended then."""
    replay = GridReplay(grid, seed)
    player, trials = make(replay.space, seed), replay.trials()[:1]
    while len(trials) <= most:
        config = player.propose(History(replay.space, RATE, trials))
        if config is None:
            break
        assert replay.space.canonical(config) == config and replay.space.allows(config)
        trials.append(Trial(len(trials), Phase.SEARCH, config, "", replay.outcome(config)))
    return trials[1:], player.recommend(History(replay.space, RATE, trials))


@pytest.mark.slow  # 2 s beside three others
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name == "Optuna GP" else name for name in PRESENT]
)
def test_a_sampler_proposes_what_is_new_and_in_the_grid_and_goes_by_its_seed(grid: Grid, name: str) -> None:
    trials, recommended = ran(grid, PLAYERS[name], 3, FEW)
    configs = [trial.config for trial in trials]
    assert configs and BASELINE not in configs and len(set(configs)) == len(configs)
    assert recommended in {BASELINE, *configs}
    assert [trial.config for trial in ran(grid, PLAYERS[name], 3, FEW)[0]] == configs


@pytest.mark.parametrize("name", ["random", "QMC", pytest.param("Optuna TPE", marks=pytest.mark.slow)])
def test_a_sampler_that_goes_on_comes_through_the_whole_grid(grid: Grid, name: str) -> None:
    trials, _ = ran(grid, PLAYERS[name], 1, 1000)
    assert len(trials) == len(grid.configs) - 1


def test_what_was_fastest_is_recommended_and_nothing_that_is_slower_than_as_written(grid: Grid) -> None:
    trials, recommended = ran(grid, Random, 2, 30)
    best = max(trials, key=lambda trial: trial.measurement.rate if trial.measurement is not None else 0.0)
    assert recommended == best.config
    slow = made_up_grid(worlds.World(feed=1e9), space=worlds.resolved("batch_size"))
    only_smaller = Trial(1, Phase.SEARCH, Config(batch_size=32), "", GridReplay(slow, 0).outcome(Config(batch_size=32)))
    replay = GridReplay(slow, 0)
    history = History(replay.space, RATE, [*replay.trials()[:1], only_smaller])
    assert Random(replay.space, 0).recommend(history) == BASELINE


def test_batch_doubling_takes_the_largest_that_fits_whatever_its_rate(grid: Grid) -> None:
    trials, recommended = ran(grid, BatchDoubling, 0, 40)
    assert [trial.config for trial in trials] == [Config(batch_size=128), Config(batch_size=256)]
    assert recommended == Config(batch_size=128)
    none = made_up_grid(worlds.World(), space=worlds.resolved("workers"))
    assert ran(none, BatchDoubling, 0, 40) == ([], BASELINE)


def test_deepspeeds_order_is_the_batch_and_then_the_grid_beside_it() -> None:
    """Larger batches gain 19% each where nothing waits, as far as they fit."""
    world = worlds.World(feed=1e9, fits=256)
    grid = made_up_grid(world, noise=0.001, space=worlds.resolved("workers", "precision", "batch_size"))
    configs = [trial.config for trial in ran(grid, DeepSpeedOrder, 0, 40)[0]]
    assert configs[:3] == [Config(batch_size=128), Config(batch_size=256), Config(batch_size=512)]
    assert len(configs) > 3 and all(config["batch_size"] == 256 for config in configs[3:])


def test_a_game_is_scored_by_what_is_true_and_by_recorded_seconds(grid: Grid) -> None:
    played = play(grid, Random, 5, most=12, share=0.1)
    replay = GridReplay(grid)
    trials, _ = ran(grid, Random, 5, len(played.steps))
    best = replay.best[1]
    assert played.start == pytest.approx(1 / best) and played.after(0) == played.start
    assert all(step.fraction in {replay.true_gain(config) / best for config in replay.grid.configs}
               for step in played.steps)  # fmt: skip
    seconds = 10.0
    for step, trial in zip(played.steps, trials, strict=True):
        seconds += replay.seconds(trial.config)
        assert step.seconds == pytest.approx(seconds)
        assert step.failed == (replay.true_gain(trial.config) == 0.0)
    assert played.failures(40) == sum(replay.true_gain(trial.config) == 0.0 for trial in trials) > 0
    assert len(played.steps) >= 12 and played.steps[-1].seconds >= 0.1 * replay.total_s


def test_a_game_with_races_is_judged_by_turns_that_it_does_not_read(grid: Grid) -> None:
    """The later half of what each config was measured for longer is twice as fast as the first."""

    def twice(row: GridRow) -> GridRow:
        if row.reading is None or not row.reading.pairs:
            return row
        pairs = row.reading.pairs
        return replace(row, reading=replace(row.reading, pairs=(*pairs, *((2 * p[0], *p[1:]) for p in pairs))))

    longer = replace(grid, rows=tuple(map(twice, grid.rows)))
    by_half, by_all = GridReplay(grid, 5, longer, apart=True), GridReplay(grid, 5, longer)
    for replay, races in ((by_half, True), (by_all, False)):
        played = play(grid, Random, 5, most=12, share=0, longer=longer, races=races)
        shares = {replay.true_gain(config) / replay.best[1] for config in grid.configs}
        assert {step.fraction for step in played.steps} <= shares
    assert by_half.best[1] > 1.2 * by_all.best[1]


def test_a_game_knows_how_many_workers_keep_up_as_a_study_does(grid: Grid) -> None:
    """A function, which no grid's file holds; without it the walk in a game was another one than in a study."""
    recorded = space_of(read_grid(Path(__file__).parents[1] / "assets" / "grid-small.jsonl.gz"))
    declared = {knob.name: knob.keeps_up for knob in load_space("torch").knobs}
    found = {axis.knob.name: axis.knob.keeps_up for axis in as_declared(recorded).axes}
    assert found == {name: declared[name] for name in found} and found["num_workers"] is not None
    assert all(axis.knob.keeps_up is None for axis in recorded.axes)
    unnamed = space_of(grid)
    assert as_declared(unnamed) is unnamed, "nobody has declared that one"


def test_what_a_probe_took_is_charged_to_who_asked_for_it(grid: Grid) -> None:
    (ours,), (others,) = play(grid, Ours, 0, most=1, share=0).steps, play(grid, Random, 0, most=1, share=0).steps
    assert ours.seconds - 10.0 in (9.0, 14.0) and others.seconds - 10.0 in (5.0, 10.0), "four seconds of a probe"


def test_a_search_ends_where_a_study_would_end_it(grid: Grid) -> None:
    """What is proposed beyond, where three trials brought nothing and nothing is expected, isn't run."""
    trials, _ = ran(grid, Ours, 0, 100)
    replay = GridReplay(grid, 0)
    history = History(replay.space, RATE, [*replay.trials()[:1], *trials])
    proposal = sampler_of(0).propose(history)
    assert len(trials) < len(grid.configs) - 1 and proposal is not None and proposal.expected is not None
    assert proposal.expected < WORTH_HAVING
    track = [history.gain(trial) or 0.0 for trial in trials]
    assert max(track[-CALM:]) <= WORTH_HAVING * max(track[:-CALM])


def test_lengths_in_a_game_are_those_of_a_study_with_its_usual_window(tmp_path: Path) -> None:
    plan = worlds.plan(tmp_path)
    assert window_s(plan, Phase.SEARCH, by_turns=True) == pytest.approx(WINDOW_S)
    assert window_s(plan, Phase.FINALS, by_turns=True) == pytest.approx(FINALS_S)
    assert (StudyPlan.finalists, StudyPlan.finals_rounds, StudyPlan.patience) == (FINALISTS, ROUNDS, PATIENCE)


def test_a_loser_ends_early_and_what_may_be_the_best_is_measured_for_longer() -> None:
    """Of a noise of 20% in each turn, beside a best one of 3x: 0.5x, and 3x by itself."""
    space = worlds.resolved("workers", "layout")
    rough = made_up_grid(worlds.World(), space=space, noise=0.2)
    replay = GridReplay(rough, 3)
    first = Trial(1, Phase.SEARCH, best_of(rough), "", replay.outcome(best_of(rough)))
    history = History(replay.space, RATE, [*replay.trials()[:1], first])
    slow = min((config for config in rough.configs if config), key=replay.true_gain)
    lengths = {}
    for config in (slow, best_of(rough)):
        found = replay.outcome(config, raced(history, 2.0)).measurement
        assert found is not None
        lengths[config] = sum(block.seconds for block in found.blocks)
    assert lengths[slow] < WINDOW_S < lengths[best_of(rough)] <= 6 * WINDOW_S + 1


def best_of(grid: Grid) -> Config:
    return GridReplay(grid).best[0]


def test_finals_are_runs_that_are_charged_and_tell_the_fastest_of_the_finalists(grid: Grid) -> None:
    """Twelve trials at random, then five rounds of three and of the script as written."""
    def make(space: ResolvedSpace, seed: int) -> Player:
        return ThenFinals(Random(space, seed), 12)

    alone = play(grid, Random, 5, most=12, share=0)
    played = play(grid, make, 5, most=100, share=0, races=True)
    assert len(played.steps) == 12 + ROUNDS * (FINALISTS + 1)
    seconds = [after.seconds - before.seconds for before, after in itertools.pairwise(played.steps[11:])]
    # A start of a second, half a second of warm-up, and its own turns, each of a quarter of a second.
    assert seconds == pytest.approx([1.5 + FINALS_S] * len(seconds), abs=0.3)
    assert played.steps[-1].fraction >= alone.steps[-1].fraction
    assert len(play(grid, make, 5, most=30, share=0, races=True).steps) == 30, "as long as there are trials left"
    assert len(play(grid, make, 5, most=100, share=0).steps) == 12, "none where trials are as they were recorded"


def test_the_figures_of_a_score() -> None:
    steps = tuple(Step(10.0 * place, place / 40, place == 2) for place in range(1, 41))
    ways = [Played(0.5, 2000.0, steps)] * 9 + [Played(0.5, 2000.0, ())]
    found = score(ways)
    assert found.after[0] == pytest.approx((0.9 * 5 / 40 + 0.05, 5 / 40))
    assert found.within[0][0] == pytest.approx(0.9 * 10 / 40 + 0.05), "ten trials in 5% of 2000 s"
    assert (found.failures, found.trials) == (0.9, 36.0)
    assert ways[0].within(0.001) == 0.5
    assert tenth(list(range(30))) == 2 and tenth([3.0]) == 3.0


def test_the_command_writes_a_table_and_a_picture(
    grid: Grid, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Held out and fit is one of three; another one was recorded beside other work."""
    monkeypatch.setattr(samplers_on_grids, "FEWEST_CONFIGS", 10)
    for name in ("digits", "compiled", "photos"):
        write_grid(tmp_path / f"{name}.jsonl.gz", disturbed(grid, len(grid.rows), 6) if name == "photos" else grid)
    files = [str(path) for path in sorted(tmp_path.glob("*.gz"))]
    options = ["--seeds", "2", "--jobs", "1", "--samplers", "random,batch doubling", "--out", str(tmp_path)]
    assert samplers_on_grids.main([*files, *options]) == 0
    text = (tmp_path / "results.md").read_text()
    assert "**Not to be reported**: photos was recorded beside other work" in text
    assert f"--seeds 2 --jobs 1 --samplers 'random,batch doubling' --out {tmp_path}" in text, "as it was called"
    reported, others = text.split("## To develop on, or not to be reported")
    assert [name in reported for name in ("**compiled**", "**digits**", "**photos**")] == [True, False, False]
    assert "**digits**" in others and "**photos**" in others
    rows = [line for line in reported.splitlines() if line.startswith(("| random", "| batch doubling"))]
    assert [row.split(" | ")[1] for row in rows[2:]] == ["compiled", "compiled"], "a row a grid of what is asked for"
    rows = rows[:2]
    assert all(row.count("|") == 11 for row in rows) and "(" in rows[0]
    lines = ET.parse(tmp_path / "results.svg").getroot().findall("{http://www.w3.org/2000/svg}polyline")
    assert len(lines) == 2 * 2 * 2
    assert "to develop on" not in (tmp_path / "results.svg").read_text()
    assert "12 games" in capsys.readouterr().out
    assert samplers_on_grids.main([str(tmp_path / "digits.jsonl.gz"), *options]) == 0
    assert "To develop on, or not to be reported\n|" in capsys.readouterr().out, "no other one is there"
    assert "to develop on" in (tmp_path / "results.svg").read_text()


@pytest.mark.slow  # 2 s beside three others
def test_what_is_judged_is_the_sampler_of_the_command(grid: Grid) -> None:
    def shipped(space: ResolvedSpace, seed: int) -> Player:
        player = Ours(space, seed)
        player._sampler = sampler_of(seed)
        return player

    for seed in range(2):
        assert ran(grid, shipped, seed, 25) == ran(grid, Ours, seed, 25)
    kinds = [type(each) for each in cast(Chain, Ours(space_of(grid), 0)._sampler)._samplers]
    assert kinds == [type(each) for each in cast(Chain, sampler_of(0))._samplers]
    assert AdditiveSampler in kinds


def disturbed(grid: Grid, configs: int, pairs: int) -> Grid:
    """The grid, with so many pairs of so many of its rows disturbed."""

    def row(number: int, found: GridRow) -> GridRow:
        if found.reading is None or not found.reading.pairs or number >= configs:
            return found
        read = tuple((*p[:2], 0.3, *p[3:]) if k < pairs else p for k, p in enumerate(found.reading.pairs))
        return replace(found, reading=replace(found.reading, pairs=read))

    return replace(grid, rows=tuple(row(number, found) for number, found in enumerate(grid.rows)))


def test_a_grid_that_was_recorded_beside_other_work_is_not_to_be_reported(
    grid: Grid, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(samplers_on_grids, "FEWEST_CONFIGS", 10)
    unfit, describe = samplers_on_grids.unfit, samplers_on_grids.describe
    assert unfit(grid) == "" and "; 0 of " in describe(grid)
    assert unfit(disturbed(grid, len(grid.rows), 1)) == "", "five calm pairs are left of each"
    assert "pairs of turns were disturbed" in unfit(disturbed(grid, len(grid.rows), 6))
    few = disturbed(grid, len(grid.rows) // 5, 3)
    assert "disturbed pairs count in " in unfit(few) and "count in 0 configs" not in describe(few)
    assert unfit(few, grid) == "", "true is what was measured for longer"
    assert "fastest for longer" in describe(few, grid)


def test_a_grid_that_was_recorded_too_briefly_is_not_to_be_reported(
    grid: Grid, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(samplers_on_grids, "FEWEST_CONFIGS", 10)
    noisy = made_up_grid(worlds.World(fits=128), space=worlds.resolved("workers", "batch_size"), noise=0.3)
    assert "was recorded too briefly" in samplers_on_grids.unfit(noisy)
    assert samplers_on_grids.uncertainty(grid) < 0.1 < samplers_on_grids.uncertainty(noisy)
    brief = replace(grid, rows=grid.rows[:1])
    assert samplers_on_grids.uncertainty(brief) == float("inf"), "nothing is known of a grid without turns"


def test_by_how_much_one_is_ahead_is_told_by_games_with_the_same_noise() -> None:
    """Of two grids with six seeds: the game moves both samplers by far more than what is between them."""
    luck = [[0.1, 0.9, 0.3, 0.5, 0.2, 0.8], [0.4, 0.6, 0.1, 0.9, 0.3, 0.7]]
    ahead = [[each + 0.05 + 0.001 * place for place, each in enumerate(row)] for row in luck]
    mean, low, high = lead(ahead, luck)
    assert mean == pytest.approx(0.0525) and 0.05 < low < mean < high < 0.055
    mean, low, high = lead(luck, luck[::-1])
    assert low < 0 < high, "nobody is ahead"
    ways = [
        Played(0.5, 10.0, tuple(Step(float(place), least, False, 0.002) for place in range(40)), 100)
        for least in (0.9, 1.0)
    ]
    games = {"ours": {"digits": ways}, "others": {"digits": ways[:1] * 2}}
    (row,) = [line for line in leads(games, "ours").splitlines() if line.startswith("| others")]
    assert row.count("+5.0 [+0.0, +10.0]") == 7
    assert leads(games, "nobody") == "" == leads({"ours": games["ours"]}, "ours")
    assert "| ours | digits | 95.0 | 1 of 2 | 0.0 | 2, 2 |" in targets(games)


def test_who_proposes_what_it_ran_is_caught(grid: Grid) -> None:
    class Again(Random):
        def propose(self, history: History) -> Config:
            return self._configs[0]

    with pytest.raises(ValueError, match=r"Again proposes .* again"):
        play(grid, Again, 0)


def test_what_has_nothing_new_to_propose_falls_back_on_a_neighbour_of_the_best_as_ours_does(grid: Grid) -> None:
    class Stuck(_Indexed):
        def ask(self) -> dict[str, int]:
            return {axis.knob.name: axis.as_written for axis in self._space.axes}

        def tell(self, indices: object, gain: float | None) -> None:
            pass

    (trial,), _ = ran(grid, Stuck, 0, 1)
    assert len(trial.config) == 1


def test_what_cannot_be_compared_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert samplers_on_grids.main(["--samplers", "best of all"]) == 2
    assert "there is no sampler 'best of all'" in capsys.readouterr().err
    assert samplers_on_grids.main([str(tmp_path / "gone.jsonl.gz")]) == 2
    assert "can't read" in capsys.readouterr().err
    monkeypatch.setattr(samplers_on_grids, "FOLDER", tmp_path)
    assert samplers_on_grids.main([]) == 2
    assert "make grids" in capsys.readouterr().err

    def absent() -> None:
        raise ImportError("No module named 'smac'")

    monkeypatch.setattr(grid_samplers, "_smac", absent)
    assert ".[benchmark]" in missing("SMAC3") and not missing("random")
