"""What the trial's process says of the script as a whole."""

from __future__ import annotations

import pytest

from tuner.child.recorder import Recorder
from tuner.child.session import Session


@pytest.mark.parametrize(
    ("said", "framework"),
    [
        ([("torch", 0)], "torch"),
        ([("torch", 0), ("keras", 9)], "keras"),
        ([("keras", 9), ("torch", 0)], "keras"),
        ([("torch", 9), ("keras", 0)], "torch"),
        ([("torch", 9), ("keras", 9)], "keras"),
    ],
    ids=["nobody steps", "imported first", "imported later", "keras was only imported", "keras on torch"],
)
def test_the_framework_that_trains_is_the_one_whose_steps_were_seen(
    said: list[tuple[str, int]], framework: str
) -> None:
    session = Session({}, Recorder(None))
    for name, steps in said:
        session.trains_with(name, f"{name}'s version", steps=steps)
    assert session.facts == {"framework": framework, "framework_version": f"{framework}'s version"}
