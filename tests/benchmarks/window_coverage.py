"""How often a trial's interval holds its true rate, and how a moving-block bootstrap would fare in its place.

    python tests/benchmarks/window_coverage.py --trials 2000

Step times scatter as tests/step_times.py says (shape, autocorrelation, drift); each trial's window is ended by the step
clock's own rule, looked at after every block, and the truth is the rate to be expected in that window. Printed a line a
kind of scatter: the coverage and mean relative half-width of ``stats.rate_interval``, those of the 95% percentile
interval of a moving-block bootstrap (Kuensch, Ann. Stat. 17, 1989; blocks as long as the cube root of their number,
and twice that), the blocks that a window took, and the share of trials called unsteady. Then, of trials that begin with
64 batches ready, by the rate of their loader as a share of the steps': coverage and width of the reported interval, the
reported rate as a share of what the loop can keep up, and that of samples by seconds.

Recorded with that command, 2000 trials of each of 18 kinds: rate_interval covers 96.9% (95.2 to 98.9% of a kind), the
bootstrap 87.0% (81.9 to 92.3%), that of longer blocks 83.7% (77.5 to 90.5%). All is simulated: the machine's speed has
no part in it. With a full queue, 60 trials each: reported 0.986 to 1.007 of the truth, samples by seconds 1.25 (loader
at 70% and 80%), 1.11 (90%), 1.05 (95%). The interval holds the truth in 98 to 100%, at 95% in 78%: a queue that falls
so slowly doesn't show in three seconds.
"""

from __future__ import annotations

import argparse
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

import numpy as np
from support import step_times

from tuner.child.records import Window
from tuner.model import Measurement

RESAMPLES = 500


def bootstrap(measurement: Measurement, times_cube_root: int, random: np.random.Generator) -> tuple[float, float]:
    """The percentile interval of the rate, from runs of consecutive blocks drawn with replacement."""
    samples = np.array([block.samples for block in measurement.blocks])
    seconds = np.array([block.seconds for block in measurement.blocks])
    count = len(samples)
    length = min(count, max(1, times_cube_root * round(count ** (1 / 3))))
    starts = random.integers(0, count - length + 1, (RESAMPLES, -(-count // length)))
    drawn = (starts[:, :, None] + np.arange(length)).reshape(RESAMPLES, -1)[:, :count]
    rates = samples[drawn].sum(axis=1) / seconds[drawn].sum(axis=1)
    low, high = np.quantile(rates, [0.025, 0.975])
    return float(low), float(high)


def line(weather: step_times.Weather, count: int) -> tuple[list[int], str]:
    """How many of the intervals held the truth, by method, and the printed line."""
    random = np.random.default_rng(count)
    held, widths, blocks, unsteady = [0, 0, 0], [0.0, 0.0, 0.0], 0, 0
    for found, truth in step_times.trials(weather, count):
        intervals = [(found.low, found.high), bootstrap(found, 1, random), bootstrap(found, 2, random)]
        for method, (low, high) in enumerate(intervals):
            held[method] += low <= truth <= high
            widths[method] += (high - low) / 2 / found.rate
        blocks += len(found.blocks)
        unsteady += not found.steady
    methods = "  ".join(f"{h / count:7.1%} ±{w / count:5.2%}" for h, w in zip(held, widths, strict=True))
    shape = f"{weather.noise:11}{weather.autocorrelation:5.1f}{weather.drift:7.0%}"
    return held, f"{shape}  {methods}{blocks / count:8.1f}{unsteady / count:10.1%}"


QUEUED = (0.7, 0.8, 0.9, 0.95, 1.0, 1.05, 1.25)


def queued_line(share: float, count: int) -> str:
    """The printed line of trials that begin with a full queue."""
    random = np.random.default_rng([count, int(1000 * share)])
    held, width, told, naive = 0, 0.0, 0.0, 0.0
    for _ in range(count):
        found, truth = step_times.queued(share, random, Window())
        held += found.low <= truth <= found.high
        width += (found.high - found.low) / 2 / found.rate / count
        told += found.rate / truth / count
        taken = sum(block.samples for block in found.blocks) / sum(block.seconds for block in found.blocks)
        naive += taken / truth / count
    interval = f"{held / count:10.1%} ±{width:5.2%}"
    return f"loader at {share:5.0%} {interval}  reported {told:.3f}  samples by seconds {naive:.3f}"


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=2000, help="of each kind of scatter")
    parser.add_argument("--processes", type=int, default=1)
    arguments = parser.parse_args()
    print("noise      corr.  drift  rate_interval   bootstrap       bootstrap x2    blocks  unsteady")
    totals = np.zeros(3)
    with ProcessPoolExecutor(arguments.processes) as pool:
        counts = [arguments.trials] * len(step_times.WEATHERS)
        for held, text in pool.map(line, step_times.WEATHERS, counts):
            totals += held
            print(text, flush=True)
    shares = "  ".join(f"{share:7.1%}       " for share in totals / (arguments.trials * len(step_times.WEATHERS)))
    print(f"{'all':23}  {shares}")
    with ProcessPoolExecutor(arguments.processes) as pool:
        for text in pool.map(queued_line, QUEUED, [arguments.trials // 10] * len(QUEUED)):
            print(text, flush=True)


if __name__ == "__main__":
    main()
