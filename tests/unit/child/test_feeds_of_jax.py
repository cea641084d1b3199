"""Data of other libraries that feed loops of JAX's: which one does, how long it keeps the loop waiting, as what."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from support.in_process import ENDLESS
from support.jax_here import jax
from support.jax_regression import MODEL, written
from support.jax_trial import Trial, batches, descend, loss_of, watched, weights

from tuner.child.jax.lead import Lead
from tuner.child.session import StopTrial
from tuner.child.torch.adapter import TorchAdapter

jnp = jax.numpy


class Slow(torch.utils.data.Dataset[Any]):  # type: ignore[misc]  # PyTorch is not looked at
    """Items that take a moment."""

    def __init__(self, seconds: float = 0.001) -> None:
        self.seconds = seconds

    def __len__(self) -> int:
        return 60

    def __getitem__(self, number: int) -> Any:
        time.sleep(self.seconds)
        x = numpy.random.default_rng(number).normal(size=4).astype("float32")
        return x, x.sum()


def collate(items: Any) -> Any:
    xs, ys = zip(*items, strict=True)
    return numpy.stack(xs), numpy.stack(ys)


def loader_of(seconds: float = 0.001, size: int = 8) -> Any:
    """Made at one place, as a script makes it in each of its runs."""
    return torch.utils.data.DataLoader(Slow(seconds), batch_size=size, collate_fn=collate)


def fed(**given: Any) -> Iterator[Trial]:
    """JAX and PyTorch under the watch, in a trial that is ``given`` so."""
    with watched((TorchAdapter, torch), **given) as made:
        yield made


@pytest.fixture
def trial() -> Iterator[Trial]:
    """A trial of the script as written."""
    yield from fed()


def train(made: Trial, loader: Any, epochs: int = 1) -> None:
    """The loop of a script."""

    @jax.jit  # type: ignore[untyped-decorator]  # JAX is not looked at
    def update(params: Any, x: Any, y: Any) -> Any:
        loss, gradients = jax.value_and_grad(loss_of)(params, x, y)
        return descend(params, gradients), loss

    params = weights()
    for _ in range(epochs):
        for x, y in loader:
            params, _ = update(params, x, y)
            made.trained(1, len(x))


def test_a_loader_that_feeds_jax_is_waited_for_and_counts_no_samples(trial: Trial) -> None:
    """The samples are those that the steps are given: what is fetched and not trained on counts nowhere."""
    train(trial, loader_of(), epochs=3)
    waited = sum(block["wait_s"] for block in trial.log.of("block"))
    facts = trial.end()
    assert trial.is_counted() and trial.samples == 180
    assert waited > 0.1 and not facts["wait_is_unseen"]
    assert (facts["fed_by"], facts["unit"], facts["dataset_len"]) == ("DataLoader", "samples", 60)
    assert len(facts["training_loaders"]) == 1 and len(facts["batch_waits"]) == 21
    assert facts["left_out"]["parallel_calls"] == "no tf.data dataset feeds the training steps"
    assert "batch_size" not in facts["left_out"] and facts["as_written"]["batch_size"] == 8


def test_a_loader_whose_batches_are_cut_keeps_its_size(trial: Trial) -> None:
    """What reaches a step isn't what the loader gives."""
    loader = loader_of(0.0, 12)
    train(trial, ((x[:4], y[:4]) for x, y in loader))
    left_out = trial.end()["left_out"]
    assert left_out["batch_size"] == "a step is given 4 samples, and the DataLoader's batches hold 12"


class Sequences(Slow):
    """Sequences of five vectors each."""

    def __getitem__(self, number: int) -> Any:
        x = numpy.random.default_rng(number).normal(size=(5, 4)).astype("float32")
        return x, x.sum(1)


def time_first(items: Any) -> Any:
    """A batch as recurrent networks take it."""
    xs, ys = zip(*items, strict=True)
    return numpy.stack(xs, 1), numpy.stack(ys, 1), numpy.full(len(xs), 5, "int32")


def test_batches_whose_first_dimension_is_time_are_counted_by_their_samples(trial: Trial) -> None:
    """The loader says how many they are; the last batch of an epoch is shorter."""
    loader = torch.utils.data.DataLoader(Sequences(), batch_size=8, collate_fn=time_first)

    @jax.jit  # type: ignore[untyped-decorator]  # JAX is not looked at
    def update(params: Any, x: Any, y: Any, lengths: Any) -> Any:
        loss, gradients = jax.value_and_grad(loss_of)(params, x.reshape(-1, 4), y.reshape(-1) + 0 * lengths.sum())
        return descend(params, gradients), loss

    params = weights()
    for _ in range(3):
        for x, y, lengths in loader:
            params, _ = update(params, x, y, lengths)
            trial.trained(1, len(lengths))
    facts = trial.end()
    assert trial.is_counted() and trial.samples == 180
    assert (facts["unit"], facts["as_written"]["batch_size"]) == ("samples", 8)


