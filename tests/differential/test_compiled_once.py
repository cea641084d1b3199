"""What a script compiles is compiled as often as under plain Python: as many frames, graphs and breaks, and its losses
bit for bit, as written, in a trial of a knob that touches no compilation, and under ``autotune run``.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.children import ONE_THREAD

pytestmark = pytest.mark.timeout(600)

SCRIPT = """
    import json, sys, torch
    from torch._dynamo.utils import counters
    from torch.utils.data import DataLoader, TensorDataset
    kind, backend = sys.argv[1:]
    torch.manual_seed(0)

    class Block(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.three, self.out = torch.nn.LayerNorm(16), torch.nn.Linear(16, 48), torch.nn.Linear(16, 16)
        def forward(self, x):
            heads = (part.view(*x.shape[:2], 2, 8).transpose(1, 2) for part in self.three(self.norm(x)).chunk(3, -1))
            y = torch.nn.functional.scaled_dot_product_attention(*heads)
            return x + self.out(y.transpose(1, 2).reshape(x.shape))

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks, self.head = torch.nn.ModuleList(Block() for _ in range(2)), torch.nn.Linear(16, 1)
        def forward(self, x):
            for block in self.blocks:
                x = block(x)
            return self.head(x)

    compiled = torch.compile(backend=backend)
    if kind == "forward":
        Model.forward = compiled(Model.forward)
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    called = compiled(model) if kind == "model" else model
    if kind == "in place":
        model.compile(backend=backend)
    elif kind == "blocks":
        model.blocks = torch.nn.ModuleList(map(compiled, model.blocks))
    elif kind == "head":
        model.head = compiled(model.head)

    def loss_of(x, y):
        return torch.nn.functional.mse_loss(called(x), y)

    def step(x, y):
        optimizer.zero_grad()
        loss = loss_of(x, y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    if kind == "loss":
        loss_of = compiled(loss_of)
    elif kind == "step":
        step = compiled(step)
    data = TensorDataset(torch.randn(48, 4, 16), torch.randn(48, 4, 1))
    losses = [step(x, y).item() for x, y in DataLoader(data, batch_size=8)]
    breaks = sum(counters["graph_break"].values())
    print("\\n" + json.dumps([counters["stats"], counters["frames"], breaks, losses]))
"""
OTHERS = ("forward", "in place", "blocks", "head", "loss")
WAYS: dict[str, dict[str, Any]] = {
    "as written": {}, "a trial": {"config": {"cudnn_benchmark": True}},
    "a run": {"config": {"cudnn_benchmark": True}, "mode": "apply"},
}  # fmt: skip
CASES = [
    pytest.param("blocks", "a trial", "eager"),
    pytest.param("model", "as written", "eager", marks=pytest.mark.slow),
    *(pytest.param("model", way, "inductor", marks=pytest.mark.slow) for way in WAYS),
    *(pytest.param(kind, way, "eager", marks=pytest.mark.slow) for kind in OTHERS for way in WAYS),
    *(pytest.param("step", way, "eager", marks=pytest.mark.slow) for way in ("as written", "a trial")),
]


@pytest.mark.slow  # end_to_end/test_torch_compiled_steps.py
@pytest.mark.parametrize(("kind", "way", "backend"), CASES)
def test_a_script_is_compiled_as_often_as_under_plain_python(
    run_child: Callable[..., Any], write_script: Callable[..., Path], kind: str, way: str, backend: str
) -> None:
    script = write_script(SCRIPT)
    plain = subprocess.run(
        [sys.executable, str(script), kind, backend], env={**ONE_THREAD, **os.environ}, capture_output=True, text=True,
        check=True, timeout=300,
    )  # fmt: skip
    expected = json.loads(plain.stdout.strip().splitlines()[-1])
    assert expected[0]["unique_graphs"], "something is compiled"
    ran = run_child(script, argv=(kind, backend), window={"warmup_s": 60.0}, **WAYS[way])
    assert ran.returncode == 0, ran.output[-2000:]
    shown = next(line for line in ran.output.splitlines() if line.startswith("[{"))
    assert json.loads(shown) == expected
