"""How often what finals tell of a proven gain holds the truth, and how near it is: by the product's own rules.

    python tests/benchmarks/told_gain.py [--gains 1 2 3 5 10 50] [--noise 0.06] [--most 8] [--finals 2000] [--equals 0]

Each finals has five rounds, and more, up to ``--most``, as the product's are given while they are undecided. The first
candidate is faster by the percentage, its rounds' logarithms are off by a normal ``--noise``; ``--equals`` others are
exactly as fast, in rounds of their own. Prints the share that is proven, and of these the share of told intervals that
hold the truth of the config that they are told of, beside a usual 95% interval and the one by which the gain was
decided; then how far the told ratio and the mean of the rounds are from it (root of the mean square).

November 2026: the table in tuner/analysis/README.md.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parent.parent))

from shares import share_text
from support import worlds

from tuner.analysis.comparison import contest_of, decide, is_decided
from tuner.analysis.schedule import Schedule
from tuner.model import Config, Phase, Ratio, Trial, Verdict
from tuner.study.schedules import more_rounds

FIRST = 5


class Told(NamedTuple):
    """What proven finals told: the ratio with its interval, what a usual interval and the deciding one would have."""

    told: Ratio
    usual: Ratio
    bound: Ratio


def held(seed: int, *, gain: float, noise: float, most: int, equals: int) -> Told | None:
    """One finals; None where nothing was proven."""
    chance = random.Random(seed)
    candidates = tuple(Trial(n, Phase.SEARCH, Config(workers=n), "", None) for n in range(1, equals + 2))
    schedule, trials = Schedule(candidates, FIRST, seed, first=FIRST, most=most), list[Trial]()
    while True:
        for of, config in schedule.runs_left(trials, ()):
            rate = 1000.0 * (gain * math.exp(chance.gauss(0, noise)) if config else 1.0)
            run = Trial(100 + len(trials), Phase.FINALS, config, "", worlds.measured(rate), of, group=schedule.group)
            trials.append(run)
        winner = decide(schedule, trials, worlds.OBJECTIVE)
        if is_decided(winner) or schedule.rounds >= most:
            break
        schedule = schedule.looked_at_again(more_rounds(schedule.rounds, most))
    if winner is None or winner.verdict is not Verdict.IMPROVED:
        return None
    contest = contest_of(schedule, winner.config, trials, worlds.OBJECTIVE)
    assert contest is not None
    return Told(winner.speedup, contest.pairs.ratio(0.95, worlds.OBJECTIVE), contest.bound)


def line(percent: float, truth: float, found: Sequence[Told], count: int) -> str:
    """What is printed of one gain."""

    def holds(ratios: Sequence[Ratio]) -> str:
        return share_text(sum(ratio.low <= truth <= ratio.high for ratio in ratios), len(ratios))

    def off(ratios: Sequence[Ratio]) -> float:
        return math.sqrt(sum((ratio.ratio / truth - 1) ** 2 for ratio in ratios) / max(1, len(ratios)))

    told, usual, bound = zip(*found, strict=True) if found else ((), (), ())
    return (
        f"{percent:g}% faster: proven in {len(found) / count:.1%}; what is told holds {holds(told)}; a usual interval"
        f" {holds(usual)}; the deciding one {holds(bound)}; off by {off(told):.1%}, the mean by {off(usual):.1%}"
    )


def main() -> None:
    """Prints a line for each gain."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gains", type=float, nargs="+", default=[1, 2, 3, 5, 10, 50])
    parser.add_argument("--noise", type=float, default=0.06)
    parser.add_argument("--most", type=int, default=8)
    parser.add_argument("--finals", type=int, default=2000)
    parser.add_argument("--equals", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2)
    given = parser.parse_args()
    with ProcessPoolExecutor(given.workers) as pool:
        for percent in given.gains:
            truth = 1 + percent / 100
            one = partial(held, gain=truth, noise=given.noise, most=given.most, equals=given.equals)
            found = [each for each in pool.map(one, range(given.finals), chunksize=50) if each is not None]
            print(line(percent, truth, found, given.finals), flush=True)


if __name__ == "__main__":
    main()
