"""Which arguments of a call are variables that its own statement gives new values: nothing reads the old ones again.

``params, loss = step(params, batch)`` is such a call. Which statement a frame is at is told by its bytecode, and what
that says by its source, which has to be what the bytecode was compiled from. A variable counts where nobody else can
read it meanwhile: one of a function that no function within it names, or one of a module that none of its functions
names; and where an error in the call ends what could.
"""

from __future__ import annotations

import ast
import symtable
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from importlib.util import decode_source
from itertools import islice
from types import CodeType, FrameType
from typing import Any

from ..call_sites import codes
from .blocks import WITHIN, Blocks

UNREADABLE = "the source of the call of the training step can't be read"
OTHER_STATEMENT = "the training step isn't called by a statement that gives the variables it is given new values"
CAUGHT = "an error in the training step is caught where what it was given can still be read"
READ_ELSEWHERE = "a function of the script reads {}, which the training step gives a new value"
_RUN_WHERE_THEY_STAND = frozenset({"listcomp", "setcomp", "dictcomp", "genexpr"})
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)

Span = tuple[int, int, int, int]
"""First and last line, first and last column in bytes."""
Source = tuple[ast.Module, symtable.SymbolTable]


@dataclass(frozen=True)
class Rebinding:
    """What a statement says of its call.

    ``given``, ``keywords``: the arguments, by position and by name. ``numbers``, ``names``: those of them that are
    variables with new values behind it. ``is_local``: these are a function's. ``why``: why there are none.
    """

    given: int = 0
    keywords: frozenset[str] = frozenset()
    numbers: frozenset[int] = frozenset()
    names: frozenset[str] = frozenset()
    is_local: bool = False
    why: str = ""

    @property
    def holds_any(self) -> bool:
        """Whether there are such arguments."""
        return bool(self.numbers or self.names)


@dataclass(frozen=True)
class _Statement:
    """``within``: blocks around it in its scope, which may go on after an error; ``scope``: None of a module."""

    assign: ast.Assign
    call: ast.Call
    within: tuple[ast.AST, ...] = ()
    scope: ast.AST | None = None


class Rebindings:
    """Those of each call, found once."""

    def __init__(self) -> None:
        self._found: dict[tuple[int, int], Rebinding] = {}
        self._sources: dict[int, tuple[CodeType, Source | None]] = {}

    def at(self, frame: FrameType) -> Rebinding:
        """That of the call which the frame is at."""
        key = id(frame.f_code), frame.f_lasti
        if key not in self._found:
            self._found[key] = self._look(frame.f_code, frame.f_lasti, frame.f_globals)
        return self._found[key]

    def _look(self, code: CodeType, offset: int, names: Mapping[str, Any]) -> Rebinding:
        if id(code) not in self._sources:
            self._sources[id(code)] = code, source_of(code)  # the code is kept, and so its identity
        source, span = self._sources[id(code)][1], span_of(code, offset)
        if source is None or span is None:
            return Rebinding(why=UNREADABLE)
        module, table = source
        statement = next((each for each in _statements(module) if span_at(each.call) == span), None)
        if statement is None:
            return Rebinding(why=OTHER_STATEMENT)
        return _rebinding(statement, table, Blocks(code, names, statement.scope))


def _rebinding(statement: _Statement, table: symtable.SymbolTable, blocks: Blocks) -> Rebinding:
    call, is_local = statement.call, isinstance(statement.scope, ast.FunctionDef | ast.AsyncFunctionDef)
    plain = Rebinding(len(call.args), frozenset(each.arg or "" for each in call.keywords), is_local=is_local)
    is_spread = "" in plain.keywords or any(isinstance(each, ast.Starred) for each in call.args)
    is_other = isinstance(call.func, ast.Attribute) and call.func.attr == "__call__"
    if is_spread or is_other or isinstance(statement.scope, ast.ClassDef):
        return replace(plain, why=OTHER_STATEMENT)
    stored = _named(statement.assign.targets, ast.Store) - _named(statement.assign.targets, ast.Load)
    used = [node.id for node in ast.walk(call) if isinstance(node, ast.Name)]
    numbers = {n: each.id for n, each in enumerate(call.args) if isinstance(each, ast.Name)}
    names = {each.arg or "": each.value.id for each in call.keywords if isinstance(each.value, ast.Name)}
    wanted = {name for name in (*numbers.values(), *names.values()) if name in stored and used.count(name) == 1}
    if not wanted:
        return replace(plain, why=OTHER_STATEMENT)
    if not all(blocks.end(block, wanted) for block in statement.within):
        return replace(plain, why=CAUGHT)
    own = table_of(statement.scope, table)
    alone = {name for name in wanted if own is not None and _is_own(own, name) and not is_read_in(own, name)}
    if not alone:
        return replace(plain, why=READ_ELSEWHERE.format(min(wanted)))
    return replace(
        plain,
        numbers=frozenset(n for n, name in numbers.items() if name in alone),
        names=frozenset(keyword for keyword, name in names.items() if name in alone),
    )


