"""Which sampler finds most in how many trials: on made-up loops (support/loops.py), each drawn from a seed.

    python tests/benchmarks/samplers.py --loops 30 --trials 40
    git show COMMIT:tuner/search/structured.py > before.py; python tests/benchmarks/samplers.py --walk before.py

Printed for each: the true rate of the config that it recommends after 5, 10, 20 and 40 trials, as a share of the best
there is (the mean and the lowest tenth over all loops), the trials that gave no figure, the configs that were run
twice, what a proposal took, and after how many trials the study would have ended for the proof since no gain of 1% was
expected, with what it recommended then.
"""

from __future__ import annotations

import argparse
import importlib.util
import random
import statistics
import sys
import warnings
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

import numpy as np
import optuna
from support.loops import Loop
from support.plays import Play, play

from tuner.analysis.gain import WORTH_HAVING
from tuner.search.additive import AdditiveSampler
from tuner.search.chain import Chain
from tuner.search.history import History, Proposal, Sampler
from tuner.search.structured import MOST_WALKED, StructuredSampler
from tuner.search.tpe import TpeSampler
from tuner.study.search import CALM

AT = (5, 10, 20, 40)
TRIES = 1000


@dataclass(frozen=True)
class Result:
    """A search, its shares of the optimum after ``AT`` trials, and where it would have ended with which one."""

    play: Play
    shares: list[float]
    end: int
    share_at_end: float


class RandomSampler:
    """Any config that wasn't tried."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def propose(self, history: History) -> Proposal | None:
        """One that isn't ruled out, at random."""
        chance = random.Random(f"{self._seed}:{len(history.trials)}")
        for _ in range(TRIES):
            indices = {axis.knob.name: chance.randrange(len(axis.values)) for axis in history.space.axes}
            config = history.space.config_of(indices)
            if history.find(config) is None and not history.is_ruled_out(config):
                return Proposal(config, "at random")
        return None


class GaussianProcess:
    """Optuna's, told of what doesn't work as its documentation asks for: the worst value, and a violated constraint."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        optuna.logging.set_verbosity(optuna.logging.WARNING)

    def propose(self, history: History) -> Proposal | None:
        """What it asks for, where that is new; else anything that is."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            sampler = optuna.samplers.GPSampler(seed=self._seed + len(history.trials))
            study = optuna.create_study(sampler=sampler, direction="maximize")
            spans: dict[str, optuna.distributions.BaseDistribution] = {
                axis.knob.name: optuna.distributions.IntDistribution(0, len(axis.values) - 1) if axis.knob.ordered
                else optuna.distributions.CategoricalDistribution(tuple(range(len(axis.values))))
                for axis in history.axes
            }  # fmt: skip
            worst = min((history.gain(trial) or 1.0 for trial in history.trials), default=1.0)
            for trial in history.trials:
                own = history.gain(trial)
                indices = history.space.indices_of(trial.config)
                study.add_trial(
                    optuna.trial.create_trial(
                        value=worst if own is None else own, params={name: indices[name] for name in spans},
                        distributions=spans, constraints={"works": 1.0 if own is None else -1.0},
                    )
                )  # fmt: skip
            params = study.ask(spans).params
        written = {axis.knob.name: axis.as_written for axis in history.space.axes}
        config = history.space.config_of({**written, **params})
        if history.find(config) is None and not history.is_ruled_out(config):
            return Proposal(config, "asked for")
        return RandomSampler(self._seed).propose(history)


def samplers(seed: int, walk: type[StructuredSampler] | None) -> dict[str, Callable[[], Sampler]]:
    """Name → a new one."""
    made: dict[str, Callable[[], Sampler]] = {
        "random": lambda: RandomSampler(seed),
        "TPE": lambda: TpeSampler(seed),
        "GP, constraints": lambda: GaussianProcess(seed),
        "walk, TPE": lambda: Chain(StructuredSampler(), TpeSampler(seed)),
        "walk, model, TPE": lambda: Chain(StructuredSampler(), AdditiveSampler(seed), TpeSampler(seed)),
        f"walk of {MOST_WALKED}, model, TPE": lambda: Chain(
            StructuredSampler(MOST_WALKED), AdditiveSampler(seed), TpeSampler(seed)
        ),
        "walk, Thompson": lambda: Chain(StructuredSampler(), AdditiveSampler(seed, draws=1), TpeSampler(seed)),
    }
    if walk is not None:
        made["walk before, TPE"] = lambda: Chain(walk(), TpeSampler(seed))
    return made


def walk_of(path: Path | None) -> type[StructuredSampler] | None:
    """The walk of another version, from its file."""
    if path is None:
        return None
    spec = importlib.util.spec_from_file_location("walk_before", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    walk: type[StructuredSampler] = module.StructuredSampler
    return walk


def played(seed: int, names: tuple[str, ...], trials: int, walk: Path | None) -> dict[str, Result]:
    """Name → the search on the loop of that seed."""
    made = samplers(seed, walk_of(walk))
    results: dict[str, Result] = {}
    for name in names or tuple(made):
        loop = Loop(seed)
        found = play(made[name](), loop, trials)
        end = found.ends_at(loop.objective, WORTH_HAVING, CALM)
        shares = [found.share(loop, at) for at in AT if at <= trials]
        results[name] = Result(found, shares, end, found.share(loop, end))
    return results


def line(name: str, results: list[Result]) -> str:
    """What one sampler came to over all loops."""
    shares = np.array([result.shares for result in results])
    means = " ".join(f"{mean:5.1%} ({low:5.1%})" for mean, low in zip(
        shares.mean(axis=0), np.quantile(shares, 0.1, axis=0), strict=True
    ))  # fmt: skip
    plays = [result.play for result in results]
    took = [seconds * 1e3 for found in plays for seconds in found.proposal_s]
    return (
        f"{name:18} {means} {statistics.fmean(found.infeasible for found in plays):10.1f} "
        f"{sum(found.repeated for found in plays):6} {statistics.median(took):6.1f} {np.quantile(took, 0.99):6.1f} "
        f"{statistics.fmean(result.end for result in results):8.1f} "
        f"{statistics.fmean(result.share_at_end for result in results):6.1%}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--loops", type=int, default=30)
    parser.add_argument("--first", type=int, default=0, help="the first loop's seed")
    parser.add_argument("--trials", type=int, default=40)
    parser.add_argument("--walk", type=Path, help="structured.py of another version")
    parser.add_argument("--only", action="append", default=[], help="the samplers to play; may be repeated")
    parser.add_argument("--processes", type=int, default=1)
    arguments = parser.parse_args()
    one = partial(played, names=tuple(arguments.only), trials=arguments.trials, walk=arguments.walk)
    with ProcessPoolExecutor(arguments.processes) as pool:
        results = list(pool.map(one, range(arguments.first, arguments.first + arguments.loops)))
    at = " ".join(f"{f'after {n} (p10)':>14}" for n in AT if n <= arguments.trials)
    print(f"{'sampler':18} {at} {'infeasible':>10} {'twice':>6} {'ms':>6} {'ms p99':>6} {'ends at':>8} {'share':>6}")
    for name in results[0]:
        print(line(name, [result[name] for result in results]))


if __name__ == "__main__":
    main()
