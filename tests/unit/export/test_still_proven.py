"""Whether best.json keeps an earlier proof that the present study has no finals of its own to set against."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from support import fleet, made_up, worlds
from support.ran import Ran

from tuner.analysis.accuracy import Screened
from tuner.analysis.stats import Noninferiority
from tuner.cli.study import write_files
from tuner.export import EXPORTERS, PROFILE
from tuner.knowledge import Knowledge
from tuner.model import Config, Outcome, OutcomeKind, Phase, Trial
from tuner.objective import Objective, amortised
from tuner.result import StudyLimits, StudyResult
from tuner.runner.request import Limits

CONFIG = made_up.CONFIG
CRASHED = Outcome(OutcomeKind.CRASHED, "signal-9", "killed")
WITHOUT_FINALS = replace(
    made_up.RESULT, winner=None, trials=tuple(t for t in made_up.TRIALS if t.phase is not Phase.FINALS)
)


def verdict_after(result: StudyResult, proven: StudyResult = made_up.RESULT) -> str:
    """The verdict in best.json where ``proven`` was written first and ``result`` next."""
    before = PROFILE.serialize(proven, None)
    assert before is not None
    after = PROFILE.serialize(result, before)
    assert after is not None
    [profile] = json.loads(after)["profiles"]
    return str(profile["verdict"])


def bounded(limits: StudyLimits) -> StudyResult:
    return replace(WITHOUT_FINALS, study=replace(made_up.STUDY, limits=limits))


def having(trial: Trial) -> StudyResult:
    return replace(WITHOUT_FINALS, trials=(*WITHOUT_FINALS.trials, trial))


LIMITS = made_up.STUDY.limits


def test_a_study_with_nothing_against_it_keeps_the_proof() -> None:
    assert verdict_after(WITHOUT_FINALS) == "improved"


def test_another_time_limit_is_nothing_against_it() -> None:
    assert verdict_after(bounded(replace(LIMITS, trial_timeout_s=60.0))) == "improved"


@pytest.mark.parametrize("phase", [Phase.SEARCH, Phase.SCREEN, Phase.FINALS])
def test_a_failed_run_of_the_config_ends_its_proof(phase: Phase) -> None:
    assert verdict_after(having(Trial(40, phase, CONFIG, outcome=CRASHED))) == "keep-baseline"


def test_a_failed_run_of_another_config_does_not() -> None:
    assert verdict_after(having(Trial(40, Phase.FINALS, Config(threads=1), outcome=CRASHED))) == "improved"


def test_a_run_that_there_was_no_time_for_does_not() -> None:
    late = Outcome(OutcomeKind.UNFINISHED, "out-of-time", "the study had no more time for it")
    assert verdict_after(having(Trial(40, Phase.SEARCH, CONFIG, outcome=late))) == "improved"


def test_a_failed_probe_does_not() -> None:
    assert verdict_after(having(Trial(40, Phase.PROBE, CONFIG, outcome=CRASHED))) == "improved"


@pytest.mark.parametrize("verdict", [Noninferiority.FAIL, Noninferiority.INCONCLUSIVE])
def test_a_screen_that_does_not_pass_ends_it(verdict: Noninferiority) -> None:
    screened = (Screened(CONFIG, verdict, (), 3, 12800),)
    assert verdict_after(replace(WITHOUT_FINALS, screened=screened)) == "keep-baseline"


def test_a_screen_that_had_no_time_for_more_does_not() -> None:
    """It was left open for that alone: with more time it may pass as it did."""
    late = Screened(CONFIG, Noninferiority.INCONCLUSIVE, (), 3, 12800, lacked_time=True)
    assert verdict_after(replace(WITHOUT_FINALS, screened=(late,))) == "improved"


@pytest.mark.parametrize(
    "limits",
    [
        replace(LIMITS, max_host_bytes=2**30), replace(LIMITS, max_device_bytes=2**30),
        replace(LIMITS, effective_batch="free"), replace(LIMITS, max_loss_increase=0.001),
        replace(LIMITS, min_sample_efficiency=0.99), replace(LIMITS, max_metric_drop={"accuracy": 0.01}),
        replace(LIMITS, screen_samples=10**6), replace(LIMITS, metric_patterns={"accuracy": "acc=(.*)"}),
    ],
)  # fmt: skip
def test_what_was_proven_within_other_limits_is_no_proof_here(limits: StudyLimits) -> None:
    assert verdict_after(bounded(limits)) == "keep-baseline"


def test_what_was_proven_by_another_objective_is_no_proof_here() -> None:
    """The study's folder was emptied but for best.json, or that was copied there; so it is by other planned samples."""
    memory = Objective("memory", "bytes", False, lambda measurement: float(measurement.peak_host_bytes))
    planned = [replace(WITHOUT_FINALS, objective=amortised(fleet.THROUGHPUT, samples)) for samples in (10**4, 10**9)]
    proven = replace(made_up.RESULT, objective=planned[1].objective)
    assert verdict_after(replace(WITHOUT_FINALS, objective=memory)) == "keep-baseline"
    assert [verdict_after(result, proven) for result in planned] == ["keep-baseline", "improved"]


def test_a_proof_of_an_earlier_version_that_names_no_objective_stays() -> None:
    before = PROFILE.serialize(made_up.RESULT, None)
    assert before is not None
    [old] = json.loads(before)["profiles"]
    del old["objective"], old["checksum"]
    after = PROFILE.serialize(WITHOUT_FINALS, json.dumps({"schema": 1, "profiles": [old]}).encode())
    assert after is not None and json.loads(after)["profiles"][0]["verdict"] == "improved"


def test_an_edited_module_ends_it() -> None:
    proven = replace(made_up.RESULT, knowledge=Knowledge(module_hashes={"net.py": "1"}))
    assert verdict_after(replace(WITHOUT_FINALS, knowledge=Knowledge(module_hashes={"net.py": "1"})), proven) == (
        "improved"
    )
    edited = replace(WITHOUT_FINALS, knowledge=Knowledge(module_hashes={"net.py": "2"}))
    assert verdict_after(edited, proven) == "keep-baseline"


def test_a_tighter_memory_limit_takes_the_winner_out_of_the_file(tmp_path: Path) -> None:
    """Each loader worker takes 1 GiB, and without any nothing is proven."""
    world = worlds.World(noise=0.005)

    def hungry(config: Config) -> Outcome:
        outcome = world.outcome(config)
        assert outcome.measurement is not None
        peak = 2**30 * (1 + int(world.value(config, "workers")))
        return replace(outcome, measurement=replace(outcome.measurement, peak_host_bytes=peak))

    verdicts = []
    for most in (None, int(1.5 * 2**30)):
        plan = worlds.plan(tmp_path, selection=("workers",), limits=Limits(max_host_bytes=most))
        write_files(Ran(plan, hungry).result, EXPORTERS)
        verdicts.append(json.loads((tmp_path / PROFILE.file_name).read_bytes())["profiles"][0]["verdict"])
    assert verdicts == ["improved", "keep-baseline"]
