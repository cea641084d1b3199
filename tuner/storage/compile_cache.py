"""The compilers' cache of a study. It holds code that trials run, so only what this user made in this place is used.

The folder keeps the number of its own inode: one that was copied, cloned or unpacked has another.
"""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path

from tuner.errors import StorageError
from tuner.model import Config

_MARK = ".made-here"


def environment(own: Path, config: Config) -> dict[str, str]:
    """Variables by which frameworks' compilers keep their output below the folder, whatever they compile for."""
    # Inductor keeps Triton's kernels below its own cache, unless the user has them elsewhere.
    triton = {"TRITON_CACHE_DIR": str(own / "triton")} if "TRITON_CACHE_DIR" in os.environ else {}
    # JAX by itself keeps what took a second or more to compile: a start is made of many that take less.
    # XLA splits a computation for as many threads as there are, and JAX's keys don't hold their number.
    place = own / (f"jax-{config['threads']}-threads" if "threads" in config else "jax")
    jax = {"JAX_COMPILATION_CACHE_DIR": str(place), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    return {"TORCHINDUCTOR_CACHE_DIR": str(own), **triton, **jax}


def own(folder: Path) -> Path:
    """The folder, made where it isn't there; one that isn't this user's own is thrown away first.

    Raises ``StorageError`` where that can't be done.
    """
    try:
        if not is_own(folder):
            _remove(folder)
        if not folder.exists():
            folder.parent.mkdir(parents=True, exist_ok=True)
            folder.mkdir(mode=0o700)
            (folder / _MARK).write_text(_inode(folder), encoding="ascii")
    except OSError as error:
        raise StorageError(
            f"the compile cache {folder} isn't this user's own, and can't be removed: {error.strerror or error}",
            hint="what lies in it would be run: remove it, or choose another folder for the study",
        ) from error
    return folder


def is_own(folder: Path) -> bool:
    """Whether this user made the folder where it lies, and nobody else can write to it; True where there is none."""
    try:
        status = folder.lstat()
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o022:
            return False
        return (folder / _MARK).read_text(encoding="ascii") == str(status.st_ino)
    except FileNotFoundError:
        return not os.path.lexists(folder)
    except (OSError, ValueError):
        return False


def _inode(folder: Path) -> str:
    return str(folder.lstat().st_ino)


def _remove(folder: Path) -> None:
    if folder.is_symlink() or not folder.is_dir():
        folder.unlink()
    else:
        shutil.rmtree(folder)
