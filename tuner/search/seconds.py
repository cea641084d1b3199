"""What a trial of a config is expected to take: compilers and whatever else starts slowly cost more."""

from __future__ import annotations

import statistics

import numpy as np

from tuner.search.history import History
from tuner.search.tried import Floats, Indices

UNKNOWN_LATE = 2.0
"""A value of a late knob that no trial had is taken to make a trial so many times longer."""
_LEAST_S = 1.0


class TrialSeconds:
    """By the seconds of the trials so far: of those with the same values of the late knobs, else of a usual one."""

    def __init__(self, history: History) -> None:
        axes = history.space.axes
        self._late = [place for place, axis in enumerate(axes) if axis.knob.late]
        self._written = tuple(axes[place].as_written for place in self._late)
        self._seconds: dict[tuple[int, ...], list[float]] = {}
        for trial in history.trials:
            indices = history.indices_of(trial)
            if indices is not None and trial.outcome is not None and trial.outcome.seconds > 0:
                key = tuple(indices[place] for place in self._late)
                self._seconds.setdefault(key, []).append(trial.outcome.seconds)
        every = [seconds for group in self._seconds.values() for seconds in group]
        self._usual_s = statistics.median(self._seconds.get(self._written, every) or [_LEAST_S])

    def of(self, configs: Indices) -> Floats:
        """Seconds of a trial of each row of indices."""
        return np.array([self._of(tuple(int(row[place]) for place in self._late)) for row in configs])

    def _of(self, late: tuple[int, ...]) -> float:
        seconds = self._seconds.get(late)
        if seconds:
            return max(_LEAST_S, statistics.fmean(seconds))
        return max(_LEAST_S, self._usual_s * (UNKNOWN_LATE if late != self._written else 1.0))
