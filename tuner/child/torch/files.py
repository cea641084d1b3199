"""PyTorch writes past ``open``: what would overwrite a file of the user's goes to the trial's folder, too."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import ModuleType
from typing import TypeVar

from ..files import Overlay
from ..patches import patch
from ..python_files import with_path

Result = TypeVar("Result")
_OF_STATES = ("state_dict", "model_state_dict", "optimizer_state_dict", "param_groups")


def divert_torch(overlay: Overlay, torch: ModuleType) -> None:
    """``torch.save`` writes through C++, and so does TorchScript."""
    patch(torch, "save", lambda original: _save(overlay, original))
    patch(torch, "load", lambda original: loading(overlay, original, 0))
    patch(torch.jit, "save", lambda original: saving(overlay, original, 1))
    patch(torch.jit, "load", lambda original: loading(overlay, original, 0))
    for module in (torch.jit.ScriptModule, torch.jit.RecursiveScriptModule):
        if "save" in vars(module):
            patch(module, "save", lambda original: saving(overlay, original, 1))


def saving(overlay: Overlay, original: Callable[..., Result], place: int) -> Callable[..., Result]:
    """``original``, which saves a model to the path that is its argument of that number, led to where it may."""

    def call(*args: object, **kwargs: object) -> Result:
        args, kwargs = with_path(original, place, overlay.saving, args, kwargs)
        return original(*args, **kwargs)

    return call


def loading(overlay: Overlay, original: Callable[..., Result], place: int) -> Callable[..., Result]:
    """``original``, which reads the path that is its argument of that number, given the trial's version of it."""

    def call(*args: object, **kwargs: object) -> Result:
        args, kwargs = with_path(original, place, overlay.loading, args, kwargs)
        return original(*args, **kwargs)

    return call


def _save(overlay: Overlay, original: Callable[..., Result]) -> Callable[..., Result]:
    def call(*args: object, **kwargs: object) -> Result:
        model = is_model(args[0] if args else kwargs.get("obj"))
        args, kwargs = with_path(original, 1, lambda path: overlay.saving(path, model=model), args, kwargs)
        return original(*args, **kwargs)

    return call


def is_model(saved: object) -> bool:
    """Whether it is a model, or the state of one or of its training, and not prepared data.

    A state has names of parameters, or is PyTorch's own; a checkpoint holds such states beside other things.
    """
    if hasattr(saved, "state_dict") or hasattr(saved, "_metadata"):
        return True
    if not isinstance(saved, Mapping):
        return False
    names = [str(name) for name in saved]
    if any(name in _OF_STATES or name.rpartition(".")[2] in ("weight", "bias") for name in names):
        return True
    return any(isinstance(value, Mapping) and is_model(value) for value in saved.values())
