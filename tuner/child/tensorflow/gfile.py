"""``tf.io.gfile`` and what else of TensorFlow reads, writes and removes single files through C++."""

from __future__ import annotations

import glob
import os
import shutil
from collections.abc import Callable
from types import ModuleType
from typing import Protocol

from ..files import Overlay
from ..folders import place_for
from ..patches import patch
from ..python_files import Result, led


class Tensor(Protocol):
    """A path as TensorFlow holds it; one of a graph has no value yet."""

    def numpy(self) -> object:
        """The value."""


def divert(overlay: Overlay, module: ModuleType) -> None:
    """``file_io``: the first version's functions call the second version's."""
    patch(module.FileIO, "__init__", lambda original: _open(overlay, original))
    for name in ("file_exists_v2", "is_directory_v2", "stat_v2"):
        patch(module, name, lambda original: _reading(overlay, original))
    patch(module, "list_directory_v2", lambda original: _listing(overlay, original))
    patch(module, "get_matching_files_v2", lambda original: _matching(overlay, original))
    patch(module, "delete_file_v2", lambda original: _deleting(overlay, original))
    patch(module, "delete_recursively_v2", lambda original: _deleting(overlay, original))
    for name in ("create_dir_v2", "recursive_create_dir_v2"):
        patch(module, name, lambda original: _making(overlay, original))
    patch(module, "copy_v2", lambda original: _copying(overlay, original, shutil.copyfile))
    patch(module, "rename_v2", lambda original: _copying(overlay, original, os.replace))


def divert_records(overlay: Overlay, module: ModuleType) -> None:
    """``TFRecordWriter``."""

    def make(original: Callable[..., None]) -> Callable[..., None]:
        def __init__(writer: object, path: object, *args: object, **kwargs: object) -> None:
            original(writer, overlay.saving(path, model=False), *args, **kwargs)

        return __init__

    patch(module.TFRecordWriter, "__init__", make)


def divert_reading(overlay: Overlay, module: ModuleType) -> None:
    """``tf.io.read_file``."""
    patch(module, "read_file", lambda original: _given(original, lambda path: seen(overlay, path)))


def divert_writing(overlay: Overlay, module: ModuleType) -> None:
    """``tf.io.write_file``, which makes the folders, too."""

    def change(path: object) -> object:
        name = overlay.absolute(path)
        if name is not None and not overlay.is_working:
            folder = place_for(overlay, os.path.dirname(name))
            with overlay.working():
                overlay.make_folders(folder)
        return overlay.saving(path, model=False)

    patch(module, "write_file", lambda original: _given(original, change))


def local(overlay: Overlay, path: object) -> str | None:
    """The path as text where it is a local one and the trial's process asks."""
    return None if overlay.is_working else overlay.absolute(overlay.meant(path, follow=False))


def _given(original: Callable[..., Result], change: Callable[[object], object]) -> Callable[..., Result]:
    """A path that is a tensor of a graph is left as it is: nothing is known of it yet."""

    def by_value(path: object) -> object:
        if hasattr(path, "numpy"):
            value = path.numpy()
            changed = change(value)
            return path if changed is value else changed
        return change(path)

    return led(original, 0, by_value)


def _open(overlay: Overlay, original: Callable[..., None]) -> Callable[..., None]:
    def __init__(file: object, name: object, mode: str = "r", *args: object, **kwargs: object) -> None:
        if any(letter in mode for letter in "wa+"):
            name = overlay.saving(name, model=False, keep_content="w" not in mode)
        else:
            name = seen(overlay, name)
        original(file, name, mode, *args, **kwargs)

    return __init__


def seen(overlay: Overlay, path: object) -> object:
    """The path to read in place of it. Where the script removed it, one with nothing there: the library says so."""
    try:
        return overlay.loading(path)
    except FileNotFoundError:
        return os.path.join(overlay.folder, "removed", str(overlay.absolute(path)).lstrip(os.sep))


def _reading(overlay: Overlay, original: Callable[..., Result]) -> Callable[..., Result]:
    def call(path: object) -> Result:
        return original(seen(overlay, path) if overlay.is_active else path)

    return call


def _listing(overlay: Overlay, original: Callable[..., list[str]]) -> Callable[..., list[str]]:
    def call(path: object) -> list[str]:
        if not overlay.is_active or (name := local(overlay, path)) is None:
            return original(path)
        names = original(seen(overlay, path))
        with overlay.working():
            return overlay.listed(name, names)

    return call


def _matching(overlay: Overlay, original: Callable[..., list[str]]) -> Callable[..., list[str]]:
    def call(pattern: object) -> list[str]:
        patterns = pattern if isinstance(pattern, (list, tuple)) else [pattern]
        texts = [str(one, "utf-8") if isinstance(one, bytes) else str(one) for one in patterns]
        if not overlay.is_active or any(local(overlay, text) is None for text in texts):
            return original(pattern)
        # By Python, whose view of folders is the script's.
        return [path for text in texts for path in sorted(glob.glob(text, include_hidden=True))]

    return call


def _deleting(overlay: Overlay, original: Callable[..., Result]) -> Callable[..., Result | None]:
    def call(path: object) -> Result | None:
        path = overlay.meant(path, follow=False)
        name = local(overlay, path)
        if name is None:
            return original(path)
        with overlay.changing():
            place = overlay.view(name, follow=False)
            if place == name and overlay.is_users(name, follow=False):
                overlay.remove(name)
                return None
            done = original(seen(overlay, path) if place is None else path if place == name else place)
            overlay.forget(name)
            return done

    return call


def _making(overlay: Overlay, original: Callable[..., Result]) -> Callable[..., Result | None]:
    def call(path: object) -> Result | None:
        path = overlay.meant(path, follow=False)
        name = local(overlay, path)
        if name is None:
            return original(path)
        if overlay.is_active and overlay.view(name) != name:
            os.makedirs(name, exist_ok=True)
            return None
        with overlay.changing():
            overlay.make_folders(name)
        return original(path)

    return call


def _copying(
    overlay: Overlay, original: Callable[..., Result], by_python: Callable[[str, str], object]
) -> Callable[..., Result | None]:
    """``by_python`` does the same, and is led by the overlay."""

    def call(src: object, dst: object, overwrite: bool = False) -> Result | None:
        source, destination = local(overlay, src), local(overlay, dst)
        if source is None or destination is None:
            return original(src, dst, overwrite)
        if os.path.lexists(destination) and not overwrite:
            return original(src, dst, overwrite)  # fails
        possible = os.path.isfile(source) or (os.path.isdir(source) and by_python is not shutil.copyfile)
        if possible and os.path.isdir(os.path.dirname(destination)):
            by_python(source, destination)
            return None
        return original(src, dst, overwrite)

    return call


DIVERTED = {
    "tensorflow.python.lib.io.file_io": divert,
    "tensorflow.python.lib.io.tf_record": divert_records,
    "tensorflow.python.ops.io_ops": divert_reading,
    "tensorflow.python.ops.gen_io_ops": divert_writing,
}
