"""The learning rate follows a freed effective batch, schedules included, and never fights the script."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

TRAIN = """
    import torch
    from torch.utils.data import DataLoader, TensorDataset
    told = []
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD([{"params": [model.weight]}, {"params": [model.bias], "lr": 0.5}], lr=0.25)
    SCHEDULE
    data = TensorDataset(torch.randn(256, 4), torch.randn(256, 1))
    while True:
        for x, y in DataLoader(data, batch_size=8):
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(x), y).backward()
            EACH_STEP
            optimizer.step()
            if not told:
                told.append(print([group["lr"] for group in optimizer.param_groups], flush=True))
"""


@pytest.fixture
def trained(run_child: Callable[..., Any], write_script: Callable[..., Path]) -> Callable[..., Any]:
    """A trial, and the first rates that its optimizer stepped with."""

    def run(config: dict[str, Any], schedule: str = "", each_step: str = "") -> tuple[Any, str]:
        script = write_script(TRAIN.replace("SCHEDULE", schedule).replace("EACH_STEP", each_step or "pass"))
        ran = run_child(script, config)
        return ran, next(line for line in ran.output.splitlines() if line.startswith("["))

    return run


def test_every_group_is_scaled_once(trained: Callable[..., Any]) -> None:
    ran, first = trained({"lr_scale": 2.0})
    assert first == "[0.5, 1.0]"
    assert ran.evidence("lr_scale") == "verified"
    assert ran.facts["as_written"]["lr_scale"] == 1.0


def test_a_schedule_starts_from_the_scaled_rate(trained: Callable[..., Any]) -> None:
    ran, first = trained({"lr_scale": 2.0}, "torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 0.5)")
    assert first == "[0.25, 0.5]"
    assert ran.evidence("lr_scale") == "verified"


def test_a_script_that_sets_its_rate_is_not_fought(trained: Callable[..., Any]) -> None:
    ran, first = trained({"lr_scale": 2.0}, each_step='optimizer.param_groups[0]["lr"] = 0.125')
    assert first == "[0.125, 1.0]"
    assert ran.evidence("lr_scale") == "contradicted"
    assert ran.facts["left_out"]["lr_scale"] == "the script sets its learning rate itself"
