"""Whatever a script does to what was there before: it sees what plain Python shows it, and nothing changes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.data_scripts import ARROW, NATIVE
from support.file_attacks import HARMLESS, HARNESS, PYTHON, prepare, state
from support.file_scripts import KERAS, LIBRARIES, MATRICES, PROCESSES, TENSORFLOW, TRAINERS, TRANSFORMERS

from tuner.child.wire import KEPT
from tuner.runner.created_files import move_created_files

TELLS = """
import builtins, tuner
tuner.report(step=1)  # what comes now isn't preparation
def print(*what, sep=" "):
    builtins.print("\\n=> " + sep.join(map(str, what)).replace("\\n", "\\n=> "), flush=True)
"""
PLAIN = {**os.environ, "OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": ""}


@pytest.fixture
def compare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_child: Callable[..., Any]) -> Callable[..., Any]:
    """Runs the script ``train.py`` of the project under plain Python in a copy of it, and as a trial in itself."""

    def run(script: str, project: Path, timeout: float = 120.0) -> Any:
        copy = tmp_path / "plain" / project.name
        shutil.copytree(project, copy, symlinks=True)
        for folder in (project, copy):
            (folder / "train.py").write_text(TELLS + script)
        plain = subprocess.run(
            [sys.executable, "train.py"], cwd=copy, env=PLAIN, capture_output=True, text=True, timeout=timeout,
            check=False,
        )  # fmt: skip
        assert plain.returncode == 0, plain.stderr
        time.sleep(0.05)
        before = state(project)
        monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "2")
        trial = run_child(project / "train.py", timeout=timeout)
        assert told(trial.output) == told(plain.stdout), trial.output
        assert trial.returncode == 0
        assert not [note for note in trial.of("note") if "could not be instrumented" in note["text"]]
        (step,) = trial.of("first_step")
        line = {"v": 1, "kind": "first_step", "t": step["t"], "seconds": 0.0}
        (trial.folder / "records.jsonl").write_text(json.dumps(line) + "\n")
        move_created_files(trial.folder)
        assert state(project) == before
        return trial

    return run


def told(output: str) -> list[str]:
    """What the script printed, without what libraries do."""
    return [line for line in output.splitlines() if line.startswith("=> ")]


def prepare_by(script: str, project: Path, argument: str) -> None:
    """What a run of the user's left: the same script, asked for its folder alone."""
    (project / "prepare.py").write_text(script)
    ran = subprocess.run(
        [sys.executable, "prepare.py", argument], cwd=project, env=PLAIN, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr


def test_pythons_own_calls(tmp_path: Path, compare: Callable[..., Any]) -> None:
    project = tmp_path / "project"
    prepare(project, list(PYTHON))
    trial = compare(f"ATTACKS = {json.dumps(PYTHON)}\n{HARNESS}", project)
    assert "through" in trial.output
    notes = [note["text"] for note in trial.of("note")]
    assert any("diverted" in note for note in notes) and any("kept" in note for note in notes)
    kept = {json.loads(line) for line in (trial.folder / KEPT).read_text().splitlines()}
    assert {Path(path).relative_to(project).parts[0] for path in kept} == {*PYTHON} - HARMLESS
    assert all(os.path.lexists(path) for path in kept)


def test_files_of_the_users_in_the_temporary_folder(tmp_path: Path, compare: Callable[..., Any]) -> None:
    """Neither the current folder nor one that an argument names."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    project = tmp_path / "project"
    project.mkdir()
    script = """
        import os, shutil
        folder = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "elsewhere")
        os.makedirs(folder, exist_ok=True)
        for name in ("a.txt", "b.txt"):
            with open(os.path.join(folder, name), "w") as file:
                file.write("of a trial")
            print(open(os.path.join(folder, name)).read())
    """
    (elsewhere / "a.txt").write_text("the user's")
    before = state(elsewhere)
    compare(textwrap.dedent(script), project)
    assert state(elsewhere) == before


@pytest.mark.slow
def test_libraries_that_write_past_python(tmp_path: Path, compare: Callable[..., Any]) -> None:
    """In a folder with files of the same names, and in a new one."""
    project = tmp_path / "project"
    project.mkdir()
    script = textwrap.dedent(LIBRARIES)
    prepare_by(script, project, "prepare")
    assert len(list((project / "theirs").iterdir())) > 8
    compare(script, project)


@pytest.mark.slow  # 5 s beside three others
def test_processes_that_the_script_starts_anew(tmp_path: Path, compare: Callable[..., Any]) -> None:
    """Each is a fresh Python: what was diverted before is seen there, and what it diverts is seen here."""
    project = tmp_path / "project"
    project.mkdir()
    for name in ("log.txt", "first.txt", "gone.txt", "x.safetensors", "all.txt"):
        (project / name).write_text("the user's")
    compare(textwrap.dedent(PROCESSES), project)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "first"),
    [
        # Loaded by Rust: into a folder of the script's own making, and over a model of the user's.
        pytest.param(TRANSFORMERS, "theirs", id="a pretrained model is loaded as it was saved"),
        pytest.param(TENSORFLOW, "prepare", id="TensorFlow writes through C"),
        pytest.param(KERAS, "theirs", id="Keras models"),
        pytest.param(ARROW, "prepare", id="Arrow and Parquet"),
        pytest.param(NATIVE, "prepare", id="OpenCV and LMDB"),
        pytest.param(MATRICES, "prepare", id="SciPy's Matrix Market"),
        pytest.param(TRAINERS, "prepare", id="trainers resume from what is there, and sweep it"),
    ],
)
def test_frameworks_read_back_what_they_write(
    tmp_path: Path, compare: Callable[..., Any], script: str, first: str
) -> None:
    project = tmp_path / "project"
    project.mkdir()
    prepare_by(textwrap.dedent(script), project, first)
    compare(textwrap.dedent(script), project)


def test_a_diverted_file_that_is_read_past_python_is_told_of(
    tmp_path: Path, write_script: Callable[..., Path], run_child: Callable[..., Any]
) -> None:
    (tmp_path / "theirs.txt").write_text("the user's")
    (tmp_path / "unread.txt").write_text("the user's")
    time.sleep(0.05)
    script = write_script("""
        import subprocess
        for name in ("theirs.txt", "unread.txt"):
            with open(name, "w") as file:
                file.write("of a trial")
            print(open(name).read())
        print(subprocess.run(["cat", "theirs.txt"], capture_output=True, text=True).stdout)
    """)
    run = run_child(script)
    assert run.output.splitlines() == ["of a trial", "of a trial", "the user's"]
    (remark,) = run.facts["remarks"]
    assert remark.startswith(str(tmp_path / "theirs.txt"))
