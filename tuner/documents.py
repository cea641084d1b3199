"""Values as JSON for programs: the same keys and units in best.json and in whatever ``--json`` prints.

Seconds, bytes, rates per second. What isn't known, or isn't a finite number, is null.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, fields
from itertools import combinations
from typing import Any

from tuner.analysis.accuracy import Screened
from tuner.analysis.fleet import Comparison, LoopFigures, OnDevice, differences, doubt_of, price_per_million
from tuner.analysis.learning import time_to_loss
from tuner.masking import masked
from tuner.model import KnobReport, Measurement, TierBest, Winner

_RAW = frozenset({"blocks", "losses", "gradient", "weights", "first_metrics", "notes"})
"""Readings and what else lies in the trial's own folder; every other field of a measurement is shown."""
_SAMPLES = "samples"


def plain(value: Any) -> Any:
    """The value in JSON's own types; what isn't a finite number becomes null."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {str(name): plain(entry) for name, entry in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(entry) for entry in value]
    return value


def text(document: Any) -> str:
    """JSON with an entry a line, but for a list of numbers, which is on one. Objects of other types become text.

    Raises ``ValueError`` for what isn't a finite number: see ``plain``.
    """
    whole = json.loads(json.dumps(document, allow_nan=False, default=str))
    return "".join(_pieces(whole, "\n"))


def _pieces(value: Any, line: str) -> Iterator[str]:
    """``line`` is what begins a line of those that the value lies among."""
    if not isinstance(value, (dict, list)) or not value or _is_of_numbers(value):
        yield json.dumps(value)
        return
    begin, end = "{}" if isinstance(value, dict) else "[]"
    entries = value.items() if isinstance(value, dict) else ((None, entry) for entry in value)
    before = begin
    for name, entry in entries:
        yield f"{before}{line}  " + (f"{json.dumps(name)}: " if name is not None else "")
        yield from _pieces(entry, f"{line}  ")
        before = ","
    yield f"{line}{end}"


def _is_of_numbers(value: Any) -> bool:
    if isinstance(value, list):
        return all(_is_of_numbers(entry) for entry in value)
    return type(value) in (int, float)


def rate_document(measurement: Measurement) -> dict[str, Any]:
    """``rate`` and the ends of its interval, ``low`` and ``high``, in ``unit`` per second, and what that comes to.

    ``samples_per_s`` is null where the unit is steps, since samples couldn't be counted then.
    """
    in_samples = measurement.unit == _SAMPLES
    return {
        "rate": plain(measurement.rate), "low": plain(measurement.low), "high": plain(measurement.high),
        "unit": measurement.unit, "samples_per_s": plain(measurement.rate) if in_samples else None,
        "steps_per_s": plain(measurement.steps_per_s),
    }  # fmt: skip


def measurement_document(measurement: Measurement) -> dict[str, Any]:
    """Every figure of a measurement: its rate first, then the other fields in the order of the class."""
    document = rate_document(measurement)
    for field in fields(measurement):
        if field.name not in document and field.name not in _RAW:
            document[field.name] = plain(getattr(measurement, field.name))
    if measurement.unit != _SAMPLES:
        document["cpu_s_per_sample"] = None
    for name, record in (
        ("card", measurement.card), ("reference", measurement.reference), ("energy", measurement.energy),
    ):  # fmt: skip
        document[name] = plain(asdict(record)) if record is not None else None
    document["knobs"] = [knob_document(report) for report in measurement.knobs]
    return document


def knob_document(report: KnobReport) -> dict[str, Any]:
    """What was observed of one knob, without what only a search has a use for."""
    document = {**plain(asdict(report)), "evidence": str(report.evidence)}
    return {name: value for name, value in document.items() if name != "of_value"}


def screen_document(screen: Screened, winners: Iterable[Winner]) -> dict[str, Any]:
    """What a screen showed; how much sooner a loss is reached where ``winners`` say how fast the config is."""
    efficiency = screen.efficiency
    speedup = next((winner.speedup for winner in winners if winner.config == screen.config), None)
    sooner = time_to_loss(speedup, efficiency) if speedup is not None and efficiency is not None else None
    checks = [{**asdict(check), "kind": str(check.kind), "verdict": str(check.verdict)} for check in screen.checks]
    checks = [{name: value for name, value in check.items() if name != "is_sure"} for check in checks]
    return {
        "verdict": str(screen.verdict), "by_time": screen.by_time, "seeds": screen.seeds, "samples": screen.samples,
        "unit": screen.unit,
        "sample_efficiency": plain(asdict(efficiency)) if efficiency is not None else None,
        "time_to_loss": plain(asdict(sooner)) if sooner is not None else None,
        "reason": screen.reason, "would_decide": screen.would_decide, "lacked_time": screen.lacked_time,
        "checks": plain(checks),
    }  # fmt: skip


def tier_document(best: TierBest) -> dict[str, Any]:
    """The best config of a tier."""
    return {
        "tier": best.tier, "config": dict(best.config), "single_trial_gain": best.gain,
        "speedup": plain(asdict(best.speedup)) if best.speedup is not None else None, "proven": best.proven,
        "accuracy": best.learned,
    }  # fmt: skip


def depth(document: Any) -> int:
    """How many lists and objects lie within each other, at most."""
    depth, level = 0, [document]
    while level := [one for one in level if isinstance(one, (dict, list))]:
        depth += 1
        level = [inner for one in level for inner in (one.values() if isinstance(one, dict) else one)]
    return depth


def comparison_document(comparison: Comparison) -> dict[str, Any]:
    """Devices side by side. Profiles are numbered from 1, as people see them; who is ahead stands first in its pair."""
    numbered = range(len(comparison.profiles))
    groups = list(zip(comparison.groups, comparison.rates, comparison.prices, strict=True))
    return {
        "profiles": [_on_device_document(comparison, number) for number in numbered],
        "groups": [
            {
                "profiles": _from_1(group),
                "faster": [_from_1(pair) for pair in rates.ahead],
                "speed_undecided": [_from_1(pair) for pair in rates.undecided],
                "cheaper": [_from_1(pair) for pair in prices.ahead],
                "price_undecided": [_from_1(pair) for pair in prices.undecided],
            }
            for group, rates, prices in groups
        ],
        "differences": [
            {"of": other + 1, "to": one + 1, **asdict(change), "part": str(change.part)}
            for one, other in combinations(numbered, 2)
            for change in differences(comparison.profiles[one], comparison.profiles[other])
        ],
    }


def _from_1(numbers: Iterable[int]) -> list[int]:
    return [number + 1 for number in numbers]


def _on_device_document(comparison: Comparison, number: int) -> dict[str, Any]:
    profile, per_hour = comparison.profiles[number], comparison.per_hour.get(number)
    circumstances, doubt = profile.circumstances, doubt_of(profile)
    return {
        "number": number + 1, "file": profile.place, "device": asdict(profile.device), "shown": profile.shown,
        "cores": circumstances.cores, "ranks": profile.ranks, "devices": profile.devices,
        "script": {**asdict(circumstances.script), "argv": list(masked(circumstances.script.argv))},
        "environment": dict(circumstances.software), "objective": profile.objective, "edited": profile.edited,
        "config": dict(profile.config), "cannot_tell": profile.cannot_tell, "tier3": _tier3_document(profile),
        "speedup": asdict(profile.speedup) if profile.speedup is not None else None,
        "runs": profile.runs, "unranked": str(doubt) if doubt is not None else None, "price_per_hour": per_hour,
        "baseline": _loop_document(profile.written, per_hour), "winner": _loop_document(profile.winner, per_hour),
        "energy_unknown": dict(profile.energy_unknown) if profile.energy_unknown is not None else None,
    }  # fmt: skip


def _tier3_document(profile: OnDevice) -> dict[str, Any] | None:
    if not profile.larger:
        return None
    sooner = profile.sooner
    return {"config": dict(profile.larger), "time_to_loss": asdict(sooner) if sooner is not None else None}


def _loop_document(figures: LoopFigures | None, per_hour: float | None) -> dict[str, Any] | None:
    if figures is None:
        return None
    price = price_per_million(figures, per_hour) if per_hour is not None else None
    priced = {**asdict(figures), "price_per_million_samples": asdict(price) if price is not None else None}
    return {name: plain(value) for name, value in priced.items()}
