"""Whether what an iteration gives goes straight from there into functions that the script compiles, and nowhere else.

``for batch in loader: params, loss = step(params, batch["x"])`` is such an iteration: a compiled function takes an
array of JAX's for one of NumPy's, and gives the same. Which statement a frame is at is told as in ``rebinding``. What
isn't seen to be so, isn't.
"""

from __future__ import annotations

import ast
import dis
import inspect
import symtable
from collections.abc import Iterator, Mapping
from types import CodeType, FrameType
from typing import Any

from .functions import Jitted, Making
from .rebinding import UNREADABLE, Source, is_read_in, source_of, span_at, span_of, table_of

OTHER_LOOP = "no for loop of the script's, nor next(), takes its batches as they are given"
ELSEWHERE = "the script does more with {} than to give it to functions that it compiles"
OTHER_CALL = "the script gives {} to {}, which it hasn't compiled by jax.jit"
CHANGES = "the script gives {} to {}, which a loop gives another value"
DONATED = "the script donates {} to {}"
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
_HARMLESS = frozenset({"shape", "ndim", "size"})
"""What an array of JAX's says of itself as one of NumPy's does."""
_LOOKING = frozenset({"locals", "globals", "vars", "eval", "exec"})
"""Names by which a script reaches variables that it doesn't name."""
Parents = Mapping[ast.AST, ast.AST]


class Straight:
    """Of each place that iterates; its source is read once."""

    def __init__(self) -> None:
        self._sources: dict[int, tuple[CodeType, Source | None, Parents]] = {}

    def why_not(self, frame: FrameType) -> str:
        """Of the iteration that the frame begins now: why its batches may go elsewhere; "" where none does."""
        code = frame.f_code
        if id(code) not in self._sources:
            source = source_of(code)
            parents = _parents_in(source[0]) if source is not None else {}
            self._sources[id(code)] = code, source, parents  # the code is kept, and so its identity
        _, source, parents = self._sources[id(code)]
        span = span_of(code, frame.f_lasti)
        if source is None or span is None:
            return UNREADABLE
        begins = dis.opname[code.co_code[frame.f_lasti]] == "GET_ITER"
        received = next((node for node in ast.walk(source[0]) if _is_at(node, span, begins)), None)
        if received is None:
            return OTHER_LOOP
        return _Look(frame, source, parents, received).why_not(begins)


