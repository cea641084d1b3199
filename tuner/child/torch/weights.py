"""How far the optimizers of a screen move a sample of their weights: a loss may fall where nothing is learned."""

from __future__ import annotations

from types import ModuleType

from ..movement import ELEMENTS, MOST_GROUPS, spread
from ..records import WeightChange
from ..session import Session
from .types import Optimizer, Tensor


class _Watched:
    """One optimizer's sample."""

    def __init__(self, torch: ModuleType, optimizer: Optimizer) -> None:
        self.name = type(optimizer).__name__
        self.steps = 0
        self._torch = torch
        given: list[Tensor] = [p for group in optimizer.param_groups for p in group["params"]]
        parameters = [p for p in given if p.requires_grad and p.numel() and p.is_floating_point()]
        self._tensors = [parameters[i] for i in spread(len(parameters))]
        self._places = [
            torch.tensor(spread(tensor.numel(), ELEMENTS), device=tensor.device) for tensor in self._tensors
        ]
        self._before = self._samples()
        self._paths = [0.0] * len(self._tensors)

    def stepped(self) -> None:
        """Adds how far each tensor has moved since the last time; waits for the device, as a screen does each step."""
        self.steps += 1
        before, self._before = self._before, self._samples()
        for number, (old, new) in enumerate(zip(before, self._before, strict=True)):
            self._paths[number] += float(self._torch.linalg.vector_norm(new - old))

    def record(self) -> WeightChange:
        """What was seen."""
        return WeightChange(self.name, self.steps, sum(self._paths))

    def _samples(self) -> list[Tensor]:
        pairs = zip(self._tensors, self._places, strict=True)
        return [tensor.detach().reshape(-1)[places].float() for tensor, places in pairs]


class WeightWatch:
    """Watches each optimizer of a seeded trial from its first step on; of any other trial it sees nothing."""

    def __init__(self, session: Session, torch: ModuleType) -> None:
        self._session = session
        self._torch = torch
        self._watched: dict[int, _Watched | None] = {}
        self._kept: list[Optimizer] = []
        self.watching = session.request.seed is not None and session.measuring
        if self.watching:
            session.observers.append(self._send)

    def step_begins(self, optimizer: Optimizer) -> None:
        """Before an update: the first of each optimizer is preceded by a look at its weights."""
        if not self.watching or id(optimizer) in self._watched or len(self._watched) >= MOST_GROUPS:
            return
        self._kept.append(optimizer)  # one that took its place would bear its number
        try:
            self._watched[id(optimizer)] = _Watched(self._torch, optimizer)
        except Exception:
            self._watched[id(optimizer)] = None  # weights that are no plain tensors: sharded, quantized, sparse

    def stepped(self, optimizer: Optimizer) -> None:
        """After an update."""
        watched = self._watched.get(id(optimizer)) if self.watching else None
        if watched is None:
            return
        try:
            watched.stepped()
        except Exception:
            self._watched[id(optimizer)] = None

    def _send(self) -> None:
        for watched in self._watched.values():
            if watched is not None and watched.steps:
                self._session.recorder.emit(watched.record())
