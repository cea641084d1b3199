"""How often finals say "improved" of equal configs beside a card, where others keep some of the host's cores busy.

    python tests/benchmarks/false_improved_busy.py [--finals 2000] [--noise 0.05] [--own 9.4] [--candidate 4]
        [--foreign 2.6]

A run that happens to be fast uses more of the host's 16 cores, so that fewer stay idle beside the foreign load: a rule
that leaves out rounds by the cores that their own runs used leaves out the fast runs of the config that uses more. Both
configs have the same true rate, with a normal ``--noise`` from run to run; ``--own`` and ``--candidate`` are the cores
that the script as written and the candidate use at it. Prints the share of "improved" with its 95% interval (Wilson).

November 2026, with the options as they are: 43 of 2,000 (2.15%, 95% [1.60%, 2.88%]); 46 (2.30%, [1.73%, 3.05%]) with
``--foreign 0``. By the cores of each run itself it was 224 (11.20%, [9.89%, 12.66%]).
"""

from __future__ import annotations

import argparse
import random
import sys
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from shares import share_text
from support import worlds

from tuner.analysis.comparison import decide, is_decided
from tuner.analysis.contention import Host
from tuner.analysis.schedule import Schedule
from tuner.devices.base import FOREIGN_SHARE_BESIDE_A_DEVICE
from tuner.model import BASELINE, Config, Phase, Trial, Verdict

RATE = 1000.0
CANDIDATE = Trial(1, Phase.SEARCH, Config(workers=2))
HOST = Host(16, FOREIGN_SHARE_BESIDE_A_DEVICE, feeds=True)


def is_improved(chance: random.Random, options: argparse.Namespace) -> bool:
    """The verdict of one finals of five to eleven rounds, as a study holds them."""
    trials: list[Trial] = []
    for rounds in (5, 7, 9, 11):
        schedule = Schedule((CANDIDATE,), rounds, 0, 4, HOST)
        for number, config in schedule.runs_left(trials, ()):
            outcome = worlds.measured(RATE * (1 + chance.gauss(0, options.noise)))
            assert outcome.measurement is not None
            cores = options.candidate if config else options.own
            used = replace(outcome.measurement, foreign_cpus=options.foreign, cpu_s_per_sample=cores / RATE)
            run = Trial(len(trials) + 2, Phase.FINALS, config or BASELINE, "", replace(outcome, measurement=used))
            trials.append(replace(run, round=number, group=schedule.group))
        winner = decide(schedule, trials, worlds.OBJECTIVE)
        if is_decided(winner):
            break
    return winner is not None and winner.verdict is Verdict.IMPROVED


def main() -> None:
    """Prints the share."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--finals", type=int, default=2000)
    parser.add_argument("--noise", type=float, default=0.05)
    parser.add_argument("--own", type=float, default=9.4)
    parser.add_argument("--candidate", type=float, default=4.0)
    parser.add_argument("--foreign", type=float, default=2.6)
    options = parser.parse_args()
    chance = random.Random(1)
    print(f"improved: {share_text(sum(is_improved(chance, options) for _ in range(options.finals)), options.finals)}")


if __name__ == "__main__":
    main()
