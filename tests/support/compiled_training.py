"""A training whose model is compiled in configs of a rotation, with all that a step may change beside weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from tuner.child.records import Phase
from tuner.child.torch.compiling import gradients_of, runs_compiled

Begin = Callable[..., Any]
WHOLE: dict[str, Any] = {"compile": "default"}
BLOCKS: dict[str, Any] = {"compile": "regional"}
IN_BF16: dict[str, Any] = {"compile": "default", "precision": "bf16"}
FUSED: dict[str, Any] = {"optimizer": "fused"}
ALL = (WHOLE, BLOCKS, IN_BF16, FUSED)


class Block(nn.Module):  # type: ignore[misc]  # torch's own types are Any here
    """A residual block with all that a step may change beside weights: running means, random numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.branch = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Dropout(0.2))

    def forward(self, x: Any) -> Any:
        return x + self.branch(x)


class Training:
    """Trains, and notes of each call of its model whether compiled code ran in it."""

    def __init__(self, make: Callable[[], nn.Module] | None = None) -> None:
        torch.manual_seed(0)
        whole = nn.Sequential(nn.Linear(8, 8), Block(), Block(), nn.Linear(8, 1))
        self.model: Any = make() if make is not None else whole
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-2, momentum=0.9)
        self.losses: list[float] = []
        self.ran: list[bool | None] = []
        self._data = torch.Generator().manual_seed(1)

    def called(self, x: Any) -> Any:
        return self.model(x)

    def steps(self, *sizes: int) -> None:
        for size in sizes:
            x = torch.randn(size, 8, generator=self._data)
            given = self.called(x)
            self.ran.append(runs_compiled(torch, gradients_of(torch, x), given))
            loss = given.float().square().mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.losses.append(float(loss.detach()))

    def state(self) -> list[Any]:
        """All that a training goes on from."""
        moments = [value for state in self.optimizer.state.values() for value in state.values()]
        gradients = [weight.grad for weight in self.model.parameters()]
        held = (*self.model.state_dict().values(), *moments, *gradients, torch.get_rng_state())
        return [each.clone() for each in held]

    def held(self) -> list[dict[str, Any]]:
        """What lies in the modules' own attributes."""
        return [{name: id(value) for name, value in vars(each).items()} for each in self.model.modules()]


def same(one: list[Any], other: list[Any]) -> bool:
    return len(one) == len(other) and all(map(torch.equal, one, other))


def started(
    begin: Begin, *configs: dict[str, Any], make: Callable[[], nn.Module] | None = None
) -> tuple[Any, Any, Training]:
    """A rotation in which no turn begins by itself: the trial, what switches, and what trains."""
    trial, training = begin(rotation=configs or ALL), Training(make)
    training.steps(*[16] * 5)
    clock = trial.session.clock
    clock.turns, clock.phase = None, Phase.WINDOW
    return trial, trial.adapter.switcher(), training
