"""The smaller changes of a tf.data dataset: parallel calls, prefetch, options."""

from __future__ import annotations

import os
from types import ModuleType

from ...records import Value
from ..types import Dataset
from .batches import as_int
from .caches import lasting_ops
from .recipes import Node
from .refused import Refused

AUTO = "auto"
NONE = "none"
_PARALLEL = ("map", "interleave")
# Through these the last prefetch is looked for; what isn't here ends the search.
_ABOVE_BATCH = ("map", "with_options", "cache", "repeat", "take", "skip", "shuffle", "enumerate", "ignore_errors")


def as_calls(value: Value) -> str | int:
    """A knob's value as a number of calls or elements, or the word for TensorFlow's own choice."""
    return value if isinstance(value, str) else int(value)


def parallel_sites(node: Node) -> list[Node]:
    """The calls that the knob is about: maps and interleaves, batches where the script made them parallel itself.

    TensorFlow fuses a plain batch with the map before it; one that is made parallel stays by itself. Raises ``Refused``
    where there are calls, and none of them may be turned.
    """
    functions = [x for x in node.all() if x.method in _PARALLEL and not x.arguments.get("synchronous")]
    batches = [x for x in node.all() if x.method == "batch"]
    explicit = [x for x in batches if x.arguments.get("num_parallel_calls") is not None]
    reasons = {id(x): why_one_by_one(x) for x in functions}
    turned = [x for x in functions if not reasons[id(x)]]
    if functions and not turned and not explicit:
        raise Refused(reasons[id(functions[0])])
    return turned + (explicit if functions else batches)


def why_one_by_one(link: Node) -> str:
    """Why the calls of its function have to stay as the script has them; "" where they may run at once, or not."""
    if link.method == "interleave" and _calls_of(link) != NONE and not _cycle_of(link):
        return "without a cycle_length the number of calls decides in which order interleave reads"
    if _calls_of(link) != NONE or link.dataset is None:
        return ""
    stateful = lasting_ops(link.dataset)
    if any("PyFunc" in name for name in stateful):
        return f"the function handed to {link.method} calls Python, which may not bear several calls at once"
    if stateful:
        return f"the function handed to {link.method} holds {stateful[0]}: one call may depend on the one before"
    return ""


def written_calls(node: Node) -> str | int:
    """num_parallel_calls as the script wrote it: the one value of all sites, else "mixed". Raises ``Refused``."""
    sites = parallel_sites(node)
    if not sites:
        raise Refused("nothing in the dataset takes num_parallel_calls")
    values = {_calls_of(site) for site in sites}
    return values.pop() if len(values) == 1 else "mixed"


def _calls_of(site: Node) -> str | int:
    written = site.arguments.get("num_parallel_calls")
    if written is None:
        return NONE
    count = as_int(written)
    return AUTO if count == -1 else "mixed" if count is None else count


def with_calls(node: Node, dataset: Dataset, calls: str | int, tf: ModuleType) -> tuple[Node, int, int]:
    """The tree with ``calls`` at each site, how many sites there are, how many changed. Raises ``Refused``.

    The order of elements stays as it is, whatever the script's options say: they were written for fewer calls.
    """
    sites = parallel_sites(node)
    if not sites:
        raise Refused("nothing in the dataset takes num_parallel_calls")
    chosen = {site.place for site in sites if _calls_of(site) != calls}
    keeps_order = dataset.options().deterministic is False

    def edit(link: Node) -> Node:
        if link.place not in chosen:
            return link
        if calls == NONE:
            return link.but(without=("num_parallel_calls", "deterministic"))
        parallel = link.but(deterministic=True) if keeps_order and _calls_of(link) == NONE else link
        if link.method == "interleave" and not _cycle_of(link):
            parallel = parallel.but(cycle_length=len(os.sched_getaffinity(0)))  # what TensorFlow takes without calls
        return parallel.but(num_parallel_calls=tf.data.AUTOTUNE if calls == AUTO else _fitting(parallel, int(calls)))

    return node.rewritten(edit), len(sites), len(chosen)


def _cycle_of(link: Node) -> int:
    """How many elements an interleave reads from at once; 0 where TensorFlow decides."""
    return max(0, as_int(link.arguments.get("cycle_length")) or 0)


def _fitting(link: Node, calls: int) -> int:
    cycle = _cycle_of(link)
    return min(calls, cycle) if link.method == "interleave" and cycle else calls


def _prefetches(node: Node) -> list[Node]:
    """The prefetches behind the last batcher, the last one first."""
    prefetches = []
    while node.method == "prefetch" or node.method in _ABOVE_BATCH:
        if node.method == "prefetch":
            prefetches.append(node)
        node = node.inputs[0]
    return prefetches


def written_prefetch(node: Node) -> str | int:
    """The depth of the last prefetch, 0 without one. Raises ``Refused``."""
    _check_last(node)
    prefetches = _prefetches(node)
    return _depth(prefetches[0]) if prefetches else 0


def _check_last(node: Node) -> None:
    if node.method == "apply" and "Prefetch" in type(node.dataset).__name__:
        raise Refused("the script prefetches to the device itself, which must come last")


def _depth(node: Node) -> str | int:
    depth = as_int(node.arguments.get("buffer_size"))
    return AUTO if depth in (None, -1) else int(depth or 0)


def with_prefetch(node: Node, depth: str | int, tf: ModuleType) -> tuple[Node, int, int]:
    """The tree with so deep a last prefetch (0: none behind the last batcher), sites, changes. Raises ``Refused``."""
    _check_last(node)
    prefetches = _prefetches(node)
    buffer_size = tf.data.AUTOTUNE if depth == AUTO else int(depth)
    if not prefetches:
        return (node.then("prefetch", buffer_size=buffer_size), 1, 1) if depth else (node, 1, 0)
    if _depth(prefetches[0]) == depth and depth:
        return node, len(prefetches), 0
    chosen = {id(x.dataset) for x in (prefetches if not depth else prefetches[:1])}

    def edit(link: Node) -> Node:
        if id(link.dataset) not in chosen or link.dataset is None:
            return link
        return link.but(buffer_size=buffer_size) if depth else link.inputs[0]

    return node.rewritten(edit), len(prefetches), len(chosen)


def written_threads(dataset: Dataset) -> int:
    """Threads of the data's own, 0 for the runtime's."""
    return int(dataset.options().threading.private_threadpool_size or 0)


def with_threads(node: Node, dataset: Dataset, threads: int, tf: ModuleType) -> tuple[Node, int, int]:
    """The tree with the option set last, where it overrides what was set before. Raises ``Refused``."""
    if written_threads(dataset) == threads:
        return node, 1, 0
    if not threads:
        raise Refused("the script gives its data a pool of threads itself, which can't be taken away again")
    options = tf.data.Options()
    options.threading.private_threadpool_size = threads
    return node.then("with_options", options=options), 1, 1
