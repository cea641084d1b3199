"""Which result of a call is the loss."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tuner.child.jax.losses import place_of


def number(dtype: str = "float32", shape: tuple[int, ...] = ()) -> SimpleNamespace:
    return SimpleNamespace(dtype=dtype, shape=shape)


def test_it_is_the_value_whose_gradient_was_taken() -> None:
    loss = number()
    assert place_of(loss, [("['loss']", number()), ("[1]", number()), ("[2]", loss)]) == 2


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
    assert place_of(number(), paths) == place_of(None, paths) == found
