"""PyTorch's steps that go without autotune's instruments, where the loop isn't one optimizer's plain steps for ever."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.torch_trials import Trial, begin

from tuner.child.instruments import LEAST_STEPS, SHORT_STEP_S, Instruments

__all__ = ["begin"]

Begin = Callable[..., Trial]
pytestmark = pytest.mark.usefixtures("torch_settings_kept")
X = torch.randn(16, 4)


class Loop:
    """A model and an optimizer of its own."""

    def __init__(self) -> None:
        self.model = torch.nn.Linear(4, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.001)

    def step(self, count: int = 1, *, closure: bool = False) -> None:
        def evaluate() -> Any:
            self.optimizer.zero_grad()
            loss = self.model(X).square().mean()
            loss.backward()
            return loss

        for _ in range(count):
            if closure:
                self.optimizer.step(evaluate)
            else:
                evaluate()
                self.optimizer.step()


def off(trial: Trial, loop: Loop) -> Instruments:
    """Steps until they go without the instruments."""
    instruments = trial.session.clock.instruments
    loop.step(3)
    instruments.is_wanted = instruments.may_go_off = lambda: True
    assert instruments.begin(SHORT_STEP_S, lambda: None)
    loop.step(LEAST_STEPS + 1)
    assert instruments.off
    return instruments


def test_they_are_on_again_for_an_optimizer_that_was_made_meanwhile(begin: Begin) -> None:
    """As one is for each fold or epoch; else they would be off for the rest of the trial."""
    trial = begin()
    instruments = off(trial, Loop())
    loop, before = Loop(), trial.steps
    loop.step(5)
    assert not instruments.off and trial.steps >= before + 3


def test_they_are_on_again_for_an_optimizer_that_goes_on_alone(begin: Begin) -> None:
    trial = begin()
    first, second = Loop(), Loop()
    second.step()
    off(trial, first)
    before = trial.steps
    second.step(300)
    assert trial.steps > before + 100


def test_no_steps_go_without_them_that_are_given_a_closure(begin: Begin) -> None:
    """As Lightning's: those are counted where the closure is, and their batches weren't."""
    trial, loop = begin(), Loop()
    loop.step(3)
    assert trial.adapter.may_go_off()
    loop.step(3, closure=True)
    assert not trial.adapter.may_go_off()


def test_no_steps_go_without_them_that_optimizers_take_by_turns(begin: Begin) -> None:
    """Each on batches of its own: one's steps alone would be half of them."""
    trial, loops = begin(), (Loop(), Loop())
    for number, _ in enumerate(torch.utils.data.DataLoader(torch.utils.data.TensorDataset(X), batch_size=1)):
        loops[number % 2].step()
        assert not trial.adapter.may_go_off()
    assert trial.steps == len(X)


@pytest.mark.slow  # 4 s beside three others
def test_an_optimizer_that_the_script_drops_is_gone(begin: Begin) -> None:
    begin()
    loop = Loop()
    loop.step(3)
    gone = weakref.ref(loop.optimizer)
    del loop
    gc.collect()
    assert gone() is None


def test_each_optimizers_steps_are_its_own(begin: Begin) -> None:
    """The course is the first one's: what others took meanwhile isn't its."""
    trial, first, second = begin(), Loop(), Loop()
    first.step(100)
    off(trial, second)
    second.step(LEAST_STEPS)
    trial.session.clock.flush()
    watch = trial.adapter.watches.steps
    assert watch.steps == 100 + 3 + LEAST_STEPS + 1 + LEAST_STEPS
    assert watch.trajectory.steps == 100


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_what_a_script_traces_after_its_training_is_the_model_as_written(begin: Begin) -> None:
    trial, loop = begin({"precision": "bf16"}, mode="apply", as_written={"batch_size": 16}), Loop()
    loop.step(25)
    assert trial.session.clock.instruments.off
    traced = torch.jit.trace(loop.model, X)
    assert not [node for node in traced.inlined_graph.nodes() if node.kind() == "aten::to"]


def test_a_model_that_goes_into_eval_has_them_back(begin: Begin) -> None:
    """What comes then may be a validation, which no hook would see else."""
    trial, loop = begin(), Loop()
    instruments = off(trial, loop)
    loop.model.eval()
    assert not instruments.off
    with torch.no_grad():
        loop.model(X)
    assert trial.session.clock.validating
