"""What happens to an earlier study when a new one is asked for."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tuner.cli import build_parser, main
from tuner.cli.planning import make_plan, set_aside
from tuner.cli.settings import gather
from tuner.devices.host import usable_cores
from tuner.errors import ExitCode, StorageError
from tuner.export import PROFILE
from tuner.model import BASELINE, Device, Phase
from tuner.storage.database import NewTrial, Repository
from tuner.storage.folder import DATABASE
from tuner.storage.lock import FolderLock
from tuner.storage.studies import open_study
from tuner.study.identity import identity_of

TWO_CORES = pytest.mark.skipif(usable_cores() < 2, reason="two ranks need two cores")


def study_in(folder: Path) -> Path:
    folder.mkdir()
    (folder / DATABASE).write_text("earlier", encoding="utf-8")
    return folder


def test_an_earlier_study_is_moved_to_the_next_free_name(tmp_path: Path) -> None:
    (tmp_path / "study.1").mkdir()
    assert set_aside(tmp_path / "study", None) is None
    folder = study_in(tmp_path / "study")
    assert set_aside(folder, None) == tmp_path / "study.2"
    assert not folder.exists()
    assert (tmp_path / "study.2" / DATABASE).read_text(encoding="utf-8") == "earlier"


def test_a_study_that_is_running_is_not_moved(tmp_path: Path) -> None:
    folder = study_in(tmp_path / "study")
    with FolderLock(folder), pytest.raises(StorageError, match="is already running"):
        set_aside(folder, None)
    assert (folder / DATABASE).exists()


def test_a_dry_run_moves_no_running_study_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It said that the earlier study is set aside, which the same command without it refused."""
    monkeypatch.chdir(tmp_path)
    Path("train.py").touch()
    folder = study_in(tmp_path / "study")
    words = ["study", "train.py", "--device", "cpu", "--study", "study", "--new", "--dry-run"]
    with FolderLock(folder):
        assert main(words) == ExitCode.STORAGE
    assert "the study in study is already running" in capsys.readouterr().err
    assert main(words) == ExitCode.OK


def test_a_study_in_the_current_folder_is_not_moved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = study_in(tmp_path / "study")
    (folder / "below").mkdir()
    for here, given in ((folder, "."), (folder / "below", ".."), (folder, str(folder))):
        monkeypatch.chdir(here)
        with pytest.raises(StorageError, match="it is the current folder"):
            set_aside(Path(given), None)
    assert (folder / DATABASE).exists()


