"""Of the user's files: what takes the place of one that the script removed, and what it sets of one that stays."""

from __future__ import annotations

import os
import stat
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.in_process import Log, session_of

from tuner.child import python_files
from tuner.child.files import Overlay
from tuner.child.patches import unpatch_all
from tuner.runner.created_files import move_created_files


@pytest.fixture
def overlay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Overlay]:
    """Of a trial in whose script's folder a file, a large file and a folder were before."""
    project = tmp_path / "project"
    (project / "folder").mkdir(parents=True)
    (project / "theirs").write_text("theirs")
    with (project / "large").open("wb") as large:
        large.truncate(python_files.MOST_COPIED_BYTES + 1)
    for name in ("theirs", "large", "folder"):
        os.utime(project / name, (1000, 1000))
    time.sleep(0.02)
    (tmp_path / "trial").mkdir()
    monkeypatch.chdir(project)
    made = Overlay(session_of({"folder": str(tmp_path / "trial")}, Log()))
    python_files.install(made)
    yield made
    unpatch_all()


@pytest.mark.parametrize("named", ["mkfifo", "mknod"])
def test_a_pipe_may_take_the_place_of_a_file_that_was_removed(overlay: Overlay, named: str) -> None:
    """It raised ``FileExistsError`` in a trial, and in no other run."""
    kinds: dict[str, Callable[[str], None]] = {
        "mkfifo": os.mkfifo, "mknod": lambda path: os.mknod(path, 0o600 | stat.S_IFIFO)
    }  # fmt: skip
    make = kinds[named]
    with pytest.raises(FileExistsError):
        make("theirs")
    os.remove("theirs")
    make("theirs")
    assert stat.S_ISFIFO(os.stat("theirs").st_mode)
    os.remove("theirs")
    assert not os.path.exists("theirs")
    unpatch_all()
    assert Path("theirs").read_text() == "theirs"


def test_the_next_trial_finds_no_pipe_of_the_one_before(overlay: Overlay) -> None:
    """A trial that is ended at its window removes none: the next one's ``os.mkfifo`` raised ``FileExistsError``."""
    os.mkdir("made")
    for name in ("new", "made/inside"):
        os.mkfifo(name)
        assert stat.S_ISFIFO(os.stat(name).st_mode)
        os.close(os.open(name, os.O_RDONLY | os.O_NONBLOCK))
    unpatch_all()
    move_created_files(Path(overlay.folder))
    assert sorted(os.listdir()) == ["folder", "large", "theirs"]


def test_the_script_sees_the_permissions_and_times_that_it_set(overlay: Overlay) -> None:
    os.utime("theirs", (5000, 5000))
    assert os.stat("theirs").st_mtime == 5000
    os.chmod("theirs", 0o640)
    assert (os.stat("theirs").st_mode & 0o777, os.stat("theirs").st_mtime) == (0o640, 5000)
    assert Path("theirs").read_text() == "theirs"
    unpatch_all()
    status = os.stat("theirs")
    assert (status.st_mode & 0o777, status.st_mtime) == (0o644, 1000), "the user's stay"


def write(name: str) -> None:
    Path(name).write_text("new")


def put_in_place(name: str) -> None:
    write("other")
    os.replace("other", name)


@pytest.mark.parametrize("writes", [None, write, put_in_place])
def test_only_what_is_written_anew_is_out_of_date_elsewhere(
    overlay: Overlay, writes: Callable[[str], None] | None
) -> None:
    """Of a file whose times alone were set it was said that it was written anew, and that its old version is read."""
    os.utime("theirs", (5000, 5000))
    if writes is not None:
        writes("theirs")
    subprocess.run(["cat", "theirs"], check=True, capture_output=True)
    assert overlay.stale_reads.seen() == ([os.path.abspath("theirs")] if writes is not None else [])


@pytest.mark.parametrize("name", ["large", "folder"])
def test_of_what_is_not_copied_it_is_said_that_they_stay(overlay: Overlay, name: str) -> None:
    os.utime(name, (5000, 5000))
    assert os.stat(name).st_mtime == 1000
    log = overlay.session.recorder
    assert isinstance(log, Log)
    assert [note["text"] for note in log.of("note")] == [
        f"left the permissions and times of {os.path.abspath(name)} as they were"
    ]


class Prepared:
    """Rows that are made once, and found in a file by later epochs."""

    def __getitem__(self, index: int) -> str:
        path = Path(f"row{index}.txt")
        if not path.exists():
            path.write_text(str(index))
        return path.read_text()


@pytest.mark.parametrize(
    ("steps", "rows", "is_told"), [(1, 64, True), (0, 64, False), (1, 4, False)], ids=["many", "prepared", "few"]
)
def test_data_that_write_what_they_make_are_told(overlay: Overlay, *, steps: int, rows: int, is_told: bool) -> None:
    """Each trial makes them anew: the rate of a first epoch was told, of which no later one has anything."""
    overlay.session.clock.total_steps = steps
    data = Prepared()
    for index in range(rows):
        assert data[index] == str(index)
        Path(f"picture{index}.txt").write_text("what the loop writes is no matter")
    told = [text for text in overlay.session.facts.remarks if "later epochs" in text]
    assert len(told) == is_told and all("row0.txt" in text for text in told)


class Decoded:
    """Rows that go through a file, which nobody keeps."""

    def __getitem__(self, index: int) -> str:
        path = Path(f"clip{index}.txt")
        path.write_text(str(index))
        text = path.read_text()
        path.unlink()
        return text


class Replaced:
    """Rows that are found in files, of which none is ever there by half."""

    def __getitem__(self, index: int) -> str:
        path, half = Path(f"row{index}.txt"), Path(f"row{index}.half")
        half.write_text(str(index))
        os.replace(half, path)
        return path.read_text()


@pytest.mark.parametrize(("data", "named"), [(Decoded(), None), (Replaced(), "row0.txt")])
def test_only_files_that_are_there_still_are_told_of_data(
    overlay: Overlay, data: Decoded | Replaced, named: str | None
) -> None:
    """Files that were removed as soon as they were read were told as what a later epoch finds."""
    overlay.session.clock.total_steps = 1
    assert [data[index] for index in range(64)] == [str(index) for index in range(64)]
    told = [text for text in overlay.session.facts.remarks if "later epochs" in text]
    assert len(told) == (named is not None) and all(str(named) in text for text in told)
