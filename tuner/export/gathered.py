"""One best.json of several: a fleet's, with the profile of each device and number of ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tuner.documents import text
from tuner.errors import ProfileError
from tuner.export.profile import SCHEMA, Profile, documents, read, same_entry
from tuner.formatting import script_text


@dataclass(frozen=True)
class Entry:
    """A profile of the gathered file, the file that it is from, and the file whose entry it takes the place of: "" for
    the first one of its device and number of ranks.
    """

    profile: Profile
    place: str
    instead_of: str = ""


@dataclass(frozen=True)
class Gathered:
    """The gathered file and what is in it, in its order."""

    content: bytes
    entries: tuple[Entry, ...]


def gather(files: Sequence[tuple[str, bytes]]) -> Gathered:
    """Every profile of these files (name and content), word for word; of two of the same device and number of ranks the
    later one. One of an earlier version, which doesn't say its cores, takes no place of those that do.

    Raises ``ProfileError`` for a file that is no best.json, or has a profile that can't be read, and where a profile
    would take the place of another script's.
    """
    gathered: list[tuple[dict[str, Any], Entry]] = []
    for place, content in files:
        for document, profile in zip(documents(content, place), read(content, place), strict=True):
            alike = [entry for other, entry in gathered if _takes_its_place(document, other)]
            gathered = [(other, entry) for other, entry in gathered if entry not in alike]
            for entry in alike:
                _check_script(entry, profile, place)
            instead_of = ", ".join(dict.fromkeys(entry.place for entry in alike if entry.place != place))
            gathered.append((document, Entry(profile, place, instead_of)))
    written = {"schema": SCHEMA, "profiles": [document for document, _ in gathered]}
    return Gathered((text(written) + "\n").encode(), tuple(entry for _, entry in gathered))


def _check_script(entry: Entry, profile: Profile, place: str) -> None:
    """Raises ``ProfileError`` where both aren't of one script: of other content, and of another path or module."""
    ours, theirs = profile.script, entry.profile.script
    if ours.sha256 != theirs.sha256 and (ours.path, ours.module) != (theirs.path, theirs.module):
        raise ProfileError(
            f"{place} and {entry.place} have a profile of {profile.device.label} each, of {script_text(ours)} and of"
            f" {script_text(theirs)}",
            hint="gather the profiles of each script in a file of its own",
        )


def _takes_its_place(document: dict[str, Any], other: dict[str, Any]) -> bool:
    return same_entry(other, document) and (document.get("cores") is None) == (other.get("cores") is None)
