"""What a module holds besides its parameters: whether a call of it leaves anything behind, and who listens inside."""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Any

from .types import Module

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
OWN = frozenset({
    "_parameters", "_modules", "_buffers", "training", "_non_persistent_buffers_set", "_state_dict_hooks",
    "_state_dict_pre_hooks", "_load_state_dict_pre_hooks", "_load_state_dict_post_hooks", *HOOKS,
})  # fmt: skip
_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_LOOKED_INTO = 64
State = list[tuple[object, object, object]]
"""Each entry, what would show that it was changed in place, and what is kept alive so that nothing takes its place."""


def state_of(module: Module) -> State:
    """Every buffer and attribute of the module and of those in it."""
    modules: list[Any] = list(module.modules())
    held: State = []
    for each in modules:
        held.extend(_marked(buffer) for buffer in each._buffers.values())
        held.extend(_marked(value) for name, value in vars(each).items() if name not in OWN)
    return held


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


def _marked(value: Any) -> tuple[object, object, object]:
    if isinstance(value, (list, tuple, Mapping, Set)):
        entries = list(value.values() if isinstance(value, Mapping) else value)
        return value, [len(entries), *(id(entry) for entry in entries[:_LOOKED_INTO])], entries
    is_tensor = hasattr(value, "_version") and hasattr(value, "requires_grad")
    # A tensor that was made in inference mode keeps no version.
    return value, value._version if is_tensor and not value.is_inference() else None, None


def _same(one: object, other: object) -> bool:
    if isinstance(one, _PLAIN):
        return type(one) is type(other) and (one == other or repr(one) == repr(other))  # NaN equals nothing
    return one is other
