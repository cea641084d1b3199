"""How batches reach an XLA device ahead of the loop: the options of torch_xla's ParallelLoader. Declarations only."""

from __future__ import annotations

from collections.abc import Sequence

from tuner.knowledge import Knowledge
from tuner.model import Value
from tuner.space import Knob, Known

XLA = frozenset({"tpu", "xla"})
MADE_READY = (8, 32, 128)
"""Around torch_xla's own 16, up to what its script for ImageNet takes on a TPU v4 (``OPTIMIZED_KWARGS``)."""
UPLOADED = (1, 4, 16)
"""Likewise around 8. So many are gathered before the first of them is uploaded."""


def _backwards(knowledge: Knowledge) -> int:
    """To a step; 1 where the script doesn't accumulate."""
    written = knowledge.as_written.get("grad_accumulation")
    return written if type(written) is int and written > 0 else 1


def _in_a_graph(known: Known) -> Sequence[Value]:
    """Of a script that accumulates, as many as make whole steps: else there are graphs with and without an update."""
    parts = _backwards(known.knowledge)
    return [parts, 2 * parts, 4 * parts] if parts > 1 else [2, 4, 8]


KNOBS = (
    Knob(
        "loader_prefetch_size", lambda known: MADE_READY, "batches that torch_xla's loader fetches ahead",
        ordered=True, loader=True, heavier=True, devices=XLA, silent_elsewhere=True, value_type=int, least=1,
        tier_reason="The same batches in the same order, fetched earlier.",
    ),
    Knob(
        "device_prefetch_size", lambda known: UPLOADED, "batches that lie uploaded on the device",
        ordered=True, loader=True, heavier=True, devices=XLA, silent_elsewhere=True, value_type=int, least=1,
        tier_reason="The same batches in the same order, uploaded earlier or later.",
    ),
    Knob(
        "host_to_device_transfer_threads", lambda known: [1, 2, 4], "threads that upload batches",
        tier=2, ordered=True, loader=True, devices=XLA, silent_elsewhere=True, value_type=int, least=1,
        tier_reason="Of several threads each uploads batches of its own: their order is another, so it is screened.",
    ),
    Knob(
        "batches_per_execution", _in_a_graph, "batches that one graph trains on",
        tier=2, ordered=True, heavier=True, late=True, devices=XLA, silent_elsewhere=True, value_type=int, least=1,
        tier_reason="XLA fuses the operations of several steps, which rounds otherwise, so it is screened.",
    ),
)  # fmt: skip
