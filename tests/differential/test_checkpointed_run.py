"""``autotune run`` with checkpointing to a training's real end against the plain script: the same to the last bit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support import whole_runs

SCRIPT = """
    import hashlib, json
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset

    torch.manual_seed(0)
    x = torch.randn(96, 12, 16)
    loader = DataLoader(TensorDataset(x, x.mean((1, 2))), batch_size=8, shuffle=True)
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.2, batch_first=True, norm_first=True)
    model = nn.ModuleDict({"encoder": nn.TransformerEncoder(layer, 4, enable_nested_tensor=False),
                           "head": nn.Linear(16, 1)})

    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.parts = model
        def forward(self, x):
            return self.parts["head"](self.parts["encoder"](x).mean(1)).squeeze(1)

    both, losses = Both(), []
    optimizer = torch.optim.AdamW(both.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 36)
    for epoch in range(3):
        for rows, target in loader:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(both(rows), target)
            loss.backward()
            nn.utils.clip_grad_norm_(both.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            losses.append(float(loss.detach()))
        with torch.no_grad():
            both.eval()
            losses.append(float(both(x).sum()))
            both.train()
    weights = b"".join(p.detach().numpy().tobytes() for p in both.parameters())
    print(json.dumps([losses, hashlib.sha256(weights).hexdigest(), float(torch.rand(()))]), flush=True)
"""


@pytest.mark.slow  # in one process: unit/child/torch/test_checkpointing.py
@pytest.mark.parametrize(
    "config",
    [{"checkpointing": True}, {"checkpointing": True, "num_workers": 2}],
    ids=["alone", "workers"],
)
def test_the_course_is_the_plain_one(write_script: Callable[..., Path], config: dict[str, Any]) -> None:
    """``--strict``: a knob that isn't in effect would end the run."""
    script = write_script(SCRIPT)
    as_written = {"batch_size": 8, "num_workers": 0, "checkpointing": False}
    applied = whole_runs.applied(script, config, (), as_written=as_written).stdout
    assert applied == whole_runs.plainly(script) and len(applied) > 500
