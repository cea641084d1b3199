"""Calls of what ``jax.pmap`` made, and of functions over shards (``shard_map``): as those of compiled functions."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

from ..patches import patch
from ..session import Session
from .functions import JittedFunction, Kept, Seen, can_be_seen, is_foreign
from .steps import StepWatch
from .types import Arguments, Call, Keywords, shape_of

_MODULE, _BEHIND = "jax._src.shard_map", "_shard_map"
OTHER_AXES = (
    "the script maps over another dimension than the first one (in_axes of jax.pmap): the samples of its devices aren't"
    " counted"
)


class MapWatch:
    """Tells how many devices a call of ``jax.pmap``'s is mapped over, and which arguments each of them is given whole.

    ``seen``, ``is_top_level``: as ``LoopWatch`` takes them.
    """

    def __init__(self, steps: StepWatch, seen: Kept[Seen], is_top_level: Callable[[], bool]) -> None:
        self.steps = steps
        self._seen = seen
        self._is_top_level = is_top_level
        self._over_others = 0

    # jax.pmap

    def calls(self, function: JittedFunction, watched: Call, axes: Any, args: Arguments, kwargs: Keywords) -> Any:
        """A call, which ``watched`` does. ``axes``: ``in_axes``, as the script gives it."""
        if self.steps.stands_aside:
            return watched()
        own = list(axes) if isinstance(axes, (tuple, list)) else [axes] * len(args)
        function.rows.devices = self._devices(own, args, kwargs)
        function.rows.whole = frozenset(number for number, axis in enumerate(own) if axis is None)
        is_other = any(type(axis) is int and axis != 0 for axis in own)
        self._over_others += is_other
        try:
            return watched()
        finally:
            self._over_others -= is_other

    def trains(self, session: Session) -> None:
        """A gradient is about to be taken; it ends the trial where its samples can't be counted."""
        if self._over_others and session.measuring and not self.steps.trained:
            session.fail("unsupported", OTHER_AXES)
            session.stop(OTHER_AXES, complete=False)

    def _devices(self, axes: list[Any], args: Arguments, kwargs: Keywords) -> int:
        """The length of what is mapped: as many devices compute."""
        if self.steps.jax.local_device_count() == 1:
            return 1
        given = [(value, axis) for value, axis in zip(args, axes, strict=False) if axis is not None]
        plain = [value for value, axis in given if type(axis) is int] or [value for value, _ in given]
        shapes = filter(None, map(shape_of, self.steps.leaves((plain, kwargs))))
        return next((shape[0] for shape in shapes), 1)

    # shard_map

    def install(self, jax: Any) -> None:
        """Patches JAX: the function behind all names of this (``jax.experimental.shard_map``) where it has one."""
        behind = sys.modules.get(_MODULE)
        if hasattr(behind, _BEHIND):
            patch(behind, _BEHIND, self._shard_map)
        elif hasattr(jax, "shard_map"):
            patch(jax, "shard_map", self._shard_map)

    def _shard_map(self, original: Call) -> Call:
        def shard_map(*given: Any, **options: Any) -> Any:
            if not given or given[0] is None:  # a decorator with options
                made = original(*given, **options)
                return lambda fun: self._sharded(fun, made)
            return self._sharded(given[0], lambda fun: original(fun, *given[1:], **options))

        return shard_map

    def _sharded(self, fun: Any, make: Callable[[Call], Call]) -> Call:
        """What the script gets of ``make(fun)``: in a compiled function a part of it, else as one that is compiled."""
        steps = self.steps
        if not callable(fun) or is_foreign(fun) or not can_be_seen(fun) or not steps.session.here:
            return make(fun)
        tracing, seen = steps.tracing, self._seen.of(fun)
        made = make(seen)

        def sharded(*args: Any, **kwargs: Any) -> Any:
            is_outermost = tracing.may_be_outermost and self._is_top_level()
            if steps.stands_aside or tracing.differentiates or not (is_outermost or tracing.frames):
                return made(*args, **kwargs)
            if not is_outermost:
                return tracing.within(seen.function, made, args, kwargs)
            if seen.loop is None:
                seen.loop = steps.new_function(fun)
                seen.loop.is_loop = True  # it is traced with each call
            return steps.ran(seen.loop, lambda *a, **k: tracing.within(seen.function, made, a, k), args, kwargs)

        return functools.wraps(made)(sharded)
