"""Metrics of real libraries' loggers and trainers, each where it is installed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

WRITER = """
    import sys
    sys.modules["tensorflow"] = None  # TensorBoard would import it, for seconds and to no use
    import torch
    from WRITERS import SummaryWriter
    writer = SummaryWriter()
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(1_000_000):
        optimizer.zero_grad()
        loss = model(torch.randn(8, 4)).square().mean()
        loss.backward()
        writer.add_scalar("Accuracy/val", torch.tensor(0.5), step)
        writer.add_scalars("Loss", {"train": loss.item()}, step)
        optimizer.step()
"""
LIGHTNING = """
    import torch
    import lightning as L
    class Model(L.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(4, 1)
        def training_step(self, batch, index):
            loss = self.layer(batch[0]).square().mean()
            self.log("train_loss", loss)
            return loss
        def validation_step(self, batch, index):
            self.log("val/acc", 0.25)
        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.01)
    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(256, 4)), batch_size=8)
    trainer = L.Trainer(max_epochs=EPOCHS, accelerator="cpu", enable_progress_bar=False, logger=False)
    trainer.fit(Model(), data, data)
"""
TRANSFORMERS = """
    import torch
    from transformers import Trainer, TrainingArguments
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(4, 1)
        def forward(self, x, labels=None):
            out = self.layer(x)
            return {"loss": (out - labels).square().mean(), "logits": out}
    data = [{"x": torch.randn(4), "labels": torch.zeros(1)} for _ in range(256)]
    arguments = TrainingArguments(
        output_dir="out", use_cpu=True, num_train_epochs=EPOCHS, eval_strategy="epoch", logging_steps=5,
        disable_tqdm=True,
    )
    trainer = Trainer(
        model=Model(), args=arguments, train_dataset=data, eval_dataset=data,
        compute_metrics=lambda given: {"accuracy": 0.75},
    )
    trainer.train()
"""

TRAINERS = {"lightning": (LIGHTNING, "val/acc", 0.25), "transformers": (TRANSFORMERS, "eval_accuracy", 0.75)}


@pytest.mark.slow  # in this process: test_trainer_options.py
@pytest.mark.parametrize(
    ("library", "writers"),
    [
        ("tensorboard", "torch.utils.tensorboard"),
        ("tensorboardX", "tensorboardX"),
    ],
)
def test_a_writers_scalars_are_metrics(
    run_child: Callable[..., Any], write_script: Callable[..., Path], library: str, writers: str
) -> None:
    ran = run_child(write_script(WRITER.replace("WRITERS", writers)))
    assert ran.of("window")[0]["complete"], ran.output
    metrics = {record["name"]: record["value"] for record in ran.of("metric")}
    assert metrics["Accuracy/val"] == 0.5
    assert metrics["Loss/train"] >= 0
    assert len(ran.of("metric")) == 4, "the first and the last value of each, not every one"


@pytest.mark.slow  # in this process: test_trainer_options.py
@pytest.mark.parametrize(
    "epochs", ["3", "1000000"], ids=["to the end", "ended early"]
)
@pytest.mark.parametrize("library", ["lightning", "transformers"])
def test_what_a_trainer_logs_is_a_metric(
    run_child: Callable[..., Any], write_script: Callable[..., Path], library: str, epochs: str
) -> None:
    """The window of one that is ended early begins behind its first validation, which comes after 32 steps."""
    script, name, value = TRAINERS[library]
    ran = run_child(write_script(script.replace("EPOCHS", epochs)), window={"warmup_steps": 40, "max_s": 60.0})
    assert ran.returncode == 0, ran.output
    metrics = {record["name"]: record["value"] for record in ran.of("metric")}
    assert metrics[name] == value, (metrics, ran.of("note"), ran.output)
