"""``autotune record``: a trial of every config of a script's search space, kept as one file."""

from __future__ import annotations

import argparse
import os
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tuner.cli.options import declare_ranks, declare_script
from tuner.cli.planning import check_writable, make_plan
from tuner.cli.quantities import seconds_of
from tuner.cli.script import warn_of_secrets
from tuner.cli.settings import Settings, gather
from tuner.cli.signals import stopping_on_signals
from tuner.cli.trust import vouch_for_settings
from tuner.cli.verb import Subparsers
from tuner.errors import ExitCode, StorageError, UsageError
from tuner.events import Event, Noted, SpaceResolved, TrialFinished
from tuner.knowledge import typed_value
from tuner.model import Value
from tuner.report.recorded import recorded_lines, trial_line
from tuner.runner.grid_replay import GridReplay
from tuner.runner.process import ProcessRunner
from tuner.runner.request import Interrupted
from tuner.storage.grid import Grid, read_grid, write_grid
from tuner.study.plan import StudyPlan
from tuner.study.record import Recording, narrowed, record

TAKES_SCRIPT_ARGUMENTS = True
STOPPING = "stopping: what was recorded is written"


def add_parser(verbs: Subparsers) -> None:
    """Declares the verb."""
    parser = verbs.add_parser(
        "record", help="record every config of a script's search space",
        usage="autotune record [SCRIPT | --module NAME | DIR] --out FILE [options] [-- the script's own arguments]",
        description="Runs a short trial of every config of the search space, by turns with the script as written, and"
        " writes them to one file: raw readings, failures, seconds. Samplers are compared on such files. Proves"
        " nothing of any config. Run the same command again to resume.",
    )  # fmt: skip
    declare_script(parser, "./autotune-SCRIPT-DEVICE-grid")
    declare_ranks(parser)
    parser.add_argument("--out", metavar="FILE", required=True, help="the file to write, such as grid.jsonl.gz")
    parser.add_argument("--configs", metavar="N", help="so many configs, chosen at random (default all)")
    parser.add_argument(
        "--among", metavar="FILE", help="choose the fastest configs of this grid, to measure them for longer"
    )
    parser.add_argument(
        "--values", action="append", metavar="KNOB=A,B", help="a knob's values, in place of those that the search has"
    )
    parser.add_argument("--set", action="append", metavar="KNOB=VALUE", help="pin a knob; may be repeated")
    parser.add_argument("--budget", metavar="TIME", help="time limit; what is finished then is written (default none)")
    parser.add_argument("--window", metavar="TIME", help="how long each config is measured (default 1s)")
    parser.add_argument("--warmup", metavar="TIME", help="how long it trains before that (default 500ms)")
    parser.add_argument("--seed", metavar="S", help="random seed of the order and the choice of configs (default 0)")
    parser.add_argument(
        "--effective-batch", metavar="keep|free", help="samples per optimizer step: keep (default), or free to change"
    )
    parser.add_argument(
        "--no-probe", dest="probe", action="store_const", const=False, help="skip the bottleneck probe at the start"
    )


def run(arguments: argparse.Namespace) -> int:
    """Records the grid and writes it. Everything that can be refused is refused before a file is made."""
    budget, arguments.budget = arguments.budget, None
    recording = _recording(arguments, budget)
    values = _values(arguments.values or ())
    settings = gather(arguments)
    vouch_for_settings(settings, trusted=arguments.trust)
    plan = _own_folder(make_plan(settings), settings)
    plan = replace(plan, spaces=narrowed(plan.spaces, values))
    warn_of_secrets(plan.script)
    out = Path(arguments.out)
    check_writable(plan.folder)
    _check_target(out)
    stop = threading.Event()
    try:
        with stopping_on_signals(stop, lambda: print(STOPPING, flush=True)):
            grid = record(plan, recording, ProcessRunner(), show, stop)
    except Interrupted:
        return ExitCode.INTERRUPTED
    write_grid(out, grid)
    print("\n".join(summary(grid, out)))
    return ExitCode.INTERRUPTED if stop.is_set() else ExitCode.OK


def show(event: Event) -> None:
    """Prints what happened: a line a trial."""
    if isinstance(event, Noted):
        print(event.text, flush=True)
    elif isinstance(event, SpaceResolved):
        spans = " x ".join(f"{name} {len(values)}" for name, values in event.values.items())
        print(f"values: {spans or 'none'}", flush=True)
    elif isinstance(event, TrialFinished):
        print(trial_line(event.trial, event.gain), flush=True)


def summary(grid: Grid, out: Path) -> list[str]:
    """What the file holds, for people."""
    rows = [row for config, row in grid.configs.items() if config]
    ended_as = Counter(f"{row.kind}: {row.reason}" if row.reason else str(row.kind) for row in rows if not row.complete)
    replay = GridReplay(grid)
    seconds, size = sum(row.seconds for row in grid.rows), out.stat().st_size
    return recorded_lines(
        str(out), size=size, seconds=seconds, found=len(rows), wanted=grid.header.configs, ended_as=ended_as,
        best=replay.best, ranks=grid.header.ranks,
    )  # fmt: skip


def _recording(arguments: argparse.Namespace, budget: str | None) -> Recording:
    usual = Recording()
    count = arguments.configs
    if count is not None and not (count.isdecimal() and int(count) > 0):
        raise UsageError(f"--configs: {count!r} is no number of configs", hint="a whole number from 1, or leave it out")
    window_s, warmup_s = _seconds("window", arguments.window), _seconds("warmup", arguments.warmup)
    return Recording(
        configs=int(count) if count is not None else None, seconds=_seconds("budget", budget),
        window_s=usual.window_s if window_s is None else window_s,
        warmup_s=usual.warmup_s if warmup_s is None else warmup_s,
        among=read_grid(Path(arguments.among)) if arguments.among is not None else None,
    )  # fmt: skip


def _seconds(option: str, text: str | None) -> float | None:
    return seconds_of(option, text) if text is not None else None


def _values(texts: Sequence[str]) -> dict[str, tuple[Value, ...]]:
    values: dict[str, tuple[Value, ...]] = {}
    for text in texts:
        knob, _, listed = text.partition("=")
        parts = listed.split(",")
        if not knob or not all(parts):
            raise UsageError(f"--values: {text!r} is not KNOB=A,B", hint="as in: --values num_workers=0,1,2")
        values[knob] = tuple(typed_value(part) for part in parts)
    return values


def _own_folder(plan: StudyPlan, settings: Settings) -> StudyPlan:
    """The plan with a folder of its own: a study of the same script isn't to take a recording's trials for its own."""
    return plan if settings.folder else replace(plan, folder=plan.folder.with_name(f"{plan.folder.name}-grid"))


def _check_target(out: Path) -> None:
    """Raises ``StorageError`` where the file can't be written."""
    if out.is_dir():
        raise StorageError(f"{out} is a folder", hint="name a file: --out grid.jsonl.gz")
    if not out.parent.is_dir():
        raise StorageError(f"there is no folder {out.parent}", hint="make it, or choose another file with --out")
    if not os.access(out.parent, os.W_OK | os.X_OK):
        raise StorageError(f"can't write to {out.parent}", hint="choose another file with --out")
