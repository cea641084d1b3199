"""What a study's runs will take, in seconds, by those that were run. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tuner.child.records import Window
from tuner.model import SIDELINES, Config, Outcome, Phase, Trial, Value, baseline_of
from tuner.runner.request import probe_window
from tuner.study.lengths import SLOWER, WARMUP_S, usual_step_s, window_s
from tuner.study.plan import StudyPlan

FIRST_TRIAL_S = 30.0
"""A guess of what a trial takes, before any has been run."""
_COMPILERS = frozenset({"compile", "compile_mode", "jit_compile"})
"""Knobs with which a start takes longer than others do."""
_COMPILED_NOT = (False, "off")
"""Their values with which it doesn't: Keras compiles by itself, so that False is what its studies try."""
_LONG_TO_COMPILE_S = 40.0
"""What a first trial of a compiler's setting may take beside a usual one: torch.compile took 25 to 35 s for a small
convolutional net on two cores."""
_CUT = 0.95
"""A window of that share of the longest one ended with that, and wasn't precise yet."""
_LOADED_TOGETHER = 2
"""Fork servers of a round that are sure to be loaded at once, where there are as many cores."""


Together = Callable[[Sequence[Config]], bool]
"""Whether there is the memory for runs of these configs at once."""


def any_together(configs: Sequence[Config]) -> bool:
    """``Together``, where memory bounds nothing."""
    return True


@dataclass(frozen=True)
class RunTimes:
    """What runs will take. ``trials`` are the finished ones of every phase; ``by_turns``: whether trials take turns
    where they may be alive ``together``, and ``turn_s`` how long these are where none of their configs turns one of the
    ``loaders``, which are knobs.
    """

    plan: StudyPlan
    trials: Sequence[Trial]
    by_turns: bool = False
    turn_s: float | None = None
    loaders: frozenset[str] = frozenset()
    together: Together = any_together

    def trial_s(self) -> float:
        """What a trial typically takes here; a probe is shorter."""
        seconds = [outcome.seconds for _, outcome in self.whole_loops()]
        return statistics.median(seconds) if seconds else FIRST_TRIAL_S

    def searched_s(self, config: Config) -> float:
        """What a trial of the search takes: one that compiles as others did with the same setting, long without any."""
        if not _compiles(config):
            return self.trial_s()
        setting = compiled_setting(config)
        searched = [(t, o) for t, o in self.whole_loops() if t.phase is Phase.SEARCH and o.complete]
        seconds = [outcome.seconds for trial, outcome in searched if compiled_setting(trial.config) == setting]
        return statistics.median(seconds) if seconds else self.trial_s() + _LONG_TO_COMPILE_S

    def round_s(self, configs: Sequence[Config], least_s: float = 0.0) -> float:
        """What a round of the finals takes, of all these configs; a run of the last one takes at least ``least_s``.

        As runs of them took in the finals; before, as foreseen. Where all of a round's trials are forked, each off a
        server of its own, these are loaded at once; else each starts fresh, one after the other.
        """
        turns, longest_s = self.take_turns(configs), self.finals_window_s(configs)
        forked = turns and all(map(self._is_forked, configs))
        runs_s = [self._finals_run_s(config, longest_s, turns=turns, forked=forked) for config in configs]
        return sum(runs_s[:-1]) + max(runs_s[-1], least_s)

    def screen_s(self, config: Config, samples: int) -> float:
        """What a run of a screen over so many samples takes: as it did, else as another run did, by the rate.

        It starts as the trials of the search do, which take less for that than the baseline's own run.
        """
        runs = self._runs_of(config)
        seconds = [o.seconds for trial, o in runs if trial.phase is Phase.SCREEN and trial.samples == samples]
        if not seconds:
            rates = [outcome.measurement.rate for _, outcome in runs if outcome.measurement is not None]
            least = 0.0 if config else self._rate_in_search()
            start_s = self._start_s(config)
            seconds = [start_s + SLOWER * samples / max(least, rate) for rate in rates]
        return statistics.median(seconds) if seconds else self.trial_s()

    def probe_s(self) -> float:
        """What a run of the probe would take, by the baseline."""
        baseline = baseline_of(self.trials)
        outcome = baseline.outcome if baseline is not None else None
        return FIRST_TRIAL_S if outcome is None else _within(outcome, probe_window(self.plan.window).max_s)

    def whole_loops(self) -> list[tuple[Trial, Outcome]]:
        """The trials that ran the whole loop, with their outcomes."""
        return [(t, t.outcome) for t in self.trials if t.phase not in SIDELINES and t.outcome is not None]

    def _runs_of(self, config: Config) -> list[tuple[Trial, Outcome]]:
        return [(trial, outcome) for trial, outcome in self.whole_loops() if trial.config == config]

    def take_turns(self, configs: Sequence[Config]) -> bool:
        """Whether the runs of a round of these take turns; else they are run one after the other, each by itself."""
        return self.by_turns and self.together(configs)

    def finals_window_s(self, configs: Sequence[Config]) -> float:
        """The longest window of the runs of a round of these."""
        turn_s = self.turn_s if all(self.loaders.isdisjoint(config) for config in configs) else None
        usual_s = usual_step_s(baseline_of(self.trials))
        return window_s(
            self.plan, Phase.FINALS, by_turns=self.take_turns(configs), turn_s=turn_s, step_s=usual_s
        )  # fmt: skip

    def _finals_run_s(self, config: Config, longest_s: float, *, turns: bool, forked: bool) -> float:
        """What a run of the config takes in the finals, with such a window: as it did there, else as foreseen, else as
        any trial.

        Fresh it takes no less than one of the script as written would, which has started fresh already.
        """
        own = self._runs_of(config)
        seconds = [outcome.seconds for trial, outcome in own if trial.phase is Phase.FINALS]
        if seconds:
            return statistics.median(seconds)
        if forked:
            return self._forked_run_s(config, longest_s)
        foreseen = [self._fresh_run_s(outcome, longest_s, turns=turns) for _, outcome in own]
        if not foreseen:
            return self.trial_s()
        baseline = baseline_of(self.trials)
        written = baseline.outcome if self.by_turns and baseline is not None else None
        fresh_s = self._fresh_run_s(written, longest_s, turns=turns) if written is not None else 0.0
        return max(statistics.median(foreseen), fresh_s)

    def _fresh_run_s(self, outcome: Outcome, longest_s: float, *, turns: bool) -> float:
        """What the run would have taken in the finals with such a window, by turns with their shorter warm-up.

        By itself it is measured longer than in a trial whose window was shorter, and ended with it.
        """
        measurement = outcome.measurement
        alone = measurement is not None and measurement.reference is None and not measurement.turns
        longer_s = max(0.0, self.plan.window.warmup_s - WARMUP_S)
        if turns:
            return _within(outcome, longest_s, by_turns=True) - (longer_s if alone else 0.0)
        if not alone:
            return _within(outcome, longest_s, by_turns=True) + longer_s
        own_s = _window_s(outcome)
        was_cut = self.by_turns and own_s >= _CUT * window_s(self.plan, Phase.BASELINE, by_turns=True)
        return _within(outcome, longest_s) + (max(0.0, longest_s - own_s) if was_cut else 0.0)

    def _forked_run_s(self, config: Config, longest_s: float) -> float:
        """What a forked run takes in the finals with such a window, and its share of the time in which the round's
        servers are loaded.
        """
        loaded_s = statistics.median(_spared_s(outcome) for _, outcome in self.whole_loops() if _spared_s(outcome))
        share_s = loaded_s / min(_LOADED_TOGETHER, self.plan.cores)
        return share_s + self._start_s(config) + WARMUP_S + SLOWER * longest_s

    def _is_forked(self, config: Config) -> bool:
        """Whether the config's trials are forked, by the last one; what has none is as others are."""
        searched = [(t, o) for t, o in self.whole_loops() if t.phase is Phase.SEARCH and o.complete]
        own = [_spared_s(outcome) > 0 for trial, outcome in searched if trial.config == config]
        return own[-1] if own else any(_spared_s(outcome) > 0 for _, outcome in searched)

    def _start_s(self, config: Config) -> float:
        """What a run takes beside its window, where the first imports are a fork server's, or it is fresh as before.

        Of a config no more than it took in the search, and where it compiles nothing no more than others typically
        did: the first trial of a server waited until that was loaded. Infinite where nothing is known.
        """
        typical_s, runs = self._start_in_search_s(), self._runs_of(config)
        searched = [outcome for trial, outcome in runs if trial.phase is Phase.SEARCH and outcome.complete]
        known = [_beside_window_s(outcome, self.plan.window) for outcome in searched or [of for _, of in runs]]
        if not known:
            return typical_s
        slow = _compiles(config) or (searched and not self._is_forked(config))
        return statistics.median(known) if slow else min(statistics.median(known), typical_s)

    def _rate_in_search(self) -> float:
        """The rate of the script as written beside trials of the search; 0 where it took no turns with any.

        Its own run was the first one of the study, which may have met files and processors that were cold.
        """
        searched = [outcome.measurement for trial, outcome in self.whole_loops() if trial.phase is Phase.SEARCH]
        rates = [each.reference.rate for each in searched if each is not None and each.reference is not None]
        return statistics.median(rates) if rates else 0.0

    def _start_in_search_s(self) -> float:
        """What trials of the search that compile nothing take beside their windows; infinite before the first one."""
        searched = [o for t, o in self.whole_loops() if t.phase is Phase.SEARCH and not _compiles(t.config)]
        start_s = [_beside_window_s(outcome, self.plan.window) for outcome in searched if outcome.complete]
        return statistics.median(start_s) if start_s else math.inf


