"""A trial's raw files are read as far as they go, those of earlier versions as well."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from pathlib import Path

from tuner.analysis.resources import CardReading, ResourceSample
from tuner.child.records import Note
from tuner.child.wire import Entry
from tuner.storage.records import read_records, read_resources, sample_line

FULL = ResourceSample(
    12.5, 2**30, 2**29, 3.25, 6.5, 0.5, 4,
    CardReading(1755.0, 61.0, 4, 3 * 2**30, True, ((7, 2**30, 12.5, True), (8, None, None, None)), 8000.25),
    1.5, 2, 42.5, 7.5, 0.25,
)  # fmt: skip
OLD = (
    '{"t": 12.5, "rss": 1073741824, "pss": 536870912, "cpu_s": 3.25, "busy_s": 6.5, "steal_s": 0.5, "processes": 4,'
    ' "card": {"sm_mhz": 1755, "celsius": 61, "reasons": 4, "used": 3221225472, "tells_shares": true,'
    ' "processes": [[7, 1073741824, 12.5, true], [8, null, null, null]]}}'
)


def test_torn_files_are_read_as_far_as_they_go(tmp_path: Path) -> None:
    records, resources = tmp_path / "records.jsonl", tmp_path / "resources.jsonl"
    assert read_records(records) == []
    assert read_resources(resources) == []
    records.write_bytes(b'{"v":1,"t":1,"kind":"note","text":"a"}\n{"v":1,"t":2,"ki')
    resources.write_bytes(b'{"t":1,"rss":5}\n[]\n{"rss":7}\n{"t":2,"rss":"much"}\n{"t":2,"r')
    assert read_records(records) == [Entry(1.0, Note("a"))]
    assert read_resources(resources) == [ResourceSample(1.0, rss=5)]


def test_a_sample_comes_back_as_it_was(tmp_path: Path) -> None:
    assert all(getattr(FULL, field.name) != field.default for field in fields(ResourceSample))
    samples = [FULL, ResourceSample(13.0, 5), ResourceSample(14.0, card=CardReading())]
    path = tmp_path / "resources.jsonl"
    path.write_text("".join(map(sample_line, samples)))
    assert read_resources(path) == samples


def test_a_sample_that_an_earlier_version_wrote_is_read(tmp_path: Path) -> None:
    path = tmp_path / "resources.jsonl"
    path.write_text(OLD + "\n" + json.dumps({**json.loads(OLD), "pss": None}) + "\n")
    first, second = read_resources(path)
    assert FULL.card is not None
    card = replace(FULL.card, joules=None)
    assert repr(first) == repr(
        replace(FULL, held_s=0.0, cores=1, host_joules=None, memory_joules=None, wanted_s=None, card=card)
    )
    assert second.pss is None
