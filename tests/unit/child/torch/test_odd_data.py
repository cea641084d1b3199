"""Data of classes that answer otherwise than Python's own: a look at them raises nothing, and makes no item."""

from __future__ import annotations

import functools
import itertools
import random
from collections.abc import Callable, Iterator
from time import process_time
from typing import Any, SupportsIndex

import pytest
import torch

from tuner.child.data_state import StateWatch, kept_in, state_of
from tuner.child.torch import open_files, samplers
from tuner.child.torch.copies import refusals
from tuner.child.torch.datasets import shards_itself


class NoAttributes:
    """As a proxy whose object isn't there."""

    @property
    def __dict__(self) -> Any:  # type: ignore[override]  # as a proxy has it
        raise RuntimeError


class NoClass:
    """As a proxy, which tells its object's class for its own."""

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError(name)


class Made(list[Any]):
    """Makes each item as it is asked for, by the script's random numbers."""

    def __len__(self) -> int:
        raise RuntimeError

    def __getitem__(self, index: SupportsIndex | slice) -> Any:
        return random.random()


class Late(dict[str, Any]):
    """Reads its items from a disk."""

    def items(self) -> Any:
        raise RuntimeError


class Pointed:
    """Looks like a tensor, as the storage of one does."""

    def data_ptr(self) -> int:
        return 0


class Count(int):
    """Compares itself with nothing."""

    def __eq__(self, other: object) -> bool:
        raise RuntimeError

    __ne__ = __eq__
    __hash__ = int.__hash__


class Unseen(float):
    """Shows itself to nobody."""

    def __repr__(self) -> str:
        raise RuntimeError


class Stream(torch.utils.data.IterableDataset[Any]):  # type: ignore[misc]  # PyTorch may lack types where this is checked
    """Shares itself out, and draws by a generator that is found behind what is odd."""

    def __init__(self, odd: object) -> None:
        self.odd = odd
        self.chance = random.Random(1)

    def __iter__(self) -> Iterator[Any]:
        worker = torch.utils.data.get_worker_info()
        return iter(range(worker.id if worker else 0, self.chance.randrange(9), worker.num_workers if worker else 1))


@pytest.mark.parametrize(
    "made",
    [
        NoAttributes, NoClass, lambda: Made([1]), lambda: Late(a=1), Pointed, torch.zeros(2).untyped_storage,
        lambda: Count(3), lambda: Unseen(2),
    ],
)  # fmt: skip
def test_what_lies_behind_an_odd_value_is_seen(made: Callable[[], object]) -> None:
    """Each of these raised its own error into the script, or hid what came after it from sight."""
    data, watch = Stream(made()), StateWatch()
    assert shards_itself(data)
    assert refusals({"dataset": data})["num_workers"].startswith("dataset.chance draws")
    assert "dataset.chance" in state_of({"dataset": data})
    data.__dict__["kept"] = {1: 2}
    assert kept_in({"dataset": data})["dataset.kept"] == 1
    assert not any(watch.read(lambda: {"dataset": data}) for _ in range(9))


def test_no_item_is_made_for_a_look() -> None:
    """Random numbers of the script's were drawn for it, and its training went on with others."""
    data, before = Stream(Made([0.5])), random.getstate()
    assert state_of({"dataset": data})["dataset.odd[0]"] == "0.5"
    assert kept_in({"dataset": data})["dataset.odd"] == 1
    refusals({"dataset": data})
    assert random.getstate() == before


class Drawn(list[float]):
    """A list that is a dataset, and changes its items by a generator of its own."""

    def __init__(self, rows: list[float]) -> None:
        super().__init__(rows)
        self.chance = random.Random(1)

    def __getitem__(self, index: SupportsIndex | slice) -> Any:
        return self.chance.random()


class Settings(dict[str, Any]):
    """A dictionary whose items are its attributes, as libraries have it."""

    def __init__(self, **items: Any) -> None:
        super().__init__(items)
        self.__dict__ = self


def test_a_list_or_a_dictionary_may_have_attributes() -> None:
    """They were not looked at: each worker would draw the numbers of the others."""
    assert refusals({"dataset": Drawn([0.0])})["num_workers"].startswith("dataset.chance draws")
    assert state_of({"data": Settings(scale=2)})["data.scale"] == 2


class Row:
    """Keeps what was read of it, as all rows of its class do in one place."""

    @functools.lru_cache(maxsize=None)  # noqa: B019, UP033  # as scripts have it
    def read(self) -> list[Any]:
        return [*range(64)]


def test_a_cache_of_many_rows_is_looked_into_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was once for each of the rows: that took seconds where the loader was made."""
    looks, rows = itertools.count(), [Row() for _ in range(128)]
    assert sum(len(row.read()) for row in rows) == 128 * 64
    monkeypatch.setattr(open_files, "values", lambda roots: iter([("", next(looks), None)]))
    assert [look for _, look in open_files._cached([("", row, None) for row in rows])] == [0]


@pytest.mark.slow  # 4 s beside three others
def test_of_many_bytes_few_are_read() -> None:
    """A look took a second for each gigabyte."""
    data = bytearray(1 << 28)
    before = state_of({"data": data})
    began = process_time()
    for _ in range(8):
        state_of({"data": data})
    assert process_time() - began < 0.1, "8 x 256 MiB took 2 s"
    data[0] = 1
    assert state_of({"data": data}) != before


class Ordered(torch.utils.data.Sampler[int]):  # type: ignore[misc]  # likewise
    """A sampler of the script's own."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(8))

    def __len__(self) -> int:
        return 8


def test_a_sampler_is_looked_at_in_few_iterations(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was in each of them, so that all that was measured had the looks in it."""
    looks = itertools.count()
    monkeypatch.setattr(samplers, "state_of", lambda roots: {"look": next(looks)})
    watch = samplers.SamplerWatch()
    loader = torch.utils.data.DataLoader(range(8), sampler=Ordered())
    for _ in range(9):
        iterator = iter(loader)
        for _ in range(8):
            watch.ask(type(iterator)._next_index, iterator, loader, None)
    assert next(looks) == 3 * 2 * min(8, samplers.MOST_LOOKS)
