"""Stored figures are held against the raw records they came from."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from tuner.analysis.measurement import measurement_of
from tuner.model import BASELINE, Outcome, OutcomeKind, Phase, Trial
from tuner.storage.audit import disagreements
from tuner.storage.records import read_records, read_resources


def stored_trial(folder: Path) -> Trial:
    """A trial with raw records of twelve blocks."""
    raw = folder / "trials" / "0000"
    raw.mkdir(parents=True)
    records = [{"v": 1, "t": 0.0, "kind": "facts", "unit": "samples"}]
    records += [
        {"v": 1, "t": 1.0 + n, "kind": "block", "phase": "window", "steps": 4, "samples": 64.0 + n, "seconds": 1.0,
         "wait_s": 0.1, "flagged": False}
        for n in range(12)
    ]  # fmt: skip
    records.append({"v": 1, "t": 14.0, "kind": "window", "complete": True, "why": ""})
    (raw / "records.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    card = {"celsius": 61, "reasons": 4, "tells_shares": True, "processes": [[7, 100, 12.5, True]]}
    samples = [
        {"t": float(t), "rss": 1000, "pss": 800, "cpu_s": t * 1.5, "busy_s": t * 1.6, "steal_s": t * 0.05,
         "card": {"sm_mhz": 1700 + t, **card}}
        for t in range(14)
    ]  # fmt: skip
    (raw / "resources.jsonl").write_text("".join(json.dumps(sample) + "\n" for sample in samples))
    measurement = measurement_of(read_records(raw / "records.jsonl"), read_resources(raw / "resources.jsonl"))
    assert measurement is not None
    return Trial(0, Phase.BASELINE, BASELINE, "", Outcome(OutcomeKind.COMPLETE, measurement=measurement))


def test_figures_follow_from_the_records(tmp_path: Path) -> None:
    assert disagreements(tmp_path, [stored_trial(tmp_path)]) == []


def test_a_changed_figure_is_found(tmp_path: Path) -> None:
    trial = stored_trial(tmp_path)
    assert trial.outcome is not None and trial.outcome.measurement is not None
    assert trial.outcome.measurement.card is not None
    cooler = replace(trial.outcome.measurement.card, hottest_celsius=40.0)
    changed = replace(trial.outcome.measurement, rate=1e6, stolen_cpus=0.0, card=cooler)
    lines = disagreements(tmp_path, [replace(trial, outcome=replace(trial.outcome, measurement=changed))])
    assert [line.split()[2] for line in lines] == ["rate", "stolen_cpus", "card"]
    assert "rate is 1000000.0" in lines[0]


def test_changed_and_missing_records_are_found(tmp_path: Path) -> None:
    trial = stored_trial(tmp_path)
    records = tmp_path / "trials" / "0000" / "records.jsonl"
    records.write_text(records.read_text().replace('"samples": 70.0', '"samples": 700.0'))
    assert any("rate" in line for line in disagreements(tmp_path, [trial]))
    records.unlink()
    assert "records" in disagreements(tmp_path, [trial])[0]
