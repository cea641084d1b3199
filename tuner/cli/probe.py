"""``autotune probe``: what holds a script's training loop up, before anything is tuned."""

from __future__ import annotations

import argparse
import json
import sys
import threading

from tuner.analysis.bottleneck import worth_turning
from tuner.cli.options import declare_ranks, declare_script
from tuner.cli.planning import check_writable, make_plan
from tuner.cli.script import warn_of_secrets
from tuner.cli.settings import gather
from tuner.cli.signals import stopping_on_signals
from tuner.cli.trust import vouch_for_settings
from tuner.cli.verb import Subparsers
from tuner.errors import ExitCode
from tuner.formatting import rate_text
from tuner.model import Measurement, Outcome
from tuner.report.bottleneck import ProbeReport
from tuner.runner.process import ProcessRunner
from tuner.runner.request import Interrupted
from tuner.storage.folder import PROBE
from tuner.study.probe import probe

STOPPING = "stopping"


TAKES_SCRIPT_ARGUMENTS = True


def add_parser(verbs: Subparsers) -> None:
    """Declares the verb."""
    parser = verbs.add_parser(
        "probe", help="find the bottleneck of a training loop",
        usage="autotune probe [SCRIPT | --module NAME | DIR] [options] [-- the script's own arguments]",
        description="Measures the real loop, then computing alone on one kept batch, the loader alone, and computing on"
        " half a batch. Says whether the loop is input-bound, compute-bound or overhead-bound, and which knobs are"
        " worth tuning.",
    )  # fmt: skip
    declare_script(parser)
    declare_ranks(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    """Probes the script."""
    settings = gather(arguments)
    vouch_for_settings(settings, trusted=arguments.trust)
    plan = make_plan(settings)
    warn_of_secrets(plan.script)
    check_writable(plan.folder)
    stop = threading.Event()
    runs: dict[str, Measurement | None] = {}

    def finished(name: str, outcome: Outcome) -> None:
        measurement = outcome.measurement if outcome.complete else None
        runs[name] = measurement
        if not arguments.json:
            figure = rate_text(measurement.rate, measurement.unit) if measurement else None
            print(f"{name}: {figure or outcome.detail or outcome.kind}", flush=True)

    try:
        with stopping_on_signals(stop, lambda: print(STOPPING, file=sys.stderr)):
            bottleneck, space, headroom_bytes = probe(plan, ProcessRunner(), finished, stop)
    except Interrupted:
        return ExitCode.INTERRUPTED
    report = ProbeReport(
        bottleneck, runs, headroom_bytes, worth_turning(bottleneck, space), space.knowledge.remarks,
        space.left_out, str(plan.folder / PROBE),
    )  # fmt: skip
    print(json.dumps(report.document(), indent=2) if arguments.json else "\n".join(report.lines()))
    return ExitCode.OK
