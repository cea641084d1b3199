"""Compilers' caches on disk, as real children meet them: empty first, full next."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tuner.child.records import Compile, Window
from tuner.devices.cpu import cpu_device
from tuner.model import BASELINE, Config, Measurement, Script
from tuner.runner.process import ProcessRunner
from tuner.runner.request import Limits, TrialRequest
from tuner.storage.folder import RECORDS
from tuner.storage.records import read_records

TORCH = """
    import torch
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(1_000_000):
        optimizer.zero_grad()
        model(torch.randn(4, 8)).pow(2).mean().backward()
        optimizer.step()
"""
JAX = """
    import jax, jax.numpy as jnp
    loss_of = lambda w, x: (jnp.tanh(x @ w) ** 2).mean()
    @jax.jit
    def step(w, x):
        loss, gradient = jax.value_and_grad(loss_of)(w, x)
        return w - 0.1 * gradient, loss
    w = jnp.full((8, 4), 0.1)
    for number in range(1_000_000):
        w, loss = step(w, jnp.full((20, 8), 0.1))
"""
KERAS_ON_JAX = """
    import os
    os.environ["KERAS_BACKEND"] = "jax"
    import keras, numpy
    x = numpy.random.default_rng(0).random((1000, 4), dtype="float32")
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    model.fit(x, x.sum(1), batch_size=10, epochs=100_000, verbose=0)
"""
VARIABLES = ("TORCHINDUCTOR_CACHE_DIR", "JAX_COMPILATION_CACHE_DIR", "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS")

Trials = Callable[..., list[tuple[Measurement, list[Compile]]]]


@pytest.fixture
def trials(
    write_script: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Trials:
    """Runs trials of a script; the study lies beside it, where what a trial leaves is put aside: its cache is not."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)

    runner = ProcessRunner()
    request.addfinalizer(runner.close)

    def run(script: str, *configs: Config) -> list[tuple[Measurement, list[Compile]]]:
        write_script(script)
        told = []
        for number, config in enumerate(configs):
            trial = TrialRequest(
                tmp_path / "study" / "trials" / str(number), Script("train.py", ()), cpu_device(), config,
                window=Window(warmup_s=0.2, min_s=0.3, max_s=0.3), limits=Limits(trial_timeout_s=120.0),
                compile_cache=tmp_path / "study" / "compile-cache",
            )  # fmt: skip
            outcome = runner.run(trial, threading.Event())
            assert outcome.measurement is not None, outcome
            sent = [entry.record for entry in read_records(trial.folder / RECORDS)]
            told.append((outcome.measurement, [record for record in sent if isinstance(record, Compile)]))
        return told

    return run


@pytest.mark.slow
def test_a_second_trial_finds_what_the_first_one_compiled(trials: Trials) -> None:
    told = trials(TORCH, Config(compile="default"), Config(compile="default"), BASELINE)
    assert [measurement.compile_cache for measurement, _ in told] == ["cold", "warm", ""]


@pytest.mark.slow
@pytest.mark.parametrize("script", [JAX, pytest.param(KERAS_ON_JAX, marks=pytest.mark.slow)], ids=["jax", "keras"])
def test_what_jax_compiles_is_found_by_the_next_trial(trials: Trials, script: str) -> None:
    """Every graph of it, however little time it took to compile; and each is still told as one that was compiled."""
    first, second = trials(script, BASELINE, BASELINE)
    assert [first[0].compile_cache, second[0].compile_cache] == ["cold", "warm"]
    ((cold,), (warm,)) = first[1], second[1]
    assert cold.cache_misses == warm.cache_hits == cold.graphs == warm.graphs > 0


@pytest.mark.slow
def test_what_jax_compiles_for_other_threads_is_compiled_anew(trials: Trials) -> None:
    """XLA splits it for as many: a processor with two cores, or more, has two parts where one thread has one."""
    _, other = trials(JAX, BASELINE, Config(threads=1))
    assert other[0].compile_cache == "cold"
