"""Devices side by side, for people: what each gives, what follows from it, and what doesn't."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tuner.analysis.circumstances import HARDLY_MATTERS, Change, ProvenPart
from tuner.analysis.fleet import (
    FEWEST_RUNS,
    SAMPLES,
    Comparison,
    Doubt,
    LoopFigures,
    OnDevice,
    Order,
    differences,
    doubt_of,
    obstacles,
    price_per_million,
    shown_for,
)
from tuner.analysis.resources import DEVICE
from tuner.formatting import (
    bytes_text,
    config_text,
    count_text,
    gain_text,
    interval_text,
    number_text,
    ranks_text,
    ratio_text,
    script_text,
)
from tuner.masking import masked
from tuner.report.table import Table
from tuner.report.tiers import KEEP, beside_larger

UNKNOWN = "not known"
_HASH_SHOWN = 12
_METERED = {True: "{} with main memory", False: "{} without it", None: "of {} nobody noted whether"}
_DOUBTS = {
    Doubt.NOTHING_MEASURED: "nothing was measured",
    Doubt.NOT_PROVEN: "its figures are of a single trial, which proves nothing",
    Doubt.FEW_RUNS: f"its finals had {{runs}} of each, and fewer than {FEWEST_RUNS} lie apart by chance too often",
    Doubt.DISTURBED: "others disturbed its finals: {why}",
    Doubt.EDITED: "it was edited since a study wrote it",
}


def headings(comparison: Comparison) -> list[str]:
    """Each profile with its number: its device and file, what was studied, and what came of it."""
    lines = []
    for number, profile in enumerate(comparison.profiles):
        script = profile.circumstances.script
        command = " ".join(filter(None, (script_text(script), shlex.join(masked(script.argv)))))
        lines += [
            f"{_name(number)} {profile.device.label}: {profile.shown}{ranks_text(profile.ranks, profile.devices)}"
            f" ({profile.place})",
            f"    {command}",
            f"    {_answer(profile)}",
            *_larger(profile),
        ]
    return lines


def _name(number: int) -> str:
    return f"[{number + 1}]"


def _answer(profile: OnDevice) -> str:
    if profile.config:
        return f"faster: {config_text(profile.config)}"
    held = f" in {count_text(profile.runs, 'run')} of each" if profile.runs else ": there were no finals"
    answer = f"{KEEP}: nothing was proven to be faster{held}"
    if profile.cannot_tell:
        answer = f"can't tell: {profile.cannot_tell}"
    return beside_larger(answer) if profile.larger else answer


def _larger(profile: OnDevice) -> list[str]:
    """A proven larger batch, of which no figure below tells: another training is held against none by its speed."""
    if not profile.larger:
        return []
    reaches = "is proven to reach a loss sooner"
    if profile.sooner is not None:
        sooner = f"{gain_text(profile.sooner.ratio)} as fast, 95% interval {interval_text(profile.sooner)}"
        reaches = f"reaches the same loss {sooner}"
    return [f"    larger batches (tier 3, not below): {config_text(profile.larger)} {reaches}; autotune run --tier 3"]


def _why_unranked(profile: OnDevice, doubt: Doubt) -> str:
    runs = count_text(profile.runs, "run") if profile.runs else "nobody knows how many runs"
    return _DOUBTS[doubt].format(runs=runs, why=profile.disturbed)


@dataclass(frozen=True)
class _Column:
    """One column of figures: a profile, as written or as its winner; ``figures`` is None where nothing was measured."""

    profile: OnDevice
    figures: LoopFigures | None
    heading: str
    per_hour: float | None


def table(comparison: Comparison) -> Table:
    """A row for each figure, a column for each profile as written, and one for its winner."""
    columns = _columns(comparison)
    rows = [
        _row("samples/s", columns, lambda column, figures: _rate(figures)),
        _row("slowest to fastest run", columns, lambda column, figures: _range(figures)),
        ["speed-up", *(_speedup(column) for column in columns)],
        _row("host memory", columns, lambda column, figures: bytes_text(figures.peak_host_bytes)),
        _row("device memory", columns, lambda column, figures: _device_memory(figures)),
        _row("joules per 1,000 samples: host", columns, _host_joules),
        _row("of which main memory", columns, _memory_joules),
        _row("joules per 1,000 samples: device", columns, _device_joules),
        _row("price per 1,000,000 samples", columns, _price),
    ]
    said = [row for row in rows if any(row[1:])]
    headings = [column.heading for column in columns]
    return Table(["", *headings], said, frozenset(headings))


def _columns(comparison: Comparison) -> list[_Column]:
    columns = []
    for number, profile in enumerate(comparison.profiles):
        per_hour = comparison.per_hour.get(number)
        columns.append(_Column(profile, profile.written, f"{_name(number)} as written", per_hour))
        if profile.winner is not None:
            columns.append(_Column(profile, profile.winner, f"{_name(number)} winner", per_hour))
    return columns


def _row(label: str, columns: Sequence[_Column], cell: Callable[[_Column, LoopFigures], str]) -> list[str]:
    return [label, *(UNKNOWN if c.figures is None else cell(c, c.figures) for c in columns)]


def _rate(figures: LoopFigures) -> str:
    return number_text(figures.rate) if figures.unit == SAMPLES else f"{number_text(figures.rate)} {figures.unit}/s"


def _range(figures: LoopFigures) -> str:
    return f"{number_text(figures.low)} to {number_text(figures.high)}" if figures.proven else "a single trial"


def _speedup(column: _Column) -> str:
    speedup = column.profile.speedup
    is_winner = column.figures is not None and column.figures is column.profile.winner
    return ratio_text(speedup) if speedup is not None and is_winner else ""


def _device_memory(figures: LoopFigures) -> str:
    """Nothing of a device that has no memory of its own; earlier versions wrote 0 there."""
    return bytes_text(figures.peak_device_bytes) if figures.peak_device_bytes else ""


def _joules(per_sample: float | None) -> str:
    return UNKNOWN if per_sample is None else number_text(1000 * per_sample)


def _host_joules(column: _Column, figures: LoopFigures) -> str:
    return _joules(figures.energy.host_joules_per_sample)


def _memory_joules(column: _Column, figures: LoopFigures) -> str:
    """Nothing where the host's aren't known."""
    if figures.energy.host_joules_per_sample is None:
        return ""
    return "not counted" if figures.meters_memory is False else _joules(figures.energy.memory_joules_per_sample)


def _device_joules(column: _Column, figures: LoopFigures) -> str:
    """Nothing of a device that is the host."""
    is_told = figures.energy.device_joules_per_sample is not None or DEVICE in (column.profile.energy_unknown or ())
    return _joules(figures.energy.device_joules_per_sample) if is_told else ""


def _price(column: _Column, figures: LoopFigures) -> str:
    if column.per_hour is None:
        return ""
    price = price_per_million(figures, column.per_hour)
    return UNKNOWN if price is None else number_text(price.ratio)


def conclusions(comparison: Comparison, unpriced: Mapping[int, str]) -> list[str]:
    """What follows, and what can't be compared and why. ``unpriced`` says of a profile why it has no price."""
    profiles = comparison.profiles
    lines = ["there is one profile, and nothing to compare it with"] if len(profiles) == 1 else []
    doubts = _doubts(comparison).items()
    lines += [f"{_name(n)} isn't ranked: {_why_unranked(profiles[n], doubt)}" for n, doubt in doubts]
    for group in comparison.groups[1:]:
        one, other = (shown_for(profiles, numbers) for numbers in (comparison.groups[0], group))
        found = obstacles(differences(profiles[one], profiles[other]))
        names = _names(group)
        lines.append(
            f"{names} {'is' if len(group) == 1 else 'are'} not comparable with {_name(one)}:"
            f" {'; '.join(_difference(change) for change in found)}"
        )
    for group, rates, prices in zip(comparison.groups, comparison.rates, comparison.prices, strict=True):
        lines += _software(comparison, group)
        lines += _ordered(rates, "is faster than", "its slowest run is faster than the fastest there", "speed")
        lines += _ordered(prices, "is cheaper than", "a sample costs less even at its slowest run", "price")
    for number, profile in enumerate(profiles):
        reasons = profile.energy_unknown
        if reasons is None:
            lines.append(f"{_name(number)} energy: an earlier version of autotune read none")
        lines += [f"{_name(number)} energy of the {part}: {why}" for part, why in (reasons or {}).items()]
    lines += _with_and_without_memory(profiles)
    return [*lines, *(f"{_name(number)} has no price: {why}" for number, why in unpriced.items())]


