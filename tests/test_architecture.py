"""The house rules: imports go one way, files and functions stay short, names say what a thing is.

Each rule is a function from source to complaints, and each is shown a snippet that breaks it.
"""

from __future__ import annotations

import ast
import gc
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.source_trees import (
    ROOT,
    absolute_name,
    at_module_level,
    imports_of,
    module_of,
    statements_of,
    tree_of,
)

LONGEST_FILE = 400
LONGEST_FUNCTION = 60

# A unit (a module of tuner/, or a folder in it) imports units of earlier rows only, whatever the import is for.
LAYERS: tuple[frozenset[str], ...] = tuple(
    frozenset(row.split())
    for row in (
        "config errors masking",
        "model",
        "knowledge objective",
        "space",
        "analysis",
        "devices",
        "events formatting documents result storage",
        "search runner",
        "study",
        "progress report export",
        "cli",
        "__main__",
    )
)
# The same for the child's units. Its adapters import what all of them share, and meet in the list of them only.
CHILD_LAYERS: tuple[frozenset[str], ...] = tuple(
    frozenset(row.split())
    for row in (
        "shape holders call_sites file_backed births reflink stale_reads option_names watch words temporary"
        " thread_names unison stretches identities taken open_libraries",
        "counts patches preloaded learned turn_records step_records participants data_state",
        "records",
        "wire evidence",
        "seeds places preloading making",
        "recorder created_files counted data_source recurring instruments clock_limits",
        "turns precision rounds",
        "clock devices rotation resting",
        "sources knobs facts metrics reported user_modules started rank_clock rank_rotation",
        "applied allocator",
        "feeds",
        "session",
        "arguments files leader own_batches trajectory movement rank_session",
        "renames whole_paths folders carried mapped",
        "python_files",
        "adapter",
        "numpy formats parsers torch tensorflow jax",
        "keras grain",
        "adapters",
        "hooks",
        "execute spawned",
        "hooked",
        "fork_server",
        "__init__ __main__",
    )
)
# Folders whose modules are each other's neighbours, and may import each other as long as no circle comes of it.
ISLANDS = frozenset({"__init__", "child"})
# Receive data and never fetch it: values, and the words for them, are all that they may know.
RECEIVERS = frozenset({"progress", "report", "export"})
VALUES = frozenset({
    "errors", "model", "masking", "knowledge", "analysis", "events", "objective", "formatting", "documents", "result",
})  # fmt: skip
# The protocol is the one part of the island that the parent speaks, too.
_OF_THE_PROTOCOL = (
    "wire", "records", "counts", "learned", "shape", "option_names", "rounds", "turn_records", "step_records", "turns",
    "unison", "watch", "words",
)  # fmt: skip
PROTOCOL = tuple(f"tuner.child.{name}." for name in _OF_THE_PROTOCOL)
SOLE_IMPORTERS = {
    "optuna": ("tuner/search/",),
    "sqlalchemy": ("tuner/storage/database.py", "tuner/storage/schema.py"),
    "pynvml": ("tuner/devices/nvml.py",),
}
FRAMEWORKS = frozenset({
    "torch", "tensorflow", "keras", "jax", "lightning", "pytorch_lightning", "transformers", "grain",
})  # fmt: skip
UNWANTED = frozenset({"util", "helper", "manager", "common", "misc"})


def _unit(module: str, below: str = "tuner") -> str:
    """The part of a dotted name right below a package; its ``__init__`` where there is none."""
    return module.removeprefix(below).lstrip(".").partition(".")[0] or "__init__"


def _units(path: str, tree: ast.Module) -> Iterator[str]:
    """The units of tuner that a module imports, but for the protocol of the child."""
    for name in imports_of(tree):
        if name != "tuner" and name.split(".")[0] == "tuner" and not f"{name}.".startswith(PROTOCOL):
            unit = _unit(name)
            yield unit if unit in ISLANDS or any(unit in layer for layer in LAYERS) else "__init__"


