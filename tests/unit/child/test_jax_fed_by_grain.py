"""Grain's pipelines: what they consist of, which number of workers keeps their batches, and what feeds a loop of JAX's.

They run in the environment of `make test-jax`.
"""

from __future__ import annotations

import importlib.util
import random
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy
import pytest

from tuner.child.grain import ahead, pipeline, places, workers
from tuner.child.grain.adapter import GrainAdapter
from tuner.child.grain.rows import rows_of
from tuner.child.grain.watch import CHANGES, DROPS, KEEPS_STATE, ready, seen

pytestmark = pytest.mark.grain
if importlib.util.find_spec("grain") is not None:
    import grain
    from support.jax_here import jax
    from support.jax_trial import descend, loss_of, watched, weights

FIXED = {
    "its workers": "each of its workers makes batches of its own share of the samples: another number would make"
    " other batches",
    "filtered": "FilterIterDataset comes before its workers: another number would make other batches",
    "sequential": pipeline.SEQUENTIAL,
    "prepared": pipeline.PREPARED,
    "may drop": pipeline.MAY_DROP,
    "whole batches": "",
    "one": "",
}


class Source:
    """A hundred and three samples."""

    def __len__(self) -> int:
        return 103

    def __getitem__(self, number: int) -> Any:
        x = numpy.random.default_rng(number).normal(size=4).astype("float32")
        return {"x": x, "y": numpy.float32(x.sum())}


def data() -> Any:
    return grain.MapDataset.source(Source()).seed(3).shuffle()


def with_workers(dataset: Any, count: int = 2, **given: Any) -> Any:
    return dataset.mp_prefetch(grain.MultiprocessingOptions(num_workers=count), **given)


def pipelines() -> dict[str, Any]:
    """By the reason why their number of workers stays."""
    batched = data().batch(8)
    return {
        "its workers": with_workers(data().to_iter_dataset().batch(8)),
        "filtered": with_workers(data().to_iter_dataset().filter(lambda sample: True).batch(8)),
        "sequential": with_workers(batched.to_iter_dataset(), sequential_slice=True),
        "prepared": with_workers(batched.to_iter_dataset(), worker_init_fn=lambda index, count: None),
        "may drop": with_workers(batched.map(lambda batch: batch).to_iter_dataset()),
        "whole batches": with_workers(batched.to_iter_dataset()),
        "one": with_workers(data().to_iter_dataset().batch(8), 1),
    }


@pytest.mark.parametrize("kind", FIXED)
def test_a_number_of_workers_stays_where_another_would_make_other_batches(kind: str) -> None:
    found = pipeline.look_at(pipelines()[kind])
    assert found.workers == (1 if kind == "one" else 2)
    assert found.fixed == FIXED[kind]
    assert ("num_workers" in places.refusals(found)) is bool(FIXED[kind])


@pytest.mark.parametrize("size", [1, 8, 103])
@pytest.mark.parametrize("count", [1, 2, 5])
def test_blocks_of_all_workers_are_the_samples_in_their_order(size: int, count: int) -> None:
    from tuner.child.grain.blocks import in_blocks

    numbers = grain.MapDataset.range(103)
    shares = [in_blocks(grain.MapDataset.range(103), size).slice(slice(i, None, count)) for i in range(count)]
    read = [[share[number] for number in range(len(share))] for share in shares]
    blocks = [[share[at : at + size] for at in range(0, len(share), size)] for share in read]
    turns = [shares[turn] for turn in range(max(map(len, blocks))) for shares in blocks if turn < len(shares)]
    assert [number for block in turns for number in block] == [numbers[i] for i in range(103)]


def test_readers_are_turned_and_the_scripts_own_pipeline_is_left_alone() -> None:
    made = data().to_iter_dataset(grain.ReadOptions(num_threads=4, prefetch_buffer_size=8)).batch(8).map(lambda x: x)
    found = pipeline.look_at(made)
    assert (found.threads, found.read_buffer, found.block, found.workers) == (4, 8, 8, 0)
    turned = pipeline.rebuilt(found, {"read_threads": 1, "read_buffer": 32})
    options = pipeline.look_at(turned).reader._read_options  # type: ignore[union-attr]  # it has one
    assert (options.num_threads, options.prefetch_buffer_size) == (1, 32)
    assert pipeline.look_at(made).threads == 4 and not made.has_child
    same = zip(made, turned, strict=True)
    assert all(numpy.array_equal(one["x"], two["x"]) for one, two in same)


