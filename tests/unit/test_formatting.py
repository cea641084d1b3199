"""How figures are written for people."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from support import worlds

from tuner.analysis.accuracy import Screened
from tuner.analysis.checks import Check, CheckKind
from tuner.analysis.course import LOSSES
from tuner.analysis.stats import Noninferiority
from tuner.formatting import above_text, interval_text, ratio_text, result_text, screened_text, share_text
from tuner.model import BASELINE, Config, Phase, Ratio, Reference, Trial


@pytest.mark.parametrize(
    ("low", "high", "text"),
    [
        (1.0032, 1.204, "1.003 to 1.20"), (0.9961, 1.0004, "0.996 to 1.0004"), (1.0, 1.25, "1.00 to 1.25"),
        (1.00001, 1.1, "1.00 to 1.10"), (0.5, 0.996, "0.50 to 0.996"), (1.70, 1.86, "1.70 to 1.86"),
    ],
)  # fmt: skip
def test_an_end_of_an_interval_shows_on_which_side_of_1_it_lies(low: float, high: float, text: str) -> None:
    """"faster" beside an interval from 1.00 looks like a mistake."""
    assert interval_text(Ratio(1.09, low, high)) == text
    assert ratio_text(Ratio(1.09, low, high)) == f"1.09x [{text.replace(' to ', ', ')}]"


def test_what_took_turns_in_the_search_is_told_beside_what_it_was_held_against() -> None:
    """Its gain is that of these two rates: the script as written may have run at another one when it was alone."""
    outcome = worlds.measured(1812.0)
    assert outcome.measurement is not None
    reference = Reference(1473.0, Ratio(1.23, 1.1, 1.3), 8)
    beside = replace(outcome, measurement=replace(outcome.measurement, reference=reference))
    searched = Trial(3, Phase.SEARCH, Config(workers=2), outcome=beside)
    assert result_text(searched) == "1,812 samples/s beside 1,473 as written"
    anchor = replace(searched, phase=Phase.ANCHOR, config=BASELINE)
    assert result_text(anchor) == "1,812 samples/s beside 1,473 of the process that is kept alive"
    assert result_text(replace(searched, phase=Phase.FINALS)) == "1,812 samples/s", "that has a run of its own"
    assert result_text(Trial(0, Phase.BASELINE, BASELINE, outcome=outcome)) == "1,812 samples/s"


@pytest.mark.parametrize(("low", "high", "mark"), [(230.0, 340.0, ""), (25.1, 3096.0, "~"), (0.0, math.inf, "~")])
def test_a_rate_by_itself_that_its_blocks_leave_open_is_told_as_approximate(low: float, high: float, mark: str) -> None:
    """One second-long pause in a window of ten blocks, as of Python's collector, made 640 samples/s read 279."""
    outcome = worlds.measured(279.0)
    assert outcome.measurement is not None
    measurement = replace(outcome.measurement, low=low, high=high)
    trial = Trial(0, Phase.BASELINE, BASELINE, outcome=replace(outcome, measurement=measurement))
    assert result_text(trial) == f"{mark}279 samples/s"
    beside = replace(measurement, reference=Reference(279.0, Ratio(1.0, 0.9, 1.1), 20))
    by_turns = replace(trial, phase=Phase.SEARCH, outcome=replace(outcome, measurement=beside))
    assert result_text(by_turns).startswith("279 samples/s"), "its gain has an interval of its own"
    written = replace(trial, phase=Phase.FINALS, outcome=replace(outcome, measurement=replace(measurement, turns=13)))
    assert result_text(written) == "279 samples/s", "so has the run that it took turns with"


@pytest.mark.parametrize(
    ("amount", "most", "text"),
    [
        (300.2e6, 300e6, "286.3 MiB, of 286.1 MiB allowed"),
        (400e6, 300e6, "381 MiB, of 286 MiB allowed"),
        (2 * 1024**3 + 4096, 2 * 1024**3, "2.000004 GiB, of 2.000000 GiB allowed"),
        (1100 * 1024**2, 1023.9 * 1024**2, "1.1 GiB, of 1024 MiB allowed"),
        (1025, 1024, "1.001 KiB, of 1.000 KiB allowed"),
    ],
)
def test_what_is_above_a_limit_is_seen_to_be(amount: float, most: float, text: str) -> None:
    assert above_text(amount, most) == text


OPEN, FAIL = Noninferiority.INCONCLUSIVE, Noninferiority.FAIL


@pytest.mark.parametrize(
    ("check", "told"),
    [
        (
            Check(CheckKind.EFFICIENCY, "sample efficiency", 1.0, 0.93, 0.07, 0.04, 0.1034, 0.1, OPEN),
            "sample efficiency 93% (at least 89.7%; limit 90.0%)",
        ),
        (
            Check(CheckKind.EFFICIENCY, "sample efficiency", 1.0, 0.93, 0.07, 0.04, 0.12, 0.1, OPEN),
            "sample efficiency 93% (at least 88%; limit 90%)",
        ),
        (
            Check(CheckKind.LOSS, "training loss", 0.5, 0.502, 0.003, -0.004, 0.01004, 0.01, OPEN),
            "training loss 0.502 against 0.5 (0.30% worse, at most 1.004% worse; limit 1.000% of the way down)",
        ),
        (
            Check(CheckKind.METRIC, "accuracy", 0.5, 0.51, -0.02, -0.03, -0.01, 0.01, Noninferiority.PASS),
            "accuracy 0.51 against 0.5 (2.00% better, at most 1.00% better; limit 1.00%)",
        ),
        (
            Check(CheckKind.LOSS, "training loss", 0.5, 0.502, 0.003, -math.inf, math.inf, 0.01, OPEN),
            "training loss 0.502 against 0.5 (0.30% worse; limit 1.00% of the way down)",
        ),
        (
            Check(CheckKind.GRADIENT, "gradient norm", 2.0, 2.001, 0.000504, 0.000504, 0.000504, 0.0005, FAIL),
            "gradient norm 2.001 against 2 (0.0504% apart; 0.05% is the limit)",
        ),
        (
            Check(CheckKind.COURSE, LOSSES, 0.0, 0.0204, 0.0204, 0.0204, 0.0204, 0.02, OPEN),
            f"{LOSSES} differ by 2.04% of what they vary by (limit 2%)",
        ),
    ],
)
def test_what_a_screen_holds_to_a_limit_is_seen_to_be_beyond_it(check: Check, told: str) -> None:
    """"at least 90%; limit 90%" beside a verdict that leaves it open looks like a mistake; one seed bounds nothing."""
    assert f": {told}; 3 seeds" in screened_text(Screened(Config(precision="bf16"), check.verdict, (check,), 3, 1000))


@pytest.mark.parametrize(
    ("share", "text"), [(0.0, "0%"), (0.004, "<1%"), (0.005, "<1%"), (0.006, "1%"), (None, "unknown")]
)
def test_a_small_share_is_not_none(share: float | None, text: str) -> None:
    """Validation that was seen took "0% of its time"."""
    assert share_text(share) == text
