"""What trials that are held between their turns cost the one that trains meanwhile: rates beside them and without.

    python tests/benchmarks/paused.py studies/digits/train.py --held 8 --rounds 30

One process of the script trains for some turns while others, which have come to their window, are held with all their
processes, and for as many while there are none: without, with, with, without, so that what drifts meets both. The
others start anew for each round, while the first one is held; the first turn after that isn't counted. What one held
process costs is an eighth of what eight do, and so is its error: a single one's drowns in what the machine does by
itself.

Prints each round's ratio of the two rates, and the mean one with its 95% interval (of the mean logarithm), for all the
held ones and for each of them.
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
    """Keeps one trial alive through all rounds, and others for half of each."""

    def ratios(self, request: TrialRequest, held: int, rounds: int, stop: threading.Event) -> Iterator[float]:
        """The rate beside ``held`` trials that are held, as a multiple of that without, one for each round."""
        numbers, around = count(1), self._surroundings(request)
        with ExitStack() as resources:
            trial = self._begin(request, resources, around, stop, ())
            trial.run(stop)
            for done in range(rounds):
                without = [_rate(trial, numbers, stop)]
                with ExitStack() as of_others:
                    for number in range(held):
                        folder = request.folder.with_name(f"{done}-{number}")
                        other = self._begin(replace(request, folder=folder), of_others, around, stop, ())
                        other.run(stop)
                        if not other.waits:
                            sys.exit("another trial didn't come to its window")
                    beside = [_rate(trial, numbers, stop) for _ in range(2)]
                without.append(_rate(trial, numbers, stop))
                yield math.sqrt(math.prod(beside) / math.prod(without))


def main() -> None:
    """Runs the rounds, and prints what came of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("script")
    parser.add_argument("--held", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=30)
    given = parser.parse_args()
    runner, stop, script = Held(), threading.Event(), Script(given.script, ())
    with tempfile.TemporaryDirectory() as folder:
        ask = TrialRequest(Path(folder) / "baseline", script, cpu_device(), BASELINE, window=Window(max_s=1.0))
        knowledge = runner.run(ask, stop).knowledge
        request = replace(ask, folder=Path(folder) / "trial", knowledge=knowledge, window=WINDOW, fresh=False)
        logs = []
        for ratio in runner.ratios(request, given.held, given.rounds, stop):
            logs.append(math.log(ratio))
            print(f"{ratio:.3f}", flush=True)
    runner.close()
    found = mean_interval(logs)
    for held, share in ((given.held, 1.0), (1, 1.0 / given.held)):
        low, middle, high = (math.exp(share * each) for each in (found.low, found.estimate, found.high))
        print(f"beside {held} held: {middle:.4f} times the rate without (95% interval {low:.4f} to {high:.4f})")


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
