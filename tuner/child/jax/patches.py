"""What is replaced in JAX and optax, so that calls, gradients and updates are seen, and in which mode."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import weakref
from collections.abc import Callable
from types import FunctionType, ModuleType
from typing import Any

from ..call_sites import frames, is_library
from ..patches import patch
from ..session import Session
from .ahead import PutWatch
from .checkpointing import CheckpointWatch
from .donation import DonationWatch
from .functions import CallWatch, Jitted, JittedFunction, Kept, Making, Seen, can_be_seen, is_foreign
from .loops import LoopWatch
from .maps import MapWatch
from .rows import AROUND
from .several import SeveralWatch
from .steps import StepWatch
from .types import Arguments, Call, Keywords, statics_of

_OTHER_GRADIENTS = ("vjp", "linearize")
_EVERY = "_autotune_every"
LIBRARIES = frozenset({"jax", "jaxlib", "optax", "flax", "haiku", "equinox"})
"""What is made by them, or by classes of theirs, holds a model or an optimizer."""
_COMPILES_FOR_IT = os.path.join("-packages", "equinox", "")
"""What this library compiles for the one who calls it is that one's."""
MOST_PARTS = 64
"""Of a structure around a function: a longer one is no batch, and takes time to look through."""


class Instrumentation:
    """Patches JAX for one trial, or one applied run."""

    def __init__(
        self, session: Session, steps: StepWatch, jax: ModuleType, puts: PutWatch,
        *, knobs: tuple[DonationWatch, SeveralWatch, CheckpointWatch],
    ) -> None:  # fmt: skip
        self.session = session
        self.steps = steps
        self._donation, self._several, self._checkpointing = knobs
        self._puts = puts
        self.jax: Any = jax
        self._is_top_level: Callable[[], bool] = sys.modules["jax._src.core"].trace_state_clean
        self._seen = Kept(self._see)
        self._maps = MapWatch(steps, self._seen, self._is_top_level)
        self._loops = LoopWatch(steps, self._seen, self._is_top_level)
        self._functions = Kept(steps.new_function)
        self._instruments = session.clock.instruments

    def install(self) -> None:
        """Right after JAX's import: whoever imports its functions by name gets these."""
        patch(self.jax, "jit", self._jit)
        patch(self.jax, "value_and_grad", functools.partial(self._gradient, gives_value=True))
        patch(self.jax, "grad", functools.partial(self._gradient, gives_value=False))
        patch(self.jax, "pmap", self._pmap)
        self._maps.install(self.jax)
        if self.session.measuring:
            self._loops.install(self.jax.lax)
        if self.session.applied is not None:
            for name in _OTHER_GRADIENTS:
                patch(self.jax, name, self._noting)

    def install_optax(self, optax: ModuleType) -> None:
        """Flax' training states and optimizers update by it, too."""
        library: Any = optax
        patch(library, "apply_updates", self._apply_updates)
        patch(library.MultiSteps, "__init__", _keeping_schedule)
        patch(library.MultiSteps, "update", self._multi_step)

    # compiled functions

    def _jit(self, original: Call) -> Call:
        def jit(*given: Any, **options: Any) -> Any:
            make = Making(original, given[1:], options)
            if given and callable(given[0]):
                return self.jitted(given[0], make)
            made = original(*given, **options)
            if given or "fun" in options or not callable(made):
                return made
            return lambda fun: self.jitted(fun, make)  # a decorator with options

        return jit

    def jitted(self, fun: Call, make: Callable[..., Call], mapped: _Mapped | None = None) -> Any:
        """What the script gets of ``make(fun)``, which takes further options of JAX's; ``mapped``: by ``jax.pmap``."""
        if is_foreign(fun) or not self.session.here:
            return make(fun)
        seen = self._seen.of(fun) if can_be_seen(fun) else None
        function = self._functions.of(fun) if seen is None else seen.function
        function.is_scripts = _is_the_scripts_call()
        inner = fun if seen is None else seen
        jitted = make(inner)
        function.traces.statics.update(statics_of(jitted))
        options = make.options if isinstance(make, Making) else {}
        watch: CallWatch = mapped or self._several.watch_of(self, options)
        if mapped is None:
            watch = self._donation.watch_of(watch, functools.partial(make, inner), options)
        made = Jitted(jitted, fun, function, watch, make)
        function.made = weakref.ref(made)
        return made

    def _see(self, fun: Call) -> Seen:
        """The function, which tells when it is traced."""
        function = self.steps.new_function(fun)
        function.tells = True
        return Seen(fun, function, self._traced)

    def _traced(self, function: JittedFunction, fun: Call, args: Arguments, kwargs: Keywords) -> Any:
        """JAX traces it."""
        if self.steps.stands_aside:
            return fun(*args, **kwargs)
        return self.steps.tracing.traced(function, fun, args, kwargs)

    def calls(self, function: JittedFunction, execute: Call, args: Arguments, kwargs: Keywords) -> Any:
        """A call of a compiled function; within another one, or a trace, it is a part of that."""
        steps = self.steps
        if steps.stands_aside:
            return execute(*args, **kwargs)
        if steps.tracing.may_be_outermost and self._is_top_level():
            self._puts.calls(function, args, kwargs)
            if self._instruments.off and function.tells and self._may_go_unwatched(function):
                return self._unwatched(function, execute, args, kwargs)
            return steps.ran(function, execute, args, kwargs)
        return steps.tracing.within(function, execute, args, kwargs)

    def _may_go_unwatched(self, function: JittedFunction) -> bool:
        """Not another one that trains, whose loop may have begun, nor one that may validate."""
        return function is self.steps.leader.key or (function.is_part and not function.trains)

    def _unwatched(self, function: JittedFunction, execute: Call, args: Arguments, kwargs: Keywords) -> Any:
        """A call while the instruments are off. JAX's traces are noted all the same."""
        result = execute(*args, **kwargs)
        if function is self.steps.leader.key:
            self.steps.result = result  # which the clock may wait for
            try:
                self._instruments.passed(function.last.steps or 1)
            finally:
                self.steps.result = None
        return result

    def stages(self, function: JittedFunction, execute: Call, args: Arguments, kwargs: Keywords) -> Any:
        """A call of something that only traces a compiled function."""
        steps = self.steps
        if steps.stands_aside:
            return execute(*args, **kwargs)
        return steps.tracing.within(function, execute, args, kwargs, is_run=False)

    # gradients

    def _gradient(self, original: Call, *, gives_value: bool) -> Call:
        def gradient(fun: Call, argnums: Any = 0, *given: Any, **options: Any) -> Call:
            made: Call = original(fun, argnums, *given, **options)
            if is_foreign(fun) or not self.session.here:
                return made
            has_aux = bool(options.get("has_aux", given[0] if given else False))
            again = self._checkpointing.gradient(
                fun, lambda of: original(of, argnums, *given, **options), argnums, has_aux=has_aux
            )

            def take(*args: Any, **kwargs: Any) -> Any:
                if self.steps.stands_aside or self.steps.tracing.differentiates:
                    return made(*args, **kwargs)
                return self._take((made, fun, again or made), argnums, args, kwargs, (gives_value, has_aux))

            return functools.wraps(made)(take)

        return gradient

    def _take(
        self, of: tuple[Call, Call, Call], argnums: Any, args: Arguments, kwargs: Keywords, gives: tuple[bool, bool]
    ) -> Any:  # fmt: skip
        """A gradient that isn't part of another one. ``of``: what takes it, of which function, what does in a trace."""
        made, fun, in_trace = of
        steps = self.steps
        if self.session.applied is not None:
            self.session.applied.took_gradients("jax.grad")
        numbers = {number % len(args) for number in _numbers(argnums)} if args else set()
        differentiated = [args[number] for number in sorted(numbers) if number < len(args)]
        self._maps.trains(self.session)
        is_traced = bool(steps.tracing.frames)
        if not is_traced and (not self._is_top_level() or _within_keras()):
            return made(*args, **kwargs)
        others = tuple(value for number, value in enumerate(args) if number not in numbers)
        if is_traced:
            steps.tracing.gradient(differentiated, (others, kwargs), _closed_over(fun))
        steps.tracing.differentiates += 1
        try:
            if is_traced:
                result = in_trace(*args, **kwargs)
            else:
                around = _closed_over(fun)
                result = steps.eager_gradient(lambda: made(*args, **kwargs), others, kwargs, differentiated, around)
        finally:
            steps.tracing.differentiates -= 1
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
            if steps.stands_aside or (not steps.tracing.frames and not self._is_top_level()):
                return original(*args, **kwargs)
            return steps.update(lambda: original(*args, **kwargs), args[:1] or kwargs.get("params"))

        return apply_updates

    def _multi_step(self, original: Call) -> Call:
        """``optax.MultiSteps``: of several updates all but the last one change nothing."""

        def update(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            if not self.steps.stands_aside:
                self.steps.multi_step(vars(optimizer).get(_EVERY, 0))
            return original(optimizer, *args, **kwargs)

        return update

    # what may run in several places

    def _pmap(self, original: Call) -> Call:
        def pmap(*given: Any, **options: Any) -> Any:
            if not given or not callable(given[0]):
                return original(*given, **options)
            axes = options.get("in_axes", 0)

            def make(fun: Call) -> Call:
                mapped: Call = original(fun, *given[1:], **options)
                return mapped

            def calls(function: JittedFunction, execute: Call, args: Arguments, kwargs: Keywords) -> Any:
                def watched() -> Any:
                    return self.calls(function, execute, args, kwargs)

                return self._maps.calls(function, watched, axes, args, kwargs)

            return self.jitted(given[0], make, _Mapped(self, calls))

        return pmap


class _Mapped:
    """What ``jax.pmap`` made, and copies of it, as a watch of its calls sees them."""

    def __init__(self, watch: Instrumentation, calls: Callable[..., Any]) -> None:
        self.calls = calls
        self.stages = watch.stages
        self._watch = watch

    def jitted(self, fun: Call, make: Callable[[Call], Call]) -> Any:
        """A copy."""
        return self._watch.jitted(fun, make, self)


def _keeping_schedule(original: Call) -> Call:
    """``MultiSteps`` made for an update of so many batches; by a function their number changes."""

    def init(optimizer: Any, opt: Any, every_k_schedule: Any, *args: Any, **kwargs: Any) -> None:
        original(optimizer, opt, every_k_schedule, *args, **kwargs)
        vars(optimizer)[_EVERY] = every_k_schedule if isinstance(every_k_schedule, int) else 0

    return init


def _closed_over(fun: Call) -> dict[str, Any]:
    """Arrays that a function has of the one around it, or is bound to (``partial``), by names that no argument has: its
    batch may be among them.

    What is in an object of the script's isn't: that is state. A whole number may choose parts of the data, and so may
    whatever nobody knows (a generator of random numbers, an iterator, ``self``): it stands there as one.
    """
    found: dict[str, Any] = {}
    held: dict[str, Any] = {}
    if isinstance(fun, functools.partial):
        found = _closed_over(fun.func)
        held = {**{f"{number} =": value for number, value in enumerate(fun.args)}, **fun.keywords}
    names = getattr(getattr(fun, "__code__", None), "co_freevars", ())
    for name, cell in zip(names, getattr(fun, "__closure__", None) or (), strict=False):
        with contextlib.suppress(ValueError):  # not made yet
            held[name] = cell.cell_contents
    for name, value in held.items():
        is_small = type(value) in (dict, tuple, list) and len(value) <= MOST_PARTS
        if is_small or hasattr(value, "dtype") or type(value) is int:
            found[name + AROUND] = value
        elif not _chooses_nothing(value):
            found[name + AROUND] = 0
    return found


def _chooses_nothing(value: Any) -> bool:
    """Whether no parts of data are chosen by it: a setting, a module, a function by itself, a model of a library."""
    if value is None or isinstance(value, (float, bool, str, bytes, type, ModuleType)):
        return True
    if isinstance(value, FunctionType):
        return not value.__closure__
    if getattr(value, "__dict__", None) == {} and not hasattr(type(value), "__slots__"):
        return True  # an object of the script's that holds nothing
    return any(base.__module__.partition(".")[0] in LIBRARIES for base in type(value).__mro__)


def _is_the_scripts_call() -> bool:
    """Whether the script compiles, by itself or by a library that compiles for it."""
    caller = next((name for name, _ in frames() if _COMPILES_FOR_IT not in name), "")
    return not is_library(caller)


def _within_keras() -> bool:
    """Whether Keras trains, by a step of the script's own that isn't compiled: its adapter counts that."""
    return "keras" in sys.modules and any("/keras/src/trainers/" in name for name, _ in frames())


def _numbers(argnums: Any) -> tuple[int, ...]:
    return tuple(int(number) for number in argnums) if isinstance(argnums, (tuple, list)) else (int(argnums),)
