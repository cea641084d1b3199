"""A cache in memory for a tf.data dataset: where it may stand, what it would take."""

from __future__ import annotations

import re
import sys
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import ModuleType

from ...patches import patch
from ..types import Dataset, Structure, Table, Tensor
from .recipes import Node, RecipeBook
from .refused import Refused

# Sources that give the same elements in the same order each time; the first ones have them in memory already.
_IN_MEMORY = ("_TensorSliceDataset", "_TensorDataset", "_RangeDataset", "_ListDataset")
_SAME_EACH_TIME = (
    *_IN_MEMORY, "TextLineDatasetV2", "TFRecordDatasetV2", "FixedLengthRecordDatasetV2", "CsvDatasetV2", "_LoadDataset",
)  # fmt: skip
# What the dataset of a reader's files may be made of besides.
_OF_FILES = re.compile(
    r"_?(Parallel)?(Map|Filter|Take|Skip|Shard|Prefetch|Options|Concatenate|Shuffle|FlatMap|Interleave|Repeat)Dataset"
)
# Links behind which that still holds, provided that the functions handed to them are stateless.
_STEADY = (
    "map", "filter", "flat_map", "interleave", "batch", "padded_batch", "ragged_batch", "sparse_batch", "rebatch",
    "unbatch", "prefetch", "with_options", "take", "skip", "enumerate", "take_while", "zip", "concatenate", "shard",
    "unique", "ignore_errors", "assert_cardinality", "repeat", "map_and_batch", "dense_to_ragged_batch",
    "dense_to_sparse_batch",
)  # fmt: skip
_COSTLY = ("map", "filter", "flat_map", "interleave", "map_and_batch", "padded_batch")
_STILL = ("prefetch", "with_options")
SAMPLES_MEASURED = 3
UNKNOWN = -2  # tf.data.UNKNOWN_CARDINALITY
ENDLESS_COUNT = 2**48  # a counter has an end, too, that nobody reaches

# Calls: what they do is seen in the bodies that they call. Assertions and prints change no result, nor do look-ups in a
# table that stays as it is.
_CALLS = ("StatefulPartitionedCall", "If", "Case", "While")
_HARMLESS = ("Assert", "Print", "PrintV2")
_LOOK_UPS = ("LookupTableFindV2", "LookupTableSizeV2")
_changing_tables: weakref.WeakSet[Table] = weakref.WeakSet()
# Sources inside of an interleaved function are marked as stateful only lest they be folded into constants.
_SOURCE_OPS = re.compile(r"(TFRecord|TextLine|FixedLengthRecord|Range|TensorSlice|Tensor|CSV)Dataset(V\d)?")
# They draw random numbers, and nothing else of them lasts: which element gets which number is random anyway.
_DRAWS = re.compile(
    r"(Random|TruncatedNormal|ParameterizedTruncatedNormal|Multinomial|SampleDistortedBoundingBox|Stateless|Rng)\w*"
    r"|Stateful(Random|Uniform|StandardNormal|TruncatedNormal)\w*"
    r"|(Dummy|Anonymous)SeedGenerator\w*|Shuffle(AndRepeat)?Dataset\w*"
)
_OF_VARIABLES = re.compile(r"(Read|Assign|AssignAdd)VariableOp")
_SEED_STATE = "seed_generator_state"


def watch_tables(tf: ModuleType) -> None:
    """Patches the tables that the script may change, to know them again: of a look-up a graph doesn't say in which."""

    def making(original: Callable[..., None]) -> Callable[..., None]:
        def __init__(table: Table, *args: object, **kwargs: object) -> None:
            original(table, *args, **kwargs)
            _changing_tables.add(table)

        return __init__

    for kind in (tf.lookup.experimental.MutableHashTable, tf.lookup.experimental.DenseHashTable):
        patch(kind, "__init__", making)


def _reads_changing_table(dataset: Dataset) -> bool:
    read = [handle for function in dataset._functions() for handle in function.function.captured_inputs]
    return any(table.resource_handle is handle for table in list(_changing_tables) for handle in read)


def operations(dataset: Dataset) -> set[str]:
    """Names of the operations in the functions handed to the dataset's last link, and in what those call."""
    names: set[str] = set()
    for function in dataset._functions():
        graph = function.function.graph.as_graph_def()
        names.update(node.op for node in graph.node)
        names.update(node.op for body in graph.library.function for node in body.node_def)
    return names