class _Look:
    """One look at one iteration."""

    def __init__(self, frame: FrameType, source: Source, parents: Parents, at: ast.AST) -> None:
        self._frame = frame
        self._parents = parents
        self._at = at
        scope = next((each for each in self._around(at) if isinstance(each, _SCOPES)), None)
        self._table = table_of(scope, source[1])
        self._within = source[0] if scope is None else scope
        self._is_plain = not isinstance(scope, ast.Lambda | ast.ClassDef)

    def why_not(self, begins: bool) -> str:
        """As ``Straight`` has it. ``begins``: whether a loop begins here, and no call gets the iterator."""
        at, target = self._at, None
        if not self._is_plain or self._table is None or _LOOKING & {each.id for each in self._names()}:
            return OTHER_LOOP
        if isinstance(at, ast.For):
            target = at.target if begins else _part_of(at)
        elif isinstance(assign := self._parents[at], ast.Assign):
            return self._why_not_next(assign)
        return self._why_not_target(target)

    def _why_not_next(self, assign: ast.Assign) -> str:
        """Of an iterator that is kept in a variable, which nothing but ``next`` is given."""
        names = _names_of(assign.targets[0]) if len(assign.targets) == 1 else []
        if len(names) != 1 or self._is_shared(names[0]):
            return OTHER_LOOP
        of = [each for each in self._names() if each.id == names[0]]
        if sum(isinstance(each.ctx, ast.Store) for each in of) != 1:
            return OTHER_LOOP
        for each in (each for each in of if isinstance(each.ctx, ast.Load)):
            call = self._parents[each]
            if not (isinstance(call, ast.Call) and _is_called(call, "next") and call.args == [each]):
                return OTHER_LOOP
            behind = self._parents[call]
            kept = behind.targets if isinstance(behind, ast.Assign) else []
            why = self._why_not_target(kept[0]) if len(kept) == 1 else self._why_elsewhere(call, "a batch")
            if why:
                return why
        return ""

    def _why_not_target(self, target: ast.expr | None) -> str:
        """Of what each batch is assigned to."""
        names = _names_of(target) if target is not None else []
        if not names:
            return OTHER_LOOP
        for name in names:
            if self._is_shared(name):
                return ELSEWHERE.format(name)
            for each in self._names():
                is_added_to = isinstance(self._parents[each], ast.AugAssign) and isinstance(each.ctx, ast.Store)
                if each.id == name and (isinstance(each.ctx, ast.Load) or is_added_to):
                    why = ELSEWHERE.format(name) if is_added_to else self._why_elsewhere(each, name)
                    if why:
                        return why
        return ""

    def _why_elsewhere(self, node: ast.expr, name: str) -> str:
        """Where this expression goes, if that isn't a compiled function."""
        given: ast.AST = node
        while True:
            parent = self._parents[given]
            is_part = isinstance(parent, ast.Subscript) and parent.value is given and _is_constant(parent.slice)
            is_held = isinstance(parent, ast.Tuple | ast.List | ast.Dict | ast.keyword | ast.Starred)
            if isinstance(parent, ast.Attribute) and parent.attr in _HARMLESS and isinstance(parent.ctx, ast.Load):
                return ""
            if isinstance(parent, ast.Call) and parent.func is not given:
                return self._why_other_call(parent, given, name)
            if not (is_part or is_held) or not isinstance(getattr(parent, "ctx", ast.Load()), ast.Load):
                return ELSEWHERE.format(name)
            given = parent

    def _why_other_call(self, call: ast.Call, given: ast.AST, name: str) -> str:
        if _is_called(call, "len") and "len" not in self._frame.f_globals:
            return ""
        called, text = self._value(call.func), ast.unparse(call.func)
        making = called._autotune[3] if isinstance(called, Jitted) else None
        if not isinstance(making, Making):
            return OTHER_CALL.format(name, text)
        if self._may_change(call.func):
            return CHANGES.format(name, text)
        numbers = making.options.get("donate_argnums")
        is_first_spread = any(isinstance(each, ast.Starred) for each in call.args)
        donated = (numbers,) if isinstance(numbers, int) else tuple(numbers or ())
        is_method = isinstance(call.func, ast.Attribute)  # whose first argument isn't in the call
        place = call.args.index(given) if given in call.args and not (is_first_spread or is_method) else None
        may_be = bool(donated) and (place is None or place in donated or min(donated) < 0)
        if making.options.get("donate_argnames") or may_be:
            return DONATED.format(name, text)
        return ""

    def _may_change(self, called: ast.expr) -> bool:
        """Whether a loop of this scope gives another value to what is called."""
        loops, of_it = (ast.For, ast.While), {ast.unparse(called)}
        while isinstance(called, ast.Attribute):
            called = called.value
            of_it.add(ast.unparse(called))
        for node in ast.walk(self._within):
            is_stored = isinstance(getattr(node, "ctx", None), ast.Store) and isinstance(node, ast.Name | ast.Attribute)
            is_of_it = is_stored and ast.unparse(node) in of_it
            if is_of_it and any(isinstance(each, loops) for each in self._around(node)):
                return True
        return False

    def _value(self, expression: ast.expr) -> Any:
        """The very object that an expression names now; None where that would run anything of the script's."""
        if isinstance(expression, ast.Name):
            held = self._frame.f_locals
            return held[expression.id] if expression.id in held else self._frame.f_globals.get(expression.id)
        if isinstance(expression, ast.Attribute):
            return inspect.getattr_static(self._value(expression.value), expression.attr, None)
        return None

    # names

    def _names(self) -> Iterator[ast.Name]:
        """Those of the scope itself: what functions within it read, ``_is_shared`` asks."""
        waiting: list[ast.AST] = list(ast.iter_child_nodes(self._within))
        while waiting:
            node = waiting.pop()
            if isinstance(node, ast.Name):
                yield node
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
                waiting += [*node.args.defaults, *filter(None, node.args.kw_defaults)]
                waiting += [] if isinstance(node, ast.Lambda) else node.decorator_list
            elif isinstance(node, ast.ClassDef):
                waiting += [*node.decorator_list, *node.bases, *node.keywords]
            else:
                waiting += ast.iter_child_nodes(node)

    def _is_shared(self, name: str) -> bool:
        """Whether other functions may read that variable."""
        table = self._table
        if table is None or is_read_in(table, name):
            return True
        return table.get_type() != "module" and not _is_local(table, name)

    def _around(self, node: ast.AST) -> Iterator[ast.AST]:
        while node in self._parents:
            node = self._parents[node]
            yield node


def _is_at(node: ast.AST, span: object, begins: bool) -> bool:
    """Whether a node iterates there: a loop, what a loop is over, or a call of ``iter``."""
    if isinstance(node, ast.For):
        return span == span_at(node.iter) or (begins and span == span_at(node))
    return isinstance(node, ast.Call) and _is_called(node, "iter") and span == span_at(node)


def _part_of(loop: ast.For) -> ast.expr | None:
    """Of a loop over ``enumerate``, or ``zip`` with numbers, what each batch is assigned to."""
    over, target = loop.iter, loop.target
    if not isinstance(over, ast.Call) or not isinstance(target, ast.Tuple):
        return None
    if _is_called(over, "enumerate") and len(target.elts) == 2:
        return target.elts[1]
    others = [n for n, each in enumerate(over.args) if not _counts(each)]
    if _is_called(over, "zip") and len(others) == 1 and len(target.elts) == len(over.args):
        return target.elts[others[0]]
    return None


def _counts(expression: ast.expr) -> bool:
    if not isinstance(expression, ast.Call):
        return False
    return _is_called(expression, "range") or ast.unparse(expression.func) in ("count", "itertools.count")


def _is_called(call: ast.Call, name: str) -> bool:
    return isinstance(call.func, ast.Name) and call.func.id == name


def _is_constant(expression: ast.expr) -> bool:
    return isinstance(expression, ast.Constant)


def _is_local(table: symtable.SymbolTable, name: str) -> bool:
    return name in table.get_identifiers() and table.lookup(name).is_local()


def _names_of(target: ast.expr) -> list[str]:
    """Variables that a target consists of; none where it consists of anything else."""
    if isinstance(target, ast.Name):
        return [target.id]
    if not isinstance(target, ast.Tuple | ast.List):
        return []
    parts = [_names_of(each) for each in target.elts]
    return [name for part in parts for name in part] if all(parts) else []


def _parents_in(module: ast.Module) -> Parents:
    return {child: node for node in ast.walk(module) for child in ast.iter_child_nodes(node)}
