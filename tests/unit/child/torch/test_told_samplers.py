"""Samplers that are told of the training by a function that changes what it is given, wherever that one is from."""

from __future__ import annotations

import heapq
import operator
import time
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from tuner.child.torch.told_samplers import feedback

own = ModuleType("own")
own.learn = own.losses = lambda losses, loss: losses.append(loss)  # type: ignore[attr-defined]
own.__file__ = __file__


class Ordered(torch.utils.data.Sampler[int]):  # type: ignore[misc]  # PyTorch may lack types where this is checked
    def __init__(self) -> None:
        self.losses: Any = np.ones(96)

    def __len__(self) -> int:
        return 96

    def __iter__(self) -> Iterator[int]:
        for _ in range(96):
            yield int(np.argmax(self.losses))


class ByOwnModule(Ordered):
    def tell(self, loss: float) -> None:
        own.learn(self.losses, loss)


class ByItsAttribute(Ordered):
    def tell(self, loss: float) -> None:
        own.losses(self.losses, loss)


class ByHeap(Ordered):
    def tell(self, loss: float) -> None:
        heapq.heappush(self.losses, loss)


class ByOperator(Ordered):
    def tell(self, loss: float) -> None:
        operator.setitem(self.losses, 0, loss)


class ByCopy(Ordered):
    def tell(self, losses: Any) -> None:
        np.copyto(self.losses, losses)


class ByOut(Ordered):
    def tell(self, losses: Any) -> None:
        np.add(self.losses, losses, out=self.losses)


class ByPlace(Ordered):
    def tell(self, places: Any, losses: Any) -> None:
        np.add.at(self.losses, places, losses)


class Reads(Ordered):
    def entropy(self) -> Any:
        return -np.sum(self.losses * np.log(self.losses)) / time.time()


@pytest.mark.parametrize("made", [ByOwnModule, ByItsAttribute, ByHeap, ByOperator, ByCopy, ByOut, ByPlace])
def test_a_function_that_changes_what_it_is_given_tells_a_sampler(made: type[Ordered]) -> None:
    assert feedback(made()).startswith(f"{made.__name__}.tell may tell it")


def test_one_that_computes_with_it_does_not() -> None:
    assert not feedback(Reads())
