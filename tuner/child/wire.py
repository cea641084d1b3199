"""The protocol between parent and child: one JSON request in, versioned JSON lines out.

Every record is an object on a line of its own with ``v`` (the protocol's version), ``t`` (the child's monotonic clock
in seconds), ``kind``, and the fields of the record's type in ``records``. A reader skips kinds that it doesn't know and
a torn last line.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from . import shape
from .records import RECORDS, ChildRequest, Note, Record

VERSION = 1

REQUEST_ENV = "AUTOTUNE_REQUEST"
"""Environment variable: path of the request's JSON file."""

RECORDS_ENV = "AUTOTUNE_RECORDS_FD"
"""Environment variable: number of the inherited descriptor that records are written to."""

FILES = "files"
"""In the trial's folder: the trial's versions of the user's files, and what it would have left among them."""

MADE = "made.jsonl"
"""In the trial's folder: what the trial makes among the user's files, a line each; see ``created_files``."""

KEPT = "kept.jsonl"
"""In the trial's folder: paths of the user's that the script would have changed or removed, a JSON string a line."""


UNREADABLE = "a record can't be read:"
"""Begins the note that stands in for a record which isn't as declared."""


@dataclass(frozen=True)
class Entry:
    """A record, and when the child sent it: ``t`` is its monotonic clock in seconds."""

    t: float
    record: Record


def encode(record: Record, t: float) -> bytes:
    """One record as a line."""
    line = {"v": VERSION, "t": round(t, 6), "kind": record.kind, **shape.plain(record)}
    return json.dumps(line, separators=(",", ":"), allow_nan=False, default=str).encode() + b"\n"


def decode(lines: Iterable[bytes]) -> Iterator[Entry]:
    """Records of the lines; torn, foreign and future lines are skipped. One of ours that isn't as declared is noted."""
    for line in lines:
        try:
            fields = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if not isinstance(fields, dict) or fields.get("v") != VERSION:
            continue
        kind = RECORDS.get(str(fields.get("kind")))
        try:
            t = shape.read(float, fields.get("t"), "t")
        except ValueError:
            continue
        if kind is None or not math.isfinite(t):
            continue
        try:
            record: Record = shape.read(kind, fields)
        except ValueError as error:
            record = Note(f"{UNREADABLE} {error}")
        yield Entry(t, record)


def encode_request(request: ChildRequest) -> str:
    """The request as the text of its file."""
    return json.dumps({"v": VERSION, **shape.plain(request)}, indent=1, allow_nan=False, default=str)


def decode_request(text: str) -> ChildRequest:
    """The inverse of ``encode_request``. Raises ``ValueError`` naming what isn't as declared."""
    return shape.read(ChildRequest, json.loads(text), "request")
