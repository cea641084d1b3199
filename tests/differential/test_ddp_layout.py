"""Convolutions of two ranks in channels-last train what they train as written: their gradients lie as their weights."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.rank_scripts import trained_by

TRAIN = """
def train(rank):
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.Conv2d(8, 8, 3), torch.nn.Flatten(), torch.nn.Linear(128, 1)
    )
    model = DistributedDataParallel(model, find_unused_parameters=SEARCHES)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    torch.manual_seed(rank)
    x, y, losses = torch.randn(16, 3, 8, 8), torch.randn(16, 1), []
    for step in range(8):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return {"losses": losses}
"""


@pytest.mark.slow  # with other knobs of DDP: test_ddp_knobs.py
@pytest.mark.parametrize("searches", [pytest.param(False, marks=pytest.mark.slow), True])
def test_channels_last_trains_alike(tmp_path: Path, *, searches: bool) -> None:
    """Buckets are as weights lie when they are made, and never made anew where unused parameters are looked for."""
    train = TRAIN.replace("SEARCHES", str(searches))
    written, laid = trained_by(tmp_path, train, [({}, {}), ({"channels_last": True}, {})])
    for rank in (0, 1):
        assert laid[rank]["evidence"] == {"channels_last": "verified"}
        assert laid[rank]["losses"] == pytest.approx(written[rank]["losses"], rel=1e-4)
    assert written[0]["losses"][-1] < 0.7 * written[0]["losses"][0]
