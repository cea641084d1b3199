"""A best.json or a study.toml may be anybody's: it sets knobs; what else it would do is refused or asked for."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from support.command import AUTOTUNE

from tuner.cli import main
from tuner.devices.cpu import cpu_device
from tuner.devices.host import usable_cores
from tuner.devices.software import software
from tuner.errors import ObjectiveError
from tuner.study.identity import objective_of

SCRIPT = """
import argparse
from pathlib import Path
import tuner
parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=8)
parser.add_argument("--checkpoint", default="mine.pt")
parser.add_argument("--token", default="")
Path("ran.txt").write_text(str(parser.parse_args()))
tuner.report(step=1)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "train.py").write_text(SCRIPT)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write_profile(folder: Path, **changes: Any) -> None:
    """A best.json of this machine as a study writes one, but for the changes."""
    profile = {
        "device": asdict(cpu_device()), "config": {"batch_size": 4}, "verdict": "improved", "speedup": None,
        "environment": dict(software()),
        "script": {"path": "train.py", "module": "", "sha256": "", "argv": []},
        "knowledge": {"options": {"batch_size": "batch_size"}, "as_written": {"batch_size": 8}},
    }  # fmt: skip
    (folder / "best.json").write_text(json.dumps({"schema": 1, "profiles": [{**profile, **changes}]}))


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The real command, without a terminal."""
    command = [AUTOTUNE, "run", "--config", "best.json", *arguments]
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, check=False, timeout=60, stdin=subprocess.DEVNULL
    )


def test_an_honest_profile_sets_its_knob(folder: Path) -> None:
    write_profile(folder)
    done = run(folder, "train.py", "--", "--checkpoint", "a.pt")
    assert done.returncode == 0, done.stderr
    ran = (folder / "ran.txt").read_text()
    assert "batch_size=4" in ran and "checkpoint='a.pt'" in ran
    assert "autotune: at the script's end in effect: batch_size" in done.stderr


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"knowledge": {"options": {"batch_size": "checkpoint"}}}, "batch_size can't be set by the script's option"),
        ({"config": {"checkpoint": "evil.pt"}, "knowledge": {"options": {"checkpoint": "checkpoint"}}},
         "checkpoint can't be set by the script's option"),
        ({"config": {"checkpoint": "evil.pt"}, "knowledge": {}}, "'checkpoint' is no knob"),
        ({"config": {"batch_size": "evil.pt"}}, "batch_size=evil.pt"),
        ({"config": {"batch_size": -1}}, "batch_size=-1"),
        ({"config": {"precision": "/tmp/evil"}}, "precision=/tmp/evil"),
        ({"config": {"compile": "evil"}}, "compile=evil"),
        ({"config": {"threads": "1; evil"}}, "threads=1; evil"),
        ({"config": {"path": "/tmp/evil"}, "knowledge": {"suggested": ["path"]}}, "path=/tmp/evil is no single word"),
        ({"verdict": "keep-baseline"}, "its verdict is keep-baseline, and its config isn't empty"),
        ({"script": {"path": "train.py", "module": "", "sha256": "", "argv": "--evil"}}, "argv a list"),
        ({"environment": {"torch": ["2"]}}, "environment must map names to versions"),
        *(({"cores": cores}, "not a number of cores") for cores in (0, True, "2", 1.5)),
    ],
)  # fmt: skip
def test_what_is_no_knob_is_refused_before_anything_runs(
    folder: Path, capsys: pytest.CaptureFixture[str], changes: dict[str, Any], says: str
) -> None:
    write_profile(folder, **changes)
    assert main(["run", "--config", "best.json", "--device", "cpu", "train.py", "--"]) == 2
    error = capsys.readouterr().err
    assert says in error and "[profile]" in error
    assert not (folder / "ran.txt").exists()


@pytest.mark.parametrize(
    "arguments",
    [["--", "--checkpoint", "a.pt"], *(pytest.param(each, marks=pytest.mark.slow) for each in ([], ["train.py"]))],
)
def test_it_does_not_choose_what_is_run(folder: Path, arguments: list[str]) -> None:
    evil = {"path": "train.py", "module": "", "sha256": "", "argv": ["--checkpoint", "evil.pt"]}
    write_profile(folder, script=evil)
    done = run(folder, *arguments)
    assert done.returncode == 2 and "[untrusted]" in done.stderr, done.stderr
    assert "train.py" in done.stderr, "it says what that would be, and how to name it"
    assert not (folder / "ran.txt").exists()
    done = run(folder, "--trust", *arguments)
    assert done.returncode == 0, done.stderr
    expected = "a.pt" if "--" in arguments else "evil.pt"
    assert f"checkpoint='{expected}'" in (folder / "ran.txt").read_text()


@pytest.mark.parametrize("named", [["--module", "nope"], ["nope.py"]])
def test_nobody_is_asked_of_arguments_for_what_is_not_there(
    folder: Path, capsys: pytest.CaptureFixture[str], named: list[str]
) -> None:
    """It asked for --trust first, and only then said that there is no such module."""
    write_profile(folder)
    assert main(["run", "--config", "best.json", "--device", "cpu", *named]) == 2
    error = capsys.readouterr().err
    assert "there is no " in error and "nope" in error and "[script-not-found]" in error


@pytest.mark.parametrize(
    ("answer", "runs"), [("y\n", True), ("\n", False), pytest.param("n\n", False, marks=pytest.mark.slow)]
)
def test_on_a_terminal_it_asks(folder: Path, answer: str, runs: bool) -> None:
    write_profile(folder)
    ours, theirs = os.openpty()
    try:
        os.write(ours, answer.encode())
        command = [AUTOTUNE, "run", "--config", "best.json"]
        done = subprocess.run(command, cwd=folder, stdin=theirs, stdout=theirs, stderr=theirs, check=False, timeout=60)
    finally:
        os.close(ours)
        os.close(theirs)
    assert (done.returncode == 0) is runs
    assert (folder / "ran.txt").exists() is runs


def test_a_secret_is_not_there_to_be_run_with(folder: Path) -> None:
    masked = {"path": "train.py", "module": "", "sha256": "", "argv": ["--token", "(hidden)"]}
    write_profile(folder, script=masked)
    done = run(folder, "--trust", "train.py")
    assert done.returncode == 2 and "[profile]" in done.stderr
    assert "secrets" in done.stderr and not (folder / "ran.txt").exists()
    done = run(folder, "train.py", "--", "--token", "s3cret")
    assert done.returncode == 0, done.stderr
    assert "its arguments were" not in done.stderr, "another secret is no other training"
    assert "s3cret" not in done.stderr


def test_a_terminal_gets_no_orders(folder: Path) -> None:
    write_profile(folder, environment={**software(), "torch": "\x1b]0;evil\x07\n2"})
    done = run(folder, "train.py", "--")
    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stderr and "\x07" not in done.stderr
    assert "torch was ?]0;evil??2" in done.stderr


def test_edited_modules_are_told_and_refused_where_that_is_asked_for(folder: Path) -> None:
    (folder / "helper.py").write_text("x = 1\n")
    hashes = {"helper.py": "0" * 64, "gone.py": "1" * 64, "../far.py": "2" * 64}
    write_profile(folder, knowledge={"module_hashes": hashes})
    done = run(folder, "train.py", "--")
    assert done.returncode == 0
    assert "helper.py, which the script imports, has changed" in done.stderr
    assert "gone.py, which the script imports, is gone" in done.stderr
    assert "far.py" not in done.stderr
    (folder / "ran.txt").unlink()
    done = run(folder, "--strict", "train.py", "--")
    assert done.returncode == 2 and "[profile]" in done.stderr and not (folder / "ran.txt").exists()


def test_a_profile_that_was_edited_is_told_and_refused_where_that_is_asked_for(folder: Path) -> None:
    write_profile(folder, checksum="0" * 64, config={"threads": 9_999}, cores=usable_cores())
    done = run(folder, "train.py", "--")
    assert done.returncode == 0 and "best.json was edited since the study wrote it" in done.stderr
    assert "threads is 9999, more than the " in done.stderr, "though no other machine wrote it"
    (folder / "ran.txt").unlink()
    done = run(folder, "--strict", "train.py", "--")
    assert done.returncode == 2 and "edited" in done.stderr and not (folder / "ran.txt").exists()


@pytest.mark.parametrize(
    ("cores", "written"),
    [
        (10_000, False), pytest.param(None, True, marks=pytest.mark.slow),
        pytest.param(10_000, True, marks=pytest.mark.slow),
        pytest.param(None, False, marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_a_profile_of_a_larger_machine_is_told_and_refused_where_that_is_asked_for(
    folder: Path, cores: int | None, written: bool
) -> None:
    large = {"threads": 9_999, "num_workers": 8_888}
    write_profile(folder, cores=cores, config=large, knowledge={"as_written": large if written else {"threads": 1}})
    done = run(folder, "train.py", "--")
    assert done.returncode == 0, done.stderr
    assert ("10000 cores could be used, now " in done.stderr) is (cores is not None)
    for knob, value in large.items():
        assert (f"{knob} is {value}, more than the " in done.stderr) is not written
    if cores is not None or not written:
        (folder / "ran.txt").unlink()
        done = run(folder, "--strict", "train.py", "--")
        assert done.returncode == 2 and "[profile]" in done.stderr and not (folder / "ran.txt").exists()


# study.toml

SPACE = """
from pathlib import Path
Path({mark!r}).write_text("")
from tuner.space import SearchSpace
SPACE = SearchSpace("own", "torch", ())
"""


OBJECTIVE = """
from tuner.objective import Objective
OBJECTIVE = Objective("own", "samples/s", True, lambda measurement: measurement.rate)
"""


def plan(*arguments: str) -> int:
    """A dry run: it creates nothing, and yet has loaded the Python files by then."""
    return main(["study", "train.py", "--device", "cpu", "--dry-run", *arguments])


def test_python_that_a_study_toml_loads_is_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "space.py").write_text(SPACE.format(mark=str(folder / "loaded")))
    (folder / "study.toml").write_text('[study]\nspace = "space.py"\n')
    assert plan() == 0
    assert "autotune: study.toml loads Python into autotune itself: space.py" in capsys.readouterr().err
    assert plan("--space", "torch") == 0
    assert "loads Python" not in capsys.readouterr().err


def test_python_from_elsewhere_needs_a_word(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mine = folder / "mine"
    mine.mkdir()
    (folder / "space.py").write_text(SPACE.format(mark=str(folder / "loaded")))
    (mine / "train.py").write_text(SCRIPT)
    (mine / "study.toml").write_text('[study]\nspace = "../space.py"\n')
    asked = ["study", "mine/train.py", "--device", "cpu", "--dry-run"]
    assert main(asked) == 2
    assert "[untrusted]" in capsys.readouterr().err and not (folder / "loaded").exists()
    assert main([*asked, "--trust"]) == 0
    assert (folder / "loaded").exists()


def owned(monkeypatch: pytest.MonkeyPatch, **owners: int) -> None:
    """Makes files of these names another user's, as nobody but root could."""
    monkeypatch.setattr("tuner.cli.trust._owner", lambda file: owners.get(file.stem, os.geteuid()))


