"""How many batches are to lie ready, by the spread of the times that they took."""

from __future__ import annotations

from typing import Any

import pytest
from support import worlds

from search_spaces import keras, torch
from search_spaces.prefetch import LEFT, MOST_AHEAD, waiting
from tuner.knowledge import Knowledge
from tuner.model import Value
from tuner.space.arguments import extend_space, parse
from tuner.space.declare import Known
from tuner.space.resolve import resolve
from tuner.space.resolved import Axis

USUAL_S, SLOW_S, LOOP_S = 0.01, 0.3, 0.02
SPREAD = tuple(SLOW_S if place % 40 == 20 else USUAL_S for place in range(400))
EVEN = (USUAL_S,) * 400
TORCH: dict[str, Value] = {"num_workers": 0, "prefetch_factor": 2, "batch_size": 8, "grad_accumulation": 1}
KERAS: dict[str, Value] = {"prefetch": 0, "batch_size": 8, "grad_accumulation": 1}


def axis(waits: tuple[float, ...], loop_s: float = LOOP_S, **written: Value) -> Axis:
    knowledge = Knowledge(as_written={**TORCH, **written}, batch_waits=waits, loop_s=loop_s, dataset_len=10_000)
    space = resolve(torch.SPACE, Known(worlds.DEVICE, 4, knowledge=knowledge))
    return next(each for each in space.axes if each.knob.name == "prefetch_factor")


def of_keras(waits: tuple[float, ...], loop_s: float = LOOP_S, **written: Value) -> Axis:
    knowledge = Knowledge(as_written={**KERAS, **written}, batch_waits=waits, loop_s=loop_s)
    space = resolve(keras.SPACE, Known(worlds.DEVICE, 4, knowledge=knowledge))
    return next(each for each in space.axes if each.knob.name == "prefetch")


def test_one_batch_at_a_time_is_waited_for_whole() -> None:
    """With one on its way it is made while the loop computes: what takes longer than that is waited for."""
    assert waiting((0.03,) * 10, 0.02, 1, 1) == pytest.approx(0.01 / 0.03, rel=0.05)
    assert waiting((0.01,) * 10, 0.02, 1, 1) == 0.0


def test_of_workers_that_do_not_keep_up_no_number_of_batches_spares_the_wait() -> None:
    for depth in (1, 4, 64):
        assert waiting((0.12,) * 100, 0.02, 2, depth) == pytest.approx(1 - 0.02 / 0.06, rel=0.05)


def test_a_slow_batch_is_hidden_by_as_many_as_the_loop_takes_meanwhile() -> None:
    """It takes 15 steps: with the one worker that keeps up as many have to lie ready, and 15 steps later they do."""
    found = axis(SPREAD)
    assert found.values == (2, 4, 15)
    assert waiting(SPREAD, LOOP_S, 1, 15) <= LEFT < waiting(SPREAD, LOOP_S, 1, 13)
    assert found.told == "batches take 10 ms, one in a hundred 300 ms or more: 15 ahead hide that from steps of 20 ms"


def test_more_workers_have_fewer_batches_each() -> None:
    found = axis(SPREAD, 0.005)
    depth = found.values[-1]
    assert isinstance(depth, int) and f"{depth} ahead for each of 4 workers" in found.told
    assert waiting(SPREAD, 0.005, 4, depth) <= waiting(SPREAD, 0.005, 4, 64) + LEFT
    assert waiting(SPREAD, 0.005, 4, depth - 1) > waiting(SPREAD, 0.005, 4, 64) + LEFT


def test_slow_batches_in_a_row_take_more_than_one_by_itself() -> None:
    in_a_row = tuple(0.1 if place % 100 in (50, 51, 52, 53) else USUAL_S for place in range(400))
    apart = tuple(0.1 if place % 25 == 12 else USUAL_S for place in range(400))
    assert sum(in_a_row) == pytest.approx(sum(apart))
    deeper, depth = axis(in_a_row).values[-1], axis(apart).values[-1]
    assert isinstance(deeper, int) and isinstance(depth, int) and deeper > 2 * depth


@pytest.mark.parametrize(("make", "values"), [(axis, (2, 4)), (of_keras, (0, "auto", 1, 4))], ids=["torch", "keras"])
def test_even_batches_ask_for_no_more_than_a_few(make: Any, values: tuple[Value, ...]) -> None:
    found = make(EVEN)
    assert (found.values, found.told) == (values, "")


@pytest.mark.parametrize("waits", [(), SPREAD[:30]], ids=["unseen", "too-few"])
def test_where_nothing_is_known_the_usual_ones_are_tried(waits: tuple[float, ...]) -> None:
    assert axis(waits).values == (2, 4, 8)
    assert of_keras(waits).values == (0, "auto", 1, 4)
    assert axis(SPREAD, 0.0).values == (2, 4, 8), "nothing shows how long the loop takes"
    assert not axis(waits).told and not of_keras(waits).told


def test_a_pipeline_has_one_thread_that_fills_its_prefetch() -> None:
    found = of_keras(SPREAD)
    assert found.values == (0, "auto", 1, 4, 15)
    assert "15 ahead hide that" in found.told
    assert of_keras(SPREAD, prefetch=2).values == (2, "auto", 1, 4), "what it left isn't what they took"


def test_what_workers_leave_of_slow_batches_asks_for_more_than_they_have() -> None:
    left = tuple(0.2 if place % 40 == 20 else 0.0 for place in range(400))
    found = axis(left, num_workers=2)
    assert found.values == (2, 4, 7), "ten steps, which two workers share, beside the two that each has"
    assert found.told.startswith("batches keep the loop waiting for 0 ms, one in a hundred 200 ms or more")


def test_workers_that_are_too_few_show_no_spread() -> None:
    by_turns = tuple(0.1 if place % 4 == 0 else 0.0 for place in range(400))
    assert axis(by_turns, num_workers=4).values == (2, 4, 8)
    assert axis((0.0,) * 400, num_workers=4).values == (2, 4, 8)


def test_the_depth_ends_where_memory_would_not_do() -> None:
    depth = axis(tuple(3.0 if place == 200 else USUAL_S for place in range(400))).values[-1]
    assert isinstance(depth, int) and 50 < depth <= MOST_AHEAD, "150 steps would hide it"


def test_values_that_the_user_wrote_are_told_nothing_of() -> None:
    knowledge = Knowledge(as_written=TORCH, batch_waits=SPREAD, loop_s=LOOP_S, placeholders=("prefetch_factor",))
    space = extend_space(torch.SPACE, parse(["--p={prefetch_factor=2|3}"]))
    resolved = resolve(space, Known(worlds.DEVICE, 4, knowledge=knowledge))
    [found] = [each for each in resolved.axes if each.knob.name == "prefetch_factor"]
    assert (found.values, found.told) == ((2, 3), "")
