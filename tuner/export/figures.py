"""The figures of a best.json read back: what each profile says of speed, memory and energy on its device."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from tuner.analysis.comparison import NO_PROOF
from tuner.analysis.fleet import FINALS, SINGLE_TRIAL, LoopFigures, OnDevice
from tuner.child import shape
from tuner.errors import ProfileError
from tuner.export.profile import SCHEMA, Profile, documents
from tuner.export.profile import read as read_profiles
from tuner.export.speedup import read_speedup
from tuner.knowledge import FREE
from tuner.model import Device

_ROUNDING = 1e-9
"""Relative: the mean of equal rates may lie beyond them by the last digit."""


def read(content: bytes, place: str) -> list[OnDevice]:
    """The profiles of a best.json with their figures. Raises ``ProfileError`` naming the place and what is wrong."""
    found = []
    for number, (profile, document) in enumerate(
        zip(read_profiles(content, place), documents(content, place), strict=True)
    ):
        try:
            found.append(_on_device(profile, document, place))
        except ValueError as error:
            raise ProfileError(
                f"{place}: profiles[{number}] does not match schema {SCHEMA}: {error}",
                hint="run autotune study again to rewrite it",
            ) from error
    return found


def _on_device(profile: Profile, document: Mapping[str, Any], place: str) -> OnDevice:
    """Raises ``ValueError`` for a figure that none can be."""
    device, limits = shape.read(Device, document["device"], "device"), document.get("limits")
    batch = limits.get("effective_batch") if isinstance(limits, Mapping) else None
    return OnDevice(
        place=place,
        device=device,
        circumstances=profile.circumstances,
        objective=shape.read(str, document.get("objective", ""), "objective"),
        free=None if batch is None else batch == FREE,
        edited=profile.edited,
        config=profile.config,
        speedup=read_speedup(document.get("speedup")),
        runs=shape.read(int, document.get("runs", 0), "runs"),
        written=_figures(document.get("baseline"), "baseline"),
        winner=_figures(document.get("winner"), "winner") if profile.config else None,
        energy_unknown=_reasons(document.get("energy_unknown")),
        shown=device.name,
        ranks=profile.ranks,
        devices=profile.devices,
        disturbed=_disturbed(document.get("candidate")),
        cannot_tell=profile.cannot_tell,
        larger=profile.larger,
        sooner=read_speedup(document["tier3"].get("time_to_loss")) if profile.larger else None,
    )


def _figures(document: object, place: str) -> LoopFigures | None:
    """A measurement; None where there is none, or one without a rate."""
    if document is None or (isinstance(document, Mapping) and document.get("rate") is None):
        return None
    figures = shape.read(LoopFigures, _with_ends(document), place)
    slack = _ROUNDING * figures.rate
    if not (0 <= figures.rate < math.inf and figures.low - slack <= figures.rate <= figures.high + slack):
        raise ValueError(f"{place}: {figures.low}, {figures.rate} and {figures.high} are no rate with its interval")
    if not figures.unit.isprintable():
        raise ValueError(f"{place}.unit is {figures.unit!r:.60}")
    if figures.based_on not in (FINALS, SINGLE_TRIAL):
        raise ValueError(f"{place}.based_on is {figures.based_on!r:.60}, not {FINALS} or {SINGLE_TRIAL}")
    amounts = {"peak_host_bytes": figures.peak_host_bytes, "peak_device_bytes": figures.peak_device_bytes}
    for name, amount in {**amounts, **asdict(figures.energy)}.items():
        if amount is not None and not 0 <= amount < math.inf:
            raise ValueError(f"{place}.{name} is {amount}")
    return figures


def _disturbed(candidate: object) -> str:
    """Why finals of a candidate could prove nothing, whatever they measured; "" where they could, or there were none.

    Of as many runs as a rank takes that is for others' load alone: without it three rounds are enough.
    """
    reason = shape.read(str, candidate.get("reason", ""), "candidate.reason") if isinstance(candidate, Mapping) else ""
    return reason.removeprefix(NO_PROOF) if reason.startswith(NO_PROOF) else ""


def _reasons(document: object) -> dict[str, str] | None:
    return None if document is None else shape.read(dict[str, str], document, "energy_unknown")


def _with_ends(document: object) -> object:
    """The measurement with an end of its interval that isn't known, null in JSON, as far away as can be."""
    if not isinstance(document, Mapping):
        return document
    return {**document, **{name: end for name, end in (("low", "-inf"), ("high", "inf")) if document.get(name) is None}}