def one_way(path: str, tree: ast.Module) -> Iterator[str]:
    """tuner/: a unit imports only units of earlier rows of the table; receivers only values."""
    unit = _unit(module_of(path))
    if not path.startswith("tuner/") or unit in ISLANDS:
        return
    row = next((row for row, layer in enumerate(LAYERS) if unit in layer), None)
    if row is None:
        yield f"{path}: {unit} has no row in the table of layers"
        return
    for imported in _units(path, tree):
        if imported in (unit, "__init__"):
            continue
        if imported not in frozenset().union(*LAYERS[:row]):
            yield f"{path}: {unit} may not import {imported}"
        elif unit in RECEIVERS and imported not in VALUES:
            yield f"{path}: {unit} receives values and may not import {imported}"


def one_way_in_the_child(path: str, tree: ast.Module) -> Iterator[str]:
    """tuner/child/: likewise, by its own table."""
    if not path.startswith("tuner/child/"):
        return
    unit = _unit(module_of(path), "tuner.child")
    row = next((row for row, layer in enumerate(CHILD_LAYERS) if unit in layer), None)
    if row is None:
        yield f"{path}: {unit} has no row in the table of the child's layers"
        return
    for name in imports_of(tree):
        full = absolute_name(path, name)
        imported = _unit(full, "tuner.child")
        if full.startswith("tuner.child.") and imported not in (unit, *frozenset().union(*CHILD_LAYERS[:row])):
            yield f"{path}: {unit} may not import {imported}"


def island(path: str, tree: ast.Module) -> Iterator[str]:
    """tuner/child and tuner/__init__ run in the user's process: at import the standard library and themselves only."""
    if path.startswith("tuner/child/"):
        for name in imports_of(tree, module_level=True):
            if not name.startswith(".") and name.split(".")[0] not in sys.stdlib_module_names:
                yield f"{path}: the island imports {name}"
        for name in imports_of(tree):
            full = absolute_name(path, name)
            if name.split(".")[0] == "tuner" or (name.startswith(".") and not full.startswith("tuner.child.")):
                yield f"{path}: the island imports {name}"
    elif path == "tuner/__init__.py":
        for name in imports_of(tree):
            if name.split(".")[0] not in sys.stdlib_module_names:
                yield f"{path}: stays in production scripts, but imports {name}"


def sole_importers(path: str, tree: ast.Module) -> Iterator[str]:
    """Optuna, SQLAlchemy and NVML are imported in one place each; tests may look for themselves."""
    for name in imports_of(tree):
        places = SOLE_IMPORTERS.get(name.split(".")[0])
        if places is not None and not path.startswith((*places, "tests/")):
            yield f"{path}: {name} is imported in {' and '.join(places)} only"


def late_frameworks(path: str, tree: ast.Module) -> Iterator[str]:
    """Nothing of ours imports a framework when it is itself imported: seconds, and not everyone has it."""
    if path.startswith(("tuner/", "search_spaces/", "objectives/")):
        for name in imports_of(tree, module_level=True):
            if name.split(".")[0] in FRAMEWORKS:
                yield f"{path}: {name} is imported at module level"


def declarations(path: str, tree: ast.Module) -> Iterator[str]:
    """search_spaces/ and objectives/ see what a third party's would: space, objective, knowledge, model, errors."""
    if path.startswith(("search_spaces/", "objectives/")):
        for unit in _units(path, tree):
            if unit not in ("space", "objective", "knowledge", "model", "errors"):
                yield f"{path}: a declaration may not import tuner.{unit}"
    elif path.startswith("tuner/"):
        for name in imports_of(tree):
            if name.split(".")[0] in ("search_spaces", "objectives"):
                yield f"{path}: {name} is loaded through its entry point"


def plain_studies(path: str, tree: ast.Module) -> Iterator[str]:
    """The examples know nothing of us."""
    if path.startswith("studies/"):
        for name in imports_of(tree):
            if name.split(".")[0] in ("tuner", "search_spaces", "objectives"):
                yield f"{path}: an example imports {name}"


