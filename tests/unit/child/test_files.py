"""Which path is meant by one of the script's, what is a model, and when a file came to be."""

from __future__ import annotations

import bz2
import glob
import importlib
import json
import os
import shutil
import sys
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from support.file_attacks import state
from support.in_process import Log, session_of

from tuner.child import births, python_files
from tuner.child.files import Overlay
from tuner.child.formats.arrow import divert_arrow
from tuner.child.patches import unpatch_all
from tuner.child.places import Places
from tuner.child.stale_reads import StaleReads
from tuner.child.torch.files import divert_torch, is_model


@pytest.fixture
def overlay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Overlay]:
    """Of a trial whose folder lies beside the user's, where a file and a folder were before."""
    project = tmp_path / "project"
    (project / "folder").mkdir(parents=True)
    for name in ("theirs", "folder/inner"):
        (project / name).write_text(name)
    time.sleep(0.02)  # file systems stamp to a few milliseconds
    (tmp_path / "trial").mkdir()
    monkeypatch.chdir(project)
    yield Overlay(session_of({"folder": str(tmp_path / "trial")}, Log()))
    unpatch_all()


def test_a_file_is_as_old_as_the_file_system_says(tmp_path: Path) -> None:
    before = births.now()
    path = tmp_path / "file"
    path.write_text("x")
    os.utime(path, (1, 1))
    time.sleep(0.02)
    born = births.birth(str(path))
    assert born is not None and before <= born < births.now()
    link = tmp_path / "link"
    link.symlink_to(path)
    assert births.birth(str(link)) == born
    assert (births.birth(str(link), follow=False) or 0) > born
    assert births.birth(str(tmp_path / "none")) is None


def test_new_files_are_written_where_the_script_says(overlay: Overlay) -> None:
    assert overlay.for_writing("new") == "new"
    assert overlay.saving("new.pt") == "new.pt"
    assert overlay.loading("new.pt") == "new.pt"
    assert not overlay.is_active


def test_the_users_are_diverted_by_any_name(overlay: Overlay, tmp_path: Path) -> None:
    target = overlay.for_writing("theirs", keep_content=True)
    assert str(target).startswith(str(tmp_path / "trial")) and Path(target).read_text() == "theirs"
    assert overlay.for_reading(b"theirs") == overlay.for_reading(Path("folder/../theirs")) == target
    os.symlink("theirs", "link")
    assert overlay.for_reading("link") == overlay.for_writing("link") == target
    assert overlay.for_reading(3) == 3 and overlay.for_reading("gs://bucket/theirs") == "gs://bucket/theirs"


def test_no_process_finds_half_a_copy(overlay: Overlay) -> None:
    """Workers that open one file of the user's for writing at once, each with an overlay of its own."""
    other = Overlay(overlay.session)
    overlay.is_shared = other.is_shared = True
    seen: list[Path] = []
    held: list[str] = []

    def slowly(source: str, target: str) -> None:
        Path(target).write_text(Path(source).read_text()[:3])
        seen.append(Path(str(other.for_writing("theirs", keep_content=True))))
        held.append(seen[0].read_text())
        seen[0].write_text("of the other")
        Path(target).write_text(Path(source).read_text())

    place = Path(str(overlay.for_writing("theirs", keep_content=True, copy=slowly)))
    assert (seen, held) == ([place], ["theirs"]) and place.read_text() == "of the other"
    assert [path.name for path in place.parent.iterdir() if path.is_file()] == ["theirs"]


def test_what_the_script_removed_was_not_made_by_the_trial(overlay: Overlay, tmp_path: Path) -> None:
    """It would be moved away from the user once the trial is over."""
    python_files.install(overlay)
    try:
        os.remove("theirs")
        os.remove("folder/inner")
        assert not os.path.lexists("theirs") and os.listdir("folder") == []
        overlay.created.will_make(os.path.abspath("theirs"))
        overlay.created.will_make_all(os.path.abspath("folder") + os.sep)
    finally:
        unpatch_all()
    [note] = [json.loads(line) for line in (tmp_path / "trial" / "made.jsonl").read_text().splitlines()]
    assert (note["made"], note["had"]) == (os.path.abspath("folder") + os.sep, ["inner"])


def test_a_lock_that_holds_nothing_is_shared(overlay: Overlay) -> None:
    """Who locks it waits for whoever else does; what others hold is the user's."""
    Path("empty.lock").touch()
    Path("poetry.lock").write_text("x")
    os.utime("empty.lock", (1, 1))
    time.sleep(0.02)
    overlay.began = births.now()
    time.sleep(0.02)
    assert overlay.for_writing("empty.lock") == "empty.lock"
    assert overlay.for_writing("poetry.lock") != "poetry.lock"


