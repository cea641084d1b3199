"""Options of DistributedDataParallel in trials of two ranks: known of the script as written, turned, seen at work."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.rank_scripts import ddp, run_ranks

from tuner.child.torch.ddp import CHANGES
from tuner.model import Evidence, OutcomeKind

BRANCHING = """
class Branching(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers, self.taken = torch.nn.ModuleList([torch.nn.Linear(8, 1), torch.nn.Linear(8, 1)]), 0
    def forward(self, x):
        return self.layers[self.taken](x)
model = DistributedDataParallel(Branching(), find_unused_parameters=True)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
""".strip()
WIDE = "torch.nn.Sequential(torch.nn.Linear(8, 1 << 18), torch.nn.Linear(1 << 18, 1))"
"""Whose gradients make several buckets of 1 MiB. It learns nothing in so few steps, and needs not to diverge."""


def widened(source: str) -> str:
    return source.replace("torch.nn.Linear(8, 1)", WIDE).replace("lr=0.01", "lr=1e-7")


SLOW = "time.sleep(0.01)"
CHANGING = f"{SLOW}\nmodel.module.taken = step % 2"
TURNED = {"ddp_bucket_mb": 1, "ddp_bucket_view": True, "ddp_static_graph": True, "ddp_communication": "bf16"}


@pytest.mark.slow  # tests/unit/child/torch/test_ddp.py shows it of one rank
def test_what_the_script_gives_is_known_of_it(tmp_path: Path) -> None:
    outcome = run_ranks(tmp_path, ddp(setup=BRANCHING, step=CHANGING))
    assert outcome.complete, outcome.detail
    known = outcome.knowledge
    assert {knob: known.as_written[knob] for knob in TURNED} == {
        "ddp_bucket_mb": 25, "ddp_bucket_view": False, "ddp_static_graph": False, "ddp_communication": "default",
    }  # fmt: skip
    assert {knob: known.left_out.get(knob) for knob in TURNED} == {
        **dict.fromkeys(TURNED), "ddp_static_graph": CHANGES,
    }  # fmt: skip
    assert known.gradient_bytes == 2 * 9 * 4


@pytest.mark.slow  # differential/test_ddp_knobs.py
def test_each_rank_has_what_the_config_asks_for(tmp_path: Path) -> None:
    outcome = run_ranks(tmp_path, ddp(setup=widened(BRANCHING), step=SLOW), TURNED)
    assert outcome.complete and outcome.measurement is not None, outcome.detail
    found = {report.knob: (report.evidence, report.observed) for report in outcome.measurement.knobs}
    assert found == {knob: (Evidence.VERIFIED, value) for knob, value in TURNED.items()}


@pytest.mark.slow  # whose fault one rank's error is: faults/test_failing_ranks.py
def test_a_graph_that_is_not_static_fails_the_config_and_not_the_script(tmp_path: Path) -> None:
    outcome = run_ranks(tmp_path, ddp(setup=BRANCHING, step=CHANGING), {"ddp_static_graph": True})
    assert (outcome.kind, outcome.reason) == (OutcomeKind.INFEASIBLE, "script-raised"), outcome.detail
    assert re.match(r"rank \d: RuntimeError: .*training graph has changed", outcome.detail), outcome.detail


ROWS = """
import torch
torch.manual_seed(0)
data = torch.utils.data.TensorDataset(torch.randn(64000, 8), torch.randn(64000, 1))
loss_of = torch.nn.functional.mse_loss
"""
LOOP = """
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = torch.utils.data.DataLoader(data, batch_size=16)
#PREPARE
for epoch in range(100):
    for x, y in loader:
        optimizer.zero_grad()
        trainer.backward(loss_of(model(x), y))
        optimizer.step()
"""
TRAINERS = {
    "accelerate": LOOP.replace("#PREPARE", """
from accelerate import Accelerator
trainer = Accelerator(cpu=True)
model, optimizer, loader = trainer.prepare(model, optimizer, loader)
"""),
    "fabric": LOOP.replace("#PREPARE", """
from lightning.fabric import Fabric
trainer = Fabric(accelerator="cpu", devices=2, strategy="ddp")
trainer.launch()
model, optimizer = trainer.setup(model, optimizer)
loader = trainer.setup_dataloaders(loader)
"""),
    "lightning": """
import lightning.pytorch as pl
class Model(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 1)
    def training_step(self, batch, _):
        return loss_of(self.layer(batch[0]), batch[1])
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)
quiet = dict(enable_progress_bar=False, logger=False, enable_checkpointing=False)
trainer = pl.Trainer(accelerator="cpu", devices=2, strategy="ddp", max_epochs=100, **quiet)
trainer.fit(Model(), torch.utils.data.DataLoader(data, batch_size=16))
""",
    "transformers": """
from transformers import Trainer, TrainingArguments
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 1)
    def forward(self, x, labels):
        return {"loss": loss_of(self.layer(x), labels)}
rows = [{"x": x, "labels": y} for x, y in zip(*data.tensors)]
options = dict(per_device_train_batch_size=16, num_train_epochs=100, use_cpu=True, save_strategy="no")
Trainer(Model(), TrainingArguments("out", **options), train_dataset=rows).train()
""",
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("trainer", TRAINERS)
def test_a_trainer_that_makes_the_module_is_given_the_same_options(trainer: str, tmp_path: Path) -> None:
    config = {knob: value for knob, value in TURNED.items() if knob != "ddp_static_graph"}
    outcome = run_ranks(tmp_path, ROWS + widened(TRAINERS[trainer]), config)
    assert outcome.complete and outcome.measurement is not None, outcome.detail
    assert outcome.knowledge.trainer == trainer
    assert {each.knob: each.evidence for each in outcome.measurement.knobs} == dict.fromkeys(config, Evidence.VERIFIED)