def test_who_reads_in_one_thread_gets_no_others() -> None:
    alone = pipeline.look_at(data().to_iter_dataset(grain.ReadOptions(num_threads=1)))
    assert places.refusals(alone)["read_threads"] == places.SINGLE and "read_buffer" not in places.refusals(alone)
    none = pipeline.look_at(data().to_iter_dataset(grain.ReadOptions(num_threads=0)))
    assert {places.refusals(none)[knob] for knob in ("read_threads", "read_buffer")} == {places.UNBUFFERED}


# what workers would draw or change


def seeded(number: int) -> Any:
    return numpy.random.default_rng(number).random()


def drawing(number: int) -> Any:
    return numpy.random.random() + number


def choosing(number: int) -> Any:
    return random.choice([number, -number])


def by_jax(number: int) -> Any:
    return jax.numpy.asarray(number)


class Keeping:
    """A source with a generator of its own."""

    def __init__(self) -> None:
        self.draws = numpy.random.default_rng(0)

    def __len__(self) -> int:
        return 10

    def __getitem__(self, number: int) -> Any:
        return self.draws.random() + number


DRAWN = {"seeded": "", "drawing": workers.DRAWS.format("drawing"), "choosing": workers.DRAWS.format("choosing")}


@pytest.mark.parametrize("kind", DRAWN)
def test_what_draws_from_the_process_gets_no_workers(kind: str) -> None:
    made = grain.MapDataset.range(9).map({"seeded": seeded, "drawing": drawing, "choosing": choosing}[kind])
    assert workers.why_drawn(pipeline.parts_of(pipeline.look_at(made.to_iter_dataset()))) == DRAWN[kind]


def test_a_generator_of_the_datas_own_gets_no_workers() -> None:
    shape = pipeline.look_at(grain.MapDataset.source(Keeping()).to_iter_dataset())
    assert workers.why_drawn(pipeline.parts_of(shape)).endswith("which every worker would copy")


def test_what_calls_jax_or_cant_be_sent_gets_no_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tuner.child.torch.starting.why_unimportable", lambda: "")
    calling = pipeline.look_at(grain.MapDataset.range(9).map(by_jax).to_iter_dataset())
    assert workers.why_none(pipeline.parts_of(calling), calling.chain[0]) == workers.CALLS_JAX
    held = (number for number in range(2))
    unsendable = pipeline.look_at(grain.MapDataset.range(9).map(lambda number: (number, held)).to_iter_dataset())
    why = workers.why_none(pipeline.parts_of(unsendable), unsendable.chain[0])
    assert "can't be sent its data: TypeError: cannot pickle 'generator' object" in why


def test_rows_are_those_of_all_arrays() -> None:
    x = numpy.zeros((8, 2))
    assert rows_of({"x": x, "y": (x[:, 0], [x])}) == 8
    assert rows_of({"x": x, "y": numpy.zeros(3)}) == 0
    assert rows_of(numpy.float32(1)) == 1


# in a loop


def fed(**given: Any) -> Iterator[Any]:
    """JAX and Grain under the watch, in a trial that is ``given`` so."""
    with watched((GrainAdapter, grain), **given) as made:
        yield made


@pytest.fixture
def trial() -> Iterator[Any]:
    """A trial of the script as written."""
    yield from fed()


def train(made: Any, loader: Any) -> None:
    """The loop of a script."""

    @jax.jit  # type: ignore[untyped-decorator]  # JAX is not looked at
    def update(params: Any, x: Any, y: Any) -> Any:
        loss, gradients = jax.value_and_grad(loss_of)(params, x, y)
        return descend(params, gradients), loss

    params = weights()
    for batch in loader:
        params, _ = update(params, batch["x"], batch["y"])
        made.trained(1, len(batch["x"]))


def a_loader(epochs: int = 2) -> Any:
    sampler = grain.samplers.IndexSampler(103, shuffle=True, seed=1, num_epochs=epochs)
    return grain.DataLoader(data_source=Source(), sampler=sampler, operations=[grain.transforms.Batch(8)])


