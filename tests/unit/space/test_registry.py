"""Declarations come from entry points and from the user's own files; whatever is wrong with one is told."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from tuner.devices.cpu import cpu_device
from tuner.errors import ObjectiveError, SpaceError
from tuner.knowledge import Knowledge
from tuner.space.declare import Known, SearchSpace
from tuner.space.registry import OBJECTIVES, SPACES, load_objective, load_space, names
from tuner.space.resolve import resolve

GOOD_SPACE = """
    from __future__ import annotations
    from dataclasses import dataclass
    from tuner.space import Knob, SearchSpace

    @dataclass
    class Widths:  # a dataclass looks its own module up while it is made
        values: tuple[int, ...] = (8, 16)

    SPACE = SearchSpace("mine", "torch", (Knob("width", lambda known: Widths().values, "units"),))
"""
GOOD_OBJECTIVE = """
    from tuner.objective import Objective
    OBJECTIVE = Objective("latency", "s", False, lambda measurement: 1 / measurement.steps_per_s)
"""


def test_what_comes_along_is_found_as_a_third_partys_would_be() -> None:
    assert load_space("torch").framework == "torch"
    assert load_objective("throughput").maximize
    assert "torch" in names(SPACES)
    assert "throughput" in names(OBJECTIVES)


def test_what_comes_along_is_found_beside_a_projects_packages_of_the_same_names(tmp_path: Path) -> None:
    """With a project's own ``objectives`` on PYTHONPATH a study was refused: repair the package that declares it."""
    for name in ("search_spaces", "objectives"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").touch()
    (tmp_path / "own.py").write_text("import objectives\n" + textwrap.dedent(GOOD_OBJECTIVE))
    asked = (
        "from tuner.space.registry import load_objective, load_spaces\n"
        "print(*(space.name for space in load_spaces('auto')), load_objective('throughput').name)\n"
        "print(load_objective('./own.py').name)"
    )
    told = subprocess.run(
        [sys.executable, "-c", asked], check=False, cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)}, capture_output=True, text=True,
    )  # fmt: skip
    assert told.stdout.splitlines() == ["jax keras torch throughput", "latency"], told.stderr


@pytest.mark.parametrize(
    ("folder", "attribute", "load"),
    [("objectives", "OBJECTIVE", "load_objective"), ("search_spaces", "SPACE", "load_space")],
)
def test_a_plugin_in_a_package_of_our_names_is_found(tmp_path: Path, folder: str, attribute: str, load: str) -> None:
    """A project's own ``objectives.mine`` was looked for in autotune's folder, and refused: no such module."""
    (tmp_path / folder).mkdir()
    (tmp_path / folder / "__init__.py").touch()
    (tmp_path / folder / "mine.py").write_text(textwrap.dedent(GOOD_SPACE + GOOD_OBJECTIVE))
    record = tmp_path / "project-1.0.dist-info"
    record.mkdir()
    (record / "METADATA").write_text("Metadata-Version: 2.1\nName: project\nVersion: 1.0\n")
    (record / "entry_points.txt").write_text(f"[autotune.{folder}]\nmine = {folder}.mine:{attribute}\n")
    asked = f"from tuner.space.registry import {load}\nprint({load}('mine').name)"
    told = subprocess.run(
        [sys.executable, "-c", asked], check=False, cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)}, capture_output=True, text=True,
    )  # fmt: skip
    assert told.stdout.strip() in ("latency", "mine"), told.stderr


def test_a_third_partys_declarations_are_found(install: Callable[..., None]) -> None:
    install(
        "their_knobs", GOOD_SPACE + GOOD_OBJECTIVE,
        search_spaces="theirs = their_knobs:SPACE", objectives="latency = their_knobs:OBJECTIVE",
    )  # fmt: skip
    assert load_space("theirs").knob("width").meaning == "units"
    assert load_objective("latency").unit == "s"
    assert "theirs" in names(SPACES) and "theirs" not in names(OBJECTIVES)


def test_a_file_of_ones_own_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "torch.py").write_text(textwrap.dedent(GOOD_SPACE))
    (tmp_path / "latency.py").write_text(textwrap.dedent(GOOD_OBJECTIVE))
    before = sys.modules.get("torch")
    assert load_space(str(tmp_path / "torch.py")).name == "mine"
    assert load_objective(str(tmp_path / "latency.py")).name == "latency"
    assert sys.modules.get("torch") is before, "a file called torch.py must not become the user's torch"
    monkeypatch.chdir(tmp_path)
    assert load_space("./torch.py").name == load_space("torch.py").name == "mine"


