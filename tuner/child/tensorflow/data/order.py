"""The order of a tf.data dataset: which parallel calls may give their results as they are ready, and which must not.

Parallel calls that don't keep the order may pair inputs with other labels (below a ``zip``), train on what validates
(below a ``take`` or ``skip``), or tear sequences apart (below a ``window``, or in data that are never shuffled). A call
is freed of the order by its own argument, not by the option of the whole dataset: only where nothing above looks at the
order, and where the data are shuffled anyway.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import ModuleType

from ..types import Dataset
from .batches import BATCHERS, as_int
from .caches import lasting_ops, made_of, stateful_ops
from .options import why_one_by_one
from .recipes import Node
from .refused import Refused

UNSHUFFLED = "the script doesn't shuffle these data: their order may matter"
NO_CALLS = "nothing in the dataset runs in parallel"
_CALLS = ("map", "interleave", "batch")
# What looks at the order of elements, and why it matters there; what is in none of these tables is taken for such.
_ORDERED = {
    "zip": "zip pairs elements by their order: inputs could get other labels",
    "take": "take keeps the first elements: others would be trained on",
    "skip": "skip leaves the first elements out: others would be trained on",
    "shard": "shard keeps elements by their place: others would be trained on",
    "take_while": "take_while ends by the order of elements",
    "enumerate": "enumerate numbers the elements in their order",
    "window": "windows hold elements in their order",
    "scan": "scan carries a state from element to element",
    "group_by_window": "group_by_window makes its windows in the order of elements",
    "choose_from_datasets": "choose_from_datasets takes elements in an order of the script's",
}
# One element of one: what is in random order stays so, and a shuffle further up still comes before any batch.
_ONE_TO_ONE = ("map", "filter", "prefetch", "with_options", "ignore_errors", "assert_cardinality", "cache", "repeat")
_GROUPING = (*BATCHERS, "bucket_by_sequence_length")
# Others through which nothing depends on the order of the elements below.
_INDIFFERENT = ("shuffle", "unbatch", "flat_map", "interleave", "concatenate", "sample_from_datasets", "unique")
# Behind these, elements that came in random order are in random order.
_STAYS_RANDOM = (*_ONE_TO_ONE, *_GROUPING, "take", "skip", "shard", "enumerate", "take_while", "unique")


def written(node: Node, dataset: Dataset) -> bool:
    """Whether the script has its order kept. Raises ``Refused`` where it is kept, and no call could be freed of it."""
    if not _is_kept(node, dataset):
        return False
    _check_asked_for()
    _free(node, _may_run_in_parallel)
    return True


def freed(node: Node, dataset: Dataset, tf: ModuleType) -> tuple[Node, int, int]:
    """The tree whose parallel calls keep the order only where it matters; sites, changes. Raises ``Refused``."""
    if not _is_kept(node, dataset):
        return node, 1, 0
    _check_asked_for()
    chosen, sites = _free(node, _runs_in_parallel)

    def edit(link: Node) -> Node:
        if link.place not in chosen:
            return link
        calls = link.arguments.get("num_parallel_calls")
        return link.but(num_parallel_calls=tf.data.AUTOTUNE if calls is None else calls, deterministic=False)

    return node.rewritten(edit), sites, len(chosen)


def _free(node: Node, runs: Callable[[Node], bool]) -> tuple[set[object], int]:
    """The places of the calls that run in parallel and needn't keep the order; of how many. Raises ``Refused``."""
    reasons: dict[object, str] = {}
    for site, reason in _sites(node):
        if runs(site):  # one that is reached by several ways is free if it is so by each
            reasons[site.place] = reasons.get(site.place) or reason
    if not reasons:
        raise Refused(NO_CALLS)
    chosen = {place for place, reason in reasons.items() if not reason}
    if not chosen:
        raise Refused(next(iter(reasons.values())))
    return chosen, len(reasons)


def kept(node: Node, dataset: Dataset, tf: ModuleType) -> tuple[Node, int, int]:
    """The tree whose calls all keep the order; sites and changes."""
    if _is_kept(node, dataset):
        return node, 1, 0
    options = tf.data.Options()
    options.deterministic = True

    def edit(link: Node) -> Node:
        return link.but(deterministic=True) if link.arguments.get("deterministic") is False else link

    return node.rewritten(edit).then("with_options", options=options), 1, 1


def is_freed(dataset: Dataset) -> bool | None:
    """Whether some call of the dataset doesn't keep the order; None where TensorFlow doesn't show it."""
    if dataset.options().deterministic is False:
        return True
    seen = {getattr(below, "_deterministic", type(below).__name__) for below in made_of(dataset)}
    if "false" in seen:
        return True
    return None if "_ParallelInterleaveDataset" in seen else False


def _is_kept(node: Node, dataset: Dataset) -> bool:
    if dataset.options().deterministic is False:
        return False
    return all(link.arguments.get("deterministic") is not False for link in node.all())


def _check_asked_for() -> None:
    """A script that has TensorFlow compute the same each time relies on the order, whatever its data."""
    if sys.modules["tensorflow.python.framework.config"].is_op_determinism_enabled():
        raise Refused("the script asks TensorFlow for deterministic operations")


def _runs_in_parallel(link: Node) -> bool:
    """As it is: by the script's own words or the config's, or since TensorFlow makes a stateless map so by itself."""
    if link.arguments.get("num_parallel_calls") is not None:
        return True
    return link.method == "map" and not link.arguments.get("synchronous") and _is_stateless(link)


def _may_run_in_parallel(link: Node) -> bool:
    """As it is, or with other parallel calls."""
    turned = link.method in ("map", "interleave") and not link.arguments.get("synchronous")
    return _runs_in_parallel(link) or (turned and not why_one_by_one(link))


def _is_stateless(link: Node) -> bool:
    return link.dataset is not None and not stateful_ops(link.dataset)


def _sites(root: Node) -> Iterator[tuple[Node, str]]:
    """Each call that could run in parallel, and why its results must keep their order; "" where they needn't.

    One that is reached by several ways is given once for each.
    """
    waiting = [(root, "", False)]
    while waiting:
        link, ordered, mixed = waiting.pop()
        if link.method in _CALLS:
            yield link, ordered or ("" if mixed or _is_random(link) else UNSHUFFLED)
        ordered = ordered or _why_ordered(link)
        mixed = _shuffles(link) or (mixed and link.method not in _GROUPING)
        waiting.extend((source, ordered, mixed) for source in reversed(link.inputs))


def _why_ordered(link: Node) -> str:
    """Why it matters to this link in which order its elements come; "" where it doesn't."""
    if link.method in _ORDERED:
        return _ORDERED[link.method]
    if link.method not in (*_ONE_TO_ONE, *_GROUPING, *_INDIFFERENT):
        return f"what {link.method.strip('_')} makes of another order isn't known"
    if link.dataset is None:
        return ""  # of our own making: moved from where the script had it, or stateless
    stateful = lasting_ops(link.dataset)
    return f"the function handed to {link.method} holds {stateful[0]}: the order may matter to it" if stateful else ""


def _is_random(link: Node) -> bool:
    """Whether its elements come in random order already."""
    while len(link.inputs) == 1:
        link = link.inputs[0]
        if _shuffles(link):
            return True
        if link.method not in _STAYS_RANDOM:
            return False
    return link.method == "sample_from_datasets"


def _shuffles(link: Node) -> bool:
    return link.method == "shuffle" and as_int(link.arguments.get("buffer_size")) != 1
