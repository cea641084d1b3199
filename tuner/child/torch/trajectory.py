"""The course of a training: learning rates, schedules and averages, and whether a config departs from the script's own.

A screen trains for seconds, and what a schedule does shows at a training's end. So the course is compared itself: the
rate of each of the first optimizer steps and of ever sparser ones, how long each scheduler was told to be, how many
samples and updates of an averaged model there are to a step.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterable, Mapping
from types import ModuleType
from typing import Any

from ..counts import Schedule
from ..patches import patch
from ..records import Knowledge, Value
from ..session import Session
from .types import Optimizer, Result, Scheduler

KNOBS = ("grad_accumulation", "batch_size")
"""The knobs that may change it."""
HORIZONS = ("T_max", "T_0", "T_mult", "total_steps", "total_iters", "step_size", "step_size_up", "step_size_down")
_FOLLOWS_THE_LOSS = "ReduceLROnPlateau"
_FIRST_STEPS = 16
_SPARSER = 1.25
RATE_TOLERANCE = 1e-3
"""As a share of the largest rate so far."""
STEP_TOLERANCE = 0.1
"""Of samples and averages to a step, over at least so many steps: epochs end with smaller batches."""
FEWEST_STEPS = 20
_MOST_OPTIMIZERS = 8
_MOST_GROUPS = 64


class TrajectoryWatch:
    """Notes rates at optimizer steps, schedulers as they are made, and updates of averaged models."""

    def __init__(self, session: Session, torch: ModuleType) -> None:
        self._session = session
        self._torch = torch
        self.steps = 0
        self.rates: list[tuple[int, float]] = []
        self.averagings = 0
        self.group_rates: list[tuple[int, int, tuple[float, ...]]] = []
        self._next = 1
        self._others: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self._met = 1
        self._optimizer: weakref.ref[Optimizer] | None = None
        self._schedules: list[tuple[str, dict[str, float], weakref.ref[Scheduler]]] = []

    def install(self) -> None:
        """Patches what makes a scheduler and what updates an average; under measurement only."""
        optim = self._torch.optim
        patch(optim.lr_scheduler.LRScheduler, "_initial_step", self._initial_step)
        patch(optim.lr_scheduler.ReduceLROnPlateau, "__init__", self._init_plateau)
        patch(optim.swa_utils.AveragedModel, "update_parameters", self._update_parameters)

    def _initial_step(self, original: Callable[..., Result]) -> Callable[..., Result]:
        def _initial_step(scheduler: Scheduler) -> Result:
            if self._session.here and not any(made() is scheduler for _, _, made in self._schedules):
                self._schedules.append((type(scheduler).__name__, _horizon_of(scheduler), weakref.ref(scheduler)))
            return original(scheduler)

        return _initial_step

    def _init_plateau(self, original: Callable[..., None]) -> Callable[..., None]:
        def __init__(scheduler: Scheduler, *args: object, **kwargs: object) -> None:
            original(scheduler, *args, **kwargs)
            if self._session.here:
                self._schedules.append((_FOLLOWS_THE_LOSS, {}, weakref.ref(scheduler)))

        return __init__

    def _update_parameters(self, original: Callable[..., Result]) -> Callable[..., Result]:
        def update_parameters(*args: object, **kwargs: object) -> Result:
            self.averagings += self._session.here
            return original(*args, **kwargs)

        return update_parameters

    def stepped(self, optimizer: Optimizer) -> None:
        """An optimizer step was taken. Of several optimizers each is looked at once, and the first to step often."""
        if self._optimizer is None:
            self._optimizer = weakref.ref(optimizer)
        if self._optimizer() is not optimizer:
            if optimizer not in self._others and self._met < _MOST_OPTIMIZERS:
                self._others.add(optimizer)
                self._note(self._met, 1, optimizer)
                self._met += 1
            return
        self.steps += 1
        if self.steps < self._next:
            return
        self._next = self.steps + 1 if self.steps < _FIRST_STEPS else int(self.steps * _SPARSER) + 1
        rate = optimizer.param_groups[0].get("lr")
        if rate is not None:
            self.rates.append((self.steps, float(rate)))
            self._note(0, self.steps, optimizer)

    def _note(self, number: int, step: int, optimizer: Optimizer) -> None:
        groups = optimizer.param_groups[:_MOST_GROUPS]
        if (number or len(groups) > 1) and all(group.get("lr") is not None for group in groups):
            self.group_rates.append((number, step, tuple(float(group["lr"]) for group in groups)))

    # facts

    def observe(self) -> None:
        """What was seen, into the facts."""
        facts = self._session.facts
        facts.rates, facts.averagings = list(self.rates), self.averagings
        facts.group_rates = list(self.group_rates)
        facts.schedules = [
            Schedule(name, horizon, int(getattr(made(), "last_epoch", 0) or 0))
            for name, horizon, made in self._schedules
        ]

    # evidence

    def departure(self) -> str:
        """How the training departs from the script's own as the baseline showed it, for people; "" where it doesn't."""
        request = self._session.request
        known, config = request.knowledge, request.config
        # An argument of the user's own may well be the learning rate; and a probe runs one side of the loop.
        own = set(config) & set(known.placeholders) - set(KNOBS)
        if not known.rates or own or request.probe is not None:
            return ""
        same_steps = _effective(config, known) == _effective({}, known)
        scale = config.get("lr_scale", 1.0)
        return (
            self._departing_schedule(known, same_steps=same_steps)
            or self._departing_rate(known, float(scale), same_steps=same_steps)
            or (self._departing_counts(known) if same_steps else "")
        )

    def _departing_rate(self, known: Knowledge, scale: float, *, same_steps: bool) -> str:
        """With as many samples to a step each rate must be the script's; else at least the first one."""
        follows_loss = any(schedule.name == _FOLLOWS_THE_LOSS for schedule in known.schedules)
        scaled = known.gradient_scaler is not None or self._session.request.config.get("precision") == "fp16"
        # A scaler skips steps, in each run others.
        last = self.steps if same_steps and not follows_loss and not scaled else 1
        written = _by_step(known.rates, known.group_rates)
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

    def _departing_schedule(self, known: Knowledge, *, same_steps: bool) -> str:
        """A scheduler has to cover as many samples as it does as written."""
        own = self._session.facts.schedules
        if [schedule.name for schedule in own] != [schedule.name for schedule in known.schedules]:
            return ""
        samples = self._session.clock.total_samples
        for now, before in zip(own, known.schedules, strict=True):
            fewest = min(now.steps, before.steps)
            if not same_steps and (fewest < 2 or not samples or not known.samples):
                continue
            # So much of an epoch may have passed since its last step.
            tolerance = 0.0 if same_steps else STEP_TOLERANCE + 1 / fewest
            ratio = 1.0 if same_steps else (samples / now.steps) / (known.samples / before.steps)
            for name, length in before.horizon.items():
                covered = now.horizon.get(name, length) * ratio
                if abs(covered - length) > tolerance * abs(length):
                    share = f"{now.horizon[name]:g}, as written {length:g}" if same_steps else f"{covered / length:.3g}"
                    how = "" if same_steps else " times the samples that it covers as written"
                    return f"{now.name} has {name} {share}{how}"
        return ""

    def _departing_counts(self, known: Knowledge) -> str:
        samples, steps = self._session.clock.total_samples, self._session.clock.total_steps
        updates = self._session.facts.optimizer_steps
        if min(steps, known.steps, updates, known.optimizer_steps) < FEWEST_STEPS:
            return ""
        now, before = samples / steps, known.samples / known.steps
        if before and now and abs(now - before) > STEP_TOLERANCE * before:
            return f"a step trains on {now:.4g} samples, as written on {before:.4g}"
        now, before = self.averagings / updates, known.averagings / known.optimizer_steps
        if abs(now - before) > STEP_TOLERANCE * max(before, 1.0):
            return f"an average of the model is updated {now:.3g} times a step, as written {before:.3g}"
        return ""


