"""Scripts with several optimizers: how many steps they take, and that none ends within a backward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.torch_trials import begin

from tuner.child.session import Session

__all__ = ["begin"]
Begin = Callable[..., Any]
BATCHES, SIZE = 6, 4
EPOCHS = 2


class Loop:
    """Trains on a loader's batches, or on those that it slices itself."""

    steps = EPOCHS * BATCHES

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(60)))
        self.setup()

    def setup(self) -> None:
        """What the loop steps."""
        self.optimizers = [torch.optim.SGD(self.model.parameters(), lr=1e-3)]

    def train(self, number: int, batch: torch.Tensor) -> None:
        self.model(batch).mean().backward()
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad()

    def run(self, *, loader: bool) -> None:
        data = torch.randn(BATCHES * SIZE, 8)
        batches: Any = torch.utils.data.DataLoader(data, batch_size=SIZE) if loader else data.split(SIZE)
        for _ in range(EPOCHS):
            for number, batch in enumerate(batches):
                self.train(number, batch)


class OneALayer(Loop):
    """Far more of them than any that take turns."""

    def setup(self) -> None:
        self.optimizers = [torch.optim.SGD(layer.parameters(), lr=1e-3) for layer in self.model]


class WithinTheBackward(Loop):
    """Steps each weight as soon as its gradient is there, which spares the gradients' memory."""

    def setup(self) -> None:
        self.optimizers = []
        self.each = {weight: torch.optim.SGD([weight], lr=1e-3) for weight in self.model.parameters()}
        for weight in self.each:
            weight.register_post_accumulate_grad_hook(self.update)

    def update(self, weight: Any) -> None:
        self.each[weight].step()
        self.each[weight].zero_grad()


class Gan(Loop):
    """Two networks that train each other on one batch, the second one on every so many (``turns``) alone."""

    turns = 1

    def setup(self) -> None:
        self.generator = torch.nn.Linear(3, 8)
        self.first = torch.optim.SGD(self.model.parameters(), lr=1e-3)
        self.second = torch.optim.SGD(self.generator.parameters(), lr=1e-3)

    def train(self, number: int, batch: torch.Tensor) -> None:
        fake = self.generator(torch.randn(len(batch), 3))
        self.first.zero_grad()
        self.model(batch).mean().backward()
        self.model(fake.detach()).mean().neg().backward()
        self.first.step()
        if number % self.turns == 0:
            self.second.zero_grad()
            self.model(fake).mean().backward()
            self.second.step()


class Critic(Gan):
    """Several steps of the critic to one of the generator."""

    turns = 3


class Folds(Loop):
    """A model's optimizer is made anew with each epoch."""

    def run(self, *, loader: bool) -> None:
        for _ in range(3):
            self.setup()
            super().run(loader=loader)

    steps = 3 * EPOCHS * BATCHES


KINDS = [Loop, OneALayer, WithinTheBackward, Gan, Critic, Folds]


@pytest.mark.parametrize("loader", [True, pytest.param(False, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", KINDS, ids=[kind.__name__ for kind in KINDS])
def test_a_step_is_a_batch_however_many_optimizers_step_on_it(begin: Begin, kind: type[Loop], loader: bool) -> None:
    trial = begin()
    kind().run(loader=loader)
    facts = trial.end()
    assert facts["steps"] == kind.steps
    assert facts["samples"] == (kind.steps * SIZE if loader else 0)


def test_no_step_ends_within_a_backward(begin: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
    """A switch, a wait for the device or the end of the trial in the middle of one would meet half-made gradients."""
    within: list[bool] = []
    step = Session.step
    trial = begin()

    def noting(session: Session, framework: str, count: int = 1) -> None:
        within.append(torch._C._current_graph_task_id() != -1)
        step(session, framework, count)

    monkeypatch.setattr(Session, "step", noting)
    WithinTheBackward().run(loader=True)
    trial.end()
    assert within == [False] * EPOCHS * BATCHES
