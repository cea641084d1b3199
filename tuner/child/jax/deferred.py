"""Arrays that stand for results of calls which haven't run yet: whoever reads one has them run first.

A ``Deferred`` says that it is one of JAX's arrays. It knows its shape and element type by itself, and for all else asks
the array that it stands for. JAX takes it where it takes an array: in compiled functions, gradients and single
operations. What isn't so is ``type(x)``, and a ``memoryview`` of it before Python 3.12.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any, Protocol

from ..patches import patch
from .types import Call

_OWN = frozenset({
    "__class__", "__class_getitem__", "__del__", "__delattr__", "__dir__", "__getattr__", "__getattribute__",
    "__getstate__", "__init__", "__init_subclass__", "__new__", "__setattr__", "__sizeof__", "__subclasshook__",
    "__doc__", "__hash__", "__module__", "__slots__", "__weakref__", "__dict__", "__annotations__", "_value", "aval",
})  # fmt: skip
"""What isn't the array's."""


class Source(Protocol):
    """A call whose results stand-ins stand for."""

    def value(self, number: int) -> Any:
        """Its result of that number: an array of JAX's. Has it computed, where it isn't yet."""
        ...

    def has(self, number: int) -> bool:
        """Whether that costs nothing any more."""
        ...

    def goes_on_from(self) -> Sequence[Any]:
        """Some of what its results are computed from, as long as they wait: arrays of calls that ran before."""
        ...


class Deferred:
    """``aval``: JAX's own word for shape and element type; the ``number``-th result of ``source``.

    ``install`` makes a class of it that is one of JAX's, since some ask that by ``issubclass``, and that has what JAX's
    arrays have: Python looks special methods up in the class alone.
    """

    __slots__: tuple[str, ...] = ()
    __array_priority__ = 100
    aval: Any
    _value: Any
    _source: tuple[Source, int] | None

    def __init__(self, aval: Any, source: Source, number: int) -> None:
        self.aval, self._value = aval, None
        self._source = source, number  # type: ignore[misc]  # the class that is made has it

    @property  # type: ignore[misc]  # what ``isinstance`` asks
    def __class__(self) -> Any:
        return sys.modules["jax._src.array"].ArrayImpl

    def _computed(self) -> Any:
        """The array."""
        source = self._source
        if source is not None:
            self._value = source[0].value(source[1])
            self._source = None  # type: ignore[misc]  # the same
        return self._value

    def __getattr__(self, name: str) -> Any:
        return getattr(self._computed(), name)

    @property
    def shape(self) -> Any:
        """Known before it is computed, like the three that follow."""
        return self.aval.shape

    @property
    def dtype(self) -> Any:
        """As of the array."""
        return self.aval.dtype

    @property
    def ndim(self) -> int:
        """As of the array."""
        return len(self.aval.shape)

    @property
    def weak_type(self) -> bool:
        """As of the array."""
        return bool(self.aval.weak_type)

    def is_deleted(self) -> bool:
        """What isn't computed yet wasn't given away."""
        return self._source is None and bool(self._value.is_deleted())

    def __jax_array__(self) -> Any:
        return self._computed()

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self._computed().__reduce_ex__(protocol)


_kinds: list[type[Deferred]] = []
"""The classes that were made, the newest one last."""


def real(leaf: Any) -> Any:
    """The array that a leaf stands for; the leaf, where it stands for none."""
    return leaf._computed() if isinstance(leaf, Deferred) else leaf


def is_there(leaf: Any) -> bool:
    """Whether what it stands for, if it stands for anything, was computed, or is on its way."""
    source = leaf._source if isinstance(leaf, Deferred) else None
    return source is None or source[0].has(source[1])


def under_way(leaves: Iterable[Any]) -> list[Any]:
    """The arrays that leaves stand for; of those that wait for further calls, arrays that these go on from. Has nothing
    computed.
    """
    given = ((real(leaf),) if is_there(leaf) else leaf._source[0].goes_on_from() for leaf in leaves)
    return list(chain.from_iterable(given))


def stand_in(aval: Any, source: Source, number: int) -> Deferred:
    """One for a result."""
    return _kinds[-1](aval, source, number)


def install(jax: Any) -> None:
    """Makes JAX take them for arrays. Raises ``AttributeError`` or ``KeyError`` where this version has it otherwise."""
    array: Any = sys.modules["jax._src.array"].ArrayImpl
    core, pxla = sys.modules["jax._src.core"], sys.modules["jax._src.interpreters.pxla"]
    avals: Any = core.pytype_aval_mappings
    handlers: Any = pxla.shard_arg_handlers
    constants: Any = sys.modules["jax._src.interpreters.mlir"]
    to_devices = handlers[array]

    def to_device(leaves: Sequence[Any], *others: Any) -> Any:
        return to_devices(list(map(real, leaves)), *others)

    def constant(leaf: Any, *others: Any) -> Any:
        return constants.ir_constant(leaf._computed())

    names = [name for name in dir(array) if name not in _OWN and name not in vars(Deferred)]
    own: dict[str, Any] = {name: _asking(name) for name in names}
    own |= {"__slots__": ("__weakref__", "_source", "_value", "aval"), "__hash__": None}
    kind: Any = type(jax.Array)(Deferred.__name__, (Deferred, jax.Array), own)
    avals[kind] = lambda leaf: leaf.aval
    handlers[kind] = to_device
    constants.register_constant_handler(kind, constant)
    narrowing: Any = getattr(sys.modules.get("jax._src.dtypes"), "canonicalize_value_handlers", None)
    if narrowing is not None:
        narrowing[kind] = real
    _kinds.append(kind)
    for owner, name in (
        (jax, "block_until_ready"), (sys.modules["jax._src.api"], "block_until_ready"),
        (jax, "make_array_from_single_device_arrays"),
        (jax, "device_put"), (sys.modules["jax._src.api"], "device_put"),
    ):  # fmt: skip
        patch(owner, name, lambda original: _given_real(jax, original))


def _asking(name: str) -> Any:
    """The array's attribute of that name; of special ones, which are called by Python itself, a method."""
    if not name.startswith("__") or name in {"__array_interface__", "__cuda_array_interface__"}:
        return property(lambda leaf: getattr(leaf._computed(), name))

    def ask(leaf: Any, *args: Any, **kwargs: Any) -> Any:
        return getattr(leaf._computed(), name)(*args, **kwargs)

    ask.__name__ = name
    return ask


def _given_real(jax: Any, original: Call) -> Call:
    """What JAX's own code in C++ looks into."""

    def call(*args: Any, **kwargs: Any) -> Any:
        leaves, structure = jax.tree_util.tree_flatten((args, kwargs))
        if any(isinstance(leaf, Deferred) for leaf in leaves):
            args, kwargs = jax.tree_util.tree_unflatten(structure, list(map(real, leaves)))
        return original(*args, **kwargs)

    return call