def _with_and_without_memory(profiles: Sequence[OnDevice]) -> list[str]:
    """Joules of hosts of which some count main memory and others don't, or nobody knows: no ratio follows from them."""
    applied = {number: profile.applied for number, profile in enumerate(profiles)}
    known = {n: of for n, of in applied.items() if of is not None and of.energy.host_joules_per_sample is not None}
    groups = [
        (text, tuple(number for number, of in known.items() if of.meters_memory is is_in))
        for is_in, text in _METERED.items()
    ]
    told = [text.format(_names(numbers)) for text, numbers in groups if numbers]
    return [f"joules of the host can't be held against each other: {'; '.join(told)}"] if len(told) > 1 else []


def _doubts(comparison: Comparison) -> dict[int, Doubt]:
    found = {number: doubt_of(profile) for number, profile in enumerate(comparison.profiles)}
    return {number: doubt for number, doubt in found.items() if doubt is not None}


def _names(numbers: tuple[int, ...]) -> str:
    names = [_name(number) for number in numbers]
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _difference(change: Change) -> str:
    """What differs, as a phrase; ``now`` is the later profile's."""
    if change.part is ProvenPart.SCRIPT:
        return f"another script ({_hash(change.now)}, there {_hash(change.before)})"
    if change.part is ProvenPart.MODULE:
        return _module(change)
    if change.part is ProvenPart.ARGUMENTS:
        return f"other arguments ({change.now}, there {change.before})"
    if change.part is ProvenPart.OBJECTIVE:
        return f"another objective ({change.now or UNKNOWN}, there {change.before or UNKNOWN})"
    if change.part is ProvenPart.UNIT:
        return f"{change.now} are counted, there {change.before}"
    return f"samples per step otherwise (--effective-batch {change.now}, there {change.before})"


