"""How often a study says "improved" where nothing can help: A/A, through the whole study path, on a made-up machine.

    python tests/benchmarks/false_improved.py --studies 2000

Every config has the same true rate. A run's rate varies between runs (``--between``, log-normal), the machine drifts
as a random walk (``--drift`` a run), and with ``--load`` another process comes and goes and takes 30% of the speed.
Prints the share of "improved" with its 95% interval (Wilson). The rest of the studies say "keep-baseline".

November 2026, as above: 39 of 2,000 (1.95%, 95% [1.43%, 2.65%]); with ``--load``: 12 of 2,000 (0.60%, [0.34%, 1.05%]).
"""

from __future__ import annotations

import argparse
import math
import random
import sys
import tempfile
import threading
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from shares import share_text
from support import worlds

from tuner.analysis.accuracy import AccuracyLimits
from tuner.model import Config, Outcome, Verdict
from tuner.runner.replay import ReplayRunner
from tuner.search.structured import StructuredSampler
from tuner.study.run import run_study


class NothingHelps:
    """A machine on which every config runs equally fast, up to noise."""

    def __init__(self, seed: int, between: float, drift: float, load: bool) -> None:
        self._chance = random.Random(seed)
        self._between, self._drift, self._load = between, drift, load
        self._level = 0.0
        self._loaded = False

    def outcome(self, config: Config) -> Outcome:
        """A rate that says nothing of the config."""
        chance = self._chance
        self._level += chance.gauss(0, self._drift)
        if self._load and chance.random() < 0.15:
            self._loaded = not self._loaded
        log_rate = self._level + chance.gauss(0, self._between) + (math.log(0.7) if self._loaded else 0.0)
        return worlds.measured(1000 * math.exp(log_rate))


def improves(arguments: tuple[int, float, float, bool]) -> bool:
    """Whether one study says "improved"."""
    with tempfile.TemporaryDirectory() as folder:
        plan = worlds.plan(
            Path(folder), trials=9, finals_rounds=5, finalists=3, selection=("workers", "precision", "compile"),
            accuracy=AccuracyLimits(max_loss_increase=None), device=worlds.device(f"card {arguments[0]}"),
        )  # fmt: skip
        machine = NothingHelps(*arguments)
        runner = ReplayRunner(machine.outcome)
        result = run_study(plan, runner, StructuredSampler(), lambda event: None, threading.Event())
        return result.winner is not None and result.winner.verdict is Verdict.IMPROVED


def main() -> None:
    """Prints the share of false "improved"."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--studies", type=int, default=2000)
    parser.add_argument("--between", type=float, default=0.04)
    parser.add_argument("--drift", type=float, default=0.01)
    parser.add_argument("--load", action="store_true")
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    cases = [(seed, options.between, options.drift, options.load) for seed in range(options.studies)]
    with ProcessPoolExecutor(options.workers) as pool:
        hits = sum(pool.map(improves, cases, chunksize=10))
    print(f"improved: {share_text(hits, options.studies)}")


if __name__ == "__main__":
    main()
