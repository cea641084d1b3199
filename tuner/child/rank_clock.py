"""The clock of one of several ranks: blocks and turns are cut, and the window ends, after the same steps in all."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace

from .clock import StepClock
from .recorder import Recorder
from .records import Block, Phase, Window
from .turns import TurnGiver
from .unison import PATIENCE_S, Decision, Unison

_MOST_LONGER = 4
"""Times the steps of the block before that one may have."""
_NEARLY = 0.5
"""Of a turn's length that blocks of whole steps may lack: another block would make it twice as long."""


class RankTurns(TurnGiver):
    """Turns of one of several ranks: rank 0 has those that its parent gives, once all have come to the turn's end.

    Those of the others follow what it decides.
    """

    def __init__(self, given: TurnGiver, unison: Unison) -> None:
        self.current = given.current
        self.ended = False
        self._given = given
        self._unison = unison

    def wait(self, *, enough: bool, whole: bool) -> float:
        """As ``TurnGiver.wait``, in rank 0."""
        began = time.perf_counter()
        self._unison.gather()
        if not self._unison.apart:
            self._given.wait(enough=enough, whole=whole)
            self.current, self.ended, self.stretch = self._given.current, self._given.ended, self._given.stretch
        return time.perf_counter() - began

    @property
    def at_work(self) -> float:
        """As ``TurnGiver.at_work``."""
        return self._given.at_work

    @at_work.setter
    def at_work(self, samples: float) -> None:
        self._given.at_work = samples

    def measured(self, block: Block) -> None:
        """As ``TurnGiver.measured``."""
        self._given.measured(block)

    @property
    def begins_as_taken(self) -> bool:
        """As ``TurnGiver.begins_as_taken``."""
        return self._given.begins_as_taken

    @begins_as_taken.setter
    def begins_as_taken(self, value: bool) -> None:
        self._given.begins_as_taken = value

    @property
    def wait_share(self) -> float:
        """As ``TurnGiver.wait_share``."""
        return self._given.wait_share

    def drains(self, warmed_up_s: float) -> bool:
        """As ``TurnGiver.drains``."""
        return self._given.drains(warmed_up_s)

    def lead_in_s(self, *, stock: bool, short: bool) -> float:
        """As ``TurnGiver.lead_in_s``."""
        return self._given.lead_in_s(stock=stock, short=short)


class RankClock(StepClock):
    """The clock of one of several ranks: rank 0's decides, those of the others follow.

    Each block says after which step of the script it ended (``at``), and how long its steps took the rank to come to
    their backwards (``alone_s``), where it meets the others.
    """

    def __init__(
        self, recorder: Recorder, window: Window, unison: Unison, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._real_clock = clock
        self._waited_s = 0.0
        super().__init__(recorder, window, clock=self._own_time)
        self.unison = unison
        self.in_company = False
        """Whether ranks that meet nowhere in a step wait for each other at each cut: what they take together is the
        time of the slowest, and none is far ahead of it at the end.
        """
        self.answer: Callable[[int, int], str] = lambda act, place: ""
        """See ``Unison.follow``."""
        self._alone_s = 0.0
        self._step_ended: float | None = None
        self._block_steps = 1
        self._step_s = 0.0

    def _own_time(self) -> float:
        """The clock without what this rank has waited for rank 0 to decide."""
        return self._real_clock() - self._waited_s

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
        if self.unison.leads:
            if is_first or self.unison.is_cut:
                self._decide()
        elif self.unison.is_cut and (self.turns is not None or self.in_company):
            self._follow()
        self.unison.is_cut = False
        self._step_ended = self._clock()
        return complete and self.unison.leads

    def validation_begins(self, source: object = None, *, fetched: bool = False, since: float | None = None) -> None:
        """As ``StepClock.validation_begins``; what is set apart says nothing of who waits for whom."""
        super().validation_begins(source, fetched=fetched, since=since)
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

    def _decide(self) -> None:
        """Rank 0: after which step the next cut is, and what holds until then."""
        steps = self._fitting_steps
        if self._lead_in_ends is not None and self._step_s:
            steps = max(1, math.ceil((self._lead_in_ends - self._clock()) / self._step_s))
        if self.in_company:
            self.unison.gather()
        self.unison.cut_after(steps)
        if self.turns is not None:
            self.unison.decide(Decision(self.turns.current, self.turns.ended, self._lead_in_ends is not None))
        elif self.in_company:
            self.unison.decide(Decision(turn=0, ended=False, leads_in=False))

    @property
    def _fitting_steps(self) -> int:
        """Of a block that is as long as it is to be, by the one before."""
        fitting = round(self._length_s / self._step_s) if self._step_s else 1
        return min(max(1, fitting), _MOST_LONGER * self._block_steps)

    def _follow(self) -> None:
        """Another rank: waits until rank 0 has decided on this cut, and does likewise."""
        turns, began = self.turns, self._clock()
        decision = self.unison.follow(self.answer)
        if turns is None:
            return  # in company, where the time counts for all
        waited_s = self._clock() - began
        self._waited_s += waited_s
        if (phase := self._phase_of_all()) is not self.phase:
            self._enter(phase, self._clock())
        if (decision.turn, decision.ended) != (turns.current, turns.ended):
            turns.current, turns.ended = decision.turn, decision.ended
            self._turn_s = 0.0
            if not self._steps:
                self._ready_at_start = self.ready()
            self.on_held(waited_s)
        self._lead_in_ends = math.inf if decision.leads_in else None

    def _end_turn(self) -> None:
        if self.unison.leads and self.unison.is_cut:
            if self._turn_s >= _NEARLY * self._length_s:
                self._turn_s = max(self._turn_s, self._length_s)
            super()._end_turn()

    def _is_led_in(self) -> bool:
        if self._lead_in_ends is None or self.validating:
            return False
        if self.unison.is_cut:
            self._begin_block_anew()
            self._lead_in_ends = None
        return True

    def _begin_block_anew(self) -> None:
        super()._begin_block_anew()
        self._alone_s = 0.0

    def _is_long_enough(self, seconds: float) -> bool:
        return self.unison.is_cut

    def _emit(self, block: Block) -> None:
        alone_s = 0.0
        if not block.flagged:  # the step behind it may have come to its backward already
            alone_s, self._alone_s = self._alone_s, 0.0
        super()._emit(replace(block, at=self.total_steps, alone_s=round(alone_s, 6)))

    def _close_block(self, *, flagged: bool, at: float | None = None, may_end_epoch: bool = False) -> None:
        steps, began = self._steps, self._block_started
        super()._close_block(flagged=flagged, at=at, may_end_epoch=may_end_epoch)
        seconds = self._block_started - began
        self.unison.patience_s = max(PATIENCE_S, _MOST_LONGER * seconds)
        if self.unison.is_cut and steps and seconds > 0 and not flagged:
            self._block_steps, self._step_s = steps, seconds / steps

    def _seen_activity(self) -> int:
        return self.unison.activity

    def _advance(self) -> None:
        if self.unison.leads:
            super()._advance()
        elif self.turns is None and (phase := self._phase_of_all()) is not self.phase:
            self._enter(phase, self._clock())

    def _phase_of_all(self) -> Phase:
        return Phase.WINDOW if self.unison.in_window else Phase.WARMUP

    def _enter(self, phase: Phase, now: float) -> None:
        super()._enter(phase, now)
        if self.unison.leads:
            self.unison.in_window = phase is Phase.WINDOW

    def _trained_on(self) -> float:
        return self.unison.progress if self.total_samples else self.progress
