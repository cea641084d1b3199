"""What the project's files import and declare, by their syntax trees; a path is relative to the project's folder."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]


@cache
def imports_of(tree: ast.Module, *, module_level: bool = False) -> tuple[str, ...]:
    """Dotted names of what is imported; ``from a import b`` counts as ``a.b``, relative ones begin with a dot."""
    found: list[str] = []
    for node in at_module_level(tree) if module_level else statements_of(tree):
        if isinstance(node, ast.Import):
            found += (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            start = "." * node.level + (f"{node.module}." if node.module else "")
            found += (f"{start}{alias.name}" for alias in node.names)
    return tuple(found)


def statements_of(tree: ast.Module) -> Iterator[ast.AST]:
    """Every statement, and every clause of one. Expressions, most of a tree, hold none."""
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        yield node
        for name in ("body", "orelse", "finalbody", "handlers", "cases"):
            waiting += getattr(node, name, ())


def at_module_level(tree: ast.Module) -> Iterator[ast.AST]:
    """Whatever runs when the module is imported: also in ``if`` and ``try``, but in no function."""
    waiting: list[ast.AST] = list(tree.body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)) or _for_types_only(node):
            continue
        yield node
        waiting.extend(ast.iter_child_nodes(node))


def _for_types_only(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


@cache
def tree_of(path: str) -> ast.Module:
    """The syntax tree of a file."""
    return ast.parse((ROOT / path).read_text(encoding="utf-8"))


def module_of(path: str) -> str:
    """The dotted name of a file's module."""
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def absolute_name(path: str, name: str) -> str:
    """A relative import's full name."""
    level = len(name) - len(name.lstrip("."))
    if not level:
        return name
    parts = path.removesuffix(".py").split("/")
    return ".".join([*parts[: len(parts) - level], name.lstrip(".")])
