"""How often a search trial is ended early as hopeless though it isn't: the step clock's rule, on made-up step times.

    python tests/benchmarks/hopeless.py --trials 1000

First the rule alone: step times as in window_coverage.py, and a bound that is the very rate to be expected in the
window. Then with the bound as a study sets it (``HOPELESS`` of the best config's rate, less what the baseline was
slower at its slowest), on a machine that falls to 65% of its speed for spells (4 s on average, every 16 s), by the
share of the best config's rate that the trial's config really has. Printed: trials that were ended early, and after
how long.

November 2026, 200 trials of each kind: at the bound 35 of 3,600 were ended (0.97%, 95% [0.70%, 1.35%]; most of them at
an autocorrelation of 0.9). On the machine with slow spells, 150 trials each: 4 at 60% of the best, none at 70%, 80% and
100%; of those at 30%, which are hopeless, 132, after 4 s. The rule before this one (six blocks, looked at after each,
a bound that knew no slow machine) ended 15.4% at the bound, and in slow spells 39%, 19%, 13% and 0%.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

import numpy as np
from shares import share_text
from support import step_times
from support.in_process import Log

from tuner.analysis.gain import slowest_share
from tuner.child.clock import StepClock
from tuner.child.records import Window
from tuner.model import Block
from tuner.study.lengths import HOPELESS

WINDOW = Window(max_s=10.0, min_blocks=10**9)
"""That of a search trial, which nothing but being hopeless ends early."""
SLOW, SLOW_S, FAST_S = 0.65, 4.0, 12.0
SHARES = (0.6, 0.7, 0.8, 1.0)
STEP_S = step_times.STEP_S
RATE = step_times.BATCH / STEP_S


def run(steps_s: Iterator[float], window: Window) -> tuple[list[Block], float]:
    """The window's blocks of a trial with these step times, and its seconds."""
    now, log = [0.0], Log()
    clock = StepClock(log, window, clock=lambda: now[0])
    for took in steps_s:
        clock.add_samples(step_times.BATCH, 0.0)
        now[0] += took
        if clock.step():
            break
    blocks = [Block(b["samples"], b["steps"], b["seconds"], 0.0) for b in log.of("block") if b["phase"] == "window"]
    return blocks, sum(block.seconds for block in blocks)


def spells(random: np.random.Generator, speed: float) -> Iterator[float]:
    """Step times on a machine with slow spells, of a config that has such a share of the best one's rate."""
    now, slow, until = 0.0, bool(random.random() < SLOW_S / (SLOW_S + FAST_S)), 0.0
    while True:
        if now >= until:
            slow = not slow if until else slow
            until = now + random.exponential(SLOW_S if slow else FAST_S)
        took = STEP_S / speed / (SLOW if slow else 1.0) * max(0.05, 1 + 0.1 * random.standard_normal())
        now += took
        yield took


def at_the_bound(weather: step_times.Weather, count: int) -> tuple[int, float]:
    """How many trials were ended early whose rate is the bound itself, and the seconds of their windows."""
    random = np.random.default_rng(count)
    ended, seconds = 0, 0.0
    for _ in range(count):
        steps_s, expected = step_times.step_seconds(weather, random)
        first = int(WINDOW.warmup_s / STEP_S)
        truth = step_times.BATCH / float(expected[first : first + int(WINDOW.max_s / STEP_S)].mean())
        _, lasted = run(iter(steps_s.tolist()), replace(WINDOW, hopeless_below=truth))
        ended, seconds = ended + (lasted < WINDOW.max_s), seconds + (lasted if lasted < WINDOW.max_s else 0.0)
    return ended, seconds


def in_spells(share: float, count: int) -> tuple[int, float]:
    """As ``at_the_bound``, of trials in a study: a baseline, the best config, and one with such a share of its rate."""
    random = np.random.default_rng([count, int(1000 * share)])
    ended, seconds = 0, 0.0
    for _ in range(count):
        baselines = [run(spells(random, 0.5), replace(WINDOW, max_s=20.0))[0] for _ in range(2)]
        best, lasted = run(spells(random, 1.0), WINDOW)
        rate = sum(block.samples for block in best) / lasted
        below = HOPELESS * rate * slowest_share(baselines)
        _, lasted = run(spells(random, share), replace(WINDOW, hopeless_below=below))
        ended, seconds = ended + (lasted < WINDOW.max_s), seconds + (lasted if lasted < WINDOW.max_s else 0.0)
    return ended, seconds


def main() -> None:
    """Prints a line a kind."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=1000, help="of each kind")
    parser.add_argument("--processes", type=int, default=1)
    options = parser.parse_args()
    total = 0
    with ProcessPoolExecutor(options.processes) as pool:
        found = pool.map(partial(at_the_bound, count=options.trials), step_times.WEATHERS)
        for weather, (ended, _) in zip(step_times.WEATHERS, found, strict=True):
            total += ended
            print(f"{weather.noise:11}{weather.autocorrelation:5.1f}{weather.drift:7.0%}  ended {ended}", flush=True)
        print(f"at the bound: {share_text(total, options.trials * len(step_times.WEATHERS))}")
        found = pool.map(partial(in_spells, count=options.trials // 2), (*SHARES, 0.3))
        for share, (ended, seconds) in zip((*SHARES, 0.3), found, strict=True):
            after = f", after {seconds / ended:.1f} s on average" if ended else ""
            print(f"slow spells, {share:.0%} of the best: {share_text(ended, options.trials // 2)}{after}", flush=True)


if __name__ == "__main__":
    main()
