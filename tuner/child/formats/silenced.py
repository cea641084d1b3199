"""Experiment trackers that heed an argument more than the variable by which trials switch them off."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from ..patches import patch
from ..session import Session, StopTrial

Result = TypeVar("Result")
WANDB = "wandb"
OFF: Mapping[str, tuple[tuple[str, ...], str, object]] = {
    WANDB: (("init",), "mode", "disabled"),
    "swanlab": (("init",), "mode", "disabled"),
    "neptune.metadata_containers": (("Run", "Project", "Model", "ModelVersion"), "mode", "debug"),
    "neptune_scale.api.run": (("Run",), "mode", "disabled"),
    "comet_ml": (
        ("Experiment", "ExistingExperiment", "OfflineExperiment", "ExistingOfflineExperiment"), "disabled", True,
    ),
}  # fmt: skip
"""Module → what begins a run there, and the argument with which that keeps nothing."""
READS = "read-only"
"""What a script may ask for instead, of Neptune: it sends nothing, and reads what earlier runs have left."""
LOGINS: Mapping[str, tuple[str, ...]] = {"swanlab": ("login",), "comet_ml": ("login", "init")}
"""What asks a server, or the user, whatever else is said, and gives nothing."""
CLEARML = ("clearml", "clearml.utilities.check_updates")
"""What begins a run of ClearML's, and what asks a server for a newer version of it even offline."""
MLFLOW = ("mlflow.tracking._tracking_service.utils", "mlflow.tracking._model_registry.utils")
"""Where MLflow keeps which server its runs and its models go to."""
SEARCHES = ("search_runs", "search_registered_models", "search_model_versions")
"""What of its store finds earlier runs and models, of which a trial's has none. MLflow itself searches experiments."""
FOUND_NONE = (
    "the script looks in MLflow for what earlier runs have left ({}), and a trial finds nothing there, since its runs"
    " are kept apart: it may train otherwise than without autotune"
)
RUNS = "mlruns"
"""In the trial's folder, as the variable has it."""
SWEEPING = ("sweep", "controller", "agent")
"""What makes a sweep of wandb, and starts its trainings: no variable switches these off, and each asks a server."""
SWEEPS = (
    "the script starts the trainings of a sweep (wandb.{}), whose settings come from a server: "
    "study the training by itself, with settings of its own"
)


def silence(session: Session, module: ModuleType) -> None:
    """``wandb.init(mode="online")`` reaches the server whatever ``WANDB_MODE`` says, and so it is with others: in a
    trial they give a run that keeps nothing. Where none is installed, a folder of its runs may have its name.

    A sweep ends the trial: its trainings each have settings of their own, which nobody but its server knows.
    """
    if not session.measuring or not session.request.folder:
        return
    names, argument, off = OFF[module.__name__]
    for name in names:
        begins = getattr(module, name, None)
        if isinstance(begins, type):
            patch(begins, "__init__", partial(_told, argument, off))
        elif begins is not None:
            patch(module, name, partial(_told, argument, off))
    for name in LOGINS.get(module.__name__, ()):
        if hasattr(module, name):
            patch(module, name, lambda original: lambda *args, **kwargs: None)
    for name in SWEEPING if module.__name__ == WANDB else ():
        if hasattr(module, name):
            patch(module, name, partial(_refused, session, SWEEPS.format(name)))


def silence_mlflow(session: Session, module: ModuleType) -> None:
    """``mlflow.set_tracking_uri`` goes before the variable, and so does what a client is given: in a trial all runs and
    models go to its folder, as by that.
    """
    if not session.measuring or not session.request.folder:
        return
    own = (Path(session.request.folder).absolute() / RUNS).as_uri()
    for name in vars(module).copy():
        if name in ("set_tracking_uri", "set_registry_uri"):
            patch(module, name, lambda original: lambda *args, **kwargs: None)
        elif name in ("get_tracking_uri", "get_registry_uri", "_resolve_tracking_uri", "_resolve_registry_uri"):
            patch(module, name, lambda original: lambda *args, **kwargs: own)
        elif name == "_get_store":
            patch(module, name, lambda original: lambda *args, **kwargs: _told_of(session, original(own)))


def _told_of(session: Session, store: Result) -> Result:
    """The store, of which a search that finds nothing is told: what a script makes of that, it does in silence."""
    for name in SEARCHES:
        if hasattr(store, name):
            patch(store, name, partial(_searched, session, name))
    return store


def _searched(session: Session, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    def search(*args: Any, **kwargs: Any) -> Any:
        found = original(*args, **kwargs)
        if not found and session.here:
            session.facts.remark(FOUND_NONE.format(name))
        return found

    return search


def silence_clearml(session: Session, module: ModuleType) -> None:
    """``Task.set_offline`` goes before the variable, and the script may have set that by itself."""
    if not session.measuring or not session.request.folder:
        return
    task, checks = (getattr(module, name, None) for name in ("Task", "CheckPackageUpdates"))
    if task is not None:
        task.set_offline(True)
        patch(task, "set_offline", lambda original: lambda *args, **kwargs: None)
    if checks is not None:
        patch(checks, "check_new_package_available", lambda original: lambda *args, **kwargs: None)


def _told(argument: str, off: object, original: Callable[..., Result]) -> Callable[..., Result]:
    """Called with that in place of what the script gives for the argument, wherever it stands, unless it only reads."""
    names = list(inspect.signature(original).parameters)
    place = names.index(argument) if argument in names else len(names)

    def begin(*args: Any, **kwargs: Any) -> Result:
        if (args[place] if len(args) > place else kwargs.get(argument)) == READS:
            return original(*args, **kwargs)
        if len(args) > place:
            args = (*args[:place], off, *args[place + 1 :])
        else:
            kwargs[argument] = off
        return original(*args, **kwargs)

    return begin


def _refused(session: Session, why: str, original: Callable[..., object]) -> Callable[..., None]:
    def refuse(*args: object, **kwargs: object) -> None:
        if not session.here:
            raise RuntimeError(why)
        session.fail("unsupported", why)
        session.stop(why, complete=False)
        raise StopTrial  # it has ended already

    return refuse
