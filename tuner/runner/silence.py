"""How long a trial says nothing, by what it is at, and how long it may: a longer silence is taken for a stall.

What a script does before its first step, in its validation and while it compiles takes as long as it takes: there the
trial's own time limit decides, until a baseline has shown how long. A process that waits for something that never comes
uses no CPU time, which tells it from one that computes.
"""

from __future__ import annotations

from enum import StrEnum

from tuner.child.records import FirstStep, Record, TrainingPause
from tuner.child.watch import Pause, Silences
from tuner.runner.request import Limits
from tuner.runner.tree import Usage

START_UP_S = 120.0
"""Imports, data and compilation may take so long without a word in any trial."""
IDLE_S = 120.0
"""Nobody waits longer than that for processes that use no CPU time. Seconds."""
IDLE_SHARE = 0.001
"""Of one core: what a process uses that only waits."""
TIMES_THE_BASELINE = 4.0
"""Configs may be silent so many times as long as the script as written."""


class Stage(StrEnum):
    """What a trial is at."""

    START_UP = "start-up"
    TRAINING = "training"
    VALIDATION = "validation"
    COMPILATION = "compilation"


class Course:
    """What a trial is at, by its records. ``last`` is the moment of the newest one, on the monotonic clock.

    ``first_step_s``: how long it took to its first step.
    """

    def __init__(self, began: float) -> None:
        self._began = self.last = began
        self.first_step_s = 0.0
        self._stepped = False
        self._pauses: set[Pause] = set()
        self._longest: dict[Stage, float] = {}

    @property
    def stage(self) -> Stage:
        """What it is at now."""
        if Pause.COMPILATION in self._pauses:
            return Stage.COMPILATION
        if not self._stepped:
            return Stage.START_UP
        return Stage.VALIDATION if Pause.VALIDATION in self._pauses else Stage.TRAINING

    def see(self, record: Record, at: float) -> None:
        """A record came."""
        self._longest[self.stage] = max(self._longest.get(self.stage, 0.0), at - self.last)
        self.last = at
        if isinstance(record, FirstStep) and not self._stepped:
            self._stepped, self.first_step_s = True, at - self._began
        if isinstance(record, TrainingPause):
            (self._pauses.add if record.begins else self._pauses.discard)(record.pause)

    def where(self) -> str:
        """What it is at, behind a word on its time."""
        if self.stage is Stage.START_UP:
            return ": no training step was seen by then"
        if self.stage is not Stage.TRAINING:
            return f": still in its {self.stage}"
        return f": {self.first_step_s:.0f} s until its first step"

    @property
    def silences(self) -> Silences:
        """The longest ones so far."""
        return Silences(*(round(self._longest.get(stage, 0.0), 3) for stage in Stage))


class Idleness:
    """Since when a trial's processes have used no CPU time worth the name."""

    def __init__(self) -> None:
        self._at: float | None = None
        self._cpu_s = 0.0

    def see(self, usage: Usage) -> float:
        """Takes a reading; gives the seconds until it in which nothing was computed."""
        used_s = usage.cpu_s - self._cpu_s
        if self._at is None or not 0 <= used_s < IDLE_SHARE * IDLE_S:
            self._at, self._cpu_s = usage.t, usage.cpu_s
        return usage.t - self._at


def longest_silence_s(stage: Stage, limits: Limits, baseline: Silences, own: Silences) -> float:
    """How long a trial may say nothing at that stage. ``baseline``: the silences of the script as written, empty for
    its own first run. ``own``: those of the trial so far.

    In training at least as long as its own first step took: XLA compiles a step anew for a batch of another shape, as
    for the first one, and nothing tells. How long the script as written takes between two steps its own first run has
    to show: an agent plays for minutes before it trains again.
    """
    of_all = limits.trial_timeout_s
    if baseline.are_unknown:
        return of_all
    if stage is Stage.COMPILATION:
        return of_all  # the script as written says nothing of what a config compiles
    seen = {
        Stage.START_UP: baseline.start_up_s,
        Stage.TRAINING: baseline.training_s,
        Stage.VALIDATION: baseline.validation_s,
    }[stage]
    if stage is Stage.TRAINING:
        return max(limits.no_progress_s, TIMES_THE_BASELINE * seen, own.start_up_s)
    if not seen:
        return of_all
    least = max(START_UP_S, of_all / 2) if stage is Stage.START_UP else limits.no_progress_s
    return max(least, TIMES_THE_BASELINE * seen)


def stall(
    course: Course, limits: Limits, baseline: Silences, now: float, idle_s: float | None
) -> str:
    """A line for people about the silence that is too long; "" as long as it may go on.

    ``idle_s``: for how long nothing was computed; None where that can't be seen, since a device computes.
    """
    silent_s = now - course.last
    what = {
        Stage.START_UP: "no first step", Stage.TRAINING: "no step", Stage.VALIDATION: "no end of its validation",
        Stage.COMPILATION: "no end of its compilation",
    }[course.stage]  # fmt: skip
    longest_s = longest_silence_s(course.stage, limits, baseline, course.silences)
    patience_s = IDLE_S
    if course.stage is Stage.TRAINING and baseline.are_unknown:
        # Nobody knows yet how long the script computes between two steps; that it stands still is seen at once.
        patience_s = min(IDLE_S, max(limits.no_progress_s, course.silences.start_up_s))
    if idle_s is not None and min(silent_s, idle_s) > patience_s:
        return f"{what} for {silent_s:.0f} s, and its processes use no CPU time: they wait for something"
    return f"{what} for {longest_s:.0f} s" if silent_s > longest_s else ""
