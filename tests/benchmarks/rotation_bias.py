"""How far the ratios of a rotation are from those of fresh processes by turns, config by config, on a real script.

    python tests/benchmarks/rotation_bias.py studies/photos/train.py --repeat 3 \
        --config '{"num_workers": 1}' --config '{"num_workers": 2}' --config '{"precision": "bf16"}' \
        --config '{"batch_size": 16, "grad_accumulation": 2}' --config '{"compile": "default"}'

A smaller batch needs the accumulation that makes up for it; what is compiled is kept in a cache of the benchmark's own.
Each repetition is a rotation of all the configs and then, of each, two fresh processes by turns, as in the finals: it
and the script as written. Prints every ratio; then of each config the rotation's geometric mean as a ratio to that of
the fresh processes, and of all configs how far the two are apart, in the median and at worst. A ratio by turns holds
what each epoch's start takes; so does a rotation's, by what it derives of it.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import tempfile
import threading
from pathlib import Path

from tuner.child.records import Window
from tuner.devices.cpu import cpu_device
from tuner.model import BASELINE, Config, Script
from tuner.runner.process import ProcessRunner
from tuner.runner.request import TrialRequest
from tuner.study.lengths import LOADER_TURN_S, WARMUP_S

Found = dict[Config, list[float]]
"""Config → the logarithms of its ratios, one a repetition."""


def main() -> None:
    """Runs the repetitions, and prints what came of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("script")
    parser.add_argument("--config", type=json.loads, action="append", required=True, help="as JSON; several times")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--turn", type=float, default=LOADER_TURN_S, help="seconds of a rotation's turn")
    parser.add_argument("--window", type=float, default=6.0, help="seconds of a fresh process's window")
    given = parser.parse_args()
    configs = [Config(each) for each in given.config]
    rotated: Found = {config: [] for config in configs}
    fresh: Found = {config: [] for config in configs}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(given.repeat):
            here = Path(folder) / str(number)
            add_rotation(here / "rotation", Path(given.script), given.turn, rotated)
            for place, config in enumerate(configs):
                add_fresh(here / f"fresh-{place}", Path(given.script), given.window, config, fresh)
    print_summary(rotated, fresh)


def add_rotation(folder: Path, script: Path, turn_s: float, found: Found) -> None:
    """One rotation of all the configs."""
    window = Window(warmup_s=WARMUP_S, block_s=turn_s, max_s=1000.0)
    request = TrialRequest(
        folder, Script(str(script), ()), cpu_device(), BASELINE, window=window, rotation=tuple(found),
        compile_cache=folder.parent.parent / "compile-cache",
    )  # fmt: skip
    outcome = ProcessRunner().run(request, threading.Event())
    if not outcome.complete:
        sys.exit(f"no rotation: {outcome.detail or outcome.reason}")
    for each in outcome.rotation:
        print(f"rotation: {dict(each.config)} {each.gain or each.fault}", flush=True)
        if each.gain is not None:
            found[each.config].append(math.log(each.gain.ratio))


def add_fresh(folder: Path, script: Path, window_s: float, config: Config, found: Found) -> None:
    """One pair of fresh processes by turns."""
    window = Window(warmup_s=WARMUP_S, max_s=window_s)
    requests = [
        TrialRequest(
            folder / str(side), Script(str(script), ()), cpu_device(), each, window=window,
            compile_cache=folder.parent.parent / "compile-cache",
        )
        for side, each in enumerate((BASELINE, config))
    ]
    outcomes = ProcessRunner().run_by_turns(requests, threading.Event()).outcomes
    before, after = (outcome.measurement for outcome in outcomes)
    if before is None or after is None:
        sys.exit(f"no figure: {[outcome.detail or outcome.reason for outcome in outcomes]}")
    print(f"fresh processes: {dict(config)} {after.rate / before.rate:.3f}", flush=True)
    found[config].append(math.log(after.rate / before.rate))


def print_summary(rotated: Found, fresh: Found) -> None:
    """Of each config, and of all."""
    apart = []
    for config in rotated:
        if rotated[config] and fresh[config]:
            one, other = statistics.mean(rotated[config]), statistics.mean(fresh[config])
            apart.append(abs(one - other))
            spreads = [statistics.stdev(of[config]) if len(of[config]) > 1 else math.nan for of in (rotated, fresh)]
            print(
                f"{dict(config)}: {math.exp(one):.3f} in rotations, {math.exp(other):.3f} in fresh processes, ratio of"
                f" the two {math.exp(one - other):.3f}; from run to run {spreads[0]:.1%} and {spreads[1]:.1%}"
            )
    if apart:
        print(f"apart: {math.expm1(statistics.median(apart)):.1%} in the median, {math.expm1(max(apart)):.1%} at worst")


if __name__ == "__main__":
    main()
