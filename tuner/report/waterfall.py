"""The way from the script as written to the fastest single trial: as a table, as JSON and as a picture."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import Any

from tuner.documents import knob_document, plain, rate_document
from tuner.formatting import AS_WRITTEN, config_text, gain_text, number_text, value_text
from tuner.model import Turn
from tuner.objective import Objective
from tuner.report.table import Table

_CAUTION = "single trials; best.json says what is proven"
_ROUGH = "; ~ approximate: the baseline drifted meanwhile"
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


def table(turns: Sequence[Turn], objective: Objective) -> Table:
    """A row a turn; a ~ marks approximate figures: the baseline drifted around the trial.

    Gains are by the objective, whose figures have a column where they aren't the rates themselves.
    """
    unit = turns[0].measurement.unit if turns else "samples"
    by_rate = _by_rate(turns)
    figures = [f"{unit}/s"] if by_rate else [f"{unit}/s", objective.text]
    rows = [
        [
            str(turn.trial), turn_text(turn), number_text(turn.measurement.rate),
            *([] if by_rate else [number_text(turn.score)]),
            _gain(turn, turn.gain) if turn.turned else "", _gain(turn, turn.total), seen_text(turn),
        ]
        for turn in turns
    ]  # fmt: skip
    columns = ["trial", "change", *figures, "gain", "total", "observed"]
    return Table(columns, rows, frozenset(columns) - {"change", "observed"})


def documents(turns: Sequence[Turn]) -> list[dict[str, Any]]:
    """The turns for programs; rates as in any measurement."""
    return [
        {
            "trial": turn.trial, "turned": dict(turn.turned), **rate_document(turn.measurement),
            "score": plain(turn.score), "gain": turn.gain, "total": turn.total, "rough": turn.rough,
            "knobs": [knob_document(report) for report in turn.knobs],
        }
        for turn in turns
    ]  # fmt: skip


def _by_rate(turns: Sequence[Turn]) -> bool:
    return all(turn.score == turn.measurement.rate for turn in turns)


def caution(turns: Sequence[Turn]) -> str:
    """What the figures are, and what they aren't."""
    return _CAUTION + (_ROUGH if any(turn.rough for turn in turns) else "")


def turn_text(turn: Turn) -> str:
    """What was turned."""
    return config_text(turn.turned) if turn.turned else AS_WRITTEN


def _gain(turn: Turn, gain: float) -> str:
    return f"{'~' if turn.rough else ''}{gain_text(gain)}"


def seen_text(turn: Turn) -> str:
    """Whether the knobs took effect: once where all of them say the same."""
    seen = {report.knob: str(report.evidence) for report in turn.knobs}
    evidence = {knob: seen.get(knob, "not observed") for knob in turn.turned}
    if len(set(evidence.values())) <= 1:
        return next(iter(evidence.values()), "")
    return ", ".join(f"{knob} {text}" for knob, text in evidence.items())


def picture(turns: Sequence[Turn], title: str, objective: Objective) -> str:
    """The turns as bars from left to right, as the text of an SVG file: legible on light and on dark pages.

    A bar is as high as its gain to the script as written, so that higher is better for every objective.
    """
    depth = max((len(_label(turn)) for turn in turns), default=1)
    width = max(2 * _LEFT + _SLOT * len(turns), 460)
    height = _TOP + _HEIGHT + 2 * _LINE + depth * _LINE + 2 * _LINE
    scale = _HEIGHT / max((turn.total for turn in turns), default=1.0)
    unit = "" if _by_rate(turns) else objective.unit
    floor = _TOP + _HEIGHT
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
        f' role="img" aria-label="{escape(title)}">',
        f"<style>\n{_STYLE}\n</style>",
        f'<rect class="page" width="{width}" height="{height}" fill="#ffffff"/>',
        _text(_LEFT, 32, title, "title ink", anchor="start"),
        _text(_LEFT, 52, _total(turns, objective), "quiet", anchor="start"),
    ]
    for place, turn in enumerate(turns):
        parts += _bar(place, turn, turns[place - 1] if place else None, scale, unit)
    parts.append(f'<path class="axis" d="M{_LEFT} {floor}.5H{width - _LEFT}" stroke="#d1d9e0"/>')
    parts.append(_text(_LEFT, height - _LINE + 2, caution(turns), "quiet", anchor="start"))
    return "\n".join([*parts, "</svg>", ""])


def _total(turns: Sequence[Turn], objective: Objective) -> str:
    if len(turns) < 2:
        return "no change was faster"
    by = f"{turns[-1].measurement.unit} per second" if _by_rate(turns) else objective.text
    return f"{_gain(turns[-1], turns[-1].total)} in total, in {by}"


def _bar(place: int, turn: Turn, previous: Turn | None, scale: float, unit: str) -> list[str]:
    """The part that was there before is pale, what the turn brought is strong. ``unit`` is "" for the rate itself."""
    floor = _TOP + _HEIGHT
    middle = _LEFT + _SLOT * place + _SLOT // 2
    own = turn.total * scale
    pale = min(own, previous.total * scale) if previous is not None else own
    left = middle - _BAR // 2
    parts = [_rectangle(left, floor - pale, pale, "before")]
    if own > pale:
        parts.append(_rectangle(left, floor - own, own - pale, "gained"))
    top = floor - math.ceil(own)
    figure = f"{number_text(turn.score)} {unit}" if unit else f"{number_text(turn.measurement.rate)}/s"
    if previous is not None:
        parts.append(_text(middle, top - 6 - _LINE, _gain(turn, turn.gain), "quiet"))
    parts.append(_text(middle, top - 6, figure, "rate ink"))
    lines = _label(turn)
    parts += [_text(middle, floor + (2 + i) * _LINE - 8, line, "ink") for i, line in enumerate(lines)]
    return parts


def _label(turn: Turn) -> list[str]:
    """The knobs under a bar, each value below its name."""
    if not turn.turned:
        return [AS_WRITTEN]
    return [line for knob, value in turn.turned.items() for line in (knob, f"= {value_text(value)}")]


def _rectangle(x: int, y: float, height: float, kind: str) -> str:
    fill = {"before": "#d1d9e0", "gained": "#0969da"}[kind]
    return f'<rect class="{kind}" x="{x}" y="{y:.1f}" width="{_BAR}" height="{height:.1f}" fill="{fill}"/>'


def _text(x: int, y: int, text: str, kind: str, *, anchor: str = "middle") -> str:
    fill = "#59636e" if "quiet" in kind else "#1f2328"
    return f'<text class="{kind}" x="{x}" y="{y}" text-anchor="{anchor}" fill="{fill}">{escape(text)}</text>'
