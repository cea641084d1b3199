"""Records written down loosely in a test, as the parent reads them from the wire."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from tuner.child import shape, wire
from tuner.child.records import Note, Record
from tuner.child.wire import Entry


def entries_of(records: Iterable[Mapping[str, Any]], *, sound: bool = True) -> list[Entry]:
    """The records by way of the wire, sent at 0.0 where they don't say when. ``sound``: all have to be as declared."""
    lines = [json.dumps(shape.plain({"v": wire.VERSION, "t": 0.0, **record})).encode() for record in records]
    entries = list(wire.decode(lines))
    assert len(entries) == len(lines), "a line was skipped"
    notes = [entry.record.text for entry in entries if isinstance(entry.record, Note)]
    assert not sound or not any(text.startswith(wire.UNREADABLE) for text in notes), notes
    return entries


def records_of(records: Iterable[Mapping[str, Any]]) -> list[Record]:
    """The records alone."""
    return [entry.record for entry in entries_of(records)]
