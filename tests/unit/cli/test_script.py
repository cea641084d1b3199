"""The script or module to tune is found without importing anything, and what can't be one is refused with a remedy."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

import pytest

from tuner.cli.script import find_script, ranks, refuse_many_ranks, stem
from tuner.errors import ScriptNotFoundError, UsageError
from tuner.model import Script

SOURCE = "raise SystemExit('this must never be imported')\n"
FILES = (
    "train.py", "pkg/__init__.py", "pkg/train.py", "pkg/deep/__main__.py", "spaced/only.py", "spaced/further/only.py",
)  # fmt: skip


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project of a user, as the current folder and not under a launcher."""
    for file in FILES:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    return tmp_path


def test_a_script_is_known_by_its_content() -> None:
    script = find_script("train.py", "", ["--lr", "0.1"])
    assert script == Script("train.py", ("--lr", "0.1"), sha256=hashlib.sha256(SOURCE.encode()).hexdigest())
    Path("train.py").write_text("pass")
    assert find_script("train.py", "", []).sha256 != script.sha256


def test_a_script_elsewhere_keeps_the_path_that_was_given(here: Path) -> None:
    for given in ("./train.py", "pkg/../train.py", str(here / "train.py")):
        assert find_script(given, "", []).path == given


@pytest.mark.parametrize(
    ("module", "file"),
    [
        ("train", "train.py"),
        ("pkg.train", "pkg/train.py"),
        ("pkg.deep", "pkg/deep/__main__.py"),
        ("spaced.only", "spaced/only.py"),
        ("spaced.further.only", "spaced/further/only.py"),
    ],
)
def test_a_module_is_found_without_importing_its_packages(here: Path, module: str, file: str) -> None:
    (here / file).write_text(f"# {file}\n")
    script = find_script("", module, ["x"])
    assert script == Script("", ("x",), module=module, sha256=hashlib.sha256(f"# {file}\n".encode()).hexdigest())
    assert not {"train", "pkg", "spaced"} & set(sys.modules)


@pytest.mark.parametrize(
    ("path", "module", "name"),
    [
        ("resnet.py", "", "resnet"),
        ("a/b/train.v2.py", "", "train.v2"),
        ("digits/train.py", "", "digits-train"),
        ("./train.py", "", "project-train"),
        ("digits/../train.py", "", "project-train"),
        ("/train.py", "", "train"),
        ("", "pkg.resnet", "resnet"),
        ("", "pkg.digits.train", "digits-train"),
        ("", "train", "train"),
    ],
)
def test_a_script_has_a_short_name_of_its_own(here: Path, path: str, module: str, name: str) -> None:
    name = name.replace("project", here.name)
    assert stem(Script(path, (), module=module)) == name


@pytest.mark.parametrize(
    ("path", "module", "message", "hint"),
    [
        ("none.py", "", "there is no script none.py", "current folder"),
        ("train", "", "there is no script train", "did you mean train.py?"),
        ("pkg/train", "", "there is no script pkg/train", "did you mean pkg/train.py?"),
        ("pkg.train", "", "there is no script pkg.train", "--module pkg.train"),
        ("/dev/null", "", "/dev/null is not a regular file", "save the script"),
        ("pkg", "", "pkg is a folder", "study.toml"),
        ("", "none", "there is no module none", "nothing called none"),
        ("", "pkg.none", "there is no module pkg.none", "nothing called pkg.none"),
        ("", "train.more", "there is no module train.more", "nothing called train.more"),
        ("", "pkg", "pkg is a package without a __main__", "the module in it"),
        ("", "..", "there is no module ..", ""),
        ("", "math", "math", ""),
        ("", "sys", "there is no module sys", ""),
    ],
)
def test_what_is_not_there_is_told(path: str, module: str, message: str, hint: str) -> None:
    with pytest.raises(ScriptNotFoundError) as caught:
        find_script(path, module, [])
    assert message in caught.value.message
    assert hint in caught.value.hint


@pytest.mark.parametrize(
    ("path", "module", "message"),
    [
        ("train.py", "pkg.train", "both a script"),
        ("torchrun", "", "several processes"),
        ("/usr/bin/accelerate", "", "several processes"),
        ("", "torch.distributed.run", "several processes"),
        ("", "accelerate.commands.launch", "several processes"),
        ("python", "", "interpreter"),
        ("/usr/bin/python3.11", "", "interpreter"),
        (sys.executable, "", "interpreter"),
        ("python.exe", "", "interpreter"),
    ],
)
def test_what_is_no_training_script_is_refused(path: str, module: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        find_script(path, module, [])
    assert caught.value.hint
    assert not isinstance(caught.value, ScriptNotFoundError)


def test_a_launcher_starts_a_run_and_not_the_other_way_round() -> None:
    with pytest.raises(UsageError, match="it starts autotune run") as caught:
        find_script("torchrun", "", [], "run")
    assert "torchrun --nproc-per-node 2 --no-python autotune run" in caught.value.hint


def test_a_script_may_be_called_almost_like_a_launcher(here: Path) -> None:
    for name in ("python.py", "torchrun.py", "pythonic"):
        (here / name).write_text(SOURCE)
        assert find_script(name, "", []).path == name


@pytest.mark.parametrize(("size", "refused"), [("2", True), ("16", True), ("1", False), ("", False), ("many", False)])
def test_one_of_several_ranks_starts_no_study(monkeypatch: pytest.MonkeyPatch, size: str, refused: bool) -> None:
    monkeypatch.setenv("WORLD_SIZE", size)
    assert ranks() == (int(size) if refused else 1)
    if not refused:
        refuse_many_ranks()
        return
    with pytest.raises(UsageError, match=f"WORLD_SIZE is {size}"):
        refuse_many_ranks()


def test_a_script_that_is_a_broken_link_is_told(here: Path) -> None:
    (here / "gone.py").symlink_to(here / "nowhere.py")
    with pytest.raises(ScriptNotFoundError, match=r"there is no script gone\.py"):
        find_script("gone.py", "", [])
