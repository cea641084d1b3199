"""What the child is told and in which environment it starts."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from tuner.child import wire
from tuner.child.records import ChildRequest, Mode, ProbeSide, Window
from tuner.devices.cpu import cpu_device
from tuner.knowledge import Knowledge
from tuner.masking import MASK
from tuner.model import BASELINE, Config, Device, Script
from tuner.runner.launch import applied_request, child_environment, child_request, device_environment
from tuner.runner.process import ProcessRunner
from tuner.runner.request import Limits, TrialRequest
from tuner.storage.codec import encode_outcome
from tuner.storage.folder import make_private

CARD = Device("cuda", 3, "NVIDIA H100", "GPU-1234", 80 * 2**30)


def request(folder: Path, **fields: Any) -> TrialRequest:
    given: dict[str, Any] = {"script": Script("train.py", ("--lr", "0.1")), "device": CARD, "config": {}, **fields}
    return TrialRequest(folder, **given)


def test_a_child_sees_its_card_alone_and_as_the_first(tmp_path: Path) -> None:
    environment = child_environment(request(tmp_path), tmp_path / "request.json", 9)
    assert environment["CUDA_VISIBLE_DEVICES"] == "GPU-1234"
    assert environment[wire.RECORDS_ENV] == "9"
    assert environment[wire.REQUEST_ENV] == str(tmp_path / "request.json")
    assert child_request(request(tmp_path), parent_pid=1, started=0.0).device == "cuda:0"


def test_a_card_without_a_uuid_is_named_by_number(tmp_path: Path) -> None:
    card = Device("cuda", 3, "card", "", 0)
    assert child_environment(request(tmp_path, device=card), tmp_path, 9)["CUDA_VISIBLE_DEVICES"] == "3"


def test_a_rank_of_several_chooses_its_card_itself() -> None:
    assert device_environment(CARD, BASELINE, alone=True) == {"CUDA_VISIBLE_DEVICES": "GPU-1234"}
    assert device_environment(CARD, Config(threads=2), alone=False) == {"OMP_NUM_THREADS": "2"}


def test_a_run_sees_what_plain_python_would_unless_a_device_is_asked_for() -> None:
    assert device_environment(CARD, Config(threads=2), shown=False) == {"OMP_NUM_THREADS": "2"}
    assert device_environment(cpu_device(), BASELINE, shown=False) == {}
    assert device_environment(cpu_device(), BASELINE) == {"CUDA_VISIBLE_DEVICES": ""}


def test_threads_are_set_only_where_the_config_turns_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    assert child_environment(request(tmp_path), tmp_path, 9)["OMP_NUM_THREADS"] == "5"
    assert child_environment(request(tmp_path, config={"threads": 2}), tmp_path, 9)["OMP_NUM_THREADS"] == "2"


def test_trackers_are_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "online")
    environment = child_environment(request(tmp_path), tmp_path, 9)
    assert environment["WANDB_MODE"] == "disabled"
    assert environment["MLFLOW_TRACKING_URI"].startswith(tmp_path.as_uri())


def test_the_request_holds_everything_that_the_child_may_know(tmp_path: Path) -> None:
    knowledge = Knowledge(training_loaders=("a",))
    asked = request(
        tmp_path, config={"workers": 2}, knowledge=knowledge, limits=Limits(5.0, max_device_bytes=5), seed=3,
        probe=ProbeSide.LOADER,
    )  # fmt: skip
    for_child = child_request(asked, parent_pid=77, started=1.5, used_device_bytes=9)
    assert for_child == ChildRequest(
        mode=Mode.TRIAL, script=str(Path("train.py").absolute()), script_as_given="train.py", argv=("--lr", "0.1"),
        device="cuda:0", config={"workers": 2}, knowledge=knowledge, folder=str(tmp_path.absolute()),
        window=Window(max_s=5.0), deadline_s=5.0, seed=3, probe=ProbeSide.LOADER, max_device_bytes=5,
        used_device_bytes=9, parent_pid=77, spawned_monotonic=1.5,
    )  # fmt: skip
    assert wire.decode_request(wire.encode_request(for_child)) == for_child
    assert child_request(request(tmp_path), parent_pid=77, started=1.5).window.max_s == 20.0


def test_an_applied_run_is_not_measured() -> None:
    applied = applied_request(Script("", (), module="package.train"), CARD, Config(workers=2), Knowledge())
    assert applied == ChildRequest(Mode.APPLY, module="package.train", device="cuda:0", config={"workers": 2})


def test_what_a_trial_leaves_is_closed_to_others_and_holds_no_secret(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import sys\nprint('got', sys.argv[1:])\n")
    folder = tmp_path / "study" / "trials" / "0000"
    asked = TrialRequest(folder, Script(str(script), ("--token", "s3cret", "--lr", "1")), cpu_device(), BASELINE)
    ProcessRunner().run(asked, threading.Event())
    assert "got ['--token', 's3cret', '--lr', '1']" in (folder / "log.txt").read_text(), "the script has all of it"
    kept = (folder / "request.json").read_text()
    assert "s3cret" not in kept and MASK in kept
    assert wire.decode_request(kept).argv == ("--token", MASK, "--lr", "1")
    for closed, mode in ((folder.parent, 0o700), (folder, 0o700), (folder / "request.json", 0o600),
                         (folder / "log.txt", 0o600)):  # fmt: skip
        assert closed.stat().st_mode & 0o777 == mode, closed


def test_what_a_trial_ended_as_repeats_no_secret(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import sys\nraise ValueError(f'{sys.argv} and ' + sys.argv[-1])\n")
    argv = ("--wandb_key", "s3cret", "--data", "https://h/d?sig=s3cret2", "ghp_s3cret3s3cret3")
    asked = TrialRequest(tmp_path / "trials" / "0000", Script(str(script), argv), cpu_device(), BASELINE)
    outcome = ProcessRunner().run(asked, threading.Event())
    assert outcome.reason == "script-raised" and MASK in outcome.detail and MASK in outcome.traceback_text
    assert "s3cret" not in encode_outcome(outcome)


def test_a_trials_folder_of_an_earlier_version_is_closed(tmp_path: Path) -> None:
    folder = tmp_path / "trials" / "0001"
    folder.mkdir(parents=True, mode=0o755)
    make_private(folder)
    assert folder.stat().st_mode & 0o777 == 0o700
    assert folder.parent.stat().st_mode & 0o777 != 0o700, "what was there before isn't ours to close"


def test_what_a_trial_ended_as_repeats_no_secret_of_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "s3cret0123")
    script = tmp_path / "train.py"
    script.write_text("import os\nraise ValueError('no login with ' + os.environ['WANDB_API_KEY'])\n")
    asked = TrialRequest(tmp_path / "trial", Script(str(script), ()), cpu_device(), BASELINE)
    outcome = ProcessRunner().run(asked, threading.Event())
    assert outcome.detail == f"ValueError: no login with {MASK}"
    assert "s3cret" not in encode_outcome(outcome)


def test_a_secret_that_is_a_word_of_the_script_changes_nothing_that_is_known_of_it(tmp_path: Path) -> None:
    """What is known goes to the next trials, which look for the same names."""
    script = tmp_path / "train.py"
    script.write_text("import tuner\nfor n in range(9):\n    tuner.report(step=n)\n")
    seen = []
    for argv in ((), ("--password", "steps")):
        asked = TrialRequest(tmp_path / "trial", Script(str(script), argv), cpu_device(), BASELINE)
        seen.append(ProcessRunner().run(asked, threading.Event()).knowledge)
    assert seen[0].unit == seen[1].unit == "steps"