def stateful_ops(dataset: Dataset) -> list[str]:
    """Operations in the functions handed to the dataset's last link that may give another result each time."""
    registry = sys.modules["tensorflow.python.framework.op_def_registry"]
    stateful = []
    harmless = _HARMLESS if _reads_changing_table(dataset) else (*_HARMLESS, *_LOOK_UPS)
    for name in sorted(operations(dataset) - {*_CALLS, *harmless}):
        definition = registry.get(name)
        if definition is None or (definition.is_stateful and not _SOURCE_OPS.fullmatch(name)):
            stateful.append(name)
    return stateful


def is_steady_source(link: Node) -> bool:
    """Whether what has no inputs gives the same elements each time, in whatever order."""
    return link.method in _SAME_EACH_TIME


def is_steady_link(link: Node) -> bool:
    """Whether the link gives the same for the same inputs, provided that the functions handed to it do."""
    return link.method in _STEADY


def lasting_ops(dataset: Dataset) -> list[str]:
    """Those of the stateful operations by which one call may depend on the one before: all that don't just draw.

    Keras' layers draw by a variable that holds a seed.
    """
    variables = [variable for function in dataset._functions() for variable in function.function.graph.variables]
    seeds = bool(variables) and all(_SEED_STATE in variable.name for variable in variables)
    drawing = [_DRAWS, _OF_VARIABLES] if seeds else [_DRAWS]
    return [name for name in stateful_ops(dataset) if not any(kind.fullmatch(name) for kind in drawing)]


def made_of(dataset: Dataset) -> Iterator[Dataset]:
    """The dataset and all that it is made of, as TensorFlow has it: what no recipe shows is among it."""
    seen: set[int] = set()
    waiting = [dataset]
    while waiting:
        newest = waiting.pop()
        if id(newest) not in seen:
            seen.add(id(newest))
            yield newest
            reader: Dataset | None = getattr(newest, "_impl", None)  # a source to TensorFlow, but made of its files
            waiting.extend([*newest._inputs(), *([] if reader is None else [reader])])


def why_unsteady(node: Node) -> str:
    """Why an iteration over the dataset may give something else than the one before; "" if it can't."""
    return next((reason for reason in map(_why_link_unsteady, node.all()) if reason), "")


def _why_link_unsteady(link: Node) -> str:
    if link.method == "from_generator":
        return "a Python generator makes the data"
    if not link.inputs:
        if link.method not in _SAME_EACH_TIME:
            return f"what {link.method.strip('_')} gives isn't known"
        return next(filter(None, map(_why_files_unsteady, made_of(link.own))), "")
    if link.method == "shuffle":
        return "" if link.arguments.get("reshuffle_each_iteration") is False else "the data are shuffled anew"
    if link.method not in _STEADY:
        return f"{link.method} may give something else each time"
    stateful = stateful_ops(link.own)
    if not stateful:
        return ""
    cause = "calls Python" if any("PyFunc" in name for name in stateful) else f"holds {stateful[0]}"
    return f"the function handed to {link.method} {cause}: its results may differ each time"


def _why_files_unsteady(made: Dataset) -> str:
    """The same of what a reader is made of: the dataset of its files, in whose order their records come."""
    name = type(made).__name__
    if getattr(made, "_reshuffle_each_iteration", False):
        return "the order of the files is shuffled anew"
    if name not in _SAME_EACH_TIME and not _OF_FILES.fullmatch(name):
        return f"in which order {name.strip('_')} gives the files isn't known"
    return "a function over the files may give something else each time" if stateful_ops(made) else ""


