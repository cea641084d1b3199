"""What can be turned in a PyTorch training script, with no edits to it. Declarations only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from search_spaces import batches, loaders, memory, processors, ranks, uploads
from tuner.knowledge import Knowledge
from tuner.model import Value
from tuner.space import Knob, Known, SearchSpace


def _precisions(known: Known) -> Sequence[Value]:
    return [p for p in ("fp32", "tf32", "bf16-math", "bf16", "fp16") if p in known.knowledge.precisions]


def _optimizers(known: Known) -> Sequence[Value]:
    """The faster one first: on a processor ``foreach`` loops over the tensors as the plain update does."""
    return [name for name in ("fused", "foreach") if name in known.knowledge.optimizer_choices]


def _attentions(known: Known) -> Sequence[Value]:
    return [name for name in ("flash", "efficient", "cudnn", "math") if name in known.knowledge.attention_choices]


def _own_compile_modes(known: Known) -> Sequence[Value]:
    """``off`` is tried before those that take minutes."""
    if known.device.kind == "cuda":
        return ["default", "reduce-overhead", "off", "max-autotune-no-cudagraphs"]
    return ["default", "off"]


def _compile_modes(known: Known) -> Sequence[Value]:
    modes = ["default"]
    if known.device.kind == "cuda":
        modes += ["reduce-overhead", "max-autotune-no-cudagraphs"]
    return [*modes, *(name for name in ("regional", "dynamic") if name in known.knowledge.compile_choices)]


def _allowed(complete: Mapping[str, Value], knowledge: Knowledge) -> bool:
    """The compiler's cache on disk doesn't go by the kernel of attention: it would give one that was compiled with
    another. What is compiled decides itself what it keeps; of a wrapper for ranks it holds the model, whose batches
    can't be taken in parts there.
    """
    return batches.allowed(complete, knowledge) and not _is_at_odds(complete, knowledge)


def _is_at_odds(complete: Mapping[str, Value], knowledge: Knowledge) -> bool:
    if complete.get("compile", "off") == "off":
        return False
    chosen = complete.get("attention") != knowledge.as_written.get("attention")
    written = knowledge.as_written.get("grad_accumulation")
    in_parts = ranks.exchange(knowledge) and complete.get("grad_accumulation", written) != written
    return chosen or in_parts or complete.get("checkpointing") is True


CUDA = frozenset({"cuda"})
CPU_AND_CUDA = frozenset({"cpu", "cuda"})

SPACE = SearchSpace(
    name="torch",
    framework="torch",
    allowed=_allowed,
    derive=batches.derive,
    larger=batches.LARGER_BATCH,
    knobs=(
        loaders.NUM_WORKERS,
        Knob(
            "threads", processors.threads, "intra-op threads of the training process",
            ordered=True, devices=frozenset({"cpu"}), switchable=True, value_type=int, least=1, on_cores=True,
            tier_reason="The same sums over the same numbers, taken in another order: they differ in rounding only.",
        ),
        memory.ALLOCATOR,
        Knob(
            "precision", _precisions, "number format of matrix products",
            tier=2, devices=CPU_AND_CUDA | uploads.XLA, switchable=True, value_type=str,
            unlikely=processors.emulated,
            tier_reason="Products are rounded to another format, so it is screened.",
        ),
        Knob(
            "channels_last", lambda known: [True, False], "memory layout of convolutions",
            devices=CPU_AND_CUDA, switchable=True, fixed_in_ranks=ranks.exchange, value_type=bool,
            tier_reason="The same numbers in another place, and kernels of the same precision: rounding only.",
        ),
        Knob(
            "optimizer", _optimizers, "implementation of the optimizer's update",
            tier=2, devices=CPU_AND_CUDA, switchable=True, value_type=str,
            tier_reason="The same update by other kernels, which round otherwise, so it is screened.",
        ),
        Knob(
            "attention", _attentions, "kernel of scaled_dot_product_attention",
            tier=2, devices=CPU_AND_CUDA, switchable=True, value_type=str,
            tier_reason="Its sums are rounded otherwise, and dropout draws other numbers, so it is screened.",
        ),
        batches.BATCH_SIZE,
        loaders.PREFETCH_FACTOR,
        loaders.PERSISTENT_WORKERS,
        Knob(
            "pin_memory", lambda known: [True, False], "page-locked batches",
            loader=True, devices=CUDA, switchable=True, value_type=bool, beyond_wait=True,
            tier_reason="The same batches, copied to other memory; what can't be pinned is passed on as it is.",
        ),
        Knob(
            "cudnn_benchmark", lambda known: [True, False], "cuDNN picks its kernels by trial",
            devices=CUDA, switchable=True, value_type=bool,
            tier_reason="The same convolution in the same precision; left out where the script asks for determinism.",
        ),
        *ranks.KNOBS,
        *uploads.KNOBS,
        Knob(
            "checkpointing", lambda known: [True, False], "repeated blocks are computed again in the backward",
            tier=2, devices=CPU_AND_CUDA, value_type=bool, spares_memory=True,
            tier_reason="The same blocks on the same numbers, but Python in them runs twice, so it is screened.",
        ),
        batches.GRAD_ACCUMULATION,
        batches.LR_SCALE,
        Knob(
            "compile", _compile_modes, "torch.compile and its mode",
            tier=2, late=True, devices=CPU_AND_CUDA, switchable=True, value_type=str,
            tier_reason="Fused kernels round otherwise, and what Python does in a step is frozen, so it is screened.",
        ),
        Knob(
            "compile_mode", _own_compile_modes, "mode of the script's own torch.compile",
            tier=2, late=True, devices=CPU_AND_CUDA, silent_unmet=True, value_type=str,
            tier_reason="Fused kernels round otherwise, and Python in a step is frozen or not, so it is screened.",
        ),
    ),
)  # fmt: skip
