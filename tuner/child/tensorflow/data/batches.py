"""Another batch size for a tf.data dataset: in its last batcher, else by cutting its batches anew."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from types import ModuleType

from ..types import Dataset
from .recipes import Node
from .refused import Refused

BATCHERS = (
    "batch", "padded_batch", "ragged_batch", "sparse_batch", "rebatch", "map_and_batch", "dense_to_ragged_batch",
    "dense_to_sparse_batch",
)  # fmt: skip
# Behind these a batch is still a batch, and their arguments don't depend on how many samples it has.
_PASSING = ("map", "prefetch", "with_options", "repeat", "ignore_errors", "shard", "enumerate", "cache")
# An argument of these is a number of batches.
_COUNTING = ("take", "skip", "shuffle", "assert_cardinality")
_REASONS = {
    "bucket_by_sequence_length": "the dataset batches by the samples' lengths",
    "group_by_window": "the dataset batches by a key of its samples",
    "filter": "the dataset filters whole batches",
    "take_while": "the dataset ends by a condition on whole batches",
    "from_generator": "a Python generator makes the batches",
    "choose_from_datasets": "the dataset chooses its batches one by one",
    "snapshot": "the batches are kept in files",
    "apply": "the script applies a function of its own to the batches",
}

# Behind these, too, an element is what it was before.
_SIEVES = ("filter", "take_while", "scan", "snapshot", "unique")
_JOINS = ("zip", "concatenate", "sample_from_datasets")
_OF_SINGLES = (
    "_TensorSliceDataset", "TFRecordDatasetV2", "TextLineDatasetV2", "FixedLengthRecordDatasetV2", "CsvDatasetV2",
)  # fmt: skip
"""Sources whose elements are one record, or one slice of arrays, each."""

LEAST_OF_EPOCH = 0.95
"""Of the samples of a pass so many have to be left where whole batches alone are trained on."""
ENDLESS = -1  # tf.data.INFINITE_CARDINALITY


def as_int(value: object) -> int | None:
    """An integer, whether it is Python's, NumPy's or a tensor's; None for anything else."""
    try:
        return operator.index(value)  # type: ignore[arg-type]  # what isn't one raises TypeError
    except TypeError:
        pass
    try:
        return operator.index(value.numpy())  # type: ignore[attr-defined]  # only an eager tensor has it
    except (AttributeError, TypeError, ValueError, NotImplementedError):
        return None


def batchers(node: Node, unbatched: int = 0) -> list[Node]:
    """What makes the dataset's batches: one, or one in each branch. Raises ``Refused`` where that can't be told."""
    method = node.method
    if method in BATCHERS and not unbatched:
        return [node]
    if method in _JOINS:
        branches = [x for x in node.inputs if unbatched or method != "zip" or not _only_counts(x)]
        if not branches:
            raise Refused("the dataset has no batches")
        return [batcher for branch in branches for batcher in batchers(branch, unbatched)]
    if method == "cache" and node.arguments.get("filename"):
        raise Refused("the batches are kept in files")
    if method == "unbatch":
        unbatched += 1
    elif method in BATCHERS:
        unbatched -= method != "rebatch"
    elif method not in _PASSING and method not in _COUNTING:
        raise Refused(_REASONS.get(method) or f"the dataset's batches come from {method.strip('_')}")
    return batchers(node.inputs[0], unbatched)


def sizes_given(node: Node, unbatched: int = 0) -> frozenset[int] | None:
    """The sizes of all batches that reach the dataset's elements; empty for single samples, None where unknown."""
    method = node.method
    if method in BATCHERS and not unbatched:
        size = as_int(node.arguments.get("batch_size"))
        return frozenset((size,)) if size is not None and size > 0 else None
    if method in _JOINS:
        found = [sizes_given(branch, unbatched) for branch in node.inputs]
        known = [sizes for sizes in found if sizes is not None]
        return frozenset[int]().union(*known) if len(known) == len(found) else None
    passes = method in _PASSING or method in _COUNTING or method in _SIEVES
    if not node.inputs or not (passes or method in BATCHERS or method == "unbatch"):
        return frozenset() if method in _OF_SINGLES or unbatched else None
    unbatched += (method == "unbatch") - (method in BATCHERS and method != "rebatch")
    return sizes_given(node.inputs[0], unbatched)


def written_size(nodes: Sequence[Node]) -> int:
    """The one batch size of all these batchers. Raises ``Refused``."""
    sizes = {as_int(node.arguments.get("batch_size")) for node in nodes}
    if len(sizes) > 1:
        raise Refused("the datasets that are put together have different batch sizes", final=True)
    size = sizes.pop()
    if size is None or size < 1:
        raise Refused("the batch size isn't a plain number")
    return size