def _by_step(
    first: Iterable[tuple[int, float]], groups: Iterable[tuple[int, int, tuple[float, ...]]]
) -> dict[tuple[int, int], tuple[float, ...]]:
    """Optimizer and its step → the rates of its groups."""
    alone = {(0, step): (rate,) for step, rate in first}
    return alone | {(optimizer, step): tuple(rates) for optimizer, step, rates in groups}


def _effective(config: Mapping[str, Value], known: Knowledge) -> float:
    """Samples to an optimizer step, as far as the knobs say it."""
    product = 1.0
    for knob in KNOBS:
        value = config.get(knob, known.as_written.get(knob, 1))
        product *= value if isinstance(value, (int, float)) else 1
    return product


def _horizon_of(scheduler: Any) -> dict[str, float]:
    """The lengths that a scheduler was told, in its own steps."""
    held = {name: vars(scheduler).get(name) for name in HORIZONS}
    found = {name: float(value) for name, value in held.items() if isinstance(value, (int, float))}
    milestones = vars(scheduler).get("milestones", vars(scheduler).get("_milestones"))
    if isinstance(milestones, (Mapping, list, tuple)):
        found |= {f"milestone {n}": float(m) for n, m in enumerate(sorted(milestones), start=1)}
    for schedule in vars(scheduler).get("lr_lambdas", ()):
        # transformers' schedules are lambdas that are told their lengths by name.
        if isinstance(schedule, functools.partial):
            named = {name: value for name, value in schedule.keywords.items() if name.startswith("num_")}
            found |= {name: float(value) for name, value in named.items() if isinstance(value, (int, float))}
    return found
