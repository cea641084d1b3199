"""What tf.data keeps on disk, written and read through C++: caches, snapshots, saved datasets, TFRecord files."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from types import ModuleType

from ..files import Overlay
from ..folders import place_for
from ..patches import patch
from ..python_files import Result, led
from .gfile import local, seen

_OF_ONE_NAME = r"(\.index|\.data-.*|_\d+\.lockfile)?"
"""How the names end of what lies on disk under one name: a snapshot's folder, the files of a cache."""


def divert_cache(overlay: Overlay, module: ModuleType) -> None:
    """``cache(filename)``: it leaves a lock behind where a trial ends in the middle of a pass.

    A cache of the user's is read; one that the trial makes is as large as the data, and is gone with it.
    """
    patch(module, "_cache", lambda original: _scratch(overlay, original))


def divert_snapshot(overlay: Overlay, module: ModuleType) -> None:
    """``snapshot(path)``, likewise; a folder that is there gets new runs inside of it, however deep."""
    patch(module, "_snapshot", lambda original: _scratch(overlay, original, inside=True))


def divert_save(overlay: Overlay, module: ModuleType) -> None:
    """``Dataset.save(path)``."""

    def writing(path: object) -> object:
        name = local(overlay, path)
        if name is None:
            return path
        with overlay.working():
            place = overlay.view(name)
            if place == name and overlay.is_users(name) and os.listdir(name):
                overlay.remove(name)
                place = None
            if place is None:
                return overlay.target(name, follow=False)
            overlay.make_folders(place)
            overlay.created.will_make_all(os.path.join(place, ""))
        return path if place == name else place

    patch(module, "_save", lambda original: led(original, 1, writing))


def divert_load(overlay: Overlay, module: ModuleType) -> None:
    """``Dataset.load(path)``."""
    patch(module, "_load", lambda original: led(original, 0, lambda path: seen(overlay, path)))


def divert_readers(overlay: Overlay, module: ModuleType) -> None:
    """Names of files that the datasets of TFRecord, text and rows of bytes are given."""

    def change(names: object) -> object:
        if not overlay.is_active:
            return names
        if isinstance(names, (str, bytes, os.PathLike)):
            return seen(overlay, names)
        if isinstance(names, Sequence):
            return [seen(overlay, name) for name in names]
        return names

    patch(module, "_create_or_validate_filenames_dataset", lambda original: led(original, 0, change))


def _scratch(overlay: Overlay, original: Callable[..., Result], *, inside: bool = False) -> Callable[..., Result]:
    def note(prefix: object) -> object:
        name = local(overlay, prefix) if prefix else None
        if name is None:
            return prefix
        own = _where_removed(overlay, name)
        if own is not None:
            return own
        with overlay.working():
            overlay.make_folders(os.path.dirname(name))
            overlay.created.will_make_all(name, scratch=True)
            for here, _, _ in os.walk(name) if inside else ():
                overlay.created.will_make_all(os.path.join(here, ""), scratch=True)
        return prefix

    return led(original, 1, note)


def _where_removed(overlay: Overlay, name: str) -> str | None:
    """The trial's place, where the script removed what was the user's there: that would be read still.

    What takes its place is seen there from now on, and removed there.
    """
    folder = os.path.dirname(name)
    place = place_for(overlay, folder)
    if place != folder:
        return os.path.join(place, os.path.basename(name))
    files = re.compile(re.escape(overlay.entry(name)) + _OF_ONE_NAME)
    removed = [key for key in overlay.removed if files.fullmatch(key)]
    if not removed:
        return None
    with overlay.working():
        for key in removed:
            overlay.target(key, follow=False)
        return overlay.target(name, follow=False)


DIVERTED = {
    "tensorflow.python.data.ops.cache_op": divert_cache,
    "tensorflow.python.data.ops.snapshot_op": divert_snapshot,
    "tensorflow.python.data.ops.save_op": divert_save,
    "tensorflow.python.data.ops.load_op": divert_load,
    "tensorflow.python.data.ops.readers": divert_readers,
}
