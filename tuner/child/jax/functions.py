"""What a script gives ``jax.jit``: each function is seen from outside, and what its traces hold is noted."""

from __future__ import annotations

import functools
import inspect
import sys
import weakref
from collections.abc import Callable, Collection, Iterable
from functools import partial
from types import FunctionType, MethodType
from typing import Any, Generic, Protocol, TypeVar

from ..call_sites import is_library
from ..stretches import Stretches, hash_of
from .rows import Outputs, Rows, data_in
from .traces import Flatten, Trace, Traces
from .types import Arguments, Aval, Call, Keywords, Leaves, shape_of

Made = TypeVar("Made")
MOST_GIVEN = 4096
"""So many arrays of a call are looked at, whether it was given them before."""
AGAIN = 2
"""So many stretches on the same values as the one before are a validation's."""
MEETINGS = 3
"""So often one of two functions goes on where the other has left off before they are known to be one team."""
_NOT_THE_SCRIPTS = frozenset({"keras", "tf_keras", "keras_core", "tensorflow", "jax", __name__.partition(".")[0]})
"""Packages that call JAX by themselves, and whose own adapters know when they train."""


class CallWatch(Protocol):
    """Has the calls of compiled functions done."""

    def calls(self, function: JittedFunction, execute: Call, args: Arguments, kwargs: Keywords) -> Any:
        """A call."""
        ...

    def stages(self, function: JittedFunction, execute: Call, args: Arguments, kwargs: Keywords) -> Any:
        """A call of something that only traces the function."""
        ...

    def jitted(self, fun: Call, make: Callable[..., Call]) -> Any:
        """Another one for the script, of such a function; ``make`` is JAX's part in it."""
        ...


