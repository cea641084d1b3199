"""Where scripts keep the random generators that their data draw from: a worker's copy draws what another one does."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from support.copied_data import Begin, Rows, left_out
from support.torch_trials import begin
from torch.random import manual_seed

__all__ = ["begin"]

CHANCE = np.random.default_rng(0)


class Shared(Rows):
    """Has its generator from its class."""

    rng = random.Random(0)

    def __getitem__(self, index: int) -> Any:
        x, y = super().__getitem__(index)
        return x + self.rng.random(), y


class ByProperty(Rows):
    """Reaches the generator beside it by a property."""

    @property
    def chance(self) -> Any:
        return CHANCE

    def __getitem__(self, index: int) -> Any:
        x, y = super().__getitem__(index)
        return x + float(self.chance.random()), y


class CFG:
    """Settings, as many notebooks keep them."""

    rng = np.random.default_rng(0)
    noise = 0.1


class Configured(Rows):
    """Reaches the generator by the class that it is kept in."""

    def __getitem__(self, index: int) -> Any:
        x, y = super().__getitem__(index)
        return x + CFG.noise * float(CFG.rng.random()), y


class Constant(Rows):
    """Reads nothing of these settings that draws."""

    def __getitem__(self, index: int) -> Any:
        x, y = super().__getitem__(index)
        return x + CFG.noise, y


class Slotted:
    """As ``Jitter``, without a dictionary of its own."""

    __slots__ = ("chance",)

    def __init__(self) -> None:
        self.chance = random.Random(0)

    def __call__(self, x: Any) -> Any:
        return x + self.chance.random()


def moved(x: Any, chance: Any = random.Random(0)) -> Any:  # noqa: B008  # as scripts have it
    """Draws from what it is given, and from one for all calls where that is nothing."""
    return x + chance.random()


class Seeded(Rows):
    """Holds what PyTorch seeds in each worker."""

    def __init__(self) -> None:
        super().__init__()
        self.choice, self.numpy, self.torch = random.choice, np.random.mtrand._rand, torch.default_generator

    def __getitem__(self, index: int) -> Any:
        x, y = super().__getitem__(index)
        return x * self.choice([1, 2]) + float(self.numpy.rand()) + torch.rand(1, generator=self.torch), y


def added(x: Any, chance: Any) -> Any:
    """Draws from what it is given."""
    return x + chance.random()


class Split(Rows):
    """Has an attribute that is called like a function of the script."""

    train = True

    def __getitem__(self, index: int) -> Any:
        x, y = super().__getitem__(index)
        return (x + torch.rand(1) if self.train else x), y


STEPS = [0]


def train() -> None:
    """No part of the data: one more step."""
    STEPS[0] += 1


@pytest.mark.parametrize(
    ("made", "path"),
    [
        (lambda: Rows(Slotted()), "dataset.transform.chance"),
        (lambda: Rows(moved), "dataset.transform.chance"),
        (lambda: Rows(functools.partial(added, chance=random.Random(0))), "dataset.transform.keywords['chance']"),
        (Shared, "dataset.rng"),
        (ByProperty, "CHANCE"),
        (Configured, "CFG.rng"),
    ],
)
def test_a_generator_is_found_wherever_it_is_kept(begin: Begin, made: Callable[[], Any], path: str) -> None:
    found = left_out(begin, made())
    assert found["num_workers"].startswith(f"{path} draws random numbers of its own")


class Reseeding(Rows):
    """Begins its numbers anew with each epoch, as DLRM's random data do."""

    def __getitem__(self, index: int) -> Any:
        if index == 0:
            np.random.seed(3)
        return super().__getitem__(index)


def test_data_that_seed_the_training_s_random_numbers_keep_its_workers(begin: Begin) -> None:
    found = left_out(begin, Reseeding())
    assert found["num_workers"].startswith("Reseeding.__getitem__ seeds the random numbers of the training")


@pytest.mark.parametrize("made", [Seeded, Constant])
def test_what_pytorch_seeds_in_each_worker_is_no_generator_of_the_data(begin: Begin, made: Callable[[], Any]) -> None:
    assert left_out(begin, made()) == {}


def test_an_attribute_of_the_data_is_no_function_of_the_script(begin: Begin) -> None:
    assert left_out(begin, Split(), train) == {}


class Itemwise(Rows):
    """Seeds a generator of each item's own, as data that are made up often do."""

    def __getitem__(self, index: int) -> Any:
        generator = torch.Generator().manual_seed(index)
        other = torch.Generator()
        other.manual_seed(index + 1)
        x, y = super().__getitem__(index)
        return x + torch.rand(1, generator=generator) + torch.rand(1, generator=other), y


class Imported(Rows):
    """Seeds the generator that the process has, by a module that it imports there."""

    def __getitem__(self, index: int) -> Any:
        import torch as library

        library.manual_seed(index)
        return super().__getitem__(index)


class Defaults(Rows):
    """Seeds that generator itself."""

    def __getitem__(self, index: int) -> Any:
        torch.default_generator.manual_seed(index)
        return super().__getitem__(index)


class Named(Rows):
    """Seeds it by the function alone."""

    def __getitem__(self, index: int) -> Any:
        manual_seed(index)
        return super().__getitem__(index)


def test_data_that_seed_a_generator_of_each_item_may_have_workers(begin: Begin) -> None:
    assert left_out(begin, Itemwise()) == {}


@pytest.mark.parametrize("made", [Imported, Defaults, Named])
def test_the_process_s_generator_is_known_however_it_is_reached(begin: Begin, made: Callable[[], Any]) -> None:
    reason = f"{made.__qualname__}.__getitem__ seeds the random numbers of the training"
    assert left_out(begin, made())["num_workers"].startswith(reason)
