"""What a Grain pipeline consists of, where workers may stand in it, and the same one with other workers.

A pipeline is a graph of datasets. Where its workers stand Grain deals the samples out: of W workers each one reads
every W-th and makes its own batches of these, so that another number of workers makes other batches. Here the number
is turned only where nothing but functions of single elements, and at most one batch, lies between the workers and the
place that reads: then whole batches are dealt out (``in_blocks``), and they are the same ones in the same order.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from ..records import Value
from .blocks import in_blocks

Dataset = Any
"""A node of Grain's: an ``IterDataset`` or a ``MapDataset``."""
_PART = "grain._src.python.dataset.transformations."
_NODES = "grain._src.python.dataset.dataset"
_ELEMENTWISE: tuple[tuple[str, str], ...] = (
    ("map", "MapIterDataset"), ("prefetch", "_MpContextIterDataset"), ("", "WithOptionsIterDataset"),
    ("", "_WithSeedIterDataset"),
)  # fmt: skip
"""Nodes that make one element of each: of any share of them the same."""
_WHOLE: tuple[tuple[str, str], ...] = (
    ("source", "SourceMapDataset"), ("source", "RangeMapDataset"), ("shuffle", "ShuffleMapDataset"),
    ("repeat", "RepeatMapDataset"), ("slice", "SliceMapDataset"), ("batch", "BatchMapDataset"),
    ("map", "RandomMapMapDataset"), ("map", "MapMapDataset"), ("", "_WithSeedMapDataset"),
)  # fmt: skip
OF_A_LOADER = "_DataLoader"
"""How the names of nodes begin that a ``DataLoader`` lays around its pipeline."""
NO_READER = "it isn't read through to_iter_dataset"
IN_SHARES = "each of its workers makes batches of its own share of the samples: another number would make other batches"
SEQUENTIAL = "its workers read the samples one part after the other, as many parts as workers"
PREPARED = "the script prepares each of its workers by a function of its own (worker_init_fn)"
_FIXING = {"sequential_slice": SEQUENTIAL, "worker_init_fn": PREPARED}
MAY_DROP = "nothing shows that none of its samples is dropped, and then another number of workers changes their order"


@dataclass(frozen=True)
class Pipeline:
    """``above``: nodes behind the workers, outermost first. ``chain``: those that workers run, or would; the last one
    reads. ``workers``, ``buffer``: as it is made. ``block``: of what is read, so much makes one element there.
    ``reader``: the node that reads; None where there is none. ``fixed``: why the number of workers has to stay; ""
    where it may change. ``given``: what the script gives ``mp_prefetch`` beside numbers.
    """

    above: tuple[Dataset, ...]
    chain: tuple[Dataset, ...]
    workers: int
    buffer: int | None
    block: int
    reader: Dataset | None
    fixed: str
    given: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_whole(self) -> bool:
        """Whether workers may run all of it but what a ``DataLoader`` lays around."""
        return all(type(node).__name__.startswith(OF_A_LOADER) for node in self.above)

    @property
    def gives_singles(self) -> bool:
        """Whether batches are made behind the workers, or the place where they would stand."""
        return any("Batch" in type(node).__name__ for node in self.above)

    @property
    def reads_singles(self) -> bool:
        """Whether batches are made of what is read, and it isn't batches that are."""
        return self.block > 1 or self.gives_singles

    @property
    def threads(self) -> int:
        """That read, in each process; 0: the one that asks does it."""
        options = self.reader._read_options if self.reader is not None else None
        return int(options.num_threads) if options is not None and int(options.prefetch_buffer_size) else 0

    @property
    def read_buffer(self) -> int:
        """Elements that are read ahead, in each process."""
        return int(self.reader._read_options.prefetch_buffer_size) if self.threads and self.reader is not None else 0


def look_at(dataset: Dataset) -> Pipeline:
    """What it consists of."""
    line = _line(dataset)
    shards = next((node for node in line if _has_workers(node)), None)
    if shards is None:
        reader = line[-1] if _is(line[-1], "prefetch", "PrefetchIterDataset") else None
        first, block = _exact(line) if reader is not None else (len(line), 1)
        return Pipeline(tuple(line[:first]), tuple(line[first:]), 0, None, block, reader, "" if reader else NO_READER)
    at = line.index(shards)
    given, chain = _given(shards), _line(_inner(shards))
    reader = chain[-1] if _is(chain[-1], "prefetch", "PrefetchIterDataset") else None
    first, block = _exact(chain) if reader is not None else (len(chain), 1)
    workers = len(shards._datasets)
    fixed = next((why for name, why in _FIXING.items() if name in given), "" if reader is not None else NO_READER)
    if not fixed and first:
        fixed = f"{type(chain[first - 1]).__name__} comes before its workers: another number would make other batches"
    if not fixed and block > 1 and workers > 1:
        fixed = IN_SHARES
    if not fixed and not _keeps_all(reader):
        fixed = MAY_DROP
    buffer = shards._datasets[0]._buffer_size
    return Pipeline(tuple(line[:at]), tuple(chain), workers, buffer, block, reader, fixed, given)


def rebuilt(pipeline: Pipeline, values: Mapping[str, Value]) -> Dataset:
    """The same pipeline with these values of the knobs. The script's own nodes stay as they are."""
    workers = int(values.get("num_workers", pipeline.workers))
    buffer = int(values.get("prefetch_factor", pipeline.buffer or 1))
    chain = [copy.copy(node) for node in pipeline.chain]
    if {"read_threads", "read_buffer"} & values.keys():
        chain[-1]._read_options = read_options(pipeline, values)
    if workers > 1 and pipeline.workers < 2 and pipeline.block > 1:
        data = copy.copy(chain[-1]._parents[0])
        data.__dict__.pop("_stats", None)  # they are of the script's own node
        chain[-1]._parents = (in_blocks(data, pipeline.block),)
    made = _joined(chain)
    if workers:
        options = sys.modules["grain._src.python.options"].MultiprocessingOptions
        made = made.mp_prefetch(options(num_workers=workers, per_worker_buffer_size=buffer), **pipeline.given)
    made = _joined([copy.copy(node) for node in pipeline.above], made)
    made.has_child = False  # Grain looks at the outermost node of a pipeline only
    return made


