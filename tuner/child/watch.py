"""What a trial watches, part by part, and what training pauses for: words that parent and child share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class Watch(StrEnum):
    """A part of the instrumentation that can be left out by itself; README.md says what each one patches."""

    LOADER = "loader"
    MODULES = "modules"
    OPTIMIZER = "optimizer"
    LOSSES = "losses"
    TRAINERS = "trainers"
    PROCESSES = "processes"
    TRACKERS = "trackers"
    KERAS = "keras"
    TENSORFLOW = "tensorflow"
    TF_DATA = "tf.data"
    JAX = "jax"
    ARGUMENTS = "arguments"
    FILES = "files"


KNOBS_OF: Mapping[Watch, tuple[str, ...]] = {
    Watch.LOADER: (
        "batch_size", "num_workers", "prefetch_factor", "pin_memory", "persistent_workers", "read_threads",
        "read_buffer", "device_prefetch", "loader_prefetch_size", "device_prefetch_size",
        "host_to_device_transfer_threads", "batches_per_execution",
    ),
    Watch.MODULES: (
        "precision", "compile", "compile_mode", "channels_last", "attention", "grad_accumulation", "ddp_bucket_mb",
        "ddp_bucket_view", "ddp_communication", "ddp_static_graph",
    ),
    Watch.OPTIMIZER: ("grad_accumulation", "optimizer", "lr_scale"),
    Watch.KERAS: (
        "precision", "run_eagerly", "steps_per_execution", "workers", "grad_accumulation", "lr_scale", "jit_compile",
    ),
    Watch.TENSORFLOW: ("strategy", "jit_compile", "grappler_mixed_precision"),
    Watch.TF_DATA: (
        "batch_size", "parallel_calls", "vectorized_map", "prefetch", "cache", "deterministic", "private_threads",
    ),
}  # fmt: skip
"""What can't be turned without the watch, unless another one has seen how the script wrote it."""


class Pause(StrEnum):
    """What training may pause for, longer than a step takes."""

    VALIDATION = "validation"
    COMPILATION = "compilation"


@dataclass(frozen=True)
class Silences:
    """The longest time without a record in a run, by what it was at: before its first step, training, in a pause.

    Seconds; 0 where it never was at that.
    """

    start_up_s: float = 0.0
    training_s: float = 0.0
    validation_s: float = 0.0
    compilation_s: float = 0.0

    @property
    def are_unknown(self) -> bool:
        """Whether no run has shown any."""
        return self == Silences()
