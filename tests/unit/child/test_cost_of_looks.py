"""What a look at data reads of them: some milliseconds' worth, whatever they are, and enough to see what changes."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tuner.child.data_state import state_of, values

NUMBERS = 1 << 24


def _resident(path: Path) -> int:
    """Bytes of the mapped file that lie in this process's memory."""
    told = re.search(rf"{re.escape(str(path))}\n(?:.*\n)*?Rss: +(\d+) kB", Path("/proc/self/smaps").read_text("utf-8"))
    assert told is not None
    return int(told[1]) << 10


def _loaded(path: Path) -> Any:
    torch.save(torch.zeros(NUMBERS), path)
    return torch.load(path, mmap=True)


def _wrapped(path: Path) -> Any:
    return torch.from_numpy(np.memmap(path, dtype=np.float32, mode="w+", shape=(NUMBERS,)))


def _array(path: Path) -> Any:
    return np.asarray(np.memmap(path, dtype=np.float32, mode="w+", shape=(NUMBERS,)))


@pytest.mark.parametrize("made", [_loaded, _wrapped, _array])
def test_of_a_file_that_is_mapped_few_pages_are_read(made: Callable[[Path], Any], tmp_path: Path) -> None:
    """A page for each of 4,096 numbers was: 64 MB, from a disk, at each look."""
    data = made(tmp_path / "file")
    before = _resident(tmp_path / "file")
    first = state_of({"data": data})
    # A system may map 2 MB around each number that is read, where they lie in its memory anyway.
    assert _resident(tmp_path / "file") - before < 3 * NUMBERS
    assert state_of({"data": data}) == first
    written = data.numpy() if isinstance(data, torch.Tensor) else data
    written += 1.0
    assert state_of({"data": data}) != first


@pytest.mark.parametrize("make", [lambda: np.zeros(8), lambda: torch.zeros(8), lambda: [0] * 8])
def test_of_lists_in_lists_some_of_each_are_read(make: Callable[[], Any]) -> None:
    """Five thousand arrays took half a second at each look, of which there are five in each of three epochs."""
    data = {"rows": [[make() for _ in range(100)] for _ in range(100)]}
    assert sum(1 for _ in values(data)) < 3200
    before = state_of(data)
    data["rows"][0][0][0] = 1
    assert state_of(data) != before


def test_all_of_a_table_of_columns_are_read() -> None:
    data = {"table": {name: list(range(100)) for name in "abc"}}
    before = state_of(data)
    data["table"]["b"][77] = 0
    assert state_of(data) != before
