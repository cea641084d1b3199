"""The course of a training, and whether a config departs from the script's own; no framework.

A screen trains for seconds, and what a schedule does shows at a training's end. So the course is compared itself: the
rate of each of the first optimizer steps and of ever sparser ones, how long each scheduler was told to be, how many
samples and updates of an averaged model there are to a step.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby

from .counts import Schedule
from .evidence import Finding, SetBy
from .records import Evidence, Knowledge, Value
from .session import Session

KNOBS = ("grad_accumulation", "batch_size")
"""The knobs that may change it."""
_FACTOR = "lr_scale"
FOLLOWS_THE_LOSS = "ReduceLROnPlateau"
"""The name of what sets rates by the loss, in PyTorch as in Keras: in each run they are others."""
_FIRST_STEPS = 16
_SPARSER = 1.25
RATE_TOLERANCE = 1e-3
"""As a share of the largest rate so far."""
STEP_TOLERANCE = 0.1
"""Of samples and averages to a step, over at least so many steps: epochs end with smaller batches."""
FEWEST_STEPS = 20
_FEWEST_UPDATES = 5
"""Of a moving average, at least: with fewer nothing tells whether they go by steps or by samples."""
_MOST_BESIDE = 4.0
"""Updates of all averages as written to one of a moving one's: some script has one of all steps beside it, or begins it
late. With more it is another one that goes by the steps.
"""
_TOLD_APART = 0.05
"""Rates that differ by more tell whether a schedule follows the steps or the samples, at so many steps at least."""
_FEWEST_TOLD = 3
_MOST_OPTIMIZERS = 8
MOST_GROUPS = 64
_MOST_NAMES = 4


class Trajectory:
    """Notes the rates at optimizer steps, and holds them and the facts against the baseline's; adapters inherit.

    ``steps``: of the optimizer that stepped first. ``averagings``: updates of averaged models; ``forgetting``: those of
    moving averages, which go back so many updates, and not to the training's beginning.
    """

    def __init__(self, session: Session) -> None:
        self.session = session
        self.steps = 0
        self.averagings = self.forgetting = 0
        self.rates: list[tuple[int, float]] = []
        self.group_rates: list[tuple[int, int, tuple[float, ...]]] = []
        self.initial_rates: list[tuple[int, tuple[float, ...]]] = []
        self._next = 1
        self._others: weakref.WeakSet[object] = weakref.WeakSet()
        self._met = 1
        self._optimizer: weakref.ref[object] | None = None

    # while it trains

    def step_begins(
        self, optimizer: object, read: Callable[[], Sequence[float]], initial: Callable[[], Sequence[float]] = tuple
    ) -> None:
        """The optimizer's next step is to be taken. Of several each is looked at once, and the first to step often.

        ``read``: the rates of its groups, none where they can't be read; asked at the steps that are noted only.
        ``initial``: those that its schedules start from, none where that isn't known; asked at its first step.
        """
        if self._optimizer is None:
            self._optimizer = weakref.ref(optimizer)
            self._note_initial(0, initial)
        if self._optimizer() is not optimizer:
            if optimizer not in self._others and self._met < _MOST_OPTIMIZERS:
                self._others.add(optimizer)
                rates = tuple(read())
                if rates:
                    self.group_rates.append((self._met, 1, rates))
                self._note_initial(self._met, initial)
                self._met += 1
            return
        step = self.steps + 1
        if step < self._next:
            return
        self._next = _following(step)
        rates = tuple(read())
        if rates:
            self.rates.append((step, rates[0]))
        if len(rates) > 1:
            self.group_rates.append((0, step, rates))

    def _note_initial(self, number: int, initial: Callable[[], Sequence[float]]) -> None:
        rates = tuple(initial())
        if rates:
            self.initial_rates.append((number, rates))

    def stepped(self, optimizer: object, count: int = 1) -> None:
        """The optimizer has taken so many steps."""
        if self._optimizer is not None and self._optimizer() is optimizer:
            self.steps += count

    def missed(self) -> None:
        """Some of the steps so far were counted, and not looked at. What is noted later is noted in every run."""
        while self._next <= self.steps:
            self._next = _following(self._next)

    # facts

    def schedules(self) -> list[Schedule]:
        """What moves the rates."""
        return []

    def observe(self) -> None:
        """What was seen, into the facts."""
        facts = self.session.facts
        facts.rates, facts.averagings = list(self.rates), self.averagings
        facts.group_rates, facts.schedules = list(self.group_rates), self.schedules()
        facts.initial_rates = list(self.initial_rates)

    # evidence

    def report(self) -> None:
        """Contradicts the knobs that may change the course, where it departs; doubts them, where nobody can tell."""
        departure = self.departure()
        doubt = "" if departure else self.doubt()
        for knob in (*KNOBS, _FACTOR):
            if departure:
                self.session.knobs.report(knob, Finding(Evidence.CONTRADICTED, departure))
            elif doubt:
                self.session.knobs.doubt(knob, doubt)

    def departure(self) -> str:
        """How the training departs from the script's own as the baseline showed it, for people; "" where it doesn't."""
        known, config = self.session.request.knowledge, self.session.request.config
        if not known.rates or not self._is_comparable:
            return ""
        same_steps, scale = self._has_same_steps, config.get(_FACTOR, 1.0)
        return (
            self._departing_schedule(known, same_steps=same_steps)
            or self._departing_rate(known, float(scale))
            or (self._departing_counts(known) if same_steps else self._departing_course(known, float(scale)))
        )

    def doubt(self) -> str:
        """Why the course couldn't be held against the script's own, for people; "" where it could, or neither was seen.

        That neither could be read is no news of the config: the script is the same in both.
        """
        known = self.session.request.knowledge
        stepped = self.steps and known.optimizer_steps
        if not self._is_comparable or not stepped or not (known.rates or self.rates):
            return ""
        if not self.rates:
            return "the learning rate of its steps can't be read, that of the script as written could be"
        if not known.rates:
            return "the learning rate of the script as written couldn't be read, that of these steps can be"
        written, last = _by_step(known.rates, known.group_rates), self._last_comparable(known)
        noted = _by_step(self.rates, self.group_rates).items()
        if not any(step <= last and len(written.get((n, step), ())) == len(rates) for (n, step), rates in noted):
            return "the learning rate of no step is known both of it and of the script as written"
        own = self.session.facts.schedules
        if self._are_comparable(own, known.schedules):
            return ""
        return f"its schedules ({_names(own)}) can't be held against those as written ({_names(known.schedules)})"

    @property
    def _is_comparable(self) -> bool:
        """An argument of the user's own may well be the learning rate; and a probe runs one side of the loop."""
        request = self.session.request
        own = set(request.config) & set(request.knowledge.placeholders) - set(KNOBS)
        return not own and request.probe is None

    @property
    def _has_same_steps(self) -> bool:
        """Whether a step has as many samples as in the script as written, as far as the knobs say it."""
        request = self.session.request
        return _effective(request.config, request.knowledge) == _effective({}, request.knowledge)

    def _are_comparable(self, own: Sequence[Schedule], written: Sequence[Schedule]) -> bool:
        """Whether the schedules that both runs made are the same ones.

        Where one is made for each stage or fold, a run that gets further makes more; of how many samples each of them
        covers nothing is known then, only that it has to be as long where a step has as many.
        """
        alike = all(now.name == before.name for now, before in zip(own, written, strict=False))
        further = bool(own and written) and self._has_same_steps
        return alike and (further or len(own) == len(written))

    def _last_comparable(self, known: Knowledge) -> int:
        """The last step whose rate has to be the script's. A scaler skips steps, in each run others."""
        return self.steps if self._has_same_steps and not self._rates_vary(known) else 1

    def _departing_rate(self, known: Knowledge, scale: float) -> str:
        """With as many samples to a step each rate must be the script's; else at least the first one."""
        follows_loss = any(schedule.name == FOLLOWS_THE_LOSS for schedule in known.schedules)
        last, written = self._last_comparable(known), _by_step(known.rates, known.group_rates)
        largest: dict[tuple[int, int], float] = {}
        for (optimizer, _), rates in written.items():
            for group, rate in enumerate(rates):
                largest[optimizer, group] = max(largest.get((optimizer, group), 0.0), abs(rate))
        for (optimizer, step), rates in _by_step(self.rates, self.group_rates).items():
            before = written.get((optimizer, step), ())
            if step > last or len(before) != len(rates) or (optimizer and follows_loss):
                continue
            for group, (rate, own) in enumerate(zip(rates, before, strict=True)):
                if abs(rate - own * scale) > RATE_TOLERANCE * max(largest[optimizer, group] * scale, 1e-30):
                    wanted = f"{own * scale:.4g}" if scale == 1.0 else f"{own:.4g} times {scale:.4g}"
                    where = f" in group {group + 1}" if len(rates) > 1 else ""
                    where += f" of optimizer {optimizer + 1}" if optimizer else ""
                    return f"step {step} is taken at a learning rate of {rate:.4g}{where}, as written {wanted}"
        return ""

    def _departing_course(self, known: Knowledge, scale: float) -> str:
        """With another number of samples to a step: what schedules start from, and whether they, and moving averages,
        follow the samples.
        """
        written = dict(known.initial_rates)
        for optimizer, rates in self.initial_rates:
            before = written.get(optimizer, ())
            for rate, own in zip(rates, before, strict=False) if len(rates) == len(before) else ():
                if abs(rate - own * scale) > RATE_TOLERANCE * max(abs(own * scale), 1e-30):
                    wanted = f"{own:.4g} times {scale:.4g}"
                    return f"its schedule starts from a learning rate of {rate:.4g}, as written {wanted}"
        request = self.session.request
        factor = _effective(request.config, request.knowledge) / _effective({}, request.knowledge)
        covers = f"it covers {factor:.3g} times the samples that it does as written"
        if self._follows_steps(dict(known.rates), scale, factor) and not self._rates_vary(known):
            return f"its learning rate moves with its steps: {covers}"
        # A script that is told the size of its batches may have the average follow it.
        is_untold = self.session.knobs.set_by("batch_size") is SetBy.PATCH
        if is_untold and self._averages_by_steps(known, factor):
            return f"a moving average of the weights moves with its steps: {covers}"
        return ""

    def _averages_by_steps(self, known: Knowledge, factor: float) -> bool:
        """Whether a moving average is updated as often to a step as in the script as written, with each or with every
        tenth; one that is updated with each epoch goes by the samples.
        """
        updates, before = self.session.facts.optimizer_steps or self.steps, 1.0
        if known.averagings and known.optimizer_steps:
            before = known.averagings / known.optimizer_steps
        if self.forgetting < _FEWEST_UPDATES or not updates:
            return False
        more = math.log(self.forgetting / updates / before)
        return -math.log(_MOST_BESIDE) < more and abs(more) < abs(more - math.log(factor))

    def _rates_vary(self, known: Knowledge) -> bool:
        """Whether the rates are others in each run of the same script: by the loss, or by a scaler that skips steps."""
        follows_loss = any(schedule.name == FOLLOWS_THE_LOSS for schedule in known.schedules)
        scaled = known.gradient_scaler is not None or self.session.request.config.get("precision") == "fp16"
        return follows_loss or scaled

    def _follows_steps(self, written: Mapping[int, float], scale: float, factor: float) -> bool:
        """Whether each step has the rate of that step as written, where that of as many samples is another one."""
        told = 0
        for step, rate in self.rates:
            as_step, as_samples = written.get(step), _around(written, (step - 1) * factor + 1)
            if as_step is None or as_samples is None:
                continue
            low, high = as_samples
            if low * (1 - _TOLD_APART) <= as_step <= high * (1 + _TOLD_APART):
                continue
            if abs(rate - as_step * scale) > RATE_TOLERANCE * max(abs(as_step * scale), 1e-30):
                return False
            told += 1
        return told >= _FEWEST_TOLD

    def _departing_schedule(self, known: Knowledge, *, same_steps: bool) -> str:
        """A scheduler has to cover as many samples as it does as written."""
        own = self.session.facts.schedules
        if not self._are_comparable(own, known.schedules):
            return ""
        samples = self.session.clock.total_samples
        for now, before in zip(own, known.schedules, strict=False):
            fewest = min(now.steps, before.steps)
            if not same_steps and (fewest < 2 or not samples or not known.samples):
                continue
            # So much of an epoch may have passed since its last step.
            tolerance = 0.0 if same_steps else STEP_TOLERANCE + 1 / fewest
            ratio = 1.0 if same_steps else (samples / now.steps) / (self._samples_of(known) / before.steps)
            rounding = 0.0 if same_steps else max(1.0, ratio)  # a share of an epoch is made whole steps in each
            for name, length in before.horizon.items():
                if name not in now.horizon:
                    return f"{now.name} has no {name}, as written {length:g}"
                covered = now.horizon[name] * ratio
                if abs(covered - length) > tolerance * abs(length) + rounding:
                    if same_steps or not length:
                        return f"{now.name} has {name} {now.horizon[name]:g}, as written {length:g}"
                    return f"{now.name} has {name} {covered / length:.3g} times the samples that it covers as written"
        return ""

    def _samples_of(self, known: Knowledge) -> float:
        """Those that this process trained on as written: of several ranks all together are known, and one looks."""
        return known.samples / self.session.ranks

    def _departing_counts(self, known: Knowledge) -> str:
        samples, steps = self.session.clock.total_samples, self.session.clock.total_steps
        updates = self.session.facts.optimizer_steps
        if min(steps, known.steps, updates, known.optimizer_steps) < FEWEST_STEPS:
            return ""
        now, before = samples / steps, self._samples_of(known) / known.steps
        if before and now and abs(now - before) > STEP_TOLERANCE * before:
            return f"a step trains on {now:.4g} samples, as written on {before:.4g}"
        now, before = self.averagings / updates, known.averagings / known.optimizer_steps
        if abs(now - before) > STEP_TOLERANCE * max(before, 1.0):
            return f"an average of the model is updated {now:.3g} times a step, as written {before:.3g}"
        return ""


