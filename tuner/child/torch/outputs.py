"""What a module gives: the same with other tensors in it."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, MutableMapping
from types import ModuleType
from typing import Any

from .types import Tensor


def with_tensors(torch: ModuleType, value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """The value with ``change`` made of each tensor in nested tuples, lists, mappings and dataclasses.

    Types stay what they are: named tuples, ``OrderedDict``, transformers' outputs. What was given isn't changed itself,
    and is given back where no tensor in it was exchanged.
    """
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, (tuple, list)):
        entries = [with_tensors(torch, entry, change) for entry in value]
        same = all(after is before for after, before in zip(entries, value, strict=True))
        return value if same else _like(value, entries)
    if isinstance(value, MutableMapping):
        held = {key: (entry, with_tensors(torch, entry, change)) for key, entry in value.items()}
        return _with(value, held, lambda result, key, entry: result.__setitem__(key, entry))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value) if hasattr(value, field.name)]
        held = {name: (entry := getattr(value, name), with_tensors(torch, entry, change)) for name in names}
        return _with(value, held, object.__setattr__)  # a frozen one, too
    return value


def with_clones(torch: ModuleType, value: Any) -> Any:
    """The value with copies of its tensors, which gradients go back through."""
    return with_tensors(torch, value, lambda tensor: tensor.clone())


def _like(value: Any, entries: list[Any]) -> Any:
    kind = type(value)
    if isinstance(value, list):
        result = copy.copy(value)
        result[:] = entries
        return result
    if hasattr(kind, "n_sequence_fields"):  # what torch.max gives: made from a sequence
        return kind(entries)
    result = tuple.__new__(kind, entries)  # whatever a named tuple's class takes
    if hasattr(value, "__dict__"):
        vars(result).update(vars(value))
    return result


def _with(value: Any, held: dict[Any, tuple[Any, Any]], put: Callable[[Any, Any, Any], object]) -> Any:
    """A copy with those entries exchanged that are others now. ``held``: what each was, and is."""
    changed = {key: after for key, (before, after) in held.items() if after is not before}
    if not changed:
        return value
    result = copy.copy(value)
    for key, after in changed.items():
        put(result, key, after)
    return result
