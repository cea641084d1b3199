"""One live process goes through configs that compile, by PyTorch's own compiler."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from tuner.child.records import Block, ConfigCompiled, DisturbedTurn, Phase, Record, SwitchedTo, Window
from tuner.devices.cpu import cpu_device
from tuner.model import Config, Outcome, OutcomeKind, Script
from tuner.runner.process import ProcessRunner
from tuner.runner.request import Limits, TrialRequest
from tuner.storage.records import read_records

pytestmark = [pytest.mark.slow, pytest.mark.timed, pytest.mark.timeout(400)]
WHOLE, BLOCKS, BF16 = Config(compile="default"), Config(compile="regional"), Config(precision="bf16")
FUSED = Config(optimizer="fused")
LOOP = """
import torch
from torch import nn
torch.set_num_threads(1)
torch.manual_seed(0)
PREPARE
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.branch = nn.Sequential(nn.Linear(64, 64), nn.Tanh())
    def forward(self, x):
        return x + self.branch(x)
data = torch.utils.data.TensorDataset(torch.randn(192, 64), torch.randn(192, 1))
loader = torch.utils.data.DataLoader(data, batch_size=32, shuffle=True)
model = nn.Sequential(nn.Linear(64, 64), Block(), Block(), nn.Linear(64, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
while True:
    for x, y in loader:
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""


def run(folder: Path, configs: tuple[Config, ...], prepare: str = "") -> tuple[Outcome, list[Record]]:
    script = folder / "train.py"
    script.write_text(LOOP.replace("PREPARE", prepare))
    request = TrialRequest(
        folder / "trial", Script(str(script), ()), cpu_device(), Config(),
        window=Window(warmup_steps=4, warmup_s=0.5, block_s=0.1, max_s=1000.0), rotation=configs,
        limits=Limits(trial_timeout_s=380.0), compile_cache=folder / "cache",
    )  # fmt: skip
    outcome = ProcessRunner().run(request, threading.Event())
    return outcome, [entry.record for entry in read_records(folder / "trial/records.jsonl")]


def test_they_are_compiled_before_their_turns_and_ranked(tmp_path: Path) -> None:
    configs = (BF16, FUSED, WHOLE, BLOCKS)
    outcome, records = run(tmp_path, configs)
    assert outcome.kind is OutcomeKind.COMPLETE, outcome.detail
    assert {each.config: each.fault for each in outcome.rotation} == dict.fromkeys(configs, "")
    assert all(each.gain is not None for each in outcome.rotation)
    compiled = [record for record in records if isinstance(record, ConfigCompiled)]
    assert [Config(each.config) for each in compiled] == [WHOLE, BLOCKS]
    assert all(each.graphs > 0 and each.seconds > 0.1 for each in compiled)
    assert not any(isinstance(record, DisturbedTurn) for record in records)
    turns = {record.turn for record in records if isinstance(record, SwitchedTo) and "compile" in record.config}
    blocks = [record for record in records if isinstance(record, Block) and record.phase is Phase.WINDOW]
    assert len([block for block in blocks if block.turn in turns]) >= 6
    assert max(block.seconds for block in blocks) < 1.0, "no turn holds a compilation"
    after = records[records.index(blocks[0]) :]
    assert not any(isinstance(each, Block) and each.phase is Phase.WARMUP for each in after), "one window"
    assert outcome.measurement is not None and outcome.measurement.compile_s == 0.0


def test_one_that_cannot_be_compiled_costs_no_process(tmp_path: Path) -> None:
    """There is no compiler of C++ where it is looked for."""
    prepare = "import torch._inductor.config as inductor; inductor.cpp.cxx = ('/nowhere/to/be/found',)"
    outcome, records = run(tmp_path, (WHOLE, BF16, FUSED), prepare)
    assert outcome.kind is OutcomeKind.COMPLETE, outcome.detail
    told = {each.config: each for each in outcome.rotation}
    assert told[WHOLE].gain is None and told[WHOLE].fault.startswith("can't be switched to: CompilationError: ")
    assert told[BF16].gain is not None and told[FUSED].gain is not None
    assert not any(isinstance(record, ConfigCompiled) for record in records)
