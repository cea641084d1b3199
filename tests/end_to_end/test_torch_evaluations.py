"""What a model is evaluated on is no training, whatever loader gives it, with gradients or without."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from support.torch_trials import begin
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import DataLoader, TensorDataset

from tuner.child.torch.evaluations import LOOKED_AT
from tuner.child.torch.scaling import TAKEN

__all__ = ["begin"]

Begin = Callable[..., Any]


class Loop:
    """A small model with dropout, whose steps and samples the loop counts by itself."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.1), torch.nn.Linear(8, 1))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        self.steps = self.samples = 0

    def train(self, x: Any) -> None:
        """One step."""
        self.model.train()
        self.optimizer.zero_grad()
        self.model(x).square().mean().backward()
        self.optimizer.step()
        self.steps += 1
        self.samples += len(x)

    def evaluate(self, batches: Any, *, gradients: bool, in_eval: bool = True) -> None:
        """All batches, in ``eval()`` or as one that trains."""
        self.model.train(not in_eval)
        with nullcontext() if gradients else torch.no_grad():
            for batch in batches:
                self.model(batch[0])


def _loader(rows: int, size: int, *, shuffle: bool = False) -> Any:
    return DataLoader(TensorDataset(torch.rand(rows, 4)), batch_size=size, shuffle=shuffle)


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize(("rows", "held_out"), [(40, 24), (40, 8), (16, 8)], ids=["usual", "one batch", "two steps"])
def test_training_data_that_are_evaluated_on_count_once(
    begin: Begin, rows: int, held_out: int, gradients: bool
) -> None:
    """Each epoch ends with a look at the training data and at others, as in examples of graph libraries."""
    trial, loop = begin(), Loop()
    train, test = _loader(rows, 8, shuffle=True), _loader(held_out, 8)
    for _ in range(6):
        for (x,) in train:
            loop.train(x)
        loop.evaluate(train, gradients=gradients)
        loop.evaluate(test, gradients=gradients)
    trial.end()
    assert (trial.steps, trial.samples) == (loop.steps, loop.samples)
    # Of epochs with two steps the first look says nothing yet, and a look at the training data is a part of the loop.
    assert trial.set_apart() == (6 if rows == 40 else 5)
    assert trial.log.of("facts")[0]["unit"] == "samples"


def test_a_batch_that_is_looked_at_before_it_is_trained_on_counts(begin: Begin) -> None:
    """As with labels that the model makes for itself, and large batches whose features are kept first."""
    trial, loop = begin(), Loop()
    for _ in range(3):
        for (x,) in _loader(40, 8):
            loop.evaluate([(x,)], gradients=False)
            loop.train(x)
    trial.end()
    assert (trial.steps, trial.samples, trial.set_apart()) == (15, 120, 0)


def test_what_is_looked_at_between_the_batches_of_a_step_counts(begin: Begin) -> None:
    """Each batch of an accumulated step is followed by a figure of the model in ``eval()``."""
    trial, loop = begin(), Loop()
    for number, (x,) in enumerate(_loader(160, 8)):
        loop.model.train()(x).mean().backward()
        loop.evaluate([(x,)], gradients=False)
        if number % 4 == 3:
            loop.optimizer.step()
            loop.optimizer.zero_grad()
    trial.end()
    assert (trial.steps, trial.samples) == (5, 160)


def test_an_average_that_is_evaluated_trains_on_nothing(begin: Begin) -> None:
    trial, loop = begin(), Loop()
    average, train = AveragedModel(loop.model), _loader(16, 8)
    for _ in range(5):
        for (x,) in train:
            loop.train(x)
            average.update_parameters(loop.model)
        with torch.no_grad():
            for (x,) in train:
                average.eval()(x)
    trial.end()
    assert (trial.steps, trial.samples) == (10, 80)


