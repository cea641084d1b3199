"""A planted truth: a batch that is faster in parts, under a cosine schedule; found, proven, and run to its end.

    pytest -m slow tests/end_to_end/test_planted_split.py
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from support import courses

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

# The time that a forward takes grows with the square of its rows: 32 ms for 32 of them, 16 ms for twice 16, 8 ms for
# four times 8, 4 ms for eight times 4.
TRAIN = """
    import json, sys, time
    import torch
    from torch.utils.data import DataLoader, Dataset

    EPOCHS = int(sys.argv[1]) if len(sys.argv) > 1 else 10000

    class Data(Dataset):
        def __len__(self):
            return 300
        def __getitem__(self, index):
            x = torch.randn(8, generator=torch.Generator().manual_seed(index))
            return x, torch.cat([x.sum(0, keepdim=True), torch.tensor([float(index)])])

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(8, 1)
        def forward(self, x):
            time.sleep(0.032 * (len(x) / 32) ** 2)
            return self.linear(x)

    linear = torch.nn.functional.linear

    def noted(x, *args):
        sizes.add(len(x))
        return linear(x, *args)

    torch.nn.functional.linear = noted  # a model that notes it by itself keeps something
    torch.manual_seed(0)
    sizes, rates, pairs, averages = set(), [], [], 0
    loader = DataLoader(Data(), batch_size=32, shuffle=True)
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, len(loader) * EPOCHS)
    average = torch.optim.swa_utils.AveragedModel(model)
    for epoch in range(EPOCHS):
        for x, y in loader:
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(x), y[:, :1]).backward()
            rates.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            schedule.step()
            average.update_parameters(model)
            averages += 1
            if epoch < 5:
                pairs += [[float(a), int(b)] for a, b in zip(x[:, 0], y[:, 1])]
    weights = [float(value) for p in model.parameters() for value in p.flatten()]
    print(json.dumps({
        "name": "cosine", "rates": rates, "steps": len(rates), "pairs": pairs, "averages": averages,
        "rate": optimizer.param_groups[0]["lr"], "weights": weights, "given": sorted(sizes),
    }))
"""


def test_a_batch_that_is_faster_in_parts_is_found_and_ends_where_the_script_does(
    write_script: Callable[..., Path], tmp_path: Path
) -> None:
    script, folder = write_script(TRAIN), tmp_path / "study"
    tuner = [sys.executable, "-m", "tuner"]
    study = [
        *tuner, "study", str(script), "--device", "cpu", "--study", str(folder), "--budget", "8m", "--trials", "6",
        "--knobs", "batch_size,num_workers",
    ]  # fmt: skip
    done = subprocess.run(study, capture_output=True, text=True, timeout=800, check=False)
    assert done.returncode == 0, done.stderr
    profile = json.loads((folder / "best.json").read_text())["profiles"][0]
    assert profile["verdict"] == "improved", done.stdout
    # Eight parts of four: 4 ms a step instead of 32, and to both a few for all else.
    assert profile["config"]["batch_size"] * profile["config"]["grad_accumulation"] == 32
    assert profile["config"]["batch_size"] <= 8
    assert profile["speedup"]["low"] > 1.5
    plain = subprocess.run([sys.executable, str(script), "8"], capture_output=True, text=True, check=True, timeout=120)
    run = subprocess.run(
        [*tuner, "run", str(script), "--config", str(folder), "--device", "cpu", "--", "8"],
        capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip
    before, after = courses.told(plain.stdout)["cosine"], courses.told(run.stdout)["cosine"]
    assert courses.differences(before, after) == []
    assert (after["steps"], after["averages"], after["rate"]) == (80, 80, pytest.approx(0.0, abs=1e-9))
    assert after["given"][0] <= 8 < before["given"][-1]
