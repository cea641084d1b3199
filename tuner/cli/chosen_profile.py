"""The profile of a best.json that fits this machine, and what it is held against: script, arguments, software."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence
from dataclasses import replace

from tuner.analysis.circumstances import HARDLY_MATTERS, Change, Circumstances, ProvenPart, changed
from tuner.cli.printable import printable
from tuner.cli.script import find_script, ranks, source_of
from tuner.cli.trust import vouch
from tuner.devices.present import resolve_device
from tuner.devices.software import software
from tuner.errors import ProfileError, UsageError
from tuner.export.profile import Profile
from tuner.formatting import count_text
from tuner.knowledge import Knowledge, hold_lines
from tuner.masking import is_masked, masked
from tuner.model import Device, Script
from tuner.space.applicable import check_applicable
from tuner.space.arguments import parse
from tuner.space.declare import Known, SearchSpace
from tuner.study.identity import hashes_of_modules


def device_of(text: str) -> Device:
    """The device whose profile is wanted. Raises ``UsageError`` for one card where each rank takes its own."""
    if ranks() > 1 and ":" in text:
        raise UsageError(
            f"--device {text} is one card, and WORLD_SIZE is {ranks()}: each rank takes the card of its own number",
            hint=f"write --device {text.partition(':')[0]}; unset WORLD_SIZE if it is a leftover",
        )
    return resolve_device(text)


def script_of(arguments: argparse.Namespace, profile: Profile, place: str, verb: str) -> Script:
    """What is run. Raises ``UntrustedError`` where the file would choose it and nobody vouches for that.

    A best.json comes from wherever it was copied from; what it may do unasked is to set knobs.
    """
    path, module = arguments.script or "", arguments.module or ""
    argv, chosen = arguments.script_args, profile.script
    target = ["--module", chosen.module] if chosen.module else [chosen.path]
    named = ["--module", module] if module else [path] if path else target
    if is_masked(chosen.argv if argv is None else argv):
        raise ProfileError(
            f"{place} doesn't hold the secrets among the arguments of its study: {_shown(argv or chosen.argv)}",
            hint=f"give the arguments, as in: {shlex.join(['autotune', verb, '--config', place, *named])} -- ...",
        )
    is_named = bool(path or module)
    if is_named:
        find_script(path, module, (), verb)  # before anybody is asked of its arguments: it may not be there
    if not is_named or (argv is None and chosen.argv):
        what = "the script's arguments" if is_named else "what is run"
        given = chosen.argv if argv is None else argv
        full = [*named, *(["--", *given] if given else [])]
        vouch(
            f"{place} would choose {what}: {_shown(full)}", trusted=arguments.trust,
            hint=f"name them: {_shown(['autotune', verb, '--config', place, *full])}; or add --trust",
        )  # fmt: skip
        if not is_named:
            path, module = chosen.path, chosen.module
    return find_script(path, module, chosen.argv if argv is None else argv, verb)


def check_config(
    profile: Profile, known: Known, spaces: Sequence[SearchSpace], script: Script, place: str
) -> None:
    """Raises ``ProfileError`` where the config would set anything but knobs, or one to a value that it can't have."""
    try:
        check_applicable(profile.config, known, spaces, parse(script.argv))
    except UsageError as error:
        raise ProfileError(
            printable(f"{place}: {error.message}"), hint=error.hint or "run the study again to rewrite it"
        ) from error


def knowledge_of(profile: Profile, script: Script, place: str) -> Knowledge:
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
    if script.sha256 != profile.script.sha256 and hold_lines(knowledge.training_loaders):
        # Profiles of earlier versions know loaders by their lines, which now mean others, or nothing.
        return replace(knowledge, training_loaders=())
    return knowledge


def changes_of(profile: Profile, script: Script, cores: int, place: str) -> list[str]:
    """A clause for each thing that isn't as it was when the profile was proven."""
    modules = hashes_of_modules(source_of(script), profile.knowledge.module_hashes)
    drift = changed(profile.circumstances, Circumstances(script, software(), modules, cores))
    edited = [f"{place} was edited since the study wrote it"] if profile.edited else []
    return edited + [_change_text(change) for change in drift if change.name not in HARDLY_MATTERS]


def _change_text(change: Change) -> str:
    if change.part is ProvenPart.SCRIPT:
        return "the script has changed"
    if change.part is ProvenPart.MODULE:
        return f"{change.name}, which the script imports, {'has changed' if change.now else 'is gone'}"
    if change.part is ProvenPart.ARGUMENTS:
        return f"its arguments were {change.before}, now {change.now}"
    if change.part is ProvenPart.DEVICE:
        return f"{count_text(int(change.before), 'core')} could be used, now {change.now}"
    return f"{change.name} was {change.before}, now {change.now}"


def _shown(words: Sequence[str]) -> str:
    """A command line to be printed."""
    return printable(shlex.join(masked(words)))