def test_what_a_variable_of_the_users_calls_a_cache_is_protected(
    overlay: Overlay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And so is the project, where a library's cache is said to be around it."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for name, path, free in (
        ("DATA_CACHE", elsewhere, False), ("TORCH_HOME", elsewhere, True), ("HF_HOME", tmp_path, False),
    ):  # fmt: skip
        monkeypatch.setenv(name, str(path))
        assert Places(overlay.session.request).is_protected(str(elsewhere / "x"), False) is not free
        monkeypatch.delenv(name)


@pytest.mark.parametrize(
    ("saved", "model"),
    [
        (OrderedDict({"layer.weight": 1}), True),
        ({"epoch": 3, "net": {"layer.weight": 1, "layer.bias": 2}}, True),
        ({"state": {}, "param_groups": []}, True),
        ({"inputs": [1], "labels": [2]}, False),
        (([1, 2], {"slices": 1}), False),
        ([1.0, 2.0], False),
    ],
)
def test_models_are_told_from_data(saved: object, model: bool) -> None:
    assert is_model(saved) is model


@pytest.mark.parametrize("from_storage", [False, True])
def test_a_large_file_that_is_mapped_to_be_written_to_is_not_copied(
    overlay: Overlay, tmp_path: Path, from_storage: bool
) -> None:
    """A corpus of 200 GB that is only read was copied in each trial."""
    theirs = tmp_path / "project" / "corpus.bin"
    with theirs.open("wb") as file:
        file.truncate(2**28 + 1)
    os.utime(theirs, (1, 1))
    overlay.began = births.now() + 1
    divert_torch(overlay, torch)
    if from_storage:
        mapped = torch.UntypedStorage.from_file("corpus.bin", nbytes=8, shared=True)
    else:
        mapped = torch.from_file("corpus.bin", True, 8, dtype=torch.uint8)
    mapped[0] = 7
    assert mapped[0] == 7 and theirs.read_bytes()[:1] == b"\0"
    assert not overlay.diverted and not [path for path in (tmp_path / "trial").rglob("*") if path.name == "corpus.bin"]
    assert isinstance(overlay.session.recorder, Log)
    (note,) = overlay.session.recorder.of("note")
    assert "corpus.bin" in note["text"] and "stays in memory" in note["text"]
    longer = torch.UntypedStorage.from_file("corpus.bin", True, 2**28 + 8)
    assert len(longer) == 2**28 + 8 and theirs.stat().st_size == 2**28 + 1, "which the trial's own version is made"


def test_a_table_is_read_through_each_link_and_in_no_circle(overlay: Overlay, tmp_path: Path) -> None:
    """Two links to one folder were taken for a circle, and the rows below one of them disappeared."""
    pyarrow, parquet = (importlib.import_module(name) for name in ("pyarrow", "pyarrow.parquet"))
    real, seen = tmp_path / "real", tmp_path / "project" / "seen"
    (real / "sub").mkdir(parents=True)
    seen.mkdir()
    parquet.write_table(pyarrow.table({"a": [1, 2]}), real / "sub" / "x.parquet")
    parquet.write_table(pyarrow.table({"a": [1]}), seen / "z.parquet")
    for name in ("p1", "p2"):
        (seen / name).symlink_to("../../real")
    overlay.began = births.now() + 1
    divert_arrow(overlay, sys.modules["pyarrow.parquet.core"])
    parquet.write_table(pyarrow.table({"a": [7, 7, 7]}), "seen/z.parquet")
    assert overlay.is_active and parquet.ParquetDataset("seen").read().num_rows == 7
    (real / "sub" / "up").symlink_to("..")
    assert parquet.ParquetDataset("seen").read().num_rows == 7


def test_reads_of_the_old_version_are_seen(tmp_path: Path) -> None:
    reads, paths = StaleReads(), [tmp_path / name for name in "ab"]
    assert reads.seen() == []
    for path in paths:
        path.write_text("x")
        reads.watch(str(path))
    assert reads.seen() == []
    for _ in range(2):
        paths[1].read_text()
    assert reads.seen() == [str(paths[1])]


NAMES = ("theirs", "folder", "folder/inner", "new", "new/deep", "folder/new", "theirs/inner")


def _write(name: str, text: str, mode: str = "w") -> None:
    with open(name, mode) as file:
        file.write(text)


def _replace_all(name: str, text: str) -> None:
    _write("t", text)
    os.replace("t", name)


def _listing(name: str) -> object:
    entries = sorted(os.scandir(name), key=lambda entry: entry.name)
    told = [(e.path, e.is_dir(), e.is_symlink(), e.stat(follow_symlinks=False).st_size) for e in entries]
    return sorted(os.listdir(name)), [fact[:3] if fact[1] else fact for fact in told]


def _change_folder(name: str) -> str:
    before = os.getcwd()
    os.chdir(name)
    return os.path.relpath(os.getcwd(), before)


