"""Lightning's and transformers' trainers under ``autotune run``, a batch in parts, against the plain script."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from support import courses
from support.whole_runs import plainly
from test_run_to_the_end import applied

DATA = """
    import json
    import torch

    torch.manual_seed(0)
    rates, pairs, given = [], [], set()
    x = torch.randn(100, 4)
    x[:, 0] = torch.arange(100)

    def tell(optimizer, batches, **more):
        print("\\n" + json.dumps({
            "name": "course", "rates": rates, "steps": len(rates), "pairs": sorted(pairs), "given": sorted(given),
            "rate": optimizer.param_groups[0]["lr"], "batches": batches, "weights": [1.0], **more,
        }), flush=True)
"""
LIGHTNING = DATA + """
    import lightning as L

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(4, 1)
        def forward(self, x):
            if torch.is_grad_enabled():
                given.add(len(x))
            return self.linear(x / 100)

    class Model(L.LightningModule):
        def __init__(self):
            super().__init__()
            self.net, self.average, self.averages = Net(), 0.0, 0
        def training_step(self, batch, index):
            pairs.extend([int(a), int(a)] for a in batch[0][:, 0])
            return self.net(batch[0]).square().mean()
        def on_train_batch_end(self, *args):
            self.average = 0.9 * self.average + 0.1 * self.net.linear.weight.detach()
            self.averages += 1
        def on_before_optimizer_step(self, optimizer):
            rates.append(optimizer.param_groups[0]["lr"])
        def configure_optimizers(self):
            optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
            schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 3 * len(loader))
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x), batch_size=16, shuffle=True)
    trainer = L.Trainer(
        max_epochs=3, accelerator="cpu", enable_progress_bar=False, logger=False, enable_checkpointing=False,
        enable_model_summary=False, limit_train_batches=6,
    )
    model = Model()
    trainer.fit(model, loader)
    tell(trainer.optimizers[0], len(loader), averages=model.averages, global_step=trainer.global_step)
"""
TRANSFORMERS = DATA + """
    from transformers import Trainer, TrainerCallback, TrainingArguments

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(4, 1)
        def forward(self, x, labels=None):
            given.add(len(x))
            pairs.extend([int(a), int(b)] for a, b in zip(x[:, 0], labels[:, 0]))
            return {"loss": (self.linear(x / 100) - labels / 100).square().mean()}

    class Steps(TrainerCallback):
        def on_pre_optimizer_step(self, args, state, control, optimizer=None, **more):
            rates.append(optimizer.param_groups[0]["lr"])

    arguments = TrainingArguments(
        output_dir="out", use_cpu=True, num_train_epochs=3, per_device_train_batch_size=16, report_to="none",
        lr_scheduler_type="cosine", warmup_steps=4, disable_tqdm=True, save_strategy="no", remove_unused_columns=False,
    )
    data = [{"x": row, "labels": row[:1]} for row in x]
    trainer = Trainer(model=Model(), args=arguments, train_dataset=data, callbacks=[Steps()])
    trainer.train()
    tell(trainer.optimizer, 0, global_step=trainer.state.global_step)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("text", "trainer"), [(LIGHTNING, "lightning"), (TRANSFORMERS, "transformers")])
def test_a_trainer_ends_where_it_does_plainly(write_script: Callable[..., Path], text: str, trainer: str) -> None:
    script = write_script(text)
    split = {"batch_size": 4, "grad_accumulation": 4}
    plain = courses.told(plainly(script))["course"]
    run = courses.told(applied(script, split, trainer=trainer))["course"]
    assert courses.differences(plain, run) == []
    assert min(run["given"]) == 4 < max(plain["given"]) == 16
    assert plain["steps"] == plain["global_step"] == (18 if trainer == "lightning" else 21)
