"""What a script gives ``jax.jit``: each function is seen from outside, and what its traces hold is noted."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from types import MethodType
from typing import Any, Protocol

from ..call_sites import is_library
from .losses import LossPlace
from .rows import Leaves, Outputs, Rows
from .types import Arguments, Aval, Call, Keywords

_TRACED = "__autotune_traced__"
_NOT_THE_SCRIPTS = frozenset({"keras", "tf_keras", "keras_core", "tensorflow", "jax", __name__.partition(".")[0]})
"""Packages that call JAX by themselves, and whose own adapters know when they train."""


class CallWatch(Protocol):
    """Has the calls of compiled functions done."""

    def calls(self, function: JittedFunction, execute: Call, args: Arguments, kwargs: Keywords) -> Any:
        """A call."""
        ...

    def traces(self, function: JittedFunction, execute: Call, args: Arguments, kwargs: Keywords) -> Any:
        """A call of something that only traces the function."""
        ...


class JittedFunction:
    """One function, and what was seen of it.

    ``gradients``, ``updates``: in all its traces. ``calls``, ``traces``: how often it was called, and was traced
    with a gradient. ``parameters``: shapes of what is differentiated. ``is_in_loop``: whether a gradient is taken in a
    loop of JAX's (``scan``). ``steps``: those that a call takes; 0 where nobody knows how often such a loop runs.
    ``others``: calls that neither took a gradient nor applied an update. ``made``: what the script has of it.
    """

    def __init__(self, fun: Call, leaves: Leaves, outputs: Outputs) -> None:
        self.name = str(getattr(fun, "__name__", type(fun).__name__))
        self.is_of_library = _is_of_library(fun)
        self.gradients = 0
        self.updates = 0
        self.calls = 0
        self.traces = 0
        self.steps = 1
        self.others = 0
        self.is_in_loop = False
        self.made: Callable[[], object] = lambda: self
        self._code = _code_of(fun)
        self.parameters: set[Aval] = set()
        self.loss = LossPlace()
        self.rows = Rows(leaves, outputs)

    @property
    def trains(self) -> bool:
        """Whether its calls are a part of training steps."""
        return self.gradients > 0 or self.updates > 0

    def follows(self, other: object) -> bool:
        """Whether it was made of the same code after the script has let go of the other one: in each epoch, say."""
        is_alike = isinstance(other, JittedFunction) and self._code is not None and self._code is other._code
        return is_alike and isinstance(other, JittedFunction) and other.made() is None


class Jitted:
    """What ``jax.jit`` made, for the script: calls go through the watch, all else is JAX's own."""

    def __init__(self, jitted: Call, fun: Call, function: JittedFunction, watch: CallWatch) -> None:
        own = vars(self)
        for name in ("__module__", "__name__", "__qualname__", "__doc__", "__annotations__"):
            if hasattr(jitted, name):
                own[name] = getattr(jitted, name)
        own.update(__wrapped__=fun, _autotune=(jitted, function, watch))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        jitted, function, watch = self._autotune
        return watch.calls(function, jitted, args, kwargs)

    def lower(self, *args: Any, **kwargs: Any) -> Any:
        """As JAX's own: its trace is kept, and a later call has none."""
        return self._stage("lower", args, kwargs)

    def trace(self, *args: Any, **kwargs: Any) -> Any:
        """The same."""
        return self._stage("trace", args, kwargs)

    def eval_shape(self, *args: Any, **kwargs: Any) -> Any:
        """The same."""
        return self._stage("eval_shape", args, kwargs)

    def _stage(self, name: str, args: Arguments, kwargs: Keywords) -> Any:
        jitted, function, watch = self._autotune
        return watch.traces(function, getattr(jitted, name), args, kwargs)

    def __getattr__(self, name: str) -> Any:
        if "_autotune" not in vars(self):  # a copy that is being made
            raise AttributeError(name)
        return getattr(vars(self)["_autotune"][0], name)

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        return self if instance is None else MethodType(self, instance)

    def __repr__(self) -> str:
        return repr(self._autotune[0])

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Copied and sent as JAX's own, or refused as that is."""
        return self._autotune[0].__reduce_ex__(protocol)


def is_foreign(fun: object) -> bool:
    """Whether it belongs to a library that has an adapter of its own, or to JAX itself."""
    of: Any = inspect.unwrap(fun) if callable(fun) else fun
    while isinstance(of, partial):
        of = inspect.unwrap(of.func)
    of = getattr(of, "__func__", of)
    module = getattr(of, "__module__", None) or type(of).__module__
    return str(module).partition(".")[0] in _NOT_THE_SCRIPTS


def traced_by(fun: Call, make: Callable[[Call], Call]) -> Call:
    """What is given to JAX in place of a function, to see its traces: made once for each, since JAX goes by identity.

    The function itself where it can't be kept with it; then its traces are seen less well.
    """
    by_identity: object = object.__hash__
    if type(fun).__hash__ is not by_identity or not hasattr(fun, "__name__") or isinstance(fun, type):
        return fun
    own: dict[str, Any] | None = getattr(fun, "__dict__", None)
    if own is None:
        return fun
    kept: Any = own.get(_TRACED)
    if kept is None or kept.__wrapped__ is not fun:
        kept = own[_TRACED] = make(fun)
    return kept  # type: ignore[no-any-return]  # what was made


def _is_of_library(fun: Call) -> bool:
    """Whether a library made it, and calls it by itself: what it computes is no validation of the script's."""
    code = _code_of(fun)
    return code is None or is_library(code.co_filename)


def _code_of(fun: Call) -> Any:
    """The code of a function, a method or a partial one; None of other callables."""
    of: Any = inspect.unwrap(fun)
    while isinstance(of, partial):
        of = inspect.unwrap(of.func)
    return getattr(getattr(of, "__func__", of), "__code__", None)
