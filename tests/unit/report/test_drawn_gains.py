"""A gain that was drawn towards 1 stands beside rates that give another one: a sign says so, a line what it means."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support import made_up, worlds

from tuner.model import BASELINE, Config, Phase, Ratio, Reference, TierBest, Trial
from tuner.progress.state import row_of
from tuner.report.summary import summary
from tuner.report.trials import DRAWN_TEXT, TrialsReport
from tuner.result import LackOfTime, LargerBatch

FASTER = Config(precision="bf16")


@pytest.mark.parametrize(("low", "high", "told"), [(0.6, 2.36, "~1.12x"), (1.17, 1.21, "1.19x")])
def test_a_rough_gain_has_its_sign_in_lines_and_tables(low: float, high: float, told: str) -> None:
    written, outcome = worlds.measured(742.0, 0.0), worlds.measured(883.0, 0.0)
    assert outcome.measurement is not None
    reference = Reference(742.0, Ratio(1.19, low, high), 8)
    outcome = replace(outcome, measurement=replace(outcome.measurement, reference=reference))
    trial = Trial(1, Phase.SEARCH, Config(precision="bf16"), outcome=outcome)
    trials = [Trial(0, Phase.BASELINE, BASELINE, outcome=written), trial]
    report = TrialsReport(trials, worlds.OBJECTIVE)
    assert row_of(trial, report.gain(trial), best=False).gain == told == report.table().rows[1][4]
    assert (DRAWN_TEXT in report.footnotes()) is told.startswith("~")


@pytest.mark.parametrize(("low", "high", "sign"), [(0.6, 2.36, "~"), (1.17, 1.21, "")])
def test_so_it_has_wherever_an_answer_names_it(low: float, high: float, sign: str) -> None:
    """It was ``~1.12x`` in its line, and 1.12x where the study ended."""
    outcome = worlds.measured(883.0)
    assert outcome.measurement is not None
    reference = Reference(742.0, Ratio(1.19, low, high), 8)
    outcome = replace(outcome, measurement=replace(outcome.measurement, reference=reference))
    best = Trial(1, Phase.SEARCH, FASTER, outcome=outcome)
    tiers = tuple(TierBest(tier, FASTER, 1.12, None, False, "not-screened") for tier in (1, 2))
    result = replace(
        made_up.RESULT, trials=(made_up.BASELINE, best), winner=None, best=best, best_gain=1.12, bests=tiers,
        larger=LargerBatch(FASTER, 1.12, why="no time"),
    )  # fmt: skip
    told = summary(result, {}, "")
    assert f"was precision=bf16: {sign}1.12x the speed of the script as written" in told
    assert f"  {sign}1.12x in a single trial, not proven" in told
    assert f"precision=bf16: {sign}1.12x the speed in a single trial" in told
    late = replace(result, winner=made_up.KEEP, lacked_time=LackOfTime(FASTER, 1.12, 600.0, FASTER))
    assert f"no time was left to prove precision=bf16: {sign}1.12x" in summary(late, {}, "")


def test_a_run_of_a_screen_is_held_against_the_script_as_written_on_its_seed() -> None:
    """It trains from the first step, where episodes are short, say: as written that read 2.75 times as fast."""
    rates = {(BASELINE, 1): 275.0, (FASTER, 1): 330.0, (BASELINE, 2): 500.0, (FASTER, 2): 400.0}
    screens = [
        Trial(number, Phase.SCREEN, config, outcome=worlds.measured(rate), seed=seed, samples=600)
        for number, ((config, seed), rate) in enumerate(rates.items(), 1)
    ]
    alone = Trial(9, Phase.SCREEN, FASTER, outcome=worlds.measured(400.0), seed=2, samples=2400)
    baseline = Trial(0, Phase.BASELINE, BASELINE, outcome=worlds.measured(100.0))
    report = TrialsReport([baseline, *screens, alone], worlds.OBJECTIVE)
    assert [report.gain(trial) for trial in screens] == pytest.approx([1.0, 1.2, 1.0, 0.8])
    assert report.gain(alone) is None, "over other samples nothing was run as written"


@pytest.mark.parametrize("rough", [BASELINE, FASTER])
def test_the_gain_of_a_rate_that_is_left_open_has_the_sign_of_that(rough: Config) -> None:
    """Also where the rate of the script as written, on whose seed a run of a screen is, is the rough one."""
    screens = []
    for number, config in enumerate((BASELINE, FASTER), 1):
        outcome = worlds.measured(300.0)
        assert outcome.measurement is not None
        if config == rough:
            outcome = replace(outcome, measurement=replace(outcome.measurement, low=200.0, high=450.0))
        screens.append(Trial(number, Phase.SCREEN, config, outcome=outcome, seed=1, samples=600))
    searched = replace(screens[1], number=3, phase=Phase.SEARCH, seed=None, samples=None)
    trials = [Trial(0, Phase.BASELINE, BASELINE, outcome=worlds.measured(300.0)), *screens, searched]
    report = TrialsReport(trials, worlds.OBJECTIVE)
    told = [row[4] for row in report.table().rows]
    assert told == ["1.00x", "1.00x", "~1.00x", "~1.00x" if rough == FASTER else "1.00x"]
    assert row_of(searched, report.gain(searched), best=False).gain == told[3]


def test_what_is_held_against_a_run_beside_it_did_not_drift() -> None:
    """A study that goes on after its finals measures the script as written anew: these were compared round by round."""
    compared = [
        Trial(1, Phase.FINALS, BASELINE, outcome=worlds.measured(100.0), round=1, group=(9,)),
        Trial(2, Phase.FINALS, FASTER, outcome=worlds.measured(120.0), round=1, group=(9,)),
        Trial(3, Phase.SCREEN, BASELINE, outcome=worlds.measured(100.0), seed=1, samples=600),
        Trial(4, Phase.SCREEN, FASTER, outcome=worlds.measured(120.0), seed=1, samples=600),
    ]
    alone = Trial(5, Phase.SEARCH, FASTER, outcome=worlds.measured(120.0))
    runs = [Trial(0, Phase.BASELINE, BASELINE, outcome=worlds.measured(100.0)), *compared, alone]
    report = TrialsReport([*runs, Trial(6, Phase.ANCHOR, BASELINE, outcome=worlds.measured(70.0))], worlds.OBJECTIVE)
    assert [row[4] for row in report.table().rows[1:5]] == ["1.00x", "1.20x", "1.00x", "1.20x"]
    assert report.table().rows[5][4].startswith("~")
