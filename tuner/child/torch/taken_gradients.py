"""Gradients that a script takes itself, by ``torch.autograd.grad`` or ``torch.func``: no backward shows them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType

from ..patches import patch
from .types import Result

BY = "torch.autograd.grad"


def watch_gradients(torch: ModuleType, note: Callable[[], object]) -> None:
    """Calls ``note`` before each gradient that is taken so, and once for a graph in which one is.

    ``torch.func`` takes its own by the same function. TorchScript, which knows that function itself, is told of the one
    in its place.
    """
    register = getattr(sys.modules.get("torch.jit._builtins"), "_register_builtin", None)
    if register is not None:
        patch(torch.autograd, "grad", _noting(torch, note))
        register(torch.autograd.grad, "aten::grad")


def while_compiling(note: Callable[[], object]) -> Callable[[], int]:
    """Notes what is done while a graph with it is made, of which the graph itself knows nothing."""

    def compiled() -> int:
        note()
        return 0

    vars(compiled)["_dynamo_marked_constant"] = True  # torch.compiler.assume_constant_result, without its imports
    return compiled


def _noting(
    torch: ModuleType, note: Callable[[], object]
) -> Callable[[Callable[..., Result]], Callable[..., Result]]:
    compiled = while_compiling(note)

    def taking(original: Callable[..., Result]) -> Callable[..., Result]:
        def grad(*args: object, **kwargs: object) -> Result:
            if torch.compiler.is_compiling():
                compiled()
            else:
                note()
            return original(*args, **kwargs)

        return grad

    return taking
