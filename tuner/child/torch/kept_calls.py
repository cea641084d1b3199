"""Training calls of a script's models that are kept, so that a config of a rotation can be compiled on them."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from ..session import Session
from .outputs import with_tensors
from .parts import CHANGES, KEEPS
from .rows import tensors
from .state import hooked, same_state, state_of
from .types import Keywords, Module

MOST_SHAPES = 3
"""Of one model: those of an epoch's batches, of its last one, and one more."""
WATCHED_CALLS = (1, 2, 3)
"""By their number: the first one may set something up."""
CHANGES_WEIGHTS = "a call of the model changes its weights"
CAPTURED = "the script captures its model's calls as a CUDA graph"
UNSEEN = "whether a call of the model changes anything can't be seen"
Shape = tuple[tuple[int, ...], ...]
Mark = tuple[int, str]
"""A tensor's version, and what its numbers add up to."""


@dataclass(frozen=True)
class KeptCall:
    """What a model was called with: the very tensors, apart from what they came from. ``training``: its mode then.

    ``autocast``: whether the script had that on, its format, and whether it keeps what it cast.
    """

    args: tuple[object, ...]
    kwargs: Keywords
    training: bool
    autocast: tuple[bool, Any, bool]


class KeptCalls:
    """The first call of each shape, of the models that train; and whether calls leave anything behind in a model."""

    def __init__(self, session: Session, torch: ModuleType) -> None:
        self._torch: Any = torch
        self._device = session.device
        self._device_type = session.device.torch_type
        self._calls: weakref.WeakKeyDictionary[Module, dict[Shape, KeptCall]] = weakref.WeakKeyDictionary()
        self._leaves: weakref.WeakKeyDictionary[Module, str] = weakref.WeakKeyDictionary()

    def of(
        self, module: Module, number: int, args: tuple[object, ...], kwargs: Keywords
    ) -> AbstractContextManager[None]:
        """Around a call that trains: it is kept where its shape is new, and some of the first ones are watched.

        What tensors of a kind of their own don't give, such as uninitialised ones, is no error of the script's.
        """
        if self._device.torch_is_capturing(self._torch):
            self._leaves[module] = CAPTURED
            return nullcontext()
        known = self._calls.setdefault(module, {})
        if len(known) < MOST_SHAPES:
            try:
                shape = self._shape_of(args, kwargs)
                if shape not in known:
                    known[shape] = self._kept(module, args, kwargs)
            except Exception as error:
                self._leaves[module] = _unseen(error)
        return self._watched(module, (args, kwargs)) if number in WATCHED_CALLS else nullcontext()

    def calls_of(self, module: Module) -> list[KeptCall]:
        """Those that were kept, in the order in which they were seen."""
        return list(self._calls.get(module, {}).values())

    def obstacle(self, module: Any) -> str:
        """Why the model can't be called beside the training without leaving a trace in it, or ""."""
        if hooked(module) or any(weight._backward_hooks for weight in module.parameters()):
            return "the script has hooks on its model or its weights"
        if not self._calls.get(module) and not self._leaves.get(module):
            return "a model of it wasn't seen to be called"
        return self._leaves.get(module, "it isn't known whether the model keeps anything from a call")

    def _shape_of(self, args: tuple[object, ...], kwargs: Keywords) -> Shape:
        return tuple(tuple(each.shape) for each in tensors(self._torch, (args, kwargs)))

    def _kept(self, module: Any, args: tuple[object, ...], kwargs: Keywords) -> KeptCall:
        def apart(tensor: Any) -> Any:
            return tensor.detach().requires_grad_() if tensor.requires_grad else tensor

        given: Any = with_tensors(self._torch, (args, dict(kwargs)), apart)
        torch, device = self._torch, self._device_type
        autocast = (
            bool(torch.is_autocast_enabled(device)), torch.get_autocast_dtype(device), torch.is_autocast_cache_enabled()
        )  # fmt: skip
        return KeptCall(given[0], given[1], module.training, autocast)

    @contextmanager
    def _watched(self, module: Any, given: object) -> Iterator[None]:
        before, marks = _looked_at(module), self._marks(module, given)
        yield
        after = _looked_at(module)
        if before is None or after is None or not same_state(before, after):
            self._leaves[module] = KEEPS
            return
        now = self._marks(module, given)
        if marks is None or now is None:
            return
        if now[0] != marks[0]:
            self._leaves[module] = CHANGES_WEIGHTS
        elif now[1] != marks[1]:
            self._leaves[module] = CHANGES
        else:
            self._leaves.setdefault(module, "")

    def _marks(self, module: Any, given: object) -> tuple[list[Mark], list[Mark]] | None:
        """Those of its weights and of what it is given; None, which is noted, where some of these tell nothing."""
        try:
            return marks_of(self._torch, module.parameters()), _marked_in(self._torch, given)
        except Exception as error:  # as kinds of tensors differ
            self._leaves[module] = _unseen(error)
            return None


def _unseen(error: Exception) -> str:
    lines = str(error).splitlines() or [""]
    return f"{UNSEEN} ({type(error).__name__}: {lines[0][:100]})"


def marks_of(torch: Any, held: Iterable[Any]) -> list[Mark]:
    """What shows that one of the tensors was changed in place, as ``data`` too, of which PyTorch keeps no version.

    Raises what PyTorch does for tensors whose numbers it doesn't add up: uninitialised ones, quantised ones, those on
    no device.
    """
    plain = [(tensor, tensor.detach()) for tensor in held]
    real = [(tensor._version, torch.view_as_real(of) if of.is_complex() else of) for tensor, of in plain]
    return [(version, str(of.sum(dtype=torch.float64).item())) for version, of in real]


def _marked_in(torch: Any, given: object) -> list[Mark]:
    held: list[Any] = list(tensors(torch, given))
    return marks_of(torch, [each for each in held if each.layout is torch.strided and not each.is_inference()])


def _looked_at(module: Module) -> Any:
    try:
        return state_of(module, buffers=False)
    except Exception:  # what the script's own objects may raise
        return None
