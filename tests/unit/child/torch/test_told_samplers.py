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


class ByMethodOfOneName(Ordered):
    """As a sampler by priorities has it, which keeps a tree of them."""

    def __init__(self) -> None:
        super().__init__()
        self.tree: dict[int, float] = {}

    def tell(self, losses: dict[int, float]) -> None:
        self.tree.update(losses)

    update = tell


class ByAlias(Ordered):
    def tell(self, losses: Any) -> None:
        known = self.losses
        known += losses


class ByPart(Ordered):
    def tell(self, losses: Any) -> None:
        known = self.losses[:8]
        known *= losses


class ByFunctionItHolds(Ordered):
    def __init__(self) -> None:
        super().__init__()
        self.learn = own.learn

    def tell(self, loss: float) -> None:
        self.learn(self.losses, loss)


class BySetter(Ordered):
    @property
    def told(self) -> float:
        return float(self.losses[0])

    @told.setter
    def told(self, loss: float) -> None:
        self.losses[0] = loss


class ByCall(Ordered):
    def __call__(self, loss: float) -> None:
        self.losses[0] = loss


class ByStaticMethod(Ordered):
    def tell(self, loss: float) -> None:
        self._learn(self.losses, loss)

    @staticmethod
    def _learn(losses: Any, loss: float) -> None:
        losses[0] = loss


class Reads(Ordered):
    def entropy(self) -> Any:
        return -np.sum(self.losses * np.log(self.losses)) / time.time()

    def share(self, count: int) -> float:
        rest = self.count
        rest -= count
        known = self.losses
        known = known + rest
        more = self.losses + rest
        more += known
        return float(self._mean(known + more))

    def __init__(self) -> None:
        super().__init__()
        self.count = 96

    @property
    def names(self) -> Any:
        return self.losses.dtype.names

    @classmethod
    def of(cls, settings: Any) -> Reads:
        settings.seen.append(cls)
        return cls()

    @staticmethod
    def _mean(losses: Any) -> Any:
        return losses.mean()


@pytest.mark.parametrize("made", [ByOwnModule, ByItsAttribute, ByHeap, ByOperator, ByCopy, ByOut, ByPlace])
def test_a_function_that_changes_what_it_is_given_tells_a_sampler(made: type[Ordered]) -> None:
    assert feedback(made()).startswith(f"{made.__name__}.tell may tell it")


@pytest.mark.parametrize("made", [ByMethodOfOneName, ByAlias, ByPart, ByFunctionItHolds, ByStaticMethod])
def test_so_does_a_method_that_has_what_it_holds_changed(made: type[Ordered]) -> None:
    """One named ``update`` passed for the sampler's own where it calls that of a dictionary it holds."""
    assert feedback(made()).startswith(f"{made.__name__}.tell may tell it")


@pytest.mark.parametrize(("made", "name"), [(BySetter, "told.setter"), (ByCall, "__call__")])
def test_so_does_what_a_script_writes_without_the_name_of_a_method(made: type[Ordered], name: str) -> None:
    assert feedback(made()).startswith(f"{made.__name__}.{name} may tell it")


def test_one_that_computes_with_it_does_not() -> None:
    assert not feedback(Reads())
