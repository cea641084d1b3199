"""Whether the script goes on behind an error in a block: what handlers, and context managers of a ``with``, do then.

A context manager stops an error where its ``__exit__`` gives something true, or, made of a generator, where that
catches it. The script's own are read. Those of libraries let errors pass, but for some that are there to stop them.
What isn't found without running anything of the script's counts as one that may stop them.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import inspect
import re
import sys
import textwrap
from collections.abc import Collection, Iterator, Mapping
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any

from ..call_sites import is_library

WITHIN = (ast.Try, ast.TryStar, ast.With, ast.AsyncWith)
"""Blocks that may go on behind an error."""
_LEAVING = (ast.Return, ast.Break, ast.Continue)
_STOPPING = re.compile(r"suppress|ExitStack|raises|assert|ignor|swallow|catch_exc|move_on", re.IGNORECASE)
"""In the names of what a library has to stop errors."""
_UNKNOWN = object()
_DEEPEST = 4


class Blocks:
    """Those around a place in a function, or in a module. ``code``, ``names``: its code, and what is global to it.

    ``scope``: its source, None for a module. ``depth``: so many context managers, each made of the next, led here.
    """

    def __init__(self, code: CodeType, names: Mapping[str, Any], scope: ast.AST | None, depth: int = 0) -> None:
        self._own = frozenset((*code.co_varnames, *code.co_cellvars, *code.co_freevars))
        self._names = names
        self._scope = scope
        self._depth = depth

    def end(self, block: ast.AST, names: Collection[str]) -> bool:
        """Whether an error in this one ends the function, or the script, and none of these names is read on the way."""
        if isinstance(block, ast.With | ast.AsyncWith):
            return all(self._lets_pass(each.context_expr) for each in block.items)
        assert isinstance(block, ast.Try | ast.TryStar)
        if not all(_raises(handler.body[-1]) for handler in block.handlers):
            return False
        behind = [*block.finalbody, *(each for handler in block.handlers for each in handler.body)]
        nodes = [node for each in behind for node in ast.walk(each)]
        read = {node.id for node in nodes if isinstance(node, ast.Name)}
        return read.isdisjoint(names) and not any(isinstance(node, _LEAVING) for node in nodes)

    def _lets_pass(self, expression: ast.expr) -> bool:
        maker = self._maker(expression)
        if maker is not _UNKNOWN:
            return self._makes_what_lets_pass(maker)
        value = self._value(expression)
        return value is not _UNKNOWN and _class_lets_pass(type(value))

    # what an expression means

    def _value(self, expression: ast.expr) -> Any:
        """The very object, where a global name leads to it; of a method of what a class has made the function."""
        if isinstance(expression, ast.Name) and expression.id not in self._own:
            return self._names.get(expression.id, getattr(builtins, expression.id, _UNKNOWN))
        if not isinstance(expression, ast.Attribute):
            return _UNKNOWN
        owner = self._value(expression.value)
        if isinstance(owner, ModuleType | type):
            return getattr(owner, expression.attr, _UNKNOWN)
        kind = self._maker(expression.value) if owner is _UNKNOWN else type(owner)
        found = inspect.getattr_static(kind, expression.attr, _UNKNOWN) if isinstance(kind, type) else _UNKNOWN
        return found if isinstance(found, FunctionType) else _UNKNOWN

    def _maker(self, expression: ast.expr) -> Any:
        """What is called to make it, here or where a variable of the function gets its one value."""
        if isinstance(expression, ast.Call):
            return self._value(expression.func)
        if not isinstance(expression, ast.Name) or expression.id not in self._own or self._scope is None:
            return _UNKNOWN
        nodes = list(ast.walk(self._scope))
        of = [node for node in nodes if isinstance(node, ast.Name) and node.id == expression.id]
        stores = [node for node in of if isinstance(node.ctx, ast.Store)]
        is_given = any(isinstance(node, ast.arg) and node.arg == expression.id for node in nodes)
        values = [
            node.value for node in nodes
            if isinstance(node, ast.Assign) and len(node.targets) == 1 and node.targets[0] in stores
        ]  # fmt: skip
        if is_given or len(stores) != 1 or len(values) != 1 or not isinstance(values[0], ast.Call):
            return _UNKNOWN
        return self._value(values[0].func)

    # what a call gives

    def _makes_what_lets_pass(self, maker: Any) -> bool:
        if isinstance(maker, type):
            return _class_lets_pass(maker)
        if isinstance(maker, BuiltinFunctionType):
            return True
        if not isinstance(maker, FunctionType):
            return _is_librarys(type(maker)) and not _STOPPING.search(type(maker).__qualname__)
        made_of: Any = inspect.unwrap(maker)
        code = getattr(made_of, "__code__", None)
        if code is None or _STOPPING.search(made_of.__qualname__) or not is_library(maker.__code__.co_filename):
            return False
        if is_library(code.co_filename):
            return True
        is_generator = maker.__code__.co_filename == contextlib.contextmanager.__code__.co_filename
        return is_generator and self._generator_lets_pass(made_of)

    def _generator_lets_pass(self, made_of: FunctionType) -> bool:
        tree = _source_of(made_of)
        if tree is None or self._depth >= _DEEPEST:
            return False
        blocks = Blocks(made_of.__code__, made_of.__globals__, tree, self._depth + 1)
        return all(blocks.end(block, ()) for block in _around_yields(tree))


def _raises(last: ast.stmt) -> bool:
    """Whether a handler that ends so ends what it is in: ``raise``, ``sys.exit()``."""
    if isinstance(last, ast.Expr) and isinstance(last.value, ast.Call):
        return ast.unparse(last.value.func) == "sys.exit"
    return isinstance(last, ast.Raise)


def _around_yields(tree: ast.AST) -> Iterator[ast.AST]:
    """Blocks of a generator in which it waits for what is done in the ``with``."""
    for node in ast.walk(tree):
        if isinstance(node, WITHIN) and any(isinstance(each, ast.Yield | ast.YieldFrom) for each in ast.walk(node)):
            yield node


def _class_lets_pass(kind: type) -> bool:
    """Whether what this class makes lets errors pass."""
    for name in ("__exit__", "__aexit__"):
        owner = next((each for each in kind.__mro__ if name in vars(each)), None)
        if owner is None:
            continue
        if _is_librarys(owner):
            if _STOPPING.search(owner.__qualname__) or owner.__qualname__ == "_GeneratorContextManager":
                return False
        elif not _gives_nothing(vars(owner)[name]):
            return False
    return True


def _is_librarys(kind: type) -> bool:
    file = getattr(sys.modules.get(kind.__module__), "__file__", None)
    return kind.__module__ != "__main__" and (file is None or is_library(file))


def _gives_nothing(function: Any) -> bool:
    """Whether a method of the script's gives None or False, however it ends."""
    tree = _source_of(function) if isinstance(function, FunctionType) else None
    if tree is None:
        return False
    given = [node.value for node in ast.walk(tree) if isinstance(node, ast.Return) and node.value is not None]
    return all(isinstance(value, ast.Constant) and value.value in (None, False) for value in given)


def _source_of(function: FunctionType) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError, ValueError):
        return None
    first = tree.body[0]
    return first if isinstance(first, ast.FunctionDef | ast.AsyncFunctionDef) else None
