"""What a verification says of a profile's claim, by a study that tried nothing but its config."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from support import made_up

from tuner.analysis.learning import LATER
from tuner.analysis.stats import Noninferiority
from tuner.model import (
    BASELINE,
    Config,
    Evidence,
    KnobReport,
    Outcome,
    OutcomeKind,
    Ratio,
    Reference,
    Trial,
    Verdict,
    Winner,
)
from tuner.objective import RATE, Objective, amortised
from tuner.report.verified import Answer, Claim, verification
from tuner.result import LackOfTime, StudyResult

CLAIM = Claim(made_up.CONFIG, 1.0, Ratio(1.4, 1.35, 1.45))
PASSED = made_up.SCREENED[0]


def searched(**changes: Any) -> Trial:
    """The config's own trial."""
    return replace(made_up.BEST, **changes)


def by(winner: Winner | None, *trials: Trial, **changes: Any) -> StudyResult:
    """A study of the config alone."""
    usual = {"screened": (PASSED,), "trials": (made_up.BASELINE, *(trials or (searched(),)))}
    return replace(made_up.RESULT, winner=winner, **{**usual, **changes})


def won(low: float, high: float, label: str = "") -> Winner:
    """What the finals say of it."""
    verdict = Verdict.IMPROVED if low > 1 and not label else Verdict.KEEP_BASELINE
    return replace(made_up.WINNER, verdict=verdict, speedup=Ratio((low * high) ** 0.5, low, high), label=label)


@pytest.mark.parametrize(
    ("low", "high", "least", "answer"),
    [
        (1.37, 1.47, 1.0, Answer.HOLDS),
        (1.02, 1.06, 1.0, Answer.HOLDS),  # less than it was, and still faster
        (1.37, 1.47, 1.4, Answer.OPEN),
        (1.02, 1.06, 1.4, Answer.FAILS),
        (0.97, 1.03, 1.0, Answer.FAILS),  # surely less than what was proven
        (0.97, 1.41, 1.0, Answer.OPEN),
    ],
)
def test_finals_are_held_against_what_is_asked_and_what_was_proven(
    low: float, high: float, least: float, answer: Answer
) -> None:
    assert verification(by(won(low, high)), replace(CLAIM, least=least)).answer is answer


def test_of_an_earlier_version_no_more_is_known_than_that_it_is_faster() -> None:
    old = replace(CLAIM, proven=None)
    assert verification(by(won(0.97, 1.03)), old).answer is Answer.OPEN
    assert verification(by(won(0.95, 0.99)), old).answer is Answer.FAILS
    assert "proven" not in verification(by(won(1.1, 1.2)), old).why


@pytest.mark.parametrize(("label", "answer"), [(LATER, Answer.FAILS), ("no proof: others", Answer.OPEN)])
def test_finals_that_prove_nothing_verify_nothing(label: str, answer: Answer) -> None:
    found = verification(by(won(1.2, 1.3, label)), CLAIM)
    assert found.answer is answer and label in found.why


@pytest.mark.parametrize(
    ("kind", "answer"),
    [
        (OutcomeKind.INFEASIBLE, Answer.FAILS), (OutcomeKind.CRASHED, Answer.FAILS),
        (OutcomeKind.UNFINISHED, Answer.OPEN), (OutcomeKind.INFRASTRUCTURE, Answer.OPEN),
        (OutcomeKind.TIMED_OUT, Answer.OPEN),  # by a limit that may be too short for this machine
    ],
)  # fmt: skip
def test_a_trial_that_fails_by_the_config_is_no_claim_kept(kind: OutcomeKind, answer: Answer) -> None:
    gone = searched(outcome=Outcome(kind, "reason", "what happened"))
    found = verification(by(None, gone), CLAIM)
    assert found.answer is answer and "what happened" in found.why


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (OutcomeKind.INFEASIBLE, "too-short"), (OutcomeKind.CRASHED, "signal-kill"),
        (OutcomeKind.CRASHED, "worker-killed"), (OutcomeKind.NO_PROGRESS, "crowded-out"),
    ],
)  # fmt: skip
def test_what_others_did_and_what_was_over_too_soon_blames_no_config(kind: OutcomeKind, reason: str) -> None:
    gone = searched(outcome=Outcome(kind, reason, "what happened"))
    found = verification(by(None, gone), CLAIM)
    assert found.answer is Answer.OPEN and "what happened" in found.why


def test_what_fails_in_the_finals_as_the_script_as_written_does_blames_no_config() -> None:
    crash = Outcome(OutcomeKind.CRASHED, "signal-segv", "died of SIGSEGV")
    own = replace(made_up.FINALS[1], config=made_up.CONFIG, outcome=crash)
    written = replace(made_up.FINALS[0], config=BASELINE, outcome=crash)
    assert verification(by(None, searched(), own), CLAIM).answer is Answer.FAILS
    assert verification(by(None, searched(), own, written), CLAIM).answer is Answer.OPEN