DONE: dict[str, Callable[[str, str], object]] = {
    "write": _write,
    "append": lambda name, other: _write(name, other, "a"),
    "read": lambda name, other: Path(name).read_text(),
    "rename": lambda name, other: os.rename(name, dst=other),
    "replace_all": _replace_all,
    "rmtree": lambda name, other: shutil.rmtree(name),
    "symlink": lambda name, other: os.symlink(other, name),
    "readlink": lambda name, other: (os.readlink(name), os.path.relpath(os.path.realpath(name))),
    "chdir": lambda name, other: _change_folder(name),
    "up": lambda name, other: os.path.basename(os.getcwd()) in ("plain", "trial") or _change_folder(".."),
    "list": lambda name, other: _listing(name),
    "exists": lambda name, other: (os.path.exists(name), os.path.isdir(name), os.path.islink(name), _listing(".")),
    "remove": lambda name, other: os.remove(name),
    "mkdir": lambda name, other: os.mkdir(name),
    "rmdir": lambda name, other: os.rmdir(name),
}
STEPS = st.lists(st.tuples(st.sampled_from(sorted(DONE)), st.sampled_from(NAMES), st.sampled_from(NAMES)), max_size=12)


def _do(call: str, name: str, other: str) -> object:
    try:
        return DONE[call](name, other)
    except OSError as error:
        return type(error).__name__
    finally:
        if os.path.exists("t"):
            os.remove("t")


def _fill(folder: Path) -> None:
    (folder / "folder").mkdir(parents=True)
    for name in ("theirs", "folder/inner"):
        (folder / name).write_text(name)


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=settings().max_examples // 3
)  # each looks through all modules that there are
@given(steps=STEPS)
@example(steps=[("rename", "folder", "new/deep")])
@example(steps=[("rename", "folder", "theirs/deep")])
@example(steps=[("rename", "new/deep", "theirs/inner"), ("rename", "new", "theirs/inner")])
@example(steps=[("rename", "folder/inner", "folder")])
@example(steps=[("remove", "theirs", ""), ("symlink", "theirs", "folder"), ("write", "theirs/inner", "x")])
@example(steps=[("rmtree", "folder", ""), ("mkdir", "folder", ""), ("chdir", "folder", ""), ("write", "new", "x")])
@example(steps=[("rename", "folder", "new"), ("symlink", "folder", "new"), ("write", "folder/inner", "x")])
@example(steps=[("remove", "theirs", ""), ("symlink", "theirs/inner", "")])
@example(steps=[("write", "new", ""), ("remove", "theirs", ""), ("rename", "theirs", "new/deep")])
def test_any_sequence_of_calls_gives_what_plain_python_gives(
    steps: list[tuple[str, str, str]], tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = tmp_path_factory.mktemp("sequence")
    for name in ("plain", "trial"):
        _fill(base / name)
    monkeypatch.chdir(base / "plain")
    expected = [_do(*step) for step in steps]
    time.sleep(0.02)
    before = state(base / "trial")
    (base / "study").mkdir()
    monkeypatch.chdir(base / "trial")
    overlay = Overlay(session_of({"folder": str(base / "study")}, Log()))
    python_files.install(overlay)
    try:
        assert [_do(*step) for step in steps] == expected
    finally:
        unpatch_all()
    after = state(base / "trial")
    assert {name: after.get(name) for name in before} == before


def test_what_a_class_of_glob_took_is_led(overlay: Overlay, monkeypatch: pytest.MonkeyPatch) -> None:
    """In Python 3.13 ``Path.glob`` told a script the files that it had removed, and none that it had made there."""
    took = type("Globber", (), {"scandir": staticmethod(os.scandir)})
    monkeypatch.setattr(glob, "Globber", took, raising=False)
    python_files.install(overlay)
    try:
        os.remove("folder/inner")
        assert [entry.name for entry in took.scandir("folder")] == []  # type: ignore[attr-defined]
        assert list(Path("folder").glob("*")) == []
    finally:
        unpatch_all()
    assert [entry.name for entry in took.scandir("folder")] == ["inner"]  # type: ignore[attr-defined]


def test_what_modules_took_before_is_led_and_lazy_ones_are_not_asked(
    overlay: Overlay, monkeypatch: pytest.MonkeyPatch
) -> None:
    """bz2 has taken open under a name of its own; a lazy module imports, or warns, where it is asked for anything."""

    class Lazy(ModuleType):
        def __getattribute__(self, name: str) -> object:
            raise AssertionError(name)

    monkeypatch.setitem(sys.modules, "lazy", Lazy("lazy"))
    monkeypatch.setattr(bz2, "lazy", sys.modules["lazy"], raising=False)
    early = ModuleType("early")
    vars(early).update(erase=os.remove, look=os.stat)
    monkeypatch.setitem(sys.modules, "early", early)
    python_files.install(overlay)
    try:
        with bz2.open("theirs", "wb") as packed:
            packed.write(b"new")
        assert overlay.diverted
        vars(early)["erase"]("folder/inner")
        with pytest.raises(FileNotFoundError):
            vars(early)["look"]("folder/inner")
        assert len(overlay.removed) == 1
    finally:
        unpatch_all()
        monkeypatch.delitem(sys.modules, "lazy")
    assert Path("folder/inner").read_text() == "folder/inner"
