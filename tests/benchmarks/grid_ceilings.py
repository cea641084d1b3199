"""How much of a grid's best gain could be recommended by who reads all of its configs: a bound for any search.

    python tests/benchmarks/grid_ceilings.py GRID... [--seeds 10]

A row a grid, each cell the mean share of the best true gain over seeds, and in how many of them it is 95%. True of a
config is one half of its longest recording, as in games with ``--races``; what is read are short trials and the other
half. Three ways to choose: the highest of one short reading of each config; the best of five rounds of finals among the
ten highest; the highest where the other halves are known whole.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path

from grid_claims import GOOD
from grid_races import FINALS_S, WINDOW_S, whole
from samplers_on_grids import LONGER, SUFFIX

from tuner.model import Config, Outcome
from tuner.runner.grid_replay import GridReplay
from tuner.storage.grid import read_grid

FINALISTS, ROUNDS = 10, 5
WHOLE_S = 60.0
"""More than any recording has."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("grids", nargs="+", type=Path)
    parser.add_argument("--seeds", type=int, default=10)
    options = parser.parse_args(arguments)
    print("| grid | every config read once | and finals of the ten highest | one half known whole |\n|---|---|---|---|")
    for path in options.grids:
        chosen = list(zip(*(shares(path, seed) for seed in range(options.seeds)), strict=True))
        print(f"| {path.name.removesuffix(SUFFIX)} | {' | '.join(_cell(each) for each in chosen)} |")
    return 0


def shares(path: Path, seed: int) -> tuple[float, float, float]:
    """Of the best true gain: that of what each of the three ways chooses."""
    behind = path.with_name(path.name.removesuffix(SUFFIX) + LONGER)
    replay = GridReplay(read_grid(path), seed, read_grid(behind) if behind.exists() else None, apart=True)
    as_written = replay.trials()[0].outcome
    assert as_written is not None and as_written.measurement is not None
    rate = as_written.measurement.rate

    def gain(outcome: Outcome) -> float:
        found = outcome.measurement
        if found is None or not outcome.complete:
            return 0.0
        return found.reference.gain.ratio if found.reference else found.rate / rate

    def highest(configs: Sequence[Config], reading: Callable[[Config], float]) -> list[Config]:
        readings = {config: reading(config) for config in configs}
        return sorted(configs, key=lambda config: -readings[config])

    configs = [config for config in replay.grid.configs if config]
    read = highest(configs, lambda config: gain(replay.outcome(config, whole(WINDOW_S))))
    finals = highest(
        read[:FINALISTS],
        lambda config: math.prod(gain(replay.longer(config, whole(FINALS_S))) for _ in range(ROUNDS)),
    )
    known = highest(configs, lambda config: gain(replay.outcome(config, whole(WHOLE_S))))
    best = replay.best[1]
    first, second, third = (replay.true_gain(order[0]) / best for order in (read, finals, known))
    return first, second, third


def _cell(found: Sequence[float]) -> str:
    return f"{statistics.fmean(found):.1%}, {sum(each >= GOOD for each in found)} of {len(found)}"


if __name__ == "__main__":
    raise SystemExit(main())
