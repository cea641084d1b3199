"""``autotune run``: a script with the config that a study proved for this device."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from dataclasses import replace
from pathlib import Path

from tuner.cli.script import find_script, ranks
from tuner.cli.verb import Subparsers
from tuner.devices.present import AUTO, resolve_device, spellings
from tuner.devices.software import software
from tuner.errors import ProfileError, UsageError
from tuner.export import PROFILE
from tuner.export import profile as profiles
from tuner.formatting import config_text, device_text, gain_text
from tuner.knowledge import Knowledge
from tuner.model import Device, Script, Verdict
from tuner.runner.launch import exec_applied
from tuner.space.arguments import parse, render

_NO_MATTER = frozenset({"kernel", "platform", "autotune", "optuna"})
"""What a rate hardly depends on: not worth a warning in every production log."""


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
    parser.add_argument("script", nargs="?", metavar="SCRIPT", help="the training script (default: the study's)")
    parser.add_argument("-m", "--module", metavar="NAME", help="a module instead of a script")
    parser.add_argument("--config", required=True, metavar="FILE", help="a best.json, or the folder of its study")
    parser.add_argument("--device", default=AUTO, help=f"{AUTO} (default), {spellings()}")
    parser.add_argument("--strict", action="store_true", help="refuse to run if the script or the software has changed")


def run(arguments: argparse.Namespace) -> int:
    """Applies the profile and becomes the script: its exit status is ours."""
    place = _file(arguments.config)
    device = _device(arguments.device)
    profile = profiles.choose(profiles.read(_content(Path(place)), place), device, place)
    path, module = arguments.script or "", arguments.module or ""
    if not path and not module:
        path, module = profile.script.path, profile.script.module
    script_args = profile.script.argv if arguments.script_args is None else arguments.script_args
    script = find_script(path, module, script_args, "run")
    knowledge = knowledge_of(profile, script, place)
    drift = profiles.drift(profile, script, software())
    changes = [_change_text(change) for change in drift if change.name not in _NO_MATTER]
    if changes and arguments.strict:
        raise ProfileError(
            f"{place} was proven under other conditions: {'; '.join(changes)}",
            hint="run the study again, or leave out --strict",
        )
    if os.environ.get("RANK", "0") == "0":
        for change in changes:
            print(f"autotune: {change}: the config may no longer be the best", file=sys.stderr)
        if ranks() > 1 and profile.config:
            together = f"proven in one process, and applied in each of {ranks()}: batch sizes, workers, threads"
            print(f"autotune: {together}", file=sys.stderr)
        print(f"autotune: {_says(profile)} on {device_text(device)}", file=sys.stderr)
    rendered = replace(script, argv=render(script.argv, knowledge.given(profile.config)))
    exec_applied(rendered, device, profile.config, knowledge, alone=ranks() == 1)


def _device(text: str) -> Device:
    """The device whose profile is wanted. Raises ``UsageError`` for one card where each rank takes its own."""
    if ranks() > 1 and ":" in text:
        raise UsageError(
            f"--device {text} is one card, and WORLD_SIZE is {ranks()}: each rank takes the card of its own number",
            hint=f"write --device {text.partition(':')[0]}; unset WORLD_SIZE if it is a leftover",
        )
    return resolve_device(text)


def knowledge_of(profile: profiles.Profile, script: Script, place: str) -> Knowledge:
    """What the study learned of the script, as far as it holds for the script and the arguments of now.

    Raises ``ProfileError`` where a knob of the config was bound to an argument that isn't there any more.
    """
    bound = parse(script.argv)
    lost = [knob for knob in profile.knowledge.placeholders if knob in profile.config and knob not in bound]
    if lost:
        names = ", ".join(lost)
        raise ProfileError(
            f"{place} was proven with {names} as an argument of the script, and the arguments given now lack it",
            hint=f"write {{{lost[0]}}} where its value belongs, as in: {shlex.join(profile.script.argv)}",
        )
    knowledge = replace(profile.knowledge, placeholders=tuple(bound))
    if script.sha256 != profile.script.sha256:
        # Loaders are known by the lines that make them; in a script that has changed those mean others, or nothing.
        return replace(knowledge, training_loaders=())
    return knowledge


def _file(path: str) -> str:
    """The file, also for the study's folder."""
    return str(Path(path) / PROFILE.file_name) if Path(path).is_dir() else path


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ProfileError(
            f"can't read {path}: {error.strerror}", hint="autotune study writes best.json into the study's folder"
        ) from error


def _change_text(change: profiles.Change) -> str:
    if change.part is profiles.ProvenPart.SCRIPT:
        return "the script has changed"
    if change.part is profiles.ProvenPart.ARGUMENTS:
        return f"its arguments were {change.before}, now {change.now}"
    return f"{change.name} was {change.before}, now {change.now}"


def _says(profile: profiles.Profile) -> str:
    if profile.verdict is Verdict.KEEP_BASELINE or not profile.config:
        return "running the script as written: nothing was proven faster"
    return f"applying {config_text(profile.config)} ({gain_text(profile.speedup or 1.0)} when it was proven)"