def _module(change: Change) -> str:
    if change.before and change.now:
        return f"another {change.name}, which the script imports"
    where = "there only" if change.before else "here only" if change.now else "on neither side"
    return f"what {change.name} held, which the script imports, was noted {where}"


def _hash(sha256: str) -> str:
    return f"SHA-256 {sha256[:_HASH_SHOWN]}" if sha256 else UNKNOWN


def _software(comparison: Comparison, group: tuple[int, ...]) -> list[str]:
    """Other versions or ranks than the first of the group has: they belong to what is compared, and should be known."""
    lines = []
    first = comparison.profiles[group[0]]
    for number in group[1:]:
        there = comparison.profiles[number].ranks
        if there != first.ranks:
            lines.append(
                f"{_name(number)} trained in {count_text(there, 'rank')} and {_name(group[0])} in {first.ranks}: a step"
                " takes another number of samples there, unless the script divides its batch among the ranks"
            )
        changes = [
            change for change in differences(comparison.profiles[group[0]], comparison.profiles[number])
            if change.part is ProvenPart.SOFTWARE and change.name not in HARDLY_MATTERS
        ]  # fmt: skip
        if changes:
            versions = ", ".join(f"{change.name} {change.now} (there {change.before})" for change in changes)
            lines.append(f"{_name(number)} ran with other software than {_name(group[0])}: {versions}")
    return lines


def _ordered(order: Order, verb: str, why: str, figure: str) -> list[str]:
    """A line for each that is ahead of others, and one for each pair of which nobody knows."""
    ahead: dict[int, list[int]] = {}
    for better, worse in order.ahead:
        ahead.setdefault(better, []).append(worse)
    lines = [f"{_name(better)} {verb} {_names(tuple(worse))}: {why}" for better, worse in ahead.items()]
    return lines + [
        f"{_name(one)} and {_name(other)} can't be told apart by {figure}: their runs overlap"
        for one, other in order.undecided
    ]