def test_a_loop_without_a_loader_has_neither_a_wait_nor_loader_knobs(trial: Trial) -> None:
    train(trial, list(batches(20, 12)))
    facts = trial.end()
    assert facts["wait_is_unseen"] and facts["fed_by"] == "" and facts["training_loaders"] == []
    assert facts["left_out"]["num_workers"] == "no DataLoader feeds the training steps"


@pytest.mark.slow  # 4 s beside three others
def test_validation_on_another_loader_is_set_apart(trial: Trial) -> None:
    loader = loader_of()
    other = torch.utils.data.DataLoader(Slow(0.01), batch_size=30, collate_fn=collate)
    for _ in range(4):
        train(trial, loader)
        assert len([x for x, _ in other]) == 2
    facts = trial.end()
    assert trial.is_counted() and trial.set_apart() >= 3
    assert len(facts["training_loaders"]) == 1 and len(facts["loaders"]) == 2


def test_a_batch_of_another_size_is_verified_by_what_reaches_the_step() -> None:
    known = {"framework": "jax", "unit": "samples", "as_written": {"batch_size": 8}}
    keys: list[str] = []
    for config in ({}, {"batch_size": 20}):
        for made in fed(config=config, knowledge={**known, "training_loaders": keys} if config else {}):
            train(made, loader_of(0.0), epochs=2)
            keys = made.end()["training_loaders"]
            assert made.is_counted() and made.steps == (6 if config else 16)
    assert made.evidence("batch_size") == ("verified", "")


