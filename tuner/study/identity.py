"""What makes two runs of ``autotune study`` the same study, and how two of them differ."""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tuner.child.watch import Watch
from tuner.devices.present import kind_of
from tuner.errors import ObjectiveError, StudyMismatchError
from tuner.knowledge import BOTH, KEEP
from tuner.masking import masked
from tuner.model import Trial, Value
from tuner.objective import Objective, amortised
from tuner.space.registry import OBJECTIVES, is_file, load_objective, names
from tuner.space.resolved import ResolvedSpace
from tuner.storage import codec
from tuner.study.plan import StudyPlan

LARGEST_MODULE_BYTES = 16 * 2**20
UNCOMPARED = frozenset({"objective.source", "objective.planned_samples"})
"""How to load the study's objective again; whether it is the same one, ``objective`` says."""
KERAS_BACKEND, OBJECTIVE_FILE, SPACE_FILE = "keras.backend", "objective.sha256", "space.sha256"
"""What studies of earlier versions don't say."""


def identity_of(plan: StudyPlan) -> dict[str, Any]:
    """Everything that a trial's figures depend on. Budget, seed and time limits may change between runs.

    Which space is searched is known after the baseline only: ``check_space`` looks at that. It compares values, and
    what a file's own functions do with them only the file says.
    """
    return {
        "script.sha256": plan.script.sha256,
        "script.path": plan.script.path,
        "script.module": plan.script.module,
        "script.argv": list(masked(plan.script.argv)),
        "space.selection": sorted(plan.selection),
        "space.pinned": {name: plan.pinned[name] for name in sorted(plan.pinned)},
        # Also of a study without such a file, so that it doesn't go on with one.
        SPACE_FILE: next((space.sha256 for space in plan.spaces.declared if space.sha256), ""),
        "effective_batch": plan.effective_batch,
        # Earlier studies had every watch, and say nothing of it.
        **({"without": [str(watch) for watch in sorted(plan.without)]} if plan.without else {}),
        "objective": plan.objective.text,
        "objective.source": plan.objective.source,
        **({OBJECTIVE_FILE: plan.objective.sha256} if plan.objective.sha256 else {}),
        "objective.planned_samples": plan.objective.planned_samples,
        "device.kind": plan.device.kind,
        "device.name": plan.device.name,
        **({"ranks": plan.ranks} if plan.ranks > 1 else {}),
        # Beside an accelerator they only feed it; a CPU with other cores is another device.
        **({"device.cores": plan.cores} if kind_of(plan.device).is_host else {}),
        **{f"software.{name}": version for name, version in sorted(plan.software.items())},
        **({KERAS_BACKEND: plan.keras_backend} if plan.keras_backend else {}),
    }


def check_identity(
    stored: Mapping[str, Any], present: Mapping[str, Any], folder: str, baseline: Trial | None = None
) -> None:
    """Raises ``StudyMismatchError`` listing each difference, old → new. ``baseline``: the study's, once it was run."""
    if isinstance(stored.get("script.argv"), (list, tuple)):
        # Studies of earlier versions hold secrets as they were given.
        stored = {**stored, "script.argv": list(masked([str(argument) for argument in stored["script.argv"]]))}
    differences = [
        f"{name}: {_shown(stored, name)} → {_shown(present, name)}"
        for name in dict.fromkeys([*stored, *present])
        if name not in UNCOMPARED
        and (name != KERAS_BACKEND or _computes_as_set(stored, baseline))
        and (name != OBJECTIVE_FILE or _says_which_file(stored))
        and (name != SPACE_FILE or name in stored)
        and _as_compared(name, stored.get(name)) != _as_compared(name, present.get(name))
    ]
    if differences:
        raise StudyMismatchError(
            f"the study in {folder} belongs to something else:\n  " + "\n  ".join(differences),
            hint="its figures don't hold for this one: start over with --new, or choose another folder",
        )


def _computes_as_set(stored: Mapping[str, Any], baseline: Trial | None) -> bool:
    """Whether the script's figures depend on what Keras was set to compute with: neither where it didn't import Keras,
    nor where it chose another backend itself.
    """
    if KERAS_BACKEND not in stored or baseline is None or baseline.outcome is None:
        return KERAS_BACKEND in stored
    known = baseline.outcome.knowledge
    may_import = not known.watches or Watch.KERAS in (*known.watches, *known.without)
    return may_import and known.backend in ("", stored[KERAS_BACKEND])


def _says_which_file(stored: Mapping[str, Any]) -> bool:
    """Whether what the study says of its objective tells it from another one of that name in the same file."""
    return OBJECTIVE_FILE in stored or not is_file(str(stored.get("objective.source") or ""))


def hashes_of_modules(source: Path, names: Iterable[str]) -> dict[str, str]:
    """SHA-256 of the modules at these paths from the script's folder; "" for one that is gone.

    Those that lay outside of the folder may lie elsewhere on this machine, and are left out where they aren't there.
    """
    hashes: dict[str, str] = {}
    folder = source.resolve().parent
    for name in names:
        file = folder / name
        try:
            fits = file.suffix == ".py" and file.is_file() and file.stat().st_size <= LARGEST_MODULE_BYTES
            if fits:
                hashes[name] = hashlib.sha256(file.read_bytes()).hexdigest()
            elif not name.startswith(".."):
                hashes[name] = ""
        except (OSError, ValueError):
            continue  # not to be read, or no path at all
    return hashes


