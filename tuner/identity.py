"""What makes two runs of ``autotune study`` the same study, and how two of them differ."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from tuner import codec
from tuner.errors import StudyMismatchError
from tuner.plan import StudyPlan
from tuner.space import ResolvedSpace


def identity_of(plan: StudyPlan) -> dict[str, Any]:
    """Everything that a trial's figures depend on. Budget, seed and time limits may change between runs."""
    return {
        "script.sha256": plan.script.sha256,
        "script.path": plan.script.path,
        "script.module": plan.script.module,
        "script.argv": list(plan.script.argv),
        "space.name": plan.space.name,
        "space.knobs": [f"{knob.name}:{knob.tier}" for knob in plan.space.knobs],
        "space.selection": list(plan.selection),
        "space.pinned": {name: plan.pinned[name] for name in sorted(plan.pinned)},
        "objective": f"{plan.objective.name} ({plan.objective.unit})",
        "device.kind": plan.device.kind,
        "device.name": plan.device.name,
        **{f"software.{name}": version for name, version in sorted(plan.software.items())},
    }


def check_identity(stored: Mapping[str, Any], present: Mapping[str, Any], folder: str) -> None:
    """Raises ``StudyMismatchError`` listing each difference, old → new."""
    differences = [
        f"{name}: {_shown(stored, name)} → {_shown(present, name)}"
        for name in dict.fromkeys([*stored, *present])
        # Compared as stored: a tuple that became a list in JSON is no difference.
        if codec.plain(stored.get(name)) != codec.plain(present.get(name))
    ]
    if differences:
        raise StudyMismatchError(
            f"the study in {folder} is of something else:\n  " + "\n  ".join(differences),
            hint="its figures say nothing of what is asked for now: start over with --new, or choose another folder",
        )


def space_hash(space: ResolvedSpace) -> str:
    """Changes whenever an axis does: Optuna can't change the choices of a study that exists."""
    axes = [[axis.knob.name, axis.knob.ordered, list(axis.values)] for axis in space.axes]
    return hashlib.sha256(codec.dumps([axes, space.pinned]).encode()).hexdigest()[:12]


def _shown(identity: Mapping[str, Any], name: str) -> str:
    if name not in identity:
        return "(absent)"
    value = identity[name]
    if name == "script.sha256":
        return str(value)[:12] or "(none)"
    return str(value) if value != "" else "(none)"
