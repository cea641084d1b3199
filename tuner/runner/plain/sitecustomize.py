"""Runs before a script under plain Python, and keeps it from the files of the user. Nothing of Python is patched.

Python imports a module of this name when it starts; the runner puts this folder first on ``PYTHONPATH`` for a run that
is to show what the script does without autotune. An audit hook sees what Python opens for writing, renames and removes.
A tracker that heeds an argument more than the variable that switches it off is kept from its server: its runs
keep nothing, as in a trial (MLflow's go to the run's folder), and what starts a sweep of wandb, or the process that
sends for it, ends this one.
What would touch a file of the user's ends the process, and its path is left in the run's folder; what the script makes
anew is written down there, to be put aside. Files that are written by C without Python's knowledge aren't seen, so that
this is tried only where a trial showed that nothing of the user's is written before the failure, and not for longer.

Standard library only. It takes itself out of the environment and off the path, and gives way to the environment's own
module of that name.
"""

from __future__ import annotations

import functools
import importlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

ENV = "AUTOTUNE_PLAIN"
"""Environment variable, JSON: ``folder`` (the run's own), ``homes`` (the user's folders, wherever they lie), ``caches``
(variables that name the cache of a library), ``path`` (the user's own PYTHONPATH; null where there is none),
``silenced`` (the trackers that are off other than the user has them)."""
WITHHELD = "withheld.txt"
"""In the run's folder: the path that the script would have touched."""
SILENCED = "silenced.txt"
"""In the run's folder: those of the silenced trackers that are imported, one a line."""
BY_LIBRARY = "/by-library"
"""Behind one that an installed package imported, and not the user's code: many do where it is only installed."""
WANDB = "wandb"
# As tuner/child/formats/silenced.py has them.
OFF = {
    WANDB: (("init",), "mode", "disabled"),
    "swanlab": (("init",), "mode", "disabled"),
    "neptune.metadata_containers": (("Run", "Project", "Model", "ModelVersion"), "mode", "debug"),
    "neptune_scale.api.run": (("Run",), "mode", "disabled"),
    "comet_ml": (
        ("Experiment", "ExistingExperiment", "OfflineExperiment", "ExistingOfflineExperiment"), "disabled", True,
    ),
}  # fmt: skip
READS = "read-only"
LOGINS = {"swanlab": ("login",), "comet_ml": ("login", "init")}
CLEARML = ("clearml", "clearml.utilities.check_updates")
MLFLOW = ("mlflow.tracking._tracking_service.utils", "mlflow.tracking._model_registry.utils")
_MADE = "made.jsonl"  # wire.MADE
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_APPEND | os.O_TRUNC


