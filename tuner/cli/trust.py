"""What others may have written and the user has to vouch for: files that choose what is run or loaded."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from tuner.cli.script import ranks
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


def vouch_for_python(source: Path, files: Sequence[Path], *, trusted: bool) -> None:
    """Says which Python a study.toml has this process load; asks where it isn't the user's own, or lies elsewhere.

    Raises ``UntrustedError``.
    """
    if not files:
        return
    names = ", ".join(str(file) for file in files)
    print(f"autotune: {source} loads Python into autotune itself: {names}", file=sys.stderr)
    folder = source.resolve().parent
    for file in (source, *files):
        if not _is_own(file):
            reason = f"{file} belongs to another user"
        elif not file.resolve().is_relative_to(folder):
            reason = f"{file} lies outside of the folder of {source}"
        else:
            continue
        vouch(
            f"{source} loads Python, and {reason}", trusted=trusted,
            hint="read it, and add --trust; or name a space and an objective of your own with --space and --objective",
        )  # fmt: skip


def _is_own(file: Path) -> bool:
    """Whether the file is this user's or the system's. One that isn't there is nobody's: what loads it says so."""
    try:
        return file.stat().st_uid in (os.geteuid(), SYSTEM_UID)
    except OSError:
        return True
