"""Whatever ends a study, nothing that has finished is lost or repeated, and nothing is left running."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from support import study_driver

from tuner.errors import ExitCode
from tuner.model import Phase, Trial
from tuner.storage.database import Repository

DRIVER = Path(study_driver.__file__)
# A tiny training whose step takes about a millisecond.
TRAIN = """
    import os, torch
    os.makedirs(os.path.join(os.path.dirname(__file__), "out", "run"))  # fails where it is there
    from torch.utils.data import DataLoader, TensorDataset
    model = torch.nn.Linear(16, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = DataLoader(TensorDataset(torch.randn(512, 16), torch.randint(0, 4, (512,))), batch_size=8)
    for epoch in range(10_000):
        for x, y in loader:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
"""


def start(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(DRIVER), str(folder), *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, env={**os.environ, "PYTHONPATH": f"{DRIVER.parent}:{DRIVER.parent.parent}"},
    )  # fmt: skip


def finish(folder: Path, *arguments: str) -> tuple[int, str]:
    process = start(folder, *arguments)
    output, _ = process.communicate(timeout=150)
    return process.returncode, output


def kill_when(process: subprocess.Popen[str], ready: Callable[[], bool], patience_s: float = 60.0) -> None:
    deadline = time.monotonic() + patience_s
    while not ready() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    process.kill()
    process.communicate(timeout=30)


def children_of_the_trial(folder: Path) -> list[int]:
    """Processes whose environment names this study's folder."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if f"{folder}/".encode() in (entry / "environ").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                continue  # it ended while we looked
    return found


def configs(trials: tuple[Trial, ...], *phases: Phase) -> list[object]:
    return [trial.config for trial in trials if trial.phase in phases]


def test_a_study_killed_again_and_again_loses_and_repeats_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "study"
    chance = random.Random(7)
    kept: tuple[Trial, ...] = ()
    kills = 0

    def outcomes() -> int:
        return len([*folder.glob("trials/*/outcome.json")])

    for _ in range(40):
        # At any moment within a trial, behind some more of them: so each comes farther, on a slow machine, too.
        process, wanted, moment_s = start(folder, "replay"), outcomes() + chance.randint(5, 14), chance.random() * 0.05
        while process.poll() is None and outcomes() < wanted:
            time.sleep(0.01)
        try:
            output, _ = process.communicate(timeout=moment_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            kills += 1
            if (folder / "study.db").exists() and kills % 2:
                after = study_driver.stored_trials(folder)
                assert after[: len(kept)] == kept
                kept = after
            continue
        assert process.returncode == 0, output
        break
    else:
        pytest.fail("the study never came to its end")
    trials = study_driver.stored_trials(folder)
    assert kills >= 1
    assert trials[: len(kept)] == kept
    assert [trial.number for trial in trials] == list(range(len(trials)))
    searched = configs(trials, Phase.BASELINE, Phase.SEARCH)
    assert len(searched) == len(set(searched)) == 8
    unbroken = tmp_path / "unbroken"
    assert finish(unbroken, "replay")[0] == 0
    whole = study_driver.stored_trials(unbroken)
    assert searched == configs(whole, Phase.BASELINE, Phase.SEARCH)
    # A pause is followed by an anchor, so that numbers may differ, and with them the order of the finals.
    for phase in (Phase.SCREEN, Phase.FINALS):
        assert Counter(configs(trials, phase)) == Counter(configs(whole, phase))


@pytest.mark.slow  # 5 s beside three others
@pytest.mark.parametrize(
    "number", [pytest.param(1, marks=pytest.mark.slow), 4, pytest.param(10, marks=pytest.mark.slow)]
)
def test_an_outcome_on_disk_counts_although_the_database_never_heard_of_it(tmp_path: Path, number: int) -> None:
    folder = tmp_path / "study"
    code, _ = finish(folder, "replay", "--die-before-store", str(number))
    assert code == -signal.SIGKILL
    on_disk = folder / "trials" / f"{number - 1:04d}" / "outcome.json"
    before = on_disk.stat().st_mtime_ns
    assert len(study_driver.stored_trials(folder)) == number - 1
    assert finish(folder, "replay")[0] == 0
    assert on_disk.stat().st_mtime_ns == before
    searched = configs(study_driver.stored_trials(folder), Phase.BASELINE, Phase.SEARCH)
    assert len(searched) == len(set(searched)) == 8


@pytest.mark.slow  # what is killed takes its own along: the other files here; it resumes: end_to_end/test_cli_record.py
def test_a_killed_study_takes_its_trial_along_and_resumes(tmp_path: Path, write_script: Callable[..., Path]) -> None:
    script = write_script(TRAIN)
    folder = tmp_path / "study"
    process = start(folder, "real", str(script), "--trials", "2", "--knobs", "threads", "--rounds", "1")
    kill_when(process, (folder / "trials" / "0001" / "records.jsonl").exists)
    deadline = time.monotonic() + 15
    while children_of_the_trial(folder) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert children_of_the_trial(folder) == []
    kept = study_driver.stored_trials(folder)
    assert [trial.number for trial in kept] == [0]
    code, output = finish(folder, "real", str(script), "--trials", "2", "--knobs", "threads", "--rounds", "1")
    assert code == 0, output
    assert study_driver.stored_trials(folder)[:1] == kept
    assert children_of_the_trial(folder) == []


def test_a_second_study_on_the_device_is_refused_until_the_first_is_gone(tmp_path: Path) -> None:
    first = start(tmp_path / "first", "replay", "--trials", "500")
    try:
        deadline = time.monotonic() + 30
        while not (tmp_path / "first" / "trials").exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        first.send_signal(signal.SIGSTOP)  # not through before the others have asked, however slow they are
        code, output = finish(tmp_path / "second", "replay")
        assert code == ExitCode.DEVICE
        assert "device-busy" in output
        assert f"process {first.pid}" in output
        assert "first" in output
        same_folder, output = finish(tmp_path / "first", "replay", "--trials", "500")
        assert same_folder == ExitCode.STORAGE
        assert "is already running" in output
    finally:
        first.kill()
        first.communicate(timeout=30)
    assert finish(tmp_path / "second", "replay", "--trials", "2")[0] == 0


def test_a_full_disk_stops_the_study_and_spares_what_is_done(tmp_path: Path) -> None:
    """A limit on the size of files stands for the disk: writing fails, with another number."""
    folder = tmp_path / "study"
    assert finish(folder, "replay", "--trials", "3")[0] == 0
    before = study_driver.stored_trials(folder)
    size = (folder / "study.db").stat().st_size
    code, output = finish(folder, "replay", "--trials", "60", "--file-limit", str(size + 4096))
    assert code == ExitCode.STORAGE, output
    assert "Traceback" not in output
    assert "study.db" in output
    assert study_driver.stored_trials(folder)[: len(before)] == before
    code, output = finish(folder, "replay", "--trials", "12")
    assert code == 0, output
    searched = configs(study_driver.stored_trials(folder), Phase.BASELINE, Phase.SEARCH)
    assert len(searched) == len(set(searched)) >= 12


def test_a_folder_that_can_not_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    code, output = finish(tmp_path / "file" / "study", "replay")
    assert code == ExitCode.STORAGE
    assert "file/study" in output
    assert "Traceback" not in output


@pytest.mark.slow  # 5 s beside three others
def test_a_torn_outcome_on_disk_is_run_again(tmp_path: Path) -> None:
    folder = tmp_path / "study"
    finish(folder, "replay", "--die-before-store", "3")
    torn = folder / "trials" / "0002" / "outcome.json"
    torn.write_bytes(torn.read_bytes()[:40])
    assert finish(folder, "replay")[0] == 0
    assert len(torn.read_bytes()) > 40


def test_a_database_that_is_none_is_told_by_its_path(tmp_path: Path) -> None:
    folder = tmp_path / "study"
    folder.mkdir()
    (folder / "study.db").write_bytes(b"this is no database" * 100)
    code, output = finish(folder, "replay")
    assert code == ExitCode.STORAGE
    assert "study.db" in output
    assert (folder / "study.db").read_bytes() == b"this is no database" * 100


@pytest.mark.slow
def test_a_trial_over_the_memory_limit_is_infeasible_and_the_study_goes_on(
    tmp_path: Path, write_script: Callable[..., Path]
) -> None:
    # Only the config with one thread takes much: the baseline has to stay below.
    hog = TRAIN + """
            if torch.get_num_threads() == 1 and "hoard" not in globals():
                hoard = torch.ones(2**29)
    """
    script = write_script(hog)
    folder = tmp_path / "study"
    limit = str(1_500_000_000)  # the hoard takes 2 GiB
    options = ["--trials", "2", "--knobs", "threads", "--max-host-bytes", limit]
    code, output = finish(folder, "real", str(script), *options)
    assert code == 0, output
    outcomes = [trial.outcome for trial in study_driver.stored_trials(folder)]
    assert outcomes[0] is not None and outcomes[0].complete
    assert outcomes[1] is not None and outcomes[1].reason == "host-oom"
    repository = Repository(f"sqlite:///{folder / 'study.db'}")
    assert repository.studies()[0].state == "finished"
    repository.close()
