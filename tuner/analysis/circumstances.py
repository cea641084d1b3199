"""What a figure was measured with, and how two such circumstances differ. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from tuner.masking import masked
from tuner.model import Script

HARDLY_MATTERS = frozenset({"kernel", "platform", "autotune", "optuna"})
"""Software on which a rate hardly depends: not worth a warning in every production log."""


class ProvenPart(StrEnum):
    """What a config was proven with."""

    SCRIPT = "script"
    MODULE = "module"
    ARGUMENTS = "arguments"
    SOFTWARE = "software"
    DEVICE = "device"
    OBJECTIVE = "objective"
    UNIT = "unit"
    EFFECTIVE_BATCH = "effective batch"


@dataclass(frozen=True)
class Circumstances:
    """What a figure was measured with. ``software`` is name → version, ``modules`` are the hashes of those of the
    user's own that the script imports; ``cores`` of the host, None where nobody noted them.
    ``backend``: with which Keras trained, "" where it didn't, or nobody noted it.
    """

    script: Script
    software: Mapping[str, str] = field(default_factory=dict)
    modules: Mapping[str, str] = field(default_factory=dict)
    cores: int | None = None
    backend: str = ""


@dataclass(frozen=True)
class Change:
    """Something that is not as it was when the config was proven. ``part`` is what changed; software has a ``name``.

    For the script and its modules, whose ``name`` is their path, ``before`` and ``now`` are hashes, "" where there is
    none, as of a module that is gone; for the arguments, command lines without their secrets; for the device, whose
    ``name`` is ``cores``, how many of them its host has.
    """

    part: ProvenPart
    before: str
    now: str
    name: str = ""


def changed(proven: Circumstances, now: Circumstances) -> list[Change]:
    """What is not as it was when the config was proven. Modules that ``now`` says nothing of pass for the same, and the
    backend of Keras is told once the script trains.
    """
    found = []
    if proven.cores is not None and proven.cores != now.cores:
        found.append(Change(ProvenPart.DEVICE, str(proven.cores), str(now.cores), "cores"))
    if proven.script.sha256 and now.script.sha256 != proven.script.sha256:
        found.append(Change(ProvenPart.SCRIPT, proven.script.sha256, now.script.sha256))
    for name, before in proven.modules.items():
        if now.modules.get(name, before) != before:
            found.append(Change(ProvenPart.MODULE, before, now.modules[name], name))
    return found + _arguments(proven, now) + _software(proven, now)


def apart(one: Circumstances, other: Circumstances) -> list[Change]:
    """How two that were measured each by itself differ, other than in their devices: the same whichever comes first.

    What has no hash on either side may be the same or not. That counts as another one: else two that differ would both
    be like a third, of which nothing is known.
    """
    found = []
    if not one.script.sha256 or one.script.sha256 != other.script.sha256:
        found.append(Change(ProvenPart.SCRIPT, one.script.sha256, other.script.sha256))
    for name in sorted({*one.modules, *other.modules}):
        before, now = one.modules.get(name, ""), other.modules.get(name, "")
        if not before or before != now:
            found.append(Change(ProvenPart.MODULE, before, now, name))
    if one.backend != other.backend:
        before, now = (each.backend or "absent" for each in (one, other))
        found.append(Change(ProvenPart.SOFTWARE, before, now, "Keras' backend"))
    return found + _arguments(one, other) + _software(one, other)


def _arguments(one: Circumstances, other: Circumstances) -> list[Change]:
    before, now = masked(one.script.argv), masked(other.script.argv)
    return [Change(ProvenPart.ARGUMENTS, _shell(before), _shell(now))] if now != before else []


def _software(one: Circumstances, other: Circumstances) -> list[Change]:
    found = []
    for name in sorted({*one.software, *other.software}):
        before, now = one.software.get(name, "absent"), other.software.get(name, "absent")
        if before != now:
            found.append(Change(ProvenPart.SOFTWARE, before, now, name))
    return found


def _shell(arguments: Sequence[str]) -> str:
    return shlex.join(arguments) or "none"