def test_a_study_toml_of_another_user_says_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whoever may write beside a script, in the temporary folder say, would choose its arguments and more."""
    (folder / "space.py").write_text(SPACE.format(mark=str(folder / "loaded")))
    for text in ('space = "space.py"', 'args = ["--checkpoint", "evil.pt"]'):
        (folder / "study.toml").write_text(f"[study]\n{text}\n")
        owned(monkeypatch, study=4242)
        assert plan() == 2
        error = capsys.readouterr().err
        assert "study.toml belongs to another user" in error and "[untrusted]" in error
        assert not (folder / "loaded").exists()
        owned(monkeypatch, study=4242, train=4242)  # a project of that user's, whose script is run anyway
        assert plan() == 0
        (folder / "loaded").unlink(missing_ok=True)
    assert plan("--trust") == 0


def test_a_stored_study_loads_no_file_by_being_listed(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = folder / "objective.py"
    own.write_text(f"from pathlib import Path\nPath({str(folder / 'loaded')!r}).write_text('')\n" + OBJECTIVE)
    stored = {"objective": "own (samples/s, higher is better)", "objective.source": str(own)}
    with pytest.raises(ObjectiveError, match="--trust loads it"):
        objective_of(stored)
    assert not (folder / "loaded").exists()
    with pytest.raises(ObjectiveError, match="another one now"):
        objective_of({**stored, "objective": "changed"}, trusted=True)
    assert (folder / "loaded").exists()


def test_what_the_command_line_names_instead_is_not_asked_for(folder: Path) -> None:
    (folder / "study.toml").write_text('[study]\nspace = "/nowhere/space.py"\nobjective = "/nowhere/objective.py"\n')
    assert plan("--space", "torch", "--objective", "throughput") == 0
