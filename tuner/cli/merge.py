"""``autotune merge``: one best.json for several devices."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from tuner.cli.best_json import content_of, file_of, shown_name
from tuner.cli.printable import printable
from tuner.cli.verb import Subparsers
from tuner.errors import ExitCode, ProfileError, StorageError
from tuner.export.gathered import Entry, gather
from tuner.formatting import config_text, count_text, ranks_text, script_text
from tuner.report.tiers import KEEP
from tuner.storage.atomic import write_named

TAKES_SCRIPT_ARGUMENTS = False


def add_parser(verbs: Subparsers) -> None:
    """Declares the verb."""
    parser = verbs.add_parser(
        "merge", help="gather the profiles of several best.json in one file",
        usage="autotune merge best.json [best.json ...] --out FILE",
        description="Writes one best.json with the profiles of all these, for a fleet: autotune run takes the one of"
        " its device and number of ranks. Of two of the same device and number of ranks the one named last is taken.",
    )  # fmt: skip
    parser.add_argument("files", nargs="+", metavar="best.json", help="a best.json, or the folder of its study")
    parser.add_argument(
        "--out", required=True, metavar="FILE", help="what is written; the profiles that it holds already are kept"
    )


def run(arguments: argparse.Namespace) -> int:
    """Writes the file and prints what is in it.

    Raises ``ProfileError`` before anything is written, ``StorageError`` where it can't be.
    """
    out = Path(arguments.out)
    if out.is_dir():
        raise ProfileError(f"--out {out} is a folder", hint=f"name a file, as {out / 'best.json'}")
    if not out.parent.is_dir():
        raise StorageError(f"there is no folder {out.parent}", hint="make it, or choose another file with --out")
    places = _last_named([*([str(out)] if out.is_file() else []), *map(file_of, arguments.files)])
    gathered = gather([(place, content_of(place)) for place in places])
    if not gathered.entries:
        raise ProfileError(f"no profile in {', '.join(places)}", hint="autotune study writes one for its device")
    write_named(out, gathered.content)
    print(printable(f"{out}: {count_text(len(gathered.entries), 'profile')}"))
    for entry in gathered.entries:
        print(printable(f"  {_line(entry)}"))
    scripts = {(entry.profile.script.sha256, entry.profile.script.module) for entry in gathered.entries}
    if len(scripts) > 1:
        named = sorted({script_text(entry.profile.script) for entry in gathered.entries})
        print(printable(
            f"they are of {len(scripts)} different scripts, or states of one ({', '.join(named)}): autotune run says so"
            " where its script is another one"
        ))  # fmt: skip
    return ExitCode.OK


def _last_named(places: Sequence[str]) -> list[str]:
    """Each file once, where it was named last."""
    return list({Path(place).resolve(): place for place in reversed(places)}.values())[::-1]


def _line(entry: Entry) -> str:
    profile = entry.profile
    shown = shown_name(profile.device, profile.cores) + ranks_text(profile.ranks, profile.devices)
    kept = f"can't tell: {profile.cannot_tell}" if profile.cannot_tell else KEEP
    answer = config_text(profile.config) if profile.config else kept
    answer += f"; larger batches (tier 3): {config_text(profile.larger)}" if profile.larger else ""
    origin = f"{entry.place}, in place of that of {entry.instead_of}" if entry.instead_of else entry.place
    return f"{profile.device.label}: {shown}: {answer} ({origin})"
