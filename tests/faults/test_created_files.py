"""A script that wants an empty folder runs in every trial: what one left is put aside, and data stay."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tuner.child.created_files import CreatedFiles
from tuner.child.files import Overlay
from tuner.child.recorder import Recorder
from tuner.child.records import ChildRequest, Window
from tuner.child.session import Session
from tuner.child.wire import FILES, MADE
from tuner.devices.cpu import cpu_device
from tuner.model import BASELINE, Outcome, Script
from tuner.runner.created_files import (
    DYING_S,
    LARGEST_COMPANION_BYTES,
    LARGEST_RESULT_BYTES,
    MOST_RESULTS,
    REMOVED,
    move_created_files,
)  # fmt: skip
from tuner.runner.process import ProcessRunner
from tuner.runner.request import Interrupted, Limits, TrialRequest
from tuner.storage.folder import RECORDS

TRAIN = """
    import logging, os, pathlib, shutil, subprocess, sys, tempfile, time
    import tuner
    out = pathlib.Path(sys.argv[1])
    os.makedirs(out / "samples")  # fails where it is there
    (out / "args.json").write_text("{}")
    logging.basicConfig(filename=out / "train.log", level="INFO")
    data = pathlib.Path("data")
    if not data.exists():
        data.mkdir()
        (data / "rows.txt").write_text("1 2 3")
        (data / "names.txt").write_text("too small to be data, and read by nobody that is watched")
        subprocess.run(["touch", data / "by-another-program.txt"])
    rows = (data / "rows.txt").read_text()
    for step in range(1, 10_000):
        time.sleep(0.3 if step == 20 else 0.001)  # the first step's moment is known as well as records are prompt
        logging.info("step %d", step)
        if step == 20:
            with tempfile.NamedTemporaryFile(dir=out, delete=False) as file:
                file.write(b"a checkpoint")
            os.replace(file.name, out / "network.bin")
            subprocess.run(["touch", out / "samples" / "picture.png"])
            pathlib.Path("loss.csv").write_text("0.1")
            shutil.copy("loss.csv", out / "loss.csv")
        tuner.report(step=step, samples=8 * step)
        if step == 30 and "hang" in sys.argv:
            time.sleep(600)
"""
WINDOW = Window(warmup_steps=30, warmup_s=0.0, block_s=0.02, min_blocks=6, min_s=0.1, max_s=1.0)


@pytest.fixture
def run(tmp_path: Path, write_script: Callable[..., Path]) -> Callable[..., Outcome]:
    """Runs the script as a trial of its own number, from the folder that it lies in."""
    script = write_script(TRAIN, "project/train.py")

    def trial(number: int, *arguments: str, stop: threading.Event | None = None, **limits: Any) -> Outcome:
        os.chdir(script.parent)
        request = TrialRequest(
            tmp_path / "study" / str(number), Script("train.py", ("out/run", *arguments)), cpu_device(), BASELINE,
            window=WINDOW, limits=Limits(**{"trial_timeout_s": 30.0, **limits}),
        )  # fmt: skip
        return ProcessRunner().run(request, stop or threading.Event())

    return trial


def below(folder: Path) -> set[str]:
    """The files below a folder."""
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


LEFT = {"out/run/args.json", "out/run/train.log", "out/run/network.bin", "out/run/samples/picture.png",
        "out/run/loss.csv", "loss.csv"}  # fmt: skip
DATA = {"data/rows.txt", "data/names.txt", "data/by-another-program.txt"}


@pytest.fixture(autouse=True)
def own_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The tests change the current folder, and come back."""
    monkeypatch.chdir(tmp_path)


def test_every_trial_finds_what_the_first_one_found(run: Callable[..., Outcome], tmp_path: Path) -> None:
    project = tmp_path / "project"
    for number in (0, 1):
        outcome = run(number)
        assert outcome.complete, outcome
        assert below(project) == {"train.py", *DATA}
        assert not (project / "out").exists()
        kept = tmp_path / "study" / str(number) / FILES / str(project).lstrip(os.sep)
        assert below(kept) == LEFT


@pytest.mark.parametrize("how", ["deadline", pytest.param("interrupted", marks=pytest.mark.slow)])
def test_a_trial_that_is_killed_leaves_no_more(run: Callable[..., Outcome], tmp_path: Path, how: str) -> None:
    if how == "deadline":
        assert run(0, "hang", no_progress_s=1.0).reason == "no-progress"
    else:
        stop = threading.Event()
        project = tmp_path / "project"

        def stop_at_the_checkpoint() -> None:
            while not (project / "loss.csv").exists():
                time.sleep(0.02)
            stop.set()

        threading.Thread(target=stop_at_the_checkpoint).start()
        with pytest.raises(Interrupted):
            run(0, "hang", stop=stop)
    assert not below(tmp_path / "project") & LEFT
    assert run(1).complete