class JittedFunction:
    """One function, and what was seen of it.

    ``traces``: what they hold; ``trains``: whether one of them is of a training step; ``last``: that of the newest
    call. ``calls``, ``others``: calls that were a part of training steps, and calls that weren't. ``carries``: whether
    it was given parameters that it gave itself. ``made``: what the script has of it. ``is_plain``: whether what it is
    given and gives is what the script wrote. ``is_part``: whether its calls without a gradient are a part of the
    training loop; ``seen_at``: the leading function's calls, and steps, before the last one of those. ``is_loop``:
    whether it is a loop of JAX's that the script runs outside of any function. ``tells``: whether each of its
    traces can be seen. ``is_scripts``: whether the script has compiled it; ``gives_numbers``: whether its results,
    where it takes no gradient, are numbers alone.
    ``team``: functions that train the same parameters by turns, such as one that tells of more every ten steps;
    ``is_alone``: it has left that for good.
    """

    def __init__(self, fun: Call, leaves: Leaves, flatten: Flatten, outputs: Outputs) -> None:
        self.name = str(getattr(fun, "__name__", type(fun).__name__))
        self.is_of_library = _is_of_library(fun)
        self.is_plain = isinstance(fun, (FunctionType, MethodType, partial))
        self.traces = Traces(flatten)
        self.last = Trace()
        self.trains = False
        self.calls = 0
        self.others = 0
        self.carries = False
        self.is_part = self.is_scripts = self.gives_numbers = False
        self.is_loop = False
        self.tells = False
        self.seen_at = 0, 0
        self._asked = Stretches()
        self._given: list[Callable[[], object]] = []
        self.made: Callable[[], object] = lambda: self
        self.met: weakref.WeakKeyDictionary[JittedFunction, int] = weakref.WeakKeyDictionary()
        self.is_alone = False
        self.team: weakref.WeakSet[JittedFunction] = weakref.WeakSet([self])
        self._code = code_of(fun)
        self.rows = Rows(leaves, outputs)

    def put(self, args: Arguments, kwargs: Keywords, trace: Trace) -> None:
        """It was traced by such a call."""
        self.traces.put(args, kwargs, trace)
        self.trains |= trace.trains

    @property
    def may_validate(self) -> bool:
        """Whether calls without a gradient may be the script's validation.

        Of a library's own function that the script has compiled only numbers show it, or the same data again and again:
        a policy acts by such a one, too.
        """
        return not self.is_of_library or (self.is_scripts and (self.gives_numbers or self.comes_again))

    @property
    def comes_again(self) -> bool:
        """Whether it is asked about the same values in the same order each time, as far as that is looked at."""
        return self._asked.repeats >= AGAIN and not self._asked.varies

    def is_asked(
        self, steps: int, given: Callable[[], Collection[Any]], training: Iterable[JittedFunction],
        trained: Collection[Aval],
    ) -> None:  # fmt: skip
        """It is called after so many steps, and takes no gradient: what it is ``given`` is data, but for what is as
        parameters of those that are ``training``, or as something else that is ``trained``.
        """

        def hashed() -> int | None:
            known = [trained, *(each.traces.parameters for each in training)]
            return hash_of(data_in(given(), known), every_value)

        if not self.others or self.gives_numbers or (self.is_of_library and self.is_scripts):
            _, is_new = self._asked.called(steps)
            self._asked.compare(hashed, is_new=is_new)

    def is_given_again(self, leaves: Iterable[Any]) -> bool:
        """Whether some array among these is one that its last call was given, as data to score on are."""
        held = [leaf for leaf in leaves if shape_of(leaf)][:MOST_GIVEN]
        before = {id(leaf) for made in self._given if (leaf := made()) is not None}
        self._given = [weakref.ref(leaf) for leaf in held]
        return any(id(leaf) in before for leaf in held)

    def joins(self, other: JittedFunction) -> None:
        """It goes on where the other one has left off: they are one team once they have often enough."""
        self.met[other] = other.met[self] = self.met.get(other, 0) + 1
        is_known = self.met[other] >= MEETINGS
        if is_known and other not in self.team and not (self.is_alone or other.is_alone):
            self.team.update(other.team)
            for each in self.team:
                each.team = self.team

    def leaves_team(self) -> None:
        """It is given what others gave, but goes on where it has left off itself."""
        if not self.is_alone:
            self.team.discard(self)
            self.team, self.is_alone = weakref.WeakSet([self]), True

    def follows(self, other: object, steps: int = 0) -> bool:
        """Whether it was made of the same code after the script has let go of the other one: in each epoch, say.

        Or is given what it gave itself, where the other one is a gradient that was taken on values once, before the
        loop, and has ended all of the ``steps`` so far: one.
        """
        if isinstance(other, str) and steps == 1:
            return self.carries
        is_alike = isinstance(other, JittedFunction) and self._code is not None and self._code is other._code
        return is_alike and isinstance(other, JittedFunction) and other.made() is None


class Jitted:
    """What ``jax.jit`` or ``jax.pmap`` made, for the script: calls go through the watch, all else is JAX's own.

    ``make`` is JAX's part in it, for another function.
    """

    def __init__(
        self, jitted: Call, fun: Call, function: JittedFunction, watch: CallWatch, make: Callable[..., Call]
    ) -> None:  # fmt: skip
        own = vars(self)
        for name in ("__module__", "__name__", "__qualname__", "__doc__", "__annotations__"):
            if hasattr(jitted, name):
                own[name] = getattr(jitted, name)
        own.update(__wrapped__=fun, _autotune=(jitted, function, watch, make))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        jitted, function, watch, _ = self._autotune
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
        jitted, function, watch, _ = self._autotune
        return watch.stages(function, getattr(jitted, name), args, kwargs)

    def __getattr__(self, name: str) -> Any:
        if "_autotune" not in vars(self):  # a copy that is being made
            raise AttributeError(name)
        return getattr(vars(self)["_autotune"][0], name)

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        return self if instance is None else MethodType(self, instance)

    def __repr__(self) -> str:
        return repr(self._autotune[0])

    def __copy__(self) -> Any:
        """As JAX's own: another one of the same function, whose calls are seen, too."""
        _, _, watch, make = self._autotune
        return watch.jitted(self.__wrapped__, make)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        """The same: JAX's own copies no function, and no object that is called."""
        return self.__copy__()

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Sent as JAX's own, or refused as that is: with nothing of the watch."""
        make = self._autotune[3]
        return make(self.__wrapped__).__reduce_ex__(protocol)


