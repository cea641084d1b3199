"""Rows of nested arguments: what is taken apart and put together again is what it was, and what can't be is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tuner.child.torch.rows import (
    NO_ROWS,
    Given,
    UnsplittableError,
    alike,
    copied,
    count,
    exchanged,
    joined,
    part,
    signature,
    tensors,
)

ROWS = 7
LEAVES: Any = st.one_of(
    st.builds(lambda *shape: torch.rand((ROWS, *shape)), *[st.integers(1, 3)] * 2),
    st.builds(lambda: torch.arange(ROWS)),
    st.none(), st.booleans(), st.integers(0, 3), st.text(max_size=3),
)  # fmt: skip
TREES: Any = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.tuples(inner, inner), st.dictionaries(st.text(max_size=2), inner, max_size=3)
    ),
    max_leaves=6,
)


def same(one: Any, other: Any) -> bool:
    """Whether two nested values are equal, tensors element by element."""
    if isinstance(one, torch.Tensor):
        return bool(torch.equal(one, other))
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return type(one) is type(other) and len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


@given(tree=TREES, size=st.integers(1, ROWS))
def test_parts_make_up_the_whole(tree: Any, size: int) -> None:
    call = ((tree,), {"named": tree})
    edges = [(start, min(start + size, ROWS)) for start in range(0, ROWS, size)]
    pieces = [part(torch, call, ROWS, start, stop) for start, stop in edges]
    sizes = [stop - start for start, stop in edges]
    whole = joined(torch, [list(piece[0]) for piece in pieces], sizes)
    assert same(whole, [tree])
    assert same(joined(torch, [dict(piece[1]) for piece in pieces], sizes), {"named": tree})
    assert {signature(torch, piece, stop - start) for piece, (start, stop) in zip(pieces, edges, strict=True)} == {
        signature(torch, call, ROWS)
    }


@given(tree=TREES, start=st.integers(0, ROWS - 1), length=st.integers(1, ROWS))
def test_other_rows_are_exchanged_in_copies(tree: Any, start: int, length: int) -> None:
    stop = min(ROWS, start + length)
    call: Given = ((tree,), {})
    before = list(tensors(torch, copied(torch, call)))
    changed = list(tensors(torch, exchanged(torch, call, ROWS, start, stop)))
    for mine, own, other in zip(tensors(torch, call), before, changed, strict=True):
        assert torch.equal(torch.as_tensor(mine), torch.as_tensor(own)), "the call itself stays"
        kept, given_rows = torch.as_tensor(own), torch.as_tensor(other)
        assert torch.equal(kept[start:stop], given_rows[start:stop])
        rest = [row for row in range(ROWS) if not start <= row < stop]
        assert all(torch.equal(given_rows[row], kept[start]) for row in rest)


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (torch.nn.utils.rnn.pack_sequence([torch.rand(3, 2), torch.rand(2, 2)]), "PackedSequence"),
        ([0.5] * ROWS, "an entry for each sample"),
        (torch.rand(ROWS, 2).to_sparse(), "sparse"),
        (object(), "object"),
    ],
)
def test_an_argument_whose_rows_cant_be_told_is_refused(value: Any, why: str) -> None:
    with pytest.raises(UnsplittableError, match=why):
        part(torch, ((torch.rand(ROWS, 2), value), {}), ROWS, 0, 3)


def test_rows_are_those_of_the_expected_batch_else_of_the_first_tensor() -> None:
    call: Given = ((torch.rand(3, 3), {"x": torch.rand(ROWS, 2)}), {})
    assert (count(torch, call, ROWS), count(torch, call, 12), count(torch, call)) == (ROWS, 3, 3)
    with pytest.raises(UnsplittableError, match=NO_ROWS):
        count(torch, ((torch.tensor(1.0), 3), {}))


def test_answers_are_alike_up_to_rounding() -> None:
    one = {"a": torch.tensor([[1.0, -100.0], [float("nan"), float("-inf")]]), "b": torch.tensor([1, 2])}
    near = {"a": one["a"] + 1e-4, "b": one["b"]}
    assert alike(torch, one, near, 1e-3)
    assert not alike(torch, one, {"a": one["a"] + 1.0, "b": one["b"]}, 1e-3)
    assert not alike(torch, one, {"a": one["a"], "b": one["b"] + 1}, 1e-3)
    assert not alike(torch, one, {"a": one["a"][:1], "b": one["b"]}, 1e-3)
