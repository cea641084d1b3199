"""``autotune trials``: what a study tried, and what came of it."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tuner.analysis.bottleneck import bottleneck_of
from tuner.analysis.contention import MOVED, throttle_text
from tuner.analysis.gain import Yardstick
from tuner.analysis.waterfall import waterfall
from tuner.cli.tables import Subparsers, show, table
from tuner.cli.waterfall import show_waterfall
from tuner.errors import ExitCode, StorageError, UsageError
from tuner.formatting import (
    AS_WRITTEN,
    bottleneck_text,
    bytes_text,
    count_text,
    gain_text,
    remarks_of,
    run_text,
    seconds_text,
    share_text,
    shift_text,
)
from tuner.model import CardUse, Measurement, Phase, Trial
from tuner.objective import Objective
from tuner.progress.state import result_text
from tuner.storage.audit import disagreements
from tuner.storage.studies import StoredStudy, open_study

RATE = Objective("throughput", "samples/s", True, lambda measurement: measurement.rate)


def add_parser(verbs: Subparsers) -> None:
    """Declares the verb."""
    parser = verbs.add_parser(
        "trials", help="list the trials of a study",
        usage="autotune trials [DIR] [--json | --check] [--waterfall [--svg FILE]]",
        description="Lists the trials of the study in DIR. Without DIR, the study in the current folder, or the only"
        " one below it.",
    )  # fmt: skip
    parser.add_argument("dir", nargs="?", metavar="DIR", help="the study's folder")
    parser.add_argument("--json", action="store_true", help="print JSON, with what was observed of every knob")
    parser.add_argument("--check", action="store_true", help="derive every figure from the raw records again")
    parser.add_argument(
        "--waterfall", action="store_true",
        help="show what each turn brought, from the script as written to the fastest trial",
    )  # fmt: skip
    parser.add_argument("--svg", metavar="FILE", help="draw the waterfall into a file")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Prints the trials."""
    if arguments.svg is not None and not arguments.waterfall:
        raise UsageError("--svg draws the waterfall", hint="autotune trials --waterfall --svg FILE")
    if arguments.svg is not None and not Path(arguments.svg).parent.is_dir():
        raise UsageError(f"--svg {arguments.svg}: there is no folder {Path(arguments.svg).parent}")
    stored = open_study(arguments.dir)
    if arguments.check:
        return check(stored)
    yardstick = Yardstick(stored.trials, RATE)
    if arguments.waterfall:
        return show_waterfall(stored, waterfall(stored.trials, yardstick), arguments.svg, as_json=arguments.json)
    if arguments.json:
        documents = [document(t, gain(t, stored.trials), yardstick.drift(t.number)) for t in stored.trials]
        print(json.dumps(documents, indent=2))
        return ExitCode.OK
    show(table(*listed(stored.trials), right=["trial", "gain", "took"]))
    bottleneck = bottleneck_of(stored.trials)
    if bottleneck is not None:
        print(bottleneck_text(bottleneck))
    for shift in yardstick.shifts(MOVED):
        print(shift_text(shift))
    for remark in remarks_of(stored.trials):
        print(f"{AS_WRITTEN}: {remark}")
    for trial in stored.trials:
        if trial.outcome is not None and not trial.outcome.complete and trial.outcome.detail:
            print(f"trial {trial.number}: {trial.outcome.detail}")
    return ExitCode.OK


def check(stored: StoredStudy) -> int:
    """Says whether the stored figures follow from the raw records; raises ``StorageError`` where they don't."""
    different = disagreements(stored.folder, stored.trials)
    if different:
        raise StorageError(
            f"{count_text(len(different), 'figure')} of {stored.folder} can't be derived again:\n  "
            + "\n  ".join(different),
            hint="records were changed or removed since, or another version of autotune wrote them",
        )
    measured = sum(trial.outcome is not None and trial.outcome.complete for trial in stored.trials)
    print(f"all figures of {count_text(measured, 'trial')} follow from the raw records")
    return ExitCode.OK


def listed(trials: Sequence[Trial]) -> tuple[list[str], list[list[str]]]:
    """The table's columns and rows; a ~ marks a gain that is rough, since the baseline moved around the trial.

    What others took, and what the driver said of a card, have their columns where there is any of it.
    """
    yardstick = Yardstick(trials, RATE)
    columns = ["trial", "phase", "config", "result", "gain", "took", "others took", "card"]
    found = []
    for trial in trials:
        own, measurement = gain(trial, trials), _measured(trial)
        rough = "~" if yardstick.drift(trial.number) > MOVED else ""
        found.append(
            [
                str(trial.number), str(trial.phase), run_text(trial), result_text(trial),
                f"{rough}{gain_text(own)}" if own is not None else "",
                seconds_text(trial.outcome.seconds) if trial.outcome is not None else "",
                taken_text(measurement) if measurement is not None else "",
                card_text(measurement.card) if measurement is not None and measurement.card is not None else "",
            ]
        )  # fmt: skip
    shown = [i for i, name in enumerate(columns) if i < 6 or any(row[i] for row in found)]
    return [columns[i] for i in shown], [[row[i] for i in shown] for row in found]


