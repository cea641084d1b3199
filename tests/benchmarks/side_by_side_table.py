"""The results of ``side_by_side.py`` as tables, of what their lines hold and nothing else; and what is left to do."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tuner.analysis.stats import mean_ratio_interval
from tuner.errors import UsageError
from tuner.formatting import config_text, gain_text, ratio_text
from tuner.model import Config, Evidence, Ratio

Line = Mapping[str, Any]
OURS, OURS_TIER_3 = "autotune", "autotune, tier 3"
FEWEST_CALM = 3
"""With fewer calm pairs than that, all count, and the table says so."""
ROUGH = 0.25
"""Where more of all pairs than that were disturbed the table isn't to be relied on."""
BATCH = "effective batch"


@dataclass(frozen=True)
class Results:
    """The lines of one script's file, by kind. Answers and pairs are in the order in which they were written."""

    header: Line
    answers: tuple[Line, ...] = ()
    pairs: tuple[Line, ...] = ()

    def has(self, asked: str) -> bool:
        """Whether that alternative has answered."""
        return any(line["asked"] == asked for line in self.answers)

    def configs(self) -> list[Config]:
        """Those to be measured, each once, in the order of the answers: the script as written isn't among them."""
        return list(dict.fromkeys(Config(line["config"]) for line in self.answers if line["config"]))

    def pairs_of(self, config: Config) -> list[Line]:
        """Every round of the config so far."""
        return [line for line in self.pairs if Config(line["config"]) == config]

    def failure_of(self, config: Config) -> str:
        """Why it can't be used, "" where nothing is known against it. One run that fails is enough."""
        return next((str(line["failed"]) for line in self.pairs_of(config) if "failed" in line), "")

    def left(self) -> list[tuple[int, Config]]:
        """The rounds that are to be run, and of which config: a round of all, then the next one, so that what the
        machine does for minutes at a time meets all of them."""
        rounds = range(1, int(self.header["rounds"]) + 1)
        return [
            (number, config) for number in rounds for config in self.configs()
            if not self.failure_of(config) and all(line["round"] != number for line in self.pairs_of(config))
        ]  # fmt: skip

    @property
    def is_measured(self) -> bool:
        """Whether nothing is left of what has been answered."""
        return not self.left()


def results_of(lines: Sequence[Line]) -> Results:
    """What a file holds. Raises ``UsageError`` where it doesn't begin as it should."""
    if not lines or lines[0].get("kind") != "header":
        raise UsageError("the results don't begin with a header", hint="choose another folder with --out")
    of = {kind: tuple(line for line in lines if line["kind"] == kind) for kind in ("answer", "pair")}
    return Results(lines[0], of["answer"], of["pair"])


def check_same(before: Line, now: Line) -> None:
    """Raises ``UsageError`` where a file is of something else: another script, other minutes, other software."""
    for key in now:
        if key != "day" and before.get(key) != now[key]:
            told = f"{key} was {json.dumps(before.get(key))}, now {json.dumps(now[key])}"
            raise UsageError(f"these results are of other circumstances: {told}", hint="choose another folder: --out")


@dataclass(frozen=True)
class Row:
    """What came of one answer. ``gain`` is None where there is no figure, ``why`` says why then.

    ``gains``: round → its ratio; empty for the script as written, whose gain is 1 as it is no other.
    """

    line: Line
    gain: Ratio | None
    gains: Mapping[int, float] = field(default_factory=dict)
    why: str = ""
    all_count: bool = False
    knobs: Mapping[str, str] = field(default_factory=dict)

    @property
    def config(self) -> Config:
        """The answer."""
        return Config(self.line["config"])

    @property
    def keeps_batch(self) -> bool:
        """Whether each step trains on as many samples as the script's own."""
        return BATCH not in self.line["changes"]


def row_of(line: Line, results: Results) -> Row:
    """An answer with what its pairs say. What fails counts as the script as written: that is what its user is left
    with."""
    config = Config(line["config"])
    as_written = Ratio(1.0, 1.0, 1.0)
    if not config:
        return Row(line, as_written)
    failure = results.failure_of(config)
    if failure:
        return Row(line, as_written, why=f"fails: {failure}")
    measured = [pair for pair in results.pairs_of(config) if "candidate" in pair]
    calm = [pair for pair in measured if pair["calm"]]
    all_count = len(calm) < FEWEST_CALM
    pairs = measured if all_count else calm
    if len(pairs) < 2:
        return Row(line, None, why=f"{len(pairs)} of {results.header['rounds']} pairs measured")
    found = mean_ratio_interval([pair["written"] for pair in pairs], [pair["candidate"] for pair in pairs])
    gains = {int(pair["round"]): pair["candidate"] / pair["written"] for pair in pairs}
    return Row(line, Ratio(found.estimate, found.low, found.high), gains, "", all_count, measured[-1]["knobs"])


