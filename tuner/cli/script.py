"""Finds the script or module that is to be tuned, and refuses what can't be one."""

from __future__ import annotations

import hashlib
import os
import pkgutil
import sys
from collections.abc import Sequence
from pathlib import Path

from tuner.errors import ScriptNotFoundError, UsageError
from tuner.masking import secret_options
from tuner.model import Script

_LAUNCHERS = frozenset(
    {"torchrun", "accelerate", "deepspeed", "colossalai", "composer", "mpirun", "horovodrun", "srun"}
)
_EVERYWHERE = frozenset({"train", "main", "run", "training", "__main__"})
_LAUNCHER_MODULES = frozenset(
    {
        "torch.distributed.run", "torch.distributed.launch", "torch.distributed.torchrun", "accelerate.commands.launch",
        "accelerate.commands.accelerate_cli", "deepspeed.launcher.runner",
    }
)  # fmt: skip


def find_script(path: str, module: str, arguments: Sequence[str], verb: str = "study") -> Script:
    """The script as the child gets it. Raises ``UsageError`` and ``ScriptNotFoundError``, for ``run`` or the others."""
    if path and module and is_interpreter(path):
        raise UsageError(
            f"{path} is the interpreter, not a script", hint=f"leave it out: autotune {verb} --module {module}"
        )
    if path and module:
        raise UsageError(f"both a script ({path}) and a module ({module}) are given", hint="give one of them")
    if module:
        refuse_launcher(module, verb)
        source = _module_source(module)
        return Script(path="", argv=tuple(arguments), module=module, sha256=_sha256(source))
    refuse_launcher(path, verb)
    if is_interpreter(path):
        raise UsageError(
            f"{path} is the interpreter, not a script", hint=f"leave it out: autotune {verb} train.py -- its arguments"
        )
    source = _script_file(path)
    _refuse_others_code(source)
    return Script(path=path, argv=tuple(arguments), sha256=_sha256(source))


def is_interpreter(path: str) -> bool:
    """Whether the path is called as Python's interpreter is."""
    return Path(path).name.removesuffix(".exe").rstrip("0123456789.") == "python"


def source_of(script: Script) -> Path:
    """The file that is run. Raises ``ScriptNotFoundError``."""
    return _module_source(script.module) if script.module else _script_file(script.path)


def warn_of_secrets(script: Script) -> None:
    """Says which arguments are taken for secrets, and where their values are to be found all the same."""
    options = secret_options(script.argv)
    if options:
        print(
            f"autotune: {', '.join(options)} looks like a secret: its value is left out of what the study keeps, but"
            " stands on the command line and in what the script prints; an environment variable is safer",
            file=sys.stderr,
        )


def stem(script: Script) -> str:
    """A short name of the script for folders; one that every project has is distinguished by its folder or package."""
    if script.module:
        package, _, name = script.module.rpartition(".")
        parent = package.rpartition(".")[2]
    else:
        name, parent = Path(script.path).stem, Path(script.path).resolve().parent.name
    return f"{parent}-{name}" if name in _EVERYWHERE and parent else name


def refuse_launcher(name: str, verb: str) -> None:
    """Raises ``UsageError`` where a path or a module starts several processes."""
    launches = name in _LAUNCHER_MODULES or Path(name).name in _LAUNCHERS
    if launches and verb == "run":
        raise UsageError(
            f"{name} starts several processes: it starts autotune run, not the other way round",
            hint="as in: torchrun --nproc-per-node 2 --no-python autotune run --config best.json train.py",
        )
    if launches:
        raise UsageError(
            f"{name} starts several processes; a study tunes the script in one process",
            hint="give the training script itself: autotune study train.py -- its arguments; --ranks N starts it in N"
            " processes as torchrun does",
        )


def _refuse_others_code(file: Path) -> None:
    """Raises ``UsageError`` for what users start as they do a script, and Python doesn't run."""
    if file.suffix == ".ipynb":
        raise UsageError(
            f"{file} is a notebook, not a Python script",
            hint=f"write it as one first: jupyter nbconvert --to script {file}",
        )
    if file.suffix in {".sh", ".bash"}:
        raise UsageError(
            f"{file} is a shell script", hint="give the Python script that it starts, with its arguments after --"
        )


def ranks() -> int:
    """How many processes a launcher has started together; 1 without one."""
    text = os.environ.get("WORLD_SIZE", "1")
    return max(1, int(text)) if text.isdigit() else 1


def refuse_many_ranks() -> None:
    """Raises ``UsageError`` under a launcher: every rank would start a study of its own, all on the same devices."""
    if ranks() > 1:
        raise UsageError(
            f"WORLD_SIZE is {ranks()}: this is one of several ranks, and a study tunes one process",
            hint="start autotune by itself, not under a launcher; unset WORLD_SIZE if it is a leftover",
        )


def _script_file(path: str) -> Path:
    file = Path(path)
    if file.is_file():
        return file
    if file.is_dir():
        raise ScriptNotFoundError(f"{path} is a folder", hint="give the script in it, or write a study.toml there")
    suffixed = file.with_name(f"{file.name}.py")
    hint = f"did you mean {suffixed}?" if suffixed.is_file() else ""
    if not hint and "/" not in path and "." in path and not path.endswith(".py"):
        hint = f"for a module write: autotune study --module {path}"
    if file.exists():
        raise ScriptNotFoundError(f"{path} is not a regular file", hint="save the script in one: each trial reads it")
    raise ScriptNotFoundError(f"there is no script {path}", hint=hint or "paths start at the current folder")


def _module_source(name: str) -> Path:
    """The file that ``python -m name`` would run, found without importing any of the user's packages."""
    search = [os.getcwd(), *sys.path]
    origin = ""
    parts = name.split(".")
    for depth in range(1, len(parts) + 1):
        full = ".".join(parts[:depth])
        located = _find(parts[depth - 1], search)
        if located is None:
            raise ScriptNotFoundError(f"there is no module {name}", hint=f"nothing called {full} is on Python's path")
        origin, search = located
    if search:
        located = _find("__main__", search)
        if located is None:
            raise ScriptNotFoundError(
                f"{name} is a package without a __main__", hint="name the module in it that trains"
            )
        origin = located[0]
    if not origin.endswith(".py"):
        raise ScriptNotFoundError(f"the module {name} has no Python source")
    return Path(origin)


def _find(name: str, search: Sequence[str]) -> tuple[str, list[str]] | None:
    """A module's file and, of a package, its folders; asked of each folder by itself.

    ``PathFinder`` would look a namespace's parent up among the imported modules, and nothing is imported here.
    """
    namespace: list[str] = []
    for entry in search:
        finder = pkgutil.get_importer(entry) if name else None
        spec = finder.find_spec(name) if finder is not None else None
        if spec is None:
            continue
        folders = list(spec.submodule_search_locations or ())
        if spec.loader is not None:
            return spec.origin or "", folders
        namespace.extend(folders)
    return ("", namespace) if namespace else None


def _sha256(file: Path) -> str:
    try:
        return hashlib.sha256(file.read_bytes()).hexdigest()
    except OSError as error:
        raise ScriptNotFoundError(f"can't read {file}: {error.strerror}") from error
