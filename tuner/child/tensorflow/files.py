"""TensorFlow and HDF5 write through C, past ``open``: their checkpoints and logs go to the trial's folder, too."""

from __future__ import annotations

import os
from collections.abc import Callable
from types import ModuleType
from typing import TypeVar

from ..files import Overlay, reading_first
from ..patches import patch

WRITING = ("w", "a", "x", "r+")
Result = TypeVar("Result")
Path = str | os.PathLike[str]


def divert(overlay: Overlay, tf: ModuleType) -> None:
    """Checkpoints, saved models and summaries."""
    for api in (tf, tf.compat.v2):
        divert_saved_model(overlay, api.saved_model)
        divert_summary(overlay, api.summary)
        divert_train(overlay, api.train)
    for name in ("save", "write"):
        patch(tf.train.Checkpoint, name, lambda original: _prefix(overlay, original))
    for name in ("read", "restore"):
        patch(tf.train.Checkpoint, name, lambda original: _restore(overlay, original))
    patch(tf.train.CheckpointManager, "__init__", lambda original: _checkpoints(overlay, original))


def divert_saved_model(overlay: Overlay, module: ModuleType) -> None:
    """One of the modules under whose names TensorFlow has these functions: each holds them by itself."""
    patch(module, "save", lambda original: _folder_second(overlay, original))
    patch(module, "load", lambda original: reading_first(overlay, original))


def divert_summary(overlay: Overlay, module: ModuleType) -> None:
    """As above, for TensorBoard's logs."""
    patch(module, "create_file_writer", lambda original: _folder_first(overlay, original))


def divert_train(overlay: Overlay, module: ModuleType) -> None:
    """As above, for checkpoints."""
    patch(module, "latest_checkpoint", lambda original: reading_first(overlay, original))


def divert_h5py(overlay: Overlay, module: ModuleType) -> None:
    """Weights in HDF5."""

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


def _prefix(overlay: Overlay, original: Callable[..., Result]) -> Callable[..., Result]:
    """A checkpoint's files share a prefix: the folder that they lie in is what is diverted."""

    def save(checkpoint: object, file_prefix: Path, *args: object, **kwargs: object) -> Result:
        folder, name = os.path.split(os.fspath(file_prefix))
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


DIVERTED = {
    "h5py": divert_h5py,
    "tensorflow.saved_model": divert_saved_model,
    "tensorflow.summary": divert_summary,
    "tensorflow.train": divert_train,
}
"""Libraries that write by themselves, and what diverts each."""
