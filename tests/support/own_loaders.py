"""Scripts in this very process, in whose rotation configs have loaders of their own: no turn begins by itself."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from support.in_process import ENDLESS
from support.torch_trials import Trial

SAMPLES, BATCH = 44, 4
TWO: dict[str, Any] = {"num_workers": 2}
ONE: dict[str, Any] = {"num_workers": 1, "prefetch_factor": 4}
NONE: dict[str, Any] = {"num_workers": 0}


class Numbers:
    """Each sample is its own number, and the process that read it."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[int, int]:
        return index, os.getpid()


class Slow(Numbers):
    """Each takes 20 ms."""

    def __getitem__(self, index: int) -> tuple[int, int]:
        time.sleep(0.02)
        return super().__getitem__(index)


class Script:
    """A trial that trains on numbers, in whose rotation no turn begins by itself.

    ``made_by``: the processes that made each batch.
    """

    def __init__(self, data: Any = None, **loader: Any) -> None:
        self.trial: Any = Trial({}, {}, rotation=[TWO, ONE, NONE], window={**ENDLESS, "warmup_s": 1e9})
        self.loader = DataLoader(data or Numbers(), **{"batch_size": BATCH, "shuffle": True, **loader})
        self.model = nn.Linear(1, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-6)
        self.made_by: list[set[int]] = []

    @property
    def switcher(self) -> Any:
        return self.trial.adapter.switcher()

    def epoch(self) -> Iterator[list[int]]:
        """Trains, and gives the numbers of each batch after its step."""
        for numbers, pids in self.loader:
            self.optimizer.zero_grad()
            self.model(numbers.float()[:, None]).mean().backward()
            self.optimizer.step()
            self.made_by.append({int(pid) for pid in pids})
            yield numbers.tolist()


def state_of(pid: int) -> str:
    """How the kernel calls what the process does: T where it is stopped."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


@pytest.fixture
def script() -> Iterator[Callable[..., Script]]:
    """Begins scripts, of which no worker is left."""
    made: list[Script] = []

    def start(*data: Any, **loader: Any) -> Script:
        made.append(Script(*data, **loader))
        return made[-1]

    yield start
    for each in made:
        each.switcher.end()
        iterator = each.loader._iterator
        if iterator is not None:
            iterator._shutdown_workers()
    del made[:]
    assert not multiprocessing.active_children()