def test_files_of_a_run_that_died_with_its_runner_are_moved_first(
    run: Callable[..., Outcome], tmp_path: Path
) -> None:
    out, trial = tmp_path / "project" / "out", tmp_path / "study" / "0"
    trial.mkdir(parents=True)
    for folder in (out, out / "run", out / "run" / "samples"):
        folder.mkdir()
        note(trial, folder, folder=True)
    assert run(0).complete


def test_large_files_and_what_was_there_before_stay(tmp_path: Path) -> None:
    folder, theirs, trial = (tmp_path / name for name in ("made", "theirs", "trial"))
    for path in (folder, theirs, trial):
        path.mkdir()
    for path, size in {
        folder / "archive.h5": LARGEST_RESULT_BYTES + 1, folder / "labels.csv": 10, theirs / "log.txt": 10,
        theirs / "old.txt": 10,
    }.items():  # fmt: skip
        path.write_bytes(b"x" * size)
    note(trial, folder, folder=True)
    for path in (folder / "archive.h5", folder / "labels.csv", theirs / "log.txt", theirs / "gone.txt"):
        note(trial, path)
    with (trial / MADE).open("a") as file:
        file.write('{"made": "torn')
    step = {"v": 1, "kind": "first_step", "t": time.monotonic()}
    (trial / "records.jsonl").write_text(json.dumps(step) + "\n")
    assert move_created_files(trial) == [str(theirs / "log.txt")]
    (theirs / "log.txt").write_text("the user's own, made since")
    assert move_created_files(trial) == []
    (theirs / "log.txt").unlink()
    assert below(folder) == {"archive.h5", "labels.csv"}
    assert below(theirs) == {"old.txt"}
    assert below(trial / FILES) == {str(theirs / "log.txt").lstrip(os.sep)}


def test_what_was_written_since_a_killed_trial_is_the_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The study was killed with its trial. The user trains by hand then, over what that left, and resumes it later."""
    monkeypatch.setattr("tuner.runner.created_files.DYING_S", 0.0)
    out, theirs, trial = (tmp_path / name for name in ("out", "theirs", "trial"))
    for folder in (out, theirs, trial):
        folder.mkdir()
    note(trial, out, folder=True)
    left = [out / "step-1.pt", theirs / "old.pt", out / "best.pt", theirs / "last.pt"]
    for path in left:
        path.write_text("the trial's")
        note(trial, path, model=True)
    (trial / "log.txt").write_text("its last line")
    time.sleep(0.1)
    since = [out / "best.pt", out / "step-2.pt", theirs / "last.pt"]
    for path in since:
        path.write_text("the user's")
        os.utime(path, (0.0, 0.0))  # copied with its age
    assert move_created_files(trial, has_died=True) == [str(path) for path in left[:2]]
    assert {path.read_text() for path in since} == {"the user's"}
    assert below(out) == {"best.pt", "step-2.pt"} and below(theirs) == {"last.pt"}


@pytest.mark.parametrize("has_died", [True, False])
def test_what_a_trial_wrote_last_of_all_is_put_aside(tmp_path: Path, has_died: bool) -> None:
    """While it was being killed, or long after its runner had the last line of it."""
    trial, last = tmp_path / "trial", tmp_path / "last.pt"
    trial.mkdir()
    note(trial, last, model=True)
    last_line = time.time() - (DYING_S / 2 if has_died else 3600.0)
    os.utime(trial / MADE, (last_line, last_line))
    last.write_text("the trial's")
    assert move_created_files(trial, has_died=has_died) == [str(last)]


@pytest.mark.parametrize(("files", "stay"), [(MOST_RESULTS, False), (MOST_RESULTS + 1, True)])
def test_many_small_files_are_data(tmp_path: Path, files: int, stay: bool) -> None:
    """Pictures that were unpacked, and that TensorFlow reads past Python's own open."""
    folder, trial = tmp_path / "pictures", tmp_path / "trial"
    for path in (folder, trial):
        path.mkdir()
    note(trial, folder, folder=True)
    for number in range(files):
        (folder / f"{number}.jpg").write_text("x")
        note(trial, folder / f"{number}.jpg")
    move_created_files(trial)
    assert folder.exists() is stay
    assert len(below(trial)) == (0 if stay else files)


