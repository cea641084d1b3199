"""Proposes what a log-additive model of the gains so far expects most of, for the seconds that a trial takes.

Between the walk, which turns one knob at a time, and TPE, which needs more trials than most studies have.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from tuner.analysis.gain import WORTH_HAVING
from tuner.formatting import config_text, value_text
from tuner.model import Config, Phase, same_value
from tuner.search.candidates import candidates
from tuner.search.ceilings import LoaderRows, ceilings, with_all_of_the_wait
from tuner.search.feasibility import UNLIKELY, Feasibility
from tuner.search.gain_model import GainModel, expected_excess
from tuner.search.history import History, Proposal
from tuner.search.leaner import Leaner
from tuner.search.parts_model import PartsModel
from tuner.search.seconds import TrialSeconds
from tuner.search.tried import Bools, Floats, Indices
from tuner.search.waiting import WAITING, costly_wait, data_costs_time, saved_share, sees_wait

SHORTLIST = 48
"""So many of the candidates that promise most are looked at closely."""
DRAWS = 16
"""Of the posterior, over which a candidate's excess is averaged: one would be Thompson sampling, many expected
improvement."""
DARING = 1.0
"""Candidates are shortlisted by the mean and so many standard deviations."""
MOST_NAMED = 3
"""Of the knobs that a proposal changes."""


class AdditiveSampler:
    """Fits its model anew for every proposal. ``seed`` and the trials decide what is proposed."""

    def __init__(self, seed: int, draws: int = DRAWS) -> None:
        self._seed = seed
        self._draws = draws

    def propose(self, history: History) -> Proposal | None:
        """The candidate with the largest expected gain per second, and what that gain is; None where none is left.

        Where no gain worth having is expected any more, the best config without knobs that bring it nothing, first.
        """
        if history.model is None:
            return None
        chance = np.random.default_rng(_seed(self._seed, len(history.trials)))
        search = _Search(history, history.model, chance, self._draws)
        found = search.proposal()
        return found if _is_worth_it(found) else search.without_idle_knobs() or found


class _Search:
    """The search for one proposal."""

    def __init__(self, history: History, model: GainModel, chance: np.random.Generator, draws: int) -> None:
        self._history = history
        self._chance = chance
        self._draws = draws
        self._model = model
        self._parts = PartsModel(
            model, history.tried, history.shared_cores, history.space.spare_cores, are_told=history.objective.is_rate
        )
        self._best = float(self._model.of_tried().max())
        self._likely = Feasibility(history)
        self._seconds = TrialSeconds(history)
        self._names = [axis.knob.name for axis in history.space.axes]

    def proposal(self) -> Proposal | None:
        """By shortlists, the most promising one first, until one holds a config that isn't ruled out.

        What can't show a gain beside what holds the loop up, what is unlikely to help, near-twins of the best trial,
        and what hardly works, come last. But where nothing else is expected to gain, what does for all that memory may
        not suffice comes first: a forecast of memory is no trial.
        """
        indices = candidates(self._history, self._chance)
        mean, deviation = self._parts.predict(indices)
        most, likely = self._most(indices), self._likely.of(indices)
        order = np.argsort(-np.minimum(mean + DARING * deviation, most), kind="stable")
        fails, shows_nothing = likely < UNLIKELY, most <= self._best
        last = self._is_behind(indices) | self._is_unlikely(indices)
        kinds = (~shows_nothing & ~last, ~shows_nothing, shows_nothing)
        found = self._first_of([indices[order[(~fails & kind)[order]]] for kind in kinds])
        if _is_worth_it(found):
            return found
        doubtful = np.flatnonzero(fails & ~shows_nothing)
        excess = expected_excess(mean[doubtful], deviation[doubtful], self._best)
        expected = np.minimum(excess, most[doubtful] - self._best) * likely[doubtful]
        worth = np.argsort(-expected, kind="stable")[: np.count_nonzero(expected >= math.log(WORTH_HAVING))]
        hoped_for, failing = self._in_doubt(indices[doubtful[worth]], expected[worth])
        if hoped_for is not None:
            return hoped_for
        found = found or self._first_of([indices[order[fails[order]]]])
        return replace(found, failing=failing) if found is not None else None

    def _in_doubt(self, indices: Indices, expected: Floats) -> tuple[Proposal | None, float | None]:
        """Of rows that hardly work and are worth a trial by the gain expected of them all the same, largest first: a
        proposal, of what nothing but forecasts of memory doubt; or else the gain expected of those that values doubt.
        """
        by_memory = self._likely.but_for_memory(indices) >= UNLIKELY
        hoped_for = self._first_of([indices[by_memory]])
        if _is_worth_it(hoped_for):
            return hoped_for, None
        configs = map(self._config_of, indices[~by_memory][:SHORTLIST].tolist())
        left = (self._history.find(config) is None and not self._history.is_ruled_out(config) for config in configs)
        failing = next(itertools.compress(expected[~by_memory].tolist(), left), None)
        return None, math.exp(failing) if failing is not None else None

    def _first_of(self, kinds: Iterable[Indices]) -> Proposal | None:
        """What is picked of the first kind of rows that holds a config worth a trial, else of the first that holds any
        which isn't ruled out; near-twins of the best trial come last.

        What comes later never stands in a shortlist beside what comes first, nor does it outweigh that.
        """
        found: Proposal | None = None
        twins: dict[Config, list[int]] = {}
        for kind in kinds:
            picked = self._picked(kind, twins)
            if _is_worth_it(picked):
                return picked
            found = found or picked
        return found or (self._pick(twins) if twins else None)

    def _picked(self, indices: Indices, twins: dict[Config, list[int]]) -> Proposal | None:
        """What is picked of the first shortlist that holds a config which isn't ruled out. Near-twins of the best trial
        are left out, and added to ``twins``.
        """
        untried = self._untried(indices)
        while shortlist := dict(itertools.islice(untried, SHORTLIST)):
            other = {config: row for config, row in shortlist.items() if not self._is_twin(config)}
            twins |= {config: row for config, row in shortlist.items() if config not in other}
            found = self._pick(other) if other else None
            if found is not None:
                return found
        return None

    def without_idle_knobs(self) -> Proposal | None:
        """The best config without knobs that bring it nothing, where it has any and that has no trial."""
        best = self._history.promising
        if best is None or best.phase is Phase.BASELINE:
            return None
        lean = Leaner(self._history).of(best.config)
        if lean == best.config or self._history.find(lean) is not None:
            return None
        return Proposal(lean, f"trial {best.number} without what seems to bring it nothing")

    def _pick(self, shortlist: Mapping[Config, Sequence[int]]) -> Proposal | None:
        """The one of these that isn't ruled out and whose gain is worth most per second."""
        configs, rows = list(shortlist), np.array(list(shortlist.values()), dtype=np.int64)
        likely = self._likely.of(rows)
        room = np.maximum(self._most(rows) - self._best, 0.0)
        drawn = np.maximum(self._parts.draw(rows, self._draws, self._chance) - self._best, 0.0)
        excess = np.minimum(drawn, room).mean(axis=0)
        mean, deviation = self._parts.predict(rows)
        expected = np.minimum(expected_excess(mean, deviation, self._best), room) * likely
        seconds = self._seconds.of(rows)
        open_to_it = self._first_allowed(configs, np.argsort(-expected, kind="stable"))
        # Of those that no draw sees gain, what is expected of them decides.
        place = self._first_allowed(configs, np.lexsort((-expected / seconds, -excess * likely / seconds)))
        if place is None or open_to_it is None:
            return None
        why = _reason(self._history, configs[place], *self._against_best(rows[place]))
        return Proposal(configs[place], why, math.exp(float(expected[open_to_it])))

    def _against_best(self, row: Indices) -> tuple[float, float]:
        """What is expected of a config against what is expected of the best trial's, as a logarithm, and how far that
        may be off (standard deviation).
        """
        best = self._history.promising
        assert best is not None
        own, place = math.log(self._history.expected(best) or 1.0), self._history.indices_of(best)
        mean, deviation = self._parts.predict(row[None, :])
        apart = float(deviation[0]) if place is None else self._model.difference(np.array([row, place]))[1]
        return float(mean[0]) - own, apart

    def _most(self, indices: Indices) -> Floats:
        """The logarithm of the most that each could gain; waits bound rates only."""
        history = self._history
        if not history.objective.is_rate:
            return np.full(len(indices), np.inf)
        by_trials = ceilings(indices, history.tried, history.space.axes, on_host=history.on_host)
        best = history.promising
        row = history.indices_of(best) if best is not None else None
        if best is None or row is None or not sees_wait(best) or history.turned_loader(best):
            return by_trials
        wait = max(costly_wait(best, history.bottleneck), saved_share(best, history.bottleneck, history.own))
        return np.minimum(by_trials, self._beyond_the_loader(indices, np.array(row), wait))

    def _is_behind(self, indices: Indices) -> Bools:
        """Whether a config turns the loader although the best trial's loop hardly waits, nor is the same config without
        that expected to: what it saves is no more than the error of a reading, and the other one is as fast and safer.
        """
        history, best = self._history, self._history.promising
        row = history.indices_of(best) if best is not None else None
        if best is None or row is None or not history.objective.is_rate or history.turned_loader(best):
            return np.zeros(len(indices), dtype=bool)
        if data_costs_time(best, history.bottleneck, history.own):
            return np.zeros(len(indices), dtype=bool)
        loaders = LoaderRows(history.space.axes, np.array(row), on_host=history.on_host)
        if not self._parts.tells:
            return loaders.turned_up(indices)
        saved = self._parts.means(indices) - self._parts.means(loaders.without(indices))
        return np.asarray(loaders.turned_up(indices) & (saved < -math.log1p(-WAITING)))

    def _is_unlikely(self, indices: Indices) -> Bools:
        """Whether a config turns what is declared to hardly help here, and the best trial doesn't."""
        axes, best = self._history.space.axes, self._history.promising
        row = self._history.indices_of(best) if best is not None else None
        written = np.array([axis.as_written for axis in axes])
        hardly_helps = np.array([bool(axis.unlikely) for axis in axes])
        turned = (indices != written) & (indices != (written if row is None else np.array(row)))
        return np.asarray((turned & hardly_helps).any(axis=1))

    def _beyond_the_loader(self, indices: Indices, best: Indices, wait: float) -> Floats:
        """What turns the loader gains no more than the same without it is likely to, and all of that one's wait: by
        trials that were held up by their loaders, else by the best trial's ``wait`` for as many samples.
        """
        loaders = LoaderRows(self._history.space.axes, best, on_host=self._history.on_host)
        mean, deviation = self._parts.without_wait(loaders.without(indices))
        likely = mean + DARING * deviation
        if not self._parts.tells:
            of_best = float(self._model.means(best[None, :])[0])
            likely = with_all_of_the_wait(likely, wait, likely - of_best)
        return np.where(loaders.turned_up(indices), likely, np.inf)

    def _first_allowed(self, configs: Sequence[Config], order: Indices) -> int | None:
        return next((int(place) for place in order if not self._history.is_ruled_out(configs[place])), None)

    def _untried(self, indices: Indices) -> Iterator[tuple[Config, list[int]]]:
        """The canonical configs of these rows that have no trial, each once, with their own rows."""
        seen: set[Config] = set()
        for row in indices.tolist():
            config = self._config_of(row)
            if config not in seen and self._history.find(config) is None:
                seen.add(config)
                yield config, list(self._history.space.indices_of(config).values())

    def _config_of(self, row: Sequence[int]) -> Config:
        return self._history.space.config_of(dict(zip(self._names, row, strict=True)))

    def _is_twin(self, config: Config) -> bool:
        incumbent = self._history.promising
        return incumbent is not None and self._history.twins.are_twins(config, incumbent.config)