def kept(iterate: Callable[[], Any]) -> Any:
    """An iterator that the script asks by ``next``."""
    iterator = iter(iterate())
    while True:
        try:
            yield next(iterator)
        except StopIteration:
            return


LOADERS: dict[str, Callable[[], Any]] = {
    "a loader": a_loader,
    "an iterator that is kept": lambda: kept(a_loader),
    "samples that are mapped": lambda: data().repeat(2).batch(8),
    "batches behind the reader": lambda: data().repeat(2).to_iter_dataset().batch(8),
    "filtered": lambda: data().repeat(2).to_iter_dataset().filter(lambda sample: sample["y"] > 0).batch(8),
}


@pytest.mark.parametrize("kind", LOADERS)
def test_what_grain_gives_is_counted_and_waited_for(kind: str, trial: Any) -> None:
    train(trial, LOADERS[kind]())
    facts = trial.end()
    assert trial.is_counted()
    assert (facts["fed_by"], facts["unit"], facts["wait_is_unseen"]) == ("Grain loader", "samples", False)
    assert len(facts["training_loaders"]) == 1 and max(facts["batch_waits"]) > 0
    assert facts["as_written"]["num_workers"] == 0 and facts["as_written"]["read_threads"] == 16
    assert facts["left_out"]["parallel_calls"] == "no tf.data dataset feeds the training steps"
    assert facts["left_out"]["persistent_workers"] == places.LASTING


def test_each_epoch_of_a_dataset_is_watched(trial: Any) -> None:
    """Grain lays its outermost node around a dataset once only."""
    dataset = data().to_iter_dataset().batch(8)
    for _ in range(3):
        train(trial, dataset)
    facts = trial.end()
    assert trial.is_counted()
    [source] = facts["loaders"]
    assert source["fetches"] == 39, source


@pytest.mark.parametrize("kind", ["endless", "epochs", "in a thread"])
def test_what_is_left_of_an_epoch_is_no_queue(kind: str) -> None:
    """Once all of it is asked for, what lies ready grows less since nothing more is made: the loop is no faster."""
    batched = data().repeat().batch(8) if kind == "endless" else data().batch(8)
    dataset = batched.to_iter_dataset(grain.ReadOptions(num_threads=2, prefetch_buffer_size=30))
    if kind == "in a thread":
        dataset = grain.experimental.ThreadPrefetchIterDataset(dataset, prefetch_buffer_size=30)
    shape, iterator = pipeline.look_at(dataset), iter(dataset)
    next(iterator)
    deadline = time.monotonic() + 10
    while (found := ready(iterator, shape, 8)) is not None and found < 8 * 30 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert found == (8 * 30 if kind == "endless" else None)


@pytest.mark.usefixtures("importable")
def test_each_epoch_of_a_dataset_is_turned() -> None:
    known: dict[str, Any] = {"framework": "jax", "unit": "samples"}
    for _ in fed(config={"read_threads": 3}, knowledge=known):
        dataset = data().to_iter_dataset().batch(8)
        threads = [seen(iter(dataset))["read_threads"] for _ in range(3)]
        assert threads == [3, 3, 3] and not dataset.has_child


def test_validation_is_set_apart(trial: Any) -> None:
    loader, other = a_loader(1), data().batch(50)
    for _ in range(4):
        train(trial, loader)
        assert len(list(other)) == 3
    facts = trial.end()
    assert trial.is_counted() and trial.set_apart() >= 3
    assert len(facts["training_loaders"]) == 1 and len(facts["loaders"]) == 2


@pytest.fixture
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers could be added, as far as the script shows: this process can't be imported by any."""
    monkeypatch.setattr("tuner.child.grain.workers.why_none", lambda parts, pipeline: "")


@pytest.mark.usefixtures("importable")
def test_a_script_that_keeps_where_its_iterator_stands_keeps_its_workers(trial: Any) -> None:
    iterator = iter(a_loader())
    train(trial, (next(iterator) for _ in range(20)))
    iterator.get_state()
    assert trial.end()["left_out"]["num_workers"] == KEEPS_STATE
    assert isinstance(iterator, grain.DataLoaderIterator) and type(iterator).__name__ == "DataLoaderIterator"


