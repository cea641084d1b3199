"""How far the ratios of configs that take turns in one process are off from those of fresh processes by turns.

    python tests/benchmarks/carried_over.py studies/keras_digits/train.py --rounds 3 \\
        '{"precision": "bf16"}' '{"steps_per_execution": 4}' '{"steps_per_execution": 4, "precision": "bf16"}'
    python tests/benchmarks/carried_over.py studies/digits/train.py --rounds 3 \\
        '{"compile": "default"}' '{"compile": "default", "precision": "bf16"}' \\
        '{"batch_size": 32, "grad_accumulation": 2}'

In each round all configs take turns in one process, and then each one in a process of its own with a fresh one of the
script as written, so that the machine is the same for both. Prints the ratios and seconds of each, then for each config
the mean of either way and what lies between them, and last the median and the worst of these, and how many configs an
hour either way comes to. Nothing else may run on the machine meanwhile: others' load is told of each round.
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
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tuner.child.records import Window
from tuner.child.rounds import turns_of, turns_of_round
from tuner.devices.cpu import cpu_device
from tuner.model import BASELINE, Config, Script
from tuner.runner.process import ProcessRunner
from tuner.runner.request import Limits, TrialRequest

PAIR = Window(max_s=10.0)
TURN_S = 0.25
DEADLINE_S = 600.0


@dataclass
class Way:
    """Ratios of each config, and the seconds that all of them took."""

    ratios: dict[Config, list[float]] = field(default_factory=dict)
    seconds: float = 0.0

    def add(self, config: Config, ratio: float) -> None:
        """One more of a config."""
        self.ratios.setdefault(config, []).append(ratio)

    def mean(self, config: Config) -> float:
        """The geometric mean; NaN where there is none."""
        found = self.ratios.get(config, [])
        return math.exp(statistics.fmean(map(math.log, found))) if found else math.nan

    @property
    def an_hour(self) -> float:
        """Configs that it comes to."""
        return 3600 * sum(map(len, self.ratios.values())) / self.seconds if self.seconds else math.nan


class Comparison:
    """Both ways of one script; each trial has a folder of its own."""

    def __init__(self, script: str, folder: Path, turn_s: float) -> None:
        self._script = Script(script, ())
        self._folder = folder
        self._turn_s = turn_s
        self._runner, self._stop = ProcessRunner(), threading.Event()
        self.rotated, self.fresh = Way(), Way()

    def rotate(self, configs: tuple[Config, ...], name: str) -> None:
        """All of them in one process."""
        count = len(configs)
        most_s = (turns_of(count) - turns_of_round(count) / 2) * self._turn_s
        window = Window(warmup_s=1.0, block_s=self._turn_s, max_s=most_s)
        began = time.monotonic()
        outcome = self._runner.run(self._request(name, BASELINE, window, configs), self._stop)
        self.rotated.seconds += time.monotonic() - began
        if not outcome.rotation:
            sys.exit(f"no rotation: {outcome.detail or outcome.reason}")
        foreign = outcome.measurement.foreign_cpus if outcome.measurement is not None else math.nan
        print(f"in one process, others used {foreign:.1f} cores:", flush=True)
        for each in outcome.rotation:
            print(f"    {_named(each.config)}: {each.gain.ratio if each.gain is not None else each.fault}", flush=True)
            if each.gain is not None:
                self.rotated.add(each.config, each.gain.ratio)

    def pair(self, config: Config, name: str) -> None:
        """One of them and the script as written."""
        requests = [self._request(f"{name}-{side}", each, PAIR) for side, each in enumerate((BASELINE, config))]
        began = time.monotonic()
        outcomes = self._runner.run_by_turns(requests, self._stop).outcomes
        self.fresh.seconds += time.monotonic() - began
        before, after = (outcome.measurement for outcome in outcomes)
        if before is None or after is None:
            print(f"    {_named(config)}: no figure, {[outcome.detail or outcome.reason for outcome in outcomes]}")
            return
        foreign = max(before.foreign_cpus, after.foreign_cpus)
        print(f"    {_named(config)}: {after.rate / before.rate:.3f}, others used {foreign:.1f} cores", flush=True)
        self.fresh.add(config, after.rate / before.rate)

    def _request(
        self, name: str, config: Config, window: Window, rotation: tuple[Config, ...] = ()
    ) -> TrialRequest:
        return TrialRequest(
            self._folder / name, self._script, cpu_device(), config, window=window, rotation=rotation,
            ends_by=time.monotonic() + DEADLINE_S, compile_cache=self._folder / "compile-cache",
            limits=Limits(trial_timeout_s=DEADLINE_S),
        )  # fmt: skip


def main() -> None:
    """Runs the rounds, and prints what came of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("script")
    parser.add_argument("configs", nargs="+", type=json.loads, help="as JSON")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--turn", type=float, default=TURN_S, help="seconds of one; 0.5 where data are turned")
    given = parser.parse_args()
    configs = tuple(Config(each) for each in given.configs)
    with tempfile.TemporaryDirectory() as folder:
        compared = Comparison(given.script, Path(folder), given.turn)
        for number in range(given.rounds):
            compared.rotate(configs, f"{number}")
            print("in processes of their own:")
            for place, config in enumerate(configs):
                compared.pair(config, f"{number}-{place}")
    off = []
    print(f"\n{'config':60} in one  fresh  between")
    for config in configs:
        one, other = compared.rotated.mean(config), compared.fresh.mean(config)
        between = abs(math.log(one / other))
        off += [between] if not math.isnan(between) else []
        print(f"{_named(config):60} {one:6.3f} {other:6.3f} {math.expm1(between):8.1%}")
    if off:
        print(f"median {math.expm1(statistics.median(off)):.1%}, worst {math.expm1(max(off)):.1%}")
    print(f"configs an hour: {compared.rotated.an_hour:.0f} in one process, {compared.fresh.an_hour:.0f} fresh")


def _named(config: Mapping[str, object]) -> str:
    return " ".join(f"{knob}={value}" for knob, value in config.items())


if __name__ == "__main__":
    main()
