"""What a config's start costs with nothing compiled yet: production pays that once, and most trials don't. Pure.

A compiler keeps what it made on disk. A study has such a cache of its own, which is empty when it begins: the first
trial of a compile setting is cold, and later ones are warm, the finals' among them. TorchInductor tells its hits and
misses; XLA keeps nothing on disk unless it is told to, so that each of its starts is a cold one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from tuner.model import Measurement, Phase, Trial

COMPILE = "compile"
COLD = "cold"


def with_cold_starts(trials: Iterable[Trial]) -> list[Trial]:
    """The trials; a warm one knows the start of the last cold one before it that was compiled likewise.

    Of the same config where there was one: other knobs have a part in how long a start takes.
    """
    cold: list[tuple[Trial, float]] = []
    told = []
    for trial in trials:
        measurement = trial.measurement
        known = trial
        if measurement is not None and measurement.compile_cache == COLD and trial.phase is not Phase.PROBE:
            cold.append((trial, measurement.first_step_s))
        elif measurement is not None and measurement.compile_cache:
            known = _with_start(trial, measurement, _cold_start_s(trial, cold))
        told.append(known)
    return told


def _cold_start_s(trial: Trial, cold: list[tuple[Trial, float]]) -> float | None:
    alike = [(c, s) for c, s in cold if c.config.get(COMPILE) == trial.config.get(COMPILE)]
    same = [(c, s) for c, s in alike if c.config == trial.config]
    return (same or alike)[-1][1] if alike else None


def _with_start(trial: Trial, measurement: Measurement, seconds: float | None) -> Trial:
    if trial.outcome is None or seconds is None:
        return trial
    known = replace(measurement, cold_first_step_s=max(seconds, measurement.first_step_s))
    return replace(trial, outcome=replace(trial.outcome, measurement=known))
