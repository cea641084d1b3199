"""What is replaced in JAX and optax, so that calls, gradients and updates are seen, and in which mode."""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable
from types import ModuleType
from typing import Any

from ..call_sites import frames
from ..patches import patch
from ..session import Session
from .functions import Jitted, JittedFunction, is_foreign, traced_by
from .steps import StepWatch
from .types import Arguments, Call, Keywords, shape_of

ON_SEVERAL = "the script trains by jax.pmap, over several devices: a trial has one, and no step is seen there"
_OTHER_GRADIENTS = ("vjp", "linearize")


class Instrumentation:
    """Patches JAX for one trial, or one applied run."""

    def __init__(self, session: Session, steps: StepWatch, jax: ModuleType) -> None:
        self.session = session
        self.steps = steps
        self.jax: Any = jax
        self._is_top_level: Callable[[], bool] = sys.modules["jax._src.core"].trace_state_clean
        self._maps = False

    def install(self) -> None:
        """Right after JAX's import: whoever imports its functions by name gets these."""
        patch(self.jax, "jit", self._jit)
        patch(self.jax, "value_and_grad", functools.partial(self._gradient, gives_value=True))
        patch(self.jax, "grad", functools.partial(self._gradient, gives_value=False))
        if self.session.measuring:
            patch(self.jax, "pmap", self._pmap)
            patch(self.jax.lax, "scan", functools.partial(self._loop, count=self._of_scan))
            patch(self.jax.lax, "fori_loop", functools.partial(self._loop, count=_of_range))
            patch(self.jax.lax, "while_loop", functools.partial(self._loop, count=lambda *args, **kwargs: 0))
        if self.session.applied is not None:
            for name in _OTHER_GRADIENTS:
                patch(self.jax, name, self._noting)

    def install_optax(self, optax: ModuleType) -> None:
        """Flax' training states and optimizers update by it, too."""
        patch(optax, "apply_updates", self._apply_updates)

    @property
    def _watches(self) -> bool:
        """Whether what is called now may be a step's outermost call."""
        return self.steps.current is None and not self.steps.stands_aside

    # compiled functions

    def _jit(self, original: Call) -> Call:
        def jit(*given: Any, **options: Any) -> Any:
            if given and callable(given[0]):
                return self._jitted(given[0], lambda fun: original(fun, *given[1:], **options))
            made = original(*given, **options)
            if given or "fun" in options or not callable(made):
                return made
            return lambda fun: self._jitted(fun, made)  # a decorator with options

        return jit

    def _jitted(self, fun: Call, make: Call) -> Any:
        if is_foreign(fun) or not self.session.here:
            return make(fun)
        seen = traced_by(fun, self._seen)
        function = getattr(seen, "autotune_function", None) or self.steps.new_function(fun)
        made = Jitted(make(seen), fun, function, self)
        function.made = weakref.ref(made)
        return made

    def _seen(self, fun: Call) -> Call:
        """The function, which shows the result of its trace."""
        function = self.steps.new_function(fun)
        steps, with_paths = self.steps, self.jax.tree_util.tree_flatten_with_path

        @functools.wraps(fun)
        def seen(*args: Any, **kwargs: Any) -> Any:
            result = fun(*args, **kwargs)
            if steps.current is function and steps.session.measuring:
                function.loss.traced(with_paths(result)[0])
            return result

        vars(seen)["autotune_function"] = function
        return seen

    def calls(self, function: JittedFunction, execute: Call, args: Arguments, kwargs: Keywords) -> Any:
        """A call of a compiled function; within another one, or a trace, it is a part of that."""
        if not self._watches:
            return execute(*args, **kwargs)
        if not self._is_top_level():
            return self.steps.traces(function, execute, args, kwargs)
        return self.steps.ran(function, execute, args, kwargs)

    def traces(self, function: JittedFunction, execute: Call, args: Arguments, kwargs: Keywords) -> Any:
        """A call of something that only traces a compiled function."""
        if not self._watches:
            return execute(*args, **kwargs)
        return self.steps.traces(function, execute, args, kwargs)

    # gradients

    def _gradient(self, original: Call, *, gives_value: bool) -> Call:
        def gradient(fun: Call, argnums: Any = 0, *given: Any, **options: Any) -> Call:
            made: Call = original(fun, argnums, *given, **options)
            if is_foreign(fun) or not self.session.here:
                return made
            has_aux = bool(options.get("has_aux", given[0] if given else False))

            def take(*args: Any, **kwargs: Any) -> Any:
                if self.steps.stands_aside or self.steps.differentiates:
                    return made(*args, **kwargs)
                return self._take(made, argnums, args, kwargs, (gives_value, has_aux))

            return functools.wraps(made)(take)

        return gradient

    def _take(self, made: Call, argnums: Any, args: Arguments, kwargs: Keywords, gives: tuple[bool, bool]) -> Any:
        """A gradient that isn't part of another one."""
        steps = self.steps
        if self.session.applied is not None:
            self.session.applied.took_gradients("jax.grad")
        numbers = {number % len(args) for number in _numbers(argnums)} if args else set()
        differentiated = [args[number] for number in sorted(numbers) if number < len(args)]
        is_traced = steps.current is not None
        if not is_traced and (not self._is_top_level() or _within_keras()):
            self._traced_elsewhere()
            return made(*args, **kwargs)
        steps.differentiates += 1
        try:
            if is_traced:
                steps.traced_gradient(differentiated)
                result = made(*args, **kwargs)
            else:
                others = tuple(value for number, value in enumerate(args) if number not in numbers)
                result = steps.eager_gradient(lambda: made(*args, **kwargs), others, kwargs, differentiated)
        finally:
            steps.differentiates -= 1
        if gives[0] and self.session.measuring:
            steps.value_seen(result[0][0] if gives[1] else result[0])
        return result

    def _noting(self, original: Call) -> Call:
        """In an applied run: an update by hand may follow."""

        def take(*args: Any, **kwargs: Any) -> Any:
            if self.session.applied is not None and self.session.may_be_of("jax"):
                self.session.applied.took_gradients(f"jax.{original.__name__}")
            return original(*args, **kwargs)

        return take

    # updates

    def _apply_updates(self, original: Call) -> Call:
        def apply_updates(*args: Any, **kwargs: Any) -> Any:
            steps = self.steps
            if steps.stands_aside or (steps.current is None and not self._is_top_level()):
                return original(*args, **kwargs)
            return steps.update(lambda: original(*args, **kwargs))

        return apply_updates

    # what runs over and over, and what runs in several places

    def _loop(self, original: Call, *, count: Call) -> Call:
        def loop(*args: Any, **kwargs: Any) -> Any:
            steps = self.steps
            if steps.current is None or steps.stands_aside or steps.differentiates:
                return original(*args, **kwargs)
            steps.loops.append(count(*args, **kwargs))
            try:
                return original(*args, **kwargs)
            finally:
                steps.loops.pop()

        return loop

    def _of_scan(self, f: Any = None, init: Any = None, xs: Any = None, length: Any = None, *_: Any, **__: Any) -> int:
        """How often the body of a scan runs; 0 where nobody knows."""
        if type(length) is int:
            return length
        shapes = [shape_of(leaf) for leaf in self.steps.leaves(xs)]
        return shapes[0][0] if shapes and shapes[0] else 0

    def _pmap(self, original: Call) -> Call:
        def pmap(*args: Any, **kwargs: Any) -> Any:
            self._maps = True
            return original(*args, **kwargs)

        return pmap

    def _traced_elsewhere(self) -> None:
        """A gradient is taken in the trace of something that nobody watches. Ends a trial whose script uses pmap."""
        if self._maps and self.session.measuring and not self.steps.trained:
            self.session.fail("unsupported", ON_SEVERAL)
            self.session.stop(ON_SEVERAL, complete=False)


def _within_keras() -> bool:
    """Whether Keras trains, by a step of the script's own that isn't compiled: its adapter counts that."""
    return "keras" in sys.modules and any("/keras/src/trainers/" in name for name, _ in frames())


def _numbers(argnums: Any) -> tuple[int, ...]:
    return tuple(int(number) for number in argnums) if isinstance(argnums, (tuple, list)) else (int(argnums),)


def _of_range(lower: Any = None, upper: Any = None, *_: Any, **__: Any) -> int:
    """How often the body of a ``fori_loop`` runs; 0 where nobody knows."""
    return max(0, upper - lower) if type(lower) is int and type(upper) is int else 0