@pytest.mark.parametrize(
    ("cwd", "path", "watched"),
    [
        ("home/project", "home/project/out", True),
        ("home/project", "home/results/out", False),
        ("home/project", "home/.keras/datasets/flowers", False),
        ("home", "home/out", True),
        ("home", "home/.keras/datasets/flowers", False),
        ("home/project", "elsewhere/out", True),
        ("home/project", "home/project/__pycache__/numba.nbi", False),
        ("home/project", "home/project/study/compile-cache", False),
        ("home/project", "home/project/study/compile-cache/ab/code.py", False),
    ],
)
def test_downloads_of_libraries_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cwd: str, path: str, watched: bool
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "home/project/study/compile-cache"))
    monkeypatch.setattr("tempfile.tempdir", "/nowhere")
    (tmp_path / cwd).mkdir(parents=True)
    monkeypatch.chdir(tmp_path / cwd)
    session = Session(ChildRequest(folder=str(tmp_path / "study" / "trials" / "0000")), Recorder(None))
    assert Overlay(session).places.is_watched(str(tmp_path / path)) is watched


def test_what_can_not_be_moved_stays(tmp_path: Path) -> None:
    left = tmp_path / "log.txt"
    left.write_text("x")
    note(tmp_path, left)
    (tmp_path / FILES).write_text("a file, not a folder")
    assert move_created_files(tmp_path) == []
    assert left.read_text() == "x"


def test_models_are_moved_with_what_lies_beside_them(tmp_path: Path) -> None:
    """Saved and loaded again before the first step, in a folder of the user's: data would be left there."""
    theirs, trial = tmp_path / "theirs", tmp_path / "trial"
    for folder in (theirs, trial):
        folder.mkdir()
    sizes = {"model.safetensors": 3 * 2**20, "config.json": 10, "rows.bin": LARGEST_COMPANION_BYTES + 1}
    for name, size in sizes.items():
        (theirs / name).write_bytes(b"x" * size)
        note(trial, theirs / name, model=name.startswith("model"))
        with (trial / MADE).open("a") as file:
            file.write(json.dumps({"read": str(theirs / name)}) + "\n")
    (theirs / "last.safetensors").symlink_to("model.safetensors")
    note(trial, theirs / "last.safetensors")
    move_created_files(trial)
    assert below(theirs) == {"rows.bin"} and not (theirs / "last.safetensors").is_symlink()


def test_files_whose_names_a_library_chose(tmp_path: Path) -> None:
    """Those of a prefix that are new are moved; a cache is removed, however it was left; those of the user's stay."""
    trial, theirs = tmp_path / "trial", tmp_path / "theirs"
    for folder in (trial, theirs):
        folder.mkdir()
    for name in ("ckpt-1.index", "cache_old", "other"):
        (theirs / name).write_text("theirs")
    created = CreatedFiles(str(trial), lambda path, model: True, lambda: False)
    created.will_make_all(str(theirs / "ckpt"), model=True)
    created.will_make_all(str(theirs / "cache"), scratch=True)
    created.will_make_all(str(tmp_path / "saved" / ""))
    for name in ("ckpt-2.index", "ckpt-2.data", "cache_0.lockfile", "cache.data", "by someone else"):
        (theirs / name).write_text("new")
    (tmp_path / "saved" / "deep").mkdir(parents=True)
    (tmp_path / "saved" / "deep" / "file").write_text("new")
    move_created_files(trial)
    assert below(theirs) == {"ckpt-1.index", "cache_old", "other", "by someone else"}
    kept = trial / FILES / str(tmp_path).lstrip(os.sep)
    assert below(kept) == {"theirs/ckpt-2.index", "theirs/ckpt-2.data", "saved/deep/file"}


def test_of_a_trials_files_a_bound_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tuner.runner.created_files.MOST_KEPT_BYTES", 100)
    theirs, trial = tmp_path / "theirs", tmp_path / "trial"
    (trial / FILES).mkdir(parents=True)
    theirs.mkdir()
    (trial / FILES / "diverted").write_bytes(b"x" * 70)
    for name, size in {"huge": 200, "large": 60, "small": 20}.items():
        (theirs / name).write_bytes(b"x" * size)
        note(trial, theirs / name)
    (theirs / "before").write_bytes(b"x" * 300)
    assert move_created_files(trial) == [str(theirs / name) for name in ("huge", "large", "small")]
    assert below(theirs) == {"before"}
    assert {Path(path).name for path in below(trial / FILES)} == {"large", "small"}
    assert (trial / REMOVED).read_text().splitlines() == [f"200\t{theirs / 'huge'}", f"70\t{os.sep}diverted"]


