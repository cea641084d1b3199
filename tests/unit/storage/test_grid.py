"""The file of a recorded grid: what is written is read again, and nothing else passes."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.grids import made_up_grid

from tuner.errors import GridError
from tuner.model import Config, OutcomeKind
from tuner.storage.grid import Grid, GridRow, read_grid, write_grid

Lines = list[dict[str, Any]]


@pytest.fixture(scope="module")
def grid() -> Grid:
    return made_up_grid()


@pytest.fixture
def file(grid: Grid, tmp_path: Path) -> Path:
    write_grid(tmp_path / "grid.jsonl.gz", grid)
    return tmp_path / "grid.jsonl.gz"


def test_what_is_written_is_read(grid: Grid, file: Path) -> None:
    found = read_grid(file)
    assert found.header == grid.header
    assert [(row.config, row.kind, row.reason, row.side) for row in found.rows] == [
        (row.config, row.kind, row.reason, row.side) for row in grid.rows
    ]
    for own, other in zip(found.rows, grid.rows, strict=True):
        if own.reading is None or other.reading is None:
            assert own.reading is other.reading
            continue
        assert replace(own.reading, pairs=(), blocks=(), steps_per_s=0, wait_share=None) == replace(
            other.reading, pairs=(), blocks=(), steps_per_s=0, wait_share=None
        )
        for pair, before in zip(own.reading.pairs, other.reading.pairs, strict=True):
            assert pair == pytest.approx(before, rel=1e-6)


def test_the_same_grid_gives_the_same_bytes_and_few_of_them(grid: Grid, file: Path) -> None:
    again = file.with_name("again.gz")
    write_grid(again, read_grid(file))
    assert again.read_bytes() == file.read_bytes()
    assert len(grid.rows) > 300
    assert len(file.read_bytes()) < 2**18


def test_values_keep_their_types(tmp_path: Path, grid: Grid) -> None:
    """1, 1.0 and true are three choices; a learning rate isn't rounded."""
    rate = 0.123456789012
    odd = GridRow({"layout": True, "rate": rate, "parts": 1}, OutcomeKind.CRASHED, 1.0, "signal-9")
    write_grid(tmp_path / "odd.gz", replace(grid, rows=(grid.baseline, odd)))
    (_, found) = read_grid(tmp_path / "odd.gz").rows
    assert Config(found.config) == Config(layout=True, rate=rate, parts=1)


def rewritten(file: Path, change: Callable[[Lines], Any]) -> Path:
    """The file with its lines changed."""
    lines = [json.loads(line) for line in gzip.decompress(file.read_bytes()).splitlines()]
    change(lines)
    text = "".join(line if isinstance(line, str) else json.dumps(line) + "\n" for line in lines)
    file.write_bytes(gzip.compress(text.encode()))
    return file


@pytest.mark.parametrize(
    ("change", "place", "says"),
    [
        (lambda lines: lines[0].update(schema=2), "", "has schema 2"),
        (lambda lines: lines[0].pop("knobs"), "line 1", "header lacks knobs"),
        (lambda lines: lines[0]["knobs"][0].update(as_written=9), "line 1", "workers.as_written is 9"),
        (lambda lines: lines[3].update(seconds="soon"), "line 4", "row.seconds is 'soon'"),
        (lambda lines: lines[3].update(seconds=-1.0), "line 4", "row.seconds is -1"),
        (lambda lines: lines[3].update(seconds="inf"), "line 4", "row.seconds is inf"),
        (lambda lines: lines[3].update(kind="fine"), "line 4", "row.kind is 'fine'"),
        (lambda lines: lines[3]["config"].update(workers=3), "line 4", "row.config.workers is 3"),
        (lambda lines: lines[3]["config"].update(workers=True), "line 4", "row.config.workers is True"),
        (lambda lines: lines[1]["reading"].update(blocks=[[1.0, 0.0]]), "line 2", "seconds above"),
        (lambda lines: lines[1]["reading"].update(blocks=[[1.0]]), "line 2", "a list of 2"),
        (lambda lines: lines[1]["reading"].update(blocks=[]), "line 2", "counted nothing"),
        (lambda lines: lines[1].pop("reading"), "line 2", "row.reading is missing"),
        (lambda lines: lines.append(lines[5]), "", "is that of line 6"),
        (lambda lines: lines.pop(1), "", "no measurement of the script as written"),
        (lambda lines: lines.insert(3, "[]\n"), "line 4", "not an object"),
        (lambda lines: lines.insert(3, "{\n"), "line 4", "not JSON"),
        (lambda lines: lines.clear(), "line 1", "nothing is there"),
    ],
)
def test_what_is_wrong_is_named_with_its_place(
    file: Path, change: Callable[[Lines], Any], place: str, says: str
) -> None:
    with pytest.raises(GridError) as raised:
        read_grid(rewritten(file, change))
    assert raised.value.slug == "grid" and raised.value.hint
    assert str(file) in raised.value.message and place in raised.value.message and says in raised.value.message


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"no gzip", id="not gzip"),
        pytest.param(gzip.compress(b"\xff\xfe"), id="not UTF-8"),
        pytest.param(gzip.compress(b"x" * 99)[:-9], id="cut off"),
    ],
)
def test_what_is_no_such_file_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "grid.gz").write_bytes(content)
    with pytest.raises(GridError):
        read_grid(tmp_path / "grid.gz")


def test_a_file_that_unpacks_to_more_than_any_grid_is_refused(tmp_path: Path) -> None:
    (tmp_path / "grid.gz").write_bytes(gzip.compress(b" " * (65 * 2**20)))
    with pytest.raises(GridError, match="more than"):
        read_grid(tmp_path / "grid.gz")


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(GridError, match="No such file"):
        read_grid(tmp_path / "grid.gz")
