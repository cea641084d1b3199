"""What can be turned in a JAX training script, with no edits to it. Declarations only."""

from __future__ import annotations

from collections.abc import Sequence

from search_spaces import batches, loaders, memory, processors
from tuner.model import Value
from tuner.space import Knob, Known, SearchSpace

PRECISIONS = ("fp32", "tf32", "bf16")
"""Each is faster than those before it, on a card that has it: what is slower than as written isn't tried."""


def _precisions(known: Known) -> Sequence[Value]:
    first = PRECISIONS.index(str(known.as_written)) if known.as_written in PRECISIONS else 0
    return [name for name in PRECISIONS[first:] if name in known.knowledge.precisions]


CUDA = frozenset({"cuda"})
CPU_AND_CUDA = processors.CPU | CUDA

SPACE = SearchSpace(
    name="jax",
    framework="jax",
    allowed=batches.allowed,
    derive=batches.derive,
    larger=batches.LARGER_BATCH,
    knobs=(
        *loaders.of_fed(
            *loaders.DATALOADER, *loaders.TF_DATA, loaders.READ_THREADS, loaders.READ_BUFFER,
            loaders.DEVICE_PREFETCH,
        ),
        Knob(
            "threads", processors.threads, "threads in which JAX's client computes on a processor",
            ordered=True, devices=processors.CPU, value_type=int, least=1, on_cores=True,
            tier_reason="The same sums over the same numbers, taken in another order: they differ in rounding only.",
        ),
        processors.ASYNC_DISPATCH,
        Knob(
            "donation", lambda known: [False, True], "a step computes its new state in the memory of the old one",
            value_type=bool,
            tier_reason="The same operations on the same numbers: what anything may still read is never given away.",
        ),
        Knob(
            "steps_per_call", lambda known: [1, 4, 16], "training steps that one call of a compiled function takes",
            tier=2, ordered=True, needs=lambda config: not config.get("donation", False), value_type=int, least=1,
            tier_reason="XLA compiles the same operations anew, in a loop, and may round otherwise, so it is screened.",
        ),
        Knob(
            "checkpointing", lambda known: [True, False], "parts of a compiled loss are computed again in the backward",
            tier=2, devices=CPU_AND_CUDA, value_type=bool, spares_memory=True,
            tier_reason="XLA compiles the same operations in parts, and may round otherwise, so it is screened.",
        ),
        memory.ALLOCATOR,
        Knob(
            "precision", _precisions, "number format of matrix products of float32",
            tier=2, devices=CUDA, value_type=str,
            tier_reason="Matrix products of float32 are rounded to another format, so it is screened.",
        ),
        batches.BATCH_SIZE,
        batches.GRAD_ACCUMULATION,
        batches.LR_SCALE,
    ),
)  # fmt: skip