def check_modules(stored: Mapping[str, str], source: Path, folder: str) -> None:
    """Raises ``StudyMismatchError`` naming the script's own modules that were edited since the baseline ran."""
    now = hashes_of_modules(source, stored)
    edited = [name for name, before in stored.items() if now.get(name, before) != before]
    if edited:
        raise StudyMismatchError(
            f"modules of the script have changed since the study in {folder} began: {', '.join(edited)}",
            hint="its figures don't hold for them: start over with --new, or choose another folder",
        )


def objective_of(stored: Mapping[str, Any], *, trusted: bool = False) -> Objective:
    """The objective of a stored study, loaded again. Raises ``ObjectiveError`` where it can't be, or is another one.

    A file is loaded where that is ``trusted`` only: whoever wrote the study's database chose which. Studies of earlier
    versions say only what it was called: of those that are installed it is the one of that name.
    """
    wanted = str(stored.get("objective", ""))
    source = stored.get("objective.source")
    if source and is_file(str(source)) and not trusted:
        raise ObjectiveError(f"it is Python in {source}, as the study's folder says; --trust loads it")
    for name in [str(source)] if source else names(OBJECTIVES):
        objective = load_objective(name)
        planned = stored.get("objective.planned_samples")
        if isinstance(planned, int):
            objective = amortised(objective, planned)
        if objective.text == wanted and stored.get(OBJECTIVE_FILE, objective.sha256) != objective.sha256:
            raise ObjectiveError(f"{source} was edited since the study began")
        if objective.text == wanted:
            return objective
    raise ObjectiveError(f"{source} declares another one now" if source else "none of that name is installed")


def space_hash(space: ResolvedSpace) -> str:
    """Changes whenever an axis does: Optuna can't change the choices of a study that exists."""
    axes = [[axis.knob.name, axis.knob.ordered, list(axis.values)] for axis in space.axes]
    return hashlib.sha256(_as_stored([axes, space.pinned]).encode()).hexdigest()[:12]


def _as_compared(name: str, value: Any) -> str:
    """A study that keeps the effective batch, as earlier ones did, holds what one needs that tries larger ones, too:
    these are added when it goes on, or left alone.
    """
    return _as_stored(KEEP if name == "effective_batch" and value == BOTH else value)


def _as_stored(value: Any) -> str:
    """Text, for Python takes True for 1; a tuple that became a list in JSON, or another order, is no difference."""
    return json.dumps(codec.plain(value), sort_keys=True)


def space_document(space: ResolvedSpace) -> dict[str, Any]:
    """What a study searches, for its record."""
    return {
        "name": space.space.name,
        "knobs": [f"{knob.name}:{knob.tier}" for knob in space.space.knobs],
        "hash": space_hash(space),
        "values": {axis.knob.name: list(axis.values) for axis in space.axes},
        "as_written": {axis.knob.name: axis.values[axis.as_written] for axis in space.axes},
        "left_out": {knob: left.reason for knob, left in space.left_out.items()},
        "pinned": dict(space.pinned),
        **({"larger": {space.larger.knob.name: larger_values(space)}} if space.larger is not None else {}),
    }


def larger_values(space: ResolvedSpace) -> list[Value]:
    """The batches that make the effective one larger; not those that the search has anyway."""
    axis = space.larger
    return [value for value in axis.values if space.is_larger({axis.knob.name: value})] if axis is not None else []


def keeping_batch_by(document: Mapping[str, Any], trials: Iterable[Trial]) -> list[Trial]:
    """The trials that keep the effective batch, by what a study's record says of its space."""
    larger = document.get("larger", {})
    return [t for t in trials if not any(t.config.get(knob) in values for knob, values in larger.items())]


def check_space(stored: Mapping[str, Any], present: ResolvedSpace, folder: str) -> None:
    """Raises ``StudyMismatchError`` where a study that has a space would search another one."""
    now = space_document(present)
    own = [name for name in ("name", "knobs") if stored.get(name) != now[name]]
    if stored and (own or stored.get("hash") != now["hash"]):
        lines = [f"{name}: {_shown(stored, name)} → {_shown(now, name)}" for name in own]
        before, after = stored.get("values", {}), now["values"]
        lines += [
            f"{knob}: {_shown(before, knob)} → {_shown(after, knob)}"
            for knob in {**before, **after}
            if before.get(knob) != after.get(knob)
        ]
        raise StudyMismatchError(
            f"the study in {folder} searches another space:\n  " + "\n  ".join(lines),
            hint="start over with --new, or choose another folder",
        )


def _shown(identity: Mapping[str, Any], name: str) -> str:
    if name not in identity:
        return "(absent)"
    value = identity[name]
    if name in ("script.sha256", OBJECTIVE_FILE, SPACE_FILE):
        return str(value)[:12] or "(none)"
    if name == "script.argv":
        return shlex.join(value) or "(none)"
    return str(value) if value != "" else "(none)"
