"""Which runs finals consist of, in which order, and how sure a look at them has to be. Pure."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, replace

from tuner.analysis import stats
from tuner.analysis.contention import Host
from tuner.model import BASELINE, Config, Phase, Trial

CONFIDENCE = 0.95
FIRST_LOOK = 0.5
"""Of the permitted error, the share that the first look may spend where others may follow; the rest goes by rounds.
With more of it large gains are proven sooner, and small ones less often (tests/benchmarks/told_gain.py)."""


@dataclass(frozen=True)
class Schedule:
    """Which runs the finals consist of. The same study always gets the same schedule, so that it can be resumed.

    A round in which others took too many of the ``host``'s cores from a run, or its card was disturbed, is no evidence.
    Where the time was up they have ``ended``: no rounds are added any more. ``opening``: 1 for the first finals of the
    study, and one more each time that others are held after more was searched. ``dropped`` candidates, by number, get
    no more runs. They are looked at after ``first`` rounds, ``most`` at last, and ``rounds`` next; ``looked`` are the
    rounds of the looks before. The first two are settled before the first round. ``first`` is 0 in finals of earlier
    versions, whose ``looks`` are alike.
    """

    candidates: tuple[Trial, ...]
    rounds: int
    seed: int
    looks: int = 1
    host: Host | None = None
    ended: bool = False
    opening: int = 1
    dropped: tuple[int, ...] = ()
    first: int = 0
    most: int = 0
    looked: tuple[int, ...] = ()

    @property
    def confidence(self) -> float:
        """Of each interval, so that all of them hold at 95% together.

        The best of several candidates is a lucky one too (Bonferroni), and so is an interval that is looked at until
        it suits, and a study that is resumed until its finals prove something (``opening_share``). A look spends what
        its rounds have to spend beyond those of the one before, so that all together keep to it however many they are.
        """
        alpha = (1 - CONFIDENCE) * opening_share(self.opening) / max(1, len(self.candidates))
        if not self.first:
            return 1 - stats.pocock_level(alpha, self.looks)
        return 1 - alpha * (self._spent(self.rounds) - self._spent(max(self._looks_before, default=0)))

    @property
    def at_first_look(self) -> Schedule | None:
        """These finals as they were at the first look that was taken, later than it was due where too few rounds were
        calm by then; None where that is still to come.
        """
        return replace(self, rounds=min(self._looks_before)) if self._looks_before else None

    @property
    def _looks_before(self) -> tuple[int, ...]:
        """The rounds of the looks that came before this one and may have spent anything: those before the first one was
        due could prove nothing, or these finals ended with them.
        """
        return tuple(rounds for rounds in self.looked if self.first and self.first <= rounds < self.rounds)

    @property
    def one_look(self) -> bool:
        """Whether no look may follow the first one: that spends the whole error, whatever its rounds."""
        return self.most <= self.first if self.first else self.looks == 1

    def looked_at_again(self, rounds: int) -> Schedule:
        """With so many rounds, more than these, at the next look; this one has been taken."""
        return replace(self, rounds=rounds, looked=(*self.looked, self.rounds))

    @property
    def at_last_look(self) -> Schedule | None:
        """These finals as they were when they were last looked at, before the rounds that were added then; None where
        they weren't yet. What that look has proven is as sure as if they had ended with it.
        """
        return replace(self, rounds=self.looked[-1], looked=self.looked[:-1]) if self.looked else None

    def _spent(self, rounds: int) -> float:
        """The share of the permitted error that looks after no more than so many rounds may have spent together."""
        if not rounds or self.one_look:
            return float(rounds > 0)
        beyond = (rounds - self.first) / (self.most - self.first)
        return FIRST_LOOK + (1 - FIRST_LOOK) * min(1.0, max(0.0, beyond))

    @property
    def group(self) -> tuple[int, ...]:
        """The numbers of the candidates' trials: tells these finals' runs from those of others of the study."""
        return tuple(trial.number for trial in self.candidates)

    def holds(self, trial: Trial) -> bool:
        """Whether the trial is one of these finals' runs."""
        return trial.phase is Phase.FINALS and trial.group == self.group and (trial.round or 0) in self._rounds

    def runs_left(self, trials: Iterable[Trial], dropped: Iterable[Config]) -> list[tuple[int, Config]]:
        """The round and the config of each run that isn't among the trials, in the order to run them."""
        done = {(trial.round, trial.config) for trial in trials if self.holds(trial)}
        out = {*dropped, *(trial.config for trial in self.candidates if trial.number in self.dropped)}
        contenders = [t.config for t in self.candidates if t.config not in out]
        if not contenders:
            return []
        return [
            (round_number, config)
            for round_number in self._rounds
            for config in self._order(round_number)
            if (round_number, config) not in done and config not in out
        ]

    @property
    def _rounds(self) -> range:
        return range(1, self.rounds + 1)

    def _order(self, round_number: int) -> list[Config]:
        """Balanced: in as many rounds as there are configs (twice as many where their number is odd) each config runs
        at each place equally often, and right after each other one equally often (Williams, 1949). Who begins, and
        which round of these comes when, is drawn.
        """
        configs: list[Config] = [BASELINE, *(trial.config for trial in self.candidates)]
        random.Random(f"{self.seed}:{self.group}").shuffle(configs)
        size = len(configs)
        square, place = divmod(round_number - 1, size)
        rows = list(range(size))
        random.Random(f"{self.seed}:{self.group}:{square}").shuffle(rows)
        steps = [(place + 1) // 2 if place % 2 else -(place // 2) for place in range(size)]
        order = [configs[(rows[place] + step) % size] for step in steps]
        return order[::-1] if size % 2 and square % 2 else order


def opening_share(opening: int) -> float:
    """The share of the permitted error that the finals of this opening may spend; of all openings together at most 1.

    The first gets three quarters: most studies have no other. The k-th after it gets a quarter of 1 / (k (k + 1)).
    Opening 0 is that of an earlier version, which knew of no other and let it spend all.
    """
    if opening < 2:
        return 0.75 if opening else 1.0
    return 0.25 / ((opening - 1) * opening)
