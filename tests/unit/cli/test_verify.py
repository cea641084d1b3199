"""What a verification takes of the profile, of the study.toml beside the script and of the command line."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support import made_up

from tuner.cli import build_parser, verify
from tuner.cli.planning import make_plan
from tuner.cli.settings import Settings, gather
from tuner.errors import DeviceBusyError, ObjectiveError, ProfileError, UsageError, UserScriptError
from tuner.export.profile import Profile, profile_of, read
from tuner.model import Script
from tuner.report.verified import Answer, Claim, Verification
from tuner.study.plan import StudyPlan

DECLARED = """
[study]
trials = 7
budget = "1h"
knobs = ["batch_size"]
device = "cuda:3"
effective_batch = "both"
max_loss_increase = "9%"
min_sample_efficiency = "50%"
max_metric_drop = { accuracy = "5%" }
metric = { accuracy = "acc ([0-9.]+)" }
screen_samples = 123
trial_timeout = "7m"
max_memory = 0.5
ranks = 2
study = "elsewhere"
set = { num_workers = 3 }
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with one script and a study.toml that says of everything something else."""
    (tmp_path / "train.py").write_text("")
    (tmp_path / "study.toml").write_text(DECLARED)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def profile(limits: Mapping[str, Any], **changes: Any) -> Profile:
    """A profile of this machine's processor with other limits: None takes one away."""
    entry = {**profile_of(made_up.RESULT), **changes}
    entry["device"] = {**entry["device"], "kind": "cpu", "index": 0}
    entry["limits"] = {name: value for name, value in {**entry["limits"], **limits}.items() if value != "absent"}
    [one] = read(json.dumps({"schema": 1, "profiles": [entry]}).encode(), "best.json")
    return one


def settings(one: Profile, *options: str) -> Settings:
    """Those of a verification of the profile."""
    arguments = build_parser().parse_args(["verify", "--config", "best.json", *options])
    arguments.script_args = None
    return verify._settings(arguments, Script("train.py", ("--epochs", "3")), one, "best.json")


def plan_in(folder: Path) -> StudyPlan:
    """A study's plan for the script, in that folder."""
    Path("study.toml").unlink()
    arguments = build_parser().parse_args(["study", "train.py", "--device", "cpu"])
    arguments.script_args = []
    return replace(make_plan(gather(arguments)), folder=folder)


def test_the_limits_are_those_of_the_profile_whatever_a_file_beside_the_script_says() -> None:
    found = settings(profile({"max_loss_increase": 0.02, "trial_timeout_s": 600.0, "max_host_bytes": 2**31}))
    assert (found.accuracy.max_loss_increase, found.accuracy.samples) == (0.02, None)
    assert not (found.accuracy.patterns or found.accuracy.metrics)
    assert (found.trial_timeout_s, found.max_memory) == (600.0, f"{2**31}B")
    assert (found.effective_batch, found.ranks, found.device, found.trials) == ("keep", 1, "auto", 2)
    assert (found.knobs, found.pinned, found.folder) == (tuple(made_up.CONFIG), made_up.CONFIG, "")
    assert (found.budget_s, found.args) == (600.0, ("--epochs", "3"))


def test_what_an_earlier_version_did_not_say_is_as_by_default() -> None:
    names = ("max_loss_increase", "min_sample_efficiency", "max_metric_drop", "max_metric_rise", "screen_samples")
    found = settings(profile(dict.fromkeys((*names, "metric_patterns"), "absent")))
    assert found.accuracy == replace(found.accuracy, max_loss_increase=0.01, samples=None, min_sample_efficiency=0.9)
    assert not found.accuracy.metrics and not found.accuracy.patterns


def test_limits_of_a_run_may_be_others_by_the_command_line() -> None:
    one = profile({"trial_timeout_s": 600.0, "max_host_bytes": 2**31})
    found = settings(one, "--trial-timeout", "9s", "--max-memory", "0.7")
    assert (found.trial_timeout_s, found.max_memory) == (9.0, "0.7")


def test_a_small_share_comes_back_as_it_was_written() -> None:
    found = settings(profile({"max_loss_increase": 0.00001, "max_metric_drop": {"accuracy": 2e-7}}))
    assert (found.accuracy.max_loss_increase, found.accuracy.max_metric_drop) == (1e-5, {"accuracy": 2e-7})


def test_samples_that_a_file_has_planned_since_the_proof_can_be_taken_back(here: Path) -> None:
    """The command said to give the study's --planned-samples, which it had none of, and took nothing that says so."""
    (here / "study.toml").write_text("[study]\nplanned_samples = 5000\n")
    one = profile({}, objective="throughput (samples/s)")
    planned, taken_back = settings(one), settings(one, "--planned-samples", "off")
    assert (planned.planned_samples, taken_back.planned_samples) == (5000, None)
    with pytest.raises(ProfileError, match=r"this would be throughput over 5000 samples") as refused:
        verify._check_objective(one, make_plan(planned).objective, "best.json")
    assert "--planned-samples off" in refused.value.hint
    verify._check_objective(one, make_plan(taken_back).objective, "best.json")


@pytest.mark.parametrize("limits", [{"trial_timeout_s": "soon"}, {"max_host_bytes": "much"}, {"max_host_bytes": -1}])
def test_a_limit_that_is_none_is_refused_with_its_place(limits: dict[str, Any]) -> None:
    with pytest.raises(ProfileError, match=r"^best\.json: limits: "):
        settings(profile(limits))


@pytest.mark.parametrize(("error", "runs"), [(DeviceBusyError, False), (UserScriptError, True)])
def test_a_folder_of_its_own_is_left_where_something_was_run_in_it_only(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: type[Exception], runs: bool
) -> None:
    folder = here / "made"

    def fail(plan: Any, *rest: object) -> None:
        (plan.folder / "trials" / "0000").mkdir(parents=True) if runs else plan.folder.mkdir()
        raise error("what happened")

    monkeypatch.setattr(verify, "run_study", fail)
    plan = plan_in(folder)
    with pytest.raises(error):
        verify._studied(plan, is_kept=False)
    assert folder.exists() is runs
    assert capsys.readouterr().err == (f"autotune: what was run: {folder}\n" if runs else "")


def test_a_value_that_the_script_takes_no_more_is_told_of_the_profile(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*given: object) -> None:
        raise UsageError("precision=bf16: that is none of its values here", hint="they are: fp32")

    monkeypatch.setattr(verify, "run_study", refuse)
    found = verify._found(plan_in(here), Claim(made_up.CONFIG, 1.0, None), is_kept=True)
    told = "precision=bf16: that is none of its values here: they are: fp32"
    assert found == Verification(Answer.FAILS, told)


def test_a_declaration_of_the_users_that_fails_says_nothing_of_the_config(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*given: object) -> None:
        raise ObjectiveError("objective.py: division by zero")

    monkeypatch.setattr(verify, "run_study", fail)
    with pytest.raises(ObjectiveError):
        verify._found(plan_in(here), Claim(made_up.CONFIG, 1.0, None), is_kept=True)
