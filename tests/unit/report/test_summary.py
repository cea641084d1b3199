"""What the summary says beside the verdict, where it has something to say."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from support import made_up

from tuner.analysis.stats import Noninferiority
from tuner.model import BASELINE, Config, Evidence, KnobReport, Outcome, OutcomeKind, Phase, Ratio, Trial
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
    # A teacher that is done with its training, and put into eval(), takes two milliseconds, and validates nothing.
    passing = replace(made_up.BASELINE.outcome, measurement=made_up.measured(1204.0, validation_share=6e-4))  # type: ignore[type-var]
    over = replace(made_up.RESULT, trials=(replace(made_up.BASELINE, outcome=passing),))
    assert "validation" not in summary(over, {}, "")


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


def unproven(*finals: Trial, best: Config = made_up.CONFIG, **changes: Any) -> str:
    """The first line of a study without a winner, whose fastest trial has that config."""
    fastest = replace(made_up.BEST, config=best)
    trials = (made_up.BASELINE, fastest, *finals)
    return summary(replace(made_up.RESULT, winner=None, best=fastest, trials=trials, **changes), {}, "").splitlines()[0]


def test_why_the_fastest_is_not_proven_is_said_of_itself() -> None:
    """Another one's failure in the finals was told of it, and one that was screened without its vain knob was late."""
    crashed = Outcome(OutcomeKind.CRASHED, "crash", "boom")
    own, other = (Trial(30, Phase.FINALS, one, outcome=crashed) for one in (made_up.CONFIG, Config(channels_last=True)))
    assert unproven() == "not proven: no time left to prove it"
    assert unproven(own) == "not proven: it failed in the finals"
    assert unproven(other) == "not proven: channels_last=true came before it, and failed in the finals"
    written = Trial(31, Phase.FINALS, BASELINE, outcome=crashed)
    assert unproven(written) == "not proven: the script as written failed in the finals"
    failed = replace(made_up.SCREENED[0], verdict=Noninferiority.FAIL)
    said = "not proven: it was not shown to learn as well as the script as written"
    assert unproven(screened=(failed,)) == said
    assert unproven(screened=(failed,), interrupted=True) == said
    assert unproven(interrupted=True) == "not proven: the study ended before the finals began"
    begun = Trial(32, Phase.FINALS, BASELINE, outcome=made_up.BEST.outcome)
    assert unproven(begun, interrupted=True) == "not proven: the study ended before the finals finished"
    alike = Config({**made_up.CONFIG, "num_workers": 1})
    sibling = "not proven: what it changes beside speed failed the screen of num_workers=2 precision=bf16"
    assert unproven(screened=(failed,), best=alike) == unproven(screened=(failed,), best=alike, interrupted=True)
    assert unproven(screened=(failed,), best=alike) == sibling
    untold_in_time = replace(failed, verdict=Noninferiority.INCONCLUSIVE, lacked_time=True)
    assert unproven(screened=(untold_in_time,), best=alike) == "not proven: no time left to prove it"
    is_open = replace(untold_in_time, lacked_time=False)
    assert "was not shown to learn as well in the screen of" in unproven(screened=(is_open,), best=alike)
    crash = replace(failed, checks=())
    assert unproven(screened=(crash,), best=alike) == "not proven: no time left to prove it", "only its own run failed"
    report = KnobReport("pin_memory", True, 0, 0, Evidence.NOT_APPLICABLE)
    assert made_up.BEST.measurement is not None and made_up.BEST.outcome is not None
    measured = replace(made_up.BEST.measurement, knobs=(*made_up.BEST.measurement.knobs, report))
    vain = replace(
        made_up.BEST, config=Config({**made_up.CONFIG, "pin_memory": True}),
        outcome=replace(made_up.BEST.outcome, measurement=measured),
    )  # fmt: skip
    result = replace(made_up.RESULT, winner=None, best=vain, trials=(made_up.BASELINE, vain), screened=(failed,))
    assert summary(result, {}, "").splitlines()[0] == said
    passed, larger = made_up.SCREENED[0], replace(made_up.UNTOLD, config=Config(batch_size=64))
    assert unproven(screened=(passed, larger)) == "not proven: no time left to prove it"
    untold = replace(made_up.UNTOLD, config=Config(precision="fp16"))
    assert "a screen can't tell how it learns" in unproven(screened=(untold,))
    assert unproven(screened=(untold,), best=Config(num_workers=2)) == "not proven: no time left to prove it"


def test_a_larger_batch_takes_as_many_steps_as_the_samples_that_it_needs() -> None:
    """Four times the batch, which learns as from 81% of its samples: a quarter of the steps would reach less."""
    lines = summary(made_up.WITH_LARGER, {}, "").splitlines()
    assert made_up.LARGER.efficiency is not None and f"{1 / made_up.LARGER.efficiency.ratio:.2f}" == "1.23"
    told = "a script that trains for so many steps, not epochs, needs 0.31 times as many for the same loss"
    assert f"  each step trains on 4 times the samples: {told}" in lines
