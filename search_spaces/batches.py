"""Rules that every framework's space shares: the effective batch, what keeps it, and the rate that follows it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from tuner.knowledge import Knowledge
from tuner.model import Value
from tuner.space import Knob, Known

MOST_WORKERS = 64
"""Processes or threads that make batches, where there are fewer cores: each takes memory, and batches in a queue."""


def keeps(knowledge: Knowledge) -> bool:
    """Whether samples per optimizer step are to stay as the script wrote them."""
    return knowledge.effective_batch == "keep"


def count(config: Mapping[str, Value], knob: str, otherwise: int) -> int:
    """A knob's whole number; a script may write anything, such as ``auto``."""
    value = config.get(knob)
    return value if type(value) is int else otherwise


def effective(config: Mapping[str, Value]) -> int:
    """Samples per optimizer step."""
    return count(config, "batch_size", 1) * count(config, "grad_accumulation", 1)


def allowed(complete: Mapping[str, Value], knowledge: Knowledge) -> bool:
    """The effective batch is kept also where the batch sizes are the user's own."""
    return not keeps(knowledge) or effective(complete) == effective(knowledge.as_written)


def beyond(cores: int) -> Sequence[int]:
    """Numbers of workers above the cores: of use where workers wait, for a disk or a network, rather than compute."""
    numbers = (cores * 2**doubled for doubled in range(1, MOST_WORKERS.bit_length()))
    return [number for number in numbers if number <= MOST_WORKERS]


def batch_sizes(known: Known) -> Sequence[Value]:
    """Parts of the effective batch where that is kept, else up to 16 times what the script wrote."""
    as_written = known.knowledge.as_written
    if keeps(known.knowledge):
        whole = effective(as_written)
        return [whole // parts for parts in (1, 2, 4, 8) if whole % parts == 0]
    written = count(as_written, "batch_size", 1)
    largest = known.knowledge.dataset_len or written * 16
    return [b for b in (written * f // 4 for f in (1, 2, 8, 16, 32, 64)) if 1 <= b <= largest]


def batch_refuses(known: Known) -> str:
    """Why the batch size can't be turned while the effective batch is kept, or ""."""
    if not keeps(known.knowledge):
        return _uncounted(known.knowledge) or _counted(known.knowledge)
    if known.knowledge.batch_norm:
        return "BatchNorm would see smaller batches (see --effective-batch)"
    accumulation = known.knowledge.left_out.get("grad_accumulation", "")
    if accumulation:
        return f"it would change the effective batch (see --effective-batch), since {accumulation}"
    return ""


def accumulation_refuses(known: Known) -> str:
    if keeps(known.knowledge):
        return "follows batch_size, so that the effective batch is kept"
    return _counted(known.knowledge)


def _counted(knowledge: Knowledge) -> str:
    """Why another effective batch would change more than what a step trains on, or "".

    Parts of the same batch change nothing here: where a step splits its batch, what counts batches sees them whole.
    """
    name = knowledge.acts_by_batch
    return f"{name} acts with every batch, and would see other batches" if name else ""


def _uncounted(knowledge: Knowledge) -> str:
    """Why batches of other sizes can't be compared, or "". Of smaller ones there are more steps in a second."""
    return "steps are counted, and not their samples: smaller batches would look faster" * (knowledge.unit == "steps")


def derive(complete: Mapping[str, Value], knowledge: Knowledge) -> Mapping[str, Value]:
    """With the effective batch kept, as many micro-batches make a step as the batch size asks for.

    Where it is free, the learning rate follows it: linearly for SGD (Goyal et al. 2017), by the square root for
    optimizers that divide by the gradients' size (Malladi et al. 2022). ``--set lr_scale=1`` leaves it alone.
    """
    if not keeps(knowledge):
        return _derived_rate(effective(complete) / effective(knowledge.as_written), knowledge)
    batch_size = complete.get("batch_size")
    if not batch_size or batch_size == knowledge.as_written.get("batch_size"):
        return {}
    return {"grad_accumulation": max(1, effective(knowledge.as_written) // count(complete, "batch_size", 1))}


def _derived_rate(ratio: float, knowledge: Knowledge) -> Mapping[str, Value]:
    known = "lr_scale" in knowledge.as_written and "lr_scale" not in knowledge.left_out
    if ratio == 1 or not known or knowledge.loss_reduction != "mean":
        return {}
    linear = all(name == "SGD" for name in knowledge.optimizers)
    return {"lr_scale": round(ratio if linear else math.sqrt(ratio), 6)}


def rate_refuses(known: Known) -> str:
    return "follows the effective batch, which is kept" if keeps(known.knowledge) else "follows the effective batch"


def accumulations(known: Known) -> Sequence[Value]:
    return [2, 4, 8]


BATCH_SIZE = Knob(
    "batch_size", batch_sizes, "samples in one forward pass",
    tier=3, ordered=True, heavier=True, refuses=batch_refuses, value_type=int, least=1,
    tier_reason="A step may average over other samples, so it is screened for what it learns from as many of them.",
)  # fmt: skip
GRAD_ACCUMULATION = Knob(
    "grad_accumulation", accumulations, "micro-batches in one optimizer step",
    tier=3, ordered=True, refuses=accumulation_refuses, value_type=int, least=1,
    tier_reason="A step may average over more samples, so it is screened for what it learns from as many of them.",
)  # fmt: skip
LR_SCALE = Knob(
    "lr_scale", lambda known: [], "factor on the learning rate, as the effective batch asks for",
    tier=3, refuses=rate_refuses, value_type=float,
    tier_reason="Each step goes another way, so it is screened for what it learns from as many samples.",
)  # fmt: skip
