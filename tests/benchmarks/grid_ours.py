"""The sampler of ``autotune study``, as a study has it play: it ends its search by itself."""

from __future__ import annotations

from collections.abc import Sequence

from grid_players import FINALISTS, ROUNDS, Fastest

from tuner.analysis.gain import WORTH_HAVING
from tuner.analysis.tiers import Tiers
from tuner.cli.study import sampler_of
from tuner.knowledge import Knowledge
from tuner.model import BASELINE, Config
from tuner.search.history import History, Sampler
from tuner.search.leaner import Leaner
from tuner.search.proven_first import candidates_of
from tuner.search.twins import tells_no_more
from tuner.space.resolved import ResolvedSpace
from tuner.study.search import CALM

PATIENCE = 25
"""A study's search ends after so many trials in a row without a gain, where nobody says otherwise."""


class Ours(Fastest):
    """The sampler of ``autotune study``, behind its probe; without a rotation, which no grid can serve.

    Its search ends where a study's does, since nothing is expected any more; then come the finals.
    """

    probes = True
    rounds = ROUNDS

    def __init__(self, space: ResolvedSpace, seed: int) -> None:
        self._sampler: Sampler = sampler_of(seed)
        self._tiers = Tiers({knob.name: knob.tier for knob in space.space.knobs}, Knowledge())

    def propose(self, history: History) -> Config | None:
        """As a study asks, until it would end the search."""
        proposal = self._sampler.propose(history)
        if proposal is None or _since_gain(history) >= PATIENCE:
            return None
        nothing = proposal.expected is not None and proposal.expected < WORTH_HAVING
        return None if nothing and _since_gain(history) >= CALM else proposal.config

    def recommend(self, history: History) -> Config:
        """What a study would prove first, if it passes its screen."""
        first = next(iter(candidates_of(history, history.trials, self._tiers)), None)
        return first.config if first is not None else BASELINE

    def finalists(self, history: History) -> Sequence[Config]:
        """Those that a study would prove, but for near-twins of better ones, and those with idle knobs more."""
        chosen, leaner = list[Config](), Leaner(history)
        for config in (trial.config for trial in candidates_of(history, history.trials, self._tiers)):
            idle = any(leaner.is_as_good(one, config) for one in chosen)
            if not idle and not tells_no_more(config, chosen, history.twins, self._tiers):
                chosen.append(config)
        return chosen[:FINALISTS]


class OursByReading(Ours):
    """The same sampler, recommending what was read as the fastest, as the others do."""

    def recommend(self, history: History) -> Config:
        """What was measured as the fastest."""
        return Fastest.recommend(self, history)


def _since_gain(history: History) -> int:
    """How many trials have been run since one was better than all before it by what is worth having."""
    best, since = 0.0, 0
    for trial in history.trials:
        own = history.gain(trial) or 0.0
        best, since = (own, 0) if own > best * WORTH_HAVING else (best, since + 1)
    return since
