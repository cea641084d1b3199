"""The way from the script as written to the fastest single trial: as a table, as JSON and as a picture."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import Any

from tuner.documents import knob_document, plain, rate_document
from tuner.formatting import AS_WRITTEN, config_text, gain_text, number_text, value_text
from tuner.model import WaterfallEntry
from tuner.objective import Objective
from tuner.report.table import Table

_CAUTION = "single trials; best.json says what is proven"
_ROUGH = "; ~ approximate: the baseline drifted meanwhile, or turns scatter"
_SLOT = 132  # pixels that a bar and its labels take
_BAR = 72
_LEFT = 24
_TOP = 96
_HEIGHT = 240  # of the tallest bar
_LINE = 16
_STYLE = """\
text { font: 12px system-ui, "Segoe UI", Helvetica, Arial, sans-serif; }
.title { font-size: 16px; font-weight: 600; }
.rate { font-weight: 600; }
@media (prefers-color-scheme: dark) {
  .page { fill: #0d1117; } .ink { fill: #e6edf3; } .quiet { fill: #9198a1; }
  .before { fill: #3d444d; } .gained { fill: #4493f8; } .axis { stroke: #3d444d; }
}"""


def table(changes: Sequence[WaterfallEntry], objective: Objective) -> Table:
    """A row a change; a ~ marks approximate figures, and gains to those.

    Gains are by the objective, whose figures have a column where they aren't the rates themselves.
    """
    unit = changes[0].measurement.unit if changes else "samples"
    by_rate = _by_rate(changes)
    figures = [f"{unit}/s"] if by_rate else [f"{unit}/s", objective.text]
    rows = [
        [
            str(change.trial), change_text(change), number_text(change.measurement.rate),
            *([] if by_rate else [number_text(change.score)]),
            _gain(change, before) if change.added else "", _total_text(change), seen_text(change),
        ]
        for before, change in zip([None, *changes], changes, strict=False)
    ]  # fmt: skip
    columns = ["trial", "change", *figures, "gain", "total", "observed"]
    return Table(columns, rows, frozenset(columns) - {"change", "observed"})


def documents(changes: Sequence[WaterfallEntry]) -> list[dict[str, Any]]:
    """The changes for programs; rates as in any measurement."""
    return [
        {
            "trial": change.trial, "turned": dict(change.added), **rate_document(change.measurement),
            "score": plain(change.score), "gain": change.gain, "total": change.total, "rough": change.rough,
            "knobs": [knob_document(report) for report in change.knobs],
        }
        for change in changes
    ]  # fmt: skip


def _by_rate(changes: Sequence[WaterfallEntry]) -> bool:
    return all(change.score == change.measurement.rate for change in changes)


def caution(changes: Sequence[WaterfallEntry]) -> str:
    """What the figures are, and what they aren't."""
    return _CAUTION + (_ROUGH if any(change.rough for change in changes) else "")


def change_text(change: WaterfallEntry) -> str:
    """Knobs and values that were added."""
    return config_text(change.added) if change.added else AS_WRITTEN


def _gain(change: WaterfallEntry, before: WaterfallEntry | None) -> str:
    """To the change before, which may be approximate itself."""
    is_rough = change.rough or (before is not None and before.rough)
    return gain_text(change.gain, rough=is_rough)


def _total_text(change: WaterfallEntry) -> str:
    return gain_text(change.total, rough=change.rough)


def seen_text(change: WaterfallEntry) -> str:
    """Whether the knobs took effect: once where all of them say the same."""
    seen = {report.knob: str(report.evidence) for report in change.knobs}
    evidence = {knob: seen.get(knob, "not observed") for knob in change.added}
    if len(set(evidence.values())) <= 1:
        return next(iter(evidence.values()), "")
    return ", ".join(f"{knob} {text}" for knob, text in evidence.items())


def picture(changes: Sequence[WaterfallEntry], title: str, objective: Objective) -> str:
    """The changes as bars from left to right, as the text of an SVG file: legible on light and on dark pages.

    A bar is as high as its gain to the script as written, so that higher is better for every objective.
    """
    depth = max((len(_label(change)) for change in changes), default=1)
    width = max(2 * _LEFT + _SLOT * len(changes), 460)
    height = _TOP + _HEIGHT + 2 * _LINE + depth * _LINE + 2 * _LINE
    scale = _HEIGHT / max((change.total for change in changes), default=1.0)
    unit = "" if _by_rate(changes) else objective.unit
    floor = _TOP + _HEIGHT
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
        f' role="img" aria-label="{escape(title)}">',
        f"<style>\n{_STYLE}\n</style>",
        f'<rect class="page" width="{width}" height="{height}" fill="#ffffff"/>',
        _text(_LEFT, 32, title, "title ink", anchor="start"),
        _text(_LEFT, 52, _total(changes, objective), "quiet", anchor="start"),
    ]
    for place, change in enumerate(changes):
        parts += _bar(place, change, changes[place - 1] if place else None, scale, unit)
    parts.append(f'<path class="axis" d="M{_LEFT} {floor}.5H{width - _LEFT}" stroke="#d1d9e0"/>')
    parts.append(_text(_LEFT, height - _LINE + 2, caution(changes), "quiet", anchor="start"))
    return "\n".join([*parts, "</svg>", ""])


def _total(changes: Sequence[WaterfallEntry], objective: Objective) -> str:
    if len(changes) < 2:
        return "no change was faster"
    by = f"{changes[-1].measurement.unit} per second" if _by_rate(changes) else objective.text
    return f"{_total_text(changes[-1])} in total, in {by}"


def _bar(place: int, change: WaterfallEntry, previous: WaterfallEntry | None, scale: float, unit: str) -> list[str]:
    """The part that was there before is pale, what the change gained is strong. ``unit`` is "" for the rate itself."""
    floor = _TOP + _HEIGHT
    middle = _LEFT + _SLOT * place + _SLOT // 2
    own = change.total * scale
    pale = min(own, previous.total * scale) if previous is not None else own
    left = middle - _BAR // 2
    parts = [_rectangle(left, floor - pale, pale, "before")]
    if own > pale:
        parts.append(_rectangle(left, floor - own, own - pale, "gained"))
    top = floor - math.ceil(own)
    figure = f"{number_text(change.score)} {unit}" if unit else f"{number_text(change.measurement.rate)}/s"
    if previous is not None:
        parts.append(_text(middle, top - 6 - _LINE, _gain(change, previous), "quiet"))
    parts.append(_text(middle, top - 6, figure, "rate ink"))
    lines = _label(change)
    parts += [_text(middle, floor + (2 + i) * _LINE - 8, line, "ink") for i, line in enumerate(lines)]
    return parts


def _label(change: WaterfallEntry) -> list[str]:
    """The knobs under a bar, each value below its name."""
    if not change.added:
        return [AS_WRITTEN]
    return [line for knob, value in change.added.items() for line in (knob, f"= {value_text(value)}")]


def _rectangle(x: int, y: float, height: float, kind: str) -> str:
    fill = {"before": "#d1d9e0", "gained": "#0969da"}[kind]
    return f'<rect class="{kind}" x="{x}" y="{y:.1f}" width="{_BAR}" height="{height:.1f}" fill="{fill}"/>'


def _text(x: int, y: int, text: str, kind: str, *, anchor: str = "middle") -> str:
    fill = "#59636e" if "quiet" in kind else "#1f2328"
    return f'<text class="{kind}" x="{x}" y="{y}" text-anchor="{anchor}" fill="{fill}">{escape(text)}</text>'
