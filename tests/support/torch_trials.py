"""Trials in this very process: PyTorch is instrumented, nothing ends, and every patch is put back."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from support.in_process import ENDLESS, InProcess
from tuner.child.patches import unpatch_all


class Trial(InProcess):
    """With PyTorch's adapter."""

    def __init__(self, config: dict[str, Any], knowledge: dict[str, Any], **request: Any) -> None:
        super().__init__(config, knowledge, **request)
        import torch

        from tuner.child.adapter import instrument
        from tuner.child.torch.adapter import TorchAdapter

        self.adapter = TorchAdapter(self.session)
        instrument(self.session, self.adapter, torch)


def seeded_model() -> tuple[Any, Any]:
    """A layer, the same each time, and its optimizer."""
    import torch

    torch.manual_seed(0)
    model = torch.nn.Linear(5, 1)
    return model, torch.optim.SGD(model.parameters(), lr=0.01)


def _unhooked(step: Any) -> Any:
    """A step as its class defines it: without what PyTorch, and a trial's watch, have wrapped around it."""
    while getattr(step, "hooked", False) or "profile_hook_step" in step.__code__.co_qualname:
        step = step.__wrapped__
    return step


def forget_steps() -> None:
    """Whose steps PyTorch has wrapped, once a class, are as they were before any trial, whichever test began it."""
    import torch

    classes: list[Any] = [torch.optim.Optimizer]
    for cls in classes:
        classes += cls.__subclasses__()
        if getattr(vars(cls).get("step"), "hooked", False):
            cls.step = _unhooked(cls.step)


@pytest.fixture
def begin() -> Iterator[Callable[..., Trial]]:
    """Begins trials; what they patched is put back, the steps that PyTorch wraps once a class included."""
    import torch

    def clean() -> None:
        unpatch_all()
        sys.modules["torch.optim.optimizer"]._global_optimizer_post_hooks.clear()  # of applied runs
        sys.modules["torch.optim.optimizer"]._global_optimizer_pre_hooks.clear()
        forget_steps()
        if "torch._dynamo.utils" in sys.modules:
            with warnings.catch_warnings():  # 2.11 imports there what it deprecates
                warnings.simplefilter("ignore", DeprecationWarning)
                torch._dynamo.reset()
            sys.modules["torch._dynamo.utils"].counters.clear()  # of all that this process compiled

    def start(
        config: dict[str, Any] | None = None, mode: str = "trial", seed: int | None = None,
        rotation: Sequence[dict[str, Any]] = (), device: str = "cpu", **knowledge: Any,
    ) -> Trial:  # fmt: skip
        clean()
        request: dict[str, Any] = {"rotation": list(rotation), "window": {**ENDLESS, "warmup_s": 1e9}}
        given = request if rotation else {}
        return Trial(config or {}, knowledge, mode=mode, seed=seed, device=device, **given)

    yield start
    clean()
