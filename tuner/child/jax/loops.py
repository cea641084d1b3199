"""Loops and branches of JAX's (``scan``, ``fori_loop``, ``while_loop``, ``cond``) around gradients and updates."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from ..patches import patch
from .functions import Kept, Seen
from .steps import StepWatch
from .types import Call, shape_of


class LoopWatch:
    """Has the bodies of loops seen as functions of their own. ``seen`` makes one of them tell when it is traced.

    JAX keeps their traces, too: a body may be scanned again by another function, over another length.
    """

    def __init__(self, steps: StepWatch, seen: Kept[Seen], is_top_level: Callable[[], bool]) -> None:
        self.steps = steps
        self._seen = seen
        self._is_top_level = is_top_level

    def install(self, lax: Any) -> None:
        """Patches ``jax.lax``."""
        patch(lax, "scan", self._scan)
        patch(lax, "fori_loop", self._fori_loop)
        patch(lax, "while_loop", self._while_loop)
        patch(lax, "cond", self._cond)
        patch(lax, "switch", self._switch)

    def _scan(self, original: Call) -> Call:
        def scan(f: Any, init: Any, xs: Any = None, length: Any = None, *given: Any, **options: Any) -> Any:
            def run(body: Call) -> Any:
                return original(body, init, xs, length, *given, **options)

            return self._run(f, run, (init, xs), self._length_of(xs, length), 0)

        return scan

    def _fori_loop(self, original: Call) -> Call:
        def fori_loop(lower: Any, upper: Any, body_fun: Any, init_val: Any, **options: Any) -> Any:
            def run(body: Call) -> Any:
                return original(lower, upper, body, init_val, **options)

            repeats = max(0, int(upper) - int(lower)) if _is_number(lower) and _is_number(upper) else 0
            return self._run(body_fun, run, (lower, init_val), repeats, 1)

        return fori_loop

    def _while_loop(self, original: Call) -> Call:
        def while_loop(cond_fun: Any, body_fun: Any, init_val: Any) -> Any:
            return self._run(body_fun, lambda body: original(cond_fun, body, init_val), (init_val,), 0, 0)

        return while_loop

    def _run(self, fun: Any, run: Callable[[Call], Any], args: tuple[Any, ...], repeats: int, carry: int) -> Any:
        """A loop whose body is ``fun``, which ``run`` runs."""
        steps = self.steps
        tracing = steps.tracing
        is_outermost = tracing.may_be_outermost and self._is_top_level()
        is_within = tracing.frames and not tracing.differentiates
        if not callable(fun) or steps.stands_aside or not (is_outermost or is_within):
            return run(fun)
        seen = self._seen.of(fun)

        def loop(*_: Any, **__: Any) -> Any:
            return tracing.within(seen.function, lambda *a, **k: run(seen), args, {}, repeats=repeats, carry=carry)

        if not is_outermost:
            return loop()
        if seen.loop is None:
            seen.loop = steps.new_function(fun)
            seen.loop.is_loop = True
        return steps.ran(seen.loop, loop, args, {})

    def _length_of(self, xs: Any, length: Any) -> int:
        """How often the body of a scan runs; 0 where nobody knows."""
        if _is_number(length) or (isinstance(length, float) and length.is_integer()):  # as JAX takes it
            return int(length)
        shapes = [shape_of(leaf) for leaf in self.steps.leaves(xs)]
        return shapes[0][0] if shapes and shapes[0] else 0

    # branches

    def _cond(self, original: Call) -> Call:
        def cond(*given: Any, **options: Any) -> Any:
            operands = given[3:]
            branches = [self._branch(each, operands) for each in given[1:3]]
            options = {
                name: self._branch(each, operands) if name.endswith("_fun") else each for name, each in options.items()
            }  # fmt: skip
            return original(*given[:1], *branches, *operands, **options)

        return cond

    def _switch(self, original: Call) -> Call:
        def switch(index: Any, branches: Any, *operands: Any, **options: Any) -> Any:
            if isinstance(branches, (tuple, list)):
                branches = [self._branch(each, operands) for each in branches]
            return original(index, branches, *operands, **options)

        return switch

    def _branch(self, fun: Any, operands: tuple[Any, ...]) -> Any:
        """A branch, which is always traced: JAX keeps no trace of a function that it can't meet again."""
        steps = self.steps
        tracing = steps.tracing
        if not tracing.frames or tracing.differentiates or steps.stands_aside or not callable(fun):
            return fun
        function = steps.new_function(fun)

        @functools.wraps(fun)
        def branch(*given: Any, **named: Any) -> Any:
            def trace(*_: Any) -> Any:
                return tracing.traced(function, fun, given, named)

            return tracing.within(function, trace, operands, {}, is_branch=True)

        return branch


def _is_number(value: Any) -> bool:
    """Whether it is a whole number that is known while JAX traces, of Python's or NumPy's."""
    return type(value) is int or (
        type(value).__module__ == "numpy" and hasattr(value, "__index__") and shape_of(value) == ()
    )
