"""The clock of one of several ranks: blocks are cut, and the window ends, after the same steps in all of them."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from .clock import StepClock
from .recorder import Recorder
from .records import Block, Phase, Window
from .unison import Unison

_MOST_LONGER = 4
"""Times the steps of the block before that one may have."""


class RankClock(StepClock):
    """The clock of one of several ranks: rank 0's decides, those of the others follow.

    Each block says after which step of the script it ended (``at``), and how long its steps took the rank to come to
    their backwards (``alone_s``), where it meets the others.
    """

    def __init__(
        self, recorder: Recorder, window: Window, unison: Unison, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        super().__init__(recorder, window, clock=clock)
        self.unison = unison
        self._alone_s = 0.0
        self._step_ended: float | None = None
        self._cut_steps = 1

    def meets_others(self) -> None:
        """The script is about to wait for the other ranks; of a step the first time counts."""
        if self._step_ended is not None:
            self._alone_s += self._clock() - self._step_ended
            self._step_ended = None

    def step(self, count: int = 1) -> bool:
        """As ``StepClock.step``; True in rank 0 alone, where it is for all to go on until the last step."""
        own = self.activity()
        progress = self.total_samples + self._fetched.samples or float(self.total_steps + count)
        self.unison.stepped(self.total_steps + count, progress, own)
        is_first = not self.total_steps
        complete = super().step(count)
        if is_first and self.unison.leads:
            self.unison.cut_after(1)
        self._step_ended = self._clock()
        return complete and self.unison.leads

    def validation_begins(self, source: object = None) -> None:
        """As ``StepClock.validation_begins``; what is set apart says nothing of who waits for whom."""
        super().validation_begins(source)
        if self.validating:
            self._step_ended = None

    def fetch_begins(self) -> None:
        """As ``StepClock.fetch_begins``; the step that may begin with it counts like any other."""
        was_known = self._may_have_resumed is not None
        super().fetch_begins()
        if not was_known and self._may_have_resumed is not None:
            self._step_ended = self._may_have_resumed

    def training_resumes(self) -> None:
        """As ``StepClock.training_resumes``; a step begins with it where no fetch has shown one."""
        begins = self.validating and self._may_have_resumed is None
        super().training_resumes()
        if begins:
            self._step_ended = self._clock()

    def _is_long_enough(self, seconds: float) -> bool:
        return self.unison.is_cut

    def _emit(self, block: Block) -> None:
        alone_s = 0.0
        if not block.flagged:  # the step behind it may have come to its backward already
            alone_s, self._alone_s = self._alone_s, 0.0
        super()._emit(replace(block, at=self.total_steps, alone_s=round(alone_s, 6)))

    def _close_block(self, *, flagged: bool, at: float | None = None) -> None:
        steps, began = self._steps, self._block_started
        super()._close_block(flagged=flagged, at=at)
        if self.unison.leads and self.unison.is_cut and not self.complete:
            self.unison.is_cut = False
            seconds = self._block_started - began
            if steps and seconds > 0 and not flagged:
                fitting = round(steps * self._window.block_s / seconds)
                self._cut_steps = min(max(1, fitting), _MOST_LONGER * steps)
            self.unison.cut_after(self._cut_steps)

    def _seen_activity(self) -> int:
        return self.unison.activity

    def _advance(self) -> None:
        if self.unison.leads:
            super()._advance()
        elif (phase := Phase.WINDOW if self.unison.in_window else Phase.WARMUP) is not self.phase:
            self._enter(phase, self._clock())

    def _enter(self, phase: Phase, now: float) -> None:
        super()._enter(phase, now)
        if self.unison.leads:
            self.unison.in_window = phase is Phase.WINDOW

    def _trained_on(self) -> float:
        return self.unison.progress if self.total_samples else self.progress