@pytest.mark.parametrize(("precision", "evidence"), [("bf16", ("verified", "")), ("fp16", ("not applicable", TAKEN))])
def test_gradients_that_no_backward_takes_are_fed_by_their_loader(
    begin: Begin, precision: str, evidence: tuple[str, str]
) -> None:
    """By ``torch.autograd.grad``: it was said that no DataLoader feeds the steps, and that bf16 reaches no backward."""
    trial, loop = begin({"precision": precision}), Loop()
    weights = list(loop.model.parameters())
    for (x,) in _loader(80, 8):
        gradients = torch.autograd.grad(loop.model(x).mean(), weights)
        for weight, gradient in zip(weights, gradients, strict=True):
            weight.grad = gradient
        loop.optimizer.step()
    facts = trial.end()
    assert (trial.steps, trial.samples, facts["unit"]) == (10, 80, "samples")
    assert "num_workers" not in facts["left_out"]
    assert trial.evidence("precision") == evidence and facts["left_out"].get("precision", "") == evidence[1]


def test_a_model_that_goes_on_to_train_in_eval_is_counted(begin: Begin) -> None:
    """As where batch norm is frozen after the first epochs: several batches to a backward, too."""
    trial, loop = begin(), Loop()
    for epoch in range(6):
        losses: list[Any] = []
        for (x,) in _loader(80, 8):
            if epoch < 2:
                loop.train(x)
                continue
            losses.append(loop.model.eval()(x).mean())
            if len(losses) == 2:
                loop.optimizer.zero_grad()
                sum(losses).backward()
                loop.optimizer.step()
                losses.clear()
    trial.end()
    assert trial.samples >= 6 * 80 - 8, "what is a look is known to be none with the first backward"


@pytest.mark.parametrize("validates", [False, True])
@pytest.mark.parametrize(("gradients", "evaluates"), [(False, True), (True, True), (False, False)])
def test_a_loader_that_is_only_evaluated_on_is_none_that_trains(
    begin: Begin, gradients: bool, evaluates: bool, validates: bool
) -> None:
    """The loop slices its own batches: those of the validation's loader were told as what it trains on."""
    trial, loop = begin(), Loop()
    data, held_out = torch.rand(160, 4), _loader(24, 8)
    for epoch in range(5):
        for x in data.split(8) if epoch or not validates else ():
            loop.train(x)
        loop.evaluate(held_out, gradients=gradients, in_eval=evaluates)
    facts = trial.end()
    assert (trial.steps, facts["unit"], trial.set_apart()) == (loop.steps, "steps", 5 - validates)
    assert facts["left_out"]["num_workers"].startswith("no DataLoader feeds")
    assert facts["training_loaders"] == []


@pytest.mark.parametrize("kept", [True, False])
def test_a_loader_whose_batches_are_fetched_beforehand_feeds_no_steps(begin: Begin, kept: bool) -> None:
    """A list of its batches that is trained on again and again, or statistics that are taken of the data."""
    trial, loop = begin(), Loop()
    batches = [x for (x,) in _loader(40, 8)]
    for _ in range(8):
        for x in batches if kept else torch.rand(40, 4).split(8):
            loop.train(x)
    facts = trial.end()
    assert (trial.steps, facts["unit"]) == (40, "steps")
    assert "before" in facts["left_out"]["num_workers"]


def test_many_steps_on_each_batch_are_fed_by_its_loader(begin: Begin) -> None:
    trial, loop = begin(), Loop()
    for (x,) in _loader(80, 8):
        for _ in range(12):
            loop.train(x)
    facts = trial.end()
    assert (trial.steps, trial.samples, facts["unit"]) == (120, 80, "samples")