class Guard:
    """The audit hook. The run's own folder may be written, and so may caches, and temporary files outside of ``homes``.
    """

    def __init__(self, folder: str, homes: list[str], caches: list[str], silenced: list[str]) -> None:
        self._folder = os.path.realpath(folder)
        self._homes = tuple(os.path.realpath(home) + os.sep for home in homes)
        self._silenced = set(silenced)
        self._began = _now()
        values = [value for name in caches if os.path.isabs(value := os.environ.get(name, ""))]
        folders = [os.path.realpath(value) + os.sep for value in values]
        self._caches = (
            *(cache for cache in folders if not any(home.startswith(cache) for home in self._homes)),
            os.path.realpath(os.path.expanduser("~/.cache")) + os.sep,
        )
        free = ("/dev", "/proc", "/sys", tempfile.gettempdir())
        self._free = tuple(os.path.realpath(path) + os.sep for path in free)
        self._made: set[str] = set()

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Python's audit hook: see the table of audit events in its library reference."""
        if event == "open":
            self._opened(*arguments)
        elif event.startswith("cpython.run_"):
            # The script's first line is next: it finds no module that plain Python wouldn't have.
            if getattr(sys.modules.get("sitecustomize"), "__file__", None) == __file__:
                del sys.modules["sitecustomize"]
        elif event == "os.mkdir":
            self._makes(_below(arguments[0], arguments[2]), folder=True)
        elif event == "os.symlink":
            self._makes(_below(arguments[1], arguments[2]), folder=False)
        elif event == "os.link":
            # Put aside as well; but what it holds is as old as before, and may be the user's.
            self._makes(_below(arguments[1], arguments[3]), folder=False)
            self._made.discard(_absolute(_below(arguments[1], arguments[3])) or "")
        elif event in ("os.remove", "os.rmdir", "shutil.rmtree"):
            self._touches(_below(*arguments))
        elif event == "os.truncate":
            self._touches(arguments[0])
        elif event == "os.rename":
            self._touches(_below(arguments[0], arguments[2]))
            self._touches(_below(arguments[1], arguments[3]))
            self._makes(_below(arguments[1], arguments[3]), folder=False)
        elif event == "import":
            self._imports(str(arguments[0]))
        elif event == "subprocess.Popen" and os.path.basename(str(arguments[0])) == "wandb-core":
            self._withhold("what its tracker's server has (wandb)")

    def _imports(self, module: str) -> None:
        # A module of the package is imported from within it: so the package is there, and not only looked for.
        package, dot, _ = module.partition(".")
        if module in OFF or module in MLFLOW or module in CLEARML:
            sys.meta_path.insert(0, Quiet(module, self._quieten))
        if dot and package in self._silenced:
            self._silenced.discard(package)
            self._append(SILENCED, package + (BY_LIBRARY if _is_by_library(package) else ""))

    def _quieten(self, module: Any) -> None:
        """As in a trial; wandb's sweeps, and the process that sends for it, end this one."""
        if module.__name__ in MLFLOW:
            _keep_runs(module, f"file://{self._folder}/mlruns")
            return
        if module.__name__ in CLEARML:
            if hasattr(module, "Task"):
                module.Task.set_offline(True)
                module.Task.set_offline = lambda *args, **kwargs: None
            if hasattr(module, "CheckPackageUpdates"):
                module.CheckPackageUpdates.check_new_package_available = lambda *args, **kwargs: None
            return
        names, argument, off = OFF[module.__name__]
        for name in names:
            begins = getattr(module, name, None)
            if isinstance(begins, type):
                begins.__init__ = _told(argument, off, begins.__init__)  # type: ignore[misc]  # of this class, for good
            elif begins is not None:  # else a folder of its runs
                setattr(module, name, _told(argument, off, begins))
        for name in LOGINS.get(module.__name__, ()):
            if hasattr(module, name):
                setattr(module, name, lambda *args, **kwargs: None)
        for name in ("sweep", "controller", "agent") if module.__name__ == WANDB else ():
            if hasattr(module, name):
                setattr(module, name, lambda *args, **kwargs: self._withhold("a sweep of its tracker's (wandb)"))

    def _opened(self, path: object, mode: object, flags: object) -> None:
        writes = isinstance(flags, int) and flags & _WRITING
        if writes or (isinstance(mode, str) and any(letter in mode for letter in "wax+")):
            if isinstance(path, (str, bytes, os.PathLike)) and os.path.isdir(path):
                return  # a folder can't be opened to be written; a temporary file without a name is opened so
            for written in (path, _led_to(path)):
                self._touches(written)
                self._makes(written, folder=False)
        elif self._made:
            name = _absolute(path)
            if name in self._made:
                self._note(read=name)

    def _touches(self, path: object) -> None:
        name = _absolute(path)
        if name is None or name in self._made or not self._is_watched(name):
            return
        try:
            changed = os.lstat(name).st_mtime
        except OSError:
            return
        if any(name.startswith(made + os.sep) for made in self._made):
            return
        # What is written into a folder changes it as well: it is the script's only if it came to be after the start.
        born = _birth(name)
        if born is None or min(born, changed) < self._began:
            self._withhold(name)

    def _makes(self, path: object, *, folder: bool) -> None:
        name = _absolute(path)
        if name is None or name in self._made or os.path.lexists(name) or not self._is_watched(name):
            return
        self._made.add(name)
        self._note(made=name, folder=folder, after_first_step=True)

    def _is_watched(self, name: str) -> bool:
        if name.startswith((self._folder + os.sep, *self._caches)) or f"{os.sep}__pycache__" in name:
            return False
        return name.startswith(self._homes) or not name.startswith(self._free)

    def _note(self, **fields: object) -> None:
        self._append(_MADE, json.dumps(fields))

    def _withhold(self, name: str) -> None:
        self._append(WITHHELD, name)
        os._exit(0)

    def _append(self, file: str, line: str) -> None:
        path = os.path.join(self._folder, file)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.write(descriptor, line.encode() + b"\n")
        os.close(descriptor)


class Quiet:
    """Finds one module as Python does, once, and has it switched off when it has been loaded."""

    def __init__(self, name: str, quieten: Callable[[Any], None]) -> None:
        self._name = name
        self._quieten = quieten

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """As a finder of the import system; the first one that is asked, for the module that is imported next."""
        if name != self._name:
            return None  # what holds it
        sys.meta_path[:] = [finder for finder in sys.meta_path if finder is not self]
        specs = (finder.find_spec(name, path, target) for finder in sys.meta_path)
        spec = next((spec for spec in specs if spec is not None), None)
        if spec is not None and hasattr(spec.loader, "exec_module"):
            self._attend(spec.loader)
        return spec

    def _attend(self, loader: Any) -> None:
        load = loader.exec_module

        def exec_module(module: Any) -> None:
            del loader.exec_module
            load(module)
            self._quieten(module)

        loader.exec_module = exec_module