def _is_worth_it(proposal: Proposal | None) -> bool:
    return proposal is not None and (proposal.expected is None or proposal.expected >= WORTH_HAVING)


def _reason(history: History, config: Config, ratio: float, deviation: float) -> str:
    """One line: what is changed of the best trial's config, and what the model expects of that."""
    best = history.promising
    assert best is not None
    before, after = history.space.complete(best.config), history.space.complete(config)
    names = (axis.knob.name for axis in history.space.axes)
    changed = [name for name in names if not same_value(before[name], after[name])]
    named = [f"{name}={value_text(after[name])}" for name in changed[:MOST_NAMED]]
    if len(changed) > MOST_NAMED:
        named.append(f"{len(changed) - MOST_NAMED} more")
    low, high = (math.exp(ratio + sign * deviation) for sign in (-1, 1))
    words = f"{', '.join(named[:-1])} and {named[-1]}" if len(named) > 1 else "".join(named) or config_text(config)
    of_best = "the script as written" if best.phase is Phase.BASELINE else f"trial {best.number}"
    return f"{words} on top of {of_best}: expected {low:.2f}x to {high:.2f}x by what each gained elsewhere"


def _seed(base: int, trials: int) -> int:
    """A sampler re-created with the same seed would repeat its start."""
    return int.from_bytes(hashlib.sha256(f"additive:{base}:{trials}".encode()).digest()[:8], "big")
