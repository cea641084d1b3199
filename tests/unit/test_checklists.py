"""CONTRIBUTING tells the truth: its map shows the house, its rules are enforced, its checklists name what is there.

A checklist's item names a file in backticks first; ``NAME`` in it stands for what is added, and an item that says
``new`` has models in the house already. A list that an item speaks of ("an entry in `X`") exists in that file, holds
everything of its kind, and is the only place that does.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
import test_architecture as architecture

from tuner.cli import VERBS
from tuner.space.registry import SPACES, load_space, names

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
_SECTION = re.compile(r"^(#{2,3}) (.+?)\n(.*?)(?=^#{2,3} |\Z)", re.MULTILINE | re.DOTALL)
_ITEM = re.compile(r"^- \[ \] `([^`]+)`(, new)?: (.*?)(?=^- |\n\n|\Z)", re.MULTILINE | re.DOTALL)
_ENTRY = re.compile(r"an entry in\s+`([^`]+)`")
_PATH = re.compile(r"`((?:tuner|search_spaces|objectives|tests|studies)/[^`\s]*)`")


@dataclass(frozen=True)
class Item:
    """One line of a checklist: a path, where NAME is what is added; whether it is a new file; its lists."""

    path: str
    new: bool
    lists: tuple[str, ...]


def section(heading: str) -> str:
    """What stands below a heading, up to the next one."""
    found: dict[str, str] = {title: text for _, title, text in _SECTION.findall(TEXT)}
    return found[heading]


CHECKLISTS = {
    title.removeprefix("Add "): [
        Item(path, bool(new), tuple(_ENTRY.findall(" ".join(text.split())))) for path, new, text in _ITEM.findall(body)
    ]
    for _, title, body in _SECTION.findall(TEXT)
    if title.startswith("Add ")
}


def matching(path: str) -> list[Path]:
    """What is there of a path; ``NAME`` stands for anything."""
    return [found for found in ROOT.glob(path.replace("NAME", "*")) if found.exists()]


@cache
def source(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


def entries(path: str, name: str) -> set[str]:
    """The names and texts in the list ``name`` of a module; an instance counts as its class."""
    values: dict[str, ast.expr] = {}
    for node in ast.parse(source(path)).body:
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                if isinstance(target, ast.Name):
                    values[target.id] = node.value
    assert name in values, f"{path} has no list {name}"
    return set(_names(values[name], values))


def _names(value: ast.expr, values: dict[str, ast.expr]) -> Iterator[str]:
    for node in ast.walk(value):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
        elif isinstance(node, ast.Name):
            yield node.id
            if node.id in values:
                yield from _names(values[node.id], {})


def classes(folder: str, suffix: str) -> dict[str, str]:
    """Class → file, of the classes below a folder whose names end so: "Adapter" itself isn't one of them."""
    return {
        node.name: path.relative_to(ROOT).as_posix()
        for path in sorted((ROOT / folder).rglob("*.py"))
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef) and re.fullmatch(rf"[A-Z][A-Za-z]+{suffix}", node.name)
    }


def test_the_checklists_are_there() -> None:
    kinds = {"a framework", "a knob", "a device kind", "an exporter", "a verb", "a search space or an objective"}
    assert set(CHECKLISTS) == kinds
    assert all(len(items) >= 5 for items in CHECKLISTS.values())


@pytest.mark.parametrize("kind", CHECKLISTS)
def test_what_a_checklist_names_is_there(kind: str) -> None:
    assert [item.path for item in CHECKLISTS[kind] if not matching(item.path)] == []
    assert [item.path for item in CHECKLISTS[kind] if item.new and "NAME" not in item.path] == []


@pytest.mark.parametrize("kind", CHECKLISTS)
def test_every_list_that_a_checklist_names_is_there(kind: str) -> None:
    for item in CHECKLISTS[kind]:
        for name in item.lists:
            if item.path.endswith(".py"):
                assert entries(item.path, name)
            else:
                assert name in flattened(item.path)


def flattened(path: str) -> set[str]:
    """The dotted names of a TOML file's tables."""
    project = tomllib.loads(source(path))["project"]
    return {f'project.entry-points."{group}"' for group in project["entry-points"]}


