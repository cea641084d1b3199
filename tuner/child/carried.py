"""Keeps the user's files safe from processes that multiprocessing starts anew ("spawn", "forkserver"), too.

Such a process is a fresh Python in which nothing is patched. Before anything else it unpickles what it is to prepare:
that brings the overlay there, as it is in the process that starts it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from types import ModuleType

from . import wire
from .files import Overlay
from .patches import patch

SPAWNING = ("multiprocessing.spawn", "joblib.externals.loky.backend.spawn", "loky.backend.spawn")
"""Modules whose ``get_preparation_data`` says what a new process is given."""
_PACKAGE = "_autotune_child"
_HERE = os.path.dirname(os.path.abspath(__file__))
_BEGIN = """
import importlib, importlib.util, sys
if {package!r} not in sys.modules:
    spec = importlib.util.spec_from_file_location({package!r}, {file!r}, submodule_search_locations=[{folder!r}])
    sys.modules[{package!r}] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
importlib.import_module({module!r}).begin({carried!r})
"""


class _Beginning:
    """What is done in the new process when this is unpickled there."""

    def __init__(self, code: str) -> None:
        self._code = code

    def __reduce__(self) -> tuple[Callable[..., None], tuple[str, dict[str, object]]]:
        return exec, (self._code, {})


def divert_spawning(overlay: Overlay, module: ModuleType) -> None:
    """Of one of ``SPAWNING``."""
    patch(module, "get_preparation_data", lambda original: _prepared(overlay, original))


def _prepared(overlay: Overlay, original: Callable[..., dict[str, object]]) -> Callable[..., dict[str, object]]:
    def get_preparation_data(name: str, *args: object, **kwargs: object) -> dict[str, object]:
        data = original(name, *args, **kwargs)
        if name == "ignore":
            # For the fork server itself, which is given text only: each process runs the script's module by itself.
            data.pop("init_main_from_path", None)
            data.pop("init_main_from_name", None)
            return data
        overlay.is_shared = True
        code = _BEGIN.format(
            package=_PACKAGE, file=os.path.join(_HERE, "__init__.py"), folder=_HERE,
            module=f"{_PACKAGE}.spawned", carried=carried(overlay),
        )  # fmt: skip
        return {_PACKAGE: _Beginning(code), **data}

    return get_preparation_data


def carried(overlay: Overlay) -> str:
    """The overlay as text."""
    return json.dumps({
        "request": wire.encode_request(overlay.session.request), "began": overlay.began,
        "diverted": overlay.diverted, "removed": sorted(overlay.removed), "relinked": overlay.relinked,
        "is_elsewhere": overlay.is_elsewhere,
    })  # fmt: skip


def take(overlay: Overlay, text: str) -> None:
    """The inverse of ``carried``, into an overlay of the same request."""
    given = json.loads(text)
    overlay.began = given["began"]
    overlay.diverted.update(given["diverted"])
    overlay.removed.update(given["removed"])
    overlay.relinked, overlay.is_elsewhere = given["relinked"], given["is_elsewhere"]
    overlay.is_shared = True
