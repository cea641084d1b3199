"""Made-up training loops drawn from a seed: what samplers are compared on, where no grid was recorded.

A loader and a device, one after the other without workers, side by side with them; the slower one decides. Knobs
multiply what the device computes, and act on each other by a few percent; batches run out of memory, fp16 overflows
here and there, a compiler fails now and then. Rates are read with noise, of which their own interval
covers a part.
"""

from __future__ import annotations

import itertools
import math
import random
from dataclasses import replace
from functools import cached_property
from typing import Any

from support import worlds
from tuner.knowledge import Knowledge
from tuner.model import Config, Outcome, OutcomeKind, Value
from tuner.space.declare import Knob, Known, SearchSpace
from tuner.space.resolve import resolve
from tuner.space.resolved import ResolvedSpace

WRITTEN: dict[str, Value] = {
    "workers": 0, "precision": "fp32", "layout": False, "optimizer": "plain", "batch_size": 64, "prefetch": 2,
    "persistent": False, "pinned": False, "threads": 4, "compile": "off",
}  # fmt: skip
SPACE = SearchSpace(
    "loops",
    "none",
    (
        Knob("workers", lambda known: [0, 1, 2, 4, 8], "loader workers", ordered=True, loader=True, heavier=True),
        Knob("threads", lambda known: [1, 2, 4], "threads", ordered=True),
        Knob("precision", lambda known: ["fp32", "tf32", "bf16", "fp16"], "precision", tier=2),
        Knob("layout", lambda known: [False, True], "memory layout"),
        Knob("optimizer", lambda known: ["plain", "foreach", "fused"], "the optimizer's kernels", tier=2),
        Knob("batch_size", lambda known: [32, 64, 128, 256, 512], "batch", tier=3, ordered=True, heavier=True),
        Knob(
            "prefetch", lambda known: [2, 4, 8], "prefetch", ordered=True, loader=True, heavier=True,
            needs=lambda config: int(config.get("workers", 0)) > 0,
        ),
        Knob(
            "persistent", lambda known: [False, True], "lasting workers", loader=True,
            needs=lambda config: int(config.get("workers", 0)) > 0,
        ),
        Knob("pinned", lambda known: [False, True], "page-locked batches", loader=True),
        Knob("compile", lambda known: ["default", "max"], "compiler", tier=2, late=True),
    ),
)  # fmt: skip
STRETCHED = 0.6
"""A trial's own interval covers that share of its noise: what differs between processes isn't in it."""


