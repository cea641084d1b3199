"""A made-up script whose every step costs as much beside its samples: larger batches are faster, and learn less."""

from __future__ import annotations

import math
import random
import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from search_spaces.torch import SPACE
from support import worlds
from tuner.events import Event
from tuner.knowledge import Knowledge, samples_per_step
from tuner.model import Config, LossSeries, Outcome, Value
from tuner.result import StudyResult
from tuner.runner.replay import ReplayRunner
from tuner.runner.request import TrialRequest
from tuner.search.chain import Chain
from tuner.search.larger_batches import LargerBatchSampler
from tuner.search.structured import StructuredSampler
from tuner.space.choose import Spaces
from tuner.study.plan import StudyPlan
from tuner.study.run import run_study

WRITTEN: Mapping[str, Value] = {"batch_size": 32, "grad_accumulation": 1, "lr_scale": 1.0, "precision": "fp32"}
KNOWN = Knowledge(
    as_written=WRITTEN, framework="torch", unit="samples", dataset_len=4096, optimizers=("SGD",),
    loss_reduction="mean", precisions=("fp32", "bf16"),
)  # fmt: skip


@dataclass(frozen=True)
class Overhead:
    """A step takes ``step_s`` and ``sample_s`` a sample; bf16 computes samples ``bf16`` times as fast.

    So many samples are needed as the noise scale says (``noise_scale``, in batches as written). Batches above ``fits``
    run out of memory, above ``fits_spared`` with checkpointing, which computes samples for a third longer; ``diverges``
    gives NaN. Rates scatter by ``scatter``, relatively; losses by ``rough``. With each doubling of the batch a loss is
    higher by ``by_batch``, whatever was learned.
    """

    step_s: float = 0.015
    sample_s: float = 0.0001
    bf16: float = 1.0
    noise_scale: float = 16.0
    fits: int = 10**6
    fits_spared: int = 10**6
    diverges: int = 10**6
    scatter: float = 0.003
    rough: float = 0.004
    by_batch: float = 0.0
    knowledge: Knowledge = KNOWN

    def step_of(self, config: Mapping[str, Value]) -> int:
        """Samples of a step."""
        return samples_per_step({**self.knowledge.as_written, **config})

    def rate(self, config: Mapping[str, Value]) -> float:
        """Samples per second."""
        faster = self.bf16 if config.get("precision") == "bf16" else 1.0
        faster /= 4 / 3 if config.get("checkpointing") else 1.0
        parts = int(config.get("grad_accumulation", 1))
        size = self.step_of(config)
        return size / (self.step_s * parts + self.sample_s * size / faster)

    def efficiency(self, config: Mapping[str, Value]) -> float:
        """The share of the samples as from which it learns."""
        factor = self.step_of(config) / self.step_of({})
        return (1 + 1 / self.noise_scale) / (1 + factor / self.noise_scale)

    def outcome(self, config: Config, chance: random.Random, samples: float) -> Outcome:
        """What a run gives; ``samples`` are those of a screen, 0 elsewhere."""
        if self.step_of(config) > (self.fits_spared if config.get("checkpointing") else self.fits):
            return worlds.infeasible("device-oom")
        rate = self.rate(config) * (1 + chance.gauss(0, self.scatter))
        outcome = worlds.measured(rate)
        assert outcome.measurement is not None
        measurement = replace(
            outcome.measurement, steps_per_s=rate / self.step_of(config), losses=(self.losses(config, chance, samples),)
        )
        seconds = samples / rate + 2.0 if samples else 10.0
        return replace(outcome, measurement=measurement, knowledge=self.knowledge, seconds=seconds)

    def losses(self, config: Config, chance: random.Random, samples: float) -> LossSeries:
        """It comes down from 2 to 1 over the samples of a usual screen."""
        step, pace = self.step_of(config), self.efficiency(config) / 1500
        bad = self.step_of(config) > self.diverges
        level = 1 + self.by_batch * math.log2(step / self.step_of({}))
        points = [
            (step * (n + 1.0), math.nan if bad else level + math.exp(-pace * step * n) + chance.gauss(0, self.rough))
            for n in range(max(4, int((samples or 40 * step) / step)))
        ]  # fmt: skip
        return LossSeries("train.py:9", "train.py:9", tuple(points))


class Runner(ReplayRunner):
    """Runs such a script; the same run gives the same figures, whoever asks when."""

    def __init__(self, world: Overhead, stop_at: int | None = None) -> None:
        super().__init__(self._outcome)
        self.world = world
        self.stop_at = stop_at
        self.now = 1000.0

    def clock(self) -> float:
        """Seconds: each run takes as long as its outcome says."""
        return self.now

    def run(self, request: TrialRequest, stop: threading.Event) -> Outcome:
        outcome = super().run(request, stop)
        if self.stop_at is not None and len(self.requests) >= self.stop_at:
            stop.set()
        return outcome

    def _outcome(self, config: Config) -> Outcome:
        request = self.requests[-1]
        chance = random.Random(f"{dict(config)}:{request.seed}:{request.folder.name}")
        outcome = self.world.outcome(config, chance, request.window.until_samples)
        self.now += outcome.seconds
        return outcome


@dataclass
class Studied:
    """A study of such a script: what it gave, told and asked of its runner."""

    result: StudyResult
    events: list[Event]
    requests: list[TrialRequest]
    seconds: float

    @property
    def steps(self) -> list[int]:
        """The batches of the trials of the search, in their order."""
        found = [trial.config for trial in self.result.trials if trial.phase == "search"]
        return [samples_per_step({**WRITTEN, **config}) for config in found]


def plan(folder: Path, **changes: Any) -> StudyPlan:
    """A plan over PyTorch's own space."""
    given = {"spaces": Spaces((SPACE,)), "selection": ("batch_size", "precision"), "finals_rounds": 5, **changes}
    return worlds.plan(folder, **given)


def studied(folder: Path, world: Overhead, *, stop_at: int | None = None, **changes: Any) -> Studied:
    """A study, by the samplers that the verb uses but the last one."""
    runner, events = Runner(world, stop_at), list[Event]()
    sampler = Chain(LargerBatchSampler(early=True), StructuredSampler(), LargerBatchSampler())
    began, wanted = runner.now, plan(folder, **changes)
    result = run_study(wanted, runner, sampler, events.append, threading.Event(), clock=runner.clock)
    return Studied(result, events, runner.requests, runner.now - began)
