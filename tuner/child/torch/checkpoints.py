"""Optimizers that go on from a checkpoint: loading replaces their groups, and with them what the config set there."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from types import ModuleType

from ..patches import patch
from ..session import Session
from .learning_rates import KNOB, RateWatch
from .optimizers import implementations
from .types import Group, Optimizer, Scheduler

NEITHER = "the checkpoint's rates are neither the script's nor this config's, and stay as they were saved"


class ResumeWatch:
    """Patches ``load_state_dict`` of optimizers and schedulers, where a knob lives in what that replaces.

    ``unknown_rates``: whether rates were loaded of which nothing tells whether they are scaled already.
    """

    def __init__(self, session: Session, torch: ModuleType, rates: RateWatch) -> None:
        self.session = session
        self.torch = torch
        self.rates = rates
        self.unknown_rates = False

    def install(self) -> None:
        """Patches what the config needs."""
        scales = self.session.knobs.wants(KNOB)
        if scales or self.session.knobs.wants("optimizer"):
            patch(self.torch.optim.Optimizer, "load_state_dict", self._load)
        schedulers = sys.modules.get("torch.optim.lr_scheduler")
        for kind in vars(schedulers).values() if scales and schedulers is not None else ():
            if isinstance(kind, type) and "load_state_dict" in vars(kind):
                patch(kind, "load_state_dict", self._load_schedule)

    def _load(self, original: Callable[..., None]) -> Callable[..., None]:
        def load_state_dict(optimizer: Optimizer, state_dict: Mapping[str, object]) -> None:
            groups = state_dict.get("param_groups")
            if self.session.here and isinstance(groups, list) and len(groups) == len(optimizer.param_groups):
                adapted = [self._adapted(optimizer, index, group) for index, group in enumerate(groups)]
                state_dict = {**state_dict, "param_groups": adapted}
            original(optimizer, state_dict)

        return load_state_dict

    def _adapted(self, optimizer: Optimizer, index: int, group: Group) -> Group:
        """A saved group with the config's knobs. What it was saved under, this config or none, shows in its rate."""
        adapted = dict(group)
        chosen = self.session.knobs.wanted("optimizer")
        if chosen is not None and chosen in implementations(optimizer):
            adapted.update(fused=chosen == "fused", foreach=chosen == "foreach")
        factor = self._factor(optimizer, index, group.get("initial_lr", group.get("lr")))
        for name in ("lr", "initial_lr"):
            if factor != 1.0 and isinstance(group.get(name), (int, float)):
                adapted[name] = group[name] * factor
        return adapted

    def _factor(self, optimizer: Optimizer, index: int, saved: object) -> float:
        """What a saved rate has to be multiplied by."""
        scale, given = float(self.session.knobs.wanted(KNOB) or 1.0), self.rates.given(optimizer)
        if scale == 1.0:
            return 1.0
        if isinstance(saved, (int, float)) and index < len(given):
            if math.isclose(saved, given[index]):
                return 1.0
            if math.isclose(saved, given[index] / scale):
                return scale
        self.unknown_rates = True
        return 1.0

    def _load_schedule(self, original: Callable[..., None]) -> Callable[..., None]:
        def load_state_dict(scheduler: Scheduler, state_dict: Mapping[str, object]) -> None:
            original(scheduler, state_dict)
            optimizer, bases = getattr(scheduler, "optimizer", None), getattr(scheduler, "base_lrs", None)
            if not self.session.here or optimizer is None or not isinstance(bases, list):
                return
            factors = [self._factor(optimizer, index, base) for index, base in enumerate(bases)]
            for name in ("base_lrs", "_last_lr"):
                rates = vars(scheduler).get(name)
                if isinstance(rates, list) and len(rates) == len(factors):
                    setattr(scheduler, name, [rate * factor for rate, factor in zip(rates, factors, strict=True)])

        return load_state_dict
