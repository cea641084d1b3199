"""How many samples a batch holds, whatever it is made of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from tuner.child.torch.batches import (
    Asked,
    asked_for,
    leading_dimension,
    ready_rows,
    shows_one,
    tensors_of,
    told_apart_by,
)

Lengths = Sequence[int]


def _flat(lengths: Lengths) -> Any:
    """Tokens of all samples in a row, and how many each has."""
    return torch.zeros(sum(lengths)), torch.tensor(lengths)


def _counted(batches: Sequence[Any], asked: int) -> list[int]:
    counts = Asked()
    return [counts.count(torch, batch, asked) for batch in batches]


@pytest.mark.parametrize("first", [(1, 1, 1, 1), (3, 5, 2, 6), (9, 9, 9, 1)])
def test_tokens_in_a_row_are_no_samples(first: Lengths) -> None:
    """In the first batch each sample may have one token by accident; the last batch is a short one."""
    batches = [_flat(lengths) for lengths in (first, (2, 3, 4, 1), (7, 1, 1, 1), (1, 1, 1))]
    assert _counted(batches, 4) == [4, 4, 4, 3]
    assert _counted([batch[::-1] for batch in batches], 4) == [4, 4, 4, 3]


def test_samples_along_the_first_dimension_show_in_a_short_batch() -> None:
    rows = [torch.zeros(8, 3), torch.zeros(8, 3), torch.zeros(5, 3)]
    assert _counted(rows, 8) == [8, 8, 5]
    assert _counted([{"x": row, "y": row[:, 0]} for row in rows], 8) == [8, 8, 5]
    assert _counted([torch.nested.nested_tensor(list(row), layout=torch.jagged) for row in rows], 8) == [8, 8, 5]


def test_samples_along_another_dimension_are_those_asked_for() -> None:
    assert _counted([torch.zeros(3, 8), torch.zeros(4, 8)], 8) == [8, 8]


def test_a_batch_larger_than_the_data_is_the_data() -> None:
    assert _counted([torch.zeros(6, 2), torch.zeros(6, 2)], 100) == [6, 6]


def test_of_as_many_tensors_the_first_one_tells() -> None:
    assert [leading_dimension(torch, _flat(lengths)[::-1]) for lengths in ((9, 1), (30, 35), (2, 6))] == [2, 2, 2]


ONE_ITEM = {
    "collated as usual": (torch.zeros(1, 9), torch.zeros(1)),
    "listed, of any size": ([torch.zeros(3, 9, 9)], [{"boxes": torch.zeros(3, 4)}]),
    "along the second dimension": (torch.zeros(9, 1, 5), torch.zeros(9, 1)),
    "without a tensor": (["a text"], 3),
}
UNTOLD = {
    "a video and its label": (torch.zeros(300, 3, 9, 9), torch.tensor(1)),
    "a sentence and its tags": (torch.zeros(12), torch.zeros(12)),
}
READY = {
    "inputs and targets": (torch.zeros(128, 13), torch.zeros(3, 128), torch.zeros(128, 1)),
    "by name": {"x": torch.zeros(128, 13), "y": torch.zeros(128)},
}


@pytest.mark.parametrize("batch", ONE_ITEM.values(), ids=ONE_ITEM)
def test_one_item_shows_as_one(batch: Any) -> None:
    assert shows_one(torch, batch)
    assert ready_rows(torch, batch) == 0


@pytest.mark.parametrize("batch", UNTOLD.values(), ids=UNTOLD)
def test_what_one_item_holds_is_no_batch_where_it_may_be_a_single_sample(batch: Any) -> None:
    assert not shows_one(torch, batch)
    assert ready_rows(torch, batch) == 0


@pytest.mark.parametrize("batch", READY.values(), ids=READY)
def test_an_item_that_is_a_batch_holds_its_rows(batch: Any) -> None:
    assert not shows_one(torch, batch)
    assert ready_rows(torch, batch) == 128


@pytest.mark.parametrize("index", [[3, 4], (3, 4), range(2), torch.tensor([3, 4])])
def test_a_sampler_may_give_any_sequence(index: Any) -> None:
    assert asked_for(index) == 2


def test_what_has_no_length_asks_for_nothing_that_is_known() -> None:
    assert asked_for(iter([3, 4])) == 0


class Table:
    """As a data frame: its keys are a method, its values an array."""

    values = ((1.0,),)

    def keys(self) -> list[str]:
        return ["a"]


class Raises:
    """A proxy whose attributes can't be asked for."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(name)


@pytest.mark.parametrize("batch", ["a table", "raises", None])
def test_what_cant_be_looked_into_holds_no_tensors(batch: Any) -> None:
    batch = {"a table": Table(), "raises": {"a": Raises()}}.get(batch, batch)
    assert tensors_of(torch, batch) == []
    row = torch.zeros(2)
    [found] = tensors_of(torch, (batch, row))
    assert found is row


def test_batches_of_other_samples_are_told_apart_where_anything_in_them_differs() -> None:
    one, other = torch.randn(4, 8), torch.randn(4, 8)
    mask = torch.ones(4, 16, dtype=torch.bool)
    batches: list[Any] = [(one, mask), (one.clone(), mask), (other, mask), {"x": [one, mask]}]
    told = [told_apart_by(torch, batch) for batch in batches]
    assert told[0] and told[0] == told[1] == told[3] != told[2]
    assert told_apart_by(torch, (mask, torch.zeros(4), torch.arange(4))) == "", "too few unlike numbers"
    assert told_apart_by(torch, "no tensors") == ""