def taken_text(measurement: Measurement) -> str:
    """How many cores were lost to others; "" for less than a twentieth of one."""
    if measurement.foreign_cpus < 0.05:
        return ""
    stolen = f" ({measurement.stolen_cpus:.1f} stolen)" if measurement.stolen_cpus >= 0.05 else ""
    return f"{measurement.foreign_cpus:.1f} cpus{stolen}"


def card_text(card: CardUse) -> str:
    """A card's clock, heat, what limited it, and who else was on it."""
    parts = [f"{card.sm_mhz:.0f} MHz"] if card.sm_mhz is not None else []
    if parts and card.lowest_sm_mhz != card.sm_mhz:
        parts[0] += f" (least {card.lowest_sm_mhz:.0f})"
    if card.hottest_celsius is not None:
        parts.append(f"{card.hottest_celsius:.0f} °C")
    if card.throttle_reasons:
        parts.append(throttle_text(card.throttle_reasons))
    if card.foreign_share:
        parts.append(f"{share_text(card.foreign_share)} used by others")
    elif card.foreign_bytes:
        parts.append(f"{bytes_text(card.foreign_bytes)} held by others")
    return ", ".join(parts)


def gain(trial: Trial, trials: Sequence[Trial]) -> float | None:
    """How many times as fast as the script as written at that time: in the finals, in the same round."""
    if trial.phase is not Phase.FINALS:
        return Yardstick(trials, RATE).gain(trial)
    same_round = (t for t in trials if t.phase is Phase.FINALS and _place(t) == _place(trial) and not t.config)
    own, reference = _measured(trial), _measured(next(same_round, None))
    return own.rate / reference.rate if own and reference and reference.rate else None


def _place(trial: Trial) -> tuple[str, int | None]:
    """Which finals a run belongs to, and which round of them."""
    return trial.why, trial.round


def _measured(trial: Trial | None) -> Measurement | None:
    if trial is None or trial.outcome is None or not trial.outcome.complete:
        return None
    return trial.outcome.measurement


def document(trial: Trial, gain: float | None, drift: float) -> dict[str, Any]:
    """A trial for programs: SI units, and no raw blocks (those are in the trial's own folder).

    ``drift`` is how far the baseline moved around the trial, as a ratio of at least 1.
    """
    outcome, measurement = trial.outcome, _measured(trial)
    told: dict[str, Any] = {
        "number": trial.number, "phase": str(trial.phase), "config": dict(trial.config), "why": trial.why,
        "round": trial.round, "seed": trial.seed, "gain": gain, "drift": drift,
        "outcome": str(outcome.kind) if outcome else None, "reason": outcome.reason if outcome else "",
        "detail": outcome.detail if outcome else "", "seconds": outcome.seconds if outcome else None,
        "remarks": list(outcome.knowledge.remarks) if outcome else [],
        "measurement": None,
    }  # fmt: skip
    if measurement is not None:
        told["measurement"] = {
            "samples_per_s": measurement.rate, "low": measurement.low, "high": measurement.high,
            "unit": measurement.unit, "data_wait_share": measurement.data_wait_share, "steady": measurement.steady,
            "peak_host_bytes": measurement.peak_host_bytes, "peak_device_bytes": measurement.peak_device_bytes,
            "first_step_s": measurement.first_step_s, "compile_s": measurement.compile_s,
            "foreign_cpus": measurement.foreign_cpus, "stolen_cpus": measurement.stolen_cpus,
            "card": asdict(measurement.card) if measurement.card is not None else None,
            "scaled_steps": measurement.scaled_steps, "skipped_steps": measurement.skipped_steps,
            "metrics": {name: v if math.isfinite(v) else None for name, v in measurement.metrics.items()},
            "compile_cache": measurement.compile_cache,
            "knobs": [
                {
                    "knob": k.knob, "requested": k.requested, "evidence": str(k.evidence), "observed": k.observed,
                    "sites_seen": k.sites_seen, "sites_changed": k.sites_changed, "reason": k.reason,
                }
                for k in measurement.knobs
            ],
        }  # fmt: skip
    return told
