"""Compares samplers on recorded grids: how good a config they would have recommended, by when. `make benchmark`.

    python tests/benchmarks/samplers_on_grids.py [GRID...] --seeds 30 [--first N] [--samplers A,B] [--out DIR]

Without GRID all of tests/benchmarks/grids/. A game is one sampler on one grid with one seed: the noise of its trials is
drawn from the recorded turns, and what it recommends is scored by its true gain. README.md there says how, and has
what came of it. Grids of ``DEVELOPMENT`` may be looked at while a sampler is made; the others are what is reported.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import os
import shlex
import statistics
import sys
import time
from collections.abc import Sequence, Set
from functools import cache, partial
from pathlib import Path

from grid_claims import Games
from grid_samplers import AND_FINALS, PLAYERS, missing
from grid_scores import Played, play
from grid_tables import REPORTED, UNREPORTED, document, overview, picture

from tuner.analysis.turns import DISTURBED, FEWEST_CALM
from tuner.errors import GridError
from tuner.runner.grid_replay import GridReplay
from tuner.storage.grid import Grid, read_grid

FOLDER = Path(__file__).parent / "grids"
SUFFIX = ".jsonl.gz"
LONGER = ".longer" + SUFFIX
"""Of the file with a grid's fastest configs, measured for longer; it lies beside the grid."""
DEVELOPMENT = frozenset({"digits", "storage", "mixed", "keras_photos", "overhead"})
"""Half of those that `make grids` records, of each kind one or the other; and what was looked at since."""
FEWEST_CONFIGS = 300
"""A grid with fewer is too small to be reported."""
MOST_DISTURBED = 0.25
"""With a larger share of its pairs of turns disturbed a grid says little, though single configs may."""
MOST_ROUGH = 0.1
"""And with a larger share of configs of which too few pairs are calm, so that the disturbed ones count, too."""

MOST_UNCERTAIN = 0.2
"""With half of its gains not even known to that, what is best in a grid is what had luck."""

Game = tuple[str, str, int]
"""A sampler, a grid's file, a seed."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Plays all games and writes results.md and results.svg."""
    options = _options(arguments)
    usual = [name for name in PLAYERS if options.races or not name.endswith(AND_FINALS)]
    names = options.samplers.split(",") if options.samplers else usual
    unknown = [name for name in names if name not in PLAYERS]
    if unknown:
        print(f"there is no sampler {unknown[0]!r}; there are: {', '.join(PLAYERS)}", file=sys.stderr)
        return 2
    paths = [Path(path) for path in options.grids] or sorted(FOLDER.glob(f"*{SUFFIX}"))
    paths = [path for path in paths if not path.name.endswith(LONGER)]
    if not paths:
        print(f"there is no grid in {FOLDER}: make grids records them", file=sys.stderr)
        return 2
    try:
        grids = {_name(path): (_grid(str(path)), _longer(str(path))) for path in paths}
    except GridError as error:
        print(f"{error.message}; {error.hint}", file=sys.stderr)
        return error.exit_code
    left_out = {name: missing(name) for name in names if missing(name)}
    names = [name for name in names if name not in left_out]
    notes = [f"{name} is left out: {why}." for name, why in left_out.items()]
    unfits = {name: why for name, pair in grids.items() if (why := unfit(*pair))}
    notes += [f"**Not to be reported**: {name} {why}." for name, why in unfits.items()]
    began = time.monotonic()
    seeds = range(options.first, options.first + options.seeds)
    games = [(name, str(path), seed) for name in names for path in paths for seed in seeds]
    played = _all_games(games, options.jobs, races=options.races)
    reported, others = _halves(played, names, paths, {*DEVELOPMENT, *unfits})
    shown, half = (reported, REPORTED) if reported else (others, UNREPORTED)
    print("\n".join([*notes, half]))
    print("\n\n".join(overview(shown)))
    print(f"{len(played)} games in {time.monotonic() - began:.0f} s")
    if options.out:
        out = Path(options.out)
        given = sys.argv[1:] if arguments is None else arguments
        command = shlex.join(["python", "tests/benchmarks/samplers_on_grids.py", *given])
        described = {name: describe(*pair) for name, pair in grids.items()}
        text = document(reported, others, seeds=options.seeds, command=command, grids=described, notes=notes,
                        day=time.strftime("%Y-%m-%d", time.gmtime()))  # fmt: skip
        (out / "results.md").write_text(text, encoding="utf-8")
        (out / "results.svg").write_text(picture(shown, half), encoding="utf-8")
    return 0


