"""``autotune studies``: the studies below a folder."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tuner.cli.tables import show
from tuner.cli.verb import Subparsers
from tuner.errors import ExitCode, ProfileError, StorageError
from tuner.export import PROFILE
from tuner.export import profile as profiles
from tuner.formatting import config_text, gain_text
from tuner.model import Verdict
from tuner.report.table import Table
from tuner.report.tiers import KEEP
from tuner.storage.studies import StoredStudy, find_studies, read_study

TAKES_SCRIPT_ARGUMENTS = False


def add_parser(verbs: Subparsers) -> None:
    """Declares the verb."""
    parser = verbs.add_parser(
        "studies", help="list the studies below a folder", usage="autotune studies [DIR] [--json]",
        description="Lists the studies in DIR and below it (default: the current folder).",
    )  # fmt: skip
    parser.add_argument("dir", nargs="?", default=".", metavar="DIR", help="where to look (default: here)")
    parser.add_argument("--json", action="store_true", help="print JSON")


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
    show(Table(columns, [_row(d) for d in documents], frozenset({"trials"})))
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
    path = stored.folder / PROFILE.file_name
    profile = _profile(path, identity)
    return {
        "script": identity.get("script.path") or identity.get("script.module") or "",
        "device": identity.get("device.kind", ""), "device_name": identity.get("device.name", ""),
        "state": stored.state, "trials": len(stored.trials), "created": stored.record.created,
        "verdict": str(profile.verdict) if profile else None, "speedup": profile.speedup if profile else None,
        "config": dict(profile.config) if profile else None, "profile": str(path) if profile else None,
        "cannot_tell": profile.cannot_tell if profile else None, "tier3": dict(profile.larger) if profile else None,
    }  # fmt: skip


def _profile(path: Path, identity: Mapping[str, Any]) -> profiles.Profile | None:
    """What the study's best.json says of its device, with as many cores and ranks, the last where there are several;
    one that can't be read is no result.
    """
    try:
        stored = profiles.read(path.read_bytes(), str(path))
    except (OSError, ProfileError):
        return None
    own = [profile for profile in stored if _is_of(profile, identity)]
    return own[-1] if own else None


def _is_of(profile: profiles.Profile, identity: Mapping[str, Any]) -> bool:
    """Whether the profile may be the study's. Those of earlier versions don't say their cores, nor do studies on an
    accelerator.
    """
    there, ranks = (identity.get("device.kind"), identity.get("device.name")), identity.get("ranks", 1)
    cores = identity.get("device.cores")
    alike = None in (cores, profile.cores) or profile.cores == cores
    return alike and (profile.device.kind, profile.device.name) == there and profile.ranks == ranks


def _row(document: dict[str, Any]) -> list[str]:
    if "error" in document:
        return [document["folder"], "", "", "unreadable", "", document["error"]]
    return [*(str(document[key]) for key in ("folder", "script", "device", "state", "trials")), _result(document)]


def _result(document: dict[str, Any]) -> str:
    if document["verdict"] is None:
        return ""
    beside = f"; larger batches (tier 3): {config_text(document['tier3'])}" if document["tier3"] else ""
    return _answer(document) + beside


def _answer(document: dict[str, Any]) -> str:
    if document["cannot_tell"]:
        return f"can't tell: {document['cannot_tell']}"
    if document["speedup"] is None:  # there were no finals, or none yet
        return "nothing proven" + (" that keeps the effective batch" if document["tier3"] else "")
    if document["verdict"] == Verdict.KEEP_BASELINE:
        return KEEP
    return f"{gain_text(document['speedup'])} with {config_text(document['config'])}"
