"""``autotune verify``: measures the profile of this device again, and fails where it isn't true any more."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from tuner.cli.best_json import content_of, file_of
from tuner.cli.chosen_profile import changes_of, check_config, device_of, knowledge_of, script_of
from tuner.cli.options import declare_profile
from tuner.cli.planning import check_writable, make_plan, set_aside
from tuner.cli.printable import printable
from tuner.cli.quantities import seconds_of
from tuner.cli.script import warn_of_secrets
from tuner.cli.settings import Settings, gather, typed_keys
from tuner.cli.signals import stopping_on_signals
from tuner.cli.study import sampler_of
from tuner.cli.tables import console_here
from tuner.cli.trust import vouch_for_settings
from tuner.cli.verb import Subparsers
from tuner.devices.cpu import host_devices
from tuner.devices.host import usable_cores
from tuner.devices.present import kind_of
from tuner.errors import ExitCode, ObjectiveError, ProfileError, SpaceError, StorageError, UsageError
from tuner.export import PROFILE
from tuner.export import profile as profiles
from tuner.export.profile import Profile
from tuner.formatting import config_text, device_text
from tuner.knowledge import FREE, KEEP
from tuner.model import Device, Script
from tuner.objective import Objective
from tuner.progress import view_for
from tuner.report.verified import Answer, Claim, Verification, verification
from tuner.result import StudyResult
from tuner.runner.process import ProcessRunner
from tuner.space.declare import Known
from tuner.space.registry import load_spaces
from tuner.storage.folder import DATABASE, LOCK, TRIALS
from tuner.study.plan import StudyPlan
from tuner.study.run import run_study

TAKES_SCRIPT_ARGUMENTS = True
BUDGET_S = 600.0
_STATUSES = {Answer.HOLDS: ExitCode.OK, Answer.FAILS: ExitCode.NOT_VERIFIED, Answer.OPEN: ExitCode.CANNOT_TELL}
_LIMITS = ("max_loss_increase", "min_sample_efficiency", "max_metric_drop", "max_metric_rise", "screen_samples")
"""Of a profile's limits those that are called as the keys of a study.toml."""


def add_parser(verbs: Subparsers) -> None:
    """Declares the verb."""
    parser = verbs.add_parser(
        "verify", help="measure a proven config again, and fail if it isn't faster any more",
        usage="autotune verify --config best.json [SCRIPT | --module NAME] [options] [-- the script's own arguments]",
        description="Proves the config of this device again, against the script as written, within the limits of its"
        " study: for a build or a nightly job. Exit status 0: it is still proven to be faster; 9: it isn't, doesn't"
        " work or learns worse; 10: that can't be told. The arguments are those of the study unless others follow --.",
    )  # fmt: skip
    declare_profile(parser)
    parser.add_argument(
        "--min-speedup", default="1", metavar="RATIO", help="how many times as fast it has to be at least (default 1)"
    )
    parser.add_argument("--budget", metavar="TIME", help="time limit (default 10m)")
    parser.add_argument("--max-memory", metavar="SIZE", help="memory limit of the device (default the study's)")
    parser.add_argument("--trial-timeout", metavar="TIME", help="time limit for one run (default the study's)")
    parser.add_argument("--objective", metavar="NAME|FILE", help="the study's objective (default throughput)")
    parser.add_argument("--planned-samples", metavar="N", help="the study's, where it had them, or off")
    parser.add_argument("--space", metavar="NAME|FILE", help="the study's search space, where it had one of its own")
    parser.add_argument("--without", metavar="A,B", help="leave these watches out, as for a study")
    parser.add_argument(
        "--study", metavar="DIR", help="where what it measures is kept (default: only where it isn't verified)"
    )


def run(arguments: argparse.Namespace) -> int:
    """Studies nothing but the profile's config, and says whether it is still proven."""
    least, place = _ratio(arguments.min_speedup), file_of(arguments.config)
    device, cores = device_of(arguments.device), usable_cores()
    there = profiles.read(content_of(place), place)
    profile = profiles.choose(there, device, cores, place, devices=host_devices(os.environ))
    if not profile.config:
        return _as_written(place, device, least)
    if profile.ranks > cores:
        raise ProfileError(
            f"{place} was proven in {profile.ranks} ranks, and there are fewer cores here ({cores})",
            hint="verify it where each rank has one",
        )
    script = script_of(arguments, profile, place, "verify")
    knowledge_of(profile, script, place)
    settings = _settings(arguments, script, profile, place)
    vouch_for_settings(settings, trusted=arguments.trust)
    known = Known(device, cores, knowledge=profile.knowledge)
    check_config(profile, known, load_spaces(settings.space), script, place)
    plan, is_kept = make_plan(settings), bool(settings.folder)
    _check_objective(profile, plan.objective, place)
    warn_of_secrets(plan.script)
    for change in changes_of(profile, plan.script, cores, place):
        print(f"not as it was proven: {printable(change)}")
    if is_kept:
        _set_aside(plan, place)
    else:
        plan = replace(plan, folder=_temporary_folder())
    found = _found(plan, _claim(profile, least), is_kept=is_kept)
    if found is None:
        print(f"stopped before that was told; what was measured: {plan.folder}")
        return ExitCode.INTERRUPTED
    print(f"{found.answer} on {device_text(device)}: {config_text(profile.config)}\n  {printable(found.why)}")
    if found.answer is Answer.HOLDS and not is_kept:
        shutil.rmtree(plan.folder, ignore_errors=True)
    else:
        print(f"  what was measured: autotune trials {plan.folder}")
    return _STATUSES[found.answer]


