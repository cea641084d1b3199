"""A study's bounds, trials and seconds, and what of them is left. Pure: the clock is read elsewhere."""

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

    def search_is_over(
        self, now: float, trials_done: int, trial_s: float, reserved_s: float, *, late: int = 0
    ) -> str:
        """Why no further search trial may start, or "". ``trial_s`` is what one typically takes.

        One config at least is tried where there is any time for it, even if none is left to prove it. So many of the
        trials were ``late``: they were cut off by the study's time, and don't count for ``trials``.
        """
        if self.trials is not None and trials_done - late >= self.trials:
            return f"all {self.trials} trials are done" if self.trials > 1 else "its one trial is done"
        left, kept = self.seconds_left(now), reserved_s if trials_done > 1 else 0.0
        if left is not None and left - kept < trial_s:
            end = "left for searching is too short for another trial" if left > kept else "for searching is used up"
            return f"the time {end} ({self.seconds:.0f} s in all)"
        return ""

    def finals_fit(self, now: float, rounds_s: Sequence[float], rounds: Sequence[int]) -> tuple[int, int]:
        """How many finalists and rounds fit, (0, 0) where fewer than three rounds of one do: they would prove nothing.

        ``rounds_s`` is what a round takes: with the best finalist alone, with the second best as well, and so on;
        ``rounds`` how many of these each takes. Rounds narrow the interval, finalists only widen the choice: as many
        finalists as have all their rounds, and the best one alone with fewer.
        """
        left = self.seconds_left(now)
        finalists = len(rounds_s)
        if finalists < 1 or rounds[0] < 1:
            return 0, 0
        if left is None:
            return finalists, rounds[finalists - 1]
        choices = [(count, rounds[count - 1]) for count in range(finalists, 1, -1)]
        choices += [(1, count) for count in range(rounds[0], min(FEWEST_ROUNDS, rounds[0]) - 1, -1)]
        for candidates, count in choices:
            if count * rounds_s[candidates - 1] <= left:
                return candidates, count
        return 0, 0