@pytest.mark.parametrize(
    ("kind", "path", "suffix", "base"),
    [
        ("a framework", "tuner/child/adapters.py", "Adapter", "Adapter"),
        ("a device kind", "tuner/devices/present.py", "Kind", "DeviceKind"),
        ("a device kind", "tuner/child/devices/__init__.py", "Device", "Device"),
        ("an exporter", "tuner/export/__init__.py", "Exporter", "Exporter"),
    ],
)
def test_a_list_holds_every_one_of_its_kind_and_nothing_else_does(kind: str, path: str, suffix: str, base: str) -> None:
    item, folder = next(item for item in CHECKLISTS[kind] if item.path == path), str(Path(path).parent)
    (name,) = item.lists
    found = {name: path for name, path in classes(folder, suffix).items() if name != base}
    assert found, f"no class below {folder} is called …{suffix}"
    assert found.keys() <= entries(item.path, name)
    for file in sorted((ROOT / "tuner").rglob("*.py")):
        place = file.relative_to(ROOT).as_posix()
        words = set(re.findall(r"\w+", source(place)))
        assert {other for other, home in found.items() if other in words and place not in (home, item.path)} == set()


def test_every_verb_is_in_the_list() -> None:
    there = {path.stem for path in (ROOT / "tuner" / "cli").glob("*.py") if "\ndef add_parser(" in path.read_text()}
    assert there == set(VERBS)


@pytest.mark.parametrize(("folder", "declared"), [("search_spaces", "SPACE"), ("objectives", "OBJECTIVE")])
def test_every_declaration_is_an_entry_point(folder: str, declared: str) -> None:
    there = {path.stem for path in (ROOT / folder).glob("*.py") if f"\n{declared} = " in path.read_text()}
    points = tomllib.loads(source("pyproject.toml"))["project"]["entry-points"][f"autotune.{folder}"]
    assert points == {name: f"{folder}.{name}:{declared}" for name in there}


@pytest.mark.parametrize("space", names(SPACES))
def test_every_declared_knob_is_known_to_the_child(space: str) -> None:
    """A knob that no adapter applies or observes could only ever be ignored."""
    texts = [path.read_text(encoding="utf-8") for path in (ROOT / "tuner" / "child").rglob("*.py")]
    words = {word for text in texts for word in re.findall(r"\w+", text)}
    assert {knob.name for knob in load_space(space).knobs} <= words


def test_the_rules_are_those_that_are_enforced() -> None:
    rows = re.findall(r"^\| `(\w+)` \|", section("House rules"), re.MULTILINE)
    assert rows == [rule.__name__ for rule in architecture.RULES]
    text = section("House rules")
    assert str(architecture.LONGEST_FUNCTION) in text and str(architecture.LONGEST_FILE) in text
    assert all(word in text for word in architecture.UNWANTED)


def rows_of_the_map() -> Iterator[tuple[str, str]]:
    """Each row's folder, and what it says of its files."""
    for folder, _, files in re.findall(r"^\| `([\w/]+/)` \| (.*?) \| (.*?) \|$", section("The map"), re.MULTILINE):
        yield folder, files


def test_the_map_names_files_that_are_there() -> None:
    named = [f"{folder}{name}" for folder, files in rows_of_the_map() for name in re.findall(r"`(\w+\.py)`", files)]
    assert len(named) > 50
    assert [path for path in named if not (ROOT / path).is_file()] == []
    assert len(set(named)) == len(named), "a file is on the map twice"


def test_every_module_is_on_the_map() -> None:
    """A file that nobody finds is written a second time: put a new one into its folder's row, with what it is for."""
    named = {f"{folder}{name}" for folder, files in rows_of_the_map() for name in re.findall(r"`(\w+\.py)`", files)}
    folders = ("tuner", "search_spaces", "objectives")
    there = {path.relative_to(ROOT).as_posix() for folder in folders for path in (ROOT / folder).rglob("*.py")}
    assert {path for path in there - named if not Path(path).name.startswith("__")} == set()


def test_the_map_is_in_the_order_of_imports() -> None:
    """A row of the map imports only rows above it: so says the document, and so does the table of layers."""
    level = {unit: row for row, layer in enumerate(architecture.LAYERS) for unit in layer}
    units = []
    for folder, files in rows_of_the_map():
        own = folder.removeprefix("tuner/").strip("/")
        if folder == "tuner/":
            units.append([name for name in re.findall(r"`(\w+)\.py`", files) if name in level])
        elif folder.startswith("tuner/") and own in level:
            units.append([own])
    named = [unit for row in units for unit in row]
    assert {unit for unit in level if unit != "__main__"} == set(named)
    assert [level[unit] for unit in named] == sorted(level[unit] for unit in named)


def test_every_place_that_the_document_names_is_there() -> None:
    named = {path for path in _PATH.findall(TEXT) if "NAME" not in path}
    assert {path for path in named if not matching(path)} == set()
