"""How soon a search trial that loses ends, and how often one ends so that is as fast as the best.

    python tests/benchmarks/racing.py [--trials 2000] [--turn 0.27] [--alone]
    python tests/benchmarks/racing.py --studies DIR [DIR ...]

Without studies, trials are made up whose pairs of turns scatter by ``--scatter`` (standard deviation of the logarithm),
trial by trial as unlike as on two shared cores (5.5 degrees of freedom) or more (3), or all by twice as much as the
study's trials before; neighbours hang together by ``--together``. Of each kind: how many trials as fast as the best
were ended as losers, and the pairs of turns that trials had which are slower than it by some percent, at most as many
as two windows hold.

With studies, the stored turns of their search trials are gone through as the study did it, one by one, with the best
one and the scatter that it knew by then: the pairs that each had, and would have by this version, and the ratio by
either. Larger effective batches, which are another contest, are left out. A trial that had fewer pairs than it would
have counts as it was.

``--alone`` leaves out what other trials say of the scatter, as did versions before that.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from shares import share_text

from tuner.analysis.gain import BaselineTrack
from tuner.analysis.measurement import Beside, slices_of
from tuner.analysis.race import Race, asked_again_after
from tuner.analysis.turns import Scatter, Turn, calm_pairs, gain_interval, scatter_of
from tuner.model import Phase, Trial
from tuner.objective import RATE
from tuner.runner.turns import LONGEST, LONGEST_VAGUE
from tuner.storage.folder import RECORDS, REFERENCE, REFERENCE_RESOURCES, RESOURCES, trial_folder
from tuner.storage.records import read_records, read_resources
from tuner.storage.studies import open_study

Pairs = Sequence[tuple[Turn, Turn]]
WINDOW_S = 1.6
LOSSES = (0.0, 0.05, 0.1, 0.2, 0.35, 0.7)
KINDS = {"alike as measured": 5.5, "less alike": 3.0}


def pairs_had(race: Race, pairs: Pairs, window_s: float = WINDOW_S) -> tuple[int, bool]:
    """After how many pairs the trial ends, as far as these go, and whether as a loser before its window is over."""
    asked_after, longest = 1.0, LONGEST
    for count in range(1, len(pairs) + 1):
        counting = calm_pairs(pairs[:count])
        windows = sum(own.seconds for own, _ in pairs[:count]) / window_s
        if race.is_settled(counting, whole=count >= 3):
            return count, _is_below(race, counting)
        if windows >= longest and race.says_little(counting):
            longest = LONGEST_VAGUE
        if windows >= longest:
            return count, False
        if windows >= asked_after:
            asked_after = asked_again_after(windows)
            if not race.is_open(counting):
                return count, False
    return len(pairs), False


def _is_below(race: Race, pairs: Pairs) -> bool:
    found = gain_interval(pairs)
    return race.best is not None and found is not None and found.estimate < math.log(race.best)


def made_up(chance: random.Random, ratio: float, scatter: float, together: float, turn_s: float) -> Pairs:
    """The pairs that two windows hold, of a trial with such a ratio to the script as written."""
    off, pairs = chance.gauss(0, 1), []
    for number in range(math.ceil(LONGEST * WINDOW_S / turn_s)):
        off = together * off + math.sqrt(1 - together**2) * chance.gauss(0, 1) if number else off
        pairs.append((
            Turn(2 * number + 1, 1000 * turn_s * ratio * math.exp(scatter * off), turn_s),
            Turn(2 * number + 2, 1000 * turn_s, turn_s),
        ))  # fmt: skip
    return pairs


def scatters(chance: random.Random, scatter: float, degrees: float) -> float:
    """That of one trial, where trials are as unlike as these degrees of freedom say."""
    return scatter * math.sqrt(degrees / (2 * chance.gammavariate(degrees / 2, 1)))


def of_kind(kind: str, given: argparse.Namespace) -> str:
    """A line of what came of made-up trials of that kind."""
    chance, best = random.Random(kind), 1.2
    known = None if given.alone else Scatter(given.scatter**2, 4.0)
    ended, had = 0, []
    for loss in LOSSES:
        counts = []
        for _ in range(given.trials):
            own = scatters(chance, given.scatter, KINDS[kind]) if kind in KINDS else 2 * given.scatter
            pairs = made_up(chance, best * (1 - loss), own, given.together, given.turn)
            count, lost = pairs_had(Race(best, known), pairs)
            counts.append(count)
            ended += lost and not loss
        had.append(f"{loss:.0%} {sum(counts) / len(counts):.1f}")
    return f"{kind}: as fast as the best, ended as losers {share_text(ended, given.trials)}; pairs: {', '.join(had)}"


def replayed(folder: str, *, alone: bool) -> Iterator[tuple[int, int, str]]:
    """Of each search trial of a study that took turns: the pairs that it had, those that it would have, and a line."""
    stored = open_study(folder)
    trials: list[Trial] = []
    for trial in stored.trials:
        if "lr_scale" in trial.config:
            continue
        raw = trial_folder(stored.folder, trial.number)
        beside = Beside(read_records(raw / REFERENCE), read_resources(raw / REFERENCE_RESOURCES))
        slices = slices_of(read_records(raw / RECORDS), read_resources(raw / RESOURCES), beside)
        if trial.phase is Phase.SEARCH and slices is not None and slices.pairs:
            track = BaselineTrack(trials, RATE)
            measured = [each.measurement for each in trials if each.phase is Phase.SEARCH and each.measurement]
            race = Race(track.gain(track.best_of(trials)), None if alone else scatter_of(measured))
            had, lost = pairs_had(race, slices.pairs)
            whole, first = gain_interval(calm_pairs(slices.pairs)), gain_interval(calm_pairs(slices.pairs[:had]))
            assert whole is not None and first is not None
            yield len(slices.pairs), had, (
                f"{folder} trial {trial.number}: best so far {race.best or math.nan:.2f}x,"
                f" {math.exp(whole.estimate):.2f}x by {len(slices.pairs)} pairs,"
                f" {math.exp(first.estimate):.2f}x by {had}{', a loser' if lost else ''}"
            )
        trials.append(trial)


def main() -> None:
    """Prints what came of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--studies", nargs="+", default=[], metavar="DIR")
    parser.add_argument("--trials", type=int, default=2000, help="of each kind and loss")
    parser.add_argument("--scatter", type=float, default=0.11)
    parser.add_argument("--together", type=float, default=0.0)
    parser.add_argument("--turn", type=float, default=0.12, help="seconds of a turn: 0.27 beside a loader's workers")
    parser.add_argument("--alone", action="store_true")
    given = parser.parse_args()
    had, would = 0, 0
    for folder in given.studies:
        for before, after, line in replayed(folder, alone=given.alone):
            had, would = had + before, would + after
            print(line, flush=True)
    if given.studies:
        print(f"pairs of turns: had {had}, would have {would}")
        return
    for kind in (*KINDS, "twice the scatter"):
        print(of_kind(kind, given), flush=True)


if __name__ == "__main__":
    main()
