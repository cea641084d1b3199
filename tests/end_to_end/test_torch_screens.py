"""Screens: pairs draw the same numbers, seeds differ from each other, and losses are of whole steps."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="PyTorch isn't installed")

TRAIN = """
    import random
    import numpy
    import torch
    from torch.utils.data import DataLoader, TensorDataset
    SEEDING
    x = torch.randn(512, 16)
    y = (x.sum(1) + numpy.random.rand(512).astype("float32") + random.random()).unsqueeze(1).float()
    model = torch.nn.Linear(16, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = DataLoader(TensorDataset(x, y), batch_size=32, shuffle=True)
    for epoch in range(10_000):
        for a, b in loader:
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(a), b).backward()
            optimizer.step()
"""
SEEDED = "torch.manual_seed(7); numpy.random.seed(7); random.seed(7)"
SAMPLES = 640


@pytest.fixture
def losses(run_child: Callable[..., Any], write_script: Callable[..., Path]) -> Callable[..., list[tuple[float, float]]]:
    """The losses of a screen."""

    def run(seed: int, config: dict[str, Any] | None = None, seeding: str = SEEDED) -> list[tuple[float, float]]:
        script = write_script(TRAIN.replace("SEEDING", seeding))
        window = {"warmup_steps": 0, "warmup_s": 0, "block_s": 0, "min_blocks": 3, "min_s": 0, "max_s": 60}
        window |= {"target_half_width": 0, "until_samples": SAMPLES}
        knowledge = {"training_loaders": ["train.py:11#0"]}
        ran = run_child(script, config, window=window, seed=seed, knowledge=knowledge)
        assert ran.of("window")[0]["complete"]
        return [(record["samples"], record["value"]) for record in ran.of("loss")]

    return run


@pytest.mark.parametrize("seeding", [SEEDED, ""], ids=["script seeds", "script does not seed"])
def test_one_seed_is_one_training_and_another_is_another(losses: Callable[..., Any], seeding: str) -> None:
    first, again, other = losses(1, seeding=seeding), losses(1, seeding=seeding), losses(2, seeding=seeding)
    assert first == again
    assert first != other
    assert first[-1][0] == SAMPLES


def test_micro_batches_give_the_loss_of_the_whole_step(losses: Callable[..., Any]) -> None:
    whole = losses(3)
    parts = losses(3, {"batch_size": 8, "grad_accumulation": 4})
    assert len(parts) == len(whole)
    for (samples, loss), (samples_of_parts, loss_of_parts) in zip(whole, parts, strict=True):
        assert samples == samples_of_parts
        assert loss_of_parts == pytest.approx(loss, rel=1e-3)
