"""How far the ratios of a rotation are from those of fresh processes by turns, config by config, on a real script.

    python tests/benchmarks/rotation_bias.py studies/photos/train.py --turn 0.5 \\
        --config '{"num_workers": 1}' --config '{"num_workers": 2}' --config '{"precision": "bf16"}' \\
        --config '{"compile": "default"}'
    python tests/benchmarks/rotation_bias.py studies/keras_digits/train.py \\
        --config '{"precision": "bf16"}' --config '{"steps_per_execution": 4, "precision": "bf16"}'

What is compiled is kept in a cache of the benchmark's own. Each repetition is a rotation of all the configs and then,
of each, two fresh processes by turns, as in the finals: it and the script as written; so the machine is the same for
both ways. Prints every ratio; then of each config the rotation's geometric mean as a ratio to that of the fresh
processes, of all configs how far the two are apart, in the median and at worst, and how many configs an hour either way
comes to. A ratio by turns holds what each epoch's start takes; so does a rotation's, by what it derives of it. Nothing
else may run on the machine meanwhile: others' load is told with each figure.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

from tuner.child.records import Window
from tuner.devices.cpu import cpu_device
from tuner.model import BASELINE, Config, Script
from tuner.runner.process import ProcessRunner
from tuner.runner.request import Limits, TrialRequest
from tuner.study.lengths import WARMUP_S

TURN_S = 0.25
DEADLINE_S = 600.0
"""Of one trial: a rotation compiles several configs."""


@dataclass
class Way:
    """What one way of measuring came to: config → the logarithms of its ratios, and the seconds of all of them."""

    found: dict[Config, list[float]] = field(default_factory=dict)
    seconds: float = 0.0

    def add(self, config: Config, ratio: float) -> None:
        """One more of a config."""
        self.found.setdefault(config, []).append(math.log(ratio))

    def spread(self, config: Config) -> float:
        """From run to run."""
        return statistics.stdev(self.found[config]) if len(self.found[config]) > 1 else math.nan

    @property
    def an_hour(self) -> float:
        """Configs that it comes to."""
        return 3600 * sum(map(len, self.found.values())) / self.seconds if self.seconds else math.nan


class Comparison:
    """Both ways, of one script."""

    def __init__(self, script: Path, folder: Path, turn_s: float, window_s: float) -> None:
        self._script, self._folder = Script(str(script), ()), folder
        self._rotates = Window(warmup_s=WARMUP_S, block_s=turn_s, max_s=1000.0)
        self._pairs = Window(warmup_s=WARMUP_S, max_s=window_s)
        self._runner, self._stop = ProcessRunner(), threading.Event()
        self.rotated, self.fresh = Way(), Way()

    def rotate(self, configs: tuple[Config, ...], name: str) -> None:
        """All of them in one process."""
        began = time.monotonic()
        outcome = self._runner.run(self._request(name, BASELINE, self._rotates, configs), self._stop)
        self.rotated.seconds += time.monotonic() - began
        if outcome.measurement is None or not outcome.complete:
            sys.exit(f"no rotation: {outcome.detail or outcome.reason}")
        print(f"rotation, others used {outcome.measurement.foreign_cpus:.1f} cores", flush=True)
        for each in outcome.rotation:
            print(f"    {dict(each.config)} {each.gain or each.fault}", flush=True)
            if each.gain is not None:
                self.rotated.add(each.config, each.gain.ratio)

    def pair(self, config: Config, name: str) -> None:
        """One of them and the script as written, each in a fresh process."""
        requests = [self._request(f"{name}-{side}", each, self._pairs) for side, each in enumerate((BASELINE, config))]
        began = time.monotonic()
        outcomes = self._runner.run_by_turns(requests, self._stop).outcomes
        self.fresh.seconds += time.monotonic() - began
        before, after = (outcome.measurement for outcome in outcomes)
        if before is None or after is None:
            print(f"fresh processes: {dict(config)} {[each.detail or each.reason for each in outcomes]}", flush=True)
            return
        foreign = max(before.foreign_cpus, after.foreign_cpus)
        print(f"fresh processes: {dict(config)} {after.rate / before.rate:.3f}, others {foreign:.1f} cores", flush=True)
        self.fresh.add(config, after.rate / before.rate)

    def _request(self, name: str, config: Config, window: Window, rotation: tuple[Config, ...] = ()) -> TrialRequest:
        return TrialRequest(
            self._folder / name, self._script, cpu_device(), config, window=window, rotation=rotation,
            compile_cache=self._folder / "compile-cache", limits=Limits(trial_timeout_s=DEADLINE_S),
        )  # fmt: skip

    def print_summary(self) -> None:
        """Of each config that has a ratio of either way, and of all."""
        apart = []
        for config in [each for each in self.rotated.found if each in self.fresh.found]:
            one, other = (statistics.mean(way.found[config]) for way in (self.rotated, self.fresh))
            apart.append(abs(one - other))
            print(
                f"{dict(config)}: {math.exp(one):.3f} in rotations, {math.exp(other):.3f} in fresh processes, ratio of"
                f" the two {math.exp(one - other):.3f}; from run to run {self.rotated.spread(config):.1%} and"
                f" {self.fresh.spread(config):.1%}"
            )
        if apart:
            middle, worst = math.expm1(statistics.median(apart)), math.expm1(max(apart))
            print(f"apart: {middle:.1%} in the median, {worst:.1%} at worst")
        print(f"configs an hour: {self.rotated.an_hour:.0f} in rotations, {self.fresh.an_hour:.0f} in fresh processes")


def main() -> None:
    """Runs the repetitions, and prints what came of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("script", type=Path)
    parser.add_argument("--config", type=json.loads, action="append", required=True, help="as JSON; several times")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--turn", type=float, default=TURN_S, help="seconds of one; 0.5 where data are turned")
    parser.add_argument("--window", type=float, default=6.0, help="seconds of a fresh process's window")
    given = parser.parse_args()
    configs = tuple(Config(each) for each in given.config)
    with tempfile.TemporaryDirectory() as folder:
        compared = Comparison(given.script, Path(folder), given.turn, given.window)
        for number in range(given.repeat):
            compared.rotate(configs, f"{number}")
            for place, config in enumerate(configs):
                compared.pair(config, f"{number}-{place}")
    compared.print_summary()


if __name__ == "__main__":
    main()
