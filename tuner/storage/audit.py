"""Checks stored figures: derives them again from the trials' raw records, which are their only source."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path
from typing import Any

from tuner.analysis.measurement import measurement_of
from tuner.model import Measurement, Trial
from tuner.storage.folder import RECORDS, RESOURCES, trial_folder
from tuner.storage.records import read_records, read_resources


def rederived(folder: Path, trial: Trial) -> Measurement | None:
    """The measurement that the trial's raw records give; None where they give none. Raises ``OSError``."""
    raw = trial_folder(folder, trial.number)
    return measurement_of(read_records(raw / RECORDS), read_resources(raw / RESOURCES))


def disagreements(folder: Path, trials: Iterable[Trial]) -> list[str]:
    """A line for each stored figure that isn't what the raw records give, and for records that can't be read."""
    lines = []
    for trial in trials:
        stored = trial.measurement
        if stored is None:
            continue
        try:
            derived = rederived(folder, trial)
        except OSError as error:
            lines.append(f"trial {trial.number}: its records can't be read: {error.strerror} ({error.filename})")
            continue
        lines += [f"trial {trial.number}: {text}" for text in _differences(stored, derived)]
    return lines


def _differences(stored: Measurement, derived: Measurement | None) -> list[str]:
    if derived is None:
        return ["its records give no measurement"]
    different = []
    for field in fields(Measurement):
        own, again = getattr(stored, field.name), getattr(derived, field.name)
        if _plain(own) != _plain(again):
            different.append(f"{field.name} is {_short(own)}, its records give {_short(again)}")
    return different


def _plain(value: Any) -> str:
    """NaN is equal to itself here, and tuples to lists."""
    return repr(list(value) if isinstance(value, (tuple, list)) else value)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
