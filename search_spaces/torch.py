"""What can be turned in a PyTorch training script, with no edits to it. Declarations only."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from tuner.model import Config, Value
from tuner.space import Knob, Known, SearchSpace


def _keeps(facts: Mapping[str, Any]) -> bool:
    return bool(facts.get("effective_batch", "keep") == "keep")


def _count(config: Mapping[str, Any], knob: str, otherwise: int) -> int:
    """A knob's whole number; a script may write anything, such as ``auto``."""
    value = config.get(knob)
    return value if type(value) is int else otherwise


def _effective(config: Mapping[str, Any]) -> int:
    return _count(config, "batch_size", 1) * _count(config, "grad_accumulation", 1)


def _allowed(config: Config, facts: Mapping[str, Any]) -> bool:
    """The effective batch is kept also where the batch sizes are the user's own."""
    return not _keeps(facts) or _effective(config) == _effective(facts.get("as_written", {}))


def _batch_sizes(known: Known) -> Sequence[Value]:
    if _keeps(known.facts):
        whole = _effective(known.facts.get("as_written", {}))
        return [whole // parts for parts in (1, 2, 4, 8) if whole % parts == 0]
    written = _count(known.facts.get("as_written", {}), "batch_size", 1)
    largest = int(known.facts.get("dataset_len") or 0) or written * 16
    return [b for b in (written * f // 4 for f in (1, 2, 8, 16, 32, 64)) if 1 <= b <= largest]


def _batch_refuses(known: Known) -> str:
    if not _keeps(known.facts):
        return ""
    accumulation = known.facts.get("left_out", {}).get("grad_accumulation", "")
    if accumulation:
        return f"it would change the effective batch (see --effective-batch), since {accumulation}"
    if known.facts.get("batch_norm"):
        return "BatchNorm would see smaller batches (see --effective-batch)"
    return ""


def _accumulation_refuses(known: Known) -> str:
    return "follows batch_size, so that the effective batch is kept" if _keeps(known.facts) else ""


def _derive(config: Config, facts: Mapping[str, Any]) -> Config:
    """With the effective batch kept, as many micro-batches make a step as the batch size asks for.

    Where it is free, the learning rate follows it: linearly for SGD (Goyal et al. 2017), by the square root for
    optimizers that divide by the gradients' size (Malladi et al. 2022). ``--set lr_scale=1`` leaves it alone.
    """
    written: Mapping[str, Any] = facts.get("as_written", {})
    if not _keeps(facts):
        return _derived_rate(_effective(config) / _effective(written), facts)
    batch_size = config.get("batch_size")
    if not batch_size or batch_size == written.get("batch_size"):
        return {}
    return {"grad_accumulation": max(1, _effective(written) // _count(config, "batch_size", 1))}


def _derived_rate(ratio: float, facts: Mapping[str, Any]) -> Config:
    known = "lr_scale" in facts.get("as_written", {}) and "lr_scale" not in facts.get("left_out", {})
    if ratio == 1 or not known or facts.get("loss_reduction") != "mean":
        return {}
    linear = all(name == "SGD" for name in facts.get("optimizers", ()))
    return {"lr_scale": round(ratio if linear else math.sqrt(ratio), 6)}


def _rate_refuses(known: Known) -> str:
    return "follows the effective batch, which is kept" if _keeps(known.facts) else "follows the effective batch"


def _accumulations(known: Known) -> Sequence[Value]:
    return [2, 4, 8]


def _workers(known: Known) -> Sequence[Value]:
    return sorted({0, 1, *(n for n in (2, 4, 8, 12, 16) if n <= known.cores), known.cores})


def _threads(known: Known) -> Sequence[Value]:
    return sorted({1, max(1, known.cores // 2), max(1, known.cores - 1), known.cores})


def _precisions(known: Known) -> Sequence[Value]:
    supported: Sequence[str] = known.facts.get("precisions", ())
    return [p for p in ("fp32", "tf32", "bf16", "fp16") if p in supported]


def _optimizers(known: Known) -> Sequence[Value]:
    return [name for name in ("foreach", "fused") if name in known.facts.get("optimizer_choices", ())]


def _compile_modes(known: Known) -> Sequence[Value]:
    modes = ["default"]
    if known.device.kind == "cuda":
        modes += ["reduce-overhead", "max-autotune-no-cudagraphs"]
    return modes


def _has_workers(config: Config) -> bool:
    return _count(config, "num_workers", 0) > 0


CUDA = frozenset({"cuda"})
CPU_AND_CUDA = frozenset({"cpu", "cuda"})

SPACE = SearchSpace(
    name="torch",
    framework="torch",
    allowed=_allowed,
    derive=_derive,
    knobs=(
        Knob(
            "num_workers", _workers, "DataLoader worker processes",
            ordered=True, loader=True, heavier=True, value_type=int, least=0,
        ),
        Knob(
            "threads", _threads, "intra-op threads of the training process",
            ordered=True, devices=frozenset({"cpu"}), value_type=int, least=1,
        ),
        Knob(
            "precision", _precisions, "number format of matrix products",
            tier=2, devices=CPU_AND_CUDA, value_type=str,
        ),
        Knob(
            "channels_last", lambda known: [True, False], "memory layout of convolutions",
            devices=CPU_AND_CUDA, value_type=bool,
        ),
        Knob(
            "optimizer", _optimizers, "implementation of the optimizer's update",
            tier=2, devices=CPU_AND_CUDA, value_type=str,
        ),
        Knob(
            "batch_size", _batch_sizes, "samples in one forward pass",
            tier=3, ordered=True, heavier=True, refuses=_batch_refuses, value_type=int, least=1,
        ),
        Knob(
            "prefetch_factor", lambda known: [2, 4, 8], "batches that each worker keeps ready",
            ordered=True, loader=True, heavier=True, needs=_has_workers, value_type=int, least=1,
        ),
        Knob(
            "persistent_workers", lambda known: [True, False], "workers survive the end of an epoch",
            loader=True, needs=_has_workers, value_type=bool,
        ),
        Knob(
            "pin_memory", lambda known: [True, False], "page-locked batches",
            loader=True, devices=CUDA, value_type=bool,
        ),
        Knob(
            "cudnn_benchmark", lambda known: [True, False], "cuDNN picks its kernels by trial",
            devices=CUDA, value_type=bool,
        ),
        Knob(
            "grad_accumulation", _accumulations, "micro-batches in one optimizer step",
            tier=3, ordered=True, refuses=_accumulation_refuses, value_type=int, least=1,
        ),
        Knob(
            "lr_scale", lambda known: [], "factor on the learning rate, as the effective batch asks for",
            tier=3, refuses=_rate_refuses, value_type=float,
        ),
        Knob(
            "compile", _compile_modes, "torch.compile and its mode",
            tier=2, late=True, devices=CPU_AND_CUDA, value_type=str,
        ),
    ),
)  # fmt: skip
