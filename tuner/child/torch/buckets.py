"""Buckets in which DistributedDataParallel exchanges gradients: those that it made, and those that a limit makes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from .types import DistributedModule

MIB = 1 << 20
FIRST = MIB
"""The limit of the first bucket of a script that gives none, PyTorch's own."""


class Gradient(NamedTuple):
    """What a bucket holds of one parameter. Those of another ``kind`` (number format, device) have other buckets."""

    kind: tuple[str, str]
    bytes: int


def sizes(shown: Mapping[str, Any]) -> list[int]:
    """The bytes of each bucket that is in use, by what such a module tells of itself; empty where it doesn't.

    Before its third step they may be those that it begins with: one for all gradients, whatever the limit.
    """
    text = shown.get("rebuilt_bucket_sizes" if shown.get("has_rebuilt_buckets") else "bucket_sizes", "")
    return [int(size) for size in str(text).split(",") if size.strip().isdigit()]


def gradients_of(module: DistributedModule, shown: Mapping[str, Any]) -> list[Gradient]:
    """Those that it exchanges, in the order of its buckets; empty where that isn't known."""
    ignored = getattr(module, "parameters_to_ignore", ())
    found = [
        Gradient((str(parameter.dtype), str(parameter.device)), parameter.numel() * parameter.element_size())
        for name, parameter in module.module.named_parameters() if parameter.requires_grad and name not in ignored
    ]  # fmt: skip
    if sum(gradient.bytes for gradient in found) != shown.get("total_parameter_size_bytes"):
        return []
    if not shown.get("has_rebuilt_buckets"):
        return found
    order = [int(index) for index in str(shown.get("rebuilt_per_bucket_param_indices", "")).replace(",", " ").split()]
    return [found[index] for index in order] if sorted(order) == [*range(len(found))] else []


def made_by(limits: Sequence[int], gradients: Sequence[Gradient]) -> list[int]:
    """The bytes of the buckets that these limits make: the last one holds for all buckets behind those before it.

    A bucket ends with the gradient that fills it; those that come last may be smaller.
    """
    filled, ahead = list[int](), dict[tuple[str, str], int]()
    number = dict[tuple[str, str], int]()
    for kind, size in gradients:
        ahead[kind] = ahead.get(kind, 0) + size
        at = min(number.setdefault(kind, 0), len(limits) - 1)
        if ahead[kind] >= limits[at]:
            filled.append(ahead.pop(kind))
            number[kind] += 1
    return filled + list(ahead.values())


def keep_to(limit: int, made: Sequence[int], gradients: Sequence[Gradient]) -> bool:
    """Whether these buckets can be those of one limit, in whichever order gradients came: none holds more than it takes
    to fill it, and none is smaller but the last of each kind.
    """
    largest = max((gradient.bytes for gradient in gradients), default=0)
    kinds = len({gradient.kind for gradient in gradients})
    return max(made) < limit + largest and sum(size < limit for size in made) <= kinds
