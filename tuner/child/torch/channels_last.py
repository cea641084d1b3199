"""The memory layout "channels last" as a config has it: of weights, of what models are given, of what updates read.

A layout is no change of numbers, as long as nobody has the same memory by another name. A copy in another layout would
part what lay together, so weights that others hold have the knob refused, and what a model changes of what it is given
is brought back to the script's own tensor.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from ..session import Session
from .layer_looks import lay_channels_last

KNOB = "channels_last"
HELD = "the script has the memory of its weights by another name too (a flat buffer, .data, state_dict()), or shares it"
TRANSFORMED = "the script calls its model within a transform of torch.func, where tensors can't be laid otherwise"
Pair = tuple[Any, Any]
"""A tensor of the script's, and the copy that its model was given instead."""


class ChannelsLast:
    """``wanted``: whether the config, or the newest one of a rotation, asks for it."""

    def __init__(self, session: Session, torch: ModuleType) -> None:
        self.wanted = session.knobs.wanted(KNOB)
        self._session = session
        self._torch = torch
        self._uses = getattr(torch._C, "_storage_Use_Count", None)
        transform = getattr(getattr(torch._C, "_functorch", None), "peek_interpreter_stack", None)
        self._transform: Callable[[], object] = transform or (lambda: None)
        """Gives the innermost transform that is under way (vmap, grad), or None."""
        self._usual_uses = self._uses_of(torch.empty(1))
        self._exchanged: list[tuple[Any, Any]] = []
        """Parameters whose gradient lies otherwise than they do → that one, while the update has another."""

    def install(self) -> None:
        """Has each update begin with what lies as its weights do."""
        if self.wanted or any(KNOB in config for config in self._session.request.rotation):
            optimizer = sys.modules["torch.optim.optimizer"]
            optimizer.register_optimizer_step_pre_hook(self._step_begins)
            optimizer.register_optimizer_step_post_hook(self._step_ends)

    # weights

    def meets(self, module: Any) -> None:
        """A model with convolutions is about to train: its weights are laid so where the config asks for it."""
        obstacle = TRANSFORMED if self._transform() is not None else ""
        anew = self._made_anew(module) if not obstacle else Counter()
        if not obstacle and any(self._is_held(each, anew) for each in (*module.parameters(), *module.buffers())):
            obstacle = HELD
        if obstacle:
            self._refuse(obstacle)
        elif self.wanted:
            lay_channels_last(self._torch, module)

    def _refuse(self, obstacle: str) -> None:
        self._session.knobs.keep_script_value(KNOB, obstacle)
        self.wanted = None

    def _made_anew(self, module: Any) -> Counter[int]:
        """Memory → how many tensors there a layer makes anew before each call: ``spectral_norm`` begins with one that
        lies where its weight does.
        """
        layers = [(layer, hook) for layer in module.modules() for hook in layer._forward_pre_hooks.values()]
        kind = sys.modules["torch.nn.utils.spectral_norm"].SpectralNorm
        held = [vars(layer).get(hook.name) for layer, hook in layers if type(hook) is kind]
        return Counter(each.untyped_storage()._cdata for each in held if isinstance(each, self._torch.Tensor))

    def _is_held(self, tensor: Any, anew: Counter[int]) -> bool:
        """Whether anything else has the memory of a weight that would be laid elsewhere, but what is made ``anew``."""
        torch = self._torch
        if torch.nn.parameter.is_lazy(tensor) or tensor.dim() != 4 or tensor.layout is not torch.strided:
            return False
        if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.device.type == "meta":
            return False
        if tensor.is_contiguous(memory_format=torch.channels_last):
            return False
        part = bool(tensor.untyped_storage().nbytes() > tensor.numel() * tensor.element_size())
        shared = tensor.device.type == "cpu" and bool(tensor.is_shared())
        return part or shared or self._uses_of(tensor) - anew[tensor.untyped_storage()._cdata] > self._usual_uses

    def _uses_of(self, tensor: Any) -> int:
        return int(self._uses(tensor.untyped_storage()._cdata)) if self._uses is not None else 0

    # what models are given

    def laid(
        self, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> tuple[tuple[object, ...], dict[str, object], list[Pair]]:
        """What a model is given instead, and which of the script's tensors stayed behind for it."""
        pairs: list[Pair] = []
        if self._transform() is not None:
            self._refuse(TRANSFORMED)
            return args, kwargs, pairs

        def lay(value: Any) -> Any:
            if not isinstance(value, self._torch.Tensor) or value.dim() != 4:
                return value
            known = next((copy for own, copy in pairs if own is value), None)
            if known is not None:
                return known
            copy = value.contiguous(memory_format=self._torch.channels_last)
            if copy is not value and not copy.is_inference():
                pairs.append((value, copy))
            return copy

        return tuple(map(lay, args)), {name: lay(value) for name, value in kwargs.items()}, pairs

    def bring_back(self, pairs: Sequence[Pair]) -> None:
        """After the call: what the model changed in place is changed in the script's own (a state that it keeps).

        With the way back of its gradient, but in a leaf, which had to be changed without.
        """
        for own, copy in pairs:
            if copy._version:
                with self._torch.set_grad_enabled(not (own.is_leaf and own.requires_grad)):
                    own.copy_(copy)

    # updates

    def _step_begins(self, optimizer: Any, args: object, kwargs: object) -> None:
        """Fused updates go through weights, gradients and what is remembered in the order of memory. On a processor
        they don't look whether these lie alike: a gradient that the script puts there itself, a state of a checkpoint.
        """
        if not self.wanted or self._torch.compiler.is_compiling():
            return
        self._exchanged.clear()
        for weight in (p for g in optimizer.param_groups if g.get("fused") for p in g["params"] if p.dim() == 4):
            strides, gradient = weight.stride(), weight.grad
            if gradient is None:
                continue
            if gradient.stride() != strides:
                self._exchanged.append((weight, gradient))
                weight.grad = self._as(weight, gradient)
            held: dict[str, Any] = optimizer.state.get(weight, {})
            for name, value in held.items():
                if isinstance(value, self._torch.Tensor) and value.shape == weight.shape and value.stride() != strides:
                    held[name] = self._as(weight, value)

    def _as(self, weight: Any, tensor: Any) -> Any:
        laid = self._torch.empty_strided(weight.shape, weight.stride(), dtype=tensor.dtype, device=tensor.device)
        return laid.copy_(tensor.detach())

    def _step_ends(self, optimizer: Any, args: object, kwargs: object) -> None:
        """The script has its own gradient again, which may be a part of a buffer that it zeroes."""
        if self._exchanged and not self._torch.compiler.is_compiling():
            for weight, gradient in self._exchanged:
                weight.grad = gradient
            self._exchanged.clear()
