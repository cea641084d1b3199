"""How far a screen moves a sample of the weights of each optimizer, or of those that a script updates by hand."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import ModuleType

from ..movement import ELEMENTS, Movement, Movements, Samples, spread
from ..session import Session
from .losses import leaves
from .types import Optimizer, Tensor


class WeightWatch:
    """Watches each optimizer of a seeded trial from its first step on; of any other trial it sees nothing.

    Where the script updates its weights by hand, a group are those whose gradients are taken together, as far as they
    are in no group yet.
    """

    def __init__(self, session: Session, torch: ModuleType) -> None:
        self._torch = torch
        self._movements = Movements(session)
        self._of_optimizers: weakref.WeakKeyDictionary[Optimizer, Movement] = weakref.WeakKeyDictionary()
        self._of_parameters: dict[tuple[int, ...], Movement] = {}
        self._updated_by_hand: set[int] = set()
        self._kept: list[object] = []
        """What took the place of one of these would bear its number."""

    @property
    def watching(self) -> bool:
        """Whether anything is watched here at all."""
        return self._movements.watching

    def step_begins(self, optimizer: Optimizer) -> None:
        """Before an update: the first of each optimizer is preceded by a look at its weights.

        A script may make one anew for the same weights, with each step.
        """
        if not self.watching or optimizer in self._of_optimizers:
            return
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        numbers = tuple(map(id, parameters))
        if numbers not in self._of_parameters and self._movements.has_room:
            self._kept += parameters
            self._of_parameters[numbers] = self._begin(type(optimizer).__name__, parameters)
        if numbers in self._of_parameters:
            self._of_optimizers[optimizer] = self._of_parameters[numbers]

    def stepped(self, optimizer: Optimizer) -> None:
        """After an update."""
        movement = self._of_optimizers.get(optimizer)
        if movement is not None:
            movement.look()

    def backward_begins(self, losses: Sequence[Tensor]) -> None:
        """Of a script without an optimizer: what the backward before this one led to has moved its weights by now."""
        if not self.watching:
            return
        self._movements.look()
        new = [leaf for leaf in leaves(losses) if id(leaf) not in self._updated_by_hand]
        if new and self._movements.has_room:
            self._kept += new
            self._updated_by_hand.update(map(id, new))
            with suppress(Exception):  # nested ones have no shape
                new.sort(key=lambda leaf: tuple(leaf.shape))  # a compiled graph has them in another order
            self._begin("backward", new)

    def _begin(self, name: str, given: Sequence[Tensor]) -> Movement:
        parameters: list[Tensor] = []
        with suppress(Exception):  # of a kind that has no shape yet: nothing can be read of it
            parameters = [p for p in given if p.requires_grad and p.numel() and p.is_floating_point()]
        shapes = [tuple(parameter.shape) for parameter in parameters]
        return self._movements.begin(name, shapes, reader(self._torch, parameters))


def reader(torch: ModuleType, parameters: Sequence[Tensor]) -> Callable[[], Samples]:
    """Reads a sample of these weights."""
    tensors = [parameters[place] for place in spread(len(parameters))]
    places: list[Tensor] = []

    def read() -> Samples:
        if not places:
            places.extend(torch.tensor(spread(tensor.numel(), ELEMENTS), device=tensor.device) for tensor in tensors)
        return [_sample(tensor, chosen) for tensor, chosen in zip(tensors, places, strict=True)]

    return read


def _sample(tensor: Tensor, places: Tensor) -> Sequence[float]:
    values: list[float] = tensor.detach().reshape(-1)[places].tolist()
    return values
