"""The larger effective batch in best.json: written beside the winner, read back, kept, and refused where unproven."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from support import made_up

from tuner.errors import ProfileError
from tuner.export import PROFILE
from tuner.export.profile import Profile, of_tier_3, profile_of, read
from tuner.model import Config, OutcomeKind, Phase, Ratio, Verdict
from tuner.result import LargerBatch, StudyResult

PROVEN = made_up.WITH_LARGER
UNPROVEN = replace(PROVEN, larger=LargerBatch(made_up.LARGER_CONFIG, 2.9, why="no time left"))


def written(result: StudyResult, existing: bytes | None = None) -> dict[str, Any]:
    content = PROFILE.serialize(result, existing)
    assert content is not None
    [profile] = json.loads(content)["profiles"]
    return dict(profile)


def read_back(document: dict[str, Any]) -> Profile:
    (profile,) = read(json.dumps({"schema": 1, "profiles": [document]}).encode(), "best.json")
    return profile


def test_the_profile_keeps_its_meaning_beside_it() -> None:
    beside, alone = profile_of(PROVEN), profile_of(replace(PROVEN, larger=None))
    assert {**beside, "tier3": None, "screens": None} == {**alone, "screens": None}
    profile = read_back(beside)
    assert profile.config == made_up.CONFIG and profile.tier3 is not None
    assert (profile.tier3.config, profile.tier3.sooner) == (made_up.LARGER_CONFIG, 2.278)
    third = of_tier_3(profile, "best.json")
    assert (third.config, third.speedup, third.verdict) == (made_up.LARGER_CONFIG, 2.278, Verdict.IMPROVED)
    assert replace(third, config=profile.config, speedup=profile.speedup) == profile


def test_its_own_fields_say_how_far_it_is_proven() -> None:
    tier3 = profile_of(PROVEN)["tier3"]
    assert tier3["verdict"] == "improved" and tier3["accuracy"]["verdict"] == "pass" and tier3["measurement"]
    assert tier3["speedup"]["ratio"] * tier3["sample_efficiency"]["ratio"] == pytest.approx(
        tier3["time_to_loss"]["ratio"], rel=1e-3
    )
    unproven = profile_of(UNPROVEN)["tier3"]
    assert (unproven["verdict"], unproven["runs"], unproven["reason"]) == ("keep-baseline", 0, "no time left")
    assert unproven["single_trial_gain"] == 2.9 and unproven["time_to_loss"] is None


def test_what_is_not_proven_is_not_applied() -> None:
    for result, says in ((UNPROVEN, "no proof of a larger"), (replace(PROVEN, larger=None), "no larger effective")):
        with pytest.raises(ProfileError, match=says) as raised:
            of_tier_3(read_back(profile_of(result)), "best.json")
        assert "leave out --tier 3" in raised.value.hint and "--budget" not in raised.value.hint
    with pytest.raises(ProfileError, match=r"no time left$"):  # what may help stands in the reason, where anything does
        of_tier_3(read_back(profile_of(UNPROVEN)), "best.json")


def test_a_file_of_an_earlier_version_has_none() -> None:
    old = profile_of(made_up.RESULT)
    del old["tier3"]
    profile = read_back(old)
    assert profile.tier3 is None and profile.config == made_up.CONFIG


@pytest.mark.parametrize(
    "tier3",
    [
        [], "faster", 3, {}, {"config": {"batch_size": 64}}, {"config": {"batch_size": [64]}, "verdict": "improved"},
        {"config": {}, "verdict": "improved"}, {"config": {"batch_size": 64}, "verdict": "sooner"},
        {"config": {"batch_size": 64}, "verdict": "improved", "time_to_loss": {"low": 1.0}},
        {"config": {"batch_size": 64}, "verdict": "keep-baseline", "reason": ["no time left"]},
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_named(tier3: Any) -> None:
    with pytest.raises(ProfileError, match=r"profiles\[0\]"):
        read_back({**profile_of(made_up.RESULT), "tier3": tier3})


def test_a_study_without_finals_leaves_either_proof_standing() -> None:
    """What keeps the batch isn't proven here, and the larger one is."""
    alone = replace(PROVEN, winner=None, trials=made_up.TRIALS[:6])
    before = PROFILE.serialize(alone, None)
    assert before is not None
    nothing = replace(alone, larger=None, screened=())
    assert written(nothing, before)["tier3"]["verdict"] == "improved"
    finals = replace(alone, larger=replace(made_up.LARGER, winner=replace(
        made_up.LARGER.winner or made_up.WINNER, verdict=Verdict.KEEP_BASELINE
    )))  # fmt: skip
    assert written(finals, before)["tier3"]["verdict"] == "keep-baseline", "its own finals decide"
    failed = made_up.failed(40, made_up.LARGER_CONFIG, OutcomeKind.CRASHED, "signal-9", "killed")
    against = replace(nothing, trials=(*nothing.trials, failed))
    assert written(against, before)["tier3"] is None


def test_the_finals_of_one_contest_leave_the_proof_of_the_other_one() -> None:
    before = PROFILE.serialize(PROVEN, None)
    assert before is not None
    keeping = replace(PROVEN, larger=None, screened=made_up.SCREENED, winner=made_up.KEEP)
    after = written(keeping, before)
    assert (after["verdict"], after["tier3"]["verdict"]) == ("keep-baseline", "improved")
    trials = tuple(t for t in PROVEN.trials if t.phase is not Phase.FINALS)
    lost = replace(made_up.LARGER.winner or made_up.WINNER, verdict=Verdict.KEEP_BASELINE)
    larger = replace(PROVEN, winner=None, trials=trials, larger=replace(made_up.LARGER, winner=lost))
    other = written(larger, before)
    assert (other["verdict"], other["tier3"]["verdict"]) == ("improved", "keep-baseline")
    for document in (after, other):
        assert read_back(document).edited is False


def test_a_proof_stands_whether_or_not_larger_batches_are_tried() -> None:
    limits = made_up.STUDY.limits
    before = PROFILE.serialize(made_up.RESULT, None)
    assert before is not None and limits.effective_batch == "keep"
    trials = tuple(t for t in made_up.TRIALS if t.phase is not Phase.FINALS)
    for mode, stands in (("both", True), ("keep", True), ("free", False)):
        study = replace(made_up.STUDY, limits=replace(limits, effective_batch=mode))
        later = replace(made_up.RESULT, winner=None, trials=trials, study=study)
        assert (written(later, before)["verdict"] == "improved") is stands


def test_secrets_are_no_part_of_it() -> None:
    larger = LargerBatch(Config(batch_size=64), 2.0, None, Ratio(0.9, 0.8, 1.0), None, "hunter2")
    secret = replace(PROVEN, larger=larger)
    script = replace(made_up.SCRIPT, argv=("--password", "hunter2"))
    told = json.dumps(profile_of(replace(secret, study=replace(made_up.STUDY, script=script))))
    assert "hunter2" not in told