def against(own: Row, other: Row) -> Ratio | None:
    """How many times as fast as with the other answer a script is with one's own, by the rounds that both have; None
    where that isn't known."""
    if own.gain is None or other.gain is None:
        return None
    if own.config == other.config or not (own.gains or other.gains):
        return Ratio(1.0, 1.0, 1.0)
    both = [number for number in own.gains or other.gains if number in (other.gains or own.gains)]
    if len(both) < 2:
        return None
    ones = dict.fromkeys(both, 1.0)
    before, after = other.gains or ones, own.gains or ones
    found = mean_ratio_interval([before[number] for number in both], [after[number] for number in both])
    return Ratio(found.estimate, found.low, found.high)


def table(results: Results) -> str:
    """A row an answer, and below it what was left out."""
    rows = [row_of(line, results) for line in results.answers if not line["missing"]]
    by_name = {str(row.line["alternative"]): row for row in rows}
    lines = [
        "| who | what it says | gain | autotune against it | keeps the training | minutes | tried | of these failed |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, row in by_name.items():
        line = row.line
        cells = [
            name, f"`{config_text(row.config)}`", _gain_text(row), _against_text(row, by_name),
            _keeps_text(str(line["changes"])), f"{line['seconds'] / 60:.1f}", str(line["attempts"]),
            str(line["failures"]),
        ]  # fmt: skip
        lines.append(f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |")
    notes = [f"- {name}: {row.line['said']}." for name, row in by_name.items() if row.line["said"]]
    for name, row in by_name.items():
        vain = [f"{knob} ({word})" for knob, word in row.knobs.items() if word != Evidence.VERIFIED]
        if vain:
            notes.append(f"- {name}: not seen to be in effect: {', '.join(vain)}.")
    notes += [f"- {line['alternative']} isn't in the table: {line['missing']}." for line in results.answers
              if line["missing"]]  # fmt: skip
    return "\n".join([*lines, *(["", *notes] if notes else [])])


def _gain_text(row: Row) -> str:
    if row.gain is None:
        return row.why
    if row.why:
        return f"1.00x ({row.why})"
    if not row.config:
        return "1.00x (as written)"
    return ratio_text(row.gain) + (" disturbed" if row.all_count else "")


def _against_text(row: Row, rows: Mapping[str, Row]) -> str:
    """Of a larger batch what autotune proves of those stands beside what keeps the batch: neither is chosen here."""
    name = str(row.line["alternative"])
    if name in (OURS, OURS_TIER_3) or OURS not in rows:
        return ""
    texts = []
    for own in (OURS, OURS_TIER_3)[: 1 if row.keeps_batch else 2]:
        found = against(rows[own], row) if own in rows else None
        verdict = "" if found is None else _verdict(found)
        texts.append(("tier 3: " if own == OURS_TIER_3 else "") + (f"{ratio_text(found)} {verdict}" if found else "?"))
    return "; ".join(texts)


def _verdict(found: Ratio) -> str:
    return "ahead" if found.low > 1 else "behind" if found.high < 1 else "level"


def _keeps_text(changes: str) -> str:
    if not changes:
        return "yes"
    return f"but for rounding ({changes.removeprefix('numerics: ')})" if changes.startswith("numerics") else (
        f"no: {changes}"
    )  # fmt: skip


def section(results: Results) -> str:
    """The table of one script, under what it is of."""
    header = results.header
    measured = [pair for pair in results.pairs if "candidate" in pair]
    disturbed = [pair for pair in measured if not pair["calm"]]
    of = f"{len(disturbed)} of {len(measured)} pairs were disturbed by others"
    parts = [
        f"### {header['script']}",
        f"{header['minutes']:g} minutes each, {header['rounds']} fresh pairs; {header['cores']} cores of"
        f" {header['device']}; {header['software']}; {header['day']}. {of}.",
    ]
    if len(disturbed) > ROUGH * len(measured):
        parts.append("**Rough**: the machine was busy with other work; these figures aren't to be relied on.")
    if not results.is_measured:
        parts.append("**Not finished**: the same command goes on.")
    return "\n\n".join([*parts, table(results)])


def document(scripts: Sequence[Results], command: str) -> str:
    """All of results.md."""
    parts = [
        "# Side by side with what a user would do instead",
        f"Made by `{command}`. Every answer was measured again beside the script as written, in fresh pairs by turns:"
        f" gains are samples a second with their 95% intervals, each by itself ({gain_text(1.0)} is as written).",
        *map(section, scripts),
    ]
    return "\n\n".join(parts) + "\n"
