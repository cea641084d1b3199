"""Several loaders, each of which feeds steps by itself: samples are those of all of them."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from support.torch_trials import begin
from torch.utils.data import DataLoader, Sampler, TensorDataset

__all__ = ["begin"]
SELDOM = "another loader feeds fewer than half of the steps, and would keep its batches"
Begin = Callable[..., Any]


class Loop:
    """Trains on two loaders, of batches of 8 and of ``size`` samples, and counts by itself."""

    def __init__(self, size: int = 4) -> None:
        self.loaders = {
            "first": DataLoader(TensorDataset(torch.rand(80, 4)), batch_size=8, shuffle=True),
            "other": DataLoader(TensorDataset(torch.rand(10 * size, 4)), batch_size=size, shuffle=True),
        }  # fmt: skip
        self.model = torch.nn.Linear(4, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        self.steps = self.samples = 0

    def endlessly(self, name: str) -> Iterator[Any]:
        while True:
            yield from (x for (x,) in self.loaders[name])

    def train(self, *batches: Any) -> None:
        """One step, with a backward for each batch."""
        self.optimizer.zero_grad()
        for x in batches:
            self.model(x).square().mean().backward()
        self.optimizer.step()
        self.steps += 1
        self.samples += sum(map(len, batches))

    def train_on(self, names: Any) -> None:
        batches = {name: self.endlessly(name) for name in self.loaders}
        for name in names:
            self.train(next(batches[name]))


@pytest.mark.parametrize(
    "names",
    [
        ["first", "other"] * 20, ["other", "first"] * 20, ["first", "first", "first", "other"] * 10,
        (["first"] * 10 + ["other"] * 10) * 3, ["first"] * 20 + ["other"] * 30,
        random.Random(0).choices(["first", "other"], k=60),
    ],
    ids=["by turns", "the other first", "one in four", "epochs", "two stages", "by chance"],
)  # fmt: skip
def test_each_step_counts_what_it_was_taken_on(begin: Begin, names: list[str]) -> None:
    """A half of the samples/s was told where two loaders feed every other step each."""
    trial, loop = begin(), Loop()
    loop.train_on(names)
    facts = trial.end()
    assert (trial.steps, trial.samples, facts["unit"]) == (loop.steps, loop.samples, "samples")
    assert not any(told["flagged"] and told["steps"] for told in trial.log.of("block"))
    assert not any("samples are those of" in text for text in facts["remarks"])


@pytest.mark.parametrize("size", [4, 8])
@pytest.mark.parametrize("names", [["first", "other"] * 20, ["first"] * 20 + ["other"] * 30], ids=["turns", "stages"])
def test_that_their_batches_have_other_sizes_is_told(begin: Begin, names: list[str], size: int) -> None:
    """A trial of some seconds may meet one of two stages alone, and nothing said so."""
    trial, loop = begin(), Loop(size)
    loop.train_on(names)
    told = "steps on batches of 4 and of 8 samples come in turn: a trial lasts some seconds, and its rate is"
    remarks = [text for text in trial.end()["remarks"] if "in turn" in text]
    assert [text.startswith(told) for text in remarks] == [True] * (size == 4)


def test_a_batch_that_is_tried_first_is_no_stage(begin: Begin) -> None:
    trial, loop = begin(), Loop()
    loop.train_on(["other"] + ["first"] * 20)
    assert not any("in turn" in text for text in trial.end()["remarks"])


def test_an_epoch_on_one_loader_after_one_on_another(begin: Begin) -> None:
    trial, loop = begin(), Loop()
    for _, name in itertools.product(range(3), loop.loaders):
        for (x,) in loop.loaders[name]:
            loop.train(x)
    trial.end()
    assert (trial.steps, trial.samples, trial.set_apart()) == (60, 3 * (80 + 40), 0)


def test_a_step_that_both_feed_counts_the_samples_of_one(begin: Begin) -> None:
    """Be it by one backward on the batches of both, or by one for each. Of batches of one size nothing said so."""
    trial, loop = begin(), Loop(size=8)
    both = zip(loop.endlessly("first"), loop.endlessly("other"), strict=False)
    for x, u in itertools.islice(both, 20):
        loop.train(torch.cat([x, u]))
    for x, u in itertools.islice(both, 20):
        loop.train(x, u)
    remarks = trial.end()["remarks"]
    assert (trial.steps, trial.samples) == (40, 40 * 8)
    assert "2 loaders with batches of 8 feed each step together: samples are those of one of them" in remarks


def test_a_loader_that_is_gone_through_once_beside_another_is_no_stage(begin: Begin) -> None:
    """``itertools.cycle`` keeps the batches of its first pass: from then on nothing is fetched from that loader. Steps
    on its batches were said to have come in turn with those on the other's, and no step was.
    """
    trial, loop = begin(), Loop()
    for x, (u,) in zip(loop.endlessly("first"), itertools.cycle(loop.loaders["other"]), strict=False):
        loop.train(torch.cat([x, u]))
        if loop.steps == 30:
            break
    assert [text for text in trial.end()["remarks"] if "in turn" in text] == []


@pytest.mark.parametrize(("names", "reason"), [(["first", "other"], ""), (["first", "first", "other"], SELDOM)])
def test_batches_keep_their_size_where_one_of_the_loaders_would(begin: Begin, names: list[str], reason: str) -> None:
    trial, loop = begin(), Loop(size=8)
    loop.train_on(names * 12)
    facts = trial.end()
    assert facts["left_out"].get("batch_size", "") == reason and "num_workers" not in facts["left_out"]


class Tens(Sampler[list[int]]):  # type: ignore[misc]  # PyTorch may lack types where this is checked
    """Makes its batches by itself."""

    def __iter__(self) -> Iterator[list[int]]:
        return iter([list(range(first, first + 10)) for first in range(0, 100, 10)])

    def __len__(self) -> int:
        return 10


def test_so_they_do_beside_a_loader_that_takes_no_size(begin: Begin) -> None:
    trial, loop = begin(), Loop()
    loop.loaders["other"] = DataLoader(TensorDataset(torch.rand(100, 4)), batch_sampler=Tens())
    for x, u in itertools.islice(zip(loop.endlessly("other"), loop.endlessly("first"), strict=False), 30):
        loop.train(torch.cat([x, u]))
    facts = trial.end()
    assert facts["left_out"]["batch_size"] == "the script batches by its own Tens"


def test_what_an_attack_takes_gradients_on_feeds_no_steps(begin: Begin) -> None:
    trial, loop = begin(), Loop()
    for _ in range(4):
        for (x,) in loop.loaders["first"]:
            loop.train(x)
        for (x,) in itertools.islice(loop.loaders["other"], 3):
            change = torch.zeros_like(x, requires_grad=True)
            loop.model.eval()(x + change).square().mean().backward()
        loop.model.train()
    facts = trial.end()
    assert trial.samples == loop.samples == 4 * 80
    assert "batch_size" not in facts["left_out"], facts["left_out"]
