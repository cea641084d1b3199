"""The model's values as JSON and back, exactly: what is stored raw must be read raw.

JSON has no NaN and no infinity: they travel as ``{"$float": "nan"}``. A mapping with keys of that look travels
as ``{"$items": [[key, value], …]}``. Decoders raise ``ValueError`` saying what was wrong.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from tuner.knowledge import as_document, read
from tuner.model import (
    Block,
    CardUse,
    Config,
    Energy,
    Evidence,
    FirstGradient,
    KnobReport,
    LossSeries,
    Measurement,
    Outcome,
    OutcomeKind,
    Ratio,
    Reference,
    Rotated,
    WeightChange,
)

_PLAIN_FIELDS = (
    "rate", "low", "high", "steps_per_s", "unit", "data_wait_share", "peak_host_bytes",
    "peak_device_bytes", "first_step_s", "compile_s", "steady", "cpu_s_per_sample", "foreign_cpus",
)  # fmt: skip


def dumps(value: Any) -> str:
    """Any value of the model's kind as ASCII JSON: nothing in it can offend a database's encoding."""
    return json.dumps(plain(value), allow_nan=False, separators=(",", ":"))


def loads(text: str | bytes) -> Any:
    """The inverse of ``dumps``; tuples come back as lists. Raises ``ValueError`` for what ``dumps`` didn't write."""
    try:
        return restored(json.loads(text))
    except (TypeError, RecursionError) as error:
        raise ValueError(f"not written by autotune: {type(error).__name__}: {error}") from error


def plain(value: Any) -> Any:
    """The value in JSON's own types. Numbers of foreign types and unknown objects become text."""
    if value is None or isinstance(value, (bool, str)):
        return str(value) if type(value) not in (bool, str, type(None)) else value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {"$float": str(float(value))}
    if isinstance(value, Mapping):
        items = [(str(k), plain(v)) for k, v in value.items()]
        if any(k.startswith("$") for k, _ in items):
            return {"$items": [[k, v] for k, v in items]}
        return dict(items)
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    if isinstance(value, (set, frozenset)):
        return [plain(v) for v in sorted(value, key=str)]
    return str(value)


def restored(value: Any) -> Any:
    """The inverse of ``plain``."""
    if isinstance(value, list):
        return [restored(v) for v in value]
    if not isinstance(value, dict):
        return value
    if set(value) == {"$float"}:
        return float(value["$float"])
    if set(value) == {"$items"}:
        return {k: restored(v) for k, v in value["$items"]}
    return {k: restored(v) for k, v in value.items()}


def encode_config(config: Config) -> str:
    """A config as JSON, with its knobs in order."""
    return dumps({name: config[name] for name in sorted(config)})


def decode_config(text: str | bytes) -> Config:
    """The inverse of ``encode_config``."""
    value = loads(text)
    if not isinstance(value, dict) or not all(isinstance(v, (bool, int, float, str)) for v in value.values()):
        raise ValueError(f"not a config: {text!r:.80}")
    return Config(value)


def encode_outcome(outcome: Outcome) -> str:
    """An outcome as JSON, raw blocks included."""
    measurement = outcome.measurement
    return dumps(
        {
            "kind": outcome.kind.value,
            "reason": outcome.reason,
            "detail": outcome.detail,
            "traceback_text": outcome.traceback_text,
            "measurement": None if measurement is None else measurement_fields(measurement),
            "facts": as_document(outcome.knowledge),
            "seconds": outcome.seconds,
            "with_ours": outcome.with_ours,
            **({"rotation": [_rotated_fields(each) for each in outcome.rotation]} if outcome.rotation else {}),
            **({"again_after": outcome.again_after} if outcome.again_after else {}),
            **({"rank": outcome.rank} if outcome.rank is not None else {}),
            **({"over_limit": outcome.over_limit} if outcome.over_limit is not None else {}),
        }
    )


def decode_outcome(text: str | bytes) -> Outcome:
    """The inverse of ``encode_outcome``. Raises ``ValueError`` for anything torn or foreign."""
    try:
        fields = loads(text)
        measurement = fields["measurement"]
        return Outcome(
            kind=OutcomeKind(fields["kind"]),
            reason=str(fields["reason"]),
            detail=str(fields["detail"]),
            traceback_text=str(fields["traceback_text"]),
            measurement=None if measurement is None else measurement_of_fields(measurement),
            knowledge=read(fields["facts"], "facts"),
            seconds=fields["seconds"],
            with_ours=str(fields.get("with_ours", "")),  # earlier versions stored none
            rotation=tuple(map(_rotated_of, fields.get("rotation", ()))),
            again_after=str(fields.get("again_after", "")),
            rank=fields.get("rank"),
            over_limit=fields.get("over_limit"),
        )
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"not an outcome: {type(error).__name__}: {error}") from error