@pytest.mark.parametrize("dry", [["--dry-run"], []])
def test_a_study_in_the_folder_of_its_script_is_not_moved(
    dry: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The script went with it, and all that lay beside it; the new study then failed for want of the script."""
    monkeypatch.chdir(tmp_path)
    folder = study_in(tmp_path / "project")
    (folder / "train.py").write_text("", encoding="utf-8")
    (tmp_path / "linked.py").symlink_to(folder / "train.py")
    for script in ("project/train.py", "linked.py"):
        assert main(["study", script, "--device", "cpu", "--study", "project", "--new", *dry]) == ExitCode.STORAGE
        told = capsys.readouterr().err
        assert f"can't move project to project.1: {script} lies in it" in told and "--study project/study" in told
    assert sorted(os.listdir()) == ["linked.py", "project"]


@TWO_CORES
def test_a_study_of_several_ranks_has_a_folder_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text("import torch\n", encoding="utf-8")
    for options, folder in (([], "autotune-mine-cpu "), (["--ranks", "2"], "autotune-mine-cpu-2-ranks ")):
        assert main(["study", "mine.py", "--device", "cpu", "--dry-run", *options]) == 0
        assert folder in capsys.readouterr().out


@pytest.mark.parametrize("ranks", [pytest.param(2, marks=TWO_CORES), 1])
def test_a_dry_run_names_the_knobs_that_there_are_on_its_device(
    ranks: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On a processor it named those of cards, of XLA devices and, for one process, of several ranks."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("import torch\n", encoding="utf-8")
    command = ["study", "train.py", "--device", "cpu", "--space", "torch", "--ranks", str(ranks), "--dry-run"]
    assert main(command) == 0
    [row] = [line for line in capsys.readouterr().out.splitlines() if line.startswith("search space")]
    named = set(row.partition(": ")[2].split(", "))
    assert {"num_workers", "compile"} <= named
    assert not named & {"pin_memory", "cudnn_benchmark", "device_prefetch_size"}
    assert ("ddp_bucket_mb" in named) is (ranks == 2)


def begin(command: list[str], *, measures: bool = True) -> None:
    """The study that this command would begin, killed in its first trial, or before it ``measures`` anything."""
    arguments = build_parser(("study",)).parse_args(command)
    arguments.script_args = None
    plan = make_plan(gather(arguments))
    plan.folder.mkdir()
    repository = Repository(plan.url)
    study = repository.create_study(plan.name, identity_of(plan))
    if measures:
        repository.start_trial(study.id, NewTrial(Phase.BASELINE, BASELINE), "host:1:1")
    repository.close()


@pytest.mark.parametrize("option", [[], ["--new"]])
def test_a_dry_run_says_what_becomes_of_an_earlier_study(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], option: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("", encoding="utf-8")
    command = ["study", "train.py", "--device", "cpu", "--study", "s", "--dry-run", *option]
    assert main(command) == 0
    assert "folder          s (new)\n" in capsys.readouterr().out
    begin(command)
    Path("s.1").mkdir()
    assert main(command) == 0
    said = "new; the earlier study is set aside as s.2" if option else "resumes"
    told = capsys.readouterr().out
    assert f"folder          s ({said})\n" in told
    assert "effective batch kept, and larger ones tried beside that\n" in told
    assert sorted(path.name for path in tmp_path.iterdir()) == ["s", "s.1", "train.py"]
    assert [path.name for path in Path("s").iterdir()] == [DATABASE]


def test_a_dry_run_refuses_what_the_study_would(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It said "resumes" of a study whose script was edited, and of one that was running."""
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("", encoding="utf-8")
    command = ["study", "train.py", "--device", "cpu", "--study", "s", "--dry-run"]
    begin(command)
    with FolderLock(Path("s")):
        assert main(command) == ExitCode.STORAGE
        assert "is already running" in capsys.readouterr().err
    Path("train.py").write_text("edited = True\n", encoding="utf-8")
    assert main(command) == ExitCode.STUDY
    told = capsys.readouterr()
    assert "script.sha256" in told.err and "--new" in told.err and not told.out
    assert main([*command, "--new"]) == 0
    Path("s", PROFILE.file_name).write_text('{"schema": 1, "profi', encoding="utf-8")
    assert main(command) == ExitCode.USAGE
    assert "hint: move it away" in capsys.readouterr().err
    Path("s", PROFILE.file_name).unlink()
    Path("s", DATABASE).write_text("no database", encoding="utf-8")
    assert main(command) == ExitCode.STORAGE
    assert "not a database" in capsys.readouterr().err


def test_a_dry_run_prints_no_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("", encoding="utf-8")
    assert main(["study", "train.py", "--device", "cpu", "--dry-run", "--", "--token", "s3cret", "--lr", "1"]) == 0
    said = capsys.readouterr()
    assert "--token '(hidden)' --lr 1" in said.out and "s3cret" not in said.out + said.err


def test_a_limit_that_nothing_can_hold_a_device_to_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("", encoding="utf-8")
    tpu = Device("tpu", 0, "v5e-1", "v5e-1", 0)
    monkeypatch.setattr("tuner.cli.planning.resolve_device", lambda text: tpu)
    assert main(["study", "train.py", "--device", "tpu", "--dry-run"]) == 0
    assert main(["study", "train.py", "--device", "tpu", "--dry-run", "--max-memory", "8GiB"]) == ExitCode.USAGE
    assert "--max-memory 8GiB: nothing tells how much of its memory a tpu has or uses" in capsys.readouterr().err


def test_a_dry_run_takes_what_the_study_would(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that holds no results is of whatever is studied now: a script that failed as written was mended."""
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("", encoding="utf-8")
    command = ["study", "train.py", "--device", "cpu", "--study", "s", "--dry-run"]
    begin(command, measures=False)
    Path("train.py").write_text("mended = True\n", encoding="utf-8")
    assert main(command) == 0


def test_a_dry_run_takes_a_study_that_was_killed_as_it_began(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was refused, with the hint to start one: the study itself begins in that database."""
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("", encoding="utf-8")
    Path("s").mkdir()
    (Path("s") / DATABASE).touch()
    assert main(["study", "train.py", "--device", "cpu", "--study", "s", "--dry-run"]) == 0


def test_of_many_studies_a_few_are_named(tmp_path: Path) -> None:
    """The trials of a folder with 673 studies below it were refused by 30 kB of their names."""
    for number in range(40):
        study_in(tmp_path / f"study-{number:02}")
    with pytest.raises(StorageError, match="there are 40 studies") as refused:
        open_study(str(tmp_path))
    assert refused.value.message.count("study-") == 8 and refused.value.message.endswith("study-07, ...")
    assert f"autotune studies {tmp_path} lists them" in refused.value.hint


def test_a_script_whose_name_is_no_text_is_refused_as_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The study's database was said to hold something that autotune didn't write."""
    monkeypatch.chdir(tmp_path)
    name = os.fsdecode(b"caf\xe9.py")
    Path(name).write_text("", encoding="utf-8")
    Path("train.py").write_text("", encoding="utf-8")
    for words in ([name], ["train.py", "--study", name], ["train.py", "--", name]):
        assert main(["study", *words]) == ExitCode.USAGE
        assert "its bytes are no utf-8" in capsys.readouterr().err
    assert sorted(os.listdir()) == sorted([name, "train.py"])
