"""How often finals by turns say "improved" of equal configs, where other processes come and go in bursts.

    python tests/benchmarks/false_improved_by_turns.py [--finals 1000] [--busy 0.6] [--burst 0.08] [--taken 0.4]
        [--turns 15] [--turn 0.1] [--longer 1] [--one-side]

On a made-up machine of two cores others are busy for that share of the time, in bursts of so many seconds on average,
and have ``--taken`` of the cores then; a turn is so much slower. A run has 15 turns of about 0.1 s, the candidate's
``--longer`` times as long. Where fewer than four pairs of turns are calm all of them count, and the round is left out
by what others had in all seconds of both sides. ``--one-side`` goes by the
candidate's own turns alone, as versions before this one did: rounds are left out then that made the candidate slow, and
not those that made slow what it is held against. Prints the share of "improved" with its 95% interval (Wilson), and by
how much the rounds that count were off.

28 November 2026, ``--finals 600``: 9 of 600 (1.50%, 95% [0.79%, 2.83%]), rounds off by +0.0% in the mean; with
``--one-side`` 68 of 600 (11.33%, [9.04%, 14.12%]), and by +2.2%. 29 November 2026, ``--finals 300``: with
``--longer 3`` 4 of 300, off by +0.3%, with ``--longer 0.33`` 2 of 300, by -0.5%; where both sides counted alike they
were off by -1.0% and +1.0%.
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
import sys
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from shares import share_text
from support import worlds

from tuner.analysis.comparison import decide, is_decided, pairs_of
from tuner.analysis.contention import Host
from tuner.analysis.schedule import Schedule
from tuner.analysis.turns import Turn, gain_interval, pairs_of_turns, together
from tuner.devices.base import FOREIGN_SHARE
from tuner.model import BASELINE, Config, Outcome, Phase, Ratio, Reference, Trial, Verdict

RATE, CORES, LEAD_IN_S = 1000.0, 2, 0.03
LAYOUT, NOISE = 0.015, 0.06
"""Standard deviations of the logarithms of the rates of a process, as long as it lives, and of a turn."""
CANDIDATE = Trial(1, Phase.SEARCH, Config(workers=2))
HOST = Host(CORES, FOREIGN_SHARE)
FIRST, MOST = 5, 27


class Others:
    """Processes that come and go."""

    def __init__(self, chance: random.Random, busy: float, burst_s: float) -> None:
        self._chance, self._lengths_s = chance, (burst_s * (1 - busy) / busy, burst_s)
        self._are_busy, self._left_s = chance.random() < busy, 0.0
        self._begin()

    def _begin(self) -> None:
        self._left_s = self._chance.expovariate(1 / self._lengths_s[self._are_busy])

    def share(self, seconds: float) -> float:
        """Of the next seconds, in which they were busy."""
        left_s, busy_s = seconds, 0.0
        while left_s > 0:
            step_s = min(left_s, self._left_s)
            busy_s += step_s * self._are_busy
            left_s, self._left_s = left_s - step_s, self._left_s - step_s
            if self._left_s <= 0:
                self._are_busy = not self._are_busy
                self._begin()
        return busy_s / seconds


def run_of_both(chance: random.Random, others: Others, options: argparse.Namespace) -> tuple[Outcome, Outcome]:
    """A round: the script as written and the candidate, which is as fast."""
    rates = [RATE * math.exp(chance.gauss(0, LAYOUT)) for _ in range(2)]
    sides: tuple[list[Turn], list[Turn]] = ([], [])
    for number in range(2 * options.turns):
        others.share(LEAD_IN_S)
        seconds = options.turn * chance.uniform(0.5, 1.5) * (options.longer if number % 2 else 1.0)
        lost = options.taken * others.share(seconds)
        amount = rates[number % 2] * (1 - lost) * math.exp(chance.gauss(0, NOISE)) * seconds
        sides[number % 2].append(Turn(number + 1, amount, seconds, lost))
    written, own = sides
    pairs = pairs_of_turns(own, written)
    found = gain_interval(pairs)
    assert found is not None
    foreign = [CORES * together(side).lost for side in zip(*pairs, strict=True)]
    low, ratio, high = (math.exp(end) for end in (found.low, found.estimate, found.high))
    rate = sum(turn.amount for turn in own) / sum(turn.seconds for turn in own)
    lengths = [sum(turn.seconds for turn in side) for side in zip(*pairs, strict=True)]
    others_had = None if options.one_side else foreign[1]
    beside = Reference(rate / ratio, Ratio(ratio, low, high), len(pairs), others_had, lengths[0] / sum(lengths))
    outcomes = [worlds.measured(each) for each in (rate / ratio, rate)]
    measured = [replace(each.measurement, turns=options.turns) for each in outcomes if each.measurement is not None]
    measured[1] = replace(measured[1], reference=beside, foreign_cpus=foreign[0])
    return replace(outcomes[0], measurement=measured[0]), replace(outcomes[1], measurement=measured[1])


def is_improved(seed: int, options: argparse.Namespace) -> tuple[bool, list[float]]:
    """The verdict of one finals, as a study holds them, and the logarithms of the gains of the rounds that count."""
    chance = random.Random(seed)
    others, trials = Others(chance, options.busy, options.burst), list[Trial]()
    schedule = Schedule((CANDIDATE,), FIRST, 0, host=HOST, first=FIRST, most=MOST)
    while True:
        for number in sorted({number for number, _ in schedule.runs_left(trials, ())}):
            outcomes = run_of_both(chance, others, options)
            for config, outcome in zip((BASELINE, CANDIDATE.config), outcomes, strict=True):
                run = Trial(len(trials) + 2, Phase.FINALS, config, "", outcome, round=number, group=schedule.group)
                trials.append(run)
        winner = decide(schedule, trials, worlds.OBJECTIVE)
        if is_decided(winner) or schedule.rounds >= MOST:
            break
        schedule = schedule.looked_at_again(min(MOST, math.ceil(1.5 * schedule.rounds)))
    calm = pairs_of(schedule, CANDIDATE.config, trials, worlds.OBJECTIVE, calm_only=True)
    improved = winner is not None and winner.verdict is Verdict.IMPROVED
    return improved, [math.log(gain) for gain in calm.gains]


def main() -> None:
    """Prints the share."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--finals", type=int, default=1000)
    parser.add_argument("--busy", type=float, default=0.6)
    parser.add_argument("--burst", type=float, default=0.08)
    parser.add_argument("--taken", type=float, default=0.4)
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--turn", type=float, default=0.1)
    parser.add_argument("--longer", type=float, default=1.0)
    parser.add_argument("--one-side", action="store_true")
    options = parser.parse_args()
    found = [is_improved(seed, options) for seed in range(options.finals)]
    off = [gain for _, gains in found for gain in gains]
    told = share_text(sum(improved for improved, _ in found), len(found))
    print(f"improved: {told}; {len(off)} rounds count, off by {statistics.fmean(off):+.1%} in the mean")


if __name__ == "__main__":
    main()