@pytest.mark.parametrize("first", [False, True])
def test_batches_that_are_labelled_one_after_the_other_count_where_one_step_is_taken_on_them(
    begin: Begin, first: bool
) -> None:
    """A model labels each as it comes; those but the last one were told as evaluated on."""
    trial, loop, train = begin(), Loop(), _loader(80, 8, shuffle=True)
    for (x,) in train if not first else ():
        loop.train(x)
    for _ in range(4):
        batches: list[Any] = []
        for (x,) in train:
            loop.evaluate([(x,)], gradients=False)
            batches.append(x)
            if len(batches) == 2:
                loop.train(torch.cat(batches))
                batches.clear()
    facts = trial.end()
    # The first look after more than two steps is taken for a validation's.
    assert (trial.steps, trial.samples) == (loop.steps, loop.samples - 8 * (not first))
    assert facts["unit"] == "samples" and len(facts["training_loaders"]) == 1


def test_a_loader_whose_batches_are_labelled_before_another_one_gives_its_own_trains(begin: Begin) -> None:
    trial, loop = begin(), Loop()
    for _ in range(3):
        labelled = iter(_loader(80, 8))
        for (x,) in _loader(240, 24):
            loop.evaluate([(x,)], gradients=False)
            loop.train(torch.cat([x, *next(labelled)]))
    facts = trial.end()
    assert (trial.steps, trial.samples) == (30, 240) and len(facts["training_loaders"]) == 2


def test_a_figure_of_the_model_between_its_call_and_the_backward_is_no_evaluation(begin: Begin) -> None:
    trial, loop, losses = begin(), Loop(), list[Any]()
    for (x,) in _loader(160, 8):
        losses.append(loop.model.train()(x).mean())
        loop.evaluate([(x,)], gradients=False)
        if len(losses) == 2:
            loop.optimizer.zero_grad()
            sum(losses).backward()
            loop.optimizer.step()
            losses.clear()
    assert (trial.end()["unit"], trial.steps, trial.samples) == ("samples", 10, 160)


def test_an_attack_on_what_is_evaluated_leaves_the_training_its_loader(begin: Begin) -> None:
    """Its backwards are no steps: the training's loader was told to feed none, and the attacked one counted."""
    trial, loop = begin(), Loop()
    train, held_out = _loader(160, 8, shuffle=True), _loader(24, 8)
    for _ in range(4):
        for (x,) in train:
            loop.train(x)
        loop.model.eval()
        for (x,) in held_out:
            change = torch.zeros_like(x, requires_grad=True)
            for _ in range(12):
                loop.model(x + change).square().mean().backward()
        loop.evaluate(held_out, gradients=True)
    facts = trial.end()
    assert (trial.steps, trial.samples, facts["unit"]) == (loop.steps, loop.samples, "samples")
    assert len(facts["training_loaders"]) == 1 and trial.set_apart() == 4


@pytest.mark.parametrize("at_the_end", [False, True])
def test_samples_that_are_drawn_between_steps_are_no_training(begin: Begin, at_the_end: bool) -> None:
    """In train mode, without gradients, as by what makes pictures of noise: they were counted as a part of the loop."""
    trial, loop = begin(), Loop()
    for _ in range(6):
        for step, (x,) in enumerate(_loader(80, 8)):
            loop.train(x)
            if step == 4 and not at_the_end:
                loop.evaluate([(torch.rand(8, 4),)] * 3, gradients=False, in_eval=False)
        if at_the_end:
            loop.evaluate([(torch.rand(8, 4),)] * 3, gradients=False, in_eval=False)
    trial.end()
    assert (trial.steps, trial.samples, trial.set_apart()) == (60, 480, 6)


def test_drawn_samples_are_looked_for_in_a_few_calls(begin: Begin) -> None:
    """In what is trained on behind them. All later steps were looked at: on a card each look waits for it."""
    trial, loop = begin(), Loop()
    looks = trial.adapter.watches.modules.rollouts
    for epoch in range(3):
        before = looks._calls
        for (x,) in _loader(160, 8):
            loop.train(x)
        assert looks._calls - before == (LOOKED_AT if epoch else 0)
        loop.evaluate([(torch.rand(8, 4),)] * 3, gradients=False, in_eval=False)