def resized(node: Node, old: int, new: int, unbatched: int = 0) -> Node:
    """The tree with its batchers' size changed, and what counts their batches with it. Raises ``Refused``."""
    method = node.method
    if method in BATCHERS and not unbatched:
        _check_epoch(node, old, new)
        return node.but(batch_size=new)
    if method in _JOINS:
        stays = [not unbatched and method == "zip" and _only_counts(x) for x in node.inputs]
        branches = zip(node.inputs, stays, strict=True)
        return node.on(*(branch if stay else resized(branch, old, new, unbatched) for branch, stay in branches))
    counts = not unbatched and method in _COUNTING
    if method == "unbatch":
        unbatched += 1
    elif method in BATCHERS:
        unbatched -= method != "rebatch"
    below = resized(node.inputs[0], old, new, unbatched)
    if counts and method == "assert_cardinality":
        return below  # what it says would be wrong now, and how many batches there are isn't known
    return _recounted(node, old, new).on(below) if counts else node.on(below)


def _check_epoch(node: Node, old: int, new: int) -> None:
    """Raises ``Refused`` where a pass would lose many of its samples with the last batch, which isn't a whole one."""
    below = node.inputs[0].dataset
    rows = int(below.cardinality()) if below is not None and node.arguments.get("drop_remainder") is True else 0
    if rows > 0 and rows // new * new < LEAST_OF_EPOCH * (rows // old * old):
        raise Refused(
            f"of {rows} samples {rows // old * old} are in whole batches of {old}, and {rows // new * new} in those of"
            f" {new}: the script leaves out the rest",
            final=True,
            of_value=True,
        )


def _recounted(node: Node, old: int, new: int) -> Node:
    name = "buffer_size" if node.method == "shuffle" else "count"
    count = as_int(node.arguments.get(name))
    if count is None:
        raise Refused(f"what {node.method} counts in batches isn't a plain number")
    if count <= 0 or old == new:
        return node  # -1: all of them
    if node.method == "shuffle":
        return node.but(buffer_size=-(-count * old // new))
    if count * old % new:
        reason = f"{node.method}({count}) of {old} samples each is no whole number of batches of {new}"
        raise Refused(reason, of_value=True)
    return node.but(count=count * old // new)


def _only_counts(node: Node) -> bool:
    """Whether a zipped branch gives one scalar a batch for ever: seeds or numbers, not data."""
    spec = node.own.element_spec
    scalar = all(getattr(part, "shape", None) == () for part in (spec if isinstance(spec, tuple) else (spec,)))
    return scalar and int(node.own.cardinality()) == ENDLESS


def leading_size(tf: ModuleType, dataset: Dataset) -> int | None:
    """The batch size by the shapes of the dataset's elements; None where they don't agree on one."""
    specs = tf.nest.flatten(dataset.element_spec)
    sizes = {spec.shape[0] if spec.shape.rank else None for spec in specs if isinstance(spec, tf.TensorSpec)}
    return sizes.pop() if len(sizes) == 1 and len(specs) else None


def check_cuttable(tf: ModuleType, dataset: Dataset) -> None:
    """Raises ``Refused`` unless batches can be cut and put together along their first dimension."""
    leading: set[int | None] = set()
    for spec in tf.nest.flatten(dataset.element_spec):
        if not isinstance(spec, tf.TensorSpec):
            raise Refused("the batches hold ragged or sparse tensors")
        if spec.shape.rank is None:
            continue
        if spec.shape.rank == 0:
            raise Refused("the dataset's elements are no batches")
        if None in spec.shape.as_list()[1:]:
            raise Refused("the batches differ in more than their number of samples")
        leading.add(spec.shape[0])
    if len(leading) > 1:
        raise Refused("the tensors of a batch differ in their first dimension")


def check_shapes(tf: ModuleType, written: Dataset, changed: Dataset, new: int) -> None:
    """Raises ``Refused`` unless only the number of samples has changed: else the script relies on its batch size."""
    before, after = tf.nest.flatten(written.element_spec), tf.nest.flatten(changed.element_spec)
    alike = len(before) == len(after)
    for old_spec, new_spec in zip(before, after, strict=False):
        if not isinstance(old_spec, tf.TensorSpec) or old_spec.shape.rank is None:
            continue
        same_rest = new_spec.shape.rank == old_spec.shape.rank and new_spec.shape[1:] == old_spec.shape[1:]
        alike = alike and same_rest and (old_spec.shape.rank == 0 or new_spec.shape[0] in (None, new))
    if not alike:
        raise Refused("the shapes that the dataset's functions make don't follow the batch size")
