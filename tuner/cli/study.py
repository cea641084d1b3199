"""``autotune study``: searches, proves and exports the fastest config of a script on a device."""

from __future__ import annotations

import argparse
import threading
from pathlib import Path

from rich.console import Console

from tuner.analysis.contention import MOVED
from tuner.analysis.gain import Yardstick
from tuner.cli.options import declare_script
from tuner.cli.planning import check_writable, described, make_plan, set_aside
from tuner.cli.settings import gather
from tuner.cli.signals import stopping_on_signals
from tuner.cli.tables import Subparsers
from tuner.errors import ExitCode
from tuner.export import profile as profiles
from tuner.model import Measurement, baseline_of
from tuner.progress import view_for
from tuner.report.summary import Findings, summary
from tuner.runner.process import ProcessRunner
from tuner.search.chain import Sequence
from tuner.search.structured import StructuredSampler
from tuner.search.tpe import TpeSampler
from tuner.storage.atomic import write_durably
from tuner.storage.folder import PROFILE
from tuner.study.plan import StudyPlan
from tuner.study.run import StudyResult, run_study


def add_parser(verbs: Subparsers) -> None:
    """Declares the verb."""
    parser = verbs.add_parser(
        "study", help="find the fastest config of a script",
        usage="autotune study [SCRIPT | --module NAME | DIR] [options] [-- the script's own arguments]",
        description="Searches the fastest config of a training script on one device, proves it against the script as"
        " written, and writes best.json. The same command again resumes. Without SCRIPT, or with a folder, the"
        " study.toml there says what to do; one beside SCRIPT gives defaults, which the command line overrides.",
    )  # fmt: skip
    declare_script(parser)
    parser.add_argument("--trials", metavar="N", help="configs to try before the finals at most (default 30)")
    parser.add_argument("--budget", metavar="TIME", help="time for the whole study: 90s, 30m, 1h30m (default 30m)")
    parser.add_argument("--set", action="append", metavar="KNOB=VALUE", help="pin a knob; may be repeated")
    parser.add_argument("--objective", metavar="NAME|FILE", help="what is bought (default throughput)")
    parser.add_argument("--seed", metavar="S", help="seed of the search (default 0)")
    parser.add_argument(
        "--effective-batch", metavar="keep|free", help="samples per optimizer step: keep (default), or free to search"
    )
    parser.add_argument(
        "--max-loss-increase", metavar="SHARE", help="how much worse the training loss may get (default 1%%), or off"
    )
    parser.add_argument(
        "--max-metric-drop", action="append", metavar="NAME=SHARE",
        help="how far a metric that is better when higher may drop; may be repeated",
    )
    parser.add_argument(
        "--max-metric-rise", action="append", metavar="NAME=SHARE",
        help="the same for a metric that is better when lower; may be repeated",
    )  # fmt: skip
    parser.add_argument(
        "--metric", action="append", metavar="NAME=REGEX", help="finds a metric in what the script prints"
    )
    parser.add_argument("--screen-samples", metavar="N", help="samples to compare learning on (default: 10 s of them)")
    parser.add_argument(
        "--planned-samples", metavar="N", help="length of the real training: start-up and compilation are charged to it"
    )
    parser.add_argument(
        "--no-probe", dest="probe", action="store_const", const=False, help="begin without looking for the bottleneck"
    )
    parser.add_argument("--new", action="store_true", help="begin anew: the folder's earlier study is set aside")
    parser.add_argument("--dry-run", action="store_true", help="say what would be done, and create nothing")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Studies the script and writes best.json. Everything that can be refused is refused before a file is made."""
    settings = gather(arguments)
    plan = make_plan(settings)
    if arguments.dry_run:
        print("\n".join(described(plan, settings, anew=arguments.new)))
        return ExitCode.OK
    if arguments.new:
        set_aside(plan.folder)
    check_writable(plan.folder)
    stop = threading.Event()
    with view_for(Console(soft_wrap=False)) as view, stopping_on_signals(stop, view.stopping):
        result = run_study(plan, ProcessRunner(), Sequence(StructuredSampler(), TpeSampler(plan.seed)), view, stop)
    profile = write_profile(plan, result)
    print(summary(_findings(plan, result, profile)), end="")
    return ExitCode.INTERRUPTED if result.interrupted else ExitCode.OK


def write_profile(plan: StudyPlan, result: StudyResult) -> Path | None:
    """best.json in the study's folder; None where there is nothing that it could say."""
    if result.best is None:
        return None
    path = plan.folder / PROFILE
    found = profiles.Found(
        device=plan.device, script=plan.script, winner=result.winner, best=result.best, gain=result.best_gain,
        limits={
            "max_host_bytes": plan.limits.max_host_bytes, "max_device_bytes": plan.limits.max_device_bytes,
            "trial_timeout_s": plan.limits.trial_timeout_s, "effective_batch": plan.effective_batch,
            "max_loss_increase": plan.accuracy.max_loss_increase,
            "max_metric_drop": dict(plan.accuracy.max_metric_drop),
            "max_metric_rise": dict(plan.accuracy.max_metric_rise),
        },
        environment=plan.software,
        study={
            "name": plan.name, "folder": str(plan.folder), "trials": len(result.trials), "seconds": result.seconds,
            "ended": result.why, "interrupted": result.interrupted,
        },
        tiers=result.tiers, knowledge=result.facts, screened=result.screened, bests=result.bests,
        baseline=_baseline(result),
    )  # fmt: skip
    existing = path.read_bytes() if path.is_file() else None
    profile = profiles.profile_of(found)
    if existing is None or not profiles.still_proven(existing, profile, str(path)):
        write_durably(path, profiles.merged(existing, profile, str(path)))
    return path


def _baseline(result: StudyResult) -> Measurement | None:
    baseline = baseline_of(result.trials)
    return baseline.outcome.measurement if baseline is not None and baseline.outcome is not None else None


def _findings(plan: StudyPlan, result: StudyResult, profile: Path | None) -> Findings:
    return Findings(
        script=plan.script, folder=str(plan.folder), trials=result.trials, winner=result.winner, best=result.best,
        why=result.why, seconds=result.seconds, interrupted=result.interrupted,
        left_out=result.space.left_out if result.space else {}, tiers=result.tiers, bests=result.bests,
        profile=str(profile) if profile else "", screened=result.screened, gain=result.best_gain,
        shifts=Yardstick(result.trials, plan.objective).shifts(MOVED), bottleneck=result.bottleneck,
    )  # fmt: skip