def keep_batches(written: Pipeline, dataset: Dataset) -> None:
    """Has the workers of a ``DataLoader`` that was made anew for them make the batches that it makes as written."""
    made = look_at(dataset)
    if made.workers > 1 and written.workers < 2 and written.block > 1 and made.reader is not None:
        in_blocks(made.reader._parents[0], written.block)


def read_options(pipeline: Pipeline, values: Mapping[str, Value]) -> Any:
    """What the pipeline reads with, and these values of the knobs."""
    made: Any = copy.copy(pipeline.reader._read_options) if pipeline.reader is not None else None
    if made is None:
        return None
    made.num_threads = values.get("read_threads", made.num_threads)
    made.prefetch_buffer_size = values.get("read_buffer", made.prefetch_buffer_size)
    return made


def reader_of(dataset: Dataset) -> Dataset | None:
    """The node that reads in what a worker runs."""
    last = _line(dataset)[-1]
    return last if _is(last, "prefetch", "PrefetchIterDataset") else None


def parts_of(pipeline: Pipeline) -> dict[str, object]:
    """Name → what of it is the script's own: its source, its functions, what samples."""
    found: dict[str, object] = {}
    waiting: list[Any] = [*pipeline.above, *pipeline.chain]
    waiting += list(getattr(pipeline.chain[-1], "_parents", ())) if pipeline.chain else []
    while waiting:
        node = waiting.pop()
        for name in ("_source", "_transform", "_batch_fn", "_sampler", "_operation", "_data_source"):
            value = getattr(node, name, None)
            if value is not None and not isinstance(value, sys.modules[_NODES].MapDataset):
                found[f"{name.lstrip('_')} {len(found)}"] = value
            elif value is not None:
                waiting.append(value)
        if node not in pipeline.above and node not in pipeline.chain:
            waiting += list(getattr(node, "_parents", ()))
    return found


def _line(dataset: Dataset) -> list[Dataset]:
    """The nodes one behind the other, outermost first, to where it branches, has workers, or is read."""
    nodes, line = sys.modules[_NODES], [dataset]
    while not _has_workers(line[-1]):
        parents: Any = getattr(line[-1], "_parents", ())
        if len(parents) != 1 or not isinstance(parents[0], nodes.IterDataset):
            break
        line.append(parents[0])
    return line


def _exact(line: Sequence[Dataset]) -> tuple[int, int]:
    """Where the nodes before the reader begin that any share of its elements may go through; samples of a block."""
    block = 1
    for number in reversed(range(len(line) - 1)):
        node = line[number]
        if block == 1 and _is(node, "batch", "BatchIterDataset"):
            block = int(node._batch_size)
        elif not any(_is(node, *kind) for kind in _ELEMENTWISE):
            return number + 1, block
    return 0, block


def _joined(nodes: Sequence[Dataset], innermost: Dataset | None = None) -> Dataset:
    """Copies of nodes, outermost first, one behind the other again."""
    made = innermost
    for node in reversed(nodes):
        if made is not None:
            node._parents, made.has_child = (made,), True
        made = node
    return made


def _has_workers(node: Dataset) -> bool:
    shards = getattr(node, "_datasets", None)
    kind = _kind("process_prefetch", "ProcessPrefetchIterDataset")
    return kind is not None and isinstance(shards, list) and bool(shards) and all(type(x) is kind for x in shards)


def _inner(shards: Dataset) -> Dataset:
    """What each of the workers runs a share of."""
    inner: Dataset = shards._datasets[0]._parents[0]._parents[0]
    return inner._parents[0] if _is(inner, "process_prefetch", "_LazyWorkerSliceIterDataset") else inner


def _given(shards: Dataset) -> dict[str, Any]:
    """What the script gives its workers that another number can't be given: as arguments of ``mp_prefetch``."""
    given, shard = dict[str, Any](), shards._datasets[0]
    if getattr(shard._parents[0]._parents[0], "_sequential_slice", False):
        given["sequential_slice"] = True
    functions: Any = getattr(shard._worker_init_fn, "args", [()])
    for own in functions[0][1:]:  # behind Grain's; it adds the worker's number, and how many there are
        given["worker_init_fn"] = partial(own.func, *own.args[:-2], **own.keywords)
    return given


def _keeps_all(reader: Dataset) -> bool:
    """Whether each index has its element, as far as the kinds of nodes show it: a batch has no missing ones."""
    node, batched = reader._parents[0], False
    while True:
        batched |= _is(node, "batch", "BatchMapDataset")
        if type(node).__name__ == "_SamplerMapDataset" or batched:
            return True
        may_drop = _is(node, "map", "MapMapDataset") or _is(node, "map", "RandomMapMapDataset")
        if may_drop or not any(_is(node, *kind) for kind in _WHOLE):
            return False
        parents = getattr(node, "_parents", ())
        if not parents:
            return True
        node = parents[0]


def _kind(part: str, name: str) -> type | None:
    return getattr(sys.modules.get(_PART + part if part else _NODES), name, None)


def _is(node: Dataset, part: str, name: str) -> bool:
    return type(node) is _kind(part, name)
