"""Trials that JAX trains and that are forked are as those that start fresh."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from support.forked import KNOWN_OF_JAX, Studied, asked, both, log_of, peaks_of, records_of, run, was_forked

from tuner.model import Outcome
from tuner.runner.request import TrialRequest, screen_window

SCRIPT = """
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax import jit, value_and_grad
    from torch.utils.data import DataLoader

    key = jax.random.key(3)
    rows = np.random.rand(6400, 16).astype("float32")
    params = {"first": 0.3 * jax.random.normal(key, (16, 32)), "last": 0.1 * jnp.ones((32, 1))}

    def loss_of(params, x):
        return ((jnp.tanh(x @ params["first"]) @ params["last"] - x.sum(1, keepdims=True)) ** 2).mean()

    @jit
    def step(params, x):
        loss, gradients = value_and_grad(loss_of)(params, x)
        return jax.tree.map(lambda p, g: p - 1e-3 * g, params, gradients), loss

    for epoch in range(1000):
        losses = []
        for batch in DataLoader(rows, batch_size=16, shuffle=True, collate_fn=np.stack):
            params, loss = step(params, batch)
            losses.append(loss)
        print("loss", float(sum(losses)))
"""
SLOW = pytest.mark.slow  # of PyTorch: test_forked_trials.py
Pair = list[tuple[TrialRequest, Outcome]]


@pytest.fixture(scope="module")
def of_module(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Studied]:
    """``SCRIPT``."""
    made = Studied.of(SCRIPT, KNOWN_OF_JAX, tmp_path_factory.mktemp("script"))
    yield made
    made.runner.close()


@pytest.fixture
def studied(of_module: Studied, monkeypatch: pytest.MonkeyPatch) -> Studied:
    """Where all its trials find the same."""
    of_module.surround(monkeypatch)
    return of_module


@pytest.fixture(scope="module")
def pair(of_module: Studied, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """A seeded trial of the script as it is written: as it starts fresh, and as it is forked."""
    folder = tmp_path_factory.mktemp("pair")
    with pytest.MonkeyPatch.context() as patch:
        of_module.surround(patch)
        given: dict[str, Any] = {"window": screen_window(1600), "seed": 2, "knowledge": KNOWN_OF_JAX}
        return both(of_module.runner, folder, of_module.script, **given)


@pytest.mark.slow  # differential/test_forked_world.py; make test-jax
def test_losses_and_weights_are_the_same_to_the_last_bit(pair: Pair) -> None:
    """NumPy's and PyTorch's draws, too: the data and their order."""
    fresh, forked = ([record["value"] for record in records_of(request, "loss")] for request, _ in pair)
    assert len(fresh) >= 20 and fresh == forked
    changes = [records_of(request, "weights")[0]["changes"] for request, _ in pair]
    assert changes[0] and changes[0] == changes[1]


@SLOW
def test_facts_and_watches_are_the_same(pair: Pair) -> None:
    (_, fresh), (_, forked) = pair
    names = ("framework", "framework_version", "as_written", "left_out", "optimizers", "precisions", "watches", "unit",
             "options", "arguments", "remarks", "dataset_len", "counted_steps", "loss_reduction")  # fmt: skip
    for name in names:
        assert getattr(fresh.knowledge, name) == getattr(forked.knowledge, name), name


@SLOW
@pytest.mark.parametrize("config", [{"steps_per_call": 4, "async_dispatch": False}, {"donation": True}])
def test_knobs_are_applied_and_seen(studied: Studied, pair: Pair, tmp_path: Any, config: dict[str, Any]) -> None:
    known = pair[0][1].knowledge
    run(studied.runner, request := asked(tmp_path, studied.script, fresh=False, config=config, knowledge=known))
    assert was_forked(request), studied.runner.why_no_forks
    evidence = {record["knob"]: record["evidence"] for record in records_of(request, "knob")}
    assert evidence == dict.fromkeys(config, "verified"), log_of(request)


@SLOW
def test_threads_start_fresh(studied: Studied, pair: Pair, tmp_path: Any) -> None:
    """XLA reads how many as its client begins; NumPy's library, as it is imported."""
    known = pair[0][1].knowledge
    run(studied.runner, request := asked(tmp_path, studied.script, fresh=False, config={"threads": 1}, knowledge=known))
    assert not was_forked(request)


@SLOW
def test_memory_isnt_less_for_being_shared(studied: Studied, tmp_path: Any) -> None:
    """In the first second it may be more: what server and fork have touched of libraries is read now and then only."""
    peaks = peaks_of(studied, tmp_path)
    assert 0.98 * max(peaks[True]) < max(peaks[False]) < 1.15 * max(peaks[True]), peaks
