"""What it is worth to measure two configs by turns: how far ratios scatter from pair to pair of fresh processes.

    python tests/benchmarks/turns.py studies/digits/train.py --pairs 12
    python tests/benchmarks/turns.py studies/digits/train.py --pairs 12 --config '{"precision": "bf16"}'

A pair is the script as written and the config, by default the script as written again: the true ratio is 1 then. Pairs
by turns and pairs whose processes run one after the other alternate, so that the machine is the same for both; windows
are those of the finals (10 s). Prints each pair's ratio, seconds and foreign cores, then for each way the mean ratio,
the standard deviation of a pair's ratio (of its logarithm, in percent) with its 95% interval, and the median of the
seconds.
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
from collections.abc import Callable
from pathlib import Path

from tuner.child.records import Window
from tuner.devices.cpu import cpu_device
from tuner.model import BASELINE, Config, Outcome, Script
from tuner.runner.process import ProcessRunner
from tuner.runner.request import TrialRequest

WINDOW = Window(max_s=10.0)


def main() -> None:
    """Runs the pairs, and prints what came of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("script")
    parser.add_argument("--config", type=json.loads, default={}, help="as JSON; by default the script as written")
    parser.add_argument("--pairs", type=int, default=12)
    given = parser.parse_args()
    runner, stop, found = ProcessRunner(), threading.Event(), dict[str, list[tuple[float, float]]]()
    ways: dict[str, Callable[[list[TrialRequest]], list[Outcome]]] = {
        "by turns": lambda requests: list(runner.run_by_turns(requests, stop).outcomes),
        "in sequence": lambda requests: [runner.run(request, stop) for request in requests],
    }
    with tempfile.TemporaryDirectory() as folder:
        for pair in range(given.pairs):
            for way, run in ways.items():
                requests = [
                    TrialRequest(Path(folder) / f"{pair}-{way}-{side}", Script(given.script, ()), cpu_device(), config,
                                 window=WINDOW)
                    for side, config in enumerate((BASELINE, Config(given.config)))
                ]  # fmt: skip
                found.setdefault(way, []).append(_measured(way, run, requests))
    for way, pairs in found.items():
        print(f"{way}: {_summary(pairs)}")


def _measured(
    way: str, run: Callable[[list[TrialRequest]], list[Outcome]], requests: list[TrialRequest]
) -> tuple[float, float]:
    """The logarithm of the pair's ratio, and the seconds that it took."""
    began = time.monotonic()
    outcomes = run(requests)
    seconds = time.monotonic() - began
    before, after = (outcome.measurement for outcome in outcomes)
    if before is None or after is None:
        sys.exit(f"no figure: {[outcome.detail or outcome.reason for outcome in outcomes]}")
    foreign = max(before.foreign_cpus, after.foreign_cpus)
    print(f"{way}: {after.rate / before.rate:.3f}x in {seconds:.0f} s, others used {foreign:.1f} cores", flush=True)
    return math.log(after.rate / before.rate), seconds


def _summary(pairs: list[tuple[float, float]]) -> str:
    logs, degrees = [log for log, _ in pairs], len(pairs) - 1
    deviation = statistics.stdev(logs)
    # The chi-square's quantiles by Wilson and Hilferty, 1931.
    low, high = (
        deviation * (1 - 2 / (9 * degrees) + z * math.sqrt(2 / (9 * degrees))) ** -1.5 for z in (1.96, -1.96)
    )  # fmt: skip
    return (
        f"mean {math.exp(statistics.mean(logs)):.3f}x, a pair's standard deviation {deviation:.1%}"
        f" (95% interval {low:.1%} to {high:.1%}), {statistics.median(s for _, s in pairs):.0f} s a pair"
    )


if __name__ == "__main__":
    main()
