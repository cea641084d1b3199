"""What the declared knobs take, and what they are called."""

from __future__ import annotations

import pytest

from search_spaces.torch import SPACE
from tuner.errors import UnknownKnobError, UsageError


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("batch_size", "abc", "whole number"),
        ("batch_size", 0, "at least 1"),
        ("num_workers", 3.5, "whole number"),
        ("num_workers", True, "whole number"),
        ("pin_memory", 1, "true or false"),
        ("precision", 16, "a word"),
    ],
)
def test_a_slip_in_a_pinned_value_is_told(name: str, value: bool | int | float | str, says: str) -> None:
    with pytest.raises(UsageError, match=says) as raised:
        SPACE.knob(name).check(value)
    assert f"{name}={value}" in str(raised.value)


def test_values_that_fit_are_taken() -> None:
    for name, value in (("batch_size", 1), ("num_workers", 0), ("pin_memory", False), ("precision", "bf16")):
        SPACE.knob(name).check(value)


def test_a_misspelled_knob_is_recognised() -> None:
    with pytest.raises(UnknownKnobError) as raised:
        SPACE.knob("batchsize")
    assert raised.value.hint.startswith("did you mean 'batch_size'?")