@pytest.mark.parametrize("side", ["loader", "compute"])
def test_each_side_of_the_loop_by_itself_is_counted_in_samples(side: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loader's batches are steps that nobody takes; what computes is given the first batch again and again."""
    monkeypatch.setattr("tuner.child.session._watchdog", lambda: None)  # it would end this process
    known: dict[str, Any] = {"framework": "jax", "unit": "samples", "training_loaders": []}
    short = {**ENDLESS, "min_blocks": 3, "min_s": 0.0, "max_s": 0.5, "target_half_width": 1e9}
    for given in ({}, {"knowledge": known, "probe": side, "window": short}):
        for made in fed(**given):
            with pytest.raises(StopTrial) if given else nullcontext():
                train(made, loader_of(0.0), epochs=1000 if given else 1)
            facts = made.log.of("facts")[0] if given else made.end()
            known["training_loaders"] = facts["training_loaders"]
    assert (facts["framework"], facts["unit"], facts["fed_by"]) == ("jax", "samples", "DataLoader")
    assert 7 * made.steps < made.samples <= 8 * (made.steps + 1)
    assert (made.updates == 0) is (side == "loader")


# what of the wait the device is still busy in


class Array:
    """A result that is there once it is said to be."""

    def __init__(self) -> None:
        self.done = threading.Event()

    def is_ready(self) -> bool:
        return self.done.is_set()


def wait_for(arrays: list[Array]) -> None:
    for array in arrays:
        array.done.wait()


def test_only_what_is_left_when_the_device_is_done_is_a_wait() -> None:
    results: list[Array] = []
    lead = Lead(lambda: results, wait_for)
    lead.fetch_begins()
    assert lead.idle_s(3.0) == 3.0  # nothing is computed
    results[:] = [Array()]
    lead.fetch_begins()
    time.sleep(0.05)
    done_s = time.perf_counter()
    results[0].done.set()
    while lead._stamp is None or lead._stamp.done_s is None:
        time.sleep(0.001)  # the thread that waits for the device may have no core at once
    time.sleep(0.02)
    idle_s = lead.idle_s(3.0)
    assert 0.02 <= idle_s <= time.perf_counter() - done_s
    results[:] = [Array()]
    lead.fetch_begins()
    assert lead.idle_s(3.0) == 0.0  # it is still busy
    results[0].done.set()


@pytest.mark.timed  # it compares waits
@pytest.mark.parametrize("steps", [pytest.param(1, marks=pytest.mark.slow), 4])
def test_a_device_that_is_busy_meanwhile_waits_for_nothing(steps: int) -> None:
    """JAX lets the script go on, whose next batch is there before the step is done: also while calls wait for others,
    of which those before them are still computed.
    """
    given: dict[str, Any] = {"config": {"steps_per_call": steps}, "knowledge": {"framework": "jax", "unit": "samples"}}
    endless = {**ENDLESS, "block_s": 60.0}  # the clock waits for the device where a block ends
    for trial in fed(window=endless, **(given if steps > 1 else {})):
        train_slowly()
        trial.end()
        waited = sum(block["wait_s"] - block["start_s"] for block in trial.log.of("block"))
        assert waited < 0.3 * 40 * 6 * ITEM_S


DONATED = f"""
ROWS, loss = 240, None
{MODEL}
from {__name__} import ITEM_S, loader_of
@jax.jit
def step(params, x, y):
    gradients = jax.grad(loss_of)(params, x, y)
    rest = jax.lax.fori_loop(0, 60, lambda number, a: jnp.tanh(a @ a), jnp.full((300, 300), gradients["b"][0]))
    return jax.tree.map(lambda p, g: p - 0.01 * g + 0.0 * rest.sum(), params, gradients)
for _ in range(2):
    for x, y in loader_of(ITEM_S, 6):
        params = step(params, x, y)
"""


@pytest.mark.slow
def test_a_device_is_seen_to_be_busy_where_all_that_its_step_gives_is_donated(tmp_path: Path) -> None:
    """Nothing may hold that until it is there: that it isn't yet when the batch has come is seen all the same."""
    given: dict[str, Any] = {"config": {"donation": True}, "knowledge": {"framework": "jax", "unit": "samples"}}
    for trial in fed(window={**ENDLESS, "block_s": 60.0}, **given):
        written(DONATED, tmp_path)()
        trial.end()
        assert trial.evidence("donation") == ("verified", "")
        waited = sum(block["wait_s"] - block["start_s"] for block in trial.log.of("block"))
        assert waited < 0.5 * 20 * 6 * ITEM_S


ITEM_S = 0.0005
"""Seconds that making one takes."""


def train_slowly() -> None:
    """A loop whose steps take much longer than its batches."""

    @jax.jit  # type: ignore[untyped-decorator]  # JAX is not looked at
    def update(params: Any, x: Any, y: Any) -> Any:
        loss, gradients = jax.value_and_grad(loss_of)(params, x, y)
        much = jax.lax.fori_loop(0, 20, lambda number, a: jnp.tanh(a @ a), jnp.full((300, 300), loss))
        return jax.tree_util.tree_map(lambda p, g: p - 0.01 * g + 0.0 * much.sum(), params, gradients), loss

    params = weights()
    for _ in range(4):
        for x, y in loader_of(ITEM_S, 6):
            params, _ = update(params, x, y)
    jax.block_until_ready(params)


def test_steps_wait_for_others_while_a_loader_makes_the_next_batch() -> None:
    """What the device is still to do is asked before each batch, of what is under way alone: calls that waited for
    further ones were run by that question, and the script was said to read them.
    """
    known = {"framework": "jax", "unit": "samples"}
    given: dict[str, Any] = {"config": {"steps_per_call": 4}, "window": {**ENDLESS, "block_s": 0.0}}
    with watched((TorchAdapter, torch), knowledge=known, **given) as made:
        train(made, loader_of(0.0, 6), epochs=4)
        counted = made.adapter._several.counted
        made.end()
        assert counted.together >= 32 and not counted.alone, counted
        assert made.evidence("steps_per_call") == ("verified", "")


def test_steps_that_wait_count_before_a_loader_is_validated_on() -> None:
    """Of ten steps of an epoch the last two waited for two more: their samples were forgotten."""
    known = {"framework": "jax", "unit": "samples"}
    given: dict[str, Any] = {"config": {"steps_per_call": 4}, "window": {**ENDLESS, "block_s": 0.0}}
    with watched((TorchAdapter, torch), knowledge=known, **given) as made:
        other = torch.utils.data.DataLoader(Slow(0.0), batch_size=30, collate_fn=collate)
        loader = loader_of(0.0, 6)
        for _ in range(4):
            train(made, loader)
            assert len([x for x, _ in other]) == 2  # and evaluates in a way that isn't seen
        made.end()
        assert made.is_counted() and made.set_apart() >= 3
        blocks = made.log.of("block")
        assert all(block["samples"] == 6 * block["steps"] for block in blocks), blocks
        assert not any(block["steps"] for block in blocks if block["flagged"]), blocks