def _following(step: int) -> int:
    """The step that is noted after this one."""
    return step + 1 if step < _FIRST_STEPS else int(step * _SPARSER) + 1


def _around(rates: Mapping[int, float], step: float) -> tuple[float, float] | None:
    """The lowest and the highest rate of the noted steps before and after this one; None where it lies beyond them."""
    before, after = [s for s in rates if s <= step], [s for s in rates if s >= step]
    if not before or not after:
        return None
    beside = rates[max(before)], rates[min(after)]
    return min(beside), max(beside)


def _by_step(
    first: Iterable[tuple[int, float]], groups: Iterable[tuple[int, int, tuple[float, ...]]]
) -> dict[tuple[int, int], tuple[float, ...]]:
    """Optimizer and its step → the rates of its groups."""
    alone = {(0, step): (rate,) for step, rate in first}
    return alone | {(optimizer, step): tuple(rates) for optimizer, step, rates in groups}


def _names(schedules: Sequence[Schedule]) -> str:
    """Of the first few kinds of them, for people."""
    kinds = [(name, len([*alike])) for name, alike in groupby(schedules, key=lambda schedule: schedule.name)]
    shown, rest = kinds[:_MOST_NAMES], sum(count for _, count in kinds[_MOST_NAMES:])
    text = ", ".join(f"{count} {name}" if count > 1 else name for name, count in shown)
    return f"{text} and {rest} more" if rest else text or "none"


def _effective(config: Mapping[str, Value], known: Knowledge) -> float:
    """Samples to an optimizer step, as far as the knobs say it."""
    product = 1.0
    for knob in KNOBS:
        value = config.get(knob, known.as_written.get(knob, 1))
        product *= value if isinstance(value, (int, float)) else 1
    return product
