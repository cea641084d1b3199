"""Epochs of a step or two in this very process: what is validated on behind them, and what belongs to their steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from support.torch_trials import begin

__all__ = ["begin"]

Begin = Callable[..., Any]


def _data(batches: int) -> Any:
    dataset = torch.utils.data.TensorDataset(torch.randn(4 * batches, 5), torch.randn(4 * batches, 1))
    return torch.utils.data.DataLoader(dataset, batch_size=4)


def _model() -> tuple[Any, Any]:
    torch.manual_seed(0)
    model = torch.nn.Linear(5, 1)
    return model, torch.optim.SGD(model.parameters(), lr=0.01)


def _forever(batches: Any) -> Iterator[Any]:
    while True:
        yield from batches


def _train(model: Any, optimizer: Any, batches: Any) -> int:
    """Returns how many samples it was."""
    samples = 0
    for x, y in batches:
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model.train()(x), y).backward()
        optimizer.step()
        samples += len(x)
    return samples


def _validate(model: Any, batches: Any) -> None:
    with torch.no_grad():
        for x, _ in batches:
            model.eval()(x)


@pytest.mark.parametrize("held_out", [1, 3])
@pytest.mark.parametrize("steps", [1, 2])
def test_what_is_validated_on_behind_an_epoch_of_a_step_or_two_is_set_apart(
    begin: Begin, steps: int, held_out: int
) -> None:
    """As with few data in large batches, or in many that make a step: 9.5 samples/s were told of 15.6."""
    trial = begin()
    model, optimizer = _model()
    train, validation = _data(steps), _data(held_out)
    trained = 0
    for _ in range(6):
        trained += _train(model, optimizer, train)
        _validate(model, validation)
    trial.end()
    blocks = trial.log.of("block")
    assert sum(b["flagged"] for b in blocks) >= 4, "how it is gone through shows as it ends"
    assert sum(b["samples"] for b in blocks if not b["flagged"]) == trained - 4, "the first step is start-up"


def test_what_is_validated_on_behind_many_batches_of_one_step_is_set_apart(begin: Begin) -> None:
    """An epoch is one step of many batches, and loaders that begin once are never gone through to their end."""
    trial = begin()
    model, optimizer = _model()
    held_out = _forever(_data(1))
    for _ in range(6):
        for x, y in _data(8):
            torch.nn.functional.mse_loss(model.train()(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
        _validate(model, [next(held_out)])
    trial.end()
    blocks = trial.log.of("block")
    assert sum(b["flagged"] for b in blocks) >= 4
    assert sum(b["samples"] for b in blocks if not b["flagged"]) == 5 * 32, "the first step is start-up"


@pytest.mark.parametrize("accumulated", [1, 4])
def test_what_a_teacher_is_asked_about_in_each_step_is_part_of_it(begin: Begin, accumulated: int) -> None:
    """It comes from a loader of its own, which is gone through many times: a batch of it in each step."""
    trial = begin()
    model, optimizer = _model()
    teacher, others, train = torch.nn.Linear(5, 1), _forever(_data(3)), _data(8)
    for _ in range(5):
        for number, (x, y) in enumerate(train, 1):
            _validate(teacher, [next(others)])
            torch.nn.functional.mse_loss(model.train()(x), y).backward()
            if number % accumulated == 0:
                optimizer.step()
                optimizer.zero_grad()
    trial.end()
    assert not any(b["flagged"] for b in trial.log.of("block"))


@pytest.mark.parametrize("steps", [2, 6])
def test_a_fold_that_was_validated_on_trains_from_its_second_batch_on(begin: Begin, steps: int) -> None:
    """As in a cross-validation with a loader for each fold: what each batch of it was waited for was set apart."""
    trial = begin()
    model, optimizer = _model()
    folds = [_data(steps) for _ in range(3)]
    validations = trained = 0
    for held_out in folds[:2]:
        for _ in range(4):
            for fold in folds:
                if fold is not held_out:
                    trained += _train(model, optimizer, fold)
            _validate(model, held_out)
            validations += 1
    trial.end()
    assert sum(b["flagged"] for b in trial.log.of("block")) <= validations + 1
    assert trial.samples == trained, "none that the first fold was validated on last"
