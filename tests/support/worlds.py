"""Made-up machines on which a config's rate is a formula: studies and samplers are tested without processes."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tuner.knowledge import Knowledge
from tuner.model import (
    Block,
    Config,
    Device,
    Evidence,
    KnobReport,
    LossSeries,
    Measurement,
    Outcome,
    OutcomeKind,
    Script,
    Value,
)
from tuner.objective import Objective
from tuner.runner.request import Limits
from tuner.space.choose import Spaces
from tuner.space.declare import Knob, Known, SearchSpace
from tuner.space.resolve import resolve
from tuner.space.resolved import ResolvedSpace
from tuner.study.plan import StudyPlan

MEASURED = Measurement(
    rate=100.0, low=98.0, high=102.0, steps_per_s=3.0, unit="samples", blocks=(Block(32.0, 1, 0.32, 0.0),),
    data_wait_share=0.0, peak_host_bytes=1, peak_device_bytes=0, first_step_s=1.0, compile_s=0.0, losses=(),
    steady=True, cpu_s_per_sample=0.0, foreign_cpus=0.0,
)  # fmt: skip
DEVICE = Device("cpu", 0, "made up", "made up", 16 * 2**30)
OBJECTIVE = Objective("throughput", "samples/s", True, lambda measurement: measurement.rate)
WRITTEN: Mapping[str, Any] = {
    "workers": 0, "prefetch": 2, "batch_size": 64, "precision": "fp32", "layout": False, "compile": "off",
}  # fmt: skip
SPACE = SearchSpace(
    "made-up",
    "none",
    (
        Knob("workers", lambda known: [0, 1, 2, 4, 8], "loader workers", ordered=True, loader=True, heavier=True),
        Knob("precision", lambda known: ["fp32", "bf16", "fp16"], "precision", tier=2),
        Knob("batch_size", lambda known: [32, 64, 128, 256, 512], "batch", tier=3, ordered=True, heavier=True),
        Knob("layout", lambda known: [False, True], "layout"),
        Knob(
            "prefetch", lambda known: [2, 4], "prefetch", ordered=True, loader=True,
            needs=lambda config: int(config.get("workers", 0)) > 0,
        ),
        Knob("compile", lambda known: ["default", "max"], "compiler", late=True),
    ),
)  # fmt: skip


def device(uuid: str) -> Device:
    """A made-up card of its own: nothing else locks it."""
    return Device("cuda", 0, "made up", uuid, 16 * 2**30, "cuda:0")


def measured(rate: float, wait: float = 0.0, *, knobs: tuple[KnobReport, ...] = ()) -> Outcome:
    """A complete outcome with that rate."""
    blocks = tuple(Block(rate / 4, 4, 0.25, wait / 4) for _ in range(12))
    measurement = Measurement(
        rate=rate, low=rate * 0.98, high=rate * 1.02, steps_per_s=16.0, unit="samples", blocks=blocks,
        data_wait_share=wait, peak_host_bytes=2**28, peak_device_bytes=0, first_step_s=1.0, compile_s=0.0,
        losses=(series(2.0 * 0.9**step for step in range(60)),), steady=True, cpu_s_per_sample=0.001,
        foreign_cpus=0.0, knobs=knobs,
    )  # fmt: skip
    return Outcome(
        OutcomeKind.COMPLETE, measurement=measurement, knowledge=Knowledge(as_written=WRITTEN), seconds=10.0
    )


def series(losses: Iterable[float], site: str = "train.py:9", objective: str = "") -> LossSeries:
    """A loss at every step of 64 samples."""
    points = tuple((64.0 * step, loss) for step, loss in enumerate(losses, start=1))
    return LossSeries(site, objective or site, points)


def infeasible(reason: str) -> Outcome:
    """An outcome of a config that can't work."""
    return Outcome(OutcomeKind.INFEASIBLE, reason, f"made-up {reason}", seconds=5.0)


@dataclass
class World:
    """A loader that feeds ``feed`` samples/s a worker, a device that computes ``compute``; the slower one decides.

    Batches above ``fits`` run out of memory, fp16 gives NaN, and ``layout`` meets nothing. ``noise`` is relative.
    """

    feed: float = 400.0
    compute: float = 1000.0
    fits: int = 256
    noise: float = 0.0
    seed: int = 0
    runs: list[dict[str, Any]] = field(default_factory=list)

    def outcome(self, config: Config) -> Outcome:
        """What the config gives."""
        self.runs.append(dict(config))
        if int(self.value(config, "batch_size")) > self.fits:
            return infeasible("device-oom")
        if self.value(config, "precision") == "fp16":
            return infeasible("nan")
        chance = random.Random(f"{self.seed}:{len(self.runs)}")
        rate, wait = self.truth(config)
        knobs = [KnobReport("layout", True, 0, 0, Evidence.NOT_APPLICABLE)] if "layout" in config else []
        return measured(rate * (1 + chance.gauss(0, self.noise)), wait, knobs=tuple(knobs))

    def truth(self, config: Config) -> tuple[float, float]:
        """The rate without noise, and the share of it spent waiting."""
        workers = int(self.value(config, "workers"))
        compute = self.compute * {"fp32": 1.0, "bf16": 1.6, "fp16": 2.0}[str(self.value(config, "precision"))]
        compute *= {"off": 1.0, "default": 1.3, "max": 1.35}[str(self.value(config, "compile"))]
        compute *= min(1.5, (int(self.value(config, "batch_size")) / 64) ** 0.25)
        if not workers:
            return 1 / (1 / compute + 1 / self.feed), compute / (self.feed + compute)
        feed = self.feed * min(workers, 4)
        return min(feed, compute), max(0.0, 1 - feed / compute)

    @staticmethod
    def value(config: Mapping[str, Value], knob: str) -> Any:
        """The knob's value, as written where the config is silent."""
        return config.get(knob, WRITTEN[knob])


def resolved(*selection: str, **pinned: Any) -> ResolvedSpace:
    """The space as a baseline would resolve it."""
    known = Known(DEVICE, 8, knowledge=Knowledge(as_written=WRITTEN))
    return resolve(SPACE, known, selection=selection, pinned=pinned)


def plan(folder: Path, **changes: Any) -> StudyPlan:
    """A plan over the made-up space."""
    values: dict[str, Any] = {
        "name": "made-up", "script": Script("train.py", (), sha256="0" * 64), "device": DEVICE, "folder": folder,
        "spaces": Spaces((SPACE,)), "objective": OBJECTIVE, "trials": 20, "limits": Limits(), "cores": 8,
        "software": {"python": "3"}, "finals_rounds": 3, "finalists": 2, "probe": False,
    }  # fmt: skip
    return StudyPlan(**{**values, **changes})
