"""What trials that are held between their turns cost the one that trains meanwhile: rates beside them and without.

    python tests/benchmarks/paused.py studies/digits/train.py --held 8 --rounds 12 --arguments='--epochs 100000'
    python tests/benchmarks/paused.py train.py --device cuda --held 4 --rounds 12

One process of the script is held while others start and come to their window; then it trains for some turns, the others
end, and it trains for as many again. In every second round the others end before the first of these: what starting and
ending them leaves behind meets both kinds of round, and what is between them is what holding costs. The first turn
after each change isn't counted. What one held process costs is an eighth of what eight do, and so is its error: a
single one's drowns in what the machine does by itself. The script has to last for all rounds.

Prints of each round the rate in its first turns as a multiple of that in the others, and what lies between the kinds of
rounds with its 95% interval (Welch's, of the mean logarithms), for all the held ones and for each of them.
"""

from __future__ import annotations

import argparse
import math
import shlex
import statistics
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import count
from pathlib import Path

from tuner.analysis.stats import student_t_quantile
from tuner.child.records import Window
from tuner.devices.present import resolve_device
from tuner.model import BASELINE, Script
from tuner.runner.process import ProcessRunner
from tuner.runner.request import TrialRequest
from tuner.runner.watch import TrialWatch

TURNS = 6
WINDOW = Window(warmup_s=0.2, max_s=3600.0)


class Held(ProcessRunner):
    """Keeps one trial alive through all rounds, and others for half of each."""

    def ratios(self, request: TrialRequest, held: int, rounds: int, stop: threading.Event) -> Iterator[float]:
        """The rate in a round's first turns as a multiple of that in its others, one for each round; in the rounds with
        an even number (from 0) ``held`` trials are held beside the first ones.
        """
        self._surroundings(request)
        numbers = count(1)
        with ExitStack() as resources:
            trial = self._begin(request, resources, stop, ())
            trial.run(stop)
            for done in range(rounds):
                with ExitStack() as of_others:
                    for number in range(held):
                        folder = request.folder.with_name(f"{done}-{number}")
                        other = self._begin(replace(request, folder=folder), of_others, stop, ())
                        other.run(stop)
                        if not other.waits:
                            sys.exit("another trial didn't come to its window")
                    if done % 2:
                        of_others.close()
                    first = _rate(trial, numbers, stop)
                yield first / _rate(trial, numbers, stop)


def main() -> None:
    """Runs the rounds, and prints what came of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("script")
    parser.add_argument("--held", type=int, default=8)
    parser.add_argument("--device", type=resolve_device, default="cpu")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--arguments", type=shlex.split, default=[], help="the script's own")
    given = parser.parse_args()
    runner, stop, script = Held(), threading.Event(), Script(given.script, tuple(given.arguments))
    with tempfile.TemporaryDirectory() as folder:
        ask = TrialRequest(Path(folder) / "baseline", script, given.device, BASELINE, window=Window(max_s=1.0))
        knowledge = runner.run(ask, stop).knowledge
        request = replace(ask, folder=Path(folder) / "trial", knowledge=knowledge, window=WINDOW, fresh=False)
        logs: tuple[list[float], list[float]] = ([], [])
        for done, ratio in enumerate(runner.ratios(request, given.held, given.rounds, stop)):
            logs[done % 2].append(math.log(ratio))
            print(f"{ratio:.3f} {'without any held' if done % 2 else f'beside {given.held} held'}", flush=True)
    runner.close()
    between, half = _difference(*logs)
    for held, share in ((given.held, 1.0), (1, 1.0 / given.held)):
        low, middle, high = (math.exp(share * each) for each in (between - half, between, between + half))
        print(f"beside {held} held: {middle:.4f} times the rate without (95% interval {low:.4f} to {high:.4f})")


def _difference(one: Sequence[float], other: Sequence[float]) -> tuple[float, float]:
    """What lies between two means, and half of its 95% interval: Welch's, for unequal variances."""
    errors = [statistics.variance(each) / len(each) for each in (one, other)]
    freedom = sum(errors) ** 2 / sum(e**2 / (len(each) - 1) for e, each in zip(errors, (one, other), strict=True))
    half = student_t_quantile(0.975, freedom) * math.sqrt(sum(errors))
    return statistics.fmean(one) - statistics.fmean(other), half


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
