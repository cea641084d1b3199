"""What the summary says beside the verdict, where it has something to say."""

from __future__ import annotations

from dataclasses import replace

from support import made_up

from tuner.model import Outcome, OutcomeKind, Ratio
from tuner.objective import RATE, amortised
from tuner.report.summary import summary


def test_tokens_are_shown_where_sequences_vary() -> None:
    before = replace(made_up.WINNER.baseline, tokens_per_s=43_000.0)
    after = replace(made_up.FASTER, tokens_per_s=61_500.0)
    result = replace(made_up.RESULT, winner=replace(made_up.WINNER, baseline=before, winner=after))
    rows = [line.split() for line in summary(result, {}, "").splitlines() if line.startswith("tokens/s")]
    assert rows == [["tokens/s", "43,000", "61,500"]]
    assert "tokens/s" not in summary(made_up.RESULT, {}, "")


def test_what_validation_costs_is_said_where_it_was_seen() -> None:
    assert "validation takes 12% of its time, and is no part of the rates" in summary(made_up.RESULT, {}, "")
    unseen = replace(made_up.BASELINE, outcome=replace(made_up.BASELINE.outcome, measurement=made_up.measured(1204.0)))  # type: ignore[type-var]
    assert "validation" not in summary(replace(made_up.RESULT, trials=(unseen,)), {}, "")


def test_a_trial_that_had_no_time_has_not_failed() -> None:
    late = replace(made_up.RESULT.trials[-1], outcome=Outcome(OutcomeKind.UNFINISHED, "out-of-time", "no time"))
    lines = summary(replace(made_up.RESULT, trials=(made_up.BASELINE, late)), {}, "").splitlines()
    assert "1 of 2 trials had no time to be measured" in lines
    alone = replace(made_up.RESULT, trials=(made_up.BASELINE, late), winner=None, best=None)
    assert summary(alone, {}, "").startswith("no result: nothing but the script as written was measured")
    assert not [line for line in lines if "failed" in line]


def test_rates_that_lie_further_apart_than_what_is_told_are_explained() -> None:
    """Of a small gain that is proven less is told than the rounds' mean."""
    told = replace(made_up.WINNER, speedup=Ratio(1.31, 1.0, 1.47))
    lines = summary(replace(made_up.RESULT, winner=told), {}, "").splitlines()
    assert [line for line in lines if line.startswith("these rates are 1.42x apart: less is told above")]
    assert "these rates" not in summary(made_up.RESULT, {}, "")
    longer = replace(made_up.RESULT, winner=told, objective=amortised(RATE, 10_000))
    assert "these rates" not in summary(longer, {}, ""), "there the start is a part of the ratio"
