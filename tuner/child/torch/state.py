"""What a module holds besides its parameters: whether a call of it leaves anything behind, and who listens inside."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from types import FunctionType, MappingProxyType, MethodType, ModuleType
from typing import Any

from ..data_state import UNCHANGING
from .reached import reached
from .types import Module

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
OWN = frozenset({
    "_parameters", "_modules", "_buffers", "training", "_non_persistent_buffers_set", "_state_dict_hooks",
    "_state_dict_pre_hooks", "_load_state_dict_pre_hooks", "_load_state_dict_post_hooks", *HOOKS,
})  # fmt: skip
_NEVER_INSIDE = (*UNCHANGING, type, ModuleType, FunctionType, MethodType)
_LOOKED_INTO = 64
_DEEPEST = 2
"""Levels of objects and containers that are followed from an attribute of a module."""
State = list[tuple[object, object, object]]
"""Each entry, what would show that it was changed in place, and what is kept alive so that nothing takes its place."""


def state_of(module: Module, *, buffers: bool = True) -> State:
    """Every buffer and attribute of the module and of those in it, what lies in them, and what their code names.

    Without ``buffers`` what lies in its attributes counts, and its buffers don't.
    """
    reader = _Reader(buffers=buffers)
    reader.add_modules(module)
    return reader.state


def same_state(one: State, other: State) -> bool:
    """Whether nothing was replaced, and nothing changed in place, between the two."""
    return len(one) == len(other) and all(
        _same(before[0], after[0]) and before[1] == after[1] for before, after in zip(one, other, strict=True)
    )


def hooked(module: Module) -> bool:
    """Whether something of the script's is called with each call of the module or of one in it: it expects a batch."""
    modules: list[Any] = list(module.modules())
    hooks = (hook for each in modules for name in HOOKS for hook in (vars(each).get(name) or {}).values())
    return any(not str(getattr(hook, "__module__", "")).startswith(__package__) for hook in hooks)


class _Reader:
    """Reads each object once, however many modules hold it."""

    def __init__(self, *, buffers: bool) -> None:
        self.state: State = []
        self._with_buffers = buffers
        self._seen: set[int] = set()

    def add_modules(self, module: Any) -> None:
        modules = [each for each in module.modules() if id(each) not in self._seen]
        self._seen.update(map(id, modules))
        for each in modules:
            for buffer in each._buffers.values() if self._with_buffers else ():
                self._add(buffer, 0)
            for name, value in vars(each).items():
                if name not in OWN:
                    self._add(value, 0)
        for value in reached(modules):
            self._add(value, 0)

    def _add(self, value: Any, depth: int) -> None:
        if isinstance(value, _NEVER_INSIDE):
            self.state.append((value, None, None))
            return
        if _is_module(value):
            self.state.append((value, None, None))
            self.add_modules(value)
            return
        entries = _entries(value)
        self.state.append(_marked(value, entries))
        if depth == _DEEPEST or id(value) in self._seen or _is_tensor(value):
            return
        self._seen.add(id(value))
        for entry in list(_attributes(value)) if entries is None else entries[:_LOOKED_INTO]:
            self._add(entry, depth + 1)


def _is_module(value: Any) -> bool:
    held = getattr(value, "__dict__", None)
    return isinstance(held, dict) and "_modules" in held and "_buffers" in held


def _attributes(value: Any) -> Iterator[object]:
    held = getattr(value, "__dict__", None)
    if isinstance(held, dict):
        yield from held.values()
    for kind in type(value).__mro__:
        slots = vars(kind).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name not in ("__dict__", "__weakref__"):
                yield getattr(value, name, None)


def _entries(value: Any) -> list[object] | None:
    """What a container holds. Other mappings than dictionaries may make what they give with each look."""
    if isinstance(value, (dict, MappingProxyType)):
        return list(value.values())
    return list(value) if isinstance(value, (list, tuple, set, frozenset, deque)) else None


def _is_tensor(value: object) -> bool:
    # Of the class: a mapping of the script's may make an entry of whatever it is asked for.
    return hasattr(type(value), "_version") and hasattr(type(value), "requires_grad")


def _marked(value: Any, entries: list[object] | None) -> tuple[object, object, object]:
    if entries is not None:
        return value, [len(entries), *(id(entry) for entry in entries[:_LOOKED_INTO])], entries
    # A tensor that was made in inference mode keeps no version.
    return value, value._version if _is_tensor(value) and not value.is_inference() else None, None


def _same(one: object, other: object) -> bool:
    if isinstance(one, UNCHANGING):
        return type(one) is type(other) and (one == other or repr(one) == repr(other))  # NaN equals nothing
    return one is other