class Place:
    """Where the cache goes: behind ``prefix`` and ``moved``, before the links of ``reordering`` and ``above``.

    ``last`` is the link whose elements are cached, ``elements`` their number.
    """

    def __init__(self, node: Node) -> None:
        """Raises ``Refused`` where a cache would change the data, or gain nothing."""
        if any(x.method in ("cache", "snapshot") for x in node.all()):
            raise Refused("the script caches its data itself")
        spine = [node]
        while len(spine[-1].inputs) == 1:
            spine.append(spine[-1].inputs[0])
        spine.reverse()
        reason = why_unsteady(spine[0])
        if reason:
            raise Refused(reason)
        top, why = 0, ""
        for index, link in enumerate(spine[1:], start=1):
            why = _why_link_unsteady(link)
            if why or link.method == "repeat":
                reason = why if link.method in _COSTLY else ""
                break
            top = index
        self.moved, self.reordering, self.above = _commuting(spine[top + 1 :])
        if not self.moved:
            while top and spine[top].method in _STILL:
                top -= 1
            self.above = spine[top + 1 :]
        self.prefix = spine[top]
        self.last = self.moved[-1] if self.moved else self.prefix
        self.elements = int(self.prefix.own.cardinality())
        worth = next((link for link in self.above if link.method in _COSTLY), None)
        if not reason and worth is not None and not _why_link_unsteady(worth):
            reason = f"{why or 'the data are repeated'} before {worth.method}"  # such as the files that it reads
        self._check(reason or "the data lie in memory already, as they are")

    def _check(self, idle: str) -> None:
        if not self.moved and not any(_is_costly(x) for x in self.prefix.all()):
            raise Refused(idle)
        if not 0 <= self.elements < ENDLESS_COUNT:
            many = "are endless" if self.elements != UNKNOWN else "can't be counted before they are read"
            raise Refused(f"the data {many}")
        for link in (*self.reordering, *self.above):
            if link.method == "repeat":
                break
            if link.method in ("take", "take_while"):
                raise Refused("only a part of the data is taken each time, and a cache is filled by a whole pass")

    def with_cache(self, book: RecipeBook) -> Node:
        """The tree with the cache in it."""
        # A script may put a shuffle before the same data in each epoch: they keep one cache.
        node = replace(self._cached().then("cache"), shared_in=book.record(self.last.own))
        for link in (*self.reordering, *self.above):
            node = link.on(node)
        return node

    def needed_bytes(self, tf: ModuleType) -> int | None:
        """Bytes that all elements take: by their shapes, else by the first few; None where there are none."""
        size = _bytes_of_spec(tf, self.last.own.element_spec)
        if size is None:
            size = _bytes_measured(tf, self._cached().build())
        return None if size is None else round(size * self.elements)

    def _cached(self) -> Node:
        """What is cached."""
        node = self.prefix
        for link in self.moved:
            node = link.on(node)
        return node


def _commuting(links: list[Node]) -> tuple[list[Node], list[Node], list[Node]]:
    """Stateless maps, the shuffles and repeats that they may as well stand before, and what comes above.

    Each map makes one element of one, and always the same: which order it sees them in makes no difference.
    """
    end, index = 0, 0
    for index, link in enumerate(links, start=1):
        if link.method == "map":
            if stateful_ops(link.own):
                break
            end = index
        elif link.method not in ("shuffle", "repeat", *_STILL):
            break
    run, above = links[:end], links[end:]
    return [x for x in run if x.method == "map"], [x for x in run if x.method != "map"], above


def _is_costly(node: Node) -> bool:
    return node.method in _COSTLY or (not node.inputs and node.method not in _IN_MEMORY)


def _bytes_of_spec(tf: ModuleType, spec: Structure) -> float | None:
    total = 0.0
    for part in tf.nest.flatten(spec):
        if not isinstance(part, tf.TensorSpec) or part.dtype == tf.string or not part.shape.is_fully_defined():
            return None
        total += part.shape.num_elements() * part.dtype.size
    return total


def _bytes_measured(tf: ModuleType, dataset: Dataset) -> float | None:
    sizes = [_bytes_of(tf, element) for element in dataset.take(SAMPLES_MEASURED)]
    return sum(sizes) / len(sizes) if sizes else None


def _bytes_of(tf: ModuleType, element: Structure) -> int:
    total = 0
    tensors: list[Tensor] = tf.nest.flatten(element, expand_composites=True)
    for tensor in tensors:
        array = tensor.numpy()
        if tensor.dtype == tf.string:
            texts = [array] if isinstance(array, bytes) else array.ravel().tolist()
            total += sum(24 + len(text) for text in texts)  # a string's own struct holds 24 bytes
        else:
            total += array.nbytes
    return total
