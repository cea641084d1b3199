"""Buckets in which DistributedDataParallel exchanges gradients: those that it made, and those that a limit makes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from .types import DistributedModule

MIB = 1 << 20
FIRST = MIB
"""The limit of the first bucket of a script that gives none, PyTorch's own."""


class Gradient(NamedTuple):
    """What a bucket holds of one parameter. Those of another ``kind`` (number format, device) have other buckets, and
    each that ``is_sparse`` has one of its own.
    """

    kind: tuple[str, str]
    bytes: int
    is_sparse: bool = False


def sizes(shown: Mapping[str, Any]) -> list[int]:
    """The bytes of each bucket that is in use, by what such a module tells of itself; empty where it doesn't.

    Before its third step they may be those that it begins with: one for all gradients, whatever the limit.
    """
    text = shown.get("rebuilt_bucket_sizes" if shown.get("has_rebuilt_buckets") else "bucket_sizes", "")
    return [int(size) for size in str(text).split(",") if size.strip().isdigit()]


def gradients_of(module: DistributedModule) -> list[Gradient]:
    """Those that it will exchange, in the order of its parameters. It has just been made: later some may be frozen."""
    from torch.nn import Embedding, EmbeddingBag

    ignored = getattr(module, "parameters_to_ignore", ())
    sparse = dict[int, bool]()  # by the first module that holds a parameter
    for part in module.module.modules():
        is_sparse = isinstance(part, (Embedding, EmbeddingBag)) and bool(part.sparse)
        for parameter in part.parameters(recurse=False):
            sparse.setdefault(id(parameter), is_sparse)
    return [
        Gradient((str(p.dtype), str(p.device)), p.numel() * p.element_size(), sparse.get(id(p), False))
        for name, p in module.module.named_parameters() if p.requires_grad and name not in ignored
    ]  # fmt: skip


def in_order(gradients: Sequence[Gradient], shown: Mapping[str, Any]) -> Sequence[Gradient]:
    """Those of its parameters in the order of its buckets; empty where that isn't known."""
    if sum(gradient.bytes for gradient in gradients) != shown.get("total_parameter_size_bytes"):
        return []
    if not shown.get("has_rebuilt_buckets"):
        return gradients
    order = [int(index) for index in str(shown.get("rebuilt_per_bucket_param_indices", "")).replace(",", " ").split()]
    return [gradients[index] for index in order] if sorted(order) == [*range(len(gradients))] else []


def made_by(limits: Sequence[int], gradients: Sequence[Gradient]) -> list[int]:
    """The bytes of the buckets that these limits make: the last one holds for all buckets behind those before it.

    A bucket ends with the gradient that fills it; those that come last may be smaller.
    """
    filled, ahead = list[int](), dict[tuple[str, str], int]()
    number = dict[tuple[str, str], int]()
    for kind, size, is_sparse in gradients:
        if is_sparse:
            filled.append(size)
            continue
        ahead[kind] = ahead.get(kind, 0) + size
        at = min(number.setdefault(kind, 0), len(limits) - 1)
        if ahead[kind] >= limits[at]:
            filled.append(ahead.pop(kind))
            number[kind] += 1
    return filled + list(ahead.values())


def keep_to(limit: int, made: Sequence[int], gradients: Sequence[Gradient]) -> bool:
    """Whether these buckets can be those of one limit, in whichever order gradients came: none holds more than it takes
    to fill it, and none is smaller but the last of each kind. Each sparse gradient has one of its own.
    """
    filled, dense = list(made), [gradient for gradient in gradients if not gradient.is_sparse]
    for gradient in gradients:
        if gradient.is_sparse and gradient.bytes in filled:
            filled.remove(gradient.bytes)
    largest = max((gradient.bytes for gradient in dense), default=0)
    kinds = len({gradient.kind for gradient in dense})
    return max(filled, default=0) < limit + largest and sum(size < limit for size in filled) <= kinds
