"""One knob at a time, on top of the best so far: what a person with a stopwatch would try first.

On a synthetic model of this problem such a start had a third to a sixth of TPE's regret at 20 trials. Loader knobs
are skipped while the loop doesn't wait for its loader, or a probe showed that its wait costs nothing, and not where it
showed that data take time from computing; compute knobs are judged by the rate without that wait. Where steps cost more
than their samples, larger batches come first and smaller ones never; compilers stay late all the same, since each later
trial pays for them again.
"""

from __future__ import annotations

from collections.abc import Iterator

from tuner.analysis.bottleneck import BATCH, INPUT_SHARE, Bound
from tuner.analysis.gain import WORTH_HAVING
from tuner.model import BASELINE, Config, Trial, Value
from tuner.search.history import WAITING, History, Proposal
from tuner.search.rotation import worth_a_trial
from tuner.space.resolve import Axis

TRIED_FIRST = 3
"""So many configs of a rotation get trials before the walk begins."""
CLIMB_ON = 0.98
"""An ordered knob is followed while it doesn't lose more than noise."""


class StructuredSampler:
    """Walks through the knobs in the space's order, late ones last, each from the incumbent's value."""

    def propose(self, history: History) -> Proposal | None:
        """The first step of the walk that has no trial yet."""
        start = history.find(BASELINE)
        if start is None:
            return Proposal(history.space.canonical(BASELINE), "what is pinned, by itself")
        return next(_Walk(history, start).steps(), None)


class _Walk:
    """The walk so far, replayed from the history: the same trials always lead to the same next step."""

    def __init__(self, history: History, start: Trial) -> None:
        self._history = history
        self._incumbent = start

    def steps(self) -> Iterator[Proposal]:
        """The configs to try; whoever takes one must come back with its trial in a new history."""
        yield from self._ranked_first()
        axes = self._history.axes
        for axis in sorted(axes, key=self._turn):
            if axis.knob.loader and not (self._data_cost_time() or self._has_turned_loader()):
                continue
            if axis.knob.needs is not None and not axis.knob.needs(self._complete()):
                continue
            yield from self._climb(axis) if axis.knob.ordered else self._try_all(axis)

    def _ranked_first(self) -> Iterator[Proposal]:
        """What a rotation ranks highest, each in a trial of its own: the walk goes on from the best of them."""
        ranking = self._history.ranking
        # What is known to fail by now takes no other's place, nor is another measured by it.
        known = {config: each for config, each in ranking.items() if not self._fails(config)}
        for config in worth_a_trial(known, WORTH_HAVING, TRIED_FIRST):
            trial = self._history.find(config)
            if trial is None:
                place = list(ranking).index(config) + 1
                yield Proposal(config, f"number {place} of {len(ranking)} configs in one process")
                continue
            own, other = self._history.gain(trial), self._history.gain(self._incumbent)
            if own is not None and other is not None and own / other > WORTH_HAVING:
                self._incumbent = trial

    def _fails(self, config: Config) -> bool:
        trial = self._history.find(config)
        return self._history.is_ruled_out(config) if trial is None else self._history.gain(trial) is None

    def _turn(self, axis: Axis) -> int:
        """When an axis is tried; those of one turn in the space's order."""
        if self._is_overhead_bound() and axis.knob.name == BATCH and axis.as_written < len(axis.values) - 1:
            return 0
        return 2 if axis.knob.late else 1

    def _is_overhead_bound(self) -> bool:
        return self._history.bottleneck is not None and self._history.bottleneck.bound is Bound.OVERHEAD

    def _try_all(self, axis: Axis) -> Iterator[Proposal]:
        for place, value in enumerate(axis.values):
            # A value is taken back by a trial only where a rotation hasn't ranked the config without it.
            if place == axis.as_written and self._with(axis, value) in self._history.ranking:
                continue
            yield from self._attempt(axis, value)

    def _climb(self, axis: Axis) -> Iterator[Proposal]:
        """Up from the incumbent's value while that doesn't lose; down where up brought nothing."""
        start = axis.values.index(self._complete()[axis.knob.name])
        before = self._incumbent
        hopeless = axis.knob.name == BATCH and self._is_overhead_bound()
        for values in (axis.values[start + 1 :], () if hopeless else axis.values[:start][::-1]):
            reference = self._incumbent
            losses = 0
            for value in values:
                yield from self._attempt(axis, value)
                trial = self._history.find(self._with(axis, value))
                if trial is None:
                    break
                if self._gain(axis, trial, reference) >= CLIMB_ON:
                    reference = trial
                    continue
                losses += 1
                # One worker may cost more than it brings, and two pay for both.
                if losses > axis.knob.loader:
                    break
            if self._incumbent is not before:
                return

    def _attempt(self, axis: Axis, value: Value) -> Iterator[Proposal]:
        """One value of a knob on top of the incumbent, which it replaces where it is better."""
        config = self._with(axis, value)
        trial = self._history.find(config)
        if trial is None:
            outranked = self._history.is_outranked(config, self._incumbent.config)
            if outranked or self._history.is_ruled_out(config):
                return
            yield Proposal(config, axis.knob.meaning)
            return
        if self._gain(axis, trial, self._incumbent) > WORTH_HAVING:
            self._incumbent = trial

    def _with(self, axis: Axis, value: Value) -> Config:
        turned = {**self._history.turned(self._incumbent.config), axis.knob.name: value}
        return self._history.space.canonical(turned)

    def _gain(self, axis: Axis, trial: Trial, reference: Trial) -> float:
        """The ratio by which the knob is judged; 0 for a trial without a figure."""
        own, other = self._history.gain(trial), self._history.gain(reference)
        if own is None or other is None:
            return 0.0
        whole = own / other
        by_whole = axis.knob.loader or axis.knob.own or not self._history.objective.maximize
        if by_whole or _wait(reference) < WAITING or not _sees_wait(trial):
            return whole
        # What computing gains is hidden behind the wait for now; it must not cost anything in return.
        return whole * (1 - _wait(reference)) / (1 - _wait(trial)) if whole > CLIMB_ON else whole

    def _complete(self) -> dict[str, Value]:
        return self._history.space.complete(self._incumbent.config)

    def _data_cost_time(self) -> bool:
        """Whether a loader could bring anything: the loop waits for its data, or a kept batch was faster by far.

        What the script as written waits at no cost, while its device computes on, doesn't count.
        """
        bottleneck = self._history.bottleneck
        if bottleneck is not None and bottleneck.saved_share >= INPUT_SHARE:
            return True
        if not _sees_wait(self._incumbent) and (bottleneck is None or bottleneck.compute is None):
            return True  # nothing tells
        hidden = bottleneck.wait_share if bottleneck is not None and bottleneck.hides_its_wait else None
        return _wait(self._incumbent) - (hidden or 0.0) >= WAITING

    def _has_turned_loader(self) -> bool:
        loader = {axis.knob.name for axis in self._history.axes if axis.knob.loader}
        return not loader.isdisjoint(self._history.turned(self._incumbent.config))


def _wait(trial: Trial) -> float:
    measurement = trial.outcome.measurement if trial.outcome is not None else None
    return min(0.99, measurement.data_wait_share or 0.0) if measurement is not None else 0.0


def _sees_wait(trial: Trial) -> bool:
    measurement = trial.outcome.measurement if trial.outcome is not None else None
    return measurement is not None and measurement.data_wait_share is not None
