"""Cold starts: seconds to the first step with nothing compiled yet, which production pays once. Pure.

A compiler keeps what it made on disk. A study has such a cache of its own, which is empty when it begins: the first
trial of a compile setting is cold, and later ones are warm, the finals' among them. TorchInductor and JAX tell their
hits and misses; TensorFlow keeps nothing of XLA's on disk, so that each of its starts is a cold one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from tuner.model import SIDELINES, Config, Measurement, Trial

COMPILE = "compile"
_SETTING = (COMPILE, "compile_mode")
"""Knobs that say what is compiled, and how."""
COLD, WARM, MIXED = "cold", "warm", "mixed"


def with_cold_starts(trials: Iterable[Trial]) -> list[Trial]:
    """The trials, in their order; a warm one's measurement gets the cold start of the last cold one before it.

    Of the same config where there was one, else of the same compile setting: other knobs have a part in how long a
    start takes. Seconds, in ``Measurement.cold_first_step_s``. A start for which a part was compiled already, by other
    configs, wasn't cold; but a cold one of its config takes no less.
    """
    cold: list[tuple[Trial, float]] = []
    least: dict[Config, float] = {}
    completed = []
    for trial in trials:
        measurement = trial.measurement
        if measurement is not None and measurement.compile_cache == COLD and trial.phase not in SIDELINES:
            cold.append((trial, measurement.first_step_s))
            completed.append(trial)
        elif measurement is not None and measurement.compile_cache:
            if measurement.compile_cache == MIXED and trial.phase not in SIDELINES:
                least[trial.config] = max(least.get(trial.config, 0.0), measurement.first_step_s)
            completed.append(_with_start(trial, measurement, _cold_start_s(trial, cold, least)))
        else:
            completed.append(trial)
    return completed


def _cold_start_s(trial: Trial, cold: list[tuple[Trial, float]], least: Mapping[Config, float]) -> float | None:
    alike = [(c, s) for c, s in cold if all(c.config.get(name) == trial.config.get(name) for name in _SETTING)]
    same = [(c, s) for c, s in alike if c.config == trial.config]
    return max((same or alike)[-1][1], least.get(trial.config, 0.0)) if alike else None


def _with_start(trial: Trial, measurement: Measurement, seconds: float | None) -> Trial:
    if trial.outcome is None or seconds is None:
        return trial
    started = replace(measurement, cold_first_step_s=max(seconds, measurement.first_step_s))
    return replace(trial, outcome=replace(trial.outcome, measurement=started))
