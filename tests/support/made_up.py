"""One made-up study, the same for every golden file. No figure in it was measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tuner.analysis import stats
from tuner.analysis.accuracy import Screened
from tuner.analysis.bottleneck import Bottleneck, Bound
from tuner.analysis.checks import Check, CheckKind
from tuner.analysis.gain import BaselineTrack
from tuner.analysis.tiers import Tiers, best_of_tiers
from tuner.events import (
    Event,
    FinalsStarted,
    Noted,
    PairFinished,
    Probed,
    Screening,
    SpaceResolved,
    StudyFinished,
    StudyStarted,
    TrialFinished,
    TrialStarted,
)
from tuner.formatting import shift_text
from tuner.knowledge import Knowledge
from tuner.model import (
    BASELINE as NO_KNOBS,
)
from tuner.model import (
    CardUse,
    Config,
    Device,
    Evidence,
    KnobReport,
    LeftOut,
    Measurement,
    Outcome,
    OutcomeKind,
    Phase,
    Ratio,
    Script,
    Shift,
    Trial,
    Value,
    Verdict,
    Winner,
)
from tuner.objective import RATE
from tuner.result import LargerBatch, StudyFacts, StudyLimits, StudyResult

MIB = 1024**2
DEVICE = Device("cpu", 0, "Imaginary CPU", "Imaginary CPU", 16 * 1024 * MIB)
SCRIPT = Script("train.py", ("--epochs", "3", "--name", "first try"), sha256="ab" * 32)
FOLDER = "autotune-train-cpu"
WHY = "12 trials are done"
CONFIG = Config(num_workers=2, precision="bf16")
LEFT_OUT = {
    "compile": LeftOut("not selected", unselected=True),
    "pin_memory": LeftOut("means nothing on cpu"),
    "batch_size": LeftOut("BatchNorm would see smaller batches (see --effective-batch)"),
}
TIERS = {"num_workers": 1, "precision": 2, "batch_size": 3}


def measured(rate: float, **changes: Any) -> Measurement:
    """A measurement of so many samples per second."""
    return replace(
        Measurement(
            rate=rate, low=rate * 0.98, high=rate * 1.02, steps_per_s=rate / 32, unit="samples", blocks=(),
            data_wait_share=0.31, peak_host_bytes=412 * MIB, peak_device_bytes=0, first_step_s=1.25, compile_s=0.0,
            losses=(), steady=True, cpu_s_per_sample=0.002, foreign_cpus=0.0,
        ),
        **changes,
    )  # fmt: skip


def complete(
    number: int, phase: Phase, config: Mapping[str, Value], rate: float, why: str = "", **changes: Any
) -> Trial:
    """A trial that gave a figure."""
    known = Knowledge(framework="torch", backwards=400)
    outcome = Outcome(OutcomeKind.COMPLETE, measurement=measured(rate, **changes), knowledge=known, seconds=8.4)
    return Trial(number, phase, Config(config), why, outcome)


def failed(number: int, config: Mapping[str, Value], kind: OutcomeKind, reason: str, detail: str) -> Trial:
    """A trial that gave none."""
    return Trial(number, Phase.SEARCH, Config(config), "batch_size", Outcome(kind, reason, detail, seconds=75.0))


REPORT = KnobReport("num_workers", 2, 2, 1, Evidence.VERIFIED, "the other loader validates", 2)
FASTER = measured(
    1711.0, data_wait_share=0.02, peak_host_bytes=988 * MIB, first_step_s=2.75,
    knobs=(REPORT, KnobReport("precision", "bf16", 1, 1, Evidence.VERIFIED, "", "bf16")),
)  # fmt: skip
BASELINE = complete(0, Phase.BASELINE, {}, 1204.0, "", validation_share=0.12)
SEARCHED = (
    complete(1, Phase.SEARCH, {"num_workers": 2}, 1498.2, "DataLoader worker processes", data_wait_share=0.02),
    failed(2, {"batch_size": 512}, OutcomeKind.INFEASIBLE, "host-oom", "the process tree took 15,032,385,536 bytes"),
    failed(3, {"batch_size": 128}, OutcomeKind.TIMED_OUT, "deadline", "not through after 75 s"),
    complete(4, Phase.SEARCH, CONFIG, 1650.0, "number format of matrix products", data_wait_share=0.02),
    complete(5, Phase.ANCHOR, {}, 1180.0, "drift check"),
    complete(6, Phase.SEARCH, {"threads": 1}, 8.731, "intra-op threads", steady=False),
)
FINALS = tuple(
    replace(complete(7 + i, Phase.FINALS, config, rate, "finals of 4"), round=i // 2 + 1, group=(4,))
    for i, (config, rate) in enumerate([(CONFIG, 1690.0), ({}, 1190.0)] * 3)
)
TRIALS = (BASELINE, *SEARCHED, *FINALS)
BEST = SEARCHED[3]
WINNER = Winner(
    Verdict.IMPROVED, CONFIG, Ratio(1.4213, 1.3708, 1.4737), measured(1203.6, first_step_s=1.25), FASTER, 3
)
KEEP = replace(WINNER, verdict=Verdict.KEEP_BASELINE, speedup=Ratio(1.012, 0.981, 1.044), winner=measured(1218.0))

PASS = stats.Noninferiority.PASS
SCREENED = (
    Screened(
        CONFIG, PASS,
        (
            Check(CheckKind.LOSS, "training loss", 0.5204, 0.5211, 0.0013, -0.0021, 0.0047, 0.01, PASS, 2.31),
            Check(CheckKind.EFFICIENCY, "sample efficiency", 1.0, 0.984, 0.016, -0.009, 0.041, 0.1, PASS),
            Check(CheckKind.WEIGHTS, "movement of the weights", 31.2, 31.4, -0.006, -0.006, -0.006, 0.99, PASS),
        ),
        3, 12800, efficiency=Ratio(0.984, 0.952, 1.017),
    ),
    Screened(Config(precision="fp16"), stats.Noninferiority.FAIL, (), 1, 12800, "seed 1: the loss is not a number"),
)  # fmt: skip
UNTOLD = Screened(
    CONFIG, stats.Noninferiority.INCONCLUSIVE, (), 0, 51200,
    "as written the training loss went from 2.303 to 2.283: too little, or too noisy, to tell how a config learns",
    would_decide="a longer screen (--screen-samples 430000) or a metric of the script's that becomes better"
    " (--max-metric-drop NAME=1%)",
)  # fmt: skip

SHIFT = Shift(0, 5, 1.12)
BOTTLENECK = Bottleneck(Bound.INPUT, 1204.0, 1750.0, 3800.0, "samples", 0.31, 0.12)
STUDY = StudyFacts(
    "train-cpu", FOLDER, SCRIPT, DEVICE, StudyLimits(14 * 1024 * MIB, None, 120.0, "keep", 0.01),
    {"python": "3.11.0", "torch": "2.13.0", "autotune": "0.1.0"},
)  # fmt: skip
RESULT = StudyResult(
    study=STUDY, trials=TRIALS, winner=WINNER, best=BEST, best_gain=1.38, why=WHY, seconds=312.0,
    left_out=LEFT_OUT, tiers=TIERS, bottleneck=BOTTLENECK,
    knowledge=Knowledge(framework="torch", as_written={"num_workers": 0, "precision": "fp32"}),
)  # fmt: skip


LARGER_CONFIG = Config(num_workers=2, batch_size=128, lr_scale=4.0)
LARGER_TRIAL = complete(13, Phase.SEARCH, LARGER_CONFIG, 3500.0, "a larger effective batch (tier 3), on top of trial 1")
LARGER = LargerBatch(
    LARGER_CONFIG, 2.9,
    Winner(Verdict.IMPROVED, LARGER_CONFIG, Ratio(2.8123, 2.61, 3.03), measured(1203.6), measured(3390.0), 5),
    Ratio(0.81, 0.74, 0.89), Ratio(2.278, 2.02, 2.57),
)  # fmt: skip
LARGER_SCREENED = Screened(
    LARGER_CONFIG, PASS,
    (Check(CheckKind.EFFICIENCY, "sample efficiency", 1.0, 0.81, 0.19, 0.12, 0.25, 0.655, PASS),),
    3, 12800, efficiency=Ratio(0.81, 0.76, 0.86), by_time=True,
)  # fmt: skip
_BOTH = replace(
    RESULT, trials=(*TRIALS, LARGER_TRIAL), knowledge=Knowledge(
        framework="torch",
        as_written={"num_workers": 0, "precision": "fp32", "batch_size": 32, "grad_accumulation": 1, "lr_scale": 1.0},
    ),
)  # fmt: skip
MORE_LARGER = complete(14, Phase.SEARCH, {**LARGER_CONFIG, "batch_size": 256}, 3700.0, "on top of trial 13")
"""It was read as faster still, and is less likely to reach a loss soon."""


def with_larger(
    winner: Winner = WINNER,
    larger: LargerBatch = LARGER,
    *,
    screened: tuple[Screened, ...] = (SCREENED[0], LARGER_SCREENED),
    more: tuple[Trial, ...] = (),
) -> StudyResult:
    """The same study with a larger effective batch beside what keeps it."""
    trials, judged = (*_BOTH.trials, *more), [one for one in (winner, larger.winner) if one is not None]
    tiers, track = Tiers(TIERS, _BOTH.knowledge), BaselineTrack(TRIALS, RATE)
    bests = best_of_tiers(trials, track, tiers, judged, screened, larger=larger.config)
    return replace(_BOTH, trials=trials, winner=winner, larger=larger, screened=screened, bests=bests)


WITH_LARGER = with_larger()


BESTS = best_of_tiers(
    (*TRIALS, complete(13, Phase.SEARCH, {"batch_size": 128}, 1900.0)), BaselineTrack(TRIALS, RATE), Tiers(TIERS),
    (WINNER,), SCREENED,
)


def events() -> list[Event]:
    """The study as it is told while it runs."""
    told: list[Event] = [StudyStarted("train-cpu", FOLDER, SCRIPT, DEVICE, 12, 600.0, 0.2, False)]
    best: Trial | None = None
    track = BaselineTrack(TRIALS, RATE)
    for trial in (BASELINE, *SEARCHED):
        left = 600.0 - 9 * trial.number
        told.append(TrialStarted(replace(trial, outcome=None), trial.number, left))
        gain = track.gain(trial)
        if gain is not None and trial.phase is not Phase.ANCHOR and gain >= (track.gain(best) or 0.0):
            best = trial
        told.append(TrialFinished(trial, gain, best, track.gain(best)))
        if trial is BASELINE:
            told += [_space(), Probed(BOTTLENECK)]
    told.append(Noted(shift_text(SHIFT)))
    told += [Screening(BEST, SCREENED[0]), Screening(SEARCHED[0], SCREENED[1])]
    told.append(FinalsStarted((BEST,), 3))
    for trial in FINALS:
        told.append(TrialStarted(replace(trial, outcome=None), 7, 400.0))
        told.append(TrialFinished(trial, track.gain(trial), best, 1.38))
        if not trial.config:
            number = trial.round or 0
            so_far = Ratio(1.42, 1.37, 1.47) if number > 2 else None
            told.append(PairFinished(number, 3, CONFIG, 1.4 + number / 100, so_far))
    return [*told, StudyFinished(WINNER, BEST, len(TRIALS), 312.0, WHY)]


def _space() -> SpaceResolved:
    return SpaceResolved(
        values={
            "num_workers": (0, 1, 2), "precision": ("fp32", "bf16"), "persistent_workers": (False, True),
            "batch_size": (32, 64, 128),
        },
        as_written={"num_workers": 0, "precision": "fp32", "persistent_workers": False, "batch_size": 32},
        left_out=LEFT_OUT, pinned=NO_KNOBS, size=12, larger=frozenset({"batch_size"}),
    )  # fmt: skip


def on_a_card() -> list[Trial]:
    """Trials on a card that others used and that grew hot, while the baseline became slower."""
    calm = CardUse(12, 1755.0, 1755.0, 61.0, 0x4, 0, None)
    hot = CardUse(12, 1695.0, 1410.0, 91.0, 0x24, 0, 0.0)
    return [
        complete(0, Phase.BASELINE, {}, 1204.0, card=calm, foreign_cpus=0.04),
        complete(1, Phase.SEARCH, {"num_workers": 2}, 1498.2, card=replace(calm, foreign_share=0.34), foreign_cpus=1.3),
        complete(2, Phase.SEARCH, CONFIG, 1650.0, card=hot, foreign_cpus=0.7, stolen_cpus=0.5),
        complete(3, Phase.ANCHOR, {}, 1010.0, card=replace(calm, throttle_reasons=0, foreign_bytes=3 * 1024 * MIB)),
        complete(4, Phase.SEARCH, {"threads": 1}, 900.0, card=replace(calm, sm_mhz=None, lowest_sm_mhz=None)),
    ]


def long_configs(count: int) -> list[Event]:
    """A study of many trials with configs that are wider than any screen."""
    told: list[Event] = [events()[0], _space()]
    for number in range(1, count + 1):
        config = Config(num_workers=number, precision="bf16", persistent_workers=True, prefetch_factor=8)
        trial = complete(number, Phase.SEARCH, config, 1204.0 + number)
        told.append(TrialFinished(trial, 1.0, trial, 1.0))
    running = Trial(count + 1, Phase.SEARCH, Config(config, threads=1), "intra-op threads")
    told.append(TrialStarted(running, count, 90.0))
    return told
