"""What others may have written and the user has to vouch for: files that choose what is run or loaded."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from tuner.cli.script import ranks
from tuner.cli.settings import Settings
from tuner.errors import UntrustedError

SYSTEM_UID = 0
"""Whose files everyone runs anyway."""


def declare_trust(parser: argparse.ArgumentParser, help_text: str) -> None:
    """The option with which a user vouches without being asked."""
    parser.add_argument("--trust", action="store_true", help=help_text)


def vouch(what: str, *, trusted: bool, hint: str) -> None:
    """Returns where the user has said ``--trust``, or says yes on a terminal. Raises ``UntrustedError``.

    ``what`` is a clause such as "best.json chooses the script". Of several ranks none can ask.
    """
    if trusted:
        return
    if ranks() == 1 and sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty():
        print(f"autotune: {what}. Go on? [y/N] ", end="", file=sys.stderr, flush=True)
        if sys.stdin.readline().strip().lower() in ("y", "yes"):
            return
    raise UntrustedError(what, hint=hint)


def vouch_for_settings(settings: Settings, *, trusted: bool) -> None:
    """Says which Python the study.toml has this process load; asks where that or the file itself may be a stranger's.

    A stranger is neither this user nor the system nor the owner of the script, whose code is run anyway. Python is also
    asked for where it lies outside of the study.toml's folder. Raises ``UntrustedError``.
    """
    source = settings.source
    if source is None:
        return
    if settings.loads:
        names = ", ".join(str(file) for file in settings.loads)
        print(f"autotune: {source} loads Python into autotune itself: {names}", file=sys.stderr)
    known = {os.geteuid(), SYSTEM_UID, _owner(Path(settings.script)) if settings.script else None}
    folder = source.resolve().parent
    for file in (source, *settings.loads):
        owner = _owner(file)
        if owner is not None and owner not in known:
            reason = f"{file} belongs to another user"
        elif not file.resolve().is_relative_to(folder):
            reason = f"{source} loads Python from outside of its folder: {file}"
        else:
            continue
        vouch(reason, trusted=trusted, hint="read it, and add --trust; or move it away, and say the same in options")


def _owner(file: Path) -> int | None:
    """The user whose file it is; None where it isn't there: what reads it says so."""
    try:
        return file.stat().st_uid
    except OSError:
        return None
