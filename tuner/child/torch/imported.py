"""What a process that imports the script again has of it: the variables that the code of its data reads, and how.

A fork has them as they are. Who imports has them as the import leaves them: nothing of what the training has set since.
What isn't seen to be the same counts as set. Files are read, nothing of them is run.
"""

from __future__ import annotations

import ast
import linecache
import logging
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from types import BuiltinFunctionType, FunctionType, ModuleType

from ..call_sites import is_library
from ..data_state import UNCHANGING, values
from ..taken import taken_of
from .copies import READING, beside
from .reached import IGNORED, functions, variables_in

_CHANGING = (
    "update", "append", "extend", "insert", "add", "pop", "remove", "clear", "set", "merge", "parse", "load",
    "register", "freeze", "lock", "init",
)  # fmt: skip
"""Beginnings of the names of methods that change what they belong to."""
_SEEDED = ("default_rng", "RandomState", "Random", "PRNGKey", "key")
_DRAWN = ("random", "rand", "randn", "randint", "randperm", "time", "perf_counter", "now", "uuid4", "urandom", "getpid")
_UNCHANGING = (*UNCHANGING, tuple, FunctionType, BuiltinFunctionType, logging.Logger)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def set_since(data: Mapping[str, object], methods: Sequence[str] = READING, *, sent: str = "") -> str:
    """A variable that the code by which these data are read names, and that an import may leave otherwise; "".

    ``methods``: those by which they are read. ``sent``: a module whose code isn't imported, but sent with all it names.
    """
    script = sys.modules.get("__main__")
    held = vars(script) if script is not None else {}
    for name in sorted(_looked_into(str(held.get("__file__", ""))).holders):
        value = held.get(name)
        home = value if isinstance(value, ModuleType) else sys.modules.get(getattr(value, "__module__", None) or "")
        file = getattr(home, "__file__", None)
        if isinstance(value, (type, ModuleType)) and file and not is_library(file):
            return f"what {name} holds"
    known = [value for _, value, _ in values({**data, **beside(data)})]
    read = (each for each, _ in functions(known, methods, variables_in) if each.__module__ != sent)
    return next((name for function in read for name in _set_of(function)), "")


def _is_changed_elsewhere(value: object) -> bool:
    """Whether a module of the script's that holds this very object, by whatever name, sets parts of it after an import,
    or may by a method; or the script itself does, which took it within a function (``from settings import OPTIONS``).
    """
    if isinstance(value, _UNCHANGING) or (isinstance(value, ModuleType) and not _own_file(value)):
        return False
    script = sys.modules.get("__main__")
    for module in list(sys.modules.values()):
        held = _variables(module)
        if not (file := _own_file(module)):
            continue
        names = {name for name, each in list(held.items()) if each is value}
        if not (names or module is script):
            continue
        looked = _looked_into(file)
        taken = {name for name, (home, own) in looked.imported.items()
                 if name not in held and _variables(sys.modules.get(home)).get(own) is value}  # fmt: skip
        if not (looked.holders | looked.changed).isdisjoint(names | taken):
            return True
    return False


def _own_file(module: object) -> str:
    """The file of a module of the script's; "" of any other."""
    file = _variables(module).get("__file__")
    return file if isinstance(file, str) and not is_library(file) else ""


def _variables(module: object) -> Mapping[str, object]:
    """Of a module, which isn't asked itself: a lazy one may import what it is asked for, for seconds, or fail."""
    return getattr(module, "__dict__", {})


def is_made_again(value: type | FunctionType) -> bool:
    """Whether a class or function has its place still where the script is imported."""
    script = sys.modules.get("__main__")
    if value.__module__ != "__main__" or not hasattr(script, "__file__"):
        return True
    module, name = _looked_into(str(vars(script)["__file__"])), value.__qualname__.partition(".")[0]
    return name in module.written and name not in module.again


def _set_of(function: FunctionType) -> Iterator[str]:
    file = function.__code__.co_filename
    if is_library(file):
        return
    module, held = _looked_into(file), function.__globals__
    for name in variables_in(function.__code__):
        value = held.get(name)
        if name not in held or isinstance(value, FunctionType):
            continue
        if isinstance(value, ModuleType):
            is_left = not _sets_itself(value, taken_of(name, function.__code__))
        else:
            is_left = isinstance(value, IGNORED) or module.leaves(name, value)
        if not is_left or _is_changed_elsewhere(value):
            yield name


def _sets_itself(module: ModuleType, taken: Collection[str] | None) -> bool:
    """Whether a module of the script's sets a variable that is ``taken`` of it, or a part of that, after its import."""
    looked = _looked_into(_own_file(module))
    later = looked.again | looked.holders | looked.changed
    return bool(later if taken is None else later.intersection(taken))