def short(path: str, tree: ast.Module) -> Iterator[str]:
    """Functions of at most 60 lines (their decorators not counted)."""
    for node in statements_of(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > LONGEST_FUNCTION:
                yield f"{path}: {node.name} has {lines} lines"


def telling_names(path: str, tree: ast.Module) -> Iterator[str]:
    """No file, class, function, argument, attribute or constant is called util, helper, manager, common or misc.

    A local is left alone: it lives for a few lines, and "the most common one" is a fair word there.
    """
    for name in [*Path(path).parts, *_bound(tree)]:
        words = re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name.removesuffix(".py"))
        found = {word.lower().removesuffix("s") for word in words} & UNWANTED
        if found:
            yield f"{path}: the name {name} contains {found.pop()}"


def _bound(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr
    for node in at_module_level(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id


RULES: tuple[Callable[[str, ast.Module], Iterator[str]], ...] = (
    one_way, one_way_in_the_child, island, sole_importers, late_frameworks, declarations, plain_studies, short,
    telling_names,
)  # fmt: skip
FOLDERS = ("tuner", "search_spaces", "objectives", "studies", "tests")
FILES = sorted(
    path.relative_to(ROOT).as_posix()
    for folder in FOLDERS
    for path in (ROOT / folder).rglob("*.py")
    # What a study of an example leaves beside it is not ours.
    if "__pycache__" not in path.parts and not any(part.startswith("autotune-") for part in path.parts)
)


@pytest.fixture(scope="module", autouse=True)
def trees_are_no_garbage() -> Iterator[None]:
    """Nothing looks for garbage among the millions of their nodes, nor do they stay behind the last of these tests."""
    gc.disable()
    yield
    tree_of.cache_clear()
    imports_of.cache_clear()
    gc.enable()


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: str(rule.__name__))
def test_the_house_is_in_order(rule: Callable[[str, ast.Module], Iterator[str]]) -> None:
    assert len(FILES) > 50, "the files weren't found"
    assert [complaint for path in FILES for complaint in rule(path, tree_of(path))] == []


def test_files_are_short() -> None:
    lengths = {path: len((ROOT / path).read_text(encoding="utf-8").splitlines()) for path in FILES}
    assert {path: lines for path, lines in lengths.items() if lines > LONGEST_FILE} == {}


def test_no_import_goes_in_a_circle() -> None:
    """Modules of tuner/, the child's included; imports for types only, and those in functions, count as well."""
    modules = {module_of(path) for path in FILES if path.startswith("tuner/")}
    imports: dict[str, set[str]] = {}
    for path in FILES:
        if path.startswith("tuner/"):
            names = (absolute_name(path, name) for name in imports_of(tree_of(path)))
            found = {next((m for m in (n, n.rpartition(".")[0]) if m in modules), "") for n in names}
            imports[module_of(path)] = found - {"", "tuner", "tuner.child", module_of(path)}
    assert _circle(imports) == []


def _circle(imports: dict[str, set[str]]) -> list[str]:
    """What is left when those that import none of the rest are taken away again and again."""
    left = dict(imports)
    while free := [unit for unit, others in left.items() if not others & left.keys()]:
        for unit in free:
            del left[unit]
    while idle := left.keys() - set().union(*left.values()):  # they only import what goes in a circle
        for unit in idle:
            del left[unit]
    return sorted(left)


def test_every_unit_in_the_table_has_one_row() -> None:
    named = [unit for layer in LAYERS for unit in layer]
    assert len(set(named)) == len(named)
    assert set(named) >= VALUES | RECEIVERS


LONG_FUNCTION = "def long():\n" + "    x = 1\n" * LONGEST_FUNCTION


@pytest.mark.parametrize(
    ("rule", "path", "source"),
    [
        (one_way, "tuner/space/declare.py", "from tuner.study.run import run_study"),
        (one_way, "tuner/space/declare.py", "def late():\n    from tuner import cli"),
        (one_way, "tuner/space/declare.py", "import tuner.runner.process"),
        (one_way, "tuner/space/declare.py", "if TYPE_CHECKING:\n    from tuner.study.plan import StudyPlan"),
        (one_way, "tuner/objective.py", "from tuner.space import Knob"),
        (one_way, "tuner/runner/request.py", "from tuner.study.plan import StudyPlan"),
        (one_way, "tuner/runner/request.py", "from tuner.child import execute"),
        (one_way, "tuner/runner/request.py", "from tuner.child.session import Session"),
        (one_way, "tuner/report/summary.py", "from tuner.storage.database import Repository"),
        (one_way, "tuner/report/summary.py", "from tuner.progress import plain"),
        (one_way, "tuner/novelty.py", ""),
        (one_way_in_the_child, "tuner/child/session.py", "from .torch.loader import LoaderWatch"),
        (one_way_in_the_child, "tuner/child/torch/loader.py", "from ..keras.fit import FitWatch"),
        (one_way_in_the_child, "tuner/child/torch/loader.py", "def late():\n    from .. import hooks"),
        (one_way_in_the_child, "tuner/child/novelty.py", ""),
        (island, "tuner/child/wire.py", "import numpy"),
        (island, "tuner/child/wire.py", "try:\n    import torch\nexcept ImportError:\n    torch = None"),
        (island, "tuner/child/wire.py", "def late():\n    from tuner.model import Config"),
        (island, "tuner/child/wire.py", "from ..model import Config"),
        (island, "tuner/child/torch/loader.py", "from ...model import Config"),
        (island, "tuner/__init__.py", "def late():\n    import numpy"),
        (sole_importers, "tuner/study/run.py", "def late():\n    import optuna.samplers"),
        (sole_importers, "tuner/runner/process.py", "def late():\n    import pynvml"),
        (sole_importers, "tuner/devices/cuda.py", "import pynvml"),
        (sole_importers, "tuner/search/tpe.py", "from sqlalchemy import create_engine"),
        (late_frameworks, "tuner/devices/present.py", "import torch.nn"),
        (late_frameworks, "search_spaces/keras.py", "if True:\n    from tensorflow import keras"),
        (declarations, "search_spaces/torch.py", "from tuner.runner.request import Window"),
        (declarations, "tuner/study/run.py", "from search_spaces.torch import SPACE"),
        (plain_studies, "studies/digits/train.py", "def main():\n    import tuner"),
        (short, "tuner/study/run.py", LONG_FUNCTION),
        (telling_names, "tuner/utils.py", ""),
        (telling_names, "tuner/helpers/text.py", ""),
        (telling_names, "tuner/study/run.py", "class TrialManager: pass"),
        (telling_names, "tuner/study/run.py", "def common_part(): pass"),
        (telling_names, "tuner/study/run.py", "def run(misc): pass"),
        (telling_names, "tuner/study/run.py", "HELPER = 1"),
        (telling_names, "tuner/study/run.py", "class A:\n    def b(self):\n        self.misc_facts = 1"),
    ],
)
def test_a_rule_can_fail(rule: Callable[[str, ast.Module], Iterator[str]], path: str, source: str) -> None:
    assert len(list(rule(path, ast.parse(source)))) == 1


@pytest.mark.parametrize(
    ("rule", "path", "source"),
    [
        (one_way, "tuner/study/run.py", "from tuner import analysis\nfrom tuner.runner.request import Window"),
        (one_way, "tuner/runner/process.py", "from tuner.child import wire\nfrom tuner.child.wire import decode"),
        (island, "tuner/child/hooks.py", "import json\nfrom . import wire\ndef late():\n    import torch"),
        (island, "tuner/child/torch/loader.py", "from ..session import Session\nfrom .steps import StepWatch"),
        (one_way_in_the_child, "tuner/child/torch/loader.py", "from ..session import Session\nfrom . import steps"),
        (late_frameworks, "tuner/devices/present.py", "def late():\n    import torch"),
        (short, "tuner/study/run.py", LONG_FUNCTION.removesuffix("    x = 1\n")),
        (telling_names, "tuner/devices/cpu.py", "utilisation = commonly = 1\nfrom contextlib import contextmanager"),
    ],
)
def test_a_rule_lets_pass_what_is_right(
    rule: Callable[[str, ast.Module], Iterator[str]], path: str, source: str
) -> None:
    assert list(rule(path, ast.parse(source))) == []


def test_a_circle_is_found() -> None:
    assert _circle({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": set()}) == ["b", "c"]
    assert _circle({"a": {"b"}, "b": {"c"}, "c": set()}) == []