def measurement_fields(measurement: Measurement) -> dict[str, Any]:
    """A measurement as a mapping; blocks and losses as rows."""
    return {
        **{name: getattr(measurement, name) for name in _PLAIN_FIELDS},
        "blocks": [[b.samples, b.steps, b.seconds, b.wait_s] for b in measurement.blocks],
        "losses": [
            {"site": series.site, "objective": series.objective, "points": series.points}
            for series in measurement.losses
        ],
        "knobs": [knob_fields(report) for report in measurement.knobs],
        "metrics": dict(measurement.metrics),
        "notes": list(measurement.notes),
        "stolen_cpus": measurement.stolen_cpus,
        "card": None if measurement.card is None else asdict(measurement.card),
        "scaled_steps": measurement.scaled_steps,
        "skipped_steps": measurement.skipped_steps,
        "gradient": None if measurement.gradient is None else asdict(measurement.gradient),
        "weights": [asdict(change) for change in measurement.weights],
        "first_metrics": dict(measurement.first_metrics),
        "compile_cache": measurement.compile_cache,
        "tokens_per_s": measurement.tokens_per_s,
        "queue_share": measurement.queue_share,
        "validation_share": measurement.validation_share,
        "turns": measurement.turns,
        "warmup_extra_s": measurement.warmup_extra_s,
        "spared_s": measurement.spared_s,
        "reference": None if measurement.reference is None else asdict(measurement.reference),
        "energy": asdict(measurement.energy),
        "wanted_cpus": measurement.wanted_cpus,
    }


def measurement_of_fields(fields: Mapping[str, Any]) -> Measurement:
    """The inverse of ``measurement_fields``."""
    return Measurement(
        **{name: fields[name] for name in _PLAIN_FIELDS if name != "rate"},
        rate=fields["rate"] if "rate" in fields else fields["samples_per_s"],  # its name until schema 3
        blocks=tuple(Block(*row) for row in fields["blocks"]),
        losses=_losses_of(fields["losses"]),
        knobs=tuple(_knob_of(report) for report in fields["knobs"]),
        metrics=dict(fields["metrics"]),
        notes=tuple(fields["notes"]),
        # Earlier versions stored none of these.
        stolen_cpus=fields.get("stolen_cpus", 0.0),
        card=None if fields.get("card") is None else CardUse(**fields["card"]),
        scaled_steps=fields.get("scaled_steps", 0),
        skipped_steps=fields.get("skipped_steps", 0),
        gradient=None if fields.get("gradient") is None else _gradient_of(fields["gradient"]),
        weights=tuple(map(_weights_of, fields.get("weights", ()))),
        first_metrics=dict(fields.get("first_metrics", {})),
        compile_cache=str(fields.get("compile_cache", "")),
        tokens_per_s=fields.get("tokens_per_s"),
        queue_share=fields.get("queue_share", 0.0),
        validation_share=fields.get("validation_share"),
        turns=fields.get("turns", 0),
        warmup_extra_s=fields.get("warmup_extra_s"),
        spared_s=fields.get("spared_s"),
        reference=_reference_of(fields.get("reference")),
        energy=Energy(**fields.get("energy", {})),
        wanted_cpus=fields.get("wanted_cpus"),
    )


def _losses_of(stored: Sequence[Any]) -> tuple[LossSeries, ...]:
    """The series of losses; earlier versions stored the rows of one, without its place."""
    rows = [row for row in stored if not isinstance(row, Mapping)]
    series = [LossSeries("", "", tuple((at, loss) for at, loss in rows))] if rows else []
    named = [row for row in stored if isinstance(row, Mapping)]
    series += [LossSeries(s["site"], s["objective"], tuple((at, loss) for at, loss in s["points"])) for s in named]
    return tuple(series)


def _reference_of(fields: Mapping[str, Any] | None) -> Reference | None:
    return None if fields is None else Reference(**{**fields, "gain": Ratio(**fields["gain"])})


def _rotated_fields(rotated: Rotated) -> dict[str, Any]:
    return {
        "config": dict(rotated.config), "gain": None if rotated.gain is None else asdict(rotated.gain),
        "pairs": rotated.pairs, "fault": rotated.fault, "without_wait": rotated.without_wait,
    }  # fmt: skip


def _rotated_of(fields: Mapping[str, Any]) -> Rotated:
    gain = fields["gain"]
    return Rotated(
        Config(fields["config"]), None if gain is None else Ratio(**gain), int(fields["pairs"]), str(fields["fault"]),
        # Versions that didn't keep it measured so where batches are made beside the loop: nobody knows where that was.
        bool(fields.get("without_wait", True)),
    )  # fmt: skip


def _gradient_of(fields: Mapping[str, Any]) -> FirstGradient:
    return FirstGradient(**{**fields, "inputs": tuple((elements, total) for elements, total in fields["inputs"])})


def _weights_of(fields: Mapping[str, Any]) -> WeightChange:
    return WeightChange(**{**fields, "changes": tuple(map(tuple, fields.get("changes", ())))})


def knob_fields(report: KnobReport) -> dict[str, Any]:
    """A knob's report as a mapping."""
    return {
        "knob": report.knob,
        "requested": report.requested,
        "sites_seen": report.sites_seen,
        "sites_changed": report.sites_changed,
        "evidence": report.evidence.value,
        "reason": report.reason,
        "observed": report.observed,
        "of_value": report.of_value,
    }


def _knob_of(fields: Mapping[str, Any]) -> KnobReport:
    return KnobReport(**{**fields, "evidence": Evidence(fields["evidence"])})
