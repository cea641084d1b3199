"""Derives a trial's measurement from its raw records, whenever it is read: nothing derived is stored."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tuner.analysis.resources import ResourceSample, card_use, cpu_use, peak_host_bytes
from tuner.analysis.stats import is_steady, rate_interval
from tuner.model import Block, Evidence, FirstGradient, KnobReport, Measurement

MIN_BLOCKS = 3
# Of a script that ended during its warm-up, the first part is left out: start-up effects are largest there.
_EARLY_SHARE = 0.2

Record = Mapping[str, Any]


def measurement_of(records: Sequence[Record], samples: Sequence[ResourceSample]) -> Measurement | None:
    """The trial's figures, or None where too few blocks were read to speak of a rate."""
    chosen, in_window = _chosen_blocks(records)
    if len(chosen) < MIN_BLOCKS:
        return None
    facts = merged_facts(records)
    counted = sum(_number(r, "samples") for r in chosen) > 0
    blocks = tuple(_block(record, counted=counted) for record in chosen)
    seconds = sum(block.seconds for block in blocks)
    if seconds <= 0 or not any(block.samples for block in blocks):
        return None
    amounts, times = [block.samples for block in blocks], [block.seconds for block in blocks]
    interval = rate_interval(amounts, times)
    began, ended = _span(chosen)
    cpus = cpu_use(samples, began, ended)
    window = _last(records, "window")
    complete = bool(window and window.get("complete"))
    scaler = facts.get("gradient_scaler") or {}
    return Measurement(
        rate=interval.estimate,
        low=interval.low,
        high=interval.high,
        steps_per_s=sum(block.steps for block in blocks) / seconds,
        unit=str(facts.get("unit") or "samples") if counted else "steps",
        blocks=blocks,
        data_wait_share=None if facts.get("wait_is_unseen") else min(1.0, sum(b.wait_s for b in blocks) / seconds),
        peak_host_bytes=peak_host_bytes(samples),
        peak_device_bytes=_peak_device_bytes(records),
        first_step_s=_number(_last(records, "first_step") or {}, "seconds"),
        compile_s=sum((_number(r, "seconds") for r in records if r["kind"] == "compile"), 0.0),
        losses=_losses(records),
        steady=complete and in_window and is_steady([a / t for a, t in zip(amounts, times, strict=True)]),
        cpu_s_per_sample=cpus.own / interval.estimate if interval.estimate > 0 else 0.0,
        foreign_cpus=cpus.foreign,
        knobs=knob_reports(records),
        metrics={str(r["name"]): _number(r, "value") for r in records if r["kind"] == "metric"},
        notes=tuple(str(r.get("text", "")) for r in records if r["kind"] == "note"),
        stolen_cpus=cpus.stolen,
        card=card_use(samples, began, ended),
        scaled_steps=int(_number(scaler, "late_steps")),
        skipped_steps=int(_number(scaler, "late_skipped")),
        gradient=_gradient(_last(records, "gradient")),
        compile_cache=_compile_cache(records),
    )


def _compile_cache(records: Iterable[Record]) -> str:
    """Whether what was compiled came out of the compiler's cache. One that counts nothing has none: that is cold."""
    compiled = [r for r in records if r["kind"] == "compile" and _number(r, "graphs") > 0]
    if not compiled:
        return ""
    hits, misses = (sum(_number(r, name) for r in compiled) for name in ("cache_hits", "cache_misses"))
    return "cold" if not hits else "mixed" if misses else "warm"


def knob_reports(records: Iterable[Record]) -> tuple[KnobReport, ...]:
    """The last report of each knob, in the order of their first."""
    reports: dict[str, KnobReport] = {}
    for record in records:
        if record["kind"] != "knob":
            continue
        try:
            evidence = Evidence(record.get("evidence", ""))
        except ValueError:
            evidence = Evidence.UNVERIFIABLE
        reports[str(record["knob"])] = KnobReport(
            knob=str(record["knob"]),
            requested=record.get("requested", ""),
            sites_seen=int(record.get("sites_seen") or 0),
            sites_changed=int(record.get("sites_changed") or 0),
            evidence=evidence,
            reason=str(record.get("reason") or ""),
            observed=record.get("observed"),
        )
    return tuple(reports.values())


def merged_facts(records: Iterable[Record]) -> dict[str, Any]:
    """Everything the child said of the script, later over earlier.

    The ``framework`` is the one that trains: several may have been imported, and a record tells of each.
    """
    facts: dict[str, Any] = {}
    for record in records:
        if record["kind"] == "facts":
            facts.update({k: v for k, v in record.items() if k not in ("v", "t", "kind")})
    return facts


def _chosen_blocks(records: Sequence[Record]) -> tuple[list[Record], bool]:
    """The blocks that count, and whether they are the window's.

    A recompilation sends the child back to its warm-up: what it took for the window before doesn't count.
    """
    blocks = [r for r in records if r["kind"] == "block" and _is_sound(r)]
    warmup_ends = max((i for i, r in enumerate(blocks) if r.get("phase") == "warmup"), default=-1)
    window = _without_validation(blocks[warmup_ends + 1 :])
    if len(window) >= MIN_BLOCKS:
        return window, True
    early = _without_validation(blocks)
    return early[max(1, round(len(early) * _EARLY_SHARE)) :], False


def _is_sound(record: Record) -> bool:
    """Whether a block's figures can be figures: a script of the user's own may write to any descriptor."""
    seconds, samples, steps = (_number(record, name) for name in ("seconds", "samples", "steps"))
    return 0 < seconds < math.inf and 0 <= samples < math.inf and 0 <= steps < math.inf


def _without_validation(blocks: Sequence[Record]) -> list[Record]:
    """Flagged blocks hold validation. Where they are the majority the script trains so, and all count."""
    plain = [r for r in blocks if not r.get("flagged")]
    return plain if 2 * len(plain) > len(blocks) else list(blocks)


def _block(record: Record, *, counted: bool) -> Block:
    steps = int(_number(record, "steps"))
    samples = _number(record, "samples") if counted else float(steps)
    return Block(samples, steps, _number(record, "seconds"), _number(record, "wait_s"))


def _span(blocks: Sequence[Record]) -> tuple[float, float]:
    return _number(blocks[0], "t") - _number(blocks[0], "seconds"), _number(blocks[-1], "t")


def _peak_device_bytes(records: Iterable[Record]) -> int:
    """Reserved by the framework plus what the driver and its libraries hold beside it."""
    return int(
        max(
            (_number(r, "reserved") + _number(r, "overhead") for r in records if r["kind"] == "memory"),
            default=0.0,
        )
    )


def _losses(records: Iterable[Record]) -> tuple[tuple[float, float], ...]:
    return tuple((_number(r, "samples"), _number(r, "value")) for r in records if r["kind"] == "loss")


def _gradient(record: Record | None) -> FirstGradient | None:
    if record is None:
        return None
    inputs = tuple((float(elements), float(total)) for elements, total in record.get("inputs") or ())
    exact, drawn = bool(record.get("exact")), bool(record.get("random"))
    return FirstGradient(_number(record, "norm"), _number(record, "samples"), exact, drawn, inputs)


def _last(records: Iterable[Record], kind: str) -> Record | None:
    found = None
    for record in records:
        if record["kind"] == kind:
            found = record
    return found


def _number(record: Record, name: str) -> float:
    """A number of a record; 0 where it is absent. NaN and infinity travel as strings."""
    value = record.get(name)
    try:
        return 0.0 if value is None else float(value)
    except (TypeError, ValueError):
        return 0.0
