"""How many samples a batch holds, whatever it is made of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from tuner.child.torch.batches import Asked, asked_for, leading_dimension, tensors_of

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
