"""Evaluations outside of any compiled function: products with parameters, of data that were evaluated on before.

``accuracy(params, images)`` of a script runs operation by operation after each epoch. It shows by its first product in
which one operand has the shape of a parameter, and the other one at least as many rows as a batch. From the second time
on that it holds the same, that begins a validation. A policy that acts is asked about fewer rows, and other ones.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FunctionType
from typing import Any

from ..call_sites import line_stack
from ..patches import patch
from ..recurring import MIN_STEPS_BETWEEN_VALIDATIONS
from ..stretches import hash_of
from .functions import every_value
from .rows import data_in
from .steps import StepWatch
from .types import Arguments, Call

MOST_KNOWN = 256
_NUMPYS = ("dot", "matmul", "einsum", "tensordot")
_LAX = ("dot_general", "conv_general_dilated")
_ARRAYS = ("__matmul__", "__rmatmul__")


class EagerWatch:
    """Of one trial; it is put in place right after JAX's import."""

    def __init__(self, steps: StepWatch, jax: Any) -> None:
        self.steps = steps
        self.jax = jax
        self._known: dict[int, None] = {}
        self._looked_at = -MIN_STEPS_BETWEEN_VALIDATIONS

    def install(self) -> None:
        """Patches JAX's products, as far as this version has them."""
        for owner, names in ((self.jax.numpy, _NUMPYS), (self.jax.lax, _LAX)):
            for name in names:
                if hasattr(owner, name):
                    patch(owner, name, self._looking)
        arrays: Any = sys.modules["jax._src.array"].ArrayImpl
        for name in _ARRAYS:
            if name in vars(arrays):
                patch(arrays, name, self._looking)

    def _looking(self, original: Call) -> Call:
        if not isinstance(original, FunctionType):
            return _Product(original, self._look)

        def product(*operands: Any, **options: Any) -> Any:
            self._look(operands)
            return original(*operands, **options)

        return product

    def _look(self, given: Arguments) -> None:
        """A product is about to be computed, or traced. The first one with a parameter behind a step is looked at."""
        steps = self.steps
        clock = steps.session.clock
        if not (steps.trained and steps.tracing.may_be_outermost) or clock.total_steps == self._looked_at:
            return
        if clock.validating or steps.stands_aside:
            return
        operands = [_within(each) for each in given if hasattr(each, "dtype")]
        data = data_in(operands, [steps.kinds, *(each.traces.parameters for each in steps.training)])
        if len(data) == len(operands):
            return
        since, self._looked_at = clock.total_steps - self._looked_at, clock.total_steps
        rows = steps.passes.rows
        if since >= clock.recurring.fewest_steps and any(0 < rows <= each.shape[0] for each in data):
            self._asked(hash_of(data, every_value))

    def _asked(self, value: int | None) -> None:
        clock = self.steps.session.clock
        if value is None:
            return
        if value not in self._known:
            if len(self._known) >= MOST_KNOWN:
                del self._known[next(iter(self._known))]
            self._known[value] = None
            return
        clock.recurring.catches_up()
        clock.validation_begins(self)
        name = f"what is computed at {line_stack().partition('<')[0]}"
        if clock.validating and name not in self.steps.apart:
            self.steps.apart.append(name)


class _Product:
    """What ``jax.jit`` has made of a function of JAX's, which is told of before it runs; all else is its own."""

    def __init__(self, original: Call, look: Callable[[Arguments], None]) -> None:
        vars(self).update(_autotune=(original, look))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        original, look = self._autotune
        look(args)
        return original(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if "_autotune" not in vars(self):  # a copy that is being made
            raise AttributeError(name)
        return getattr(vars(self)["_autotune"][0], name)

    def __repr__(self) -> str:
        return repr(self._autotune[0])

    def __reduce__(self) -> str:
        """Sent by its name, as JAX's own is."""
        return str(vars(self)["__qualname__"])


def _within(leaf: Any) -> Any:
    """What ``vmap`` has wrapped."""
    while hasattr(leaf, "batch_dim"):
        leaf = leaf.val
    return leaf
