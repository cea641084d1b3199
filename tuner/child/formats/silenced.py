"""Experiment trackers that heed an argument more than the variable by which trials switch them off."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import TypeVar

from ..patches import patch
from ..session import Session

Result = TypeVar("Result")
OFF = "disabled"


def silence_wandb(session: Session, module: ModuleType) -> None:
    """``wandb.init(mode="online")`` reaches the server whatever ``WANDB_MODE`` says: in a trial it gives a run that
    keeps nothing, as that does. Where wandb isn't installed, a folder of its runs beside the script has its name.
    """
    if not session.measuring or not session.request.folder or not hasattr(module, "init"):
        return

    def make(original: Callable[..., Result]) -> Callable[..., Result]:
        def init(*args: object, **kwargs: object) -> Result:
            kwargs["mode"] = OFF
            return original(*args, **kwargs)

        return init

    patch(module, "init", make)
