"""Trainers that deal out what their loader gives: a step's samples are those that it is taken on."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support.torch_trials import begin
from torch.utils.data import DataLoader, TensorDataset

from tuner.child.torch import trainers

__all__ = ["begin"]
STEPS, SIZE, PARTS = 20, 2, 4


class Trainer:
    """What the library's has of these, with the names of its own: a step of several backwards, each on a batch."""

    compute_loss_func = label_smoother = loss_is_scaled_for_ga = None
    model_accepts_loss_kwargs = False

    def __init__(self, given: int) -> None:
        self.args = SimpleNamespace(train_batch_size=SIZE, gradient_accumulation_steps=PARTS)
        self.model = torch.nn.Linear(4, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        self.loader = DataLoader(TensorDataset(torch.rand(given * 1000, 4)), batch_size=given)
        self.callback_handler = SimpleNamespace(train_dataloader=self.loader)
        self.trained_on = 0

    def log(self, logs: dict[str, float]) -> None:
        """Tells nobody."""

    def _prepare_inputs(self, inputs: Any) -> Any:
        return inputs

    def training_step(self, model: Any, inputs: Any) -> None:
        part = self._prepare_inputs(inputs)
        self.trained_on += len(part)
        model(part).square().mean().backward()

    def train(self) -> None:
        batches = iter(self.loader)
        for _ in range(STEPS):
            for _ in range(PARTS):
                (x,) = next(batches)
                self.training_step(self.model, x)
            self.optimizer.step()
            self.optimizer.zero_grad()


class Dealing(Trainer):
    """As TRL's GRPO: the loader gives all that some backwards are taken on, for each of them."""

    def _prepare_inputs(self, inputs: Any) -> Any:
        return inputs[:SIZE]


@pytest.mark.parametrize(
    ("kind", "given", "kept"),
    [(Trainer, SIZE, ""), (Dealing, SIZE * PARTS, ""), (Dealing, 2 * SIZE * PARTS, "by 8 backwards, and a step has 4")],
    ids=["as it comes", "in a step", "in two steps"],
)
def test_a_step_has_the_samples_that_it_is_taken_on(
    begin: Callable[..., Any], kind: type[Trainer], given: int, kept: str
) -> None:
    """GRPO with two samples a backward and four of these a step was told at 105 samples/s, and trained on 22: its
    loader gives all eight for each backward. A batch of eight without accumulation then seemed four times as slow.
    """
    trial = begin()
    trainers.transformers_log(trial.session, SimpleNamespace(Trainer=Trainer))  # type: ignore[arg-type]
    trainer = kind(given)
    trainer.train()
    facts = trial.end()
    before_the_first = given - SIZE
    assert (trial.steps, trial.samples - before_the_first) == (STEPS, trainer.trained_on)
    reason = facts["left_out"].get("batch_size", "")
    assert kept in reason and bool(kept) == ("deals out" in reason), reason
