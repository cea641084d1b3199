"""Rules that every framework's space shares: the effective batch, what keeps it, and the rate that follows it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from tuner.knowledge import BOTH, FREE, Knowledge, count_of, samples_per_step
from tuner.model import Value
from tuner.space import Knob, Known

MOST_WORKERS = 64
"""Processes or threads that make batches, where there are fewer cores: each takes memory, and batches in a queue."""
LARGER = (2, 4, 8, 16)
"""So many times the effective batch are tried beside it."""
LEAST_OF_EPOCH = 0.95
"""Of the samples of an epoch so many have to be left where whole batches alone are trained on."""
LEAVES_OUT = f"whole batches of a larger size would leave out more than {1 - LEAST_OF_EPOCH:.0%} of an epoch's samples"


def keeps(knowledge: Knowledge) -> bool:
    """Whether the configs of the search keep the samples per optimizer step as the script wrote them."""
    return knowledge.effective_batch != FREE


def count(config: Mapping[str, Value], knob: str, otherwise: int) -> int:
    """A knob's whole number; a script may write anything, such as ``auto``."""
    return count_of(config, knob, otherwise)


def allowed(complete: Mapping[str, Value], knowledge: Knowledge) -> bool:
    """The effective batch is kept also where the batch sizes are the user's own; larger ones are a contest apart."""
    return not keeps(knowledge) or samples_per_step(complete) == samples_per_step(knowledge.as_written)


def beyond(cores: int, ranks: int = 1) -> Sequence[int]:
    """Numbers of workers above the cores: of use where workers wait, for a disk or a network, rather than compute.

    Of several ``ranks`` each has so many.
    """
    numbers = (cores * 2**doubled for doubled in range(1, MOST_WORKERS.bit_length()))
    return [number for number in numbers if number * ranks <= MOST_WORKERS]


def workers_that_keep_up(workers: Value, wait: float) -> float:
    """How many make batches as fast as the loop takes them, by the share of its time that it waits with these workers.

    That is the seconds that a batch takes to prepare by the seconds of a step without the wait. A loop without workers
    waits for all that its batches take; with some, that is so many times a step's time, which they share.
    """
    has = workers if isinstance(workers, int) and workers > 0 else 0
    return has / (1 - wait) if has else wait / (1 - wait)


