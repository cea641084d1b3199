"""A gain that was drawn towards 1 stands beside rates that give another one: a sign says so, a line what it means."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support import worlds

from tuner.model import BASELINE, Config, Phase, Ratio, Reference, Trial
from tuner.progress.state import row_of
from tuner.report.trials import DRAWN_TEXT, TrialsReport


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
