"""Keras' part of a training's course: the rates that optimizers take their steps with, and how long schedules are."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from ..counts import Schedule
from ..session import Session
from ..trajectory import FOLLOWS_THE_LOSS, Trajectory
from .model import inner_optimizer
from .rates import RateWatch, optimizers_in
from .types import KerasOptimizer, Model

_LENGTHS = "steps"
"""What the attributes are called that hold a schedule's lengths: ``decay_steps``, ``warmup_steps``."""


@dataclass
class _Seen:
    """An optimizer that was given gradients: its schedule's name, "" for a number, and what that was told.

    ``accumulated``: batches to a step; ``pace``: as ``RateWatch.pace_of``. ``batches``, ``steps``: so far.
    """

    name: str
    lengths: Mapping[str, float]
    accumulated: int
    pace: float = 1.0
    batches: int = 0
    steps: int = 0


class TrajectoryWatch(Trajectory):
    """Notes rates before a step or a call of several, in the host's own variables: nothing of it is in a graph.

    ``follows_the_loss``: whether a callback sets a rate by the loss. ``keras`` and ``rates`` are None until Keras is
    imported; nothing is noted before.
    """

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self.follows_the_loss = False
        self.keras: ModuleType | None = None
        self.rate_watch: RateWatch | None = None
        self._held: tuple[tuple[weakref.ref[Model], int], list[KerasOptimizer]] | None = None
        self._seen: list[_Seen] = []
        self._of: weakref.WeakKeyDictionary[object, _Seen] = weakref.WeakKeyDictionary()

    # while it trains

    def fit_begins(self, model: Model, state: Sequence[Sequence[object]] | None = None) -> None:
        """A training function of ``fit`` is about to be called. ``state``: what JAX trains, beside the variables."""
        mine = inner_optimizer(model) if model.optimizer is not None else None
        for optimizer in self._optimizers_of(model):
            scope = self._state_of(model, state) if optimizer is mine and state is not None else None
            self.batch_begins(optimizer, scope)

    def fit_stepped(self, model: Model, batches: int) -> None:
        """The training function has trained on so many batches."""
        for optimizer in self._optimizers_of(model):
            self.trained_on(optimizer, batches)

    def batch_begins(
        self, optimizer: object, scope: Callable[[], AbstractContextManager[object]] | None = None
    ) -> None:
        """The optimizer is about to be given gradients. ``scope``: in which its variables have their values."""
        if self.session.measuring and self.session.here and self.keras is not None:
            if optimizer not in self._of:
                self._meet(optimizer)
            self.step_begins(optimizer, lambda: self._read(optimizer, scope or nullcontext))

    def trained_on(self, optimizer: object, batches: int) -> None:
        """It was given those of so many batches, and has stepped where it doesn't accumulate them."""
        seen = self._of.get(optimizer)
        if seen is not None:
            before = seen.batches // seen.accumulated
            seen.batches += batches
            self.stepped(optimizer, seen.batches // seen.accumulated - before)

    def stepped(self, optimizer: object, count: int = 1) -> None:
        """The optimizer has taken so many steps."""
        super().stepped(optimizer, count)
        if optimizer in self._of:
            self._of[optimizer].steps += count
            self.forgetting += count if getattr(optimizer, "use_ema", False) else 0

    def _meet(self, optimizer: Any) -> None:
        rate = getattr(optimizer, "_learning_rate", None)
        is_schedule = self._is_schedule(rate)
        accumulated = int(getattr(optimizer, "gradient_accumulation_steps", None) or 1)
        name, lengths = (type(rate).__name__, dict(_lengths_of(rate))) if is_schedule else ("", {})
        self._of[optimizer] = seen = _Seen(name, lengths, accumulated)
        self._seen.append(seen)

    def _is_schedule(self, rate: object) -> bool:
        keras: Any = self.keras
        return isinstance(rate, keras.optimizers.schedules.LearningRateSchedule)

    def _optimizers_of(self, model: Model) -> list[KerasOptimizer]:
        """The model's, and others that it holds for a training step of its own: these come first, since they step."""
        key = weakref.ref(model), id(model.optimizer)
        if self._held is None or self._held[0] != key:
            self._held = key, self._found_in(model)
        return self._held[1]

    def _found_in(self, model: Model) -> list[KerasOptimizer]:
        known = self.rate_watch.known() if self.rate_watch is not None else []
        its_own = {id(each) for each in optimizers_in(model, self.keras)}
        mine = inner_optimizer(model) if model.optimizer is not None else None
        others = [each for each in known if id(each) in its_own and each is not mine]
        return others if mine is None else [*others, mine]

    def _state_of(
        self, model: Model, state: Sequence[Sequence[object]]
    ) -> Callable[[], AbstractContextManager[object]]:
        """While an epoch of JAX's lasts, what an optimizer holds is no variable's value."""
        keras: Any = self.keras
        return lambda: keras.StatelessScope(state_mapping=list(zip(model.optimizer.variables, state[2], strict=True)))

    def _read(self, optimizer: Any, scope: Callable[[], AbstractContextManager[object]]) -> Sequence[float]:
        """The rate; none where it can't be read, or is a function of the script's own, which may count its calls."""
        keras: Any = self.keras
        rate = getattr(optimizer, "_learning_rate", None)
        if callable(rate) and not self._is_schedule(rate):
            return []
        if self.rate_watch is not None:
            self._of[optimizer].pace = self.rate_watch.pace_of(optimizer)
        try:
            with scope(), _as_it_was(rate if self._is_schedule(rate) else None):
                return [float(keras.ops.convert_to_numpy(optimizer._get_current_learning_rate()))]
        except Exception:
            return []  # of some strategies, or of variables that aren't made yet

    # facts

    def schedules(self) -> list[Schedule]:
        """Those of the optimizers that stepped, in the order of their first steps, and what follows the loss."""
        found = []
        for seen in self._seen:
            # A schedule counts batches, and those as they are written.
            batches = seen.pace * seen.accumulated
            horizon = {name: length / batches for name, length in seen.lengths.items()}
            found += [Schedule(seen.name, horizon, seen.steps)] if seen.name else []
        return [*found, Schedule(FOLLOWS_THE_LOSS)] if self.follows_the_loss else found

    def observe(self) -> None:
        """What was seen, into the facts."""
        super().observe()
        self.session.facts.optimizer_steps = self.steps


@contextmanager
def _as_it_was(schedule: object) -> Iterator[None]:
    """A schedule of the script's own may count its calls: afterwards it holds what it held before."""
    held = {} if schedule is None else dict(vars(schedule))
    try:
        yield
    finally:
        if schedule is not None:
            own = vars(schedule)
            for name in [name for name in own if name not in held]:
                del own[name]
            own.update(held)


def _lengths_of(schedule: object, place: str = "") -> Iterable[tuple[str, float]]:
    """The lengths that a schedule was told, and those of the schedules in it."""
    for name, value in vars(schedule).items():
        if _LENGTHS in name and isinstance(value, (int, float)):
            yield place + name, float(value)
        elif name == "boundaries" and isinstance(value, (list, tuple)):
            yield from ((f"{place}boundary {n}", float(each)) for n, each in enumerate(value, start=1))
        elif not place and any(cls.__name__ == "LearningRateSchedule" for cls in type(value).__mro__):
            yield from _lengths_of(value, f"{name}.")
