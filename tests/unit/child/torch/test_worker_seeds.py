"""A ``worker_init_fn`` of a loader without workers sleeps: with workers it may seed each epoch as the one before."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from support.copied_data import Begin, Rows, left_out
from support.torch_trials import begin

from tuner.child.torch.worker_seeds import ALIKE

__all__ = ["begin"]
SEED = 42
epoch = 0


def noisy(x: torch.Tensor) -> torch.Tensor:
    return x + random.random()


def by_constant(worker: int) -> None:
    random.seed(SEED + worker)


def of_all(seed: int) -> None:
    np.random.seed(seed)
    torch.manual_seed(seed)


def by_another(worker: int) -> None:
    of_all(worker)


def with_more(worker: int, rank: int, seed: int) -> None:
    np.random.seed(rank * 64 + worker + seed)


def as_pytorch_tells(worker: int) -> None:
    np.random.seed(torch.initial_seed() % 2**32)
    random.seed(torch.initial_seed())


def of_its_own(worker: int) -> None:
    information = torch.utils.data.get_worker_info()
    assert information is not None
    random.seed(information.seed)


def by_epoch(worker: int) -> None:
    random.seed(epoch * 100 + worker)


def by_clock(worker: int) -> None:
    random.seed(int(time.time()) + worker)


def sets_threads(worker: int) -> None:
    torch.set_num_threads(1)


@pytest.mark.parametrize("function", [by_constant, by_another, partial(with_more, rank=0, seed=1)])
def test_workers_that_would_draw_alike_in_each_epoch_are_left_out(begin: Begin, function: Callable[..., Any]) -> None:
    assert left_out(begin, Rows(noisy), worker_init_fn=function) == {"num_workers": ALIKE}


@pytest.mark.parametrize("function", [as_pytorch_tells, of_its_own, by_epoch, by_clock, sets_threads, None])
def test_other_functions_are_no_obstacle(begin: Begin, function: Callable[..., Any] | None) -> None:
    assert left_out(begin, Rows(noisy), worker_init_fn=function) == {}


@pytest.mark.parametrize("shuffle", [False, True])
def test_nor_are_they_where_the_data_draw_nothing(begin: Begin, shuffle: bool) -> None:
    assert left_out(begin, Rows(), worker_init_fn=by_constant, shuffle=shuffle) == {}


@pytest.mark.parametrize("many", [False, True])
def test_what_another_loader_gave_before_says_nothing_of_the_data_that_train(begin: Begin, *, many: bool) -> None:
    """As where a script evaluates its model before the first epoch: all looks went into data that draw nothing."""

    def evaluate() -> None:
        for _ in range(3 if many else 1):
            for _ in torch.utils.data.DataLoader(Rows(), batch_size=4, worker_init_fn=by_constant):
                pass

    found = left_out(begin, Rows(noisy), before=evaluate, worker_init_fn=by_constant)
    assert found == {"num_workers": ALIKE}


@pytest.mark.parametrize("alive", [False, True])
def test_however_many_others_there_are(begin: Begin, *, alive: bool) -> None:
    """The ninth loader ended the looks at those before it, and what trained behind eight others was never looked at."""
    others: list[Any] = []

    def fetch_of_others() -> None:
        for _ in range(9 - len(others)):
            loader = torch.utils.data.DataLoader(Rows(), batch_size=4, worker_init_fn=by_constant)
            others.extend(itertools.repeat(loader, alive))
            batches = iter(loader)
            next(batches), next(batches)  # the first one isn't looked at

    rows = Rows()
    rows.transform = lambda x: noisy(x) if torch.equal(x, rows.x[16]) else x  # in the fifth batch
    assert left_out(begin, rows, fetch_of_others, worker_init_fn=by_constant)["num_workers"] == ALIKE
    assert left_out(begin, rows, before=fetch_of_others, worker_init_fn=by_constant) == {"num_workers": ALIKE}


@pytest.mark.slow  # starts workers
def test_what_it_is_about() -> None:
    """Workers of each epoch draw what those of the epoch before drew."""
    loader = torch.utils.data.DataLoader(Rows(noisy), batch_size=8, num_workers=1, worker_init_fn=by_constant)
    first, second = [x for x, _ in loader], [x for x, _ in loader]
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))
