"""How much Grain makes at once beside a loop of JAX's, where that rests: trials by turns are told so.

They run in the environment of `make test-jax`.
"""

from __future__ import annotations

import importlib.util
import time
from itertools import islice
from typing import Any

import numpy
import pytest
from support.in_process import Log

from tuner.child.grain.adapter import GrainAdapter
from tuner.child.turns import Turns

pytestmark = pytest.mark.grain
if importlib.util.find_spec("grain") is not None:
    import grain
    from support.jax_here import jax
    from support.jax_trial import descend, loss_of, watched, weights


class Sleeping:
    """Samples that a storage takes a while for."""

    def __len__(self) -> int:
        return 10**5

    def __getitem__(self, number: int) -> Any:
        time.sleep(0.005)
        x = numpy.random.default_rng(number).normal(size=4).astype("float32")
        return {"x": x, "y": numpy.float32(x.sum())}


def read_by(threads: int, buffer: int) -> Any:
    return grain.ReadOptions(num_threads=threads, prefetch_buffer_size=buffer)


def singles(options: Any) -> Any:
    return grain.MapDataset.source(Sleeping()).to_iter_dataset(options).batch(8)


def whole(options: Any) -> Any:
    return grain.MapDataset.source(Sleeping()).batch(8).to_iter_dataset(options)


@pytest.mark.parametrize(
    ("made", "options", "at_work", "as_taken"),
    [
        (singles, (4, 64), 4, False), (whole, (4, 64), 4 * 8, False), (whole, (4, 4), 4 * 8, True),
        (whole, (8, 2), 2 * 8, True), (singles, (0, 0), 0, False),
    ],
    ids=["samples", "batches", "as they are taken", "a short buffer", "by the loop itself"],
)  # fmt: skip
def test_turns_are_told_what_threads_that_rest_read_at_once(
    made: Any, options: tuple[int, int], at_work: int, *, as_taken: bool
) -> None:
    with watched((GrainAdapter, grain)) as trial:
        turns, clock = Turns(Log(), -1), trial.session.clock
        update, params = jax.jit(jax.value_and_grad(loss_of)), weights()
        for number, batch in enumerate(islice(made(read_by(*options)), 12)):
            _, gradients = update(params, batch["x"], batch["y"])
            params = descend(params, gradients)
            if number > 8:
                time.sleep(0.1)
                clock.turns = turns
                trial.adapter.on_block()
                clock.turns = None  # none begins here
        assert (turns.at_work, turns.begins_as_taken) == (at_work, as_taken)
