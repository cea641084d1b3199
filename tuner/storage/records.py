"""A trial's raw files: the child's records, and the parent's samples of its processes, a line each."""

from __future__ import annotations

import json
import time
from pathlib import Path

from tuner.analysis.resources import ResourceSample
from tuner.child import shape
from tuner.child.wire import Entry, decode


def read_records(path: Path) -> list[Entry]:
    """The child's records, a torn last line left out; empty where there is no file. Raises ``OSError``."""
    try:
        with path.open("rb") as file:
            return list(decode(file))
    except FileNotFoundError:
        return []


def sample_line(sample: ResourceSample) -> str:
    """A sample as the line that keeps it."""
    return json.dumps(shape.plain(sample)) + "\n"


def read_resources(path: Path) -> list[ResourceSample]:
    """The samples of a file; torn lines and others' are left out; empty where there is no file. Raises ``OSError``."""
    samples: list[ResourceSample] = []
    try:
        lines = path.read_bytes().splitlines()
    except FileNotFoundError:
        return samples
    for line in lines:
        try:
            samples.append(shape.read(ResourceSample, json.loads(line)))
        except ValueError:
            continue
    return samples


def last_written(folder: Path, started: float) -> float:
    """When a file of the trial was last written, and so when it ran last: between its start and now, in seconds since
    the epoch.
    """
    written = started
    try:
        for file in folder.iterdir():
            written = max(written, file.stat(follow_symlinks=False).st_mtime)
    except OSError:
        pass  # it had no folder yet, or that is going
    return min(written, max(started, time.time()))
