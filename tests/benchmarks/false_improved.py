"""How often a study says "improved" where nothing can help: A/A, through the whole study path, on a made-up machine.

    python tests/benchmarks/false_improved.py --studies 2000 [--load] [--first-run-slower 0.03] [--budgets]
        [--resumes 3] [--lost 0.1]

Every config has the same true rate. A run's rate varies between runs (``--between``, log-normal), the machine drifts
as a random walk (``--drift`` a run). With ``--load`` another process comes and goes and takes 30% of the speed; with
``--first-run-slower`` the first run of each round of the finals is slower by that share; with ``--budgets`` each study
has 120 to 500 s, of which a run takes about ten; with ``--resumes`` a study that doesn't say "improved" is run again so
many times, with three trials more each time; with ``--lost`` that share of the baseline's runs in the finals give no
figure. Prints the share of "improved" with its 95% interval (Wilson). The rest of the studies say "keep-baseline".

November 2026, with the other options as they are: 2 of 300 (0.67%, 95% [0.18%, 2.40%]) with none of them; 4 of 500
(0.80%, [0.31%, 2.04%]) with ``--first-run-slower 0.03``; 6 of 500 (1.20%, [0.55%, 2.59%]) with ``--budgets``; 12 of 500
(2.40%, [1.38%, 4.15%]) with ``--resumes 3``; 3 of 300 (1.00%, [0.34%, 2.90%]) with ``--lost 0.15``. With the random
order and the full level in each finals of before: 9 of 300 (3.00%, [1.59%, 5.60%]) with ``--first-run-slower 0.03``, 7
of 150 (4.67%, [2.28%, 9.32%]) with ``--resumes 3``.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
import tempfile
import threading
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from shares import share_text
from support import worlds

from tuner.analysis.accuracy import AccuracyLimits
from tuner.events import Event, TrialStarted
from tuner.model import Config, Outcome, Phase, Verdict
from tuner.runner.replay import ReplayRunner
from tuner.search.structured import StructuredSampler
from tuner.study.run import run_study


@dataclass(frozen=True)
class Machine:
    """What disturbs the figures; see the options."""

    between: float
    drift: float
    load: bool
    first_run_slower: float
    lost: float


class NothingHelps:
    """A machine on which every config runs equally fast, up to noise. ``clock`` goes on by what runs take."""

    def __init__(self, seed: int, machine: Machine) -> None:
        self._chance = random.Random(seed)
        self._machine = machine
        self._level = 0.0
        self._loaded = False
        self._in_finals = self._begins_round = False
        self._round: tuple[object, ...] = ()
        self.now = 0.0

    def clock(self) -> float:
        """Seconds."""
        return self.now

    def hear(self, event: Event) -> None:
        """What runs next: whether it is the first of a round."""
        if isinstance(event, TrialStarted):
            self._in_finals = event.trial.phase is Phase.FINALS
            of_round = (event.trial.group, event.trial.round)
            self._begins_round = self._in_finals and of_round != self._round
            self._round = of_round

    def outcome(self, config: Config) -> Outcome:
        """A rate that says nothing of the config."""
        chance, machine = self._chance, self._machine
        self._level += chance.gauss(0, machine.drift)
        if machine.load and chance.random() < 0.15:
            self._loaded = not self._loaded
        log_rate = self._level + chance.gauss(0, machine.between) + (math.log(0.7) if self._loaded else 0.0)
        if self._begins_round:
            log_rate += math.log(1 - machine.first_run_slower)
        seconds = 10.0 * math.exp(chance.gauss(0, 0.1))
        self.now += seconds
        if self._in_finals and not config and chance.random() < machine.lost:
            return replace(worlds.infeasible("host-oom"), seconds=seconds)
        return replace(worlds.measured(1000 * math.exp(log_rate)), seconds=seconds)


def improves(arguments: tuple[int, Machine, bool, int]) -> bool:
    """Whether one study says "improved", at any time."""
    seed, disturbed, has_budget, resumes = arguments
    machine = NothingHelps(seed, disturbed)
    budget_s = random.Random(f"budget {seed}").uniform(120.0, 500.0) if has_budget else None
    with tempfile.TemporaryDirectory() as folder:
        for number in range(resumes + 1):
            plan = worlds.plan(
                Path(folder), trials=None if has_budget else (4 + 3 * number if resumes else 9), budget_s=budget_s,
                finals_rounds=5, finalists=3, selection=("workers", "precision", "compile"),
                accuracy=AccuracyLimits(max_loss_increase=None), device=worlds.device(f"card in {folder}"), seed=seed,
            )  # fmt: skip
            runner = ReplayRunner(machine.outcome)
            result = run_study(
                plan, runner, StructuredSampler(), machine.hear, threading.Event(), clock=machine.clock
            )
            if result.winner is not None and result.winner.verdict is Verdict.IMPROVED:
                return True
    return False


def main() -> None:
    """Prints the share of false "improved"."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--studies", type=int, default=2000)
    parser.add_argument("--between", type=float, default=0.04)
    parser.add_argument("--drift", type=float, default=0.01)
    parser.add_argument("--load", action="store_true")
    parser.add_argument("--first-run-slower", type=float, default=0.0)
    parser.add_argument("--budgets", action="store_true")
    parser.add_argument("--resumes", type=int, default=0)
    parser.add_argument("--lost", type=float, default=0.0)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    machine = Machine(options.between, options.drift, options.load, options.first_run_slower, options.lost)
    cases = [(seed, machine, options.budgets, options.resumes) for seed in range(options.studies)]
    with ProcessPoolExecutor(options.workers) as pool:
        hits = sum(pool.map(improves, cases, chunksize=10))
    print(f"improved: {share_text(hits, options.studies)}")


if __name__ == "__main__":
    main()
