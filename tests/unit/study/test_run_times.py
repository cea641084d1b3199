"""What runs are foreseen to take: forked and fresh ones, in the finals and in screens."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from support import worlds

from tuner.child.records import Window
from tuner.model import BASELINE, Block, Config, Outcome, Phase, Ratio, Reference, Trial
from tuner.study.lengths import WARMUP_S, screen_lengths, screened_samples
from tuner.study.run_times import SLOWER, RunTimes

IMPORTS_S = 6.0
"""What a fork server is loaded in, and a fresh start takes as well."""
START_S = 2.0
"""Besides, what any trial starts in."""
WINDOW = Window(warmup_s=3.0, max_s=20.0)
MEASURED_S = 3.0
"""Of a search trial, and so many of the script as written beside it; the finals have as long a window."""
FAST, FRESH = Config(precision="bf16"), Config(workers=2)


def outcome(seconds: float, *, rate: float = 100.0, spared_s: float = 0.0, beside: float | None = None) -> Outcome:
    """Of a run that was measured for three seconds; ``beside``: the rate of the script as written between its turns."""
    made = worlds.measured(rate)
    assert made.measurement is not None
    measurement = replace(
        made.measurement, blocks=(Block(rate * MEASURED_S, 12, MEASURED_S, 0.0),), spared_s=spared_s,
        first_step_s=IMPORTS_S + START_S,
        reference=None if beside is None else Reference(beside, Ratio(rate / beside, 0.9, 1.1), 10),
    )  # fmt: skip
    return replace(made, seconds=seconds, measurement=measurement)


BY_TURNS_S = START_S + WARMUP_S + 2 * SLOWER * MEASURED_S
"""What a forked trial takes whose server is there already."""
AS_WRITTEN = Trial(0, Phase.BASELINE, BASELINE, "", outcome(IMPORTS_S + START_S + 3.0 + MEASURED_S))


def forked(number: int, config: Config, *, loads: bool = False) -> Trial:
    """A search trial; ``loads``: whether it was the first one of its server."""
    seconds = BY_TURNS_S + (IMPORTS_S if loads else 0.0)
    return Trial(number, Phase.SEARCH, config, "", outcome(seconds, rate=200.0, spared_s=IMPORTS_S, beside=125.0))


def fresh(number: int, config: Config) -> Trial:
    return Trial(number, Phase.SEARCH, config, "", outcome(BY_TURNS_S + IMPORTS_S, beside=125.0, spared_s=0.0))


def times(*trials: Trial, cores: int = 2, by_turns: bool = True) -> RunTimes:
    plan = worlds.plan(Path("nowhere"), window=WINDOW, cores=cores, budget_s=300.0)
    return RunTimes(plan, (AS_WRITTEN, *trials), by_turns)


FORKED_S = START_S + WARMUP_S + SLOWER * MEASURED_S
"""Of a run in the finals, without the loading of its server."""


@pytest.mark.parametrize(("cores", "imports_s"), [(1, 2 * IMPORTS_S), (2, IMPORTS_S), (16, IMPORTS_S)])
def test_the_servers_of_a_round_are_loaded_at_once_where_there_are_cores(cores: int, imports_s: float) -> None:
    """A round of two fresh runs would take twice the imports: half a minute of three rounds that nobody needs."""
    found = times(forked(1, FAST, loads=True), cores=cores)
    assert found.round_s([BASELINE, FAST]) == pytest.approx(imports_s + 2 * FORKED_S)


def test_a_round_with_a_config_that_starts_fresh_has_all_of_them_fresh() -> None:
    found = times(forked(1, FAST), fresh(2, FRESH))
    fresh_s = IMPORTS_S + START_S + WARMUP_S + SLOWER * MEASURED_S
    assert found.round_s([BASELINE, FRESH]) == pytest.approx(2 * fresh_s, rel=0.1)
    assert found.round_s([BASELINE, FAST]) < found.round_s([BASELINE, FRESH])
    assert found.round_s([BASELINE, FAST, FRESH]) > found.round_s([BASELINE, FRESH]) + FORKED_S


def test_rounds_take_what_rounds_took_once_there_was_one() -> None:
    run = [Trial(n, Phase.FINALS, one, "", outcome(9.0 + n), 1) for n, one in ((2, BASELINE), (3, FAST))]
    assert times(forked(1, FAST), *run).round_s([BASELINE, FAST]) == 11.0 + 12.0
    assert times(forked(1, FAST), *run).round_s([BASELINE, FAST], 30.0) == 11.0 + 30.0


def test_a_screen_starts_without_loading_the_server_that_is_there() -> None:
    first, later = times(forked(1, FAST, loads=True)), times(forked(1, FAST))
    assert first.screen_s(FAST, 1000) == pytest.approx(later.screen_s(FAST, 1000))
    assert later.screen_s(FAST, 1000) == pytest.approx(START_S + SLOWER * 1000 / 200.0)


def test_a_script_that_starts_slowly_by_itself_is_not_taken_for_one_that_waits_for_its_server() -> None:
    """It reads its data for as long as its imports take, and longer."""
    for own_s in (IMPORTS_S, 3 * IMPORTS_S):
        made = outcome(BY_TURNS_S + own_s, rate=200.0, spared_s=IMPORTS_S, beside=125.0)
        assert made.measurement is not None
        slow = replace(made, measurement=replace(made.measurement, first_step_s=IMPORTS_S + START_S + own_s))
        found = times(Trial(1, Phase.SEARCH, FAST, "", slow))
        assert found.screen_s(FAST, 1000) == pytest.approx(START_S + own_s + SLOWER * 1000 / 200.0)


def test_the_script_as_written_is_screened_at_the_rate_that_it_has_once_files_are_warm() -> None:
    """Its first run had 100 a second, and beside the trials of the search it has 125."""
    found = times(forked(1, FAST), forked(2, Config(precision="fp16")))
    assert found.screen_s(BASELINE, 1000) == pytest.approx(START_S + SLOWER * 1000 / 125.0)


@pytest.mark.parametrize(
    ("budget_s", "samples"), [(None, 1000), (1800.0, 1000), (500.0, 1000), (300.0, 600), (60.0, 375)]
)
def test_screens_of_short_studies_are_shorter_but_never_under_their_fewest_steps(
    tmp_path: Path, budget_s: float | None, samples: int
) -> None:
    """At a hundred samples a second, and sixteen steps: sixty of these are 375 samples."""
    assert screen_lengths(worlds.plan(tmp_path, budget_s=budget_s), AS_WRITTEN)[0] == samples


def test_a_study_that_is_given_more_time_keeps_to_the_length_of_its_screens(tmp_path: Path) -> None:
    """What was compared stays compared: a proof mustn't be lost for a larger budget."""
    screen = Trial(5, Phase.SCREEN, BASELINE, "", outcome(8.0), seed=1, samples=600)
    longer = replace(screen, number=6, samples=2400)
    plan = worlds.plan(tmp_path, budget_s=1800.0)
    assert screened_samples([AS_WRITTEN]) is None
    assert screened_samples([AS_WRITTEN, longer, screen]) == 600
    assert screen_lengths(plan, AS_WRITTEN, screened=600) == (600, 2400)
    assert screen_lengths(plan, AS_WRITTEN, larger_step=64, screened=600)[0] == 64 * 20
