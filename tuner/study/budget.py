"""How much of a study's trials and seconds is left. Pure: the clock's reading is passed in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

FINALS_SHARE = 0.2
LARGEST_SHARE_UNFOUND = 0.5
"""Of the budget is kept for a proof at most, as long as nothing is found that could be proven."""
FEWEST_ROUNDS = 3
"""Finals of fewer rounds prove nothing."""


@dataclass(frozen=True)
class Budget:
    """``trials`` bounds baseline and search, ``seconds`` the whole study; None is unbounded.

    ``started`` is the clock at the start of this process, ``spent_s`` what earlier processes used.
    """

    trials: int | None
    seconds: float | None
    started: float
    spent_s: float = 0.0
    finals_share: float = FINALS_SHARE

    def elapsed(self, now: float) -> float:
        """Seconds used so far by all processes of the study."""
        return self.spent_s + now - self.started

    def seconds_left(self, now: float) -> float | None:
        """Seconds left for everything, never negative."""
        return None if self.seconds is None else max(0.0, self.seconds - self.elapsed(now))

    def reserved_s(self, proof_s: float, *, found: bool) -> float:
        """Seconds kept for the proof: the finals' share, or ``proof_s`` where a proof takes more at least.

        ``found``: whether there is something to prove. A search that has found nothing yet keeps half at most.
        """
        if self.seconds is None:
            return 0.0
        most = self.seconds if found else LARGEST_SHARE_UNFOUND * self.seconds
        return max(self.finals_share * self.seconds, min(proof_s, most))

    def search_is_over(self, now: float, trials_done: int, trial_s: float, reserved_s: float) -> str:
        """Why no further search trial may start, or "". ``trial_s`` is what one typically takes.

        One config at least is tried where there is any time for it, even if none is left to prove it.
        """
        if self.trials is not None and trials_done >= self.trials:
            return f"all {self.trials} trials are done" if self.trials > 1 else "its one trial is done"
        left = self.seconds_left(now)
        kept = reserved_s if trials_done > 1 else 0.0
        if left is not None and left - kept < trial_s:
            return f"the time for searching is used up ({self.seconds:.0f} s in all)"
        return ""

    def finals_fit(self, now: float, runs_s: Sequence[float], rounds: int) -> tuple[int, int]:
        """How many finalists and rounds fit, (0, 0) where fewer than three rounds of one do: they would prove nothing.

        ``runs_s`` is what a run takes: the baseline's, then each finalist's, best first. Rounds narrow the interval,
        finalists only widen the choice: finalists go first.
        """
        left = self.seconds_left(now)
        finalists = len(runs_s) - 1
        if finalists < 1 or rounds < 1:
            return 0, 0
        if left is None:
            return finalists, rounds
        choices = [(count, rounds) for count in range(finalists, 1, -1)]
        choices += [(1, count) for count in range(rounds, min(FEWEST_ROUNDS, rounds) - 1, -1)]
        for candidates, count in choices:
            if count * sum(runs_s[: candidates + 1]) <= left:
                return candidates, count
        return 0, 0
