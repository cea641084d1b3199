"""Data that hold a file open: forked workers would share the place at which it is read, and mix samples up."""

from __future__ import annotations

import io
import logging
import os
import sqlite3
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.copied_data import Begin, Rows, left_out
from support.torch_trials import begin

__all__ = ["begin"]
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")  # files that go with the data that hold them
ROWS, BYTES, SCALE = 96, 8, 128
LOG = logging.getLogger("rows")
Held = Callable[[Path], Any]


class Numbered(Rows):
    """Each row is its number, read from a file that is open from the beginning; another process may come between."""

    def __init__(self, file: Any) -> None:
        super().__init__()
        self.file = file

    def __getitem__(self, index: int) -> Any:
        self.file.seek(index * BYTES)
        time.sleep(0.001)
        return torch.full((5,), float(self.file.read(BYTES)) / SCALE), self.y[index]


class Own(Numbered):
    """Opens it anew in each process."""

    def __init__(self, file: Any) -> None:
        super().__init__(file)
        self.pid = os.getpid()

    def __getitem__(self, index: int) -> Any:
        if os.getpid() != self.pid:
            self.pid, self.file = os.getpid(), open(self.file.name, "rb", buffering=0)  # noqa: SIM115  # in a worker
        return super().__getitem__(index)


class Placeless(Numbered):
    """Reads without a place of the file's own."""

    def __getitem__(self, index: int) -> Any:
        return torch.full((5,), float(os.pread(self.file.fileno(), BYTES, index * BYTES)) / SCALE), self.y[index]


class Holding(Rows):
    """Holds something beside its rows, and tells a log of what it reads."""

    def __init__(self, held: Any) -> None:
        super().__init__()
        self.held = held

    def __getitem__(self, index: int) -> Any:
        LOG.debug("%d of %s", index, self.held)
        return super().__getitem__(index)


class Through(Rows):
    """Read its file through as it was made, and holds it still."""

    def __init__(self, held: Any) -> None:
        super().__init__()
        self.held = held


class OfWorkers(Numbered):
    """Opens it anew in each worker."""

    def __getitem__(self, index: int) -> Any:
        if torch.utils.data.get_worker_info() is not None:
            self.file = open(self.file.name, "rb", buffering=0)  # noqa: SIM115  # each sample
        return super().__getitem__(index)


@pytest.fixture
def numbers(tmp_path: Path) -> Path:
    path = tmp_path / "numbers"
    path.write_text("".join(f"{number:<{BYTES}d}" for number in range(ROWS)))
    return path


def test_no_config_mixes_up_what_is_read_from_an_open_file(begin: Begin, numbers: Path) -> None:
    """Two workers gave rows of other numbers than they were asked for, and the knob was told to be verified."""
    trial = begin({"num_workers": 2})
    with numbers.open("rb", buffering=0) as file:
        loader = torch.utils.data.DataLoader(Numbered(file), batch_size=4, shuffle=True)
        model = torch.nn.Linear(5, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
        read: list[float] = []
        for x, y in loader:
            read += (x[:, 0] * SCALE).tolist()
            torch.nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
    trial.end()
    assert sorted(read) == list(range(ROWS))
    evidence, reason = trial.evidence("num_workers")
    assert evidence == "not applicable" and reason.startswith("dataset.file is open when the loader is made")


@pytest.mark.slow  # 6 s beside three others
@pytest.mark.parametrize(
    ("held", "path"),
    [
        pytest.param(lambda numbers: numbers.open("rb"), "dataset.held", marks=pytest.mark.slow),
        pytest.param(lambda numbers: numbers.open(), "dataset.held", marks=pytest.mark.slow),
        (lambda numbers: {"train": [numbers.open("rb")]}, "dataset.held['train'][0]"),
        (lambda numbers: zipfile.ZipFile(_zipped(numbers)), "dataset.held.fp"),
        (lambda numbers: sqlite3.connect(numbers.with_suffix(".db")), "dataset.held"),
    ],
    ids=["bytes", "text", "in containers", "zip", "database"],
)
def test_what_is_open_keeps_the_loader_without_workers(begin: Begin, numbers: Path, held: Held, path: str) -> None:
    found = left_out(begin, Holding(held(numbers)))
    assert found.keys() == {"num_workers"} and found["num_workers"].startswith(f"{path} is open")
    assert left_out(begin, Holding(held(numbers)), num_workers=1).keys() == {"num_workers"}


def _zipped(path: Path) -> Path:
    archive = path.with_suffix(".zip")
    with zipfile.ZipFile(archive, "w") as file:
        file.write(path)
    return archive


@pytest.mark.parametrize(
    "held",
    [
        lambda numbers: numbers.with_suffix(".log").open("a"), lambda numbers: io.BytesIO(b"in memory"),
        lambda numbers: (sys.__stdin__, sys.__stderr__), lambda numbers: _closed(numbers.open("rb")),
        lambda numbers: _closed(sqlite3.connect(numbers.with_suffix(".db"))),
        lambda numbers: _row(sqlite3.connect(numbers.with_suffix(".db"))),
    ],
    ids=["log", "in memory", "the process's own", "closed", "a closed database", "a row of a database"],
)  # fmt: skip
def test_what_no_worker_reads_is_no_obstacle(begin: Begin, numbers: Path, held: Held) -> None:
    handler = logging.FileHandler(numbers.with_suffix(".told"))
    LOG.addHandler(handler)
    try:
        assert left_out(begin, Holding(held(numbers))) == {}
    finally:
        LOG.removeHandler(handler)
        handler.close()


def _row(connection: sqlite3.Connection) -> Any:
    connection.row_factory = sqlite3.Row
    return connection.execute("SELECT 1").fetchone()


def _closed(file: Any) -> Any:
    file.close()
    return file


@pytest.mark.parametrize("kind", [Own, Placeless, OfWorkers, Through])
def test_code_that_reads_for_each_process_by_itself_may_have_workers(
    begin: Begin, numbers: Path, kind: Callable[[Any], Any]
) -> None:
    with numbers.open("rb", buffering=0) as file:
        assert left_out(begin, kind(file)) == {}


@pytest.mark.parametrize("options", [{"num_workers": 2}, {"worker_init_fn": lambda worker: None}])
def test_a_script_that_has_seen_to_it_is_left_to_it(begin: Begin, numbers: Path, options: dict[str, Any]) -> None:
    with numbers.open("rb") as file:
        assert "num_workers" not in left_out(begin, Holding(file), **options)