def compiled_setting(config: Config) -> dict[str, Value]:
    """What the config compiles, and how; nothing where it turns off what the script compiles."""
    return {name: config[name] for name in _COMPILERS if config.get(name) not in (None, *_COMPILED_NOT)}


def _compiles(config: Config) -> bool:
    return bool(compiled_setting(config))


def _spared_s(outcome: Outcome) -> float:
    return (outcome.measurement.spared_s or 0.0) if outcome.measurement is not None else 0.0


def _window_s(outcome: Outcome) -> float:
    """Seconds that the run was measured for."""
    return sum(block.seconds for block in outcome.measurement.blocks) if outcome.measurement is not None else 0.0


def _beside_window_s(outcome: Outcome, window: Window) -> float:
    """Seconds of a run without its window, what the script as written had of it, and without its warm-up."""
    measurement, own_s = outcome.measurement, _window_s(outcome)
    beside = measurement is not None and measurement.reference is not None
    warmup_s = WARMUP_S if beside else window.warmup_s
    return max(0.0, outcome.seconds - SLOWER * own_s * (2 if beside else 1) - warmup_s)


def _within(outcome: Outcome, longest_s: float, *, by_turns: bool = False) -> float:
    """Seconds that the run would have taken with so long a window: the baseline gets a longer one than others.

    By turns windows aren't shorter for being precise, and each turn has its lead-in; what the script as written had
    beside the trial is no part of it.
    """
    measurement, own_s = outcome.measurement, _window_s(outcome)
    if not by_turns:
        return outcome.seconds - max(0.0, own_s - longest_s)
    beside_s = own_s if measurement is not None and measurement.reference is not None else 0.0
    return max(0.0, outcome.seconds - own_s - beside_s) + SLOWER * longest_s
