"""The benchmark's results as Markdown and as a picture, of what the scores hold and nothing else."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from html import escape

from grid_claims import Games, leads, targets
from grid_scores import SHARES, TRIALS, Score, score, tenth

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#999999")
"""Okabe and Ito's, which people who see few colours tell apart."""
DASHES = ' stroke-dasharray="3 3" opacity="0.6"'
_WIDTH, _HEIGHT, _LEFT, _TOP, _GAP, _LEGEND = 360, 260, 50, 30, 60, 150

REPORTED, UNREPORTED = "Reported", "To develop on, or not to be reported"
"""The grids that speak for a sampler, and the others."""
OURS = "autotune"


def table(scores: Mapping[str, Score]) -> str:
    """A row a sampler: fractions of the true optimum in percent, the mean and behind it the tenth percentile."""
    heads = [*(f"{trials} trials" for trials in TRIALS), *(f"{share:.0%} of the time" for share in SHARES)]
    lines = [
        f"| sampler | {' | '.join(heads)} | failed, of {TRIALS[-1]} | trials run |",
        "|---" * (len(heads) + 3) + "|",
    ]
    for name, each in scores.items():
        cells = [f"{100 * mean:.1f} ({100 * low:.1f})" for mean, low in (*each.after, *each.within)]
        lines.append(f"| {name} | {' | '.join(cells)} | {each.failures:.1f} | {each.trials:.1f} |")
    return "\n".join(lines)


def pooled(games: Games) -> dict[str, Score]:
    """Each sampler's score over all grids, every way through one counting the same."""
    return {name: score([each for played in of.values() for each in played]) for name, of in games.items()}


def overview(games: Games) -> list[str]:
    """The tables over all grids: scores, by how much ours leads each other one, what is asked of it."""
    return [part for part in (table(pooled(games)), leads(games, OURS), targets(games)) if part]


def document(
    reported: Games,
    others: Games,
    *,
    seeds: int,
    command: str,
    day: str,
    grids: Mapping[str, str],
    notes: Sequence[str],
) -> str:
    """The whole of results.md. ``grids``: name → what it is, in a few words; ``others``: those not reported."""
    parts = [
        "# Samplers on recorded grids",
        f"Made by `{command}`, {day}; {seeds} seeds. Each cell is the true gain of what is recommended by then, in"
        " percent of the best config's in the grid: the mean over seeds and grids, in brackets the tenth percentile.",
        *notes,
    ]
    for title, games in ((REPORTED, reported), (UNREPORTED, others)):
        names = sorted({grid for of in games.values() for grid in of})
        if not names:
            continue
        parts += [f"## {title}", "\n".join(f"- **{name}**: {grids[name]}" for name in names), *overview(games)]
        for name in names if len(names) > 1 else ():
            parts += [f"### {name}", table({sampler: score(of[name]) for sampler, of in games.items()})]
    return "\n\n".join(parts) + "\n"


def picture(games: Games, half: str) -> str:
    """Two panels as SVG, with the name of the ``half`` of the grids that they show: the fraction of the optimum after
    so many trials, and within that share of the seconds.

    Lines are means over seeds and grids, dashes the tenth percentile.
    """
    panels = []
    by_trials = [(float(trials), f"{trials}") for trials in range(TRIALS[-1] + 1)]
    by_share = [(share / 1000, f"{share / 10:.0f}%") for share in range(0, round(1000 * SHARES[-1]) + 1, 5)]
    for place, (points, label) in enumerate(((by_trials, "trials"), (by_share, "share of the grid's seconds"))):
        left = _LEFT + place * (_WIDTH + _GAP)
        panels.append(_axes(left, points, label, half))
        for number, (_, of) in enumerate(games.items()):
            played = [each for played in of.values() for each in played]
            values = [
                [each.after(int(at)) if place == 0 else each.within(at) for each in played] for at, _ in points
            ]
            colour = COLOURS[number % len(COLOURS)]
            panels.append(_line(left, [statistics.fmean(each) for each in values], colour, ""))
            panels.append(_line(left, [tenth(each) for each in values], colour, DASHES))
    width, height = _LEFT + 2 * _WIDTH + _GAP + _LEGEND, _TOP + _HEIGHT + 50
    legend = [
        f'<text x="{width - _LEGEND + 20}" y="{_TOP + 12 + 18 * number}" fill="{COLOURS[number % len(COLOURS)]}">'
        f"{escape(name)}</text>"
        for number, name in enumerate(games)
    ]
    size = f'viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size}>'
    background = f'<rect width="{width}" height="{height}" fill="white"/>'
    return "\n".join([head, background, *panels, *legend, "</svg>"]) + "\n"


def _axes(left: float, points: Sequence[tuple[float, str]], label: str, half: str) -> str:
    lines = []
    for tick in range(0, 101, 20):
        y = _y(tick / 100)
        lines.append(f'<line x1="{left}" x2="{left + _WIDTH}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>')
        lines.append(f'<text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end">{tick}%</text>')
    step = (len(points) - 1) // 4
    for number in range(0, len(points), step):
        x = left + _WIDTH * number / (len(points) - 1)
        lines.append(f'<text x="{x:.1f}" y="{_TOP + _HEIGHT + 16}" text-anchor="middle">{points[number][1]}</text>')
    lines.append(f'<text x="{left + _WIDTH / 2}" y="{_TOP + _HEIGHT + 36}" text-anchor="middle">{label}</text>')
    title = f"true gain of what is recommended, of the best; {half.lower()}"
    lines.append(f'<text x="{left}" y="{_TOP - 12}">{escape(title)}</text>')
    return "\n".join(lines)


def _line(left: float, values: Sequence[float], colour: str, style: str) -> str:
    points = " ".join(
        f"{left + _WIDTH * number / (len(values) - 1):.1f},{_y(value):.1f}" for number, value in enumerate(values)
    )
    return f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.5"{style}/>'


def _y(fraction: float) -> float:
    return _TOP + _HEIGHT * (1 - fraction)