def _named(nodes: Collection[ast.AST], context: type[ast.expr_context]) -> set[str]:
    """Names that are stored to, or read, in these."""
    found = (node for each in nodes for node in ast.walk(each) if isinstance(node, ast.Name))
    return {node.id for node in found if isinstance(node.ctx, context)}


def table_of(scope: ast.AST | None, module: symtable.SymbolTable) -> symtable.SymbolTable | None:
    """That of a function, or of the module itself."""
    if scope is None:
        return module
    waiting = [module]
    while waiting:
        table = waiting.pop()
        place = table.get_lineno(), table.get_name()
        if table.get_type() == "function" and place == (getattr(scope, "lineno", 0), getattr(scope, "name", "")):
            return table
        waiting += table.get_children()
    return None


def _is_own(table: symtable.SymbolTable, name: str) -> bool:
    """Whether it is a variable of this scope, and of none around it."""
    return table.get_type() == "module" or table.lookup(name).is_local()


def is_read_in(table: symtable.SymbolTable, name: str) -> bool:
    """Whether a function or a class within this scope means its variable by that name.

    But what is run where it stands: that ends before the variable gets its new value, or begins behind it.
    """
    for inner in table.get_children():
        symbol = inner.lookup(name) if name in inner.get_identifiers() else None
        is_hidden = symbol is not None and symbol.is_local()
        if symbol is not None and not is_hidden and inner.get_name() not in _RUN_WHERE_THEY_STAND:
            return True
        if (not is_hidden or inner.get_type() == "class") and is_read_in(inner, name):
            return True
    return False


def _statements(module: ast.Module) -> Iterator[_Statement]:
    """Those that assign what a call gives to one target."""
    waiting: list[tuple[ast.AST, tuple[ast.AST, ...], ast.AST | None]] = [(module, (), None)]
    while waiting:
        node, within, scope = waiting.pop()
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Assign) and isinstance(child.value, ast.Call) and len(child.targets) == 1:
                yield _Statement(child, child.value, within, scope)
            elif isinstance(child, _SCOPES):
                waiting.append((child, (), child))
            elif not isinstance(child, ast.expr):
                waiting.append((child, (*within, child) if isinstance(child, WITHIN) else within, scope))


def span_at(node: ast.expr | ast.stmt) -> Span:
    """Of a part of the source."""
    return node.lineno, node.end_lineno or node.lineno, node.col_offset, node.end_col_offset or 0


def span_of(code: CodeType, offset: int) -> Span | None:
    """Of what the instruction is a part of; None where Python was told to keep no columns."""
    line, end, column, end_column = next(islice(code.co_positions(), offset // 2, None), (None,) * 4)
    if line is None or end is None or column is None or end_column is None:
        return None
    return line, end, column, end_column


def source_of(code: CodeType) -> Source | None:
    """The module that the code was compiled from; None where its file can't be read, or isn't that any more."""
    try:
        with open(code.co_filename, "rb") as file:
            source = decode_source(file.read())
        compiled = compile(source, code.co_filename, "exec", dont_inherit=True)
        if not any(each == code and each.co_linetable == code.co_linetable for each in codes(compiled)):
            return None
        return ast.parse(source, code.co_filename), symtable.symtable(source, code.co_filename, "exec")
    except (OSError, SyntaxError, ValueError, RecursionError):
        return None
