"""Keras' learning rates: the factor of a config on them, and the pace of their schedules.

Both belong to batches of another size. So they follow the batches that training was really given: where these stay as
the script wrote them, its rates do, too.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from fractions import Fraction
from types import ModuleType
from typing import Any

from ..evidence import SetBy
from ..knobs import EFFECTIVE_BATCH
from ..patches import patch
from ..session import Session
from ..tensorflow.functions import not_converted
from ..tensorflow.types import Result
from .types import KerasOptimizer, Model

OTHER_BATCHES = "it goes with a size of the batches that isn't in effect"


@dataclass
class Course:
    """What becomes of one optimizer's rate.

    ``pace``: samples of a step by those of the script's own. ``scale``: the factor on what the script gives.
    ``made_with``: the number that it was made with, the factor included; None for a schedule. ``settled``: whether the
    batches that it trains on are known.
    """

    scale: float
    made_with: float | None = None
    pace: Fraction = Fraction(1)
    settled: bool = False


class RateWatch:
    """The learning rate of every optimizer that the script makes, and what of it is asked for while it trains.

    A rate that is a number is passed on changed. A schedule stays the script's own object, so that what is saved with a
    model is what the script wrote: its figures are changed when the optimizer asks for them.

    ``scaled``: how many rates were changed. ``dropped``: why one of them is the script's own after all; "" for none.
    ``fit_factor``: the size of the batches that the current ``fit`` is given, by the script's own; None outside of any.
    ``loop_factor``: the same for loops of the script's own.
    """

    def __init__(self, session: Session, keras: ModuleType) -> None:
        self.session = session
        self.keras = keras
        self.scale = float(session.knobs.wanted("lr_scale") or 1.0)
        self.scaled = 0
        self.dropped = ""
        self.fit_factor: float | None = None
        self.loop_factor: Callable[[], float] = lambda: 1.0
        self._courses: weakref.WeakKeyDictionary[KerasOptimizer, Course] = weakref.WeakKeyDictionary()

    def install(self, optimizers: type) -> None:
        """Patches the base class of optimizers."""
        if self.scale != 1.0 or self._turned:
            patch(optimizers, "_get_current_learning_rate", self._current_rate)
        if self.scale != 1.0:
            patch(optimizers, "get_config", self._config)
        if self.may_be_dropped:
            patch(optimizers, "apply", self._apply)

    @property
    def _turned(self) -> list[str]:
        """The knobs by which batches are changed behind the script's back.

        One that its arguments, options or questions set is known to it: its schedule follows it by itself.
        """
        knobs = self.session.knobs
        if knobs.set_by("batch_size") is not SetBy.PATCH or "grad_accumulation" in knobs.arguments:
            return []
        return [knob for knob in EFFECTIVE_BATCH if knobs.wants(knob)]

    @property
    def may_be_dropped(self) -> bool:
        """Whether the factor on rates goes with batches that the config changes."""
        return self.scale != 1.0 and bool(self._turned)

    def given(self, rate: object) -> object:
        """The rate that an optimizer is made with, for the one that the script gives."""
        if self.scale == 1.0:
            return rate
        self.scaled += isinstance(rate, (int, float)) or callable(rate)
        return float(rate) * self.scale if isinstance(rate, (int, float)) else rate

    def made(self, optimizer: KerasOptimizer, rate: object) -> None:
        """An optimizer was made with this rate."""
        number = float(rate) if isinstance(rate, (int, float)) else None
        self._courses[optimizer] = Course(self.scale, number)

    def _config(self, original: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
        """What an optimizer is saved and copied by has the script's own rate: where it is made again it is scaled."""

        def get_config(optimizer: KerasOptimizer) -> dict[str, Any]:
            config, course = original(optimizer), self._courses.get(optimizer)
            rate = config.get("learning_rate")
            if course is not None and isinstance(rate, (int, float)):
                as_made = course.made_with if course.made_with is not None and _is_as_made(optimizer, course) else rate
                config["learning_rate"] = as_made / course.scale
            return config

        return get_config

    def rate_was_set(self) -> bool:
        """Whether an optimizer's rate isn't the number any more that it was made with. With JAX that can't be seen."""
        return any(_is_as_made(optimizer, course) is False for optimizer, course in self._courses.items())

    def known(self) -> list[KerasOptimizer]:
        """The optimizers that the script has made and still holds."""
        return list(self._courses)

    def pace_of(self, optimizer: KerasOptimizer) -> float:
        """Batches as written by those that the optimizer is given: so many of its schedule's steps are one of its."""
        course = self._courses.get(optimizer)
        return float(course.pace) if course is not None else 1.0

    # the batches that it goes with

    def fit_begins(self, model: Model, factor: float) -> bool:
        """A ``fit`` is about to train on batches ``factor`` times as large as the script's own.

        Returns whether a training function that was traced before may hold another rate.
        """
        self.fit_factor = factor
        if not self._turned:
            return False
        mine = getattr(model.optimizer, "inner_optimizer", model.optimizer)
        its_own = set(map(id, [mine, *optimizers_in(model, self.keras)]))
        known = [(optimizer, course) for optimizer, course in self._courses.items() if id(optimizer) in its_own]
        changed = [self._settle(optimizer, course, factor) for optimizer, course in known]
        return any(changed)

    def update_begins(self, optimizer: KerasOptimizer | None) -> None:
        """An update of an optimizer; where no ``fit`` has met it, it is of a loop or a step of the script's own."""
        if optimizer is None or not self.may_be_dropped or not self.session.here:
            return
        course = self._courses.get(optimizer)
        if course is not None and not course.settled and not self._is_stateless():
            with self._outside_of_graphs():
                self._settle(optimizer, course, self._factor())

    def _factor(self) -> float:
        return self.loop_factor() if self.fit_factor is None else self.fit_factor

    def _settle(self, optimizer: KerasOptimizer, course: Course, factor: float) -> bool:
        """Where that isn't what the config's factor on the rate goes with, the rate becomes the script's own."""
        pace, wanted = Fraction(factor).limit_denominator(10**6), _wanted_pace(self.session, self._turned)
        scale = self.scale if pace == wanted or (wanted is None and pace != 1) else 1.0
        changed = (pace, scale) != (course.pace, course.scale)
        if scale != course.scale and course.made_with is not None and _is_as_made(optimizer, course) is not False:
            course.made_with *= scale / course.scale
            optimizer._learning_rate.assign(course.made_with)
        course.pace, course.scale, course.settled = pace, scale, True
        if scale != self.scale:
            self.dropped = OTHER_BATCHES
        return changed

    def _apply(self, original: Callable[..., Result]) -> Callable[..., Result]:
        def apply(optimizer: KerasOptimizer, *args: object, **kwargs: object) -> Result:
            self.update_begins(optimizer)
            return original(optimizer, *args, **kwargs)

        return not_converted(apply)

    def _is_stateless(self) -> bool:
        """Whether JAX traces an update: no variable can be given another value then."""
        scopes: Any = sys.modules["keras.src.backend.common.stateless_scope"]
        return bool(scopes.in_stateless_scope())

    def _outside_of_graphs(self) -> AbstractContextManager[object]:
        lifted: AbstractContextManager[object] = nullcontext()
        if self.keras.backend.backend() == "tensorflow":
            lifted = sys.modules["tensorflow"].init_scope()
        return lifted

    def _current_rate(self, original: Callable[[KerasOptimizer], Any]) -> Callable[[KerasOptimizer], Any]:
        schedules, ops = self.keras.optimizers.schedules, self.keras.ops

        def _get_current_learning_rate(optimizer: KerasOptimizer) -> Any:
            rate, course = optimizer._learning_rate, self._courses.get(optimizer)
            if course is None or not callable(rate):
                return original(optimizer)  # a number was changed when the optimizer was made
            pace = course.pace
            if not course.settled and self._turned:
                pace = Fraction(self._factor()).limit_denominator(10**6)
            if isinstance(rate, schedules.LearningRateSchedule) and pace != 1:
                # Of the same number of samples: a schedule counts batches, which have another size here.
                step = ops.floor_divide(ops.multiply(optimizer._iterations, pace.numerator), pace.denominator)
                return rate(step) * course.scale
            return original(optimizer) * course.scale

        return _get_current_learning_rate


def optimizers_in(model: Model, keras: ModuleType | None) -> list[KerasOptimizer]:
    """The optimizers among the model's attributes, without what scales their loss; nothing else is asked for any."""
    kind = keras.optimizers.Optimizer if keras is not None else ()
    held = [each for each in vars(model).values() if issubclass(type(each), kind)]
    return [getattr(each, "inner_optimizer", each) for each in held]


def _wanted_pace(session: Session, knobs: list[str]) -> Fraction | None:
    """Samples of a step as the config wants them, by those of the script's own; None where these aren't known."""
    pace, written = Fraction(1), session.request.knowledge.as_written
    for knob in knobs:
        before, now = written.get(knob), session.knobs.wanted(knob)
        if type(now) is not int or type(before) is not int or before <= 0:
            return None
        pace *= Fraction(now, before)
    return pace


def _is_as_made(optimizer: KerasOptimizer, course: Course) -> bool | None:
    """Whether the rate is the number that the optimizer was made with; None where that can't be seen."""
    try:
        now = float(optimizer._learning_rate.numpy())
    except (AttributeError, TypeError, ValueError):
        return None
    if course.made_with is None:
        return None
    return abs(now - course.made_with) <= 1e-5 * abs(course.made_with)
