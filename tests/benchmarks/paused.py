"""What a trial that is held between its turns costs the one that trains meanwhile: rates beside it and without it.

    python tests/benchmarks/paused.py studies/digits/train.py --pairs 60

One process of the script trains for some turns while another one, which has come to its window, is held with all its
processes, and for as many while there is none: ABBA, so that what drifts meets both. The other one starts anew for each
pair, while the first is held; the first turn after that isn't counted. Prints the ratio of the two rates with its 95%
interval (of the mean logarithm of the pairs').
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from itertools import count
from pathlib import Path

from tuner.analysis.stats import mean_interval
from tuner.child.records import Window
from tuner.devices.cpu import cpu_device
from tuner.model import BASELINE, Script
from tuner.runner.process import ProcessRunner
from tuner.runner.request import TrialRequest
from tuner.runner.watch import TrialWatch

TURNS = 6
WINDOW = Window(warmup_s=0.2, max_s=3600.0)


class Held(ProcessRunner):
    """Keeps one trial alive through all pairs, and another one for half of each."""

    def ratios(self, request: TrialRequest, pairs: int, stop: threading.Event) -> Iterator[float]:
        """The rate beside a trial that is held, as a multiple of that without, one for each pair."""
        numbers, around = count(1), self._surroundings(request)
        with ExitStack() as resources:
            trial = self._begin(request, resources, around, stop, ())
            trial.run(stop)
            for pair in range(pairs):
                rates = {}
                for beside in (True, False) if pair % 2 else (False, True):
                    with ExitStack() as of_other:
                        if beside:
                            other = self._begin(
                                replace(request, folder=request.folder.with_name(f"{pair}")), of_other, around, stop, ()
                            )
                            other.run(stop)
                            if not other.waits:
                                sys.exit("the other trial didn't come to its window")
                        rates[beside] = _rate(trial, numbers, stop)
                yield rates[True] / rates[False]


def main() -> None:
    """Runs the pairs, and prints what came of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("script")
    parser.add_argument("--pairs", type=int, default=60)
    given = parser.parse_args()
    runner, stop, script = Held(), threading.Event(), Script(given.script, ())
    with tempfile.TemporaryDirectory() as folder:
        ask = TrialRequest(Path(folder) / "baseline", script, cpu_device(), BASELINE, window=Window(max_s=1.0))
        knowledge = runner.run(ask, stop).knowledge
        request = replace(ask, folder=Path(folder) / "trial", knowledge=knowledge, window=WINDOW, fresh=False)
        logs = []
        for ratio in runner.ratios(request, given.pairs, stop):
            logs.append(math.log(ratio))
            print(f"{ratio:.3f}", flush=True)
    runner.close()
    found = mean_interval(logs)
    low, middle, high = (math.exp(each) for each in (found.low, found.estimate, found.high))
    print(f"beside a trial that is held: {middle:.4f} times the rate without (95% interval {low:.4f} to {high:.4f})")


def _rate(trial: TrialWatch, numbers: Iterator[int], stop: threading.Event) -> float:
    """Samples a second in some turns, without the first."""
    for turn in range(TURNS + 1):
        if turn == 1:
            begin = len(trial.blocks)
        trial.go_on(next(numbers))
        trial.run(stop)
        if not trial.waits:
            sys.exit("the script ended")
    blocks = [block for _, block in trial.blocks[begin:]]
    return sum(block.samples for block in blocks) / sum(block.seconds for block in blocks)


if __name__ == "__main__":
    main()
