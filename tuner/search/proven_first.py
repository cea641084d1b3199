"""In which order the trials of a search are proven."""

from __future__ import annotations

from collections.abc import Sequence

from tuner.analysis.comparison import ranked_trials
from tuner.analysis.gain import WORTH_HAVING
from tuner.analysis.tiers import Tiers
from tuner.model import Trial
from tuner.search.history import History
from tuner.search.leaner import Leaner


def candidates_of(
    history: History, trials: Sequence[Trial], tiers: Tiers, *, going_on: tuple[int, ...] = ()
) -> tuple[Trial, ...]:
    """Those of the trials that read faster than the script as written, or are expected to be, by what is worth having:
    what is expected to be the fastest first, and before it what is as good with fewer knobs.

    Those that finals have begun with (``going_on``, their numbers) come before all others: what was read since mustn't
    leave them half done.
    """
    ranked = ranked_trials(trials, history.objective, going_on)
    faster = [
        trial for own, trial in ranked
        if own > 1.0 or trial.number in going_on or (history.expected(trial) or 0.0) > WORTH_HAVING
    ]  # fmt: skip
    expected = history.by_expectation(faster)
    begun = [trial for trial in expected if trial.number in going_on]
    others = [trial for trial in Leaner(history).first(expected, tiers) if trial.number not in going_on]
    return (*begun, *others)
