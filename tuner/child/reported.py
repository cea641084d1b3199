"""What a script reports itself: steps (``tuner.report(step=)``), and samples (``samples=``) where steps are seen."""

from __future__ import annotations

import math

from .clock import StepClock


class ReportedSteps:
    """Numbers of steps: of the whole training, or of each epoch anew, as ``enumerate(loader)`` gives them.

    A number that falls begins an epoch only where samples were trained on since: beside a metric it may be another
    count, as that of a validation's batches.
    """

    def __init__(self) -> None:
        self._before = self._most = 0
        self._each = 1
        self._samples = 0.0

    def total(self, step: int, samples: float | None) -> int:
        """Steps of the whole training, which never fall, when this was told. An epoch's first report is as many steps
        after the last one as that was after the one before it.
        """
        trained = samples is not None and samples > self._samples
        if self._before + step < self._most and trained:
            self._before = self._most + self._each - step
        total = self._before + step
        if total > self._most:
            self._each, self._most = total - self._most, total
        self._samples = max(self._samples, samples or 0.0)
        return self._most


class ReportedSamples:
    """Counts them where no others are counted. A script may report at each step, or once an epoch.

    Each step since the last report is taken for as many samples as those before it had, and made up for at the next
    one: a window would hold one report more or less, and a rate that is as much too high or too low. ``changes``: how
    often steps came to be counted so.
    """

    def __init__(self, clock: StepClock) -> None:
        self._clock = clock
        self._reported = self._counted = 0.0
        self._of_a_step = 0.0
        self._steps = 0
        self.changes = 0

    @property
    def any(self) -> bool:
        """Whether samples were reported, and counted."""
        return self._reported > 0

    @property
    def lack(self) -> str:
        """Why no step is told by what was reported, for people. Without a report it may not be reports that are due."""
        if self.any:
            return "it reported them once in the time that a trial has: report them more often (tuner.report(samples=))"
        return "none were seen or reported (tuner.report(samples=)) in the time that a trial has"

    def may_come(self, *, known: bool) -> bool:
        """Whether samples are to come, or another report, that alone tells how many a step has.

        ``known``: whether samples were counted in the script as written.
        """
        return not self.tell_of_steps and self._are_alone and (self.any or (known and not self._clock.told_samples))

    @property
    def tell_of_steps(self) -> bool:
        """Whether it is known how many a step has."""
        return self._of_a_step > 0

    def report(self, samples: float) -> None:
        """The script trained on so many by now."""
        if samples <= self._reported or not self._are_alone:
            return
        if not self.any:
            self._clock.instruments.interrupted(for_good=True)
        # The first report may hold those of an earlier run, which was resumed.
        if self.any and self._steps:
            self.changes += not self.tell_of_steps
            self._of_a_step = (samples - self._reported) / self._steps
        self._reported, self._steps = samples, 0
        self._count_until(samples)

    def stepped(self, count: int) -> None:
        """So many steps were seen to end."""
        self._steps += count
        if self.tell_of_steps and self._are_alone:
            self._count_until(self._reported + self._of_a_step * self._steps)

    @property
    def _are_alone(self) -> bool:
        """Whether nobody else counts samples."""
        return math.isclose(self._clock.told_samples, self._counted)

    def _count_until(self, samples: float) -> None:
        if samples > self._counted:
            self._clock.add_samples(samples - self._counted, 0.0)
            self._counted = samples