def batch_sizes(known: Known) -> Sequence[Value]:
    """Parts of the effective batch where that is kept, else up to 16 times what the script wrote."""
    as_written = known.knowledge.as_written
    if keeps(known.knowledge):
        whole = samples_per_step(as_written)
        return _shared_evenly([whole // parts for parts in (1, 2, 4, 8) if whole % parts == 0], known)
    written = count(as_written, "batch_size", 1)
    largest = _rows(known) or written * 16
    return _shared_evenly([b for b in (written * f // 4 for f in (1, 2, 8, 16, 32, 64)) if 1 <= b <= largest], known)


def _shared_evenly(sizes: Sequence[int], known: Known) -> Sequence[int]:
    """Those of which each device gets as many samples, where it does of the script's own.

    JAX refuses others, and TensorFlow takes the mean over replicas as if each had as many.
    """
    devices, written = max(1, known.knowledge.devices), count(known.knowledge.as_written, "batch_size", 1)
    return [size for size in sizes if size % devices == 0 or written % devices]


def larger_batch_sizes(known: Known) -> Sequence[Value]:
    """Multiples of the effective batch, as far as an epoch reaches.

    The script's own accumulation stays where it can't be turned. Elsewhere a larger batch is computed whole: parts of
    it would give back what it gains.
    """
    return [size for size in _sizes_that_fit(known) if _keeps_epoch(size, known)]


def _sizes_that_fit(known: Known) -> list[int]:
    """Multiples of the effective batch of which there is one in an epoch at least."""
    knowledge = known.knowledge
    whole = _largest_kept(knowledge)
    steps = samples_per_step(knowledge.as_written) // whole
    largest = _rows(known) or whole * steps * max(LARGER)
    return [whole * factor for factor in LARGER if whole * factor * steps <= largest]


def _rows(known: Known) -> int | None:
    """The data that one rank draws its epoch from; None where nobody knows.

    A sampler deals them out to the ranks, unless each has the whole of its dataset, which its epochs then show.
    """
    rows, epoch = known.knowledge.dataset_len, known.knowledge.epoch
    if rows is None or known.ranks == 1:
        return rows
    dealt = -(-rows // known.ranks)
    if epoch is None:
        return dealt
    own = epoch.samples / known.ranks
    return dealt if own < dealt + own / max(1, epoch.batches) else rows


def _keeps_epoch(size: int, known: Known) -> bool:
    """Whether batches of that size hold nearly all that an epoch trains on, where it leaves out its last, smaller one.

    It does where its batches hold fewer samples than there are (``drop_last``), or draws fewer than there are; nobody
    knows where they hold exactly as many.
    """
    epoch, rows = known.knowledge.epoch, _rows(known)
    samples = epoch.samples / known.ranks if epoch is not None else 0.0  # those of all ranks, of which each has a part
    if epoch is None or rows is None or samples > rows:
        return True
    return samples // size * size >= LEAST_OF_EPOCH * samples


def larger_refuses(known: Known) -> str:
    """Why no larger effective batch can be tried, or ""."""
    knowledge = known.knowledge
    if knowledge.loss_reduction == "sum":
        return "the loss is a sum over the batch: a larger one would change the size of its steps"
    if knowledge.unit == "steps":
        return "steps are counted, and not their samples: batches of other sizes can't be compared"
    fitting = _sizes_that_fit(known)
    lost = LEAVES_OUT if fitting and not any(_keeps_epoch(size, known) for size in fitting) else ""
    return _counted(knowledge) or lost


def _largest_kept(knowledge: Knowledge) -> int:
    """The batch that makes the effective one by itself, where the accumulation can be turned; else the script's own."""
    turned = "grad_accumulation" in knowledge.as_written and "grad_accumulation" not in knowledge.left_out
    return samples_per_step(knowledge.as_written) if turned else count(knowledge.as_written, "batch_size", 1)


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
    return _counted(known.knowledge) or _never_larger(known.knowledge)


def _never_larger(knowledge: Knowledge) -> str:
    """Why nothing gives a step the batch that its parts are to make up, or "". Options of the script's own do."""
    by_options = "grad_accumulation" in {*knowledge.placeholders, *knowledge.options, *knowledge.suggested}
    does_itself = by_options or knowledge.trainer == "transformers"
    fixed = "" if does_itself else knowledge.left_out.get("batch_size", "")
    return f"its parts would be those of the batch as written: {fixed}" if fixed else ""


def _counted(knowledge: Knowledge) -> str:
    """Why another effective batch would change more than what a step trains on, or "".

    Parts of the same batch change nothing here: where a step splits its batch, what counts batches sees them whole.
    """
    name, per_call = knowledge.acts_by_batch, count(knowledge.as_written, "steps_per_execution", 1)
    acts = "acts with every batch" if per_call == 1 else f"acts every {per_call} batches"
    return f"{name} {acts}, and would see other batches" if name else ""


def _uncounted(knowledge: Knowledge) -> str:
    """Why batches of other sizes can't be compared, or "". Of smaller ones there are more steps in a second."""
    return "steps are counted, and not their samples: smaller batches would look faster" * (knowledge.unit == "steps")


def derive(complete: Mapping[str, Value], knowledge: Knowledge) -> Mapping[str, Value]:
    """With the effective batch kept, as many micro-batches make a step as the batch size asks for.

    Where it is larger, or free, the learning rate follows it: linearly for SGD (Goyal et al. 2017), by the square root
    for optimizers that divide by the gradients' size (Malladi et al. 2022). ``--set lr_scale=1`` leaves it alone.
    """
    written = knowledge.as_written
    if not keeps(knowledge):
        return _derived_rate(samples_per_step(complete) / samples_per_step(written), knowledge)
    batch_size = complete.get("batch_size")
    if not batch_size or batch_size == written.get("batch_size"):
        return {}
    size = count(complete, "batch_size", 1)
    if knowledge.effective_batch == BOTH and size > _largest_kept(knowledge):
        parts = samples_per_step(written) // _largest_kept(knowledge)
        whole = {"grad_accumulation": parts} if parts != count(written, "grad_accumulation", 1) else {}
        return {**whole, **_derived_rate(size * parts / samples_per_step(written), knowledge)}
    return {"grad_accumulation": max(1, samples_per_step(written) // size)}


def _derived_rate(ratio: float, knowledge: Knowledge) -> Mapping[str, Value]:
    known = "lr_scale" in knowledge.as_written and "lr_scale" not in knowledge.left_out
    if ratio == 1 or not known or knowledge.loss_reduction != "mean":
        return {}
    linear = all(name == "SGD" for name in knowledge.optimizers)
    return {"lr_scale": round(ratio if linear else math.sqrt(ratio), 6)}


def rate_refuses(known: Known) -> str:
    kept = known.knowledge.effective_batch not in (BOTH, FREE)
    return "follows the effective batch, which is kept" if kept else "follows the effective batch"


def accumulations(known: Known) -> Sequence[Value]:
    return [2, 4, 8]


BATCH_SIZE = Knob(
    "batch_size", batch_sizes, "samples in one forward pass",
    tier=3, ordered=True, heavier=True, refuses=batch_refuses, value_type=int, least=1,
    tier_reason="A step may average over other samples, so it is screened for what it learns from as many of them.",
)  # fmt: skip
LARGER_BATCH = replace(BATCH_SIZE, choices=larger_batch_sizes, refuses=larger_refuses)
"""The same knob, as far as it makes the effective batch larger."""
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
