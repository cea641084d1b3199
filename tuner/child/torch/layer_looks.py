"""What single layers of a model show in one call: the format that they compute in, the layout that they are given; and
whether any of them convolves.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from contextlib import suppress
from types import ModuleType
from typing import Any

from .types import Keywords, Module, Result, Tensor

_PRODUCTS = frozenset({"linear", "conv1d", "conv2d", "conv3d", "conv_transpose2d"})
"""The functions that those layers are in a graph of the compiler's."""
_ENTERS_AUTOCAST = "_enter_autocast"
"""Given the device, the format, and whether it is enabled."""
_EXAMPLE = "example_value"
"""Under which such a graph keeps a tensor without values for each of its nodes."""


class LayerLook:
    """Looks at matrix products and convolutions in one call of a model: at its layers where they are called as written,
    and at the graphs that the compiler makes meanwhile of what the script compiles.

    Nothing is put on the model: the compiler would take it for another one, and compile it anew in the next call.

    ``dtype``: the format that the first product gave, as PyTorch names it ("" as long as none gave a tensor);
    ``autocast``: whether one was under it; ``layouts``: convolutions with several input channels whose batch lies
    channels-last, or doesn't.
    """

    def __init__(self, torch: ModuleType, module: Module, device_type: str) -> None:
        self.dtype = ""
        self.autocast = False
        self.layouts = {True: 0, False: 0}
        nn = torch.nn
        self._torch = torch
        self._device_type = device_type
        self._products = (
            nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose2d, nn.RNNBase, nn.MultiheadAttention
        )  # fmt: skip
        self._layers = {id(layer) for layer in module.modules() if isinstance(layer, self._products)}

    def call(self, run: Callable[..., Result], layer: Any, args: tuple[Any, ...], kwargs: Keywords) -> Result:
        """Has a layer called, and looks at it if it is one of the model's, or of a copy that DataParallel makes."""
        looks = id(layer) in self._layers or (isinstance(layer, self._products) and "_is_replica" in vars(layer))
        if looks and args and isinstance(layer, self._torch.nn.Conv2d) and layer.in_channels > 1:
            self._saw_input(args[0])
        result = run(layer, *args, **kwargs)
        if looks:
            self._saw_output(result[0] if isinstance(result, tuple) else result, autocast=self._is_in_autocast())
        return result

    def around(self, run: Callable[..., Result]) -> Callable[..., Result]:
        """The model's own call, which is looked at where it is such a layer itself."""
        return lambda model, *args, **kwargs: self.call(run, model, args, kwargs)

    def graph(self, nodes: Iterable[Any]) -> None:
        """Looks at a graph of the compiler's, by what it computes with tensors that have no values."""
        autocast = self._is_in_autocast()
        for node in nodes:
            name = getattr(node.target, "__name__", "") if node.op == "call_function" else ""
            if name == _ENTERS_AUTOCAST:
                autocast |= bool(node.args[2])
            elif name in _PRODUCTS:
                if name == "conv2d":
                    given = node.args[0] if node.args else node.kwargs.get("input")
                    self._saw_input(getattr(given, "meta", {}).get(_EXAMPLE))
                self._saw_output(node.meta.get(_EXAMPLE), autocast=autocast)

    def _is_in_autocast(self) -> bool:
        return bool(self._torch.is_autocast_enabled(self._device_type))

    def _saw_input(self, batch: Any) -> None:
        layout = is_channels_last(self._torch, batch) if isinstance(batch, self._torch.Tensor) else None
        if layout is not None:
            self.layouts[layout] += 1

    def _saw_output(self, output: object, *, autocast: bool) -> None:
        self.dtype = self.dtype or str(getattr(output, "dtype", "")).removeprefix("torch.")
        self.autocast |= autocast


LARGEST_KERNEL = 64


def convolves(torch: ModuleType, module: Module) -> bool:
    """Whether it may convolve: by its layers, of however many dimensions, or by weights that look like a kernel, which
    the script may give to a function.
    """
    nn = torch.nn
    if any(isinstance(layer, nn.modules.conv._ConvNd) for layer in module.modules()):
        return True
    sizes = [weight.shape for weight in module.parameters() if not nn.parameter.is_lazy(weight)]
    return any(3 <= len(size) <= 5 and max(size[2:]) <= LARGEST_KERNEL for size in sizes)


class Convolutions:
    """Whether any module may convolve that was called so far, with gradients or without (``seen``)."""

    def __init__(self, torch: ModuleType) -> None:
        self.seen = False
        self._torch = torch
        self._met: weakref.WeakSet[Module] = weakref.WeakSet()

    def meets(self, module: Module) -> None:
        """A module is called: it is looked at in its first call, unless another one convolves."""
        if not self.seen and module not in self._met:
            self._met.add(module)
            self.seen = convolves(self._torch, module)


def is_built(torch: ModuleType, module: Any) -> bool:
    """Whether all that it holds has its sizes. A lazy layer takes them from its first batch: until then PyTorch raises
    an error where anything else is asked of it.
    """
    return not any(map(torch.nn.parameter.is_lazy, (*module.parameters(), *module.buffers())))


def lay_channels_last(torch: ModuleType, module: Any) -> None:
    """Lays what has four dimensions of the module so. ``Module.to`` raises an error where something has five, or no
    size yet.
    """
    for tensor in (each for each in (*module.parameters(), *module.buffers()) if not torch.nn.parameter.is_lazy(each)):
        if tensor.dim() == 4:
            tensor.data = tensor.data.to(memory_format=torch.channels_last)


def is_channels_last(torch: ModuleType, tensor: Tensor) -> bool | None:
    """Whether the channels of a batch of images lie last; None where it has no sizes yet, or these leave both layouts
    the same. Within ``vmap`` PyTorch doesn't tell it.
    """
    if torch.nn.parameter.is_lazy(tensor) or tensor.dim() != 4:
        return None
    with suppress(RuntimeError):
        last, first = tensor.is_contiguous(memory_format=torch.channels_last), tensor.is_contiguous()
        return None if last == first else bool(last)
    return None
