"""Which knobs met nothing to turn: of these no value is tried again."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support import worlds

from tuner.model import BASELINE, Config, Evidence, KnobReport, Outcome, OutcomeKind, Phase, Trial
from tuner.search.history import History


def ran(*, sites_changed: int = 1, of_value: bool | None = None, **turned: Evidence) -> Outcome:
    """What a trial says of the knobs that it turned."""
    reports = tuple(
        KnobReport(knob, 1, 1, sites_changed, evidence, of_value=of_value) for knob, evidence in turned.items()
    )
    return worlds.measured(100.0, knobs=reports)


def history(*trials: tuple[Config, Outcome]) -> History:
    baseline = Trial(0, Phase.BASELINE, BASELINE, "", worlds.measured(100.0))
    found = [Trial(n, Phase.SEARCH, config, "", outcome) for n, (config, outcome) in enumerate(trials, 1)]
    return History(worlds.resolved("workers", "precision"), worlds.OBJECTIVE, [baseline, *found])


IDLE, WORKS = ran(workers=Evidence.NOT_APPLICABLE), ran(workers=Evidence.VERIFIED)
NOTHING_THERE = ran(sites_changed=0, workers=Evidence.NOT_APPLICABLE)


def test_a_value_that_is_at_work_anyway_tells_nothing_of_the_others() -> None:
    """TensorFlow makes one call of a map at once by itself: the study never came to two, with which it was twice as
    fast.
    """
    seen = history((Config(workers=1), IDLE))
    assert not seen.without_effect and not seen.is_ruled_out(Config(workers=2))


@pytest.mark.parametrize(
    ("trials", "is_idle"),
    [
        ([(Config(workers=1), NOTHING_THERE)], True),
        ([(Config(workers=1), ran(of_value=False, workers=Evidence.NOT_APPLICABLE))], True),
        ([(Config(workers=1), ran(sites_changed=0, of_value=True, workers=Evidence.NOT_APPLICABLE))], False),
        ([(Config(workers=1), IDLE), (Config(workers=2), IDLE)], True),
        ([(Config(workers=1), IDLE), (Config(workers=1, precision="bf16"), IDLE)], False),
        ([(Config(workers=1), IDLE), (Config(workers=2), IDLE), (Config(workers=4), WORKS)], False),
        ([(Config(workers=1), NOTHING_THERE), (Config(workers=4), WORKS)], False),
    ],
    ids=[
        "nothing there", "so says the trial", "written so", "two values", "one value twice", "a third one works",
        "another one works",
    ],
)  # fmt: skip
def test_a_knob_is_idle_where_nothing_is_there_or_two_values_change_nothing(
    trials: list[tuple[Config, Outcome]], *, is_idle: bool
) -> None:
    seen = history(*trials)
    assert ("workers" in seen.without_effect) is is_idle
    assert seen.is_ruled_out(Config(workers=8)) is is_idle


def test_what_is_cut_off_says_nothing_of_its_knobs() -> None:
    outcome = replace(IDLE, measurement=None)
    assert not history((Config(workers=1), outcome)).without_effect


def test_a_value_for_which_the_study_had_no_time_is_tried_in_company_all_the_same() -> None:
    late = Outcome(OutcomeKind.UNFINISHED, "out_of_time", "the study had no more time for it")
    failed = Outcome(OutcomeKind.CRASHED, "error", "ValueError")
    company = Config(workers=2, precision="bf16")
    assert not history((Config(workers=2), late)).is_ruled_out(company)
    assert history((Config(workers=2), failed)).is_ruled_out(company)
