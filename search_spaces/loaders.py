"""Knobs of what gives a loop its batches, PyTorch's DataLoader, tf.data, Grain: the same whichever framework trains."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from search_spaces import batches, prefetch
from tuner.model import Value
from tuner.space import Knob, Known

AUTO = "auto"
"""tf.data's AUTOTUNE: TensorFlow chooses while it runs."""


def _workers(known: Known) -> Sequence[Value]:
    few = [n for n in (2, 4, 8, 12, 16) if n <= known.cores]
    # Workers share a stream out: the more there are, the more samples are left for a last batch, which may be dropped.
    many = batches.beyond(known.cores, known.ranks) if known.knowledge.dataset_len is not None else ()
    return sorted({0, 1, *few, known.cores, *many})


def _has_workers(config: Mapping[str, Value]) -> bool:
    return batches.count(config, "num_workers", 0) > 0


def _makes_batches_itself(config: Mapping[str, Value]) -> bool:
    return not _has_workers(config)


def _parallel_calls(known: Known) -> Sequence[Value]:
    return [AUTO, known.cores]


def _cache_refuses(known: Known) -> str:
    """What is kept in memory has to fit beside what the script takes."""
    needed, free = known.knowledge.cache_bytes, known.knowledge.free_host_bytes
    if needed is None or free is None or needed <= free:
        return ""
    return f"it would take {needed / 2**20:,.0f} MiB, and {free / 2**20:,.0f} MiB are left of the memory limit"


def _private_threads(known: Known) -> Sequence[Value]:
    return sorted({0, 1, max(1, known.cores // 2), known.cores})


def _prefetches(known: Known) -> Sequence[Value]:
    found = prefetch.of_pipeline(known)
    return [AUTO, 1, 4] if found is None else [AUTO, *sorted({1, 4, found.depth})]


def _reads_ahead(config: Mapping[str, Value]) -> bool:
    return batches.count(config, "read_threads", 1) > 0


def _read_threads(known: Known) -> Sequence[Value]:
    return [0, 1, 4, 16]


def _read_buffers(known: Known) -> Sequence[Value]:
    return [16, 64, 500]


NUM_WORKERS = Knob(
    "num_workers", _workers, "DataLoader worker processes",
    ordered=True, loader=True, heavier=True, switchable=True, value_type=int, least=0, on_cores=True,
    keeps_up=batches.workers_that_keep_up,
    tier_reason="The same samples in order, streams in shares; left out where workers copy what changes or is open.",
)  # fmt: skip

PREFETCH_FACTOR = Knob(
    "prefetch_factor", prefetch.factors, "batches that each worker keeps ready",
    ordered=True, loader=True, heavier=True, switchable=True, needs=_has_workers, value_type=int, least=1,
    told=prefetch.factors_told,
    tier_reason="The same batches in the same order, made earlier; left out where a sampler learns.",
)  # fmt: skip

PERSISTENT_WORKERS = Knob(
    "persistent_workers", lambda known: [True, False], "workers survive the end of an epoch",
    loader=True, needs=_has_workers, value_type=bool,
    tier_reason="Workers that live on have the data as they were: they are started anew where these change.",
)  # fmt: skip

PARALLEL_CALLS = Knob(
    "parallel_calls", _parallel_calls, "elements that a map of tf.data prepares at once", loader=True,
    on_cores=True, switchable=True,
    tier_reason="Order kept; left out for functions that call Python or keep a state between calls.",
)  # fmt: skip

VECTORIZED_MAP = Knob(
    "vectorized_map", lambda known: [True, False], "tf.data maps whole batches where the script maps elements",
    loader=True, switchable=True, value_type=bool,
    tier_reason="Stateless functions only; the first results are compared with those of single elements.",
)  # fmt: skip

CACHE = Knob(
    "cache", lambda known: [True, False], "tf.data keeps prepared elements in memory",
    loader=True, heavier=True, refuses=_cache_refuses, value_type=bool,
    tier_reason="Only what each epoch makes anew in the same way is kept: never what is drawn or shuffled.",
)  # fmt: skip

DETERMINISTIC = Knob(
    "deterministic", lambda known: [True, False], "tf.data keeps the order of elements",
    loader=True, switchable=True, value_type=bool,
    tier_reason="Only shuffled data, and only calls below nothing that goes by the order: zip, take, window.",
)  # fmt: skip

PREFETCH = Knob(
    "prefetch", _prefetches, "batches that tf.data keeps ready", loader=True, switchable=True,
    told=prefetch.depths_told,
    tier_reason="The same elements in the same order, made earlier.",
)  # fmt: skip

PRIVATE_THREADS = Knob(
    "private_threads", _private_threads, "threads of tf.data's own, 0 for the runtime's",
    ordered=True, loader=True, switchable=True, value_type=int, least=0, on_cores=True,
    tier_reason="The same functions on the same elements in the same order, in other threads.",
)  # fmt: skip

READ_THREADS = Knob(
    "read_threads", _read_threads, "threads in which Grain reads, in each process; 0: none of their own",
    ordered=True, loader=True, value_type=int, least=0,
    tier_reason="The same elements in the same order; left out where the script reads in one thread.",
)  # fmt: skip

READ_BUFFER = Knob(
    "read_buffer", _read_buffers, "elements that Grain reads ahead, in each process",
    ordered=True, loader=True, heavier=True, needs=_reads_ahead, value_type=int, least=1,
    tier_reason="The same elements in the same order, read earlier.",
)  # fmt: skip

DEVICE_PREFETCH = Knob(
    "device_prefetch", lambda known: [0, 2, 8], "batches that a thread makes, and puts on the device, ahead",
    ordered=True, loader=True, heavier=True, needs=_makes_batches_itself, value_type=int, least=0,
    tier_reason="The same batches in the same order, on the device earlier, where only compiled functions read them.",
)  # fmt: skip

DATALOADER = (NUM_WORKERS, PREFETCH_FACTOR, PERSISTENT_WORKERS)
TF_DATA = (PARALLEL_CALLS, VECTORIZED_MAP, CACHE, DETERMINISTIC, PREFETCH, PRIVATE_THREADS)


def of_fed(*knobs: Knob) -> tuple[Knob, ...]:
    """The same for a framework that is fed by another one's loaders: nothing turns them between two steps there."""
    return tuple(replace(knob, switchable=False) for knob in knobs)
