"""The session of one of several ranks: all end with the same step, and whatever ends one before that ends the trial."""

from __future__ import annotations

from .participants import ClockHooks
from .rank_clock import RankClock
from .rank_rotation import FollowedRotation, LedRotation
from .recorder import Recorder
from .records import ChildRequest, ProbeSide
from .session import Session
from .unison import APART, RANKS_APART, Unison

ENDED_ALONE = 75
"""The exit code of a rank that ended its part without the others: they would wait for it forever."""
FRAMEWORK = "torch"
"""The one whose ranks are known to be started so."""


class RankSession(Session):
    """One trial's part in one rank. Rank 0 says when the window ends, each rank leaves after the last step of all."""

    clock: RankClock

    def __init__(self, request: ChildRequest, recorder: Recorder, unison: Unison) -> None:
        super().__init__(request, recorder, RankClock(recorder, request.window, unison))
        self.ranks = unison.size
        self._unison = unison
        self.clock.in_company = request.probe is ProbeSide.LOADER  # nobody trains, so that they exchange nothing
        self._ending = ("rank 0 ended the window", True)
        self._is_decided = False
        self.exit_code = ENDED_ALONE

    def claim(self, framework: str) -> None:
        """As ``Session.claim``; other frameworks start their processes in other ways."""
        super().claim(framework)
        if framework != FRAMEWORK:
            self.fail("unsupported", f"several ranks are for PyTorch scripts, and {framework} trains here")
            self.stop("its ranks can't be measured", complete=False)

    def _rotate(self, hooks: ClockHooks) -> None:
        """As ``Session._rotate``: rank 0 decides, each of the others does what it is asked."""
        configs = self.request.rotation
        if not configs or self.rotation is not None:
            return
        if self._unison.leads:
            self.rotation = LedRotation(
                self.recorder, configs, hooks.switcher(), self._refuse_rotation, unison=self._unison,
                not_finite=self._is_not_finite,
            )  # fmt: skip
        else:
            self.rotation = followed = FollowedRotation(configs, hooks.switcher())
            self.clock.answer = followed.answer
        self.clock.turns = self.rotation

    def _is_not_finite(self) -> None:
        self.fail("nan", "a training loss became not finite")
        self.stop("the loss is not finite", complete=False)

    def meets_others(self) -> None:
        """As ``Session.meets_others``."""
        if self.measuring:
            self.clock.meets_others()

    def _step(self, count: int = 1) -> None:
        if self.request.probe is not None and not self.is_probed:
            self.fail("unsupported", "no side of this rank runs by itself: the loader that feeds the others isn't here")
            self.stop("it isn't probed", complete=False)
        super()._step(count)
        if self._unison.apart:
            self.fail(RANKS_APART, APART)
            self.stop("its ranks can't go on together", complete=False)
        if self._unison.ends:
            why, complete = self._ending
            self.exit_code = 0
            self.stop(why, complete=complete)

    def _is_late(self) -> bool:
        return super()._is_late() and self._unison.leads

    def _end_window(self, why: str, *, complete: bool) -> None:
        if not self._is_decided:
            self._ending, self._is_decided = (why, complete), True
            self._unison.end()

    def finish(self, *, complete: bool, why: str = "") -> None:
        """As ``Session.finish``; a script may end between the window's end and the last step of all."""
        if self._is_decided and not self.ended_badly:
            why, complete = self._ending
        super().finish(complete=complete, why=why)
        if self.here:  # a process that the script forked is no rank
            self._unison.leave()