def test_an_edited_file_is_loaded_anew(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(textwrap.dedent(GOOD_SPACE))
    load_space(str(path))
    path.write_text(textwrap.dedent(GOOD_SPACE).replace('"mine"', '"another"'))
    assert load_space(str(path)).name == "another"


@pytest.mark.parametrize(
    ("source", "message", "hint"),
    [
        ("SPACE = 3", "declares a int", "tuner.space.SearchSpace"),
        ("OTHER = 3", "declares no SPACE", "SPACE = "),
        ("SPACE = (", "can't be loaded: SyntaxError", "must import"),
        ("import no_such_module", "can't be loaded: ModuleNotFoundError", "must import"),
        ("raise SystemExit('usage: train.py')", "can't be loaded: SystemExit", "must import"),
        ("from tuner.space import *\nSPACE = SearchSpace('x', 'y', (None,))", "AttributeError", "must import"),
        (
            "from tuner.space import *\nk = Knob('a', list, '')\nSPACE = SearchSpace('x', 'y', (k, k))",
            "declares a knob twice",
            "must import",
        ),
    ],
)
def test_a_broken_file_is_told(tmp_path: Path, source: str, message: str, hint: str) -> None:
    path = tmp_path / "broken.py"
    path.write_text(source)
    with pytest.raises(SpaceError) as caught:
        load_space(str(path))
    assert str(path) in caught.value.message
    assert message in caught.value.message
    assert hint in caught.value.hint


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(ObjectiveError, match="there is no file"):
        load_objective(str(tmp_path / "none.py"))
    (tmp_path / "words.txt").write_text("OBJECTIVE = 3")
    with pytest.raises(ObjectiveError, match="isn't a Python file"):
        load_objective(str(tmp_path / "words.txt"))


def test_an_unknown_name_is_told_with_those_there_are() -> None:
    with pytest.raises(SpaceError, match="no search space 'pytorch'") as space:
        load_space("pytorch")
    assert "torch" in space.value.hint and "./pytorch.py" in space.value.hint
    with pytest.raises(ObjectiveError, match="no objective 'speed'") as objective:
        load_objective("speed")
    assert "throughput" in objective.value.hint


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("import no_such_module", "ModuleNotFoundError"),
        ("", "AttributeError"),
        ("raise SystemExit(3)", "SystemExit"),
        ("SPACE = 'knobs'", "declares a str"),
    ],
)
def test_a_third_partys_broken_package_is_told(install: Callable[..., None], source: str, message: str) -> None:
    install("their_broken_knobs", source, search_spaces="broken = their_broken_knobs:SPACE")
    with pytest.raises(SpaceError, match=message) as caught:
        load_space("broken")
    assert "broken" in caught.value.message
    assert load_space("torch").name == "torch", "the others can be used all the same"


def _declaring(tmp_path: Path, knob: str, **more: str) -> SearchSpace:
    rest = "".join(f", {name}={text}" for name, text in more.items())
    lines = ["from tuner.space import Knob, SearchSpace", f'SPACE = SearchSpace("mine", "torch", [{knob}]{rest})']
    (tmp_path / "mine.py").write_text("\n".join(lines))
    return load_space(str(tmp_path / "mine.py"))


@pytest.mark.parametrize(
    ("knob", "told"),
    [
        ("Knob('width', [1, 2], 'units')", "knob 'width': choices is [1, 2], which is no function"),
        ("Knob('width', lambda known: (1, 2), 'units', needs=True)", "needs is True, which is no function"),
        ("Knob('two words', lambda known: (1, 2), 'units')", "a knob is called 'two words'"),
        ("Knob(3, lambda known: (1, 2), 'units')", "a knob is called 3"),
        ("Knob('width', lambda known: (1, 2), 'units', tier=9)", "knob 'width' is of tier 9"),
    ],
)
def test_what_can_be_no_knob_is_refused_as_the_space_is_loaded(tmp_path: Path, knob: str, told: str) -> None:
    with pytest.raises(SpaceError) as caught:
        _declaring(tmp_path, knob)
    assert told in caught.value.message and "mine.py: " in caught.value.message
    assert caught.value.hint


@pytest.mark.parametrize(
    ("choices", "told"),
    [
        ("lambda known: 1 / 0", "choices fails: ZeroDivisionError: division by zero"),
        ("lambda: (1, 2)", "choices fails: TypeError"),
        ("lambda known: 4", "choices gives 4, which is no sequence"),
        ("lambda known: (1, None)", "choices gives None, which is no value"),
        ("lambda known: ([1, 2],)", "choices gives [1, 2], which is no value"),
    ],
)
def test_what_a_function_of_a_space_does_wrong_is_told_as_its_own(tmp_path: Path, choices: str, told: str) -> None:
    """It was told as a bug of ours, with a traceback, once the script as written had run."""
    space = _declaring(tmp_path, f"Knob('width', {choices}, 'units')")
    knowledge = Knowledge(as_written={"width": 4})
    with pytest.raises(SpaceError) as caught:
        resolve(space, Known(cpu_device(), 2, knowledge=knowledge))
    assert f"mine.py: knob 'width': {told}" in caught.value.message
    assert caught.value.exit_code == 2


def test_so_is_what_its_constraints_do_wrong(tmp_path: Path) -> None:
    space = _declaring(tmp_path, "Knob('width', lambda known: (1, 2), 'units')", allowed="lambda config: True")
    with pytest.raises(SpaceError, match=r"mine\.py: allowed fails: TypeError"):
        space.allowed({"width": 1}, Knowledge())
