"""What the games say of ours against the others, and against what is asked of it, as Markdown."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Mapping, Sequence

from grid_scores import SHARES, TRIALS, Played

GOOD = 0.95
"""Such a share of the best true gain is good enough."""
TENTH = 0.1
"""Within so many of a grid's configs, each a trial."""
RESAMPLES = 2000

Games = Mapping[str, Mapping[str, Sequence[Played]]]
"""Sampler → grid → its ways through it, one a seed, in the order of the seeds."""


def lead(ours: Sequence[Sequence[float]], theirs: Sequence[Sequence[float]]) -> tuple[float, float, float]:
    """By how much ours are larger in the mean over seeds and grids, and the 95% interval of that.

    ``ours`` and ``theirs``: a row a grid, a figure a seed; the same seeds in both, which had the same noise. Seeds are
    drawn anew within each grid (the paired bootstrap; Efron, Annals of Statistics 7, 1979): what is said is said of
    these grids, and not of others.
    """
    differences = [
        [a - b for a, b in zip(mine, others, strict=True)] for mine, others in zip(ours, theirs, strict=True)
    ]
    chance = random.Random(0)
    means = sorted(
        statistics.fmean(statistics.fmean(chance.choices(row, k=len(row))) for row in differences)
        for _ in range(RESAMPLES)
    )
    mean = statistics.fmean(statistics.fmean(row) for row in differences)
    return mean, means[round(0.025 * RESAMPLES)], means[round(0.975 * RESAMPLES) - 1]


def leads(games: Games, ours: str) -> str:
    """A row a peer: ours less its own fraction of the optimum, in percent points, at each of ``TRIALS`` and ``SHARES``.

    "" where there is nobody to compare.
    """
    if ours not in games or len(games) < 2:
        return ""
    points: list[tuple[str, Callable[[Played], float]]] = [
        *((f"{trials} trials", lambda each, trials=trials: each.after(trials)) for trials in TRIALS),
        *((f"{share:.0%} of the time", lambda each, share=share: each.within(share)) for share in SHARES),
    ]
    lines = [f"| {ours} less | {' | '.join(head for head, _ in points)} |", "|---" * (len(points) + 1) + "|"]
    for name in games:
        if name == ours:
            continue
        cells = []
        for _, figure in points:
            rows = [[[figure(each) for each in of[grid]] for grid in sorted(of)] for of in (games[ours], games[name])]
            mean, low, high = lead(*rows)
            cells.append(f"{100 * mean:+.1f} [{100 * low:+.1f}, {100 * high:+.1f}]")
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def targets(games: Games) -> str:
    """A row a sampler and grid: what it has after a tenth of the grid's configs, in how many games that is good, how
    many trials failed of the first 40, and what a proposal took.
    """
    lines = [
        f"| sampler | grid | after {TENTH:.0%} of its configs: median | games with {GOOD:.0%} | failed,"
        f" of {TRIALS[-1]} | ms a proposal, at most |",
        "|---|---|---|---|---|---|",
    ]
    for name, of in games.items():
        for grid, played in sorted(of.items()):
            reached = [each.after(round(TENTH * each.configs)) for each in played]
            good = sum(fraction >= GOOD for fraction in reached)
            took = [1000 * step.proposal_s for each in played for step in each.steps]
            times = f"{statistics.median(took):.0f}, {max(took):.0f}" if took else "-"
            lines.append(
                f"| {name} | {grid} | {100 * statistics.median(reached):.1f} | {good} of {len(played)} |"
                f" {statistics.fmean(each.failures(TRIALS[-1]) for each in played):.1f} | {times} |"
            )
    return "\n".join(lines)
