"""Where in the user's own files a call comes from: what tells one loader, dataset or loss of a script from another.

A call's *place* is named by its file, the function that makes it and what it says, and so stays the same while lines
move and numbers are edited: ``__main__.main~1f3a90bc``. Where a function makes the same call twice they are numbered in
the order in which they stand. A call that says something else is another place: what was known of it is lost, never
given to a neighbour.
"""

from __future__ import annotations

import ast
import hashlib
import linecache
import os
import re
import site
import sys
from collections.abc import Iterator
from functools import cache
from types import CodeType
from typing import Any

# Code that lies in no file, or in one that a library writes while it runs.
_NO_FILES = ("<frozen", "<string>")
_GENERATED = "__autograph_generated"
# What a folder of installed packages is called, wherever it lies.
_INSTALLED = ("site-packages", "dist-packages")
DEPTH = 6
"""Calls of the user's that tell one place from another."""
WHOLE_LINE = 2**31
MOST_PLACES = 4096
"""How many places are remembered: a script may make new code all the time."""
_places: dict[tuple[int, int], tuple[CodeType, str]] = {}


def frames() -> Iterator[tuple[str, int]]:
    """File and line of every call that led here, innermost first, without our own."""
    here = __file__.rsplit("/", 1)[0] + "/"
    frame: Any = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if not name.startswith(here):
            yield name, frame.f_lineno
        frame = frame.f_back


def user_stack() -> str:
    """Where in the user's own files the call came from, as places joined by ``<``, innermost first."""
    path = tuple(sys.path)
    calls = [call for call in _calls() if not _lies_in_library(call[0].co_filename, path)]
    return "<".join(_known_place(code, index, main) for code, index, main in calls[:DEPTH]) or "library"


def line_stack() -> str:
    """The same as ``file:line<file:line``, which is how keys of profiles were written before places."""
    path = tuple(sys.path)
    user = [(n, line) for n, line in frames() if not _lies_in_library(n, path)]
    return "<".join(f"{n.rsplit('/', 1)[-1]}:{line}" for n, line in user[:DEPTH]) or "library"


def generated_lines() -> tuple[int, ...]:
    """The lines of what AutoGraph has made of the user's functions, of every call that led here, innermost first.

    They tell calls of one function apart, and are others with the next version of TensorFlow.
    """
    return tuple(line for name, line in frames() if _GENERATED in name)


def _calls() -> Iterator[tuple[CodeType, int, bool]]:
    """Code, index of the instruction, and whether it is the main script's, of every call that led here; not ours."""
    here = __file__.rsplit("/", 1)[0] + "/"
    frame: Any = sys._getframe(1)
    while frame is not None:
        if not frame.f_code.co_filename.startswith(here):
            yield frame.f_code, frame.f_lasti // 2, frame.f_globals.get("__name__") == "__main__"
        frame = frame.f_back


def _known_place(code: CodeType, index: int, main: bool) -> str:
    """As ``_place``, found once. By identity: code of another file, or of an edited one, may be equal."""
    key = (id(code), index)
    if key not in _places:
        if len(_places) >= MOST_PLACES:
            _places.clear()
        _places[key] = (code, _place(code, index, main))  # the code is kept, and so its identity
    return _places[key][1]


def _place(code: CodeType, index: int, main: bool) -> str:
    """The name of a call, by its code and the index of its instruction. A file without a source leaves its line."""
    file = "__main__" if main else code.co_filename.rsplit("/", 1)[-1]
    function = re.sub(r"[<>#~]", "", code.co_qualname)
    positions = _positions(code)
    here = positions[index] if index < len(positions) else None
    said = _said(code.co_filename, here) if here is not None else ""
    if here is None or not said:
        return f"{file}.{function}~line{here[0] if here is not None else code.co_firstlineno}"
    start = _start(code.co_filename, here)
    alike = {p for p in positions if p is not None and p < here and _start(code.co_filename, p) == start}
    number = sum(_said(code.co_filename, other) == said for other in alike)
    digest = hashlib.sha256(said.encode()).hexdigest()[:8]
    return f"{file}.{function}~{digest}" + (f".{number}" if number else "")


def _positions(code: CodeType) -> tuple[tuple[int, int, int, int] | None, ...]:
    """First line, last line, first and last column (in bytes) of each instruction; None where it isn't kept.

    Whole lines where Python was told to keep no columns (PYTHONNODEBUGRANGES).
    """
    return tuple(
        None if line is None else (line, end or line, column or 0, WHOLE_LINE if end_column is None else end_column)
        for line, end, column, end_column in code.co_positions()
    )


def _raw(file: str, position: tuple[int, int, int, int]) -> str:
    """The source at this position; empty where there is none."""
    line, end, column, end_column = position
    lines = [text.encode() for text in linecache.getlines(file)[line - 1 : end]]
    if len(lines) != end - line + 1:
        return ""
    lines[-1] = lines[-1][:end_column]
    lines[0] = lines[0][column:]
    return b"".join(lines).decode(errors="replace")


def _start(file: str, position: tuple[int, int, int, int]) -> str:
    """How the source begins there, whatever its layout: most calls needn't be looked at any closer."""
    return "".join(_raw(file, position)[:20].split())[:2]


def _said(file: str, position: tuple[int, int, int, int]) -> str:
    """What the source says there, whatever its layout and its numbers; empty where there is no source."""
    text = _raw(file, position)
    if not text:
        return ""
    try:
        tree = ast.parse(f"({text}\n)", mode="eval")
    except (SyntaxError, ValueError):
        return "".join(re.sub(r"\d+", "0", text).split())
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, (int, float)) and not isinstance(node.value, bool):
            node.value = 0
    return ast.unparse(tree)


def inside_library() -> bool:
    """Whether an installed package makes the call, on the user's behalf."""
    caller = next((name for name, _ in frames()), "")
    return is_library(caller)


def is_library(name: str) -> bool:
    """Whether the file of this name belongs to Python or to an installed package, by where these lie."""
    # A folder that a script puts on its path holds libraries from then on.
    return _lies_in_library(name, tuple(sys.path))


@cache
def _lies_in_library(name: str, path: tuple[str, ...]) -> bool:
    if name.startswith(_NO_FILES) or _GENERATED in name:
        return True
    return name.startswith(installed_folders(path))


def installed_folders(path: tuple[str, ...]) -> tuple[str, ...]:
    """Python's own, this environment's packages, and those of others that such a ``sys.path`` leads to."""
    return (*library_folders(), *_folders_on(path))


@cache
def library_folders() -> tuple[str, ...]:
    """Python's own, and this environment's packages. As they are written and as they are, where links lead there."""
    import sysconfig  # takes a while, and is of no use to a script without a framework

    schemes = [sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")]
    folders = [os.path.dirname(os.__file__), *schemes, *site.getsitepackages(), site.getusersitepackages()]
    return tuple({shape + os.sep for folder in folders for shape in (folder, os.path.realpath(folder))})


@cache
def _folders_on(path: tuple[str, ...]) -> tuple[str, ...]:
    """Folders of installed packages on the path, the script's own excepted."""
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    own = os.path.dirname(os.path.abspath(main)) if main else ""
    folders = (entry.rstrip(os.sep) for entry in path if isinstance(entry, str))
    installed = (folder for folder in folders if os.path.basename(folder) in _INSTALLED)
    return tuple(folder + os.sep for folder in installed if os.path.realpath(folder) != os.path.realpath(own))


def codes(code: CodeType) -> Iterator[CodeType]:
    """A function's code, and that of the functions that it makes."""
    yield code
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from codes(inner)
