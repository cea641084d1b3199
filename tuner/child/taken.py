"""What of a variable, or of the object of a method, code takes by name: the rest of it is no matter to that code."""

from __future__ import annotations

import dis
import re
from collections.abc import Iterator, Mapping
from types import CodeType, FunctionType, MethodType

_BETWEEN = ("CACHE", "EXTENDED_ARG", "PRECALL")
"""Instructions that stand between others and do nothing by themselves."""
READS = ("LOAD_GLOBAL", "STORE_GLOBAL", "LOAD_NAME", "LOAD_DEREF")
_LOCAL = ("LOAD_FAST", "LOAD_FAST_BORROW")
_OF_LOCALS = re.compile("(?:LOAD|STORE)_FAST")


def instructions_of(code: CodeType) -> list[dis.Instruction]:
    """A code's own instructions, but for those that do nothing by themselves. What loads or stores two locals at once,
    as from Python 3.13 on, is told as two that do so.
    """
    told = (each for each in dis.get_instructions(code) if each.opname not in _BETWEEN)
    return [one for each in told for one in each_local(each)]


def each_local(each: dis.Instruction) -> Iterator[dis.Instruction]:
    """The instruction, or the two that it stands for where it loads or stores two locals."""
    kinds = _OF_LOCALS.findall(each.opname)
    if len(kinds) < 2:
        yield each
        return
    for kind, name in zip(kinds, each.argval, strict=True):
        yield each._replace(opname=kind, argval=name)


def taken_of(name: str, code: CodeType, *, keyed: bool = True) -> frozenset[str] | None:
    """Attributes, and where it is ``keyed`` keys by constants, of the variable of this name that a code and the
    functions that it makes read; None where they read anything else of it.
    """
    taken: set[str] = set()
    instructions = instructions_of(code)
    for place, each in enumerate(instructions):
        if each.argval != name or each.opname not in (*READS, *_LOCAL):
            continue
        after = [(each.opname, each.argval) for each in instructions[place + 1 : place + 3]]
        if after[0][0] in ("LOAD_ATTR", "LOAD_METHOD"):
            taken.add(str(after[0][1]))
        elif keyed and after[0][0] == "LOAD_CONST" and after[1][0] in ("BINARY_SUBSCR", "BINARY_OP"):
            taken.add(after[0][1])
        else:
            return None
    for inner in code.co_consts:
        if isinstance(inner, CodeType) and name in (*inner.co_names, *inner.co_freevars):
            within = taken_of(name, inner, keyed=keyed)
            if within is None:
                return None
            taken |= within
    return frozenset(taken)


def taken_by(method: MethodType) -> Mapping[str, object] | None:
    """Name → attribute of its object that a method reads, or another one that it calls; None where it may read more.

    It may where it hands on its object as a whole, or reads what isn't there by that name.
    """
    owner, found, waiting = method.__self__, dict[str, object](), [method.__func__]
    held: Mapping[str, object] = getattr(owner, "__dict__", {})
    seen: set[CodeType] = set()
    while waiting:
        function = waiting.pop()
        code = getattr(function, "__code__", None)
        if code is None or not code.co_argcount:
            return None
        if code in seen:
            continue
        seen.add(code)
        names = taken_of_first(code)
        if names is None:
            return None
        for name in names:
            member = next((vars(cls)[name] for cls in type(owner).__mro__ if name in vars(cls)), None)
            member = getattr(member, "fget", member)
            if name in held:
                found[name] = held[name]
            elif isinstance(member, FunctionType):
                waiting.append(member)
            elif member is None or hasattr(member, "__get__"):
                return None
            else:
                found[name] = member
    return found


def taken_of_first(code: CodeType) -> frozenset[str] | None:
    """As ``taken_of``, of the first argument of a method, which ``super()`` is given without a word and whose keys call
    a method.
    """
    name = code.co_varnames[0]
    if "__class__" in code.co_freevars:
        return None
    for each in instructions_of(code):
        if each.argval == name and each.opname not in (*READS, *_LOCAL, "MAKE_CELL", "LOAD_CLOSURE"):
            return None
    return taken_of(name, code, keyed=False)
