"""Finds search spaces and objectives: by the name of an entry point, or in a user's own file."""

from __future__ import annotations

import hashlib
import importlib.util
import sys
from dataclasses import replace
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

from tuner.errors import ObjectiveError, SpaceError
from tuner.objective import Objective
from tuner.space.declare import SearchSpace
from tuner.space.guarded import guarded

SPACES = "autotune.search_spaces"
OBJECTIVES = "autotune.objectives"
_OURS = "autotune-study"
"""The distribution whose declarations come along: a project's own may have packages of their names."""

AUTO = "auto"


def load_spaces(name: str) -> tuple[SearchSpace, ...]:
    """The space of that name or file; with ``auto`` those of all entry points. Raises ``SpaceError``."""
    return tuple(load_space(each) for each in (names(SPACES) if name == AUTO else (name,)))


def load_space(name: str) -> SearchSpace:
    """The space of an entry point, or ``SPACE`` in a .py file. Raises ``SpaceError``."""
    value = _load(name, SPACES, "SPACE", SpaceError)
    if not isinstance(value, SearchSpace):
        raise SpaceError(f"{name} declares {_described(value)}", hint="SPACE must be a tuner.space.SearchSpace")
    if is_file(name):
        return replace(guarded(value, name), sha256=_digest(name))
    point = _entry_point(name, SPACES)
    return value if point is not None and _is_ours(point) else guarded(value, name)


def load_objective(name: str) -> Objective:
    """The objective of an entry point, or ``OBJECTIVE`` in a .py file. Raises ``ObjectiveError``."""
    value = _load(name, OBJECTIVES, "OBJECTIVE", ObjectiveError)
    if not isinstance(value, Objective):
        raise ObjectiveError(
            f"{name} declares {_described(value)}", hint="OBJECTIVE must be a tuner.objective.Objective"
        )
    if not is_file(name):
        return replace(value, source=name)
    return replace(value, source=str(Path(name).absolute()), sha256=_digest(name))


def _digest(file: str) -> str:
    return hashlib.sha256(Path(file).read_bytes()).hexdigest()


def names(group: str) -> list[str]:
    """The names that are installed for a group of entry points."""
    return sorted({point.name for point in entry_points(group=group)})


def _load(name: str, group: str, attribute: str, error: type[SpaceError] | type[ObjectiveError]) -> object:
    if is_file(name):
        return _from_file(Path(name), attribute, error)
    point = _entry_point(name, group)
    if point is None:
        what = "search space" if group == SPACES else "objective"
        installed = ", ".join(names(group)) or "none"
        raise error(
            f"there is no {what} {name!r}", hint=f"installed are: {installed}; or give a file, as in ./{name}.py"
        )
    try:
        return _loaded(point)
    except (Exception, SystemExit) as cause:  # a third party's module may raise anything
        raise error(
            f"{name} ({point.value}) can't be loaded: {type(cause).__name__}: {cause}",
            hint="repair or remove the package that declares it, or name another one",
        ) from cause


def _loaded(point: EntryPoint) -> object:
    """What an entry point names; one of ours also where a project on ``PYTHONPATH`` has a package of that name."""
    if not _is_ours(point):
        return point.load()
    ours = str(Path(__file__).parents[2])
    sys.path.insert(0, ours)
    try:
        return point.load()
    finally:
        sys.path.remove(ours)


def _is_ours(point: EntryPoint) -> bool:
    return point.dist is not None and point.dist.name == _OURS


def is_file(name: str) -> bool:
    """Whether a space or an objective is named by its file."""
    return name.endswith(".py") or "/" in name


def _entry_point(name: str, group: str) -> EntryPoint | None:
    return next((point for point in entry_points(group=group) if point.name == name), None)


def _from_file(path: Path, attribute: str, error: type[SpaceError] | type[ObjectiveError]) -> object:
    if not path.is_file():
        raise error(f"there is no file {path}", hint="paths start at the current folder")
    # A name of its own: a file called torch.py must not become the user's torch.
    spec = importlib.util.spec_from_file_location(f"_autotune_declaration_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise error(f"{path} isn't a Python file", hint=f"declare {attribute} in a .py file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up there
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as cause:  # the user's own code may raise anything, a script given here exits
        del sys.modules[spec.name]
        raise error(
            f"{path} can't be loaded: {type(cause).__name__}: {cause}", hint="it must import without the script's data"
        ) from cause
    if not hasattr(module, attribute):
        raise error(f"{path} declares no {attribute}", hint=f"assign it at the top level: {attribute} = …")
    return getattr(module, attribute)


def _described(value: object) -> str:
    return f"a {type(value).__name__}"
