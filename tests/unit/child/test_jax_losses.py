"""Which result of a call is the loss."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tuner.child.jax.losses import LossPlace


def number(dtype: str = "float32", shape: tuple[int, ...] = ()) -> SimpleNamespace:
    return SimpleNamespace(dtype=dtype, shape=shape)


def test_it_is_the_value_whose_gradient_was_taken() -> None:
    loss, other = number(), number()
    place = LossPlace()
    place.differentiated(loss, "train.py:3")
    place.differentiated(other, "train.py:4")
    place.traced([("['loss']", number()), ("[1]", other), ("[2]", loss)])
    assert place.of(["a", "b", "c"]) == "c" and place.site == "train.py:3"


@pytest.mark.parametrize(
    ("paths", "found"),
    [
        ([("['accuracy']", number()), ("['loss']", number())], 1),
        ([(".loss", number("int32")), (".train_loss", number("bfloat16"))], 1),
        ([("['loss']", number(shape=(4,)))], None),
        ([("['loss']", number()), ("['l2_loss']", number())], None),
        ([("[0]", number())], None),
    ],
)
def test_else_it_is_the_only_number_that_is_called_so(
    paths: list[tuple[str, SimpleNamespace]], found: int | None
) -> None:
    for seen in ("traced", "ran"):
        place = LossPlace()
        place.differentiated(number(), "train.py:3")
        getattr(place, seen)(paths)
        leaves = [leaf for _, leaf in paths]
        assert place.of(leaves) is (None if found is None else leaves[found])
        assert place.is_known
