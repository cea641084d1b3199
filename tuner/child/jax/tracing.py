"""Calls under way in which JAX may trace: what is seen belongs to the innermost one, and then to those around it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..call_sites import line_stack
from ..records import LongCall
from ..session import Session
from ..watch import Pause
from .functions import JittedFunction
from .losses import place_of
from .traces import Frame, Trace
from .types import Arguments, Call, Keywords, leaves_by


class Tracing:
    """``frames``: those calls, the outermost one first. ``gradients``: how many were taken in traces.

    ``differentiates``: whether the innermost one, or without any the script itself, is within a gradient: what is seen
    there is a part of that. ``ahead``: the name of a function that trains, and was traced ahead of its calls.
    """

    def __init__(self, session: Session, jax: Any) -> None:
        self.session = session
        self.frames: list[Frame] = []
        self.differentiates = 0
        self.gradients = 0
        self.ahead = ""
        self.count: Callable[[], int] = lambda: 0
        """How many traces JAX has made by now, of anything; some functions can't be seen to be traced otherwise."""
        self._jax = jax
        self._leaves = leaves_by(jax.tree_util.tree_leaves)
        self._pausing = False

    @property
    def may_be_outermost(self) -> bool:
        """Whether what is called now isn't a part of anything that is watched."""
        return not (self.frames or self.differentiates)

    def within(self, function: JittedFunction, execute: Call, args: Arguments, kwargs: Keywords, **loop: Any) -> Any:
        """A call of a function within another one, or of what only traces it. ``loop``: as ``Frame`` takes it."""
        return self.watched(function, execute, args, kwargs, None, **loop)[0]

    def watched(
        self, function: JittedFunction, execute: Call, args: Arguments, kwargs: Keywords, expected: Trace | None,
        **loop: Any,
    ) -> tuple[Any, Trace]:  # fmt: skip
        """What a call gives, and what its trace holds: the one that it brought about, or that JAX has kept."""
        frame = Frame(function, self._leaves, args, kwargs, **loop)
        frame.outer_differentiates, self.differentiates = self.differentiates, 0
        self.frames.append(frame)
        traces = self.count()
        try:
            result = execute(*args, **kwargs)
        finally:
            self.frames.pop()
            self.differentiates = frame.outer_differentiates
            frame.is_left()
            if not self.frames:
                self._tracing_ends()
        may_be_traced = not function.tells and self.count() != traces and not function.traces.knows(args, kwargs)
        if frame.is_traced or frame.trace.holds_any or may_be_traced:
            function.put(args, kwargs, frame.trace)
            trace = frame.trace
            if trace.trains and not (frame.is_run or self.frames):
                self.ahead = function.name
        else:
            trace = expected or function.traces.kept(args, kwargs)
        if frame.is_run and self.frames and not self.differentiates:
            self.frames[-1].absorb(frame, trace, result)
        return result, trace

    def traced(self, function: JittedFunction, fun: Call, args: Arguments, kwargs: Keywords) -> Any:
        """JAX traces the function."""
        frame = self.frames[-1] if self.frames else None
        if frame is None or frame.function is not function:
            return self.within(function, lambda *a, **k: self.traced(function, fun, a, k), args, kwargs)
        frame.begins(args, kwargs)
        try:
            result = fun(*args, **kwargs)
            frame.ends(self._jax.tree_util.tree_flatten_with_path(result)[0], place_of)
        finally:
            frame.is_left()
        return result

    def gradient(self, differentiated: Any, others: Any, around: Any) -> None:
        """A gradient is taken in the trace that runs now; of what isn't part of another one. As ``Frame`` has these."""
        self.gradients += 1
        self.frames[-1].differentiated(*map(self._leaves, (differentiated, others, around)))
        if not self._pausing:
            self._pausing = True
            self.session.pause(Pause.COMPILATION, begins=True)

    def compiled(self) -> None:
        """XLA is through with a graph: where that is the outermost call's own, the call runs from here on."""
        frames, session = self.frames, self.session
        is_loop = len(frames) == 2 and getattr(frames[0].function, "is_loop", False)
        if not self._pausing or not frames[-1].is_whole or not (len(frames) == 1 or is_loop):
            return
        self._tracing_ends()
        steps = frames[-1].steps_of(frames[-1].trace)
        if steps > 1 and session.measuring and session.here and not session.clock.total_steps:
            session.recorder.emit(LongCall(str(getattr(frames[-1].function, "name", "")), steps))

    def _tracing_ends(self) -> None:
        if self._pausing:
            self._pausing = False
            self.session.pause(Pause.COMPILATION, begins=False)

    def value_seen(self, value: Any) -> None:
        """The value that was differentiated in it."""
        self.frames[-1].value(value, line_stack())

    def update(self) -> None:
        """An update is applied in it."""
        if not self.differentiates:
            self.frames[-1].updated()

    def multi_step(self, every: int) -> None:
        """The update that follows takes so many batches; 0: their number changes."""
        if not self.differentiates:
            self.frames[-1].trace.parts = every
