"""``autotune trials``: what a study tried, and what came of it."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from tuner.analysis.contention import Host
from tuner.analysis.gain import BaselineTrack, comparable
from tuner.analysis.waterfall import waterfall
from tuner.cli.printable import printable
from tuner.cli.tables import show
from tuner.cli.trust import declare_trust
from tuner.cli.verb import Subparsers
from tuner.devices.host import spare_cores, usable_cores
from tuner.devices.present import host_of
from tuner.errors import DeviceError, ExitCode, ObjectiveError, StorageError, UsageError
from tuner.export import PROFILE
from tuner.export.profile import Profile, read
from tuner.formatting import count_text
from tuner.model import Device, WaterfallEntry
from tuner.objective import RATE, Objective
from tuner.report import waterfall as waterfalls
from tuner.report.trials import TrialsReport
from tuner.storage.atomic import write_named
from tuner.storage.audit import audit
from tuner.storage.studies import StoredStudy, open_study
from tuner.study.identity import keeping_batch_by, objective_of

TAKES_SCRIPT_ARGUMENTS = False


def add_parser(verbs: Subparsers) -> None:
    """Declares the verb."""
    parser = verbs.add_parser(
        "trials", help="list the trials of a study",
        usage="autotune trials [DIR] [--check | [--json] [--waterfall [--svg FILE]]] [--trust]",
        description="Lists the trials of the study in DIR. Without DIR, the study in the current folder, or the only"
        " one below it.",
    )  # fmt: skip
    parser.add_argument("dir", nargs="?", metavar="DIR", help="the study's folder")
    parser.add_argument("--json", action="store_true", help="print JSON, including what was observed of every knob")
    parser.add_argument("--check", action="store_true", help="recompute every figure from the raw records and compare")
    parser.add_argument(
        "--waterfall", action="store_true",
        help="show what each change gained, from the script as written to the fastest trial",
    )  # fmt: skip
    parser.add_argument("--svg", metavar="FILE", help="draw the waterfall as an SVG file, too")
    declare_trust(parser, "load the objective where it is Python in a file that the study names")


def run(arguments: argparse.Namespace) -> int:
    """Prints the trials, the waterfall, or whether the figures follow from the raw records."""
    _refuse_together(arguments)
    stored = open_study(arguments.dir)
    if arguments.check:
        return _check(stored)
    objective, trials = _objective(stored, trusted=arguments.trust), comparable(stored.trials, _host(stored))
    if arguments.waterfall:
        # A larger effective batch is faster by another training: its gain is told by the time to a loss.
        kept = keeping_batch_by(stored.record.space, trials)
        changes = waterfall(kept, BaselineTrack(kept, objective))
        return _show_waterfall(stored, changes, objective, arguments.svg, as_json=arguments.json)
    report = TrialsReport(trials, objective, _host(stored))
    if arguments.json:
        print(json.dumps(report.documents(), indent=2))
        return ExitCode.OK
    show(report.table())
    for line in report.footnotes():
        print(printable(line))
    return ExitCode.OK


def _refuse_together(arguments: argparse.Namespace) -> None:
    """Raises ``UsageError`` for options that don't go together, and a picture that can't be written."""
    if arguments.check and (arguments.json or arguments.waterfall):
        what = "--check prints no JSON" if arguments.json else "--check shows no waterfall"
        raise UsageError(what, hint="leave out one of the two; with status 0 all figures follow from the records")
    if arguments.svg is None:
        return
    svg = Path(arguments.svg)
    if not arguments.waterfall:
        raise UsageError("--svg draws the waterfall", hint="autotune trials --waterfall --svg FILE")
    if not svg.parent.is_dir():
        hint = "make it, or choose another file with --svg"
        raise UsageError(f"--svg {svg}: there is no folder {svg.parent}", hint=hint)
    if svg.is_dir():
        raise UsageError(f"--svg {svg} is a folder", hint=f"name a file: --svg {svg / 'waterfall.svg'}")


def _objective(stored: StoredStudy, *, trusted: bool) -> Objective:
    """The study's own objective; the rate, with a warning on standard error, where it can't be loaded any more."""
    try:
        return objective_of(stored.record.identity, trusted=trusted)
    except ObjectiveError as error:
        name = stored.record.identity.get("objective", "an unknown one")
        print(
            f"warning: gains compare rates: the study's objective, {name}, can't be loaded: {error.message}",
            file=sys.stderr,
        )
        return RATE


def _host(stored: StoredStudy) -> Host | None:
    """The machine around a study's trials on the CPU; None around others, whose cores a study doesn't note.

    Cores that a quota keeps from trials are told where as many may be used here as there.
    """
    identity = stored.record.identity
    cores, name = identity.get("device.cores"), str(identity.get("device.name", ""))
    if type(cores) is not int:
        return None
    try:
        device = Device(str(identity.get("device.kind", "")), 0, name, name, 0)
        return host_of(device, cores, spare_cores() if cores == usable_cores() else 0)
    except DeviceError:  # of a later version's kind
        return None


def _check(stored: StoredStudy) -> int:
    """Says whether the stored figures follow from the raw records; raises ``StorageError`` where they don't."""
    found = audit(stored.folder, stored.trials, stored.numbers, stored.begun)
    profiles = _profiles(stored.folder / PROFILE.file_name)
    found.different += [
        f"{PROFILE.file_name}: the profile of {profile.device.label} was edited since it was written"
        for profile in profiles if profile.edited
    ]  # fmt: skip
    if found.different:
        raise StorageError(
            f"{stored.folder} isn't what follows from its records, in {count_text(len(found.different), 'thing')}:"
            + "".join(f"\n  {line}" for line in found.different),
            hint="records were changed or removed, or another version of autotune wrote them",
        )
    measured = sum(trial.measurement is not None for trial in stored.trials)
    print(f"all figures of {count_text(measured, 'trial')} follow from the raw records")
    for what, numbers in found.unchecked.items():
        trials = count_text(len(numbers), "trial")
        print(f"can't be checked of {trials}, whose files are gone or empty: {what} ({_list(numbers)})")
    for profile in profiles:
        if profile.edited is None:
            print(f"can't be checked: {PROFILE.file_name}'s profile of {profile.device.label}, of an earlier version")
    return ExitCode.OK


def _profiles(file: Path) -> list[Profile]:
    """Those that the study has written. Raises ``ProfileError`` where the file is no best.json."""
    return read(file.read_bytes(), str(file)) if file.is_file() else []


def _list(numbers: Sequence[int]) -> str:
    shown = ", ".join(map(str, numbers[:8]))
    return shown if len(numbers) <= 8 else f"{shown}, ..."


def _show_waterfall(
    stored: StoredStudy, changes: Sequence[WaterfallEntry], objective: Objective, svg: str | None, *, as_json: bool
) -> int:
    """Prints the changes, and draws them into a file where one is named. Raises ``StorageError`` for that."""
    if svg is not None:
        identity = stored.record.identity
        script = identity.get("script.path") or identity.get("script.module") or stored.record.name
        title = f"{script} on {identity.get('device.name', '')}"
        write_named(Path(svg), waterfalls.picture(changes, title, objective).encode())
    if as_json:
        print(json.dumps(waterfalls.documents(changes), indent=2))
    elif not changes:
        print("no result yet: the script as written was not measured to the end")
    else:
        show(waterfalls.table(changes, objective))
        print(waterfalls.caution(changes))
    return ExitCode.OK
