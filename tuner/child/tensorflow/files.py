"""TensorFlow's checkpoints, saved models and summaries are written through C++, past ``open``.

New ones are written where the script says, and noted. Where files of the user's would be overwritten or swept away, the
trial has a folder of its own in place of theirs, in which theirs are seen: a script that resumes finds them.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
from collections.abc import Callable
from types import ModuleType
from typing import TypeVar

from ..files import Overlay
from ..patches import patch
from ..python_files import with_path
from . import data_files, gfile

Result = TypeVar("Result")
Path = str | os.PathLike[str]
_STATE = "checkpoint"
"""The file that says which checkpoint is the latest."""
_VALUES = re.compile(r"\.data-\d{5}-of-\d{5}$")


class Folders:
    """The trial's own versions of whole folders: where TensorFlow is to write and read in place of the script's path.

    They hold for TensorFlow alone: such a folder may be the script's own, with everything else that lies in it.
    """

    def __init__(self, overlay: Overlay) -> None:
        self._overlay = overlay
        self._own: dict[str, str] = {}

    def for_writing(self, folder: Path, begin: str = "", *, linked: bool = True) -> Path:
        """Where files whose names begin so may be written in place of the folder; the state of checkpoints, too.

        ``linked``: the user's files are seen there.
        """
        name = self._overlay.absolute(folder)
        if name is None or not self._overlay.session.here:
            return folder
        with self._overlay.working():
            own = self._own.get(os.path.realpath(name))
            if own is not None:
                return own
            if self._has_users(name, begin):
                return self._make(name, linked)
            self._overlay.make_folders(name)
            self._overlay.created.will_make_all(os.path.join(name, begin), model=True)
            self._overlay.created.will_make(os.path.join(name, _STATE), model=True)
        return folder

    def for_reading(self, folder: Path) -> Path:
        """Where the files lie that the script finds in the folder."""
        name = self._overlay.absolute(folder) if self._own else None
        return folder if name is None else self._own.get(os.path.realpath(name), folder)

    def prefix_for_writing(self, prefix: Path) -> Path:
        """As above, for files that share the beginning of their names."""
        folder, name = os.path.split(os.fspath(prefix))
        return os.path.join(self.for_writing(folder or os.curdir, name), name)

    def prefix_for_reading(self, prefix: Path) -> Path:
        """As above. A script may give the folder itself."""
        if not self._own or not isinstance(prefix, (str, os.PathLike)):
            return prefix
        folder, name = os.path.split(os.fspath(prefix))
        own = self.for_reading(prefix)
        return own if own != prefix else os.path.join(self.for_reading(folder or os.curdir), name)

    def _has_users(self, folder: str, begin: str) -> bool:
        try:
            names = os.listdir(folder)
        except OSError:
            return False
        return any(
            (name.startswith(begin) or name == _STATE)
            and self._overlay.is_users(os.path.join(folder, name), follow=False, everywhere=True)
            for name in names
        )

    def _make(self, folder: str, linked: bool) -> str:
        real = os.path.realpath(folder)
        own = os.path.join(self._overlay.folder, "tensorflow", real.lstrip(os.sep))
        os.makedirs(own, exist_ok=True)
        for name in os.listdir(real) if linked else ():
            # TensorFlow renames a file of values to its place, which takes a link's place, and writes the others.
            if _VALUES.search(name):
                os.symlink(os.path.join(real, name), os.path.join(own, name))
            elif name.endswith(".index") or name.startswith(_STATE):
                shutil.copyfile(os.path.join(real, name), os.path.join(own, name))
        self._own[real] = own
        self._overlay.keeps(real, f"diverted {folder} to the trial's folder")
        return own


@functools.cache
def folders_of(overlay: Overlay) -> Folders:
    """The trial's one ``Folders``."""
    return Folders(overlay)


def divert_checkpoints(overlay: Overlay, module: ModuleType) -> None:
    """Of the module that keeps track of checkpoints."""
    folders = folders_of(overlay)
    patch(module, "latest_checkpoint", lambda original: _read(original, folders.for_reading))
    patch(module.CheckpointManager, "__init__", lambda original: _checkpoints(folders, original))


