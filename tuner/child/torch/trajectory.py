"""PyTorch's part of a training's course: its rates, schedulers as they are made, and updates of averaged models."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

from ..counts import Schedule
from ..patches import patch
from ..session import Session
from ..trajectory import FOLLOWS_THE_LOSS, MOST_GROUPS, Trajectory
from .types import Optimizer, Result, Scheduler

HORIZONS = ("T_max", "T_0", "T_mult", "total_steps", "total_iters", "step_size", "step_size_up", "step_size_down")


class TrajectoryWatch(Trajectory):
    """Notes rates at optimizer steps, schedulers as they are made, and updates of averaged models."""

    def __init__(self, session: Session, torch: ModuleType) -> None:
        super().__init__(session)
        self._torch = torch
        self._schedules: list[tuple[str, dict[str, float], weakref.ref[Scheduler]]] = []

    def install(self) -> None:
        """Patches what makes a scheduler and what updates an average; under measurement only."""
        optim = self._torch.optim
        patch(optim.lr_scheduler.LRScheduler, "_initial_step", self._initial_step)
        patch(optim.lr_scheduler.ReduceLROnPlateau, "__init__", self._init_plateau)
        patch(optim.swa_utils.AveragedModel, "update_parameters", self._update_parameters)

    def _initial_step(self, original: Callable[..., Result]) -> Callable[..., Result]:
        def _initial_step(scheduler: Scheduler) -> Result:
            if self.session.here and not any(made() is scheduler for _, _, made in self._schedules):
                self._schedules.append((type(scheduler).__name__, _horizon_of(scheduler), weakref.ref(scheduler)))
            return original(scheduler)

        return _initial_step

    def _init_plateau(self, original: Callable[..., None]) -> Callable[..., None]:
        def __init__(scheduler: Scheduler, *args: object, **kwargs: object) -> None:
            original(scheduler, *args, **kwargs)
            if self.session.here:
                self._schedules.append((FOLLOWS_THE_LOSS, {}, weakref.ref(scheduler)))

        return __init__

    def _update_parameters(self, original: Callable[..., Result]) -> Callable[..., Result]:
        def update_parameters(average: Any, *args: object, **kwargs: object) -> Result:
            self.averagings += self.session.here
            self.forgetting += self.session.here and _forgets(average)
            return original(average, *args, **kwargs)

        return update_parameters

    def took_step(self, optimizer: Optimizer) -> None:
        """An optimizer step was taken; no scheduler has followed it yet."""
        self.step_begins(optimizer, lambda: _rates_of(optimizer), lambda: _rates_of(optimizer, initial=True))
        self.stepped(optimizer)

    def schedules(self) -> list[Schedule]:
        """The schedulers, in the order in which they were made."""
        return [
            Schedule(name, horizon, int(getattr(made(), "last_epoch", 0) or 0))
            for name, horizon, made in self._schedules
        ]


def _forgets(average: Any) -> bool:
    """Whether it is no equal mean of all weights so far, which PyTorch makes without a function, or with these."""
    how = getattr(average, "multi_avg_fn", None) or getattr(average, "avg_fn", None)
    return how is not None and getattr(how, "__name__", "") != "swa_update"


def _rates_of(optimizer: Optimizer, *, initial: bool = False) -> Sequence[float]:
    """Of its groups; of the first one alone where others have none. ``initial``: those that schedules start from."""
    groups = optimizer.param_groups[:MOST_GROUPS]
    rates = [group.get("initial_lr", group.get("lr")) if initial else group.get("lr") for group in groups]
    known = [float(rate) for rate in rates if rate is not None]
    return known if len(known) == len(rates) else known[:1] if rates[0] is not None else []


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
