"""The smaller changes of a tf.data dataset: parallel calls, prefetch, options."""

from __future__ import annotations

from types import ModuleType

from ...records import Value
from ..types import Dataset
from .batches import as_int
from .recipes import Node, Refused

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

    TensorFlow fuses a plain batch with the map before it; one that is made parallel stays by itself.
    """
    functions = [x for x in node.all() if x.method in _PARALLEL and not x.arguments.get("synchronous")]
    batches = [x for x in node.all() if x.method == "batch"]
    explicit = [x for x in batches if x.arguments.get("num_parallel_calls") is not None]
    return functions + (explicit if functions else batches)


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


def with_calls(node: Node, calls: str | int, tf: ModuleType) -> tuple[Node, int, int]:
    """The tree with ``calls`` at each site, how many sites there are, how many changed. Raises ``Refused``."""
    sites = parallel_sites(node)
    if not sites:
        raise Refused("nothing in the dataset takes num_parallel_calls")
    chosen = {id(site.dataset) for site in sites if _calls_of(site) != calls}

    def edit(link: Node) -> Node:
        if id(link.dataset) not in chosen:
            return link
        if calls == NONE:
            return link.but(without=("num_parallel_calls", "deterministic"))
        return link.but(num_parallel_calls=tf.data.AUTOTUNE if calls == AUTO else _fitting(link, int(calls)))

    return node.rewritten(edit), len(sites), len(chosen)


def _fitting(link: Node, calls: int) -> int:
    cycle = as_int(link.arguments.get("cycle_length"))
    return min(calls, cycle) if link.method == "interleave" and cycle is not None and cycle > 0 else calls


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


def written_options(dataset: Dataset) -> dict[str, bool | int]:
    """``deterministic`` and ``private_threads`` as they are in force."""
    options = dataset.options()
    return {
        "deterministic": options.deterministic is not False,
        "private_threads": int(options.threading.private_threadpool_size or 0),
    }


def with_option(node: Node, dataset: Dataset, knob: str, value: Value, tf: ModuleType) -> tuple[Node, int, int]:
    """The tree with the option set last, where it overrides what was set before. Raises ``Refused``."""
    written = written_options(dataset)[knob]
    if written == value:
        return node, 1, 0
    options = tf.data.Options()
    if knob == "deterministic":
        options.deterministic = bool(value)
    elif not value:
        raise Refused("the script gives its data a pool of threads itself, which can't be taken away again")
    else:
        options.threading.private_threadpool_size = int(value)
    return node.then("with_options", options=options), 1, 1
