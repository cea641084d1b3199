"""Arrow and Parquet, whose C++ opens files by itself: what Python code of pyarrow's hands it is led.

A filesystem object that the script makes goes past, and so do addresses ("file:///data").
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any, TypeVar

from ..files import Overlay
from ..folders import place_for
from ..patches import patch, put
from .calls import Call, Change, led, wearing

Result = TypeVar("Result")
_ERROR, _REPLACE = "error", "delete_matching"
"""What pyarrow does where files are in the way: nothing at all, or it takes what else is in their folder away."""
# Name in its module or class → place and name of the argument that is a path.
_WRITTEN: dict[str, dict[str, tuple[int, str]]] = {
    "pyarrow": {"output_stream": (0, "source"), "create_memory_map": (0, "path")},
    "pyarrow.csv": {"write_csv": (1, "output_file")},
    "pyarrow.feather": {"write_feather": (1, "dest")},
    "pyarrow.ipc": {"RecordBatchFileWriter": (1, "sink"), "RecordBatchStreamWriter": (1, "sink")},
    "pyarrow.orc": {"ORCWriter": (1, "where")},
    "pyarrow.parquet.core": {"ParquetWriter": (1, "where"), "write_metadata": (1, "where")},
}
_READ: dict[str, dict[str, tuple[int, str]]] = {
    "pyarrow": {"input_stream": (0, "source")},
    "pyarrow.csv": {"read_csv": (0, "input_file"), "open_csv": (0, "input_file")},
    "pyarrow.dataset": {"dataset": (0, "source")},
    "pyarrow.feather": {"read_feather": (0, "source"), "read_table": (0, "source")},
    "pyarrow.ipc": {"RecordBatchFileReader": (1, "source"), "RecordBatchStreamReader": (1, "source")},
    "pyarrow.json": {"read_json": (0, "input_file"), "open_json": (0, "input_file")},
    "pyarrow.orc": {"ORCFile": (1, "source"), "read_table": (0, "source")},
    "pyarrow.parquet.core": {
        "ParquetFile": (1, "source"), "ParquetDataset": (1, "path_or_paths"), "read_table": (0, "source"),
        "read_metadata": (0, "where"), "read_schema": (0, "where"),
    },
}  # fmt: skip
MODULES = ("pyarrow", *(name for name in {**_WRITTEN, **_READ} if name != "pyarrow"))


def divert_arrow(overlay: Overlay, module: ModuleType) -> None:
    """One of ``MODULES``. What a version lacks isn't led."""
    name = module.__name__
    for places, change in ((_WRITTEN, partial(_saving, overlay)), (_READ, partial(_loading, overlay))):
        for attribute, (place, word) in places.get(name, {}).items():
            owner = getattr(module, attribute, None)
            make = partial(_led, place=place, name=word, change=change)
            if isinstance(owner, type):
                patch(owner, "__init__", make)
            elif owner is not None:
                patch(module, attribute, make)
    if name == "pyarrow":
        put(module, "OSFile", _opened(overlay, module.OSFile))
        patch(module, "memory_map", lambda original: _mapped(overlay, original))
    if name == "pyarrow.csv":
        put(module, "CSVWriter", _csv_writer(overlay, module.CSVWriter))
    if name == "pyarrow.dataset":
        patch(module, "write_dataset", lambda original: _write_dataset(overlay, original))


def _saving(overlay: Overlay, path: object) -> object:
    return overlay.saving(path, model=False)


def _loading(overlay: Overlay, path: object) -> object:
    """Of a folder with files that lie elsewhere by now, the trial's view."""
    if isinstance(path, (list, tuple)):
        return [_loading(overlay, each) for each in path]
    name = overlay.absolute(path)
    if name is None or not overlay.is_active or not os.path.isdir(name):
        return overlay.loading(path)
    places = {file: str(overlay.loading(file)) for file in _files(name)}
    with overlay.working():
        there = _files(name)  # what C++ would find
    return path if set(places.values()) == there else _linked(overlay, name, places)


def _files(folder: str) -> set[str]:
    """Those below the folder, through links to other folders, as Arrow finds them."""
    found, above = set[str](), {folder: frozenset[str]()}
    for place, folders, files in os.walk(folder, followlinks=True):
        real, before = os.path.realpath(place), above.pop(place)
        if real in before:
            folders.clear()  # a circle
            continue
        above.update((os.path.join(place, name), before | {real}) for name in folders)
        found |= {os.path.join(place, file) for file in files}
    return found


