"""How much of a study's trials and seconds is left. Pure: the clock's reading is passed in."""

from __future__ import annotations

from dataclasses import dataclass

FINALS_SHARE = 0.2
LARGEST_FINALS_SHARE = 0.5
FEWEST_ROUNDS = 3


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

    def reserved_s(self, trial_s: float, pairs: int = FEWEST_ROUNDS) -> float:
        """Seconds kept for the proof: the finals' share, or more where ``pairs`` of runs need more.

        Fewer than two pairs stand for a search that has nothing to prove yet: no share is kept for it.
        """
        if self.seconds is None:
            return 0.0
        needed = min(2 * pairs * trial_s, LARGEST_FINALS_SHARE * self.seconds)
        return needed if pairs < 2 else max(self.finals_share * self.seconds, needed)

    def search_seconds_left(self, now: float, trial_s: float, pairs: int = FEWEST_ROUNDS) -> float | None:
        """Seconds left before the proof's share begins, never negative."""
        left = self.seconds_left(now)
        return None if left is None else max(0.0, left - self.reserved_s(trial_s, pairs))

    def search_is_over(self, now: float, trials_done: int, trial_s: float, pairs: int = FEWEST_ROUNDS) -> str:
        """Why no further search trial may start, or "".

        ``trial_s`` is what one typically takes, ``pairs`` how many pairs of runs the proof has, screens included.
        """
        if self.trials is not None and trials_done >= self.trials:
            return f"all {self.trials} trials are done" if self.trials > 1 else "its one trial is done"
        left = self.search_seconds_left(now, trial_s, pairs)
        if left is not None and left < trial_s:
            return f"the time for searching is used up ({self.seconds:.0f} s in all)"
        return ""

    def finals_fit(self, now: float, trial_s: float, finalists: int, rounds: int) -> tuple[int, int]:
        """How many finalists and rounds fit, (0, 0) when not even one pair of runs does.

        Rounds narrow the interval, finalists only widen the choice: finalists go first.
        """
        left = self.seconds_left(now)
        if finalists < 1 or rounds < 1:
            return 0, 0
        if left is None:
            return finalists, rounds
        # A finals of fewer than three rounds proves nothing, so the fewest that may are tried in any case.
        choices = [(count, rounds) for count in range(finalists, 1, -1)]
        choices += [(1, count) for count in range(rounds, 2, -1)]
        for candidates, count in choices:
            if (candidates + 1) * count * trial_s <= left:
                return candidates, count
        return (1, min(3, rounds)) if left >= 2 * trial_s else (0, 0)
