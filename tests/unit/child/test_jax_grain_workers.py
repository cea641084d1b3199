"""What workers of Grain's copy, and what the script gives them: with copies of their own they would read other data.

They run in the environment of `make test-jax`.
"""

from __future__ import annotations

import importlib.util
from functools import partial

import pytest

from tuner.child.grain import pipeline

pytestmark = pytest.mark.grain
if importlib.util.find_spec("grain") is not None:
    import grain


def prepare(name: str, index: int, count: int) -> None:
    """In each worker."""


def test_what_the_script_gives_its_workers_stays_where_their_number_does() -> None:
    """Or other knobs would have them read other samples, or read them unprepared."""
    given = {"sequential_slice": True, "worker_init_fn": partial(prepare, "name")}
    batches = grain.MapDataset.range(103).seed(3).shuffle().batch(8).to_iter_dataset()
    made = batches.mp_prefetch(grain.MultiprocessingOptions(num_workers=2), **given)
    turned = pipeline.look_at(pipeline.rebuilt(pipeline.look_at(made), {"prefetch_factor": 3, "read_threads": 2}))
    assert (turned.workers, turned.buffer, turned.threads, turned.fixed) == (2, 3, 2, pipeline.SEQUENTIAL)
    init = turned.given["worker_init_fn"]
    assert turned.given["sequential_slice"] and (init.func, init.args) == (prepare, ("name",))
