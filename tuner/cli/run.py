"""``autotune run``: a script with the config that a study proved for this device."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from tuner.cli.best_json import content_of, file_of
from tuner.cli.chosen_profile import changes_of, check_config, device_of, knowledge_of, script_of
from tuner.cli.options import declare_profile
from tuner.cli.printable import printable
from tuner.cli.script import ranks
from tuner.cli.verb import Subparsers
from tuner.devices.cpu import host_devices
from tuner.devices.host import usable_cores
from tuner.devices.present import AUTO, devices, kind_of
from tuner.errors import ProfileError, UsageError
from tuner.export import profile as profiles
from tuner.formatting import config_text, count_text, device_text, gain_text
from tuner.knowledge import Knowledge, hold_lines
from tuner.model import Device, Verdict
from tuner.runner.launch import exec_applied
from tuner.space.applicable import beyond_cores
from tuner.space.arguments import render
from tuner.space.declare import Known, SearchSpace
from tuner.space.registry import load_spaces

_OPTIMISATION = 3
_TIERS = {"2": 2, "3": _OPTIMISATION}
TAKES_SCRIPT_ARGUMENTS = True


def add_parser(verbs: Subparsers) -> None:
    """Declares the verb."""
    parser = verbs.add_parser(
        "run", help="run a script with the config proven for this device",
        usage="autotune run --config best.json [SCRIPT | --module NAME] [options] [-- the script's own arguments]",
        description="Runs a training to its end with the profile of this device, without edits to the script and"
        " without measuring it. The arguments are those of the study unless others follow --. Under a launcher"
        " (torchrun --no-python autotune run ...) each rank applies the profile by itself.",
    )  # fmt: skip
    declare_profile(parser)
    parser.add_argument(
        "--strict", action="store_true",
        help="refuse to run if the script or the software has changed; end, with status 7, if a knob takes no effect",
    )  # fmt: skip
    parser.add_argument(
        "--any-ranks", action="store_true", help="also apply a profile that was proven with another number of ranks"
    )
    parser.add_argument(
        "--any-devices",
        action="store_true",
        help="also apply a profile that was proven with several devices of one process to another number of them",
    )
    parser.add_argument(
        "--tier", default="2", metavar="2|3",
        help="3: the larger effective batch that was proven to reach a loss sooner, which changes the optimisation"
        " (default 2: the fastest config that keeps the effective batch)",
    )  # fmt: skip


def run(arguments: argparse.Namespace) -> int:
    """Applies the profile and becomes the script: its exit status is ours."""
    place, tier = file_of(arguments.config), _tier(arguments.tier)
    device, cores = device_of(arguments.device), usable_cores()
    there = profiles.read(content_of(place), place)
    profile = profiles.choose(there, device, cores, place, ranks=ranks(), devices=host_devices(os.environ))
    profile = profiles.of_tier_3(profile, place) if tier == _OPTIMISATION else profile
    if not arguments.any_ranks:
        _check_ranks(profile, place, tier)
        _check_hosts(profile, there, place)
    script = script_of(arguments, profile, place, "run")
    knowledge = knowledge_of(profile, script, place)
    known, spaces = Known(device, cores, knowledge=profile.knowledge), load_spaces(AUTO)
    check_config(profile, known, spaces, script, place)
    changes = changes_of(profile, script, cores, place)
    if profile.edited or profile.cores != cores or profile.ranks != ranks():
        changes += _beyond_cores(profile, replace(known, cores=max(1, cores // _ranks_here())), spaces)
    if changes and arguments.strict:
        raise ProfileError(
            f"{place} was proven under other conditions: {'; '.join(changes)}",
            hint="run the study again, or leave out --strict",
        )
    # A card that is named is shown alone; otherwise the script sees what it sees under plain Python.
    shown = arguments.device != AUTO and (kind_of(device).is_host or ":" in arguments.device)
    if os.environ.get("RANK", "0") == "0":
        doubt = "the config may no longer be the best" if profile.config else "the study's answer may no longer hold"
        lines = [f"{change}: {doubt}" for change in changes]
        lines += _remarks(profile, knowledge, device, shown=shown)
        for line in [*lines, f"{_says(profile, tier)} on {device_text(device)}"]:
            with suppress(OSError):  # a log that is full keeps no script from training
                print(f"autotune: {printable(line)}", file=sys.stderr)
    rendered = replace(script, argv=render(script.argv, knowledge.given(profile.config)))
    exec_applied(
        rendered, device, profile.config, knowledge, alone=ranks() == 1, shown=shown, strict=arguments.strict,
        any_devices=arguments.any_devices,
    )  # fmt: skip


def _beyond_cores(profile: profiles.Profile, known: Known, spaces: Sequence[SearchSpace]) -> list[str]:
    """A clause for each knob that has more threads or workers than the cores which each rank has here."""
    proven_on = None if profile.edited or profile.cores is None else profile.cores // profile.ranks
    allowed = f"{known.cores} usable cores"
    if _ranks_here() > 1:
        allowed = f"{count_text(known.cores, 'core')} that each rank may use"
    beyond = beyond_cores(profile.config, known, spaces, proven_on)
    return [f"{name} is {profile.config[name]}, more than the {allowed}" for name in beyond]


def _ranks_here() -> int:
    """How many of the ranks run on this host, and share its cores."""
    here = os.environ.get("LOCAL_WORLD_SIZE", "")
    return max(1, int(here)) if ranks() > 1 and here.isdigit() else ranks()


def _check_ranks(profile: profiles.Profile, place: str, tier: int) -> None:
    """Raises ``ProfileError`` for a profile of several ranks where there is another number of them.

    One of a single process says of itself that it is applied in each of several.
    """
    again = ["autotune", "run", "--config", place, *(["--tier", "3"] if tier == _OPTIMISATION else [])]
    if profile.ranks not in (1, ranks()):
        raise ProfileError(
            f"{place} was proven in {profile.ranks} ranks, and this is one of {ranks()}"
            if ranks() > 1 else f"{place} was proven in {profile.ranks} ranks, and this is one process",
            hint=f"as in: torchrun --nproc-per-node {profile.ranks} --no-python {shlex.join(again)} ...; or"
            " --any-ranks applies it all the same",
        )  # fmt: skip


def _check_hosts(profile: profiles.Profile, there: Sequence[profiles.Profile], place: str) -> None:
    """Raises ``ProfileError`` where ranks on several hosts might each take another config from the file."""
    kind = profile.device.kind
    others = [other for other in there if other.ranks == profile.ranks and other.device.kind == kind]
    if ranks() > _ranks_here() and any(other.config != profile.config for other in others):
        raise ProfileError(
            f"{place} has several profiles for {kind}, and the ranks are on several hosts: each might take another one",
            hint="give them a best.json with one of these; or --any-ranks takes what fits each host all the same",
        )


def _remarks(profile: profiles.Profile, knowledge: Knowledge, device: Device, *, shown: bool) -> list[str]:
    """What else the user should know before the script starts."""
    remarks = []
    if profile.ranks != ranks() and profile.ranks > 1:
        remarks.append(f"proven in {profile.ranks} ranks, and applied in {count_text(ranks(), 'rank')}")
    elif ranks() > 1 and profile.ranks == 1 and profile.config:
        remarks.append(f"proven in one process, and applied in each of {ranks()}: batch sizes, workers, threads")
    if profile.ranks == ranks() > (here := _ranks_here()):
        remarks.append(f"proven in {profile.ranks} ranks on one host, and applied in {here} of them on this one")
    accelerators = [other for other in devices() if not kind_of(other).is_host]
    alike = [other for other in accelerators if other.kind == device.kind]
    if shown and accelerators and kind_of(device).is_host:
        remarks.append(f"the script sees none of {count_text(len(accelerators), 'accelerator')}, as --device asks")
    elif shown and len(alike) > 1:
        remarks.append(f"the script sees {device.label} alone, of {len(alike)}, as --device asks")
    elif not shown and len(alike) > 1 and ranks() == 1:
        remarks.append(
            f"the script sees all {len(alike)} {device.kind} devices, and the config was proven on one:"
            f" --device {device.label} shows it that one alone"
        )
    if hold_lines(profile.knowledge.training_loaders) and not knowledge.training_loaders:
        remarks.append(
            "the profile, of an earlier version, knows the script's loaders by their lines, and the script has changed:"
            " run the study again if a knob isn't in effect"
        )
    return remarks


def _tier(text: str) -> int:
    """Raises ``UsageError`` for any other."""
    if text not in _TIERS:
        raise UsageError(
            f"--tier {text}: expected {' or '.join(_TIERS)}",
            hint="2 keeps the effective batch, as without the option; 3 is the larger one beside it",
        )
    return _TIERS[text]


def _says(profile: profiles.Profile, tier: int) -> str:
    if tier == _OPTIMISATION:
        sooner = f", a loss {gain_text(profile.speedup)} as fast when it was proven" if profile.speedup else ""
        return f"applying {config_text(profile.config)} (tier 3, a larger effective batch{sooner})"
    if (profile.verdict is Verdict.KEEP_BASELINE or not profile.config) and profile.larger:
        proven = "nothing that keeps the effective batch was proven faster (--tier 3 applies larger batches)"
        return f"running the script as written: {proven}"
    if profile.verdict is Verdict.KEEP_BASELINE or not profile.config:
        return "running the script as written: nothing was proven faster"
    return f"applying {config_text(profile.config)} ({gain_text(profile.speedup or 1.0)} when it was proven)"
