"""What a fork server spares: seconds from a trial's launch to the end of its first step, fresh and forked.

    python tests/benchmarks/starts.py studies/digits/train.py --pairs 12

Trials that start fresh and trials that are forked alternate, so that the machine is the same for both; the trials in
which a server is started are left out, and what those took in all is told. Prints each pair, then of each way the
median and its 95% interval (by order statistics), the same of the rates, which tell whether a fork trains as fast, and
of the memory.
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
from dataclasses import dataclass
from pathlib import Path

from tuner.child.records import Window
from tuner.devices.cpu import cpu_device
from tuner.model import BASELINE, Script
from tuner.runner.fork_servers import SERVERS
from tuner.runner.process import ProcessRunner
from tuner.runner.request import TrialRequest

Z = 1.96


@dataclass(frozen=True)
class Run:
    """Of one trial: seconds to its first step as they went by, its rate, its memory, and the seconds that it took."""

    start_s: float
    rate: float
    peak_bytes: int
    seconds: float


def main() -> None:
    """Runs the pairs, and prints what came of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("script")
    parser.add_argument("--pairs", type=int, default=12)
    parser.add_argument("--window", type=float, default=3.0, help="seconds that are measured")
    given = parser.parse_args()
    window = Window(warmup_s=1.0, min_s=given.window, max_s=given.window)
    found: dict[bool, list[Run]] = {True: [], False: []}
    runner, stop = ProcessRunner(), threading.Event()
    with tempfile.TemporaryDirectory() as folder:
        ask = TrialRequest(Path(folder) / "baseline", Script(given.script, ()), cpu_device(), BASELINE, window=window)
        knowledge = runner.run(ask, stop).knowledge
        for number in range(given.pairs + SERVERS):
            pair = {}
            for fresh in (True, False) if number % 2 else (False, True):
                request = TrialRequest(
                    Path(folder) / f"{number}-{fresh}", ask.script, ask.device, BASELINE, knowledge, window, fresh=fresh
                )
                pair[fresh] = _run(runner, request, stop)
            if number < SERVERS:
                print(f"a server was started: {pair[False].seconds - pair[True].seconds:+.2f} s for its first trial")
                continue
            print(f"fresh {pair[True].start_s:.2f} s, forked {pair[False].start_s:.2f} s", flush=True)
            for fresh, run in pair.items():
                found[fresh].append(run)
    runner.close()
    for fresh, runs in found.items():
        told = [("start", [run.start_s for run in runs], "s"), ("rate", [run.rate for run in runs], "/s"),
                ("memory", [run.peak_bytes / 2**20 for run in runs], "MiB")]  # fmt: skip
        print("fresh: " if fresh else "forked:", ", ".join(f"{name} {_median(v)} {unit}" for name, v, unit in told))
    logs = [math.log(b.rate / a.rate) for a, b in zip(found[True], found[False], strict=True)]
    half = Z * statistics.stdev(logs) / math.sqrt(len(logs))
    middle = statistics.mean(logs)
    low, ratio, high = (math.exp(middle + by) for by in (-half, 0.0, half))
    print(f"rate of a fork to a fresh start's: {ratio:.3f} (95% interval {low:.3f} to {high:.3f})")


def _run(runner: ProcessRunner, request: TrialRequest, stop: threading.Event) -> Run:
    began = time.monotonic()
    outcome = runner.run(request, stop)
    seconds = time.monotonic() - began
    if outcome.measurement is None:
        sys.exit(f"no figure: {outcome.detail or outcome.reason}")
    lines = (request.folder / "records.jsonl").read_text(encoding="utf-8").splitlines()
    first = next(record for record in map(json.loads, lines) if record["kind"] == "first_step")
    spared_s = first.get("spared_s", 0.0)
    if bool(spared_s) is request.fresh:
        sys.exit(f"not forked: {runner.why_no_forks or 'see may_fork'}")
    measured = outcome.measurement
    return Run(first["seconds"] - spared_s, measured.rate, measured.peak_host_bytes, seconds)


def _median(values: list[float]) -> str:
    """With the order statistics that hold it in 95 of 100 cases, by the binomial's normal approximation."""
    ordered, count = sorted(values), len(values)
    half = Z * math.sqrt(count) / 2
    low = ordered[max(0, math.floor(count / 2 - half))]
    high = ordered[min(count - 1, math.ceil(count / 2 + half) - 1)]
    return f"{statistics.median(ordered):.3g} [{low:.3g}, {high:.3g}]"


if __name__ == "__main__":
    main()
