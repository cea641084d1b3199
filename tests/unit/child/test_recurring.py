"""What comes between steps: set apart as it is in the script as written, whatever a config makes of the steps."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from tuner.child.records import Knowledge, Value
from tuner.child.recurring import Recurring


def decided(recurring: Recurring, steps_between: int, times: int = 4) -> list[bool]:
    """Whether a source is part of the step each time, behind its first one after as many steps."""
    return [recurring.is_part_of_step("a source", n * steps_between, set()) for n in range(1, times + 1)]


@pytest.mark.parametrize(("between", "is_part"), [(1, True), (2, True), (3, False), (100, False)])
def test_a_script_as_written_sets_apart_what_comes_after_some_steps(between: int, is_part: bool) -> None:
    recurring = Recurring()
    assert decided(recurring, between) == 4 * [is_part]
    assert recurring.set_apart == ("nothing" if is_part else "all")


def test_nothing_is_known_of_a_loop_in_which_nothing_came_between_steps() -> None:
    assert Recurring().set_apart == ""


def test_looks_before_training_say_nothing() -> None:
    recurring = Recurring()
    assert all(recurring.is_part_of_step("a source", 0, set()) for _ in range(2))
    assert decided(recurring, 10) == 4 * [False]
    assert recurring.set_apart == "all"


def test_what_is_seen_again_while_it_is_set_apart_is_no_step() -> None:
    recurring = Recurring()
    for steps in (10, 20):
        assert not recurring.is_part_of_step("a source", steps, set())
        assert not recurring.is_part_of_step("a source", steps, {"a source"})
    assert recurring.set_apart == "all"


@pytest.mark.parametrize(
    ("written", "config", "between", "is_part"),
    [
        (Knowledge(set_apart="all", as_written={"batch_size": 64}), {"batch_size": 512}, 2, False),
        (Knowledge(set_apart="all", as_written={"batch_size": 64}), {"batch_size": 512}, 1, False),
        (Knowledge(as_written={"batch_size": 64}), {"batch_size": 512}, 2, True),
        (Knowledge(set_apart="some", as_written={"batch_size": 64}), {"batch_size": 8}, 3, False),
        (Knowledge(set_apart="nothing", as_written={"batch_size": 64}), {"batch_size": 32}, 4, True),  # two as written
        (Knowledge(set_apart="nothing", as_written={"batch_size": 64}), {"batch_size": 32}, 6, False),
        (Knowledge(as_written={"batch_size": 64}), {"batch_size": 32, "grad_accumulation": 2}, 3, False),
        (Knowledge(set_apart="nothing", as_written={"batch_size": "auto"}), {"batch_size": 32}, 3, False),
        (Knowledge(), {"num_workers": 2}, 3, False),
    ],
)
def test_a_config_decides_as_the_script_as_written(
    written: Knowledge, config: Mapping[str, Value], between: int, is_part: bool
) -> None:
    recurring = Recurring()
    recurring.decide_as(written, config)
    assert decided(recurring, between) == 4 * [is_part]


def test_some_of_what_comes_is_part_of_the_steps() -> None:
    recurring = Recurring()
    for steps in range(1, 21):
        assert recurring.is_part_of_step("a teacher", steps, set())
        if not steps % 10:
            assert not recurring.is_part_of_step("a validation", steps, set())
    assert recurring.set_apart == "some"


def test_batches_that_a_step_accumulates_lie_between_as_steps_do() -> None:
    recurring = Recurring()
    for steps in range(5):
        for _ in range(4):
            recurring.batches += 1
            assert recurring.is_part_of_step("a teacher", steps, set())
        assert not recurring.is_part_of_step("a validation", steps + 1, set())


def test_what_is_known_to_be_validated_on_is_part_of_no_step_with_all_that_shows_there() -> None:
    recurring = Recurring()
    for steps in (1, 2, 3):
        recurring.validates_on("held out", is_so=steps > 1)
        assert recurring.is_part_of_step("held out", steps, set()) == (steps == 1)
        assert recurring.is_part_of_step("a model", steps, {"held out"} if steps > 1 else set()) == (steps == 1)
    recurring.validates_on("held out", is_so=False)
    assert recurring.is_part_of_step("held out", 4, set()), "it trains by now"


def test_what_went_unseen_with_its_batches_lies_between_nothing() -> None:
    recurring = Recurring()
    recurring.is_part_of_step("a teacher", 1, set())
    recurring.batches += 40
    recurring.missed(10)
    recurring.batches += 1
    assert recurring.is_part_of_step("a teacher", 12, set())
