"""One knob at a time, on top of the best so far: what a person with a stopwatch would try first.

On a synthetic model of this problem such a start had a third to a sixth of TPE's regret at 20 trials. What holds the
loop up comes first, and is looked at again whenever that moves: loader knobs while the loop waits for its data, compute
knobs while it computes. Loader knobs are left out while the wait is short, or a probe showed that it costs nothing;
compute knobs are judged by the rate without the wait, and get no trial while hardly anything but the wait shows. Where
steps cost more than their samples, larger batches come first and smaller ones never; compilers stay late all the same,
since each later trial pays for them again.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Generator, Iterator, Sequence

from tuner.analysis.bottleneck import BATCH, INPUT_SHARE, Bound
from tuner.analysis.gain import WORTH_HAVING
from tuner.formatting import config_text
from tuner.knowledge import FREE
from tuner.model import BASELINE, Config, Phase, Trial, Value
from tuner.search.history import History, Proposal
from tuner.search.rotation import worth_a_trial
from tuner.search.tried import gain_noise, noise_of
from tuner.search.waiting import (
    STARVED,
    WAITING,
    costly_wait,
    data_costs_time,
    knows_wait,
    saved_share,
    sees_wait,
    wait_noise,
    whole_wait,
)  # fmt: skip
from tuner.space.resolved import Axis

TRIED_FIRST = 3
"""So many configs of a rotation get trials before the walk begins."""
CLIMB_ON = 0.98
"""An ordered knob is followed while it doesn't lose more than noise."""
MOVED_UP = 0.1
"""A loop that waits by so much more of its time than when a loader knob was left has its loader looked at again."""
MOVED_DOWN = 0.3
"""One that waits by so much less than when a compute knob was tried shows what that knob brings, and did not then."""
SURE_UNSEEN = 1.64
"""A config becomes the incumbent only where the logarithm of its gain exceeds the standard deviation with which it was
read; so many of these of all readings where the wait hides the gain, and nothing but two readings of it tells of it.
"""
MOST_WALKED = 1
"""After so many trials of a search the model goes on, which turns several knobs at once: what acts on each other no
walk finds one knob at a time, and what one brings beside a loader that holds the loop up says nothing. Not counted are
those of what a rotation ranked, and of the pinned knobs by themselves.
"""
MOST_VISITS = 4
"""Of one knob: noise may move the bottleneck to and fro for ever."""


class StructuredSampler:
    """Walks through the knobs in the bottleneck's order, late ones last, each from the incumbent's value.

    It ends when no knob is due, or the search has had ``most_trials`` beside what a rotation ranked.
    """

    def __init__(self, most_trials: int | None = None) -> None:
        self._most_trials = most_trials

    def propose(self, history: History) -> Proposal | None:
        """The first step of the walk that has no trial yet."""
        start = history.find(BASELINE)
        if start is None:
            return Proposal(history.space.canonical(BASELINE), "what is pinned, by itself")
        return next(_Walk(history, start, self._most_trials).steps(), None)