def _told(argument: str, off: object, begin: Any) -> Any:
    import inspect  # not before it is needed: the script shouldn't find it imported

    names = list(inspect.signature(begin).parameters)
    place = names.index(argument) if argument in names else len(names)

    @functools.wraps(begin)
    def begin_so(*args: Any, **kwargs: Any) -> Any:
        if (args[place] if len(args) > place else kwargs.get(argument)) == READS:
            return begin(*args, **kwargs)
        if len(args) > place:
            return begin(*args[:place], off, *args[place + 1 :], **kwargs)
        return begin(*args, **{**kwargs, argument: off})

    return begin_so


def _keep_runs(module: Any, own: str) -> None:
    """MLflow's runs, or models, go to ``own`` whatever they are sent to."""
    for name in vars(module).copy():
        if name in ("set_tracking_uri", "set_registry_uri"):
            setattr(module, name, lambda *args, **kwargs: None)
        elif name in ("get_tracking_uri", "get_registry_uri", "_resolve_tracking_uri", "_resolve_registry_uri"):
            setattr(module, name, lambda *args, **kwargs: own)
    if hasattr(module, "_get_store"):
        get_store = module._get_store
        module._get_store = lambda *args, **kwargs: get_store(own)


def _now() -> float:
    """The moment as file systems stamp it: see ``births.now``."""
    try:
        return time.clock_gettime(5)  # CLOCK_REALTIME_COARSE
    except (AttributeError, OSError):
        return time.time()


def _birth(path: str) -> float | None:
    """When what lies there came to be, links not followed; None where that isn't known: see ``births.birth``."""
    try:
        import ctypes  # not before it is needed: the script shouldn't find it imported

        buffer = ctypes.create_string_buffer(256)
        failed = ctypes.CDLL(None).statx(-100, os.fsencode(path), 0x100, 0x800, buffer)
    except (ImportError, AttributeError, OSError, ValueError):
        return None
    if failed or not int.from_bytes(buffer.raw[:4], sys.byteorder) & 0x800:
        return None
    seconds, nanoseconds = buffer.raw[0x50:0x58], buffer.raw[0x58:0x5C]
    return int.from_bytes(seconds, sys.byteorder, signed=True) + int.from_bytes(nanoseconds, sys.byteorder) / 1e9


def _is_by_library(package: str) -> bool:
    """Whether an installed package asked for the import of this one, which goes on."""
    between = (f"{os.sep}{package}{os.sep}", "<frozen importlib", f"{os.sep}importlib{os.sep}__init__.py", __file__)
    frame: Any = sys._getframe(1)
    while frame is not None and any(part in frame.f_code.co_filename for part in between):
        frame = frame.f_back
    return frame is not None and f"-packages{os.sep}" in frame.f_code.co_filename


def _below(path: object, folder: object = None) -> object:
    """The path, where ``folder`` is the descriptor of what it is relative to; None and -1 stand for none."""
    if not isinstance(folder, int) or folder < 0 or not isinstance(path, (str, bytes, os.PathLike)):
        return path
    try:
        return os.path.join(os.readlink(f"/proc/self/fd/{folder}"), os.fsdecode(path))
    except OSError:
        return path


def _absolute(path: object) -> str | None:
    """The path without links in its folders; None for descriptors."""
    if not isinstance(path, (str, bytes, os.PathLike)):
        return None
    folder, name = os.path.split(os.path.abspath(os.fsdecode(path)))
    return os.path.join(os.path.realpath(folder), name)


def _led_to(path: object) -> str | None:
    """Where what is written comes to lie, which a link may lead to; None for descriptors."""
    return os.path.realpath(os.fsdecode(path)) if isinstance(path, (str, bytes, os.PathLike)) else None


def _give_way(path: str | None) -> None:
    """Leaves the path and the environment as the user has them, and runs the environment's own module."""
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry) != here]
    os.environ.pop("PYTHONPATH", None)
    if path is not None:
        os.environ["PYTHONPATH"] = path
    sys.path_importer_cache.pop(here, None)
    this = sys.modules.pop("sitecustomize")
    try:
        importlib.import_module("sitecustomize")  # the environment's
    except ModuleNotFoundError:
        sys.modules["sitecustomize"] = this


if ENV in os.environ:
    _given = json.loads(os.environ.pop(ENV))
    _guard = Guard(_given["folder"], _given["homes"], _given["caches"], _given["silenced"])
    _give_way(_given["path"])
    sys.addaudithook(_guard)
