"""``autotune study``: searches, proves and exports the fastest config of a script on a device."""

from __future__ import annotations

import argparse
import threading
from collections.abc import Iterable
from pathlib import Path

from tuner.cli.options import declare_ranks, declare_script
from tuner.cli.planning import check_movable, check_resumable, check_writable, described, make_plan, set_aside
from tuner.cli.printable import printable
from tuner.cli.script import warn_of_secrets
from tuner.cli.settings import gather
from tuner.cli.signals import stopping_on_signals
from tuner.cli.tables import console_here
from tuner.cli.trust import vouch_for_settings
from tuner.cli.verb import Subparsers
from tuner.errors import ExitCode, ProfileError
from tuner.export import EXPORTERS, PROFILE
from tuner.export.base import Exporter
from tuner.progress import view_for
from tuner.report.summary import summary
from tuner.result import StudyResult
from tuner.runner.process import ProcessRunner
from tuner.search.additive import AdditiveSampler
from tuner.search.chain import Chain
from tuner.search.history import Sampler
from tuner.search.larger_batches import LATE_AFTER, LargerBatchSampler
from tuner.search.structured import MOST_WALKED, StructuredSampler
from tuner.search.tpe import TpeSampler
from tuner.storage.atomic import write_durably
from tuner.storage.lock import already_running
from tuner.storage.studies import is_held
from tuner.study.plan import StudyPlan
from tuner.study.run import run_study

TAKES_SCRIPT_ARGUMENTS = True


def add_parser(verbs: Subparsers) -> None:
    """Declares the verb."""
    parser = verbs.add_parser(
        "study", help="find the fastest config of a script",
        usage="autotune study [SCRIPT | --module NAME | DIR] [options] [-- the script's own arguments]",
        description="Searches for the fastest config of a training script on one device, proves it against the script"
        " as written, and writes best.json. Run the same command again to resume. Without SCRIPT, or with a folder,"
        " the study.toml there names the script; one beside SCRIPT gives defaults, which the command line overrides.",
    )  # fmt: skip
    declare_script(parser)
    declare_ranks(parser)
    parser.add_argument(
        "--trials", metavar="N", help="trials before the finals at most, the script as written included (default 30)"
    )
    parser.add_argument("--budget", metavar="TIME", help="time limit for the study: 90s, 30m, 1h30m (default 30m)")
    parser.add_argument("--set", action="append", metavar="KNOB=VALUE", help="pin a knob; may be repeated")
    parser.add_argument("--objective", metavar="NAME|FILE", help="what to optimize (default throughput)")
    parser.add_argument("--seed", metavar="S", help="random seed of the search (default 0)")
    parser.add_argument(
        "--effective-batch", metavar="both|keep|free",
        help="samples per optimizer step: both (default) keeps them, and tries larger ones beside (tier 3); keep tries"
        " no others; free searches all alike",
    )  # fmt: skip
    parser.add_argument(
        "--max-loss-increase", metavar="SHARE",
        help="how much of the way that the training loss comes down may be lost (default 1%%), or off to compare none",
    )  # fmt: skip
    parser.add_argument(
        "--min-sample-efficiency", metavar="SHARE",
        help="as from how much of the samples a config must learn (default 90%%), or off",
    )  # fmt: skip
    parser.add_argument(
        "--max-metric-drop", action="append", metavar="NAME=SHARE",
        help="how far a higher-is-better metric may drop; may be repeated",
    )
    parser.add_argument(
        "--max-metric-rise", action="append", metavar="NAME=SHARE",
        help="how far a lower-is-better metric may rise; may be repeated",
    )  # fmt: skip
    parser.add_argument(
        "--metric", action="append", metavar="NAME=REGEX", help="read a metric from the script's output"
    )
    parser.add_argument(
        "--screen-samples", metavar="N", help="samples per run when learning is compared (default: 10 s of training)"
    )
    parser.add_argument(
        "--planned-samples", metavar="N",
        help="length of the real training: its start, compilation and slower first steps then count; or off",
    )
    parser.add_argument(
        "--no-probe", dest="probe", action="store_const", const=False, help="skip the bottleneck probe at the start"
    )
    parser.add_argument("--new", action="store_true", help="start over: the earlier study is kept under another name")
    parser.add_argument("--dry-run", action="store_true", help="print the plan, or its refusal, and create nothing")


def run(arguments: argparse.Namespace) -> int:
    """Studies the script and writes best.json. Everything that can be refused is refused before a file is made."""
    settings = gather(arguments)
    vouch_for_settings(settings, trusted=arguments.trust)
    plan = make_plan(settings)
    warn_of_secrets(plan.script)
    if arguments.dry_run:
        _check_begins(plan, anew=arguments.new)
        print("\n".join(map(printable, described(plan, settings, anew=arguments.new))))
        return ExitCode.OK
    if arguments.new:
        set_aside(plan.folder, plan.source)
    check_writable(plan.folder)
    check_targets(plan.folder, EXPORTERS)
    stop = threading.Event()
    with view_for(console_here()) as view, stopping_on_signals(stop, view.stopping):
        result = run_study(plan, ProcessRunner(), sampler_of(plan.seed), view, stop)
    _tell(result)
    if result.interrupted:
        return ExitCode.INTERRUPTED
    return ExitCode.INTERNAL if result.broke_it else ExitCode.OK


def _tell(result: StudyResult) -> None:
    """Writes the files and prints the answer: that as well where one can't be written, it took the whole budget."""
    files: dict[str, str] = {}
    try:
        files = write_files(result, EXPORTERS)
    finally:
        print(summary(result, files, files.get(PROFILE.name, "")), end="")


def _check_begins(plan: StudyPlan, *, anew: bool) -> None:
    """Raises the error that the study would before its first trial, and makes nothing."""
    check_writable(plan.folder)
    if anew:
        check_movable(plan.folder, plan.source)
        if is_held(plan.folder):
            raise already_running(plan.folder)
    else:
        check_targets(plan.folder, EXPORTERS)
        check_resumable(plan)


def sampler_of(seed: int) -> Sampler:
    """What proposes the configs of a study: larger batches early where steps cost more than their samples."""
    return Chain(
        LargerBatchSampler(early=True), StructuredSampler(MOST_WALKED), LargerBatchSampler(after=LATE_AFTER),
        AdditiveSampler(seed), TpeSampler(seed), LargerBatchSampler(),
    )


def check_targets(folder: Path, exporters: Iterable[Exporter]) -> None:
    """Raises the exporter's error for a file in the study's folder that it couldn't add to.

    Others who read such a file are told to run the study, which is what was done.
    """
    for exporter in exporters:
        path = folder / exporter.file_name
        if path.is_file():
            try:
                exporter.check(path.read_bytes(), str(path))
            except ProfileError as error:
                raise ProfileError(error.message, hint="move it away: the study writes a new one there") from error


def write_files(result: StudyResult, exporters: Iterable[Exporter]) -> dict[str, str]:
    """Writes what each exporter makes of the result; gives the files there are, name → path."""
    files = {}
    for exporter in exporters:
        path = Path(result.study.folder) / exporter.file_name
        existing = path.read_bytes() if path.is_file() else None
        content = exporter.serialize(result, existing)
        if content is None:
            continue
        if content != existing:
            write_durably(path, content)
        files[exporter.name] = str(path)
    return files
