"""Plays a sampler against anything that maps a config to an outcome, and scores what it would have recommended."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Protocol

from tuner.analysis.gain import BaselineTrack
from tuner.analysis.memory_forecast import MemoryLimits
from tuner.model import BASELINE, Config, Outcome, Phase, Trial
from tuner.objective import Objective
from tuner.search.history import NO_LIMITS, History, Sampler
from tuner.space.resolved import ResolvedSpace


class Task(Protocol):
    """What is searched: a made-up world, or a recorded grid.

    ``truth`` is the score of a config without noise, None where it can't work; ``optimum`` the best one of all.
    """

    @property
    def space(self) -> ResolvedSpace: ...

    @property
    def objective(self) -> Objective: ...

    @property
    def optimum(self) -> float: ...

    def outcome(self, config: Config) -> Outcome:
        """What a trial of the config comes to, this time."""
        ...

    def truth(self, config: Config) -> float | None: ...


@dataclass
class Play:
    """A search: its trials, the baseline first; what each proposal took, in seconds; the expected gains with them.

    ``recommended`` is what would be proven first after each trial: what is expected to be the fastest.
    """

    trials: list[Trial] = field(default_factory=list)
    proposal_s: list[float] = field(default_factory=list)
    expected: list[float | None] = field(default_factory=list)
    recommended: list[Config] = field(default_factory=list)

    @property
    def infeasible(self) -> int:
        """How many trials gave no figure."""
        return sum(trial.measurement is None for trial in self.trials)

    @property
    def repeated(self) -> int:
        """How many trials ran a config that had been run."""
        return len(self.trials) - len({trial.config for trial in self.trials})

    def ends_at(self, objective: Objective, least: float, calm: int) -> int:
        """After how many trials no gain of ``least`` was expected, and as many as ``calm`` had brought none."""
        track = BaselineTrack(self.trials, objective)
        best, since = 1.0, 0
        for number, expected in enumerate(self.expected):
            if expected is not None and expected < least and since >= calm:
                return number
            own = track.gain(self.trials[number + 1]) or 0.0
            best, since = (own, 0) if own > best * least else (best, since + 1)
        return len(self.expected)

    def share(self, task: Task, trials: int) -> float:
        """The true score of what it recommended after so many trials beside the baseline, as a share of the optimum.

        One that ended earlier recommends the same ever after.
        """
        config = self.recommended[min(trials, len(self.recommended) - 1)]
        return (task.truth(config) or 0.0) / task.optimum


def play(sampler: Sampler, task: Task, count: int, limits: MemoryLimits = NO_LIMITS) -> Play:
    """A search of so many trials beside the baseline, fewer where the sampler has nothing left."""
    played = Play([Trial(0, Phase.BASELINE, BASELINE, "", task.outcome(BASELINE))])
    played.recommended.append(BASELINE)
    while len(played.trials) <= count:
        began = time.perf_counter()
        proposal = sampler.propose(History(task.space, task.objective, played.trials, limits))
        played.proposal_s.append(time.perf_counter() - began)
        if proposal is None:
            break
        played.expected.append(proposal.expected)
        outcome = task.outcome(proposal.config)
        played.trials.append(Trial(len(played.trials), Phase.SEARCH, proposal.config, proposal.why, outcome))
        best = History(task.space, task.objective, played.trials, limits).promising
        played.recommended.append(best.config if best is not None else BASELINE)
    return played
