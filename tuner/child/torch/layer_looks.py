"""What single layers of a model show in one call: the format that they compute in, the layout that they are given."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from types import ModuleType
from typing import Any

from .types import Handle, Layer, Module, Tensor


class _Hook:
    """A hook of a layer; in a copy of the layer it does nothing, and goes with the copy's first call.

    Scripts copy layers of a model while it is called (torch_xla's ``scan_layers``, a teacher made at the first call):
    a plain one would be copied with all that it holds.
    """

    def __init__(self, kind: str, saw: Callable[..., None] | None) -> None:
        self._kind = kind
        self._saw = saw

    def __call__(self, layer: Layer, *given: Any) -> None:
        if self._saw is not None:
            self._saw(*given)
            return
        hooks: dict[int, object] = vars(layer)[self._kind]
        for number in [number for number, hook in hooks.items() if hook is self]:
            del hooks[number]

    def __deepcopy__(self, memo: object) -> _Hook:
        return _Hook(self._kind, None)


class LayerLook(AbstractContextManager[None]):
    """Hooks on matrix products and convolutions for one call, removed right after it.

    ``computed_in`` is told the format of each product, as PyTorch names it ("" where it gives no tensor), and
    ``given_in`` of each convolution with several input channels whether its batch lies channels-last.
    """

    def __init__(
        self, torch: ModuleType, module: Module, computed_in: Callable[[str], None], given_in: Callable[[bool], None]
    ) -> None:
        self._torch = torch
        self._module = module
        self._computed_in = computed_in
        self._given_in = given_in
        self._handles: list[Handle] = []

    def __enter__(self) -> None:
        nn = self._torch.nn
        products = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose2d, nn.RNNBase, nn.MultiheadAttention)
        for layer in self._module.modules():
            if isinstance(layer, products):
                self._handles.append(layer.register_forward_hook(_Hook("_forward_hooks", self._saw_output)))
            if isinstance(layer, nn.Conv2d) and layer.in_channels > 1:
                self._handles.append(layer.register_forward_pre_hook(_Hook("_forward_pre_hooks", self._saw_input)))

    def _saw_output(self, args: object, output: object) -> None:
        tensor = output[0] if isinstance(output, tuple) else output
        self._computed_in(str(getattr(tensor, "dtype", "")).removeprefix("torch."))

    def _saw_input(self, args: Sequence[Tensor]) -> None:
        layout = is_channels_last(self._torch, args[0]) if args else None
        if layout is not None:
            self._given_in(layout)

    def __exit__(self, *exc: object) -> None:
        for handle in self._handles:
            handle.remove()


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


def is_channels_last(torch: ModuleType, tensor: Tensor) -> bool | None:
    """Whether the channels of a batch of images lie last; None where its sizes leave both layouts the same."""
    if tensor.dim() != 4:
        return None
    last, first = tensor.is_contiguous(memory_format=torch.channels_last), tensor.is_contiguous()
    return None if last == first else bool(last)