def test_no_iterator_goes_on_from_where_another_number_of_workers_stood() -> None:
    alone = with_workers(data().batch(8).to_iter_dataset(), 1)
    with workers.starting_anew(True):
        state = {"inner": iter(alone).get_state()}
    workers.check_state(state, 1)
    with pytest.raises(ValueError, match="an iterator with 1 workers stood, and the profile gives it 2"):
        workers.check_state(state, 2)
    with pytest.raises(ValueError, match="an iterator with 0 workers stood"):
        workers.check_state(iter(a_loader()).get_state(), 1)


@pytest.mark.usefixtures("importable")
def test_samples_that_are_dropped_keep_the_number_of_workers(trial: Any) -> None:
    """A function that gives None drops a sample: Grain's workers would give the others in another order."""
    train(trial, data().repeat(2).map(lambda sample: sample if sample["y"] > 0 else None).to_iter_dataset().batch(8))
    assert trial.end()["left_out"]["num_workers"] == DROPS


@pytest.mark.usefixtures("importable")
def test_a_sample_in_a_thousand_that_is_dropped_is_seen(trial: Any) -> None:
    """Grain forgets it with the next thousand."""
    few = grain.MapDataset.range(16_500).map(lambda number: None if number == 900 else dropped_one(number))
    train(trial, few.to_iter_dataset(grain.ReadOptions(num_threads=0)).batch(250))
    assert trial.end()["left_out"]["num_workers"] == DROPS


def dropped_one(number: int) -> Any:
    return {"x": numpy.ones(4, "float32"), "y": numpy.float32(number % 2)}


def made_with(*operations: Any) -> Any:
    """At one place of the code."""
    sampler = grain.samplers.IndexSampler(103, shuffle=True, seed=1, num_epochs=1)
    batched = grain.transforms.Batch(8)
    return grain.DataLoader(data_source=Source(), sampler=sampler, operations=[*operations, batched])


@pytest.mark.usefixtures("importable")
def test_operations_that_can_be_read_once_are_kept() -> None:
    known: dict[str, Any] = {"framework": "jax", "unit": "samples"}
    for _ in fed(config={"read_threads": 3}, knowledge=known):
        sampler = grain.samplers.IndexSampler(103, shuffle=True, seed=1, num_epochs=1)
        operations = (each for each in [grain.transforms.Batch(8)])
        loader = grain.DataLoader(data_source=Source(), sampler=sampler, operations=operations)
        assert len(next(iter(loader))["x"]) == 8


class Some(grain.transforms.Filter if importlib.util.find_spec("grain") else object):  # type: ignore[misc]  # either
    """Drops samples."""

    def filter(self, element: Any) -> bool:
        return bool(element["y"] > 0)


@pytest.mark.usefixtures("importable")
def test_each_loader_of_a_place_is_looked_at_by_itself() -> None:
    """The second one may drop samples, and gets no workers by what the first one was."""
    known: dict[str, Any] = {"framework": "jax", "unit": "samples"}
    for made in fed(config={"num_workers": 2}, knowledge=known):
        counts = []
        for operations in ((), (Some(),)):
            loader = made_with(*operations)
            source = made.session.feeds.all[0].watch._of_object[loader]
            source.iterated = True
            counts.append(loader.multiprocessing_options.num_workers)
        assert counts == [2, 0] and source.refused["num_workers"].startswith("its operations need to see all samples")


class Counting(Source):
    """A source that changes as it is read."""

    asked = 0

    def __getitem__(self, number: int) -> Any:
        self.asked += 1
        return super().__getitem__(number)


@pytest.mark.usefixtures("importable")
def test_data_that_change_as_they_are_read_are_read_by_the_loop_alone(trial: Any) -> None:
    one_by_one = grain.MapDataset.source(Counting()).to_iter_dataset(grain.ReadOptions(num_threads=0))
    train(trial, one_by_one.batch(8))
    left_out = trial.end()["left_out"]
    assert left_out["num_workers"] == CHANGES.format("source 0.asked")
    assert left_out["device_prefetch"] == ahead.CHANGES.format("source 0.asked")


def test_batches_with_objects_that_may_change_are_not_made_ahead(trial: Any) -> None:
    train(trial, data().to_iter_dataset().batch(8).map(lambda batch: {**batch, "seen": {1}}))
    assert trial.end()["left_out"]["device_prefetch"] == ahead.OBJECTS.format("set")
