"""Counters of data that lie in no attribute of theirs, and those that reading doesn't touch."""

from __future__ import annotations

import contextvars
import itertools
import os
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lmdb
import pytest
from support.copied_data import Rows

from tuner.child.data_state import StateWatch
from tuner.child.torch.copies import beside, refusals

READ = contextvars.ContextVar("READ", default=0)
PLACE = contextvars.ContextVar("PLACE", default="here")


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROWS_READ", "0")
    monkeypatch.setenv("ROWS_SCALE", "2")


class InEnvironment(Rows):
    """Makes each row a little harder than the one before, as a variable of the environment counts them."""

    def __getitem__(self, index: int) -> Any:
        os.environ["ROWS_READ"] = str(int(os.environ["ROWS_READ"]) + 1)
        return self.x[index] * int(os.environ["ROWS_READ"]), self.y[index]


class InContext(Rows):
    """The same in a context."""

    def __getitem__(self, index: int) -> Any:
        READ.set(READ.get() + 1)
        return self.x[index] * READ.get(), self.y[index]


class Settled(Rows):
    """Reads what is set in both, and what others change stands beside it."""

    def __getitem__(self, index: int) -> Any:
        assert PLACE.get()
        return self.x[index] * int(os.environ.get("ROWS_SCALE", "1")), self.y[index]


@pytest.mark.parametrize(("data", "told"), [(InEnvironment, "os.environ['ROWS_READ']"), (InContext, "READ.get()")])
def test_a_counter_beside_all_objects_is_seen(data: Callable[[], Any], told: str) -> None:
    """Workers were offered: each would have counted its own rows."""
    assert _changes(data()) == told


def test_what_is_only_read_there_is_no_reason() -> None:
    assert _changes(Settled()) == ""


def _changes(dataset: Any) -> str:
    """What changes while it is read for eight batches."""
    watch = StateWatch()

    def read(index: int) -> str:
        _ = dataset[index]
        os.environ["ROWS_READ"] = str(int(os.environ["ROWS_READ"]) + 1)  # the loop counts, too
        return watch.read(lambda: {"dataset": dataset, **beside({"dataset": dataset})})

    return "".join(read(index) for index in range(8))


class Words(Rows):
    """Numbers words as they come."""

    def __init__(self, ids: Any) -> None:
        super().__init__()
        self.ids = ids

    def __getitem__(self, index: int) -> Any:
        return self.x[index] * self.ids[str(index)], self.y[index]


class ByLength(Words):
    """By how many it knows already."""

    def __getitem__(self, index: int) -> Any:
        if str(index) not in self.ids:
            self.ids[str(index)] = len(self.ids)
        return super().__getitem__(index)


class ByDefault(Words):
    """The same in one call."""

    def __getitem__(self, index: int) -> Any:
        return self.x[index] * self.ids.setdefault(str(index), len(self.ids)), self.y[index]


class Cut(Words):
    """Cuts each row to its number of words, once and for all."""

    def __getitem__(self, index: int) -> Any:
        self.ids[index] = self.ids[index][: len(self.x)]
        return super().__getitem__(index)


def test_what_is_cut_where_it_lies_is_no_number() -> None:
    assert "num_workers" not in refusals({"dataset": Cut([[0] * 9] * 96)})


def _counting_itself() -> Any:
    ids: Any = defaultdict()
    ids.default_factory = ids.__len__
    return ids


@pytest.mark.parametrize(
    "made",
    [
        lambda: Words(defaultdict(itertools.count().__next__)), lambda: Words(_counting_itself()),
        lambda: ByLength({}), lambda: ByDefault({}),
    ],
    ids=["counter", "own length", "by length", "by default"],
)  # fmt: skip
def test_numbers_that_are_handed_out_as_the_data_are_read_are_a_reason(made: Callable[[], Any]) -> None:
    """Each worker would have handed out its own."""
    assert "ids" in refusals({"dataset": made()}).get("num_workers", "")


def test_so_they_are_where_some_were_handed_out_before() -> None:
    dataset = Words(defaultdict(itertools.count().__next__))
    _ = dataset[0]
    assert "num_workers" not in refusals({"dataset": dataset})
    assert _changes(dataset) == "dataset.ids"


class Vocabulary:
    """Is made by the script, word by word, and only looked up as the data are read."""

    def __init__(self) -> None:
        self.numbers, self.ids = itertools.count(), dict[str, int]()

    def add(self, word: str) -> None:
        self.ids[word] = next(self.numbers)

    def number(self, word: str) -> int:
        return self.ids[word]


class Drawing(Vocabulary):
    """Hands out a number with each look."""

    def number(self, word: str) -> int:
        return next(self.numbers)


class Looked(Rows):
    """Looks words up."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        super().__init__()
        self.vocabulary = vocabulary

    def __getitem__(self, index: int) -> Any:
        return self.x[index] * self.vocabulary.number(str(index)), self.y[index]


@pytest.mark.parametrize(("vocabulary", "refused"), [(Vocabulary, False), (Drawing, True)])
def test_a_counter_that_reading_does_not_touch_is_no_reason(vocabulary: Callable[[], Any], refused: bool) -> None:
    assert ("num_workers" in refusals({"dataset": Looked(vocabulary())})) == refused


class Stored(Rows):
    """Reads its rows from a database."""

    def __init__(self, held: Any) -> None:
        super().__init__()
        self.held = held

    def __getitem__(self, index: int) -> Any:
        with self.held.begin() as reading:
            return self.x[index] * len(reading.get(b"scale") or b"1"), self.y[index]


def test_an_environment_of_lmdb_is_open_until_it_is_closed(tmp_path: Path) -> None:
    """Its class says that it is one of Python's own, and workers were offered."""
    held = lmdb.open(str(tmp_path))
    try:
        assert "dataset.held is open" in refusals({"dataset": Stored(held)}).get("num_workers", "")
    finally:
        held.close()
    assert "num_workers" not in refusals({"dataset": Stored(held)})