def _linked(overlay: Overlay, folder: str, files: dict[str, str]) -> str:
    """A folder in the trial's with links to the files, below each other as they seem to be: partitions are told so."""
    with overlay.working():
        view = os.path.join(tempfile.mkdtemp(dir=overlay.folder), os.path.basename(folder))
        for seen, place in files.items():
            link = os.path.join(view, os.path.relpath(seen, folder))
            os.makedirs(os.path.dirname(link), exist_ok=True)
            os.symlink(place, link)
    return view


def _led(original: Call, place: int, name: str, change: Change) -> Call:
    """As ``led``, where nothing of the call says that another than the local disk is meant."""
    local = led(original, place=place, name=name, change=change)

    def call(*args: object, **kwargs: object) -> object:
        return (local if _is_local((*args, *kwargs.values())) else original)(*args, **kwargs)

    return call


def _is_local(arguments: tuple[object, ...]) -> bool:
    kinds = {type(each).__name__ for each in arguments}
    return not any(kind.endswith("FileSystem") and kind != "LocalFileSystem" for kind in kinds)


def _by_mode(overlay: Overlay, path: object, mode: str) -> object:
    """"w" empties the file; "a", and "r+" or "w" of a mapped one, keep what it holds."""
    if mode in ("r", "rb"):
        return overlay.loading(path)
    return overlay.saving(path, model=False, keep_content=not mode.startswith("w"))


def _opened(overlay: Overlay, replaced: Any) -> type:
    class OSFile(replaced):  # type: ignore[misc]  # of C++, made in ``__new__``
        def __new__(cls, path: object, mode: str = "r", *args: object, **kwargs: object) -> Any:
            return super().__new__(cls, _by_mode(overlay, path, mode), mode, *args, **kwargs)

    return wearing(OSFile, replaced)


def _csv_writer(overlay: Overlay, replaced: Any) -> type:
    class CSVWriter(replaced):  # type: ignore[misc]  # of C++
        def __init__(self, sink: object, *args: object, **kwargs: object) -> None:
            super().__init__(_saving(overlay, sink), *args, **kwargs)

    return wearing(CSVWriter, replaced)


def _mapped(overlay: Overlay, original: Callable[..., Result]) -> Call:
    def memory_map(path: object, mode: str = "r") -> Result:
        if mode in ("r", "rb"):
            return original(overlay.loading(path), mode)
        return original(overlay.saving(path, model=False, keep_content=True), mode)

    return memory_map


def _write_dataset(overlay: Overlay, original: Callable[..., Result]) -> Call:
    """It chooses the names of its files: for a folder that is there they are made in another, and moved by Python."""

    def write_dataset(data: object, base_dir: object, *args: object, **kwargs: object) -> Result:
        name = overlay.absolute(base_dir)
        behavior = kwargs.get("existing_data_behavior", _ERROR)
        if name is None or not _is_local((*args, *kwargs.values())):
            return original(data, base_dir, *args, **kwargs)
        if not os.path.isdir(name):
            place = place_for(overlay, name)
            with overlay.working():
                overlay.make_folders(place)
                overlay.created.will_make_all(place + os.sep)
            if place == name:
                return original(data, base_dir, *args, **kwargs)
            return original(data, place, *args, **_visited(kwargs, place, base_dir))
        if behavior == _ERROR and os.listdir(name):
            return original(data, base_dir, *args, **kwargs)  # raises
        with tempfile.TemporaryDirectory(dir=overlay.folder) as made:
            result = original(data, made, *args, **_visited(kwargs, made, base_dir))
            for folder, _, files in list(os.walk(made)):
                if files:
                    _move(folder, os.path.normpath(os.path.join(name, os.path.relpath(folder, made))), behavior)
        return result

    return write_dataset


def _visited(options: dict[str, object], made: str, meant: Any) -> dict[str, object]:
    """The options, a ``file_visitor`` of the script's among them being told of the folder that it gave."""
    visit = options.get("file_visitor")
    if not callable(visit):
        return options

    def visitor(written: Any) -> None:
        path = os.path.join(os.fspath(meant), os.path.relpath(written.path, made))
        visit(type(written)(path, written.metadata, written.size))

    return {**options, "file_visitor": visitor}


def _move(made: str, folder: str, behavior: object) -> None:
    """The files that pyarrow made, to the folder that they are for."""
    os.makedirs(folder, exist_ok=True)
    for entry in list(os.scandir(folder)) if behavior == _REPLACE else ():
        shutil.rmtree(entry.path) if entry.is_dir(follow_symlinks=False) else os.unlink(entry.path)
    for file in os.scandir(made):
        if file.is_file():
            os.replace(file.path, os.path.join(folder, file.name))