@dataclass
class _Module:
    """``written``: variable → what it is set to as the file is imported, more than once maybe. ``again``: those that
    are set elsewhere, too. ``holders``: those of which an attribute or an item is. ``changed``: those that may be by a
    method. ``imported``: name, in a function too → the module that it is taken from, and its name there.
    """

    written: dict[str, list[ast.expr | None]] = field(default_factory=dict)
    again: set[str] = field(default_factory=set)
    holders: set[str] = field(default_factory=set)
    changed: set[str] = field(default_factory=set)
    imported: dict[str, tuple[str, str]] = field(default_factory=dict)

    def leaves(self, name: str, value: object) -> bool:
        """Whether an import leaves the variable with this value."""
        written = self.written.get(name, [])
        if isinstance(value, logging.Logger):
            return True  # what it prints is no data
        if not written or name in self.again or type(value).__name__ == "FlagValues":  # absl's, which the script parses
            return False
        told = [] if None in written else [_literal(each) for each in written if each is not None]
        if told and None not in told:
            return any(each is not None and _is_same(each[0], value) for each in told)
        drawn = any(each is not None and _is_drawn(each) for each in written)
        return not drawn and name not in self.holders | self.changed


def _literal(node: ast.expr) -> tuple[object] | None:
    try:
        return (ast.literal_eval(node),)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return None


def _is_same(written: object, value: object) -> bool:
    return type(written) is type(value) and repr(written) == repr(value)


def _is_drawn(node: ast.expr) -> bool:
    """Whether it may be another one with each import: drawn by what nobody has given a seed there, or a time."""
    names = {getattr(each, "id", None) or getattr(each, "attr", None) for each in ast.walk(node)}
    seeded = any(
        isinstance(each, ast.Call) and each.args and getattr(each.func, "attr", getattr(each.func, "id", "")) in _SEEDED
        for each in ast.walk(node)
    )
    return not seeded and not names.isdisjoint(_DRAWN)


def parsed(file: str) -> ast.Module:
    """The code of a file; an empty one where it can't be read."""
    try:
        return ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError):
        return ast.Module([], [])


@cache
def _looked_into(file: str) -> _Module:
    """What a file sets; nothing where it can't be read."""
    found, tree = _Module(), parsed(file)
    _import(found, tree.body)
    for node in ast.walk(tree):
        if isinstance(node, _FUNCTIONS):
            _look_into(found, ast.walk(node))
        elif isinstance(node, ast.Global):
            found.again.update(node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.imported |= {each.asname or each.name: (node.module, each.name) for each in node.names}
    return found


def _import(found: _Module, body: Sequence[ast.stmt]) -> None:
    for node in body:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            for each in node.names:
                found.written.setdefault(each.asname or each.name.partition(".")[0], []).append(None)
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                told = node.value if isinstance(target, ast.Name) else None
                for name in _stored([target]):
                    found.written.setdefault(name, []).append(told)
        elif isinstance(node, ast.If) and is_guard(node):
            inner = list(_outside_functions(node.body))
            found.again.update(_stored(inner))
            _look_into(found, inner)
            _import(found, node.orelse)
        elif isinstance(node, (*_FUNCTIONS, ast.ClassDef)):
            found.written.setdefault(node.name, []).append(None)
        elif isinstance(node, (ast.If, ast.Try, ast.With, ast.For, ast.While)):
            for name in _stored(_outside_functions([node])):
                found.written.setdefault(name, []).append(None)


def _outside_functions(nodes: Iterable[ast.AST]) -> Iterator[ast.AST]:
    for node in nodes:
        yield node
        if not isinstance(node, (*_FUNCTIONS, ast.ClassDef)):
            yield from _outside_functions(ast.iter_child_nodes(node))


def _stored(nodes: Iterable[ast.AST]) -> Iterator[str]:
    for top in nodes:
        for node in ast.walk(top) if isinstance(top, ast.expr) else [top]:
            if isinstance(node, ast.Name) and isinstance(node.ctx, (ast.Store, ast.Del)):
                yield node.id
            elif isinstance(node, (ast.Import, ast.ImportFrom)):
                yield from (each.asname or each.name.partition(".")[0] for each in node.names)
            elif isinstance(node, (*_FUNCTIONS, ast.ClassDef)):
                yield node.name


def _look_into(found: _Module, nodes: Iterable[ast.AST]) -> None:
    """Of what runs after the import: whose parts it sets, or may by a method."""
    for node in nodes:
        if isinstance(node, (ast.Attribute, ast.Subscript)) and isinstance(node.ctx, (ast.Store, ast.Del)):
            found.holders.update(_root(node.value))
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("setattr", "delattr"):
            found.holders.update(*map(_root, node.args[:1]))
        elif isinstance(node, ast.Call) and _method(node).startswith(_CHANGING):
            found.changed.update(_root(node.func))


def _method(call: ast.Call) -> str:
    return call.func.attr.lstrip("_") if isinstance(call.func, ast.Attribute) else ""


def _root(node: ast.expr) -> list[str]:
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        node = node.value
    return [node.id] if isinstance(node, ast.Name) else []


def is_guard(node: ast.If) -> bool:
    """Whether its body is run in the script alone, and not where that is imported."""
    if not isinstance(node.test, ast.Compare):
        return False
    sides = (node.test.left, *node.test.comparators)
    names = {side.id for side in sides if isinstance(side, ast.Name)}
    words = {side.value for side in sides if isinstance(side, ast.Constant)}
    return isinstance(node.test.ops[0], ast.Eq) and names == {"__name__"} and words == {"__main__"}