RESUMES = """
    import os, shutil, sys, tempfile, time
    import numpy, tuner
    from safetensors.numpy import load_file, save_file
    places = ["last.safetensors", os.path.join(tempfile.gettempdir(), sys.argv[1], "last.safetensors")]
    for place in places:
        if os.path.exists(place):
            sys.exit("an earlier trial's")
        os.makedirs(os.path.dirname(place) or ".", exist_ok=True)
        save_file({"step": numpy.zeros(2**19)}, place)
        load_file(place)
    os.symlink("last.safetensors", "latest")
    if os.path.exists("out"):
        shutil.rmtree("out")
    os.makedirs("out")
    open("out/log.txt", "w").write("log")
    os.rename("best.txt", "best.txt.old")
    for step in range(1, 10_000):
        time.sleep(0.001)
        tuner.report(step=step, samples=step)
"""


def test_no_trial_resumes_from_an_earlier_one(tmp_path: Path, write_script: Callable[..., Path]) -> None:
    """It saved its model before the first step, read it again, and has files of the user's in its way."""
    script = write_script(RESUMES, "project/train.py")
    project = script.parent
    (project / "out").mkdir()
    for name in ("out/log.txt", "best.txt"):
        (project / name).write_text("the user's")
    os.chdir(project)
    for number in range(2):
        request = TrialRequest(
            tmp_path / "study" / str(number), Script("train.py", (f"resumes-{tmp_path.name}-{os.getpid()}",)),
            cpu_device(), BASELINE, window=WINDOW, limits=Limits(trial_timeout_s=60.0),
        )  # fmt: skip
        outcome = ProcessRunner().run(request, threading.Event())
        assert outcome.complete, outcome
        assert below(project) == {"train.py", "out/log.txt", "best.txt"} and not (project / "latest").is_symlink()
        assert {(project / name).read_text() for name in ("out/log.txt", "best.txt")} == {"the user's"}


def note(trial: Path, path: Path, *, folder: bool = False, model: bool = False) -> None:
    """As the child notes it."""
    with (trial / MADE).open("a") as file:
        line = {"made": str(path), "folder": folder, "model": model, "after_first_step": False}
        file.write(json.dumps(line) + "\n")


def test_what_came_after_the_first_step_is_known_when_the_machine_was_started_anew(tmp_path: Path) -> None:
    """The clock of the trial's records began anew as well, and may be far behind what it had come to."""
    trial, out = tmp_path / "trial", tmp_path / "out"
    trial.mkdir()
    out.mkdir()
    died, began = time.time() - 3, time.monotonic() + 10**6
    for name, age in (("data.bin", 9), ("checkpoint.bin", 2)):
        (out / name).write_bytes(b"by another program")
        os.utime(out / name, (died - age, died - age))
    (trial / MADE).write_text(json.dumps({"made": str(out), "folder": True, "after_first_step": False}) + "\n")
    records: list[dict[str, Any]] = [
        {"t": began, "kind": "hello", "pid": 1, "python": "3", "executable": "p"},
        {"t": began + 5, "kind": "first_step", "seconds": 5.0}, {"t": began + 10, "kind": "exit", "code": 0},
    ]  # fmt: skip
    lines = [json.dumps({"v": 1, **record}) for record in records]
    (trial / RECORDS).write_text("\n".join(lines) + "\n")
    os.utime(trial / RECORDS, (died, died))
    assert move_created_files(trial, has_died=True) == [str(out / "checkpoint.bin")]
    assert os.listdir(out) == ["data.bin"]


def test_a_model_for_which_the_trials_disk_is_too_small_is_left_to_no_other_trial(tmp_path: Path) -> None:
    """The next one would resume from it, and the part of it that fits is of use to nobody."""
    users, trial = Path(tempfile.mkdtemp(dir="/dev/shm")), tmp_path / "trial"
    try:
        if users.stat().st_dev == tmp_path.stat().st_dev:
            pytest.skip("one disk holds both")
        trial.mkdir()
        (users / "model.pt").write_bytes(b"x" * 100_000)
        (trial / MADE).write_text(
            json.dumps({"made": str(users / "model.pt"), "folder": False, "after_first_step": True}) + "\n"
        )
        work = """
            import pathlib, resource, sys
            from tuner.runner.created_files import move_created_files
            resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
            move_created_files(pathlib.Path(sys.argv[1]))
        """
        subprocess.run([sys.executable, "-c", textwrap.dedent(work), str(trial)], timeout=60, check=True)
        assert os.listdir(users) == []
        assert not [path for path in (trial / FILES).rglob("*") if path.is_file()]
        assert (trial / REMOVED).read_text() == f"100000\t{users / 'model.pt'}\n"
    finally:
        shutil.rmtree(users)
