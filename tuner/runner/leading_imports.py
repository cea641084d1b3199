"""What a script imports before it does anything else: that alone may be loaded before the script runs."""

from __future__ import annotations

import ast
import sys
from collections.abc import Collection, Iterable

Import = tuple[int, str, tuple[str, ...]]
"""The line, a module's full name, and the names that are taken from it: none where it is imported itself."""

PRELOADABLE = frozenset({
    "numpy", "scipy", "sklearn", "torch", "tensorflow", "keras", "jax", "absl", "PIL", "tqdm", "yaml",
})  # fmt: skip
"""Packages that may be loaded before, beside the standard library. ``tests/differential/test_forked_world.py`` tries
them: what is patched, and which modules have taken it from where, is then as in a fresh process.

TensorFlow and JAX start threads with their first operation, and none at their import: those that are there then are
OpenBLAS's, of NumPy, SciPy and OpenCV, which puts them away at a fork. Others are left out: trackers read variables of
the environment that differ from trial to trial, and of a library that nobody tried no one knows what it keeps of a
function that is to be replaced. Optax has JAX compile one as it is imported, by what a fresh process has replaced then.
"""
_MAKES_OTHERS = "jax.experimental.sparse"
"""It makes methods of functions that hooks replace, as it is imported: a fork would have those of the originals."""
_WITH_EFFECTS = frozenset({"antigravity", "this", "__main__", "idlelib", "turtledemo"})


def leading_imports(source: str) -> tuple[Import, ...]:
    """The imports that the source begins with, in their order; comments, a docstring and ``__future__`` go before.

    It ends before anything else: an assignment may set a variable that a library reads when it is loaded. And before
    an import of what isn't ``PRELOADABLE``: what comes behind it would be loaded in another order. Empty where the
    source is none of Python's.
    """
    try:
        body = ast.parse(source).body
    except (SyntaxError, ValueError):
        return ()
    if body and isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant):
        del body[0]
    found: list[Import] = []
    for statement in body:
        if isinstance(statement, ast.Import):
            imports: list[Import] = [(statement.lineno, alias.name, ()) for alias in statement.names]
        elif isinstance(statement, ast.ImportFrom) and not statement.level and statement.module:
            imports = [(statement.lineno, statement.module, tuple(alias.name for alias in statement.names))]
        else:
            break
        may = [_may_be_loaded(name, taken) for _, name, taken in imports]
        found += imports[: may.index(False)] if False in may else imports
        if False in may:
            break
    return tuple(entry for entry in found if entry[1] != "__future__")


def imports_only_what_is_known(source: str, own: Collection[str]) -> bool:
    """Whether all that the source imports, anywhere, may be loaded before it, or is one of the user's ``own`` modules.

    False where it is none of Python's.
    """
    try:
        nodes = list(ast.walk(ast.parse(source)))
    except (SyntaxError, ValueError):
        return False
    names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    names += [str(node.module) for node in nodes if isinstance(node, ast.ImportFrom) and not node.level]
    return all(name.partition(".")[0] in own or _is_known(name) for name in names)


def _may_be_loaded(name: str, taken: Iterable[str]) -> bool:
    modules = name, *(f"{name}.{each}" for each in taken)
    makes_others = any(f"{module}.".startswith(f"{_MAKES_OTHERS}.") for module in modules)
    return _is_known(name) and "*" not in taken and not makes_others


def _is_known(name: str) -> bool:
    package = name.partition(".")[0]
    return package in PRELOADABLE or (package in sys.stdlib_module_names and package not in _WITH_EFFECTS)
