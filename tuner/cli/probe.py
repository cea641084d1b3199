"""``autotune probe``: what holds a script's training loop up, before anything is tuned."""

from __future__ import annotations

import argparse
import json
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict

from tuner.analysis.bottleneck import Bottleneck, worth_turning
from tuner.cli.options import declare_script
from tuner.cli.planning import check_writable, make_plan
from tuner.cli.settings import gather
from tuner.cli.signals import stopping_on_signals
from tuner.cli.tables import Subparsers
from tuner.errors import ExitCode
from tuner.formatting import AS_WRITTEN, rate_text
from tuner.model import Outcome
from tuner.report.bottleneck import bottleneck_lines
from tuner.runner.process import ProcessRunner
from tuner.runner.request import Interrupted
from tuner.space.declare import ResolvedSpace
from tuner.storage.folder import PROBE
from tuner.study.probe import probe

STOPPING = "stopping"


def add_parser(verbs: Subparsers) -> None:
    """Declares the verb."""
    parser = verbs.add_parser(
        "probe", help="say what holds a training loop up",
        usage="autotune probe [SCRIPT | --module NAME | DIR] [options] [-- the script's own arguments]",
        description="Measures the real loop, then computing alone on one kept batch, the loader alone, and computing on"
        " half a batch; says whether the loop is input-bound, compute-bound or overhead-bound, and which knobs are"
        " worth turning.",
    )  # fmt: skip
    declare_script(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Probes the script."""
    plan = make_plan(gather(arguments))
    check_writable(plan.folder)
    stop = threading.Event()
    try:
        with stopping_on_signals(stop, lambda: print(STOPPING, file=sys.stderr)):
            found, space, headroom_bytes = probe(plan, ProcessRunner(), _teller(quiet=arguments.json), stop)
    except Interrupted:
        return ExitCode.INTERRUPTED
    knobs, records = worth_turning(found, space), str(plan.folder / PROBE)
    if arguments.json:
        print(json.dumps(_document(found, headroom_bytes, knobs, space, records), indent=2))
    else:
        asides = [f"{AS_WRITTEN}: {remark}" for remark in space.knowledge.remarks]
        asides += [f"left out: {knob}: {reason}" for knob, reason in space.left_out.items()]
        print("\n".join(bottleneck_lines(found, headroom_bytes, knobs, asides, records)))
    return ExitCode.OK


def _teller(*, quiet: bool) -> Callable[[str, Outcome], None]:
    def tell(name: str, outcome: Outcome) -> None:
        measured = outcome.measurement if outcome.complete else None
        text = rate_text(measured.rate, measured.unit) if measured else outcome.detail or str(outcome.kind)
        if not quiet:
            print(f"{name}: {text}", flush=True)

    return tell


def _document(
    found: Bottleneck, headroom_bytes: int | None, knobs: Sequence[str], space: ResolvedSpace, records: str
) -> dict[str, object]:
    told = {**asdict(found), "bound": str(found.bound), "headroom_bytes": headroom_bytes}
    return {**told, "knobs": list(knobs), "remarks": list(space.knowledge.remarks), "records": records}