def _as_written(place: str, device: Device, least: float) -> int:
    """Raises ``ProfileError`` where more is asked of the script as written than to be as fast as itself."""
    says = f"{place} says to run the script as written on {device_text(device)}"
    if least > 1:
        raise ProfileError(f"{says}: nothing in it is {least:g}x as fast", hint="leave out --min-speedup")
    print(f"nothing to verify: {printable(says)}")
    return ExitCode.OK


def _check_objective(profile: Profile, objective: Objective, place: str) -> None:
    """Raises ``ProfileError`` where the profile was proven by another one."""
    if profile.objective in ("", objective.text):
        return
    planned = f" over {objective.planned_samples} samples"
    is_planned_now = profile.objective == replace(objective, name=objective.name.removesuffix(planned)).text
    raise ProfileError(
        f"{place} was proven by {profile.objective}, and this would be {objective.text}",
        hint="it was proven without planned samples, as --planned-samples off has it" if is_planned_now
        else "give the study's --objective, or its --planned-samples",
    )  # fmt: skip


def _set_aside(plan: StudyPlan, place: str) -> None:
    """Makes way where an earlier verification lies. Raises ``StorageError``, and ``UsageError`` where anything else
    does, such as a study with its best.json: night by night it would be moved to another name.
    """
    folder = plan.folder
    check_writable(folder)
    there = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    is_earlier = DATABASE in there and PROFILE.file_name not in there and not _lies_in(folder, place)
    if there - {LOCK} and not is_earlier:
        raise UsageError(
            f"--study {folder} holds something else than an earlier verification, which would be set aside",
            hint="name a folder of its own",
        )
    set_aside(folder, plan.source)


def _lies_in(folder: Path, place: str) -> bool:
    return Path(place).resolve().is_relative_to(folder.resolve())


def _claim(profile: Profile, least: float) -> Claim:
    return Claim(profile.config, least, profile.interval, profile.in_vain, profile.devices)


def _temporary_folder() -> Path:
    """A new one. Raises ``StorageError``."""
    try:
        return Path(tempfile.mkdtemp(prefix="autotune-verify-"))
    except OSError as error:
        raise StorageError(
            f"can't make a temporary folder: {error.strerror}", hint="choose one with --study DIR"
        ) from error


def _found(plan: StudyPlan, claim: Claim, *, is_kept: bool) -> Verification | None:
    """What a study says of the claim; None where it was interrupted. Raises as ``run_study``.

    It refuses a value by what the script as written shows only: that is no wrong usage, the config can't be set here.
    """
    try:
        result = _studied(plan, is_kept=is_kept)
    except UsageError as error:
        if isinstance(error, (SpaceError, ObjectiveError)):
            raise  # that a declaration of the user's fails says nothing of the config
        return Verification(Answer.FAILS, ": ".join(filter(None, (error.message, error.hint))))
    return None if result.interrupted else verification(result, claim)


def _studied(plan: StudyPlan, *, is_kept: bool) -> StudyResult:
    """Raises as ``run_study``: a folder of ours in which nothing was run is gone then, and any other one is named."""
    stop = threading.Event()
    try:
        with view_for(console_here()) as view, stopping_on_signals(stop, view.stopping):
            return run_study(plan, ProcessRunner(), sampler_of(plan.seed), view, stop)
    except BaseException:
        if not is_kept and not any(plan.folder.glob(f"{TRIALS}/*")):
            shutil.rmtree(plan.folder, ignore_errors=True)
        elif not is_kept:
            with suppress(OSError):
                print(f"autotune: what was run: {plan.folder}", file=sys.stderr)
        raise


def _settings(arguments: argparse.Namespace, script: Script, profile: Profile, place: str) -> Settings:
    """Those of a study of the profile's config, within the limits that it was proven within."""
    named = argparse.Namespace(**vars(arguments))
    named.script, named.module = script.path or None, script.module or None
    named.script_args, named.budget = list(script.argv), None
    return replace(
        gather(named, _proven_within(profile, place)), knobs=tuple(profile.config), pinned=profile.config,
        trials=2, probe=False, budget_s=seconds_of("budget", arguments.budget) if arguments.budget else BUDGET_S,
        folder=arguments.study or "",
    )  # fmt: skip


def _proven_within(profile: Profile, place: str) -> Mapping[str, Any]:
    """Typed keys of a study.toml; what a profile of an earlier version doesn't say is as by default.

    Time and memory of a run are limited as they were: a config that takes longer to start, or more memory, was proven
    within that. Raises ``ProfileError`` for a limit that is none.
    """
    limits = profile.limits
    kind = kind_of(profile.device)
    most = limits.get("max_device_bytes" if kind.own_memory else "max_host_bytes")
    taken = {"max_memory": f"{most}B"} if most is not None and (kind.is_host or kind.own_memory) else {}
    if limits.get("trial_timeout_s") is not None:
        taken["trial_timeout"] = limits["trial_timeout_s"]
    off = {name: False if limits[name] is None else limits[name] for name in _LIMITS if name in limits}
    if off.get("screen_samples") is False:
        del off["screen_samples"]
    patterns = {"metric": limits["metric_patterns"]} if limits.get("metric_patterns") else {}
    batch = FREE if limits.get("effective_batch") == FREE else KEEP
    try:
        return typed_keys(
            {**taken, **off, **patterns, "effective_batch": batch, "ranks": profile.ranks}, f"{place}: limits: "
        )
    except UsageError as error:
        raise ProfileError(error.message, hint=error.hint or "run the study again to rewrite it") from error


def _ratio(text: str) -> float:
    """Raises ``UsageError`` for what is no ratio as from 1."""
    try:
        ratio = float(text.removesuffix("x"))
    except ValueError:
        ratio = 0.0
    if not 1 <= ratio < float("inf"):
        raise UsageError(f"--min-speedup {text}: expected a ratio, at least 1", hint="as in: --min-speedup 1.1")
    return ratio
