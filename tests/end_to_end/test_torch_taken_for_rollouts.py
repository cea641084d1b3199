"""What a model is asked about and isn't trained on, though it looks as if: validation, which is no rollout."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.torch_trials import begin
from torch.utils.data import DataLoader, TensorDataset

__all__ = ["begin"]


@pytest.mark.parametrize("rows", [2, 64])
def test_what_a_model_knows_by_heart_is_not_written_to_be_trained_on(begin: Callable[..., Any], rows: int) -> None:
    """It wrote what its training data hold, or was asked about them word by word: that passed for what it trains on."""
    trial, data = begin(), torch.randint(0, 50, (64, 20))
    model = torch.nn.Sequential(torch.nn.Embedding(50, 16), torch.nn.Linear(16, 50))
    optimizer, dataset = torch.optim.SGD(model.parameters(), lr=0.01), TensorDataset(data)
    for _ in range(6):
        for (batch,) in DataLoader(dataset, batch_size=16, shuffle=True):
            optimizer.zero_grad()
            model.train()(batch[:, :-1]).square().mean().backward()
            optimizer.step()
        with torch.no_grad():
            for words in range(6, 18):
                model.eval()(data[:rows, :words])
    trial.end()
    assert trial.set_apart() == 6


@pytest.mark.parametrize("at_a_time", [512, 256])
def test_data_of_fewer_rows_than_were_validated_on_are_not_made_of_them(
    begin: Callable[..., Any], at_a_time: int
) -> None:
    """In one call of 512, or two: whatever was trained on next had fewer rows, and that passed for what was asked."""
    trial, model = begin(), torch.nn.Linear(12, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    held_out, pool = torch.rand(512, 12), torch.rand(4096, 12)
    for _ in range(6):
        with torch.no_grad():
            for rows in held_out.split(at_a_time):
                model.eval()(rows)
        for (batch,) in DataLoader(TensorDataset(pool[torch.randperm(4096)[:320]]), batch_size=32):
            optimizer.zero_grad()
            model.train()(batch).square().mean().backward()
            optimizer.step()
    trial.end()
    assert trial.set_apart() == 5, "what comes before the first step is start-up"
