"""Checkpointing spares memory in a real trial, and is seen to: what is computed again isn't kept for the backward."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tuner.child.records import Window
from tuner.devices.cpu import cpu_device
from tuner.model import BASELINE, Config, Evidence, Measurement, Script
from tuner.runner.process import ProcessRunner
from tuner.runner.request import TrialRequest

TRAIN = """
    import torch

    class Block(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = torch.nn.Linear(1, 1)
        def forward(self, x):
            for _ in range(4):
                x = torch.cos(torch.sin(x))
            return x * self.scale.weight

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = torch.nn.ModuleList(Block() for _ in range(6))
        def forward(self, x):
            for block in self.blocks:
                x = block(x)
            return x

    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for x in torch.utils.data.DataLoader(torch.ones(1, 1, 2**18).expand(100_000, 1, 2**18), batch_size=8):
        optimizer.zero_grad()
        model(x).mean().backward()
        optimizer.step()
"""
KEPT_BYTES = 6 * 8 * 8 * 2**18 * 4
"""What 48 sines and cosines keep of a batch: 384 MiB."""
JAX_TRAIN = """
    import jax, jax.numpy as jnp, numpy as np

    def loss_of(weights, x):
        for weight in weights:
            x = jnp.tanh(x @ weight)
        return (x**2).mean()

    @jax.jit
    def step(weights, x):
        loss, gradients = jax.value_and_grad(loss_of)(weights, x)
        return [weight - 0.01 * gradient for weight, gradient in zip(weights, gradients)], loss

    weights = [0.1 * jax.random.normal(jax.random.key(number), (32, 32)) for number in range(24)]
    for number in range(100_000):
        weights, loss = step(weights, np.ones((2**16, 32), "float32"))
        loss.block_until_ready()  # else copies of batches wait, too
"""
JAX_KEPT_BYTES = 24 * 2**16 * 32 * 4
"""What 24 layers keep of a batch: 192 MiB."""


@pytest.fixture
def measured(
    write_script: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str], list[Measurement]]:
    """A script's trials: as written, and with the knob."""

    def run(train: str) -> list[Measurement]:
        monkeypatch.chdir(tmp_path)
        # What is freed goes back: glibc keeps pieces below 32 MiB, however few of them are in use.
        monkeypatch.setenv("MALLOC_MMAP_THRESHOLD_", "65536")
        write_script(train)
        found: list[Measurement] = []
        configs: list[Config] = [BASELINE, Config(checkpointing=True)]
        for number, config in enumerate(configs):
            window = Window(warmup_s=0.5, min_s=0.5, max_s=1.0)
            folder = tmp_path / "study" / "trials" / str(number)
            outcome = ProcessRunner().run(
                TrialRequest(folder, Script("train.py", ()), cpu_device(), config, window=window), threading.Event()
            )
            assert outcome.measurement is not None, outcome
            found.append(outcome.measurement)
        return found

    return run


@pytest.mark.slow
def test_a_trial_takes_less_memory_and_says_what_was_computed_again(
    measured: Callable[[str], list[Measurement]],
) -> None:
    plain, spared = measured(TRAIN)
    assert plain.peak_host_bytes - spared.peak_host_bytes > 0.4 * KEPT_BYTES
    [report] = spared.knobs
    assert (report.evidence, report.sites_seen, report.sites_changed) == (Evidence.VERIFIED, 6, 6)
    assert spared.rate < plain.rate, "it costs time"


@pytest.mark.slow  # by XLA's own count: test_jax_checkpointed.py
def test_a_trial_of_jax_takes_less_memory(measured: Callable[[str], list[Measurement]]) -> None:
    plain, spared = measured(JAX_TRAIN)
    assert plain.peak_host_bytes - spared.peak_host_bytes > 0.4 * JAX_KEPT_BYTES
    [report] = spared.knobs
    assert (report.evidence, report.sites_seen, report.sites_changed) == (Evidence.VERIFIED, 1, 1)
