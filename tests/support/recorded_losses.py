"""Losses of studies/digits, recorded once: twelve seeds as written, and the same with faster numerics.

    python tests/benchmarks/screen_power.py --record    # records them anew: some twenty minutes on one core
"""

from __future__ import annotations

import json
import lzma
from dataclasses import replace
from pathlib import Path

from support import worlds
from tuner.model import LossSeries, Outcome

FILE = Path(__file__).parent.parent / "assets" / "digits-losses.json.xz"
AS_WRITTEN, FASTER = "as written", "bf16 channels_last fused"
Losses = list[list[float]]
"""A list for each seed, of each step's loss."""


def recorded() -> tuple[list[float], dict[str, Losses]]:
    """The samples trained on after each step, and the losses of both configs."""
    document = json.loads(lzma.decompress(FILE.read_bytes()))
    return document["samples"], {AS_WRITTEN: document[AS_WRITTEN], FASTER: document[FASTER]}


def as_from(losses: list[float], share: float) -> list[float]:
    """The losses of a config that learns as from a share of its samples; of none it never learns."""
    return [losses[min(len(losses) - 1, round(step * share))] for step in range(len(losses))]


def never(losses: list[float]) -> list[float]:
    """Losses that stay about where they began."""
    first = sum(losses[:3]) / 3
    return [first + loss - losses[step - 1 if step else 0] for step, loss in enumerate(losses)]


def outcome(samples: list[float], losses: list[float]) -> Outcome:
    """A run of a screen that learned so."""
    measured = worlds.measured(1.0)
    assert measured.measurement is not None
    series = LossSeries("train.py:76", "train.py:76", tuple(zip(samples, losses, strict=True)))
    return replace(measured, measurement=replace(measured.measurement, losses=(series,)))