def test_a_knob_without_effect_is_no_claim_kept_however_fast_it_is() -> None:
    vain = KnobReport("precision", "bf16", 1, 0, Evidence.NOT_APPLICABLE, "nothing computes in fp32", None)
    measured = made_up.measured(1650.0, knobs=(vain,))
    trial = searched(outcome=Outcome(OutcomeKind.COMPLETE, measurement=measured))
    found = verification(by(won(1.37, 1.47), trial), CLAIM)
    assert found.answer is Answer.FAILS and found.why == "precision isn't in effect: nothing computes in fp32"
    broken = verification(by(won(1.37, 1.47), trial, broke_it=("modules",), fault="made-up/fault.txt"), CLAIM)
    assert broken.answer is Answer.OPEN and broken.why.endswith("left out: modules (made-up/fault.txt)")
    so_proven = replace(CLAIM, in_vain=frozenset({"precision"}))
    assert verification(by(won(1.37, 1.47), trial), so_proven).answer is Answer.HOLDS


@pytest.mark.parametrize(("batch", "answer"), [("keep", Answer.FAILS), ("free", Answer.HOLDS)])
def test_what_keeps_the_samples_of_a_step_no_more_fails_unless_they_were_free(batch: str, answer: Answer) -> None:
    """The script's own batch is another one by now."""
    config = Config(batch_size=32, grad_accumulation=2)
    study = replace(made_up.STUDY, limits=replace(made_up.STUDY.limits, effective_batch=batch))
    changes = {"study": study, "screened": (), "trials": (made_up.BASELINE, searched(config=config))}
    now = replace(made_up.RESULT.knowledge, as_written={"batch_size": 128, "grad_accumulation": 1})
    winner, claim = replace(won(1.37, 1.47), config=config), replace(CLAIM, config=config)
    found = verification(by(winner, knowledge=now, **changes), claim)
    assert found.answer is answer
    if batch == "keep":
        assert found.why == "it trains on 64 samples a step, and the script as written on 128"
    before = replace(now, as_written={"batch_size": 64, "grad_accumulation": 1})
    assert verification(by(winner, knowledge=before, **changes), claim).answer is Answer.HOLDS


def test_on_another_number_of_devices_nothing_is_verified() -> None:
    found = verification(by(won(1.37, 1.47)), replace(CLAIM, devices=8))
    assert found.answer is Answer.OPEN and found.why == "proven on 8 devices of one process, now 1"


def test_one_that_learns_worse_fails_and_one_that_is_not_shown_to_learn_as_well_is_open() -> None:
    worse = replace(PASSED, verdict=Noninferiority.FAIL)
    assert verification(by(None, screened=(worse,)), CLAIM).answer is Answer.FAILS
    assert verification(by(None, screened=(made_up.UNTOLD,)), CLAIM).answer is Answer.OPEN


@pytest.mark.parametrize(
    ("gain", "disturbed", "answer"),
    [
        (Ratio(0.99, 0.97, 1.01), 0, Answer.FAILS),
        (Ratio(0.99, 0.97, 1.01), 1, Answer.OPEN),  # others took the machine: nothing is concluded
        (Ratio(0.99, 0.6, 1.6), 0, Answer.OPEN),
    ],
)
def test_without_finals_its_trial_tells_where_it_surely_is_less(gain: Ratio, disturbed: int, answer: Answer) -> None:
    measured = made_up.measured(1200.0, reference=Reference(1210.0, gain, 20))
    trial = searched(outcome=Outcome(OutcomeKind.COMPLETE, measurement=measured))
    found = verification(by(None, trial, disturbed=disturbed), CLAIM)
    assert found.answer is answer and found.why.startswith("in a single trial 0.99x the speed")


def test_a_single_trial_tells_nothing_of_what_lacked_the_time_for_finals() -> None:
    measured = made_up.measured(1240.0, reference=Reference(1210.0, Ratio(1.02, 1.01, 1.03), 20))
    trial = searched(outcome=Outcome(OutcomeKind.COMPLETE, measurement=measured))
    late = LackOfTime(made_up.CONFIG, 1.02, 900.0, made_up.CONFIG)
    assert verification(by(None, trial), CLAIM).answer is Answer.FAILS
    assert verification(by(None, trial, lacked_time=late), CLAIM).answer is Answer.OPEN


def test_the_speed_of_a_single_trial_decides_nothing_by_another_objective() -> None:
    """What it takes of energy, or over a whole training, may be less though it is slower."""
    measured = made_up.measured(1200.0, reference=Reference(1210.0, Ratio(0.99, 0.97, 1.01), 20))
    trial = searched(outcome=Outcome(OutcomeKind.COMPLETE, measurement=measured))
    energy = Objective("energy", "J/sample", False, lambda measurement: measurement.rate)
    for objective in (energy, amortised(RATE, 5000)):
        assert verification(by(None, trial, objective=objective), CLAIM).answer is Answer.OPEN
    assert "1.42x as good by energy, " in verification(by(won(1.37, 1.47), objective=energy), CLAIM).why
