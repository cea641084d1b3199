"""``autotune studies``: the studies below a folder."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from tuner.cli.stored import StoredStudy, find_studies, read_study
from tuner.cli.tables import Subparsers, show, table
from tuner.errors import ExitCode, StorageError

PROFILE = "best.json"


def add_parser(verbs: Subparsers) -> None:
    """Declares the verb."""
    parser = verbs.add_parser(
        "studies", help="list the studies below a folder", usage="autotune studies [DIR] [--json]",
        description="Lists the studies below DIR, the current folder without it.",
    )  # fmt: skip
    parser.add_argument("dir", nargs="?", default=".", metavar="DIR", help="where to look (default: here)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Prints the studies."""
    root = Path(arguments.dir)
    if not root.is_dir():
        raise StorageError(f"there is no folder {root}", hint="give a folder to look in")
    documents = [_document(folder) for folder in find_studies(root)]
    if arguments.json:
        print(json.dumps(documents, indent=2))
        return ExitCode.OK
    if not documents:
        print(f"no studies below {root}")
        return ExitCode.OK
    columns = ["folder", "script", "device", "state", "trials", "result"]
    show(table(columns, [_row(d) for d in documents], right=["trials"]))
    return ExitCode.OK


def _document(folder: Path) -> dict[str, Any]:
    """A study in a few words; one that can't be read says so and doesn't hide the others."""
    try:
        stored = read_study(folder)
    except StorageError as error:
        return {"folder": str(folder), "error": error.message}
    return {"folder": str(folder), **_facts(stored)}


def _facts(stored: StoredStudy) -> dict[str, Any]:
    identity = stored.record.identity
    profile = stored.folder / PROFILE
    return {
        "script": identity.get("script.path") or identity.get("script.module") or "",
        "device": identity.get("device.kind", ""), "device_name": identity.get("device.name", ""),
        "state": stored.record.state, "trials": len(stored.trials), "created": stored.record.created,
        "profile": str(profile) if profile.is_file() else None,
    }  # fmt: skip


def _row(document: dict[str, Any]) -> list[str]:
    if "error" in document:
        return [document["folder"], "", "", "unreadable", "", document["error"]]
    keys = ("folder", "script", "device", "state", "trials", "profile")
    return [str(document[key] if document[key] is not None else "") for key in keys]
