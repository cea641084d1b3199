"""TensorFlow and HDF5 write through C, past ``open``: their checkpoints and logs go to the trial's folder, too."""

from __future__ import annotations

import os
from collections.abc import Callable
from types import ModuleType
from typing import TypeVar

from ..files import Overlay
from ..patches import patch
from ..session import Session

WRITING = ("w", "a", "x", "r+")
Result = TypeVar("Result")
Path = str | os.PathLike[str]


def install(session: Session, tf: ModuleType) -> None:
    """Checkpoints, saved models and summaries."""
    overlay = session.overlay
    if overlay is None:
        return
    for api in (tf, tf.compat.v2):
        install_saved_model(session, api.saved_model)
        install_summary(session, api.summary)
        install_train(session, api.train)
    for name in ("save", "write"):
        patch(tf.train.Checkpoint, name, lambda original: _prefix(overlay, original))
    for name in ("read", "restore"):
        patch(tf.train.Checkpoint, name, lambda original: _restore(overlay, original))
    patch(tf.train.CheckpointManager, "__init__", lambda original: _checkpoints(overlay, original))


def install_saved_model(session: Session, module: ModuleType) -> None:
    """One of the modules under whose names TensorFlow has these functions: each holds them by itself."""
    overlay = session.overlay
    if overlay is not None:
        patch(module, "save", lambda original: _folder_second(overlay, original))
        patch(module, "load", lambda original: _read_first(overlay, original))


def install_summary(session: Session, module: ModuleType) -> None:
    """As above, for TensorBoard's logs."""
    overlay = session.overlay
    if overlay is not None:
        patch(module, "create_file_writer", lambda original: _folder_first(overlay, original))


def install_train(session: Session, module: ModuleType) -> None:
    """As above, for checkpoints."""
    overlay = session.overlay
    if overlay is not None:
        patch(module, "latest_checkpoint", lambda original: _read_first(overlay, original))


def install_h5py(session: Session, module: ModuleType) -> None:
    """Weights in HDF5. Called right after ``import h5py``."""
    overlay = session.overlay
    if overlay is None:
        return

    def wrap(original: Callable[..., None]) -> Callable[..., None]:
        def __init__(file: object, name: object, mode: str = "r", *args: object, **kwargs: object) -> None:
            if mode in WRITING:
                name = overlay.for_writing(name, always=True, keep_content=mode in ("a", "r+"))
            else:
                name = overlay.for_reading(name)
            original(file, name, mode, *args, **kwargs)

        return __init__

    patch(module.File, "__init__", wrap)


def _diverted(overlay: Overlay, folder: Path) -> Path:
    """The trial's version of a folder, which is made; one that isn't local stays what it is."""
    name = overlay.absolute(folder)
    if name is None or "://" in os.fspath(folder):
        return folder
    target: str = overlay.for_writing(name, always=True)
    os.makedirs(target, exist_ok=True)
    return target


def _folder_first(overlay: Overlay, original: Callable[..., Result]) -> Callable[..., Result]:
    def create_file_writer(logdir: Path, *args: object, **kwargs: object) -> Result:
        return original(_diverted(overlay, logdir), *args, **kwargs)

    return create_file_writer


def _folder_second(overlay: Overlay, original: Callable[..., Result]) -> Callable[..., Result]:
    def save(obj: object, export_dir: Path, *args: object, **kwargs: object) -> Result:
        return original(obj, _diverted(overlay, export_dir), *args, **kwargs)

    return save


def _read_first(overlay: Overlay, original: Callable[..., Result]) -> Callable[..., Result]:
    def read(path: Path, *args: object, **kwargs: object) -> Result:
        return original(overlay.for_reading(path), *args, **kwargs)

    return read


def _prefix(overlay: Overlay, original: Callable[..., Result]) -> Callable[..., Result]:
    """A checkpoint's files share a prefix: the folder that they lie in is what is diverted."""

    def save(checkpoint: object, prefix: Path, *args: object, **kwargs: object) -> Result:
        folder, name = os.path.split(os.fspath(prefix))
        return original(checkpoint, os.path.join(_diverted(overlay, folder or os.curdir), name), *args, **kwargs)

    return save


def _restore(overlay: Overlay, original: Callable[..., Result]) -> Callable[..., Result]:
    def restore(checkpoint: object, save_path: Path, *args: object, **kwargs: object) -> Result:
        if save_path is not None:
            folder, name = os.path.split(os.fspath(save_path))
            save_path = os.path.join(overlay.for_reading(folder or os.curdir), name)
        return original(checkpoint, save_path, *args, **kwargs)

    return restore


def _checkpoints(overlay: Overlay, original: Callable[..., None]) -> Callable[..., None]:
    def __init__(keeper: object, checkpoint: object, directory: Path, *args: object, **kwargs: object) -> None:
        original(keeper, checkpoint, _diverted(overlay, directory), *args, **kwargs)

    return __init__


ADAPTERS = {
    "h5py": install_h5py,
    "tensorflow.saved_model": install_saved_model,
    "tensorflow.summary": install_summary,
    "tensorflow.train": install_train,
}
