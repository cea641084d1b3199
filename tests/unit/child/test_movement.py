"""How far watched weights go, look by look."""

from __future__ import annotations

import math

import pytest

from tuner.child.movement import CHANGES, ELEMENTS, TENSORS, Movement, spread, stride


def test_the_path_is_the_sum_of_what_each_tensor_moved_by() -> None:
    values = [[[0.0, 0.0], [1.0]], [[3.0, 4.0], [1.0]], [[3.0, 4.0], [3.0]], [[3.0, 4.0], [3.0]]]
    movement = Movement("SGD", lambda: values.pop(0))
    for _ in range(4):
        movement.look()
    assert (movement.record.steps, movement.record.path) == (3, 7.0)


def test_weights_that_cannot_be_read_yet_count_from_when_they_can() -> None:
    answers: list[list[list[float]] | None] = [None, [], [[0.0]], [[1.5]], None]

    def read() -> list[list[float]]:
        answer = answers.pop(0)
        if answer is None:
            raise RuntimeError("not made yet")
        return answer

    movement = Movement("SGD", read)
    for _ in range(3):
        movement.look()
    assert movement.record.steps == 0
    movement.look()
    assert (movement.record.steps, movement.record.path) == (1, 1.5)
    movement.look()
    assert (movement.record.steps, movement.record.path) == (0, 0.0), "how much further they went isn't known"


def test_weights_that_are_made_between_two_looks_count_from_then_on() -> None:
    """TensorFlow gives no elements of what a graph has yet to make: the script ended with an error of ours."""
    answers: list[list[list[float]]] = [[[], []], [[0.0, 0.0], [1.0]], [[3.0, 4.0], [1.0]]]
    movement = Movement("GradientTape", lambda: answers.pop(0))
    movement.look()
    assert movement.record.steps == 0
    movement.look()
    movement.look()
    assert (movement.record.steps, movement.record.path) == (1, 5.0)


def test_changes_are_from_the_first_look_to_the_last() -> None:
    values = [[], [[1.0, 0.0], [1.0]], [[3.0, 4.0], [1.0]], [[2.0, 1.23456], [-1.0]]]
    movement = Movement("SGD", lambda: values.pop(0))
    assert not movement.record.changes
    for _ in range(4):
        movement.look()
    assert movement.record.changes == ((1.0, 1.235), (-2.0,))


@pytest.mark.parametrize("last", [[[math.nan]], [[math.inf]], [[1.0, 2.0]], [[1.0], [2.0]]])
def test_what_is_no_number_or_of_other_elements_has_no_changes(last: list[list[float]]) -> None:
    values = [[[0.0]], [[1.0]], last]
    movement = Movement("SGD", lambda: values.pop(0))
    for _ in range(3):
        movement.look()
    assert movement.record.changes == ()


def test_of_many_elements_some_are_told() -> None:
    values = [[[0.0] * ELEMENTS], [[float(place) for place in range(ELEMENTS)]]]
    movement = Movement("SGD", lambda: values.pop(0))
    for _ in range(2):
        movement.look()
    assert movement.record.changes == (tuple(float(place) for place in range(0, ELEMENTS, ELEMENTS // CHANGES)),)


@pytest.mark.parametrize("count", [1, TENSORS, TENSORS + 1, 1000])
def test_a_sample_is_spread_over_all(count: int) -> None:
    places = spread(count)
    assert len(places) == len(set(places)) == min(count, TENSORS) and places[0] == 0 and places[-1] >= count * 0.9 - 1
    assert 0 < len(range(0, count, stride(count))) <= ELEMENTS


@pytest.mark.parametrize("jumps", [1, 4])
def test_where_the_weights_were_set_anew_no_change_tells_how_they_were_trained(jumps: int) -> None:
    """Steps of 0.1 are a hundredth of a jump: a config that trains half as far seemed to go the same way."""
    values = [0.1 * step + 10.0 * (step * (jumps + 1) // 40) for step in range(40)]
    movement = Movement("SGD", lambda: [[values.pop(0)]])
    for _ in range(40):
        movement.look()
    assert (movement.record.steps, movement.record.changes) == (39, ())


def test_steps_of_different_lengths_are_no_jumps() -> None:
    """A warm-up, a schedule, a decay, and calls after which these weights stay where they are."""
    rates = [*(0.01 * step for step in range(20)), *([0.2, 0.0] * 10), *(0.2 * 0.9**step for step in range(20))]
    values = [sum(rates[:step]) for step in range(len(rates) + 1)]
    count = len(values)
    movement = Movement("SGD", lambda: [[values.pop(0)]])
    for _ in range(count):
        movement.look()
    assert len(movement.record.changes) == 1
