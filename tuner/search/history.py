"""What the finished trials of a study teach, for every sampler alike."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from tuner.analysis.bottleneck import Bottleneck, bottleneck_of
from tuner.analysis.contention import busy_cores
from tuner.analysis.gain import BaselineTrack
from tuner.analysis.memory_forecast import Forecast, Forecasts, MemoryLimits
from tuner.analysis.resources import CROWDED_OUT
from tuner.analysis.rotation import ENDED
from tuner.model import Config, Evidence, Measurement, Outcome, OutcomeKind, Phase, Trial, Value, same_value
from tuner.objective import Objective
from tuner.search.gain_model import GainModel
from tuner.search.ranked import ranked_readings
from tuner.search.rotation import MOST_BIAS, Ranking, is_outranked, loses, may_leave_out, ranking_of, was_calm
from tuner.search.tried import Tried, gain_noise, tried
from tuner.search.twins import Twins
from tuner.search.waiting import WAITING, host_around, sees_wait, whole_wait
from tuner.space.resolved import Axis, ResolvedSpace

NO_LIMITS = MemoryLimits()
IDLE_SHARE = 0.5
"""Where so large a share of the cores is left idle while a loop waits for its data, its workers wait as well."""
BROUGHT = 0.1
"""Workers beyond the cores that made a loop so much faster, as a logarithm, waited: fewer would have kept the cores
busy."""
SURE = 1.64
"""And by so many standard deviations of what two trials differ by."""
DEVICE_OOM, HOST_OOM = "device-oom", "host-oom"
OUT_OF_MEMORY = frozenset({DEVICE_OOM, HOST_OOM})
KILLED = frozenset({"signal-kill", "worker-killed"})
"""Such a trial was run twice: something kills it each time, as guards against full memory do beside the kernel's."""
_DIGITS = 9


@dataclass(frozen=True)
class Proposal:
    """A config to try, in its canonical form. ``why`` says in a line what it is tried for, for people.

    ``expected``: the largest gain over the best config so far that is expected of it or of those that were looked at
    beside it (1.02 for 2%; never below 1), None from a sampler that forecasts none. ``failing``: the same, by how
    likely they fail, of configs whose values failed in others' company, which keep no search going; None where that
    isn't worth having.
    """

    config: Config
    why: str
    expected: float | None = None
    failing: float | None = None


class Sampler(Protocol):
    """Proposes configs."""

    def propose(self, history: History) -> Proposal | None:
        """The next config worth a trial, one that wasn't tried; None when there is none left."""
        ...


