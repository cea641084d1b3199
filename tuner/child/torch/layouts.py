"""The memory layout of models that train, and of what goes with their weights: gradients, what optimizers remember."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from types import ModuleType
from typing import Any

Strides = tuple[int, ...]
Place = tuple[int, str]
"""A weight by its identity, and what of it: "" for itself, "grad", or the name that an optimizer has for it."""


class Layouts:
    """Has models in channels-last, and back in the very strides that they had.

    ``models``, ``optimizers``: those that there are when it is asked. Fused and foreach updates go through weights,
    gradients and state in the order of memory: all of a weight has to lie alike.
    """

    def __init__(
        self, torch: ModuleType, models: Callable[[], Iterable[Any]], optimizers: Callable[[], Iterable[Any]]
    ) -> None:
        self._torch = torch
        self._models = models
        self._optimizers = optimizers
        self._kept: dict[Place, Strides] = {}

    def keep(self) -> None:
        """Remembers how everything lies."""
        self._kept = {(id(weight), name): tuple(tensor.stride()) for weight, name, tensor in self._tensors()}

    def put(self, *, channels_last: bool) -> None:
        """Lays everything so, as ``Module.to(memory_format=…)`` does; or as it was kept."""
        for weight, name, tensor in list(self._tensors()):
            if channels_last:
                # With one channel both layouts are one to ``contiguous``, and not to what chooses the kernel.
                tensor.data = tensor.data.to(memory_format=self._torch.channels_last)
            else:
                own = self._kept.get((id(weight), ""), tuple(self._torch.empty(tensor.shape, device="meta").stride()))
                self._lay(tensor, self._kept.get((id(weight), name), own))

    def _lay(self, tensor: Any, strides: Strides) -> None:
        if tuple(tensor.stride()) != strides:
            laid = self._torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype, device=tensor.device)
            tensor.data = laid.copy_(tensor.data)

    def _tensors(self) -> Iterator[tuple[Any, str, Any]]:
        """What has four dimensions: a weight or buffer, what of it, and the tensor."""
        states = [optimizer.state for optimizer in self._optimizers()]
        seen: set[int] = set()
        for model in self._models():
            for weight in (*model.parameters(), *model.buffers()):
                if weight.dim() != 4 or id(weight) in seen:
                    continue
                seen.add(id(weight))
                yield weight, "", weight
                if weight.grad is not None and weight.grad.dim() == 4:
                    yield weight, "grad", weight.grad
                for state in states:
                    held = state.get(weight, {})
                    for name, value in held.items():
                        if isinstance(value, self._torch.Tensor) and value.shape == weight.shape:
                            yield weight, name, value


class KeptWeights:
    """Copies, in the host's memory, of models' weights and of what optimizers remember of them."""

    def __init__(self, torch: ModuleType, models: Sequence[Any], optimizers: Sequence[Any]) -> None:
        self._torch = torch
        self._weights = {id(each): each for model in models for each in (*model.parameters(), *model.buffers())}
        self._weights |= {id(each): each for of in optimizers for group in of.param_groups for each in group["params"]}
        self._states = [state for of in optimizers for state in of.state.values() if isinstance(state, dict)]
        self._copies: dict[int, Any] = {}
        self._remembered: list[dict[str, Any]] = []

    @property
    def nbytes(self) -> int:
        """What the copies take."""
        tensors = [*self._weights.values(), *(value for state in self._states for value in self._of(state).values())]
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors)

    def keep(self) -> None:
        """Copies everything as it is now."""
        self._copies = {key: self._copy(weight) for key, weight in self._weights.items()}
        self._remembered = [
            {name: self._copy(value) for name, value in self._of(state).items()} for state in self._states
        ]

    def put_back(self) -> None:
        """Everything is as it was; what came later starts from 0."""
        with self._torch.no_grad():
            for key, weight in self._weights.items():
                weight.data.copy_(self._copies[key])
            for state, kept in zip(self._states, self._remembered, strict=True):
                for name, value in self._of(state).items():
                    value.copy_(kept[name]) if name in kept else value.zero_()

    def _of(self, state: dict[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in state.items() if isinstance(value, self._torch.Tensor)}

    def _copy(self, tensor: Any) -> Any:
        return tensor.detach().to("cpu", copy=True)