class Making:
    """JAX's part in what ``jax.jit`` makes of a function, with the script's ``options``, and further ones."""

    def __init__(self, original: Call, given: Arguments, options: Keywords) -> None:
        self.options = options
        self._original = original
        self._given = given

    def __call__(self, fun: Call, **further: Any) -> Call:
        made: Call = self._original(fun, *self._given, **{**self.options, **further})
        return made


def is_foreign(fun: object) -> bool:
    """Whether it belongs to a library that has an adapter of its own, or to JAX itself."""
    of: Any = inspect.unwrap(fun) if callable(fun) else fun
    while isinstance(of, partial):
        of = inspect.unwrap(of.func)
    of = getattr(of, "__func__", of)
    module = getattr(of, "__module__", None) or type(of).__module__
    return str(module).partition(".")[0] in _NOT_THE_SCRIPTS


class Kept(Generic[Made]):
    """What is made once for each function, which is known by equality, as JAX knows it. It lives no longer than that.

    Of what has no hash, or can't be held loosely, it is made anew each time.
    """

    def __init__(self, make: Callable[[Call], Made]) -> None:
        self._make = make
        self._of: weakref.WeakKeyDictionary[Call, Made] = weakref.WeakKeyDictionary()

    def of(self, fun: Call) -> Made:
        """What was made for it."""
        try:
            kept = self._of.get(fun)
            if kept is None:
                kept = self._of[fun] = self._make(fun)
        except (TypeError, ValueError):
            kept = self._make(fun)
        return kept


class Seen:
    """What is given to JAX in place of a function, to see its traces; ``function``: what they belong to.

    It holds the script's own loosely: the function lives as long as the script, or what it was made into, holds it, and
    nothing of this is found in it. ``loop``: what is known of a loop whose body it is, outside of any function.
    """

    def __init__(self, fun: Call, function: JittedFunction, traced: Callable[..., Any]) -> None:
        own = vars(self)
        own.update({name: getattr(fun, name) for name in functools.WRAPPER_ASSIGNMENTS if hasattr(fun, name)})
        self.function = function
        self.loop: JittedFunction | None = None
        self._traced = traced
        self._fun = _loosely(fun)

    @property
    def __wrapped__(self) -> Call:
        """The function: JAX looks there for names, parameters and lines."""
        fun = self._fun()
        if fun is None:
            raise AttributeError("the function is gone")
        return fun

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._traced(self.function, self.__wrapped__, args, kwargs)


def can_be_seen(fun: Call) -> bool:
    """Whether JAX takes another one in place of it without a difference: it goes by identity, and has a name.

    Where it can't be, its traces are seen less well.
    """
    by_identity: object = object.__hash__
    is_plain = type(fun).__hash__ is by_identity and hasattr(fun, "__name__") and not isinstance(fun, type)
    return is_plain and getattr(fun, "__dict__", None) is not None


def _loosely(fun: Call) -> Callable[[], Call | None]:
    try:
        return weakref.ref(fun)
    except TypeError:
        return lambda: fun


def every_value(leaf: Any, number: int) -> Any:
    """Each so-and-so-many-th value of an array of NumPy's, or of one that lies in this machine's memory by now."""
    if hasattr(leaf, "sharding"):
        is_here = {device.platform for device in leaf.sharding.device_set} == {"cpu"} and leaf.is_ready()
        if not is_here:
            raise ValueError("it would have to be copied, or waited for")
    return sys.modules["numpy"].asarray(leaf).reshape(-1)[::number]


def _is_of_library(fun: Call) -> bool:
    """Whether a library made it, and calls it by itself: what it computes is no validation of the script's."""
    code = code_of(fun)
    return code is None or is_library(code.co_filename)


def code_of(fun: Call) -> Any:
    """The code of a function, a method or a partial one; None of other callables."""
    of: Any = inspect.unwrap(fun)
    while isinstance(of, partial):
        of = inspect.unwrap(of.func)
    return getattr(getattr(of, "__func__", of), "__code__", None)
