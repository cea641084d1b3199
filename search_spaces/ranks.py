"""How several ranks of PyTorch exchange gradients: the options of DistributedDataParallel. Declarations only."""

from __future__ import annotations

from collections.abc import Sequence

from tuner.knowledge import Knowledge
from tuner.model import Value
from tuner.space import Knob, Known

MIB = 1 << 20
BUCKET_MB = "ddp_bucket_mb"
SIZES = (1, 5, 25, 100)
"""In MiB, around the 25 that are PyTorch's own."""


def _bucket_sizes(known: Known) -> Sequence[Value]:
    """Those that make several buckets, and the first that makes one: larger ones make the same."""
    exchanged = known.knowledge.gradient_bytes
    if exchanged is None:
        return SIZES
    several = [size for size in SIZES if size * MIB < exchanged]
    return SIZES[: len(several) + 1]


def _one_bucket(known: Known) -> str:
    exchanged = known.knowledge.gradient_bytes
    fits = exchanged is not None and exchanged <= SIZES[0] * MIB
    return "all gradients fit into one bucket of any of these sizes" * fits


def exchange(knowledge: Knowledge) -> bool:
    """Whether ranks exchange gradients by such modules."""
    return BUCKET_MB in knowledge.as_written


KNOBS = (
    Knob(
        BUCKET_MB, _bucket_sizes, "MiB of gradients that ranks exchange at once",
        ordered=True, value_type=int, least=1, refuses=_one_bucket, for_ranks=True,
        tier_reason="The same gradients are averaged, more or fewer of them at once: rounding only.",
    ),
    Knob(
        "ddp_bucket_view", lambda known: [True, False], "gradients lie in what ranks exchange, and aren't copied",
        tier=2, value_type=bool, for_ranks=True,
        tier_reason="The same numbers, but earlier gradients that a script holds are written over, so it is screened.",
    ),
    Knob(
        "ddp_static_graph", lambda known: [True], "unused parameters are looked for once, and not in each step",
        value_type=bool, for_ranks=True,
        tier_reason="The same gradients are averaged; left out where other parameters are unused in another step.",
    ),
    Knob(
        "ddp_communication", lambda known: ["default", "bf16"], "number format in which ranks exchange gradients",
        tier=2, value_type=str, for_ranks=True,
        tier_reason="Gradients are rounded before they are averaged, so it is screened.",
    ),
)  # fmt: skip