def unfit(grid: Grid, longer: Grid | None = None) -> str:
    """Why a grid isn't to be reported, continuing a sentence of which it is the subject; "" where it may be."""
    if len(grid.configs) < FEWEST_CONFIGS or not grid.header.complete:
        return f"has fewer than {FEWEST_CONFIGS} configs, or not all"
    truth = longer or grid
    pairs, disturbed, rough = disturbances(truth)
    measured = sum(bool(row.reading and row.reading.pairs) for row in truth.configs.values())
    if disturbed > MOST_DISTURBED * pairs:
        return f"was recorded beside other work: {disturbed} of its {pairs} pairs of turns were disturbed"
    if rough > MOST_ROUGH * measured:
        return f"was recorded beside other work: disturbed pairs count in {rough} of its {measured} configs"
    if (half := uncertainty(truth)) > MOST_UNCERTAIN:
        return f"was recorded too briefly: half of its gains are known to ±{half:.0%} or worse"
    return ""


def disturbances(grid: Grid) -> tuple[int, int, int]:
    """Its pairs of turns, those of them that others disturbed, and the configs of which those count, too."""
    readings = [row.reading.pairs for row in grid.configs.values() if row.reading is not None and row.reading.pairs]
    lost = [[max(pair[2], pair[5]) > DISTURBED for pair in pairs] for pairs in readings]
    rough = sum(any(each) and len(each) - sum(each) < FEWEST_CALM for each in lost)
    return sum(map(len, lost)), sum(map(sum, lost)), rough


def uncertainty(grid: Grid) -> float:
    """To how much, as a share, the better half of its gains by turns is known: half of a 95% interval."""
    replay = GridReplay(grid)
    found = [replay.outcome(config).measurement for config in grid.configs if config]
    gains = [each.reference.gain for each in found if each is not None and each.reference is not None]
    halves = [math.expm1(math.log(gain.high / gain.low) / 2) if gain.low > 0 else math.inf for gain in gains]
    return statistics.median(halves or [math.inf])


def describe(grid: Grid, longer: Grid | None = None) -> str:
    """What a grid is of, on one line."""
    header = grid.header
    failed = sum(not row.complete for row in grid.configs.values())
    knobs = ", ".join(f"{knob.name} {len(knob.values)}" for knob in header.knobs)
    text = (
        f"{header.script} ({header.framework}, {header.bottleneck or 'not probed'}) on {header.cores} cores of"
        f" {header.device_name}, {header.recorded}; {len(grid.configs) - 1} configs ({knobs}), {failed} of which failed"
        f"; {_precision(grid)}"
    )
    return text if longer is None else f"{text}. Its {len(longer.configs) - 1} fastest for longer: {_precision(longer)}"


def _precision(grid: Grid) -> str:
    pairs, disturbed, rough = disturbances(grid)
    return (
        f"{grid.header.window_s:g} s each, half of the gains are known to ±{uncertainty(grid):.0%} or better;"
        f" {disturbed} of {pairs} pairs of turns disturbed, which count in {rough} configs"
    )


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("grids", nargs="*")
    parser.add_argument("--seeds", type=int, default=30)
    parser.add_argument("--first", type=int, default=0, help="the first seed: others than a sampler was made on")
    parser.add_argument("--samplers", default="")
    parser.add_argument("--races", action="store_true", help="trials as long as a study's, and finals for who has them")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--out", default="", help="a folder for results.md and results.svg")
    return parser.parse_args(arguments)


def _all_games(games: list[Game], jobs: int, *, races: bool) -> dict[Game, Played]:
    # Each of the processes has a core; a Gaussian process would take all of them.
    os.environ["OMP_NUM_THREADS"] = "1"
    one = partial(_played, races=races)
    if jobs < 2:
        return dict(map(one, games))
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        return dict(pool.imap_unordered(one, games))


def _played(game: Game, *, races: bool) -> tuple[Game, Played]:
    name, path, seed = game
    return game, play(_grid(path), PLAYERS[name], seed, longer=_longer(path), races=races)


@cache
def _grid(path: str) -> Grid:
    return read_grid(Path(path))


@cache
def _longer(path: str) -> Grid | None:
    beside = Path(path.removesuffix(SUFFIX) + LONGER)
    return read_grid(beside) if beside.exists() else None


def _halves(
    played: dict[Game, Played], names: Sequence[str], paths: Sequence[Path], apart: Set[str]
) -> tuple[Games, Games]:
    """What is reported, and the grids ``apart``; of samplers in the order in which they were named."""

    def of(chosen: Sequence[Path]) -> Games:
        if not chosen:
            return {}
        return {
            name: {
                _name(path): [each for game, each in sorted(played.items()) if game[:2] == (name, str(path))]
                for path in chosen
            }
            for name in names
        }  # fmt: skip

    return (
        of([path for path in paths if _name(path) not in apart]),
        of([path for path in paths if _name(path) in apart]),
    )


def _name(path: Path) -> str:
    return path.name.removesuffix(SUFFIX)


if __name__ == "__main__":
    raise SystemExit(main())
