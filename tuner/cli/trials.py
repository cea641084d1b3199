"""``autotune trials``: what a study tried, and what came of it."""

from __future__ import annotations

import argparse
import json
from typing import Any

from tuner.cli.stored import StoredStudy, open_study
from tuner.cli.tables import Subparsers, show, table
from tuner.errors import ExitCode
from tuner.model import Measurement, Phase, Trial
from tuner.progress.state import result_text
from tuner.wording import config_text, seconds_text


def add_parser(verbs: Subparsers) -> None:
    """Declares the verb."""
    parser = verbs.add_parser(
        "trials", help="list the trials of a study", usage="autotune trials [DIR] [--json]",
        description="Lists the trials of the study in DIR. Without DIR, the study in the current folder, or the only"
        " one below it.",
    )  # fmt: skip
    parser.add_argument("dir", nargs="?", metavar="DIR", help="the study's folder")
    parser.add_argument("--json", action="store_true", help="print JSON, with what was observed of every knob")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Prints the trials."""
    stored = open_study(arguments.dir)
    if arguments.json:
        print(json.dumps([_document(trial) for trial in stored.trials], indent=2))
        return ExitCode.OK
    columns = ["trial", "phase", "config", "result", "gain", "took"]
    show(table(columns, _rows(stored), right=["trial", "gain", "took"]))
    for trial in stored.trials:
        if trial.outcome is not None and not trial.outcome.complete and trial.outcome.detail:
            print(f"trial {trial.number}: {trial.outcome.detail}")
    return ExitCode.OK


def _rows(stored: StoredStudy) -> list[list[str]]:
    baseline = next((t for t in stored.trials if t.phase is Phase.BASELINE and t.outcome and t.outcome.complete), None)
    return [
        [
            str(trial.number), str(trial.phase), config_text(trial.config), result_text(trial), _gain(trial, baseline),
            seconds_text(trial.outcome.seconds) if trial.outcome is not None else "",
        ]
        for trial in stored.trials
    ]  # fmt: skip


def _gain(trial: Trial, baseline: Trial | None) -> str:
    own, reference = _measured(trial), _measured(baseline)
    if own is None or reference is None or not reference.samples_per_s:
        return ""
    return f"{own.samples_per_s / reference.samples_per_s:.2f}x"


def _measured(trial: Trial | None) -> Measurement | None:
    if trial is None or trial.outcome is None or not trial.outcome.complete:
        return None
    return trial.outcome.measurement


def _document(trial: Trial) -> dict[str, Any]:
    """A trial for programs: SI units, and no raw blocks (those are in the trial's own folder)."""
    outcome, measurement = trial.outcome, _measured(trial)
    document: dict[str, Any] = {
        "number": trial.number, "phase": str(trial.phase), "config": dict(trial.config), "why": trial.why,
        "outcome": str(outcome.kind) if outcome else None, "reason": outcome.reason if outcome else "",
        "detail": outcome.detail if outcome else "", "seconds": outcome.seconds if outcome else None,
        "measurement": None,
    }  # fmt: skip
    if measurement is not None:
        document["measurement"] = {
            "samples_per_s": measurement.samples_per_s, "low": measurement.low, "high": measurement.high,
            "unit": measurement.unit, "data_wait_share": measurement.data_wait_share, "steady": measurement.steady,
            "peak_host_bytes": measurement.peak_host_bytes, "peak_device_bytes": measurement.peak_device_bytes,
            "first_step_s": measurement.first_step_s, "compile_s": measurement.compile_s,
            "knobs": [
                {
                    "knob": k.knob, "requested": k.requested, "evidence": str(k.evidence), "observed": k.observed,
                    "sites_seen": k.sites_seen, "sites_changed": k.sites_changed, "reason": k.reason,
                }
                for k in measurement.knobs
            ],
        }  # fmt: skip
    return document
