"""What can be turned in a PyTorch training script, with no edits to it. Declarations only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tuner.model import Config, Value
from tuner.space import Knob, Known, SearchSpace

AS_WRITTEN = "as-written"


def _batch_sizes(known: Known) -> Sequence[Value]:
    written = int(known.as_written or 1)
    largest = int(known.facts.get("dataset_len") or 0) or written * 16
    return [b for b in (written * f // 4 for f in (1, 2, 8, 16, 32, 64)) if 1 <= b <= largest]


def _accumulations(known: Known) -> Sequence[Value]:
    return [2, 4, 8]


def _workers(known: Known) -> Sequence[Value]:
    return sorted({0, 1, *(n for n in (2, 4, 8, 12, 16) if n <= known.cores), known.cores})


def _threads(known: Known) -> Sequence[Value]:
    return sorted({1, max(1, known.cores // 2), max(1, known.cores - 1), known.cores})


def _precisions(known: Known) -> Sequence[Value]:
    supported: Sequence[str] = known.facts.get("precisions", ())
    return [p for p in ("fp32", "tf32", "bf16", "fp16") if p in supported]


def _compile_modes(known: Known) -> Sequence[Value]:
    modes = ["default"]
    if known.device.kind == "cuda":
        modes += ["reduce-overhead", "max-autotune-no-cudagraphs"]
    return modes


def _has_workers(config: Config) -> bool:
    return int(config.get("num_workers", 0)) > 0


def _allowed(config: Config, facts: Mapping[str, Any]) -> bool:
    """Micro-batches times accumulation stays a whole multiple of nothing smaller than one sample."""
    return int(config.get("grad_accumulation", 1)) == 1 or int(config.get("batch_size", 1)) >= 1


CUDA = frozenset({"cuda"})
CPU_AND_CUDA = frozenset({"cpu", "cuda"})

SPACE = SearchSpace(
    name="torch",
    framework="torch",
    allowed=_allowed,
    knobs=(
        Knob("num_workers", _workers, "DataLoader worker processes", ordered=True),
        Knob("precision", _precisions, "number format of matrix products", tier=2, devices=CPU_AND_CUDA),
        Knob("batch_size", _batch_sizes, "samples in one forward pass", tier=3, ordered=True),
        Knob(
            "threads",
            _threads,
            "intra-op threads of the training process",
            ordered=True,
            devices=frozenset({"cpu"}),
        ),
        Knob(
            "channels_last",
            lambda known: [True, False],
            "memory layout of convolutions",
            devices=CPU_AND_CUDA,
        ),
        Knob(
            "optimizer",
            lambda known: ["foreach", "fused"],
            "implementation of the optimizer's update",
            tier=2,
            devices=CPU_AND_CUDA,
        ),
        Knob(
            "prefetch_factor",
            lambda known: [2, 4, 8],
            "batches that each worker keeps ready",
            ordered=True,
            needs=_has_workers,
        ),
        Knob(
            "persistent_workers",
            lambda known: [True, False],
            "workers survive the end of an epoch",
            needs=_has_workers,
        ),
        Knob("pin_memory", lambda known: [True, False], "page-locked batches", devices=CUDA),
        Knob("cudnn_benchmark", lambda known: [True, False], "cuDNN picks its kernels by trial", devices=CUDA),
        Knob(
            "grad_accumulation",
            _accumulations,
            "micro-batches in one optimizer step",
            tier=3,
            ordered=True,
        ),
        Knob(
            "compile",
            _compile_modes,
            "torch.compile and its mode",
            tier=2,
            late=True,
            devices=CPU_AND_CUDA,
        ),
    ),
)
