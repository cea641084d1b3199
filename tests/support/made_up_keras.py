"""A made-up study of a Keras script: its knobs, its refusals, its remarks. No figure in it was measured."""

from __future__ import annotations

from dataclasses import replace

from support import made_up
from support.made_up import MIB, complete, failed, measured
from tuner.analysis.bottleneck import Bottleneck, Bound
from tuner.knowledge import Knowledge
from tuner.model import Config, Evidence, KnobReport, LeftOut, OutcomeKind, Phase, Ratio, Trial, Verdict, Winner

CONFIG = Config(parallel_calls="auto", prefetch="auto", run_eagerly=False, steps_per_execution=16)
LEFT_OUT = {
    "memory_growth": LeftOut("means nothing on cpu"),
    "vectorized_map": LeftOut("no map stands right before a batch"),
    "cache": LeftOut("it would take 21,400 MiB, and 14,336 MiB are left of the memory limit"),
    "grad_accumulation": LeftOut("the loss is no mean over the batch (sum)"),
}
REMARKS = (
    "the training step was traced anew 19 times in 20 calls: batches of ever new shapes, or Python values where"
    " tensors were meant",
)
KNOWLEDGE = Knowledge(
    framework="keras", framework_version="3.15.0", backend="tensorflow", trainer="keras",
    fed_by="dataset", remarks=REMARKS,
    as_written={"parallel_calls": 1, "prefetch": 0, "run_eagerly": True, "steps_per_execution": 1},
)  # fmt: skip
FASTER = measured(
    9120.0, data_wait_share=None, peak_host_bytes=1204 * MIB, first_step_s=9.5,
    knobs=(
        KnobReport("parallel_calls", "auto", 2, 1, Evidence.VERIFIED, "one map calls Python", "auto"),
        KnobReport(
            "prefetch", "auto", 1, 0, Evidence.NOT_APPLICABLE, "TensorFlow's own plan prefetches already", "auto"
        ),
        KnobReport("run_eagerly", False, 1, 1, Evidence.VERIFIED, "", False),
        KnobReport("steps_per_execution", 16, 1, 1, Evidence.VERIFIED, "", 16),
    ),
)  # fmt: skip


def _baseline() -> Trial:
    baseline = complete(0, Phase.BASELINE, {}, 610.0, first_step_s=6.25)
    assert baseline.outcome is not None
    return replace(baseline, outcome=replace(baseline.outcome, knowledge=KNOWLEDGE))


TRIALS = (
    _baseline(),
    complete(1, Phase.SEARCH, {"run_eagerly": False}, 5210.0, "Python runs every operation of a step"),
    failed(
        2, {"run_eagerly": False, "jit_compile": True}, OutcomeKind.INFEASIBLE, "compile-failure",
        "XLA refused train_step: Detected unsupported operations",
    ),
    complete(3, Phase.SEARCH, CONFIG, 8930.0, "steps in one call of the training function", data_wait_share=None),
)  # fmt: skip
BOTTLENECK = Bottleneck(Bound.OVERHEAD, 610.0, 660.0, 5100.0, "samples", 0.08, 0.81)
WINNER = Winner(
    Verdict.IMPROVED, CONFIG, Ratio(14.91, 14.02, 15.86), measured(611.7, first_step_s=6.25, data_wait_share=0.08),
    FASTER, 5,
)  # fmt: skip
RESULT = replace(
    made_up.RESULT, trials=TRIALS, winner=WINNER, best=TRIALS[3], best_gain=14.64, seconds=588.0, left_out=LEFT_OUT,
    tiers=dict.fromkeys(CONFIG, 1), bottleneck=BOTTLENECK, knowledge=KNOWLEDGE,
    study=replace(
        made_up.STUDY,
        software={"python": "3.11.0", "tensorflow": "2.21.0", "keras": "3.15.0", "autotune": "0.1.0"},
    ),
)  # fmt: skip
