"""The script's own figures: what it reports itself, and what it gives to loggers and trainers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, SupportsFloat

from .clock import StepClock
from .recorder import Recorder
from .records import Metric


class Metrics:
    """Reported figures are sent at once; of logged ones the first at once, and the last at the end."""

    def __init__(self, recorder: Recorder, clock: StepClock) -> None:
        self._recorder = recorder
        self._clock = clock
        self._reported: set[str] = set()
        self._logged: dict[str, Metric] = {}
        self._again: set[str] = set()

    def report(self, metrics: Mapping[str, float]) -> None:
        """From ``tuner.report``."""
        for name, value in metrics.items():
            self._reported.add(name)
            self._recorder.emit(Metric(name, value, self._clock.total_samples))

    def log(self, name: str, value: object) -> None:
        """A value that the script gave to a logger or a trainer; what isn't one number is passed over."""
        if not isinstance(value, (SupportsFloat, str)):
            return
        try:
            metric = Metric(name, number_of(value), self._clock.total_samples)
        except (TypeError, ValueError, RuntimeError, Warning):
            return  # loggers take more than numbers: the text of a blob's name, a tensor of several values
        if name in self._logged:
            self._again.add(name)
        elif name not in self._reported:
            self._recorder.emit(metric)
        self._logged[name] = metric

    def send_logged(self) -> None:
        """Sends the last value of what was logged again; what the script reports under that name stands instead."""
        for name, metric in list(self._logged.items()):
            if name in self._again and name not in self._reported:
                self._recorder.emit(metric)


def told_numbers(metrics: Mapping[str, SupportsFloat], remark: Callable[[str], None]) -> dict[str, float]:
    """What of a ``tuner.report`` is a number, and finite where it counts something; ``remark`` is told of the rest.

    Never raises: a script whose metric is None in its first epoch trains under plain Python, where nobody looks at it.
    """
    told = {}
    for name, value in metrics.items():
        try:
            number = number_of(value)
        except Exception:  # whatever the type's own conversion raises
            remark(f"tuner.report({name}=...) was given what is no number, which is passed over")
            continue
        if name in ("step", "samples") and not math.isfinite(number):
            remark(f"tuner.report({name}=...) was given {number}, which counts nothing")
            continue
        told[name] = number
    return told


def number_of(value: Any) -> float:
    """As ``float`` gives it, without the warnings of PyTorch and NumPy: a script may have made them errors."""
    for call in ("detach", "item"):  # of a tensor that wants a gradient, of an array of one value
        method = getattr(value, call, None)
        value = method() if callable(method) else value
    return float(value)