def divert_checkpoint(overlay: Overlay, module: ModuleType) -> None:
    """``tf.train.Checkpoint``."""
    folders = folders_of(overlay)
    for name in ("save", "write"):
        patch(module.Checkpoint, name, lambda original: _prefix_written(folders, original))
    for name in ("read", "restore"):
        patch(module.Checkpoint, name, lambda original: _prefix_restored(folders, original))


def divert_checkpoint_reader(overlay: Overlay, module: ModuleType) -> None:
    """What lists a checkpoint's variables."""
    patch(module, "load_checkpoint", lambda original: _read(original, folders_of(overlay).prefix_for_reading))


def divert_saving(overlay: Overlay, module: ModuleType) -> None:
    """``tf.saved_model.save``."""
    patch(module, "save", lambda original: _folder_written(folders_of(overlay), original))


def divert_loading(overlay: Overlay, module: ModuleType) -> None:
    """``tf.saved_model.load``."""
    patch(module, "load", lambda original: _read(original, folders_of(overlay).for_reading))


def divert_summaries(overlay: Overlay, module: ModuleType) -> None:
    """TensorBoard's logs."""
    patch(module, "create_file_writer_v2", lambda original: _logs(overlay, original))


def _logs(overlay: Overlay, original: Callable[..., Result]) -> Callable[..., Result]:
    """Each file of events has a name of its own: nothing is overwritten."""

    def create_file_writer(logdir: Path, *args: object, **kwargs: object) -> Result:
        name = overlay.absolute(logdir)
        if name is not None and overlay.session.here:
            with overlay.working():
                overlay.make_folders(name)
                overlay.created.will_make_all(os.path.join(name, "events.out.tfevents"))
        return original(logdir, *args, **kwargs)

    return create_file_writer


def _read(original: Callable[..., Result], change: Callable[..., object]) -> Callable[..., Result]:
    def read(*args: object, **kwargs: object) -> Result:
        args, kwargs = with_path(original, 0, change, args, kwargs)
        return original(*args, **kwargs)

    return read


def _folder_written(folders: Folders, original: Callable[..., Result]) -> Callable[..., Result]:
    def save(obj: object, export_dir: Path, *args: object, **kwargs: object) -> Result:
        return original(obj, folders.for_writing(export_dir, linked=False), *args, **kwargs)

    return save


def _prefix_written(folders: Folders, original: Callable[..., Result]) -> Callable[..., Result]:
    def save(checkpoint: object, file_prefix: Path, *args: object, **kwargs: object) -> Result:
        return original(checkpoint, folders.prefix_for_writing(file_prefix), *args, **kwargs)

    return save


def _prefix_restored(folders: Folders, original: Callable[..., Result]) -> Callable[..., Result]:
    def restore(checkpoint: object, save_path: Path, *args: object, **kwargs: object) -> Result:
        return original(checkpoint, folders.prefix_for_reading(save_path), *args, **kwargs)

    return restore


def _checkpoints(folders: Folders, original: Callable[..., None]) -> Callable[..., None]:
    def __init__(keeper: object, checkpoint: object, directory: Path, *args: object, **kwargs: object) -> None:
        original(keeper, checkpoint, folders.for_writing(directory), *args, **kwargs)

    return __init__


DIVERTED = {
    "tensorflow.python.checkpoint.checkpoint_management": divert_checkpoints,
    "tensorflow.python.checkpoint.checkpoint": divert_checkpoint,
    "tensorflow.python.training.checkpoint_utils": divert_checkpoint_reader,
    "tensorflow.python.saved_model.save": divert_saving,
    "tensorflow.python.saved_model.load": divert_loading,
    "tensorflow.python.ops.summary_ops_v2": divert_summaries,
    **gfile.DIVERTED,
    **data_files.DIVERTED,
}
"""TensorFlow's own modules, from which all names of its interface are taken, and what leads each."""
