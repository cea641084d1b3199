"""Which of the files that a call comes through are the user's: told by where libraries lie, not by words in a path."""

from __future__ import annotations

import json
import linecache
import os
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tuner.child import call_sites
from tuner.child.torch import losses

PURE = sysconfig.get_path("purelib")
STANDARD = os.path.dirname(os.__file__)


def called_from(*names: str, ask: Callable[[], Any] = call_sites.user_stack) -> Any:
    """What ``ask`` gives when it is called through files of these names, the innermost one first."""
    for name in names:
        namespace: dict[str, Any] = {"below": ask}
        exec(compile("def call():\n    return below()\n", name, "exec"), namespace)
        ask = namespace["call"]
    return ask()


def is_users(name: str) -> bool:
    """Whether a file of this name is taken for one of the user's."""
    lines = called_from(name, ask=call_sites.line_stack)
    assert called_from(name, ask=call_sites.inside_library) == (f"{os.path.basename(name)}:2" not in lines)
    return not called_from(name, ask=call_sites.inside_library)


@pytest.mark.parametrize(
    "name",
    [
        "/home/me/lib/python/train.py", "/home/me/lib/python3/train.py", "/home/me/my-site-packages/train.py",
        "/srv/dist-packages-study/data.py", "/home/me/site-packages/train.py", f"{PURE}-mine/train.py",
        "/srv/lib/python3.11/projects/train.py", "train.py",
    ],
)  # fmt: skip
def test_a_users_folder_may_be_called_what_it_likes(name: str) -> None:
    assert is_users(name)


@pytest.mark.parametrize(
    "name",
    [
        f"{PURE}/accelerate/data_loader.py", f"{STANDARD}/threading.py", "<frozen runpy>", "<string>",
        "/tmp/__autograph_generated_file2x7q.py",
    ],
)  # fmt: skip
def test_installed_packages_are_libraries(name: str) -> None:
    assert not is_users(name)


def test_sources_of_one_script_are_told_apart_wherever_it_lies() -> None:
    names = ("/home/me/lib/python/a.py", "b.py")
    first, second = (called_from(name, "/home/me/lib/python/train.py", ask=call_sites.line_stack) for name in names)
    assert first.startswith("a.py:2<train.py:2")
    assert second.startswith("b.py:2<train.py:2")
    first, second = (called_from(name, "/home/me/lib/python/train.py") for name in names)
    assert first.startswith("a.py.call~line2<train.py.call~line2"), "there is no source"
    assert second.startswith("b.py.call~line2<train.py.call~line2")


SOURCE = """
def make(what, size=0):
    return ask()

def main(data):
    first = make(data, size=8)
    second = make(data[0])
    return [first, second, make(data, size=9), [make(x) for x in data][0], (lambda: make(data))()]

places = main([1])
"""


def places(source: str, file: Path) -> list[str]:
    """What the calls in a file are named."""
    file.write_text(source)
    linecache.checkcache(str(file))
    namespace: dict[str, Any] = {"ask": call_sites.user_stack, "__name__": "helper"}
    exec(compile(source, str(file), "exec"), namespace)
    return [place.partition("<test_call_sites")[0] for place in namespace["places"]]


def test_calls_of_one_file_are_told_apart(tmp_path: Path) -> None:
    found = places(SOURCE, tmp_path / "data.py")
    assert len(set(found)) == 5
    assert all(place.startswith("data.py.make~") for place in found)
    assert found[2].split("<")[1] == found[0].split("<")[1] + ".1", "the same but for a number: the second such call"
    assert "<data.py.main.locals.lambda~" in found[4]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("def main", "# a line\n\nx = 1\n\ndef main"),
        ("size=8", "size=16"),
        ("make(data, size=8)", "make(\n        data,  # what\n        size = 8,\n    )"),
        ("def make(what, size=0):", "def other():\n    make(1)\n\ndef make(what, size=1):"),
        ("    second", "    extra = make(0)\n    second"),
    ],
)
def test_places_stay_while_lines_move_and_numbers_change(tmp_path: Path, before: str, after: str) -> None:
    assert before in SOURCE
    assert places(SOURCE.replace(before, after, 1), tmp_path / "data.py") == places(SOURCE, tmp_path / "data.py")


WITHOUT_COLUMNS = """
from call_sites import user_stack as ask

def main():
    a = ask()
    b = ask()
    c = ask(
    )
    return [a, b, c]

print(len({place for _ in range(2) for place in main()}))
"""


def test_calls_are_told_apart_where_python_keeps_no_columns(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(WITHOUT_COLUMNS)
    environment = {**os.environ, "PYTHONPATH": os.path.dirname(call_sites.__file__)}
    for flags in ([], ["-X", "no_debug_ranges"]):
        command = [sys.executable, *flags, str(script)]
        answer = subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout
        assert answer == "3\n", "in each call of the function the same three"


def test_a_call_that_says_something_else_is_another_place(tmp_path: Path) -> None:
    now = places(SOURCE.replace("make(data, size=8)", "make(data, *(), size=8)"), tmp_path / "data.py")
    was = places(SOURCE, tmp_path / "data.py")
    assert now[0] not in was, "nothing that is known of another call goes to it"
    assert now[1] == was[1]


def test_packages_that_lie_elsewhere_on_the_path_are_libraries(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    elsewhere = tmp_path / "installed" / "site-packages"
    assert is_users(str(elsewhere / "before.py"))
    monkeypatch.setattr(sys, "path", [*sys.path, str(elsewhere)])
    assert not is_users(str(elsewhere / "datasets" / "loader.py"))


def test_the_scripts_own_folder_is_no_library_although_it_is_on_the_path(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    own = tmp_path / "site-packages"
    monkeypatch.setattr(sys, "path", [str(own), *sys.path])
    monkeypatch.setattr(sys.modules["__main__"], "__file__", str(own / "train.py"), raising=False)
    assert is_users(str(own / "train.py"))
    assert is_users(str(own / "parts" / "data.py"))


def test_a_virtual_environment_below_a_project_holds_libraries(tmp_path: Path) -> None:
    project = tmp_path / "lib" / "python" / "project"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", project / ".venv"], check=True)
    ask = (
        "import json, sys, sysconfig; sys.path.insert(0, sys.argv[1])\n"
        "import call_sites\n"
        "names = [sysconfig.get_path('purelib') + '/keras/x.py', json.__file__, sys.argv[2]]\n"
        "print(json.dumps([call_sites.is_library(name) for name in names]))\n"
    )
    child = os.path.dirname(call_sites.__file__)
    command = [str(project / ".venv" / "bin" / "python"), "-c", ask, child, str(project / "train.py")]
    answer = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert json.loads(answer) == [True, True, False]


def test_losses_are_told_apart_in_a_folder_of_the_users_that_is_called_torch(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    library = tmp_path / "site-packages" / "torch"
    torch = ModuleType("torch")
    torch.__file__ = str(library / "__init__.py")
    monkeypatch.setitem(sys.modules, "torch", torch)
    tensor = str(library / "_tensor.py")
    assert called_from(tensor, "/home/me/torch/gan.py", ask=losses._call_site) == "gan.py:2"