class History:
    """What a sampler sees of a study: its space, and the finished trials of baseline and search.

    ``trials`` may hold trials of any phase. Faults of the infrastructure say nothing of a config and are left out; so
    is what ran without the pinned knobs, the baseline among them. Those with a larger effective batch, a contest of
    their own, are ``larger`` and not among ``trials``. ``axes`` are those of the space whose knobs have met something
    to turn. ``memory`` are the bytes that a config may take. ``has_time_for``: whether there is time for a trial of a
    config; of those that there is none for nothing is known, and with more time they may be proposed.
    """

    def __init__(
        self,
        space: ResolvedSpace,
        objective: Objective,
        trials: Iterable[Trial],
        memory: MemoryLimits = NO_LIMITS,
        has_time_for: Callable[[Config], bool] = lambda config: True,
    ) -> None:
        self.space = space
        self.memory = memory
        self._has_time_for = has_time_for
        self.objective = objective
        every_trial = tuple(trials)
        host = host_around(space)
        self.on_host = host is not None and not host.feeds
        """Whether the cores that fetch the data compute as well."""
        self.shared_cores = space.host_cores if self.on_host else None
        """How many cores do both, of all ranks together; None where a device computes."""
        self.bottleneck: Bottleneck | None = bottleneck_of(every_trial, host)
        self._track = BaselineTrack(every_trial, objective)
        finished = [t for t in every_trial if t.phase in (Phase.BASELINE, Phase.SEARCH) and t.outcome is not None]
        self._all = tuple(t for t in finished if _teaches(t.outcome) and _holds(t, space.pinned))
        self.trials: Sequence[Trial] = tuple(t for t in self._all if space.keeps_batch(t.config))
        self.larger: Sequence[Trial] = tuple(t for t in self._all if space.is_larger(t.config))
        self._gains: dict[int, float | None] = {}
        self._by_config: dict[Config, Trial] = {t.config: t for t in self._all}
        self.without_effect = self._without_effect()
        self._bad_values = self._values_that_fail_alone()
        late = {axis.knob.name for axis in space.axes if axis.knob.late}
        self.ended_rotations = [
            rotated.config
            for trial in every_trial
            if trial.phase is Phase.ROTATION and trial.outcome is not None
            if trial.outcome.reason not in OUT_OF_MEMORY | KILLED
            for rotated in trial.outcome.rotation
            if rotated.fault == ENDED and late.isdisjoint(rotated.config)
        ]
        """Configs whose turns ended in an error; where they compile, switching is as likely to be at fault."""
        self._too_large = [
            t.config for t in self._all if t.outcome is not None and t.outcome.reason in OUT_OF_MEMORY | KILLED
        ]
        self.ranking: Ranking = ranking_of(every_trial)
        self._was_calm = was_calm(every_trial, space.host_cores)
        self._leaves_out = may_leave_out(every_trial, space.host_cores)
        self._loaders = [axis.knob.name for axis in space.axes if axis.knob.loader]
        self.own = frozenset(axis.knob.name for axis in space.axes if axis.knob.own)
        """The knobs that are arguments of the script's own."""
        self.axes: tuple[Axis, ...] = tuple(a for a in space.axes if a.knob.name not in self.without_effect)

    @cached_property
    def tried(self) -> Tried:
        """The trials that have a gain, as arrays."""
        return tried(self.space, self.trials, self.indices_of, self.gain, self.bottleneck)

    @cached_property
    def model(self) -> GainModel | None:
        """What trials, and rotations beside them, say of each knob's part in a gain; None without knobs, or a trial
        that has a gain.
        """
        if not self.space.axes or not len(self.tried):
            return None
        told = self.objective.is_rate and self._more_by_start(Config()) <= MOST_BIAS
        ranking = {config: each for config, each in self.ranking.items() if told and not self._starts_late(config)}
        beside = ranked_readings(self.space, ranking, self._loaders, calm=self._was_calm)
        return GainModel(self.space.axes, self.tried, beside)

    @cached_property
    def _expected(self) -> dict[int, float]:
        if self.model is None:
            return {}
        logs = self.model.of_tried()
        return {trial.number: math.exp(log) for trial, log in zip(self.tried.trials, logs.tolist(), strict=True)}

    def expected(self, trial: Trial) -> float | None:
        """The gain to expect of the trial's config in other runs: what the trials of configs like it say counts as
        well, since the fastest of many rough readings was lucky. ``gain`` where no model knows it. Equal ones are equal
        on every processor, which round their last digits each in its own way.
        """
        known = self._expected.get(trial.number)
        return round(known, _DIGITS) if known is not None else self.gain(trial)

    @cached_property
    def promising(self) -> Trial | None:
        """The trial whose config is expected to be the fastest, None where none has a gain."""
        return next(iter(self.by_expectation(self.trials)), None)

    def by_expectation(self, trials: Iterable[Trial]) -> list[Trial]:
        """Those of the trials that have a gain, the one that is expected to be fastest first."""
        gains = [(own, trial) for trial in trials if (own := self.expected(trial)) is not None]
        return [trial for _, trial in sorted(gains, key=lambda pair: (-pair[0], pair[1].number))]

    @cached_property
    def twins(self) -> Twins:
        """Which configs tell no more than tried ones."""
        return Twins(self.space, self.tried, self.ranking)

    @cached_property
    def best(self) -> Trial | None:
        """The trial with the highest gain so far, None where none has any."""
        return self._track.best_of(self.trials)

    def best_before(self, number: int) -> Trial | None:
        """The best of the trials before that one."""
        return self._track.best_of(trial for trial in self.trials if trial.number < number)

    @property
    def best_larger(self) -> Trial | None:
        """The best of those with a larger effective batch."""
        return self._track.best_of(self.larger)

    def gain(self, trial: Trial) -> float | None:
        """The trial's ratio to the baseline at that time, above 1 for better; None where it has no score."""
        if trial.number not in self._gains:
            self._gains[trial.number] = self._track.gain(trial)
        return self._gains[trial.number]

    def indices_of(self, trial: Trial) -> tuple[int, ...] | None:
        """The trial's place on each axis of the space, in their order; None off the axes."""
        return self.space.row_of(trial.config)

    def find(self, config: Mapping[str, Value]) -> Trial | None:
        """The trial that ran this config or one that means the same, None where there is none."""
        return self._by_config.get(self.space.canonical(config))

    def is_ruled_out(self, config: Mapping[str, Value]) -> bool:
        """Whether the config breaks a constraint, turns a knob without effect, is known or forecast to fail, lost
        clearly in a rotation, has more workers than cores and nothing shows that they would wait, or no time.

        So are larger effective batches: they are proposed by who asks for them, by ``is_larger_ruled_out``.
        """
        canonical = self.space.canonical(config)
        return not self.space.keeps_batch(canonical) or self._cannot_work(canonical)

    def is_larger_ruled_out(self, config: Mapping[str, Value]) -> bool:
        """The same of a config with a larger effective batch."""
        return self._cannot_work(self.space.canonical(config))

    def _cannot_work(self, canonical: Config) -> bool:
        return (
            any(name in self.without_effect for name in canonical if name not in self.space.pinned)
            or any(same_value(canonical.get(name), value) for name, value in self._bad_values)
            or any(self._is_at_least_as_heavy(canonical, failed) for failed in self._too_large)
            or self._is_forecast_to_be_too_large(canonical)
            or any(self._has_too_many(canonical, axis) for axis in self.axes if axis.knob.waits_at_times)
            or self._lost(canonical)
            or not self._has_time_for(canonical)
        )

    def is_outranked(self, config: Config, other: Config) -> bool:
        """Whether a rotation ranks the config clearly below the other one, and may leave it out for that."""
        more = self._more_by_start(other if self._measured(other) is not None else Config())
        return self._leaves_out and is_outranked(config, other, self.ranking, self._loaders, more=more)

    def _lost(self, config: Config) -> bool:
        measured = self._measured(Config())
        wait = (measured.data_wait_share or 0.0) if measured is not None else 0.0
        more = self._more_by_start(Config())
        return self._leaves_out and loses(self.turned(config), self.ranking, wait, self._loaders, more=more)

    def _measured(self, config: Config) -> Measurement | None:
        trial = self.find(config)
        return trial.measurement if trial is not None else None

    def _more_by_start(self, config: Config) -> float:
        """So many times the ratio of its rate to the config's another one may gain over it, where samples are planned:
        what starts in no time spares all that the config pays once. 1 where none are, or it has no figures.
        """
        planned = self.objective.planned_samples
        measured = self._measured(config) if planned is not None else None
        return 1.0 if planned is None or measured is None else 1 + measured.paid_once_s * measured.rate / planned

    def _starts_late(self, config: Config) -> bool:
        """Whether a trial of it, or of another one that compiles the same, paid more once than a rate may leave out."""
        late = {axis.knob.name for axis in self.space.axes if axis.knob.late}
        compiles = {name: value for name, value in config.items() if name in late}
        tried = {trial.config for trial in self.trials}
        alike = (one for one in tried if one == config or (compiles and compiles.items() <= one.items()))
        return any(self._more_by_start(one) > MOST_BIAS for one in alike)

    def forecast(self, config: Mapping[str, Value]) -> Forecast | None:
        """The config's peak memory in bytes, None where too little is known."""
        return self._forecasts.of(config)

    @cached_property
    def _forecasts(self) -> Forecasts:
        return Forecasts(self.space, self._all)

    def is_too_large(self, config: Mapping[str, Value]) -> bool:
        """Whether memory doesn't suffice for the config, as a trial showed, of it or of one that takes no more, or by
        forecast.
        """
        canonical = self.space.canonical(config)
        heavy = any(self._is_at_least_as_heavy(canonical, failed) for failed in self._too_large)
        return heavy or (self.find(canonical) is None and self._is_forecast_to_be_too_large(canonical))

    def _is_forecast_to_be_too_large(self, config: Mapping[str, Value]) -> bool:
        expected = self.forecast(config)
        return expected is not None and expected.exceeds(self.memory)

    def _has_too_many(self, config: Mapping[str, Value], axis: Axis) -> bool:
        """Whether the config has more of the axis' workers than cores, and more than the script as written, although
        no trial with half as many or more has shown that they would wait: that the loop did, and cores were idle; or
        that these, more than cores themselves, gained over the next fewer.
        """
        wanted, written = self.space.complete(config)[axis.knob.name], axis.values[axis.as_written]
        if type(wanted) is not int or wanted <= max(self.space.cores, written if type(written) is int else 0):
            return False
        fewer = dict[int, bool]()
        for trial in self.trials:
            workers = self.space.complete(trial.config).get(axis.knob.name)
            if type(workers) is int and 0 < workers < wanted and trial.measurement is not None:
                shows = self._leaves_workers_waiting(trial.measurement) or self._gained_by_more(trial, axis)
                fewer[workers] = fewer.get(workers, False) or shows
        return not fewer or 2 * max(fewer) < wanted or not fewer[max(fewer)]

    def _leaves_workers_waiting(self, measurement: Measurement) -> bool:
        """Whether the loop waited, and cores were idle meanwhile, or would have been without others: in the rest of its
        time it may keep all of them.
        """
        wait, cores = measurement.data_wait_share or 0.0, self.space.host_cores
        idle = cores - busy_cores(measurement, self.space.spare_cores)
        return wait >= WAITING and idle >= IDLE_SHARE * wait * cores

    def _gained_by_more(self, trial: Trial, axis: Axis) -> bool:
        """Whether a trial with more of the axis' workers than cores is faster by ``BROUGHT``, beyond the noise of both,
        than the one with the next fewer, but no fewer than cores, that differs in nothing else. Where its loop is seen
        not to wait any more it is no sign: more of them could bring nothing.
        """
        name = axis.knob.name
        workers, own = self.space.complete(trial.config)[name], self.gain(trial)
        if type(workers) is not int or own is None or (sees_wait(trial) and whole_wait(trial) < WAITING):
            return False
        fewer = [value for value in axis.values if type(value) is int and self.space.cores <= value < workers]
        other = self.find({**self.turned(trial.config), name: max(fewer)}) if fewer else None
        before = self.gain(other) if other is not None else None
        if other is None or before is None:
            return False
        return math.log(own / before) > max(BROUGHT, SURE * gain_noise(trial, other))

    def turned(self, config: Config) -> dict[str, Value]:
        """Knob → value of those that the config turns: not the pinned ones, nor those that follow from others."""
        return {name: value for name, value in config.items() if name in self.space.searched}

    def turned_loader(self, trial: Trial) -> Config:
        """The loader knobs that the trial's config turns."""
        return Config({name: value for name, value in self.turned(trial.config).items() if name in self._loaders})

    def _without_effect(self) -> frozenset[str]:
        """Knobs that met nothing in the script to turn.

        What is at work anyway is so of this value: TensorFlow makes one call of a map at once by itself. Of the knob it
        is where two values say so. A knob that another trial saw at work stays, whatever is said of it. Where nothing
        tells which it is, as in records of earlier versions, it's the value if something was turned all the same.
        """
        nothing_there, at_work, idle = set[str](), set[str](), defaultdict[str, set[Value]](set)
        for trial in self._all:
            measurement = trial.outcome.measurement if trial.outcome is not None else None
            for report in measurement.knobs if measurement is not None else ():
                if report.knob not in self.turned(trial.config):
                    continue
                if report.evidence is not Evidence.NOT_APPLICABLE:
                    at_work.add(report.knob)
                elif report.of_value or (report.of_value is None and report.sites_changed):
                    idle[report.knob].add(trial.config[report.knob])
                else:
                    nothing_there.add(report.knob)
        return frozenset((nothing_there | {knob for knob, values in idle.items() if len(values) > 1}) - at_work)

    def _values_that_fail_alone(self) -> list[tuple[str, Value]]:
        """Values that failed with everything else as written: they aren't tried in company.

        Memory is another matter: less of something else may mend it. What a compiler had no time for in one company it
        has none for in another.
        """
        failed = []
        late = {axis.knob.name for axis in self.space.axes if axis.knob.late}
        for trial in self._all:
            outcome, turned = trial.outcome, list(self.turned(trial.config).items())
            if outcome is None or outcome.complete or outcome.reason in OUT_OF_MEMORY | {CROWDED_OUT}:
                continue
            if outcome.kind is OutcomeKind.UNFINISHED:
                failed += [(name, value) for name, value in turned if name in late]
            elif len(turned) == 1:
                failed += turned
        return failed

    def _is_at_least_as_heavy(self, config: Config, failed: Config) -> bool:
        """Whether the config takes no less memory than one that ran out of it, knob by knob."""
        heavier = {name for name in self.space.searched if self.space.space.knob(name).heavier}
        ours, theirs = self.space.complete(config), self.space.complete(failed)
        for name in {*ours, *theirs}:
            own, other = ours.get(name), theirs.get(name)
            if name in heavier and isinstance(own, (int, float)) and isinstance(other, (int, float)):
                if own < other:
                    return False
            elif name not in self._derived(theirs) and not same_value(own, other):
                return False
        return True

    def _derived(self, complete: Mapping[str, Value]) -> Iterable[str]:
        return self.space.space.derive(complete, self.space.knowledge)


def _teaches(outcome: Outcome | None) -> bool:
    """A fault of ours or of the machine says nothing of the config."""
    return outcome is not None and outcome.kind is not OutcomeKind.INFRASTRUCTURE


def _holds(trial: Trial, pinned: Config) -> bool:
    return all(same_value(trial.config.get(name), value) for name, value in pinned.items())
