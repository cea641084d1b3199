"""``autotune probe`` on scripts whose bottleneck is known."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.rank_scripts import ddp
from support.rates import measured

TRAIN = """
    import time
    import torch
    from torch.utils.data import DataLoader, Dataset

    class Slow(Dataset):
        def __len__(self): return 4096
        def __getitem__(self, index):
            if LOAD_S:  # a sleep of nothing still hands the core to whoever wants it
                time.sleep(LOAD_S / 8)
            return torch.randn(8), torch.randn(1)

    class Busy(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(8, 1)
        def forward(self, x):
            time.sleep(STEP_S + SAMPLE_S * len(x))
            return self.linear(x)

    model = Busy()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for epoch in range(1000):
        for x, y in DataLoader(Slow(), batch_size=8):
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
"""


def written(write_script: Callable[..., Path], load_s: float, step_s: float, sample_s: float) -> Path:
    """The script. Times are seconds a step of 8 samples."""
    text = TRAIN.replace("LOAD_S", str(load_s)).replace("STEP_S", str(step_s)).replace("SAMPLE_S", str(sample_s))
    return write_script(text)


def test_each_side_of_a_loop_runs_by_itself(
    write_script: Callable[..., Path], run_child: Callable[..., Any]
) -> None:
    """As a study runs them: that of the model on one batch that is kept, that of the loader without computing."""
    script = written(write_script, load_s=0.04, step_s=0.004, sample_s=0.0)
    both = run_child(script)
    known = {"training_loaders": both.facts["training_loaders"], "framework": "torch", "unit": "samples"}
    compute, loader = (run_child(script, probe=side, knowledge=known) for side in ("compute", "loader"))
    assert all(ran.of("window")[0]["complete"] for ran in (both, compute, loader)), compute.output + loader.output
    rates = [measured(ran).rate for ran in (both, compute, loader)]
    assert rates[1] > 2 * rates[0], "a step takes a tenth of what its batch does"
    assert 0.9 * rates[0] < rates[2] < 8 / 0.04


@pytest.fixture
def probed(write_script: Callable[..., Path], tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """The document of a probe. Times are seconds a step of 8 samples."""

    def run(*, load_s: float, step_s: float, sample_s: float) -> dict[str, Any]:
        script = written(write_script, load_s, step_s, sample_s)
        command = [sys.executable, "-m", "tuner", "probe", str(script), "--study", str(tmp_path / "out"), "--json"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=150, check=False)
        assert done.returncode == 0, done.stderr
        document: dict[str, Any] = json.loads(done.stdout)
        return document

    return run


@pytest.mark.timed
@pytest.mark.slow
def test_a_slow_loader_is_input_bound(probed: Callable[..., dict[str, Any]]) -> None:
    found = probed(load_s=0.02, step_s=0.0, sample_s=0.005 / 8)
    assert found["bound"] == "input-bound"
    assert found["wait_share"] == pytest.approx(0.8, abs=0.12)
    assert found["compute"] / found["real"] == pytest.approx(5, rel=0.35)
    assert found["loader"] / found["real"] == pytest.approx(1.25, rel=0.25)
    assert "num_workers" in found["knobs"]
    assert found["headroom_bytes"] > 0


@pytest.mark.slow
def test_what_a_step_costs_besides_is_overhead(probed: Callable[..., dict[str, Any]]) -> None:
    found = probed(load_s=0.0, step_s=0.016, sample_s=0.004 / 8)
    assert found["bound"] == "overhead-bound"
    assert found["overhead_share"] == pytest.approx(0.8, abs=0.15)
    assert "num_workers" not in found["knobs"]


SLOW_DATA = """
class Slow(torch.utils.data.Dataset):
    def __len__(self): return 4096
    def __getitem__(self, index):
        time.sleep(0.002)
        return torch.ones(8), torch.ones(1)
data = Slow()
""".strip()


@pytest.mark.slow  # its trials: test_rank_probe.py
def test_the_loop_of_several_ranks_is_probed_as_they_train_together(tmp_path: Path) -> None:
    """It was refused: a study alone probed them."""
    script = tmp_path / "train.py"
    script.write_text(ddp(setup=SLOW_DATA))
    command = [sys.executable, "-m", "tuner", "probe", str(script), "--device", "cpu", "--ranks", "2"]
    done = subprocess.run(
        [*command, "--study", str(tmp_path / "out"), "--json"], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["bound"] == "input-bound" and "num_workers" in found["knobs"], found
    assert 0.6 * 2 / 0.002 < found["real"] < 2 / 0.002, "samples of both ranks, each of which takes 2 ms for its own"
