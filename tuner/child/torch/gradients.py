"""The gradient of a screen's first step, and what it was taken on: a batch in parts must give what the whole gives."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any

from ..records import FirstGradient
from ..session import Session
from .batches import tensors_of
from .draws import Draws
from .types import Optimizer, Result, Tensor

_KEPT_BATCHES = 64


class GradientWatch:
    """Looks at the first optimizer step of a seeded trial, once; of any other trial it sees nothing.

    ``exact`` says whether matrix products are taken in full float32.
    """

    def __init__(self, session: Session, torch: ModuleType, exact: Callable[[], bool]) -> None:
        self._session = session
        self._torch = torch
        self._exact = exact
        self.waiting = session.request.seed is not None and session.measuring
        self._batches: list[tuple[int, dict[str, tuple[int, float]]]] = []
        self._backwards = 0
        self._drawn: Draws | None = None
        self._random = False
        self._norm: float | None = None
        self._noted: list[tuple[Any, Any, int]] = []
        """Parameters, their gradients as they were when they were last looked at, and the versions of these."""
        self._changed = False

    def batch_fetched(self, key: str, batch: object, count: int) -> None:
        """A loader gave a batch; trainers fetch one ahead of the one that they train on."""
        known = self._session.request.knowledge.training_loaders
        if not self.waiting or key not in known or len(self._batches) >= _KEPT_BATCHES:
            return
        tensors = tensors_of(self._torch, batch)
        inputs = {f"{key}:{place}": (t.numel(), self._weighted_sum(t)) for place, t in enumerate(tensors)}
        self._batches.append((count, inputs))
        if not self._backwards:
            self._drawn = Draws(self._torch)

    def backward_begins(self) -> None:
        """Whatever was drawn since the batch came (dropout, a mixture of samples) differs between parts and whole."""
        if self.waiting:
            self._backwards += 1
            if self._backwards == 1 and self._drawn is not None:
                self._random = self._drawn.moved()

    def backward_ended(self, optimizers: Iterable[Optimizer]) -> None:
        """The norm is taken here, since whatever the script does to a gradient before its step may make all alike."""
        if self.waiting:
            self._norm = self._norm_of(optimizers)
            self._note(optimizers)

    def changing(self, optimizers: Iterable[Optimizer], change: Callable[[], Result], *, to_unscale: bool) -> Result:
        """Runs what clips gradients or unscales them; the norm is that of before the one and of after the other."""
        if not self.waiting or self._norm is None:
            return change()
        self._changed |= self._has_moved()
        result = change()
        if to_unscale:
            self._norm = self._norm_of(optimizers)
        self._note(optimizers)
        return result

    def _note(self, optimizers: Iterable[Optimizer]) -> None:
        held: list[Any] = [p for o in optimizers for group in o.param_groups for p in group["params"]]
        self._noted = [(p, p.grad, -1 if p.grad is None else p.grad._version) for p in held]

    def _has_moved(self) -> bool:
        """Whether a gradient is another one than it was when it was last looked at."""
        return any(p.grad is not g or (g is not None and g._version != version) for p, g, version in self._noted)

    def step_begins(self, optimizers: Iterable[Optimizer], scale: Callable[[], float], *, is_first: bool) -> None:
        """The whole gradient is there; ``scale`` is what a gradient scaler has multiplied it by."""
        if not self.waiting:
            return
        self.waiting = False
        changed = self._changed or self._has_moved()
        self._noted.clear()
        used = self._batches[: self._backwards]
        if not is_first or not used:
            return
        norm = (self._norm if self._norm is not None else self._norm_of(optimizers)) / scale()
        inputs: dict[str, list[float]] = {}
        for _, batch in used:
            for place, (elements, total) in batch.items():
                before = inputs.setdefault(place, [0, 0.0])
                before[0], before[1] = before[0] + elements, before[1] + total
        samples = sum(count for count, _ in used)
        summed = tuple((elements, total) for elements, total in inputs.values())
        self._session.recorder.emit(FirstGradient(norm, samples, self._exact(), self._random, summed, changed))

    def _norm_of(self, optimizers: Iterable[Optimizer]) -> float:
        """Not a number where the gradients are of a kind that has no norm."""
        try:
            return self._taken_norm(optimizers)
        except Exception:  # sharded or nested ones, say: nothing of this may reach the script
            return math.nan

    def _taken_norm(self, optimizers: Iterable[Optimizer]) -> float:
        parameters = {id(p): p for o in optimizers for group in o.param_groups for p in group["params"]}
        norms: list[Any] = []
        for parameter in parameters.values():
            if parameter.grad is not None:
                gradient = parameter.grad.detach()
                gradient = gradient.coalesce().values() if gradient.is_sparse else gradient
                norms.append(self._torch.linalg.vector_norm(gradient.float()))
        together = [norm.to(norms[0].device) for norm in norms]
        return float(self._torch.linalg.vector_norm(self._torch.stack(together))) if norms else 0.0

    def _weighted_sum(self, tensor: Tensor) -> float:
        """The same for the same samples, in one batch or in several; another one for an image that is flipped."""
        torch = self._torch
        if not tensor.numel() or tensor.layout is not torch.strided or tensor.is_nested or tensor.is_complex():
            return 0.0
        try:
            return self._sum_of_rows(tensor)
        except (RuntimeError, TypeError):
            return 0.0  # numbers of a kind that can't be added up

    def _sum_of_rows(self, tensor: Tensor) -> float:
        torch = self._torch
        rows = tensor.detach().reshape(tensor.shape[0] if tensor.dim() else 1, -1)
        summed = rows.sum(0, dtype=torch.float64)
        return float(summed @ torch.cos(torch.arange(len(summed), dtype=torch.float64, device=summed.device)))