class Loop:
    """One loop. ``noise`` is the standard deviation of a rate's logarithm; drawn where it isn't given."""

    objective = worlds.OBJECTIVE

    def __init__(self, seed: int, noise: float | None = None) -> None:
        chance = random.Random(f"loop:{seed}")
        self.seed = seed
        self.noise = chance.uniform(0.03, 0.10) if noise is None else noise
        self._runs = random.Random(f"runs:{seed}")
        self._computing_s = 1 / 500
        self._loading_s = self._computing_s * math.exp(chance.uniform(math.log(0.03), math.log(12.0)))
        self._step_s = 64 * self._computing_s * chance.choice((0.02, 0.2, 1.0))
        self._most_workers = chance.choice((2, 4, 6, 8))
        self._contention = chance.choice((0.0, 0.0, 0.03, 0.06))
        self._written = {**WRITTEN, "workers": chance.choice((0, 0, 0, 2)), "precision": "fp32"}
        self._factor = {
            ("precision", "tf32"): chance.choice((1.0, 1.1, 1.3)),
            ("precision", "bf16"): chance.choice((0.7, 1.2, 1.8, 2.2)),
            ("precision", "fp16"): chance.choice((0.7, 1.2, 1.8, 2.2)),
            ("layout", True): chance.choice((0.8, 1.0, 1.0, 1.15)),
            ("optimizer", "foreach"): chance.choice((1.0, 1.03)), ("optimizer", "fused"): chance.choice((1.0, 1.06)),
            ("threads", 1): chance.choice((0.5, 0.9, 1.05)), ("threads", 2): chance.choice((0.8, 1.0, 1.1)),
            ("compile", "default"): chance.choice((0.95, 1.1, 1.4)),
            ("compile", "max"): chance.choice((0.9, 1.15, 1.5)),
        }  # fmt: skip
        self._together = self._interactions(chance)
        self._memory = 1.0 * chance.choice((96, 200, 400, 2000))
        self._overflows = chance.random() < 0.4
        self._compiles = {mode: chance.random() < 0.8 for mode in ("default", "max")}

    @cached_property
    def space(self) -> ResolvedSpace:
        return resolve(SPACE, Known(worlds.DEVICE, 8, knowledge=Knowledge(as_written=self._written)))

    @cached_property
    def optimum(self) -> float:
        axes = self.space.axes
        names = [axis.knob.name for axis in axes]
        configs = (dict(zip(names, values, strict=True)) for values in itertools.product(*(a.values for a in axes)))
        return max(self._rate(config)[0] for config in configs if not self._failure(config))

    def truth(self, config: Config) -> float | None:
        values = self.space.complete(config)
        return None if self._failure(values) else self._rate(values)[0]

    def outcome(self, config: Config) -> Outcome:
        values = self.space.complete(config)
        failure = self._failure(values)
        compile_s = {"off": 0.0, "default": 15.0, "max": 40.0}[str(values["compile"])]
        if failure:
            return Outcome(OutcomeKind.INFEASIBLE, failure, f"made-up {failure}", seconds=8.0 + compile_s)
        rate, wait = self._rate(values)
        read = rate * math.exp(self._runs.gauss(0, self.noise))
        half = 1.96 * STRETCHED * self.noise
        outcome = worlds.measured(read, min(0.99, max(0.0, wait + self._runs.gauss(0, 0.01))))
        assert outcome.measurement is not None
        knowledge = Knowledge(as_written=self._written)
        measurement = replace(outcome.measurement, low=read * math.exp(-half), high=read * math.exp(half))
        return replace(outcome, measurement=measurement, knowledge=knowledge, seconds=12.0 + compile_s)

    def _interactions(self, chance: random.Random) -> dict[tuple[Any, ...], float]:
        """How much more or less two values of compute knobs bring together than one by one: a few pairs do."""
        values = list(self._factor)
        pairs = [pair for pair in itertools.combinations(values, 2) if pair[0][0] != pair[1][0]]
        return {pair: math.exp(chance.gauss(0, 0.08)) for pair in chance.sample(pairs, len(pairs) // 3)}

    def _rate(self, values: dict[str, Value]) -> tuple[float, float]:
        """Samples per second, and the share of the time spent waiting."""
        batch, workers = float(values["batch_size"]), int(values["workers"])
        on = [each for each in self._factor if values[each[0]] == each[1]]
        speed = math.prod(self._factor[each] for each in on)
        speed *= math.prod(self._together.get(pair, 1.0) for pair in itertools.combinations(on, 2))
        computing = self._computing_s / speed * (1 + self._contention * workers) + self._step_s / batch / speed**0.3
        loading = self._loading_s * (0.97 if values["pinned"] else 1.0)
        if not workers:
            return 1 / (computing + loading), loading / (computing + loading)
        loading *= (0.96 if values["persistent"] else 1.0) * (1.02 if values["prefetch"] == 2 else 1.0)
        loading = 1.1 * loading / min(workers, self._most_workers)
        whole = max(computing, loading)
        return 1 / whole, 1 - computing / whole

    def _failure(self, values: dict[str, Value]) -> str:
        width = {"fp32": 1.0, "tf32": 1.0, "bf16": 0.6, "fp16": 0.6}[str(values["precision"])]
        if float(values["batch_size"]) * width * (1.1 if values["compile"] == "max" else 1.0) > self._memory:
            return "device-oom"
        if values["precision"] == "fp16" and self._overflows:
            return "nan"
        return "" if self._compiles.get(str(values["compile"]), True) else "compile-failed"
