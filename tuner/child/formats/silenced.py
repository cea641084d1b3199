"""Experiment trackers that heed an argument more than the variable by which trials switch them off."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import TypeVar

from ..patches import patch
from ..session import Session, StopTrial

Result = TypeVar("Result")
OFF = "disabled"
SWEEPING = ("sweep", "controller", "agent")
"""What makes a sweep of wandb, and starts its trainings: no variable switches these off, and each asks a server."""
SWEEPS = (
    "the script starts the trainings of a sweep (wandb.{}), whose settings come from a server: "
    "study the training by itself, with settings of its own"
)


def silence_wandb(session: Session, module: ModuleType) -> None:
    """``wandb.init(mode="online")`` reaches the server whatever ``WANDB_MODE`` says: in a trial it gives a run that
    keeps nothing, as that does. Where wandb isn't installed, a folder of its runs beside the script has its name.

    A sweep ends the trial: its trainings each have settings of their own, which nobody but its server knows.
    """
    if not session.measuring or not session.request.folder or not hasattr(module, "init"):
        return

    def make(original: Callable[..., Result]) -> Callable[..., Result]:
        def init(*args: object, **kwargs: object) -> Result:
            kwargs["mode"] = OFF
            return original(*args, **kwargs)

        return init

    patch(module, "init", make)
    for name in SWEEPING:
        if hasattr(module, name):
            patch(module, name, partial(_refused, session, SWEEPS.format(name)))


def _refused(session: Session, why: str, original: Callable[..., object]) -> Callable[..., None]:
    def refuse(*args: object, **kwargs: object) -> None:
        if not session.here:
            raise RuntimeError(why)
        session.fail("unsupported", why)
        session.stop(why, complete=False)
        raise StopTrial  # it has ended already

    return refuse
