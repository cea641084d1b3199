"""A pipeline beside the script's, for a config that has turns: over the same dataset, endless, sharing nothing with it.

It is begun anew with each turn and dropped after it: TensorFlow can't hold a pipeline's threads still, which would fill
their queue in others' turns. So what a start costs has to be small: a shuffle holds few elements. What a batch takes is
the same, since each element that is taken makes place for one that has to be made.
"""

from __future__ import annotations

from dataclasses import replace

from ...rounds import MOST_SHUFFLED
from .batches import BATCHERS, as_int
from .caches import is_steady_link, lasting_ops, why_unsteady
from .recipes import Node

# Behind these it makes no difference whether the elements of several passes come one after the other.
_INDIFFERENT = (
    "map", "filter", "flat_map", "interleave", "shuffle", "prefetch", "with_options", "unbatch", "ignore_errors",
    *BATCHERS,
)  # fmt: skip


def obstacle(node: Node) -> str:
    """Why no second pipeline can be made beside the script's, or "": of what both would change, or can't be told."""
    return next(filter(None, map(_why_not, node.all())), "")


def _why_not(link: Node) -> str:
    if link.method in ("cache", "snapshot"):
        return "it caches its data: another pipeline would fill a cache of its own"
    if not link.inputs:
        return why_unsteady(link)
    if link.method == "shuffle":
        return ""
    if not is_steady_link(link):
        return f"what {link.method.strip('_')} gives another pipeline isn't known"
    lasting = [] if link.dataset is None else lasting_ops(link.dataset)
    if not lasting:
        return ""
    cause = "calls Python" if any("PyFunc" in name for name in lasting) else f"holds {lasting[0]}"
    return f"the function handed to {link.method} {cause}: another pipeline may change what it gives the script's"


def apart(node: Node) -> Node:
    """The tree of an endless pipeline that shares nothing with the script's but where its data come from.

    A shuffle of the script's draws the next order for whoever iterates: so each link is made anew, by the same seeds.
    """
    return _endless(node).rewritten(_made_anew)


def _endless(node: Node) -> Node:
    """Repeated as far down as it makes no difference: batches go on across the end of a pass, shuffles stay full."""
    if node.method == "repeat":
        return _endless(node.inputs[0])
    if node.method in _INDIFFERENT and len(node.inputs) == 1:
        return node.on(_endless(node.inputs[0]))
    return node.then("repeat")


def _made_anew(link: Node) -> Node:
    if link.method == "shuffle":
        size = as_int(link.arguments.get("buffer_size"))
        if size is None or not 0 < size <= MOST_SHUFFLED:
            return link.but(buffer_size=MOST_SHUFFLED)
    return replace(link, changed=True) if link.inputs else link
