"""Optimizers that ask for their loss several times in a step of their own, as LBFGS does: what is counted and told."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.torch_trials import begin
from torch.utils.data import DataLoader, TensorDataset

__all__ = ["begin"]
pytestmark = pytest.mark.usefixtures("torch_settings_kept")
Begin = Callable[..., Any]
BATCH, BATCHES, EVALUATIONS = 8, 6, 9


def train(batches: Any, evaluations: int = EVALUATIONS) -> None:
    """A step of LBFGS on each batch, which takes so many evaluations."""
    model = torch.nn.Linear(5, 1)
    optimizer = torch.optim.LBFGS(
        model.parameters(), lr=0.01, max_iter=evaluations, tolerance_grad=0, tolerance_change=0
    )
    for x in batches:

        def closure(x: Any = x) -> Any:
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            return loss

        optimizer.step(closure)


def loader(batches: int = BATCHES) -> Any:
    """Batches of a DataLoader."""
    data = TensorDataset(torch.randn(BATCH * batches, 5))
    return (x for (x,) in DataLoader(data, batch_size=BATCH))


def test_the_samples_of_a_batch_count_with_its_first_evaluation_and_stay(begin: Begin) -> None:
    """Tried before: by the sixth evaluation the loader didn't train any more, and its losses were of six samples."""
    trial = begin()
    train(loader())
    facts = trial.end()
    assert (facts["unit"], facts["samples"], facts["steps"]) == ("samples", BATCH * BATCHES, EVALUATIONS * BATCHES)
    read = [loss["samples"] for loss in trial.log.of("loss")]
    assert read == sorted(read) and read[-1] == BATCH * BATCHES
    assert trial.adapter.watches.loaders.sources.changes_of_primary == 0


def test_a_batch_of_the_loops_own_counts_once_as_well(begin: Begin) -> None:
    """Of a loader's batch nine evaluations are one batch, and of one that the loop slices they were nine."""
    trial = begin(placeholders=["batch_size"], as_written={"batch_size": BATCH})
    train(torch.randn(BATCH * BATCHES, 5).split(BATCH))
    facts = trial.end()
    assert (facts["unit"], facts["samples"], facts["steps"]) == ("samples", BATCH * BATCHES, EVALUATIONS * BATCHES)


@pytest.mark.slow  # 3 s beside three others
def test_a_batch_that_was_fetched_long_ago_feeds_no_step(begin: Begin) -> None:
    trial = begin()
    batch = next(loader())
    train([batch] * 40)
    facts = trial.end()
    assert (facts["unit"], facts["steps"]) == ("steps", 40 * EVALUATIONS)


def test_what_a_step_is_here_is_told(begin: Begin) -> None:
    trial = begin()
    train(loader())
    told = "its optimizer evaluates its loss several times in each of its steps: each evaluation counts as a step here"
    assert [remark for remark in trial.end()["remarks"] if "evaluat" in remark] == [told]


@pytest.mark.slow  # 6 s beside three others
@pytest.mark.parametrize(("written", "holds"), [(EVALUATIONS, True), (2 * EVALUATIONS, False), (3, True)])
def test_a_rate_of_fewer_evaluations_is_none_of_the_scripts(begin: Begin, written: int, holds: bool) -> None:
    """An optimizer that ends its search earlier, as with rounded losses, takes more samples by computing less."""
    steps = 24
    known = {"unit": "samples", "backwards": steps * written, "optimizer_steps": steps, "optimizers": ["LBFGS"]}
    trial = begin({"threads": 1}, **known)
    train(loader(steps))
    trial.end()
    failures = [failure["detail"] for failure in trial.log.of("failure")]
    told = "its optimizer takes 9 gradients in each of its steps, as written 18: its samples take less work"
    assert failures == ([] if holds else [told])
