"""Gradients that a script takes itself, by ``torch.autograd.grad`` or ``torch.func``: no backward shows them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType

from ..patches import patch
from ..records import Unstepped
from ..session import Session
from ..sources import MANY_UNSTEPPED
from .steps import StepWatch
from .types import Result

BY = "torch.autograd.grad"


class TakenGradients:
    """Has a trial told of them where nothing else shows a training: an update by hand, which is no step to be seen.

    ``since_backward``: those that were taken since the last backward, or since it was put to 0.
    """

    def __init__(self, session: Session, torch: ModuleType, steps: StepWatch) -> None:
        self._session, self._torch, self._steps = session, torch, steps
        self._taken = self.since_backward = 0

    def install(self) -> None:
        watch_gradients(self._torch, self._note)

    def _note(self) -> None:
        steps = self._steps
        self.since_backward += 1
        if steps.optimizers or steps.backwards or not self._session.may_be_of("torch"):
            return
        self._taken += 1
        if self._taken >= MANY_UNSTEPPED and self._taken & (self._taken - 1) == 0:
            self._session.recorder.emit(Unstepped(0, self._taken))


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
