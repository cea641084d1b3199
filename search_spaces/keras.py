"""What can be turned in a TensorFlow or Keras training script, with no edits to it. Declarations only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from search_spaces import batches, loaders, memory, processors
from tuner.model import Value
from tuner.space import Knob, Known, SearchSpace


def _workers(known: Known) -> Sequence[Value]:
    few = [n for n in (2, 4, 8, 16) if n <= known.cores]
    return sorted({1, *few, known.cores, *batches.beyond(known.cores)})


def _workers_that_keep_up(workers: Value, wait: float) -> float:
    """With one worker Keras makes the batches in the loop's own thread."""
    return batches.workers_that_keep_up(0 if workers == 1 else workers, wait)


def _precisions(known: Known) -> Sequence[Value]:
    return [p for p in ("fp32", "bf16", "fp16") if p in known.knowledge.precisions]


def _strategies(known: Known) -> Sequence[Value]:
    """A trial has one device: what mirrors is only in its way, and the others differ in how data reach the device."""
    return ["default", "one_device"] if known.device.kind == "cuda" else ["default"]


def _steps_in_call(known: Known) -> Sequence[Value]:
    """Keras would overrun an epoch whose steps the script gives, unless they are a multiple."""
    counted = known.knowledge.counted_steps
    evenly = [n for n in range(2, 65) if all(steps % n == 0 for steps in counted)]
    return [1, *evenly[-1:], *(n for n in (4, 16, 64) if n in evenly)] if counted else [1, 4, 16, 64]


def _rewrites_float32(config: Mapping[str, Value]) -> bool:
    """XLA compiles the step as it was traced; a policy of another format leaves nothing to rewrite."""
    as_traced = config.get("jit_compile") is not True and _runs_graphs(config)
    return as_traced and config.get("precision", "fp32") == "fp32"


def _runs_graphs(config: Mapping[str, Value]) -> bool:
    return not config.get("run_eagerly", False)


CUDA = frozenset({"cuda"})

SPACE = SearchSpace(
    name="keras",
    framework="keras",
    allowed=batches.allowed,
    derive=batches.derive,
    larger=batches.LARGER_BATCH,
    knobs=(
        Knob(
            "run_eagerly", lambda known: [False], "Python runs every operation of a step",
            tier=2, switchable=True, value_type=bool,
            tier_reason="Python that runs with each step is frozen when the step is traced, so it is screened.",
        ),
        Knob(
            "strategy", _strategies, "how TensorFlow distributes a step; one that the script makes may be undone",
            tier=2, value_type=str,
            tier_reason="Keras turns XLA off under a strategy and on without one, so it is screened.",
        ),
        loaders.PARALLEL_CALLS,
        loaders.VECTORIZED_MAP,
        loaders.CACHE,
        Knob(
            "workers", _workers, "threads or processes that prepare the batches of a PyDataset",
            tier=2, ordered=True, loader=True, value_type=int, least=1, on_cores=True,
            keeps_up=_workers_that_keep_up,
            tier_reason="Batches keep their order, but the script's own code makes several at once, so it is screened.",
        ),
        loaders.DETERMINISTIC,
        loaders.PREFETCH,
        loaders.PRIVATE_THREADS,
        Knob(
            "threads", processors.threads, "intra-op threads of the training process",
            ordered=True, devices=processors.CPU, value_type=int, least=1, on_cores=True,
            tier_reason="The same sums over the same numbers, taken in another order: they differ in rounding only.",
        ),
        Knob(
            "inter_op_threads", processors.threads, "operations that run at once",
            ordered=True, devices=processors.CPU, value_type=int, least=1, on_cores=True,
            tier_reason="The same operations, of which others run at once; what depends on another one waits for it.",
        ),
        processors.ASYNC_DISPATCH,
        memory.ALLOCATOR,
        Knob(
            "precision", _precisions, "dtype policy of the layers", tier=2, switchable=True, value_type=str,
            unlikely=processors.emulated,
            tier_reason="Layers compute in another format, so it is screened.",
        ),
        Knob(
            "grappler_mixed_precision", lambda known: [True, False], "TensorFlow rewrites products of a graph to bf16",
            tier=2, devices=processors.CPU, needs=_rewrites_float32, switchable=True, value_type=bool,
            tier_reason="Products are rounded to another format, so it is screened.",
        ),
        batches.BATCH_SIZE,
        batches.GRAD_ACCUMULATION,
        batches.LR_SCALE,
        Knob(
            "steps_per_execution", _steps_in_call, "steps in one call of the training function",
            ordered=True, needs=_runs_graphs, switchable=True, value_type=int, least=1,
            tier_reason="The same steps, in calls that divide an epoch; left out where callbacks act on batches.",
        ),
        Knob(
            "memory_growth", lambda known: [True, False], "TensorFlow takes the card's memory as it needs it",
            devices=CUDA, value_type=bool,
            tier_reason="It decides when memory is taken from the card, and not what is computed in it.",
        ),
        Knob(
            "jit_compile", lambda known: [True, False], "XLA, or torch.compile, compiles the training step",
            tier=2, late=True, needs=_runs_graphs, switchable=True, value_type=bool,
            tier_reason="Fused kernels round otherwise, so it is screened.",
        ),
    ),
)  # fmt: skip
