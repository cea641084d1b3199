"""What workers of Grain's copy, and what the script gives them: with copies of their own they would read other data.

They run in the environment of `make test-jax`.
"""

from __future__ import annotations

import importlib
import importlib.util
from functools import partial
from pathlib import Path
from typing import Any

import numpy
import pytest

from tuner.child.grain import ahead, pipeline, workers
from tuner.child.torch.copies import COUNTS, OWN

pytestmark = pytest.mark.grain
if importlib.util.find_spec("grain") is not None:
    import grain
    import jax


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


SHARED = numpy.random.default_rng(0)


def drawing(number: int) -> Any:
    return SHARED.random() + number


def why(transform: Any) -> str:
    """Why data that are transformed so get no workers."""
    shape = pipeline.look_at(grain.MapDataset.range(9).map(transform).to_iter_dataset())
    return workers.why_drawn(pipeline.parts_of(shape))


def test_a_generator_of_the_scripts_gets_no_workers() -> None:
    """It is sent with the code that names it: each worker would draw the same numbers."""
    assert why(drawing) == OWN.format("SHARED")


def drawing_from_numpy(number: int) -> Any:
    return numpy.random.normal() + number


def calling_jax(number: int) -> Any:
    return jax.numpy.asarray(number)


def plain(number: int) -> int:
    return number + 1


def why_not_ahead(dataset: Any) -> str:
    shape = pipeline.look_at(dataset)
    return ahead.why_not(shape, pipeline.parts_of(shape))


@pytest.mark.parametrize(
    ("transform", "why"),
    [
        (plain, ""), (drawing, workers.OWN_HERE.format("SHARED")), (calling_jax, workers.SET_OTHERWISE),
        (drawing_from_numpy, workers.DRAWS_HERE.format("drawing_from_numpy")),
    ],
)  # fmt: skip
def test_a_thread_makes_ahead_what_neither_draws_nor_calls_jax(transform: Any, why: str) -> None:
    assert why_not_ahead(grain.MapDataset.range(9).map(transform).to_iter_dataset()) == why


def test_batches_that_are_made_ahead_already_are_not_again() -> None:
    batches = grain.MapDataset.range(103).batch(8).to_iter_dataset()
    assert why_not_ahead(batches) == ""
    made = batches.mp_prefetch(grain.MultiprocessingOptions(num_workers=2))
    assert why_not_ahead(made) == ahead.BY_WORKERS
    thread = grain.experimental.ThreadPrefetchIterDataset(batches, prefetch_buffer_size=2)
    assert why_not_ahead(thread) == ahead.OWN


def drawing_elsewhere(number: int) -> Any:
    return augment.noisy(number)  # type: ignore[name-defined]  # noqa: F821  # set below, as a module of the script's


def test_what_draws_in_another_module_gets_no_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "augment.py").write_text("import numpy\ndef noisy(number):\n    return number + numpy.random.rand()\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(globals(), "augment", importlib.import_module("augment"))
    assert why(drawing_elsewhere) == workers.DRAWS.format("noisy")


class Numbering(grain.transforms.Map if importlib.util.find_spec("grain") else object):  # type: ignore[misc]  # either
    """Numbers the samples as they come."""

    count = 0

    def map(self, element: Any) -> Any:
        self.count += 1
        return element + self.count


def test_a_transformation_that_counts_gets_no_workers() -> None:
    assert why(Numbering()) == COUNTS.format("Numbering.count")
