"""Maps of single elements, moved behind the batch: TensorFlow has a form of most operations for many at once."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType

from ..types import Array, Structure, Tensor
from .caches import is_steady_link, is_steady_source, lasting_ops, operations, stateful_ops
from .recipes import Node
from .refused import Refused

# A map may as well stand behind these: they choose and order elements without looking at them.
_BLIND = ("shuffle", "repeat", "take", "skip", "shard", "prefetch", "with_options", "assert_cardinality")
_CARRIED_OVER = ("num_parallel_calls", "deterministic")
ELEMENTS_COMPARED = 8
# Sums may be taken in another order; what a map makes of single elements is to be made of many.
TOLERANCE = 1e-6


def written(node: Node, tf: ModuleType) -> bool:
    """The knob as the script has it: False, wherever a map could be moved. Raises ``Refused`` where none could."""
    reasons = []
    for batch in (link for link in node.all() if link.method == "batch"):
        spine, _, reason = _above_source(batch, tf)
        if spine:
            return False
        reasons.append(reason)
    raise Refused(next(filter(None, reasons), "no map of single elements stands right before a batch"))


def moved(node: Node, tf: ModuleType) -> tuple[Node, int, int]:
    """The tree with such maps behind their batch, how many there are, how many were moved. Raises ``Refused``."""
    written(node, tf)
    count = 0

    def edit(link: Node) -> Node:
        nonlocal count
        spine, source, _ = _above_source(link, tf) if link.method == "batch" else ([], link, "")
        if not spine:
            return link
        spine, source = _convertible(spine, source, tf)
        maps = _maps(spine)
        for below in reversed(spine):
            source = source if below.method == "map" else below.on(source)
        batched = link.on(source)
        for single in maps:
            arguments = {name: value for name, value in single.arguments.items() if name in _CARRIED_OVER}
            batched = batched.then("map", map_func=_of_many(single, tf), **arguments)
        count += len(maps)
        return batched

    tree = node.rewritten(edit)
    return tree, count, count


def _maps(spine: list[Node]) -> list[Node]:
    """In the order in which elements come by them."""
    return [link for link in reversed(spine) if link.method == "map"]


def _convertible(spine: list[Node], source: Node, tf: ModuleType) -> tuple[list[Node], Node]:
    """The upper part of the spine whose maps give the same for many at once, and what is below. Raises ``Refused``."""
    while True:
        maps = _maps(spine)
        try:
            _check_values(maps, source, tf)
        except Refused:
            if len(maps) == 1:
                raise
            spine, source = _down_to_map(spine[: spine.index(maps[0])], maps[0])
        else:
            return spine, source


def _down_to_map(spine: list[Node], below: Node) -> tuple[list[Node], Node]:
    """The spine without the links that only choose and order, at its lower end; they belong to what is below."""
    while spine and spine[-1].method != "map":
        below = spine.pop()
    return spine, below


def _above_source(batch: Node, tf: ModuleType) -> tuple[list[Node], Node, str]:
    """From the batch down to the last map that can be moved, what lies below, and why the next map can't be."""
    spine: list[Node] = []
    node, reason = batch.inputs[0], ""
    while node.method == "map" or node.method in _BLIND:
        reason = _why_not(node, tf) if node.method == "map" else ""
        if reason:
            break
        spine.append(node)
        node = node.inputs[0]
    spine, node = _down_to_map(spine, node)
    unread = _why_unread(node) if spine else ""
    return ([], node, unread) if unread else (spine, node, reason)


def _why_unread(source: Node) -> str:
    """Why the first elements can't be looked at without taking them from the training; "" where they can."""
    for link in _unshuffled(source).all():
        if link.method == "from_generator":
            return "a Python generator makes the data, and what is looked at is gone"
        if not (is_steady_link(link) if link.inputs else is_steady_source(link)):
            return f"what a look at the data of {link.method.strip('_')} would change isn't known"
        lasting = [] if link.dataset is None else lasting_ops(link.dataset)
        if lasting:
            cause = "calls Python" if any("PyFunc" in name for name in lasting) else f"holds {lasting[0]}"
            return f"the function handed to {link.method} {cause}: a look at its results may change the next ones"
    return ""


def _unshuffled(source: Node) -> Node:
    """The same elements without what keeps a state from one iteration to the next: shuffles, caches."""
    return source.rewritten(lambda link: link.inputs[0] if link.method in ("shuffle", "cache") else link)


def _why_not(single: Node, tf: ModuleType) -> str:
    if single.dataset is None or single.inputs[0].dataset is None:
        return "a map that autotune made"
    for dataset in (single.inputs[0].dataset, single.dataset):
        for spec in tf.nest.flatten(dataset.element_spec):
            if not isinstance(spec, tf.TensorSpec) or not spec.shape.is_fully_defined():
                return "the elements of the map differ in shape"
    if any("PyFunc" in name for name in operations(single.own)):
        return "the map calls Python"
    stateful = stateful_ops(single.own)
    return f"the map holds {stateful[0]}, which may differ from call to call" if stateful else ""


def _of_many(single: Node, tf: ModuleType) -> Callable[..., Structure]:
    """The map's traced function for a whole batch."""
    traced, structure = single.own._map_func.function, single.own.element_spec
    specs = tf.nest.flatten(structure)

    def each(elements: Structure) -> list[Tensor]:
        return list(traced(*tf.nest.flatten(elements)))

    def many(*elements: Structure) -> Structure:
        try:
            results = tf.vectorized_map(each, elements, fallback_to_while_loop=False)
        except ValueError as error:
            raise Refused(f"TensorFlow can't run the map on many elements at once ({_operation(error)})") from error
        for result, spec in zip(results, specs, strict=True):
            result.set_shape([None, *spec.shape])
        return tf.nest.pack_sequence_as(structure, results)

    unconverted: Callable[..., Structure] = tf.autograph.experimental.do_not_convert(many)
    return unconverted


def _operation(error: ValueError) -> str:
    """What the error is about: it quotes the whole operation."""
    words = str(error).split()
    quoted = [word.strip("\"'.,:;") for word in words if word[:1] in "\"'"]
    return quoted[0] if quoted else " ".join(words[:8])


def _check_values(maps: list[Node], source: Node, tf: ModuleType) -> None:
    """Raises ``Refused`` unless the first elements come out the same."""
    elements = list(_unshuffled(source).build().take(ELEMENTS_COMPARED))
    if not elements:
        raise Refused("the dataset is empty")
    stacked = tf.nest.map_structure(lambda *parts: tf.stack(parts), *elements)
    singles = tf.data.Dataset.from_tensor_slices(stacked)
    together = tf.data.Dataset.from_tensors(stacked)
    for single in maps:
        singles = single.made_on([singles])
        together = together.map(_of_many(single, tf))
    expected = next(iter(singles.batch(len(elements))))
    vectorized = next(iter(together))
    for one, other in zip(tf.nest.flatten(expected), tf.nest.flatten(vectorized), strict=True):
        if not _same(one.numpy(), other.numpy()):
            raise Refused("for many elements at once the map gives something else than for each one")


def _same(one: Array, other: Array) -> bool:
    np = sys.modules["numpy"]  # the child imports nothing that the script doesn't
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    if not np.issubdtype(one.dtype, np.floating):
        return bool(np.array_equal(one, other))
    scale = float(np.max(np.abs(one), initial=0.0))
    return bool(np.allclose(one, other, rtol=TOLERANCE, atol=TOLERANCE * scale, equal_nan=True))