class _Walk:
    """The walk so far, replayed from the history: the same trials always lead to the same next step."""

    def __init__(self, history: History, start: Trial, most_trials: int | None) -> None:
        self._history = history
        self._most_trials = math.inf if most_trials is None else most_trials
        self._incumbent = start
        self._left_at: dict[str, float] = {}
        """Knob → the wait by which it is told whether the bottleneck has moved since its last visit."""
        self._visits: Counter[str] = Counter()

    def steps(self) -> Iterator[Proposal]:
        """The configs to try; whoever takes one must come back with its trial in a new history."""
        ranked = yield from self._ranked_first()
        searched = {trial.config for trial in self._history.trials if trial.phase is Phase.SEARCH}
        if len(searched - ranked - {self._history.space.canonical(BASELINE)}) >= self._most_trials:
            return
        while (axis := self._next_axis()) is not None:
            before = self._wait
            yield from self._climb(axis) if axis.knob.ordered else self._try_all(axis)
            # A loader is left at the wait that it couldn't relieve; what computing gained was judged at the one before.
            self._left_at[axis.knob.name] = self._wait if axis.knob.loader else before
            self._visits[axis.knob.name] += 1

    def _ranked_first(self) -> Generator[Proposal, None, set[Config]]:
        """What a rotation ranks highest, each in a trial of its own: the walk goes on from the best of them. Returns
        those that have had theirs.

        One that is as fast as a tried one by the same rotation tells nothing new.
        """
        history, tried = self._history, list[Config]()
        # What is known to fail by now takes no other's place, nor is another measured by it.
        known = {config: each for config, each in history.ranking.items() if not self._fails(config)}
        for config in worth_a_trial(known, WORTH_HAVING, TRIED_FIRST):
            trial = history.find(config)
            if trial is None:
                if not any(history.twins.are_twins(config, t) for t in tried):
                    place = list(history.ranking).index(config) + 1
                    yield Proposal(config, f"number {place} of {len(history.ranking)} configs in one process")
                continue
            tried.append(config)
            own, other = history.gain(trial), history.gain(self._incumbent)
            if own is not None and other is not None and _is_sure(own / other, noise_of(trial.measurement)):
                self._incumbent = trial
        return set(tried)

    def _fails(self, config: Config) -> bool:
        trial = self._history.find(config)
        return self._history.is_ruled_out(config) if trial is None else self._history.gain(trial) is None

    def _next_axis(self) -> Axis | None:
        """The axis to turn next: what the bottleneck asks for first; of one turn in the space's order."""
        due = [axis for axis in self._history.axes if self._is_due(axis)]
        return min(due, key=self._turn, default=None)

    def _turn(self, axis: Axis) -> int:
        if axis.knob.name == BATCH and axis.as_written < len(axis.values) - 1 and self._wants_larger():
            return 0
        if axis.knob.late:
            return 5
        if axis.unlikely:
            return 4
        if not axis.knob.loader:
            return 2
        if not self._knows_wait():
            return 2
        return 1 if max(self._wait, self._saved_share()) >= INPUT_SHARE else 3

    def _is_due(self, axis: Axis) -> bool:
        """Whether turning the knob could show anything now, and hasn't shown it before."""
        if axis.knob.needs is not None and not axis.knob.needs(self._complete()):
            return False
        left_at = self._left_at.get(axis.knob.name)
        if axis.knob.loader:
            if left_at is None:
                costs = data_costs_time(self._incumbent, self._history.bottleneck, self._history.own)
                return costs or self._has_turned_loader()
            moved = self._wait >= max(WAITING, left_at + MOVED_UP)
        else:
            if self._is_starved() and not axis.knob.own:
                return False
            moved = left_at is None or self._wait <= left_at - MOVED_DOWN
            if axis.knob.own and left_at is not None:
                # Nobody knows what the script does with it: it may be what its data come by.
                moved = moved or self._wait >= left_at + MOVED_DOWN
        return moved and self._visits[axis.knob.name] < MOST_VISITS

    def _is_starved(self) -> bool:
        """Whether the loop does little but wait for data that could be turned: no compute knob would show a gain."""
        is_rate = self._history.objective.is_rate
        return is_rate and self._wait >= STARVED and any(axis.knob.loader for axis in self._history.axes)

    def _wants_larger(self) -> bool:
        """Whether larger batches come first: steps cost more than their samples, or the user left them free, and the
        loop doesn't wait for its data.
        """
        free = self._history.space.knowledge.effective_batch == FREE
        feeds = max(self._wait, self._saved_share()) < INPUT_SHARE
        return self._is_overhead_bound() or (free and feeds)

    def _is_overhead_bound(self) -> bool:
        return self._history.bottleneck is not None and self._history.bottleneck.bound is Bound.OVERHEAD

    def _reason(self, axis: Axis) -> str:
        """What the knob is, the diagnostic that led to it, what its values were measured by, and why it comes late."""
        return "; ".join(part for part in (self._diagnosis(axis), axis.told, axis.unlikely) if part)

    def _diagnosis(self, axis: Axis) -> str:
        meaning, wait = axis.knob.meaning, self._wait
        bottleneck = self._history.bottleneck
        if self._is_overhead_bound() and self._turn(axis) == 0 and bottleneck is not None and bottleneck.overhead_share:
            return f"{meaning}: {bottleneck.overhead_share:.0%} of a step doesn't grow with its batch"
        if not self._knows_wait():
            return meaning
        if axis.knob.loader:
            again = ", more than when this was tried" if axis.knob.name in self._left_at else ""
            if wait >= WAITING:
                return f"{meaning}: the loop waits {wait:.0%} of its time for data{again}"
            if self._saved_share() >= INPUT_SHARE and not self._has_turned_loader():
                return f"{meaning}: one kept batch would save {self._saved_share():.0%} of the time"
            turned, own = self._turned_loader(), axis.knob.name
            if own in turned:
                return f"{meaning}: the next value, since {config_text({own: turned[own]})} gained"
            return f"{meaning}: goes with {config_text(turned)}"
        if wait >= WAITING:
            return f"{meaning}: judged without the {wait:.0%} of the time that the loop waits for data"
        again = ", and waited when this was tried" if axis.knob.name in self._left_at else ""
        return f"{meaning}: the loop computes {1 - wait:.0%} of its time{again}"

    def _try_all(self, axis: Axis) -> Iterator[Proposal]:
        for place, value in enumerate(axis.values):
            # A value is taken back by a trial only where a rotation hasn't ranked the config without it.
            if place == axis.as_written and self._with(axis, value) in self._history.ranking:
                continue
            yield from self._attempt(axis, value)

    def _climb(self, axis: Axis) -> Iterator[Proposal]:
        """Up from the incumbent's value while that doesn't lose; down where up brought nothing.

        Workers begin with as many as would keep up with the loop, and larger batches that come first halfway to the
        largest; they go up and down from there, and where that brought nothing, as others do.
        """
        start = axis.values.index(self._value(axis))
        before = self._incumbent
        ahead = self._ahead(axis, start)
        if ahead is not None:
            place, why = ahead
            yield from self._follow(axis, axis.values[place:], patient=True, first=why)
            if self._value(axis) == axis.values[place]:
                yield from self._follow(axis, axis.values[start + 1 : place][::-1], patient=False)
            if self._incumbent is not before:
                return
        hopeless = axis.knob.name == BATCH and self._is_overhead_bound()
        for values in (axis.values[start + 1 :], () if hopeless else axis.values[:start][::-1]):
            yield from self._follow(axis, values, patient=axis.knob.loader or axis.knob.name == BATCH)
            if self._incumbent is not before:
                return

    def _ahead(self, axis: Axis, start: int) -> tuple[int, str] | None:
        """The place further up where a climb begins, and what is told of it; None where the next value will do."""
        enough = self._enough(axis, start)
        if enough is not None:
            return enough[0], f"; {enough[1]} would keep up with it"
        halfway = (start + len(axis.values)) // 2
        comes_first = axis.knob.name == BATCH and axis.knob.name not in self._visits and self._turn(axis) == 0
        return (halfway, "; halfway to the largest") if comes_first and halfway > start + 1 else None

    def _enough(self, axis: Axis, start: int) -> tuple[int, int] | None:
        """The place of the fewest workers that would keep up with the loop, and how many that would be.

        None where the next ones will do, or nothing shows the wait.
        """
        wait = self._wait
        if axis.knob.keeps_up is None or not sees_wait(self._incumbent) or wait < WAITING:
            return None
        wanted = math.ceil(round(axis.knob.keeps_up(axis.values[start], wait), 6))
        within = [place for place, value in enumerate(axis.values) if place > start and self._is_within(value)]
        reached = [place for place in within if float(axis.values[place]) >= wanted] or within[-1:]
        return (reached[0], wanted) if reached and reached[0] > start + 1 else None

    def _is_within(self, value: Value) -> bool:
        """Whether these are no more workers than cores: more are of use only once fewer were seen to wait or gain."""
        return isinstance(value, (int, float)) and value <= self._history.space.cores

    def _follow(
        self, axis: Axis, values: Sequence[Value], *, patient: bool, first: str = ""
    ) -> Iterator[Proposal]:  # fmt: skip
        """Values in a row while they don't lose; ``patient``: also beyond one that does; ``first``: what is told of the
        first of them alone.
        """
        reference = self._incumbent
        losses = 0
        for place, value in enumerate(values):
            yield from self._attempt(axis, value, "" if place else first)
            trial = self._history.find(self._with(axis, value))
            if trial is None:
                break
            if self._judged(axis, trial, reference)[0] >= CLIMB_ON:
                reference = trial
                continue
            losses += 1
            # One worker may cost more than it brings, and two pay for both.
            if losses > patient:
                break

    def _value(self, axis: Axis) -> Value:
        return self._complete()[axis.knob.name]

    def _attempt(self, axis: Axis, value: Value, besides: str = "") -> Iterator[Proposal]:
        """One value of a knob on top of the incumbent, which it replaces where it is better; ``besides``: what is told
        of it beside what the incumbent shows by now.
        """
        config = self._with(axis, value)
        history = self._history
        trial = history.find(config)
        if trial is None:
            if history.is_ruled_out(config) or history.is_outranked(config, self._incumbent.config):
                return
            if not history.twins.are_twins(config, self._incumbent.config):
                yield Proposal(config, self._reason(axis) + besides)
            return
        if _is_sure(*self._judged(axis, trial, self._incumbent)):
            self._incumbent = trial

    def _with(self, axis: Axis, value: Value) -> Config:
        turned = {**self._history.turned(self._incumbent.config), axis.knob.name: value}
        return self._history.space.canonical(turned)

    def _judged(self, axis: Axis, trial: Trial, reference: Trial) -> tuple[float, float]:
        """The ratio by which the knob is judged, 0 without a figure, and how large its logarithm may be by accident."""
        own, other = self._history.gain(trial), self._history.gain(reference)
        if own is None or other is None:
            return 0.0, 0.0
        whole = own / other
        by_whole = axis.knob.loader or axis.knob.own or not self._history.objective.maximize
        if by_whole or whole_wait(reference) < WAITING or not sees_wait(trial) or whole <= CLIMB_ON:
            return whole, noise_of(trial.measurement)
        # What computing gains is hidden behind the wait for now; it must not cost anything in return.
        without_wait = whole * (1 - whole_wait(reference)) / (1 - whole_wait(trial))
        noise = math.hypot(gain_noise(trial, reference), wait_noise(trial), wait_noise(reference))
        return without_wait, SURE_UNSEEN * noise

    def _complete(self) -> dict[str, Value]:
        return self._history.space.complete(self._incumbent.config)

    @property
    def _wait(self) -> float:
        """Of the incumbent, as far as it costs anything."""
        return costly_wait(self._incumbent, self._history.bottleneck)

    def _knows_wait(self) -> bool:
        return knows_wait(self._incumbent, self._history.bottleneck)

    def _saved_share(self) -> float:
        return saved_share(self._incumbent, self._history.bottleneck, self._history.own)

    def _has_turned_loader(self) -> bool:
        return bool(self._turned_loader())

    def _turned_loader(self) -> Config:
        return self._history.turned_loader(self._incumbent)


def _is_sure(ratio: float, accident: float) -> bool:
    """Whether a gain is worth having, and its logarithm larger than what may be an accident of the readings."""
    return ratio > WORTH_HAVING and math.log(ratio) > accident
