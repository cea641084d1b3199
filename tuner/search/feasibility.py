"""How likely a config works: whether its memory suffices, and which values the trials that failed had.

What surely fails is ruled out elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tuner.analysis.resources import CROWDED_OUT
from tuner.model import Trial
from tuner.search.history import DEVICE_OOM, HOST_OOM, OUT_OF_MEMORY, History
from tuner.search.memory_model import MemoryModel
from tuner.search.tried import Floats, Indices

WORKS = 1.0
"""A value that no trial had counts like one that worked so often, and never failed."""
BLAMED, BLAMED_FOR_MEMORY = 3.0, 1.0
"""A failure counts like so many trials that worked; less of something else may mend one of memory."""
UNLIKELY = 0.35
"""A config that works with a smaller probability is left until nothing else is, or is expected to gain."""


class Feasibility:
    """Blames a failed trial on the values that it turned, most on those that worked nowhere else; so it does with turns
    of a rotation that ended in an error.

    What ran out of memory is blamed on knobs of which more takes more, where it turned one up, and on what is beyond.
    Where there is a limit, a model of that memory counts beside: it tells of configs that nothing like has failed yet.
    """

    def __init__(self, history: History) -> None:
        self._axes = history.space.axes
        self._worked = [np.zeros(len(axis.values)) for axis in self._axes]
        self._failed = [np.zeros(len(axis.values)) for axis in self._axes]
        every = [(trial, history.indices_of(trial)) for trial in history.trials]
        placed = [(trial, indices) for trial, indices in every if indices is not None]
        self._memory = _memory_models(history, placed)
        for trial, indices in placed:
            if history.gain(trial) is not None:
                for place, index in enumerate(indices):
                    self._worked[place][index] += 1.0
        for trial, indices in placed:
            reason = trial.outcome.reason if trial.outcome is not None else ""
            if history.gain(trial) is None and reason != CROWDED_OUT:
                self._blame(indices, of_memory=reason in OUT_OF_MEMORY)
        for row in filter(None, map(history.space.row_of, history.ended_rotations)):
            self._blame(row, of_memory=False)

    def of(self, configs: Indices) -> Floats:
        """The probability that each row of indices works."""
        likely = self.but_for_memory(configs)
        for memory in self._memory:
            likely *= memory.fits(configs)
        return likely

    def but_for_memory(self, configs: Indices) -> Floats:
        """The same without what the forecasts of memory say."""
        likely = np.ones(len(configs))
        for place, (worked, failed) in enumerate(zip(self._worked, self._failed, strict=True)):
            likely *= ((worked + WORKS) / (worked + WORKS + failed))[configs[:, place]]
        return likely

    def _blame(self, row: Sequence[int], *, of_memory: bool) -> None:
        turned = [place for place, axis in enumerate(self._axes) if row[place] != axis.as_written]
        heavy = [p for p in turned if self._axes[p].knob.heavier and row[p] > self._axes[p].as_written]
        blamed = heavy if of_memory and heavy else turned
        blames = [1 / (self._worked[place][row[place]] + 0.5) for place in blamed]
        for place, blame in zip(blamed, blames, strict=True):
            beyond = slice(row[place], None) if of_memory and place in heavy else row[place]
            self._failed[place][beyond] += (BLAMED_FOR_MEMORY if of_memory else BLAMED) * blame / sum(blames)


def _memory_models(history: History, placed: Sequence[tuple[Trial, Sequence[int]]]) -> list[MemoryModel]:
    """Of each memory that has a limit."""
    axes, limits = history.space.axes, history.memory
    models = list[MemoryModel]()
    if limits.host_bytes is not None:
        models.append(MemoryModel(axes, placed, lambda each: each.peak_host_bytes, limits.host_bytes, HOST_OOM))
    if limits.device_bytes is not None:
        of_device = MemoryModel(
            axes, placed, lambda each: each.peak_device_bytes, limits.device_bytes, DEVICE_OOM, of_device=True
        )
        models.append(of_device)
    return models
