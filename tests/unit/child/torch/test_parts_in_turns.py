"""Configs of a rotation with a smaller batch size: the model computes the script's own batches in parts."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from support.torch_trials import begin
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tuner.child.torch.parts_turns import OTHER_STEPS

__all__ = ["begin"]

pytestmark = pytest.mark.usefixtures("torch_settings_kept")
Begin = Callable[..., Any]
ROWS, BATCH = 92, 16
HALF: dict[str, Any] = {"batch_size": 8, "grad_accumulation": 2}
QUARTER: dict[str, Any] = {"batch_size": 4, "grad_accumulation": 4}
IN_BF16: dict[str, Any] = {**HALF, "precision": "bf16"}


class Training:
    """Epochs of five whole batches and a short one."""

    def __init__(self, make: Callable[[], nn.Module] | None = None, accumulate: int = 1, **loader: Any) -> None:
        torch.manual_seed(0)
        x = torch.randn(ROWS, 8)
        self.model: Any = make() if make is not None else nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-2, momentum=0.9)
        data = TensorDataset(x, x.sum(1, keepdim=True))
        self.loader = DataLoader(data, batch_size=BATCH, shuffle=True, **loader)
        self.accumulate = accumulate
        self.losses: list[float] = []
        self.sizes: list[int] = []
        self._epoch = iter(self._batches())

    def _batches(self) -> Iterator[Any]:
        while True:
            yield from self.loader

    def steps(self, count: int) -> None:
        for number in range(count * self.accumulate):
            x, y = next(self._epoch)
            self.sizes.append(len(x))
            loss = nn.functional.mse_loss(self.model(x), y)
            loss.backward()
            self.losses.append(float(loss.detach()))
            if number % self.accumulate == self.accumulate - 1:
                self.optimizer.step()
                self.optimizer.zero_grad()


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The rows of each call of a layer that trains."""
    seen: list[int] = []
    whole = nn.Linear.forward

    def forward(layer: Any, x: Any) -> Any:
        if layer.out_features == 1 and torch.is_grad_enabled():
            seen.append(len(x))
        return whole(layer, x)

    monkeypatch.setattr(nn.Linear, "forward", forward)
    return seen


def started(begin: Begin, **training: Any) -> tuple[Any, Any, Training]:
    """A rotation in which no turn begins by itself: the trial, what switches, and what trains."""
    trial, made = begin(rotation=[HALF, QUARTER]), Training(**training)
    made.steps(8)
    trial.session.clock.turns = None
    return trial, trial.adapter.switcher(), made


def test_in_its_turns_the_model_sees_parts_and_the_script_whole_batches(begin: Begin, rows: list[int]) -> None:
    trial, switcher, training = started(begin)
    assert [switcher.refusal(config) for config in (HALF, QUARTER, IN_BF16)] == [""] * 3
    switcher.begin()
    for config, size in ((HALF, 8), ({}, 16), (QUARTER, 4), (HALF, 8), (QUARTER, 4), (IN_BF16, 8), ({}, 16)):
        switcher.to(config)
        samples = trial.samples
        training.sizes.clear()
        training.steps(2)
        rows.clear()
        training.steps(6)
        assert switcher.doubt(config) == ""
        tail = ROWS % BATCH
        in_parts = [size] * (BATCH // size) * 5 + [size] * (tail // size) + [tail % size] * bool(tail % size)
        assert sorted(rows) == sorted(in_parts), "an epoch, in whatever order"
        assert trial.samples - samples == sum(training.sizes)


def test_it_trains_as_if_nothing_had_been_switched(begin: Begin) -> None:
    """In the order of its sums, and no further: the sampler's order, the moments and the random numbers are its own."""
    plain = Training()
    plain.steps(40)
    state = torch.get_rng_state()
    _, switcher, training = started(begin)
    switcher.begin()
    for config, _ in zip(itertools.cycle([HALF, {}, QUARTER, {}]), range(8), strict=False):
        switcher.to(config)
        training.steps(4)
    switcher.to({})
    assert training.losses == pytest.approx(plain.losses, rel=1e-4) and training.sizes == plain.sizes
    assert torch.equal(torch.get_rng_state(), state)
    for own, other in zip(training.optimizer.state.values(), plain.optimizer.state.values(), strict=True):
        assert all(torch.allclose(own[name], other[name], rtol=1e-3, atol=1e-6) for name in own)


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({"batch_size": 8}, OTHER_STEPS), ({"batch_size": 32, "grad_accumulation": 1}, OTHER_STEPS),
        ({"batch_size": 16, "grad_accumulation": 2}, OTHER_STEPS), ({"grad_accumulation": 2}, OTHER_STEPS),
        ({**HALF, "compile": "default"}, "aren't compiled beside"),
    ],
)  # fmt: skip
def test_what_makes_other_steps_is_refused(begin: Begin, config: dict[str, Any], why: str) -> None:
    _, switcher, _ = started(begin)
    assert why in switcher.refusal(config)


def test_a_script_that_accumulates_by_itself_is_refused(begin: Begin) -> None:
    _, switcher, _ = started(begin, accumulate=2)
    assert "accumulates gradients itself" in switcher.refusal(HALF)


def normed() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))


def test_a_model_whose_samples_depend_on_each_other_is_refused(begin: Begin) -> None:
    """What is seen of whole batches says it ahead, else the config leaves as it finds out."""
    _, switcher, _ = started(begin, make=normed)
    assert "keeps something from one call to the next" in switcher.refusal(HALF)


class Centred(nn.Module):  # type: ignore[misc]  # torch's own types are Any here
    """Takes its batch's mean away."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 1)

    def forward(self, x: Any) -> Any:
        return self.linear(x - x.mean(0))


def test_one_that_shows_it_first_in_parts_leaves(begin: Begin, rows: list[int]) -> None:
    _, switcher, training = started(begin, make=Centred)
    before = training.model.linear.weight.clone()
    assert switcher.refusal(HALF) == ""
    switcher.begin()
    switcher.to(HALF)
    rows.clear()
    training.steps(3)
    assert rows == training.sizes[-3:], "it has whole batches"
    assert "batches were computed whole: the model's answer for a sample depends" in switcher.doubt(HALF)
    assert not torch.equal(before, training.model.linear.weight), "and trains on"
