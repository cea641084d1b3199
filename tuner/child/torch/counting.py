"""What data count up as they are read, as their code tells it: copies of the data don't learn of each other's."""

from __future__ import annotations

import dis
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import CodeType, FunctionType

from ..call_sites import is_library
from ..data_state import values

_ENDS = ("STORE_", "POP_TOP", "RETURN", "YIELD", "FOR_ITER")
"""Instructions that end a statement, jumps beside."""
_OPERATIONS = ("BINARY_OP", "BINARY_ADD", "BINARY_SUBTRACT", "INPLACE_")
_BEFORE_STORING = ("LOAD_FAST", "LOAD_DEREF", "LOAD_ATTR", "SWAP", "ROT_TWO", "CACHE")
"""Instructions that find the object whose attribute is stored."""


def counted_up(roots: Mapping[str, object]) -> str:
    """An attribute that the script's own data compute from what it was as they are read; or "".

    A number of the epoch, say, that seeds the order. What each iteration sets first begins anew in a copy, too. What is
    counted with each item and never read is statistics: whether it matters shows while the data are read.
    """
    for kind in dict.fromkeys(type(value) for _, value, _ in values(roots)):
        own = [cls for cls in kind.__mro__ if not is_library(_file_of(cls))]
        found = _counted(own, "__iter__") or _counted(own, "__getitem__")
        if found:
            return found
    return ""


def _counted(own: list[type], method: str) -> str:
    """Of what the method of these classes leads to."""
    reached = [(cls.__name__, _uses_of(code)) for cls, code in _reached(own, method)]
    read = {name for _, uses in reached for name in uses.read}
    anew = {name for cls in own for code in _codes_of(cls, "__iter__") for name in _set_first(code)}
    for cls_name, uses in reached:
        for name in uses.updated:
            if name not in anew and (name in read or method == "__iter__"):
                return f"{cls_name}.{name}"
    return ""


def _file_of(cls: type) -> str:
    return getattr(sys.modules.get(cls.__module__), "__file__", None) or ""


def _codes_of(cls: type, name: str) -> list[CodeType]:
    """Of the class's method or property of that name."""
    member = vars(cls).get(name)
    member = getattr(member, "fget", None) or getattr(member, "__func__", member)
    return [member.__code__] if isinstance(member, FunctionType) else []


def _reached(own: list[type], method: str) -> Iterator[tuple[type, CodeType]]:
    """The method's code, with the functions within it and the methods that it names."""
    waiting = [(cls, code) for cls in own for code in _codes_of(cls, method)]
    seen: set[CodeType] = set()
    for cls, code in waiting:
        if code in seen:
            continue
        seen.add(code)
        yield cls, code
        waiting += [(cls, inner) for inner in code.co_consts if isinstance(inner, CodeType)]
        waiting += [(each, called) for name in code.co_names for each in own for called in _codes_of(each, name)]


@dataclass
class _Uses:
    """``updated``: attributes that are computed from what they were. ``read``: those that are read, that apart."""

    updated: list[str] = field(default_factory=list)
    read: set[str] = field(default_factory=set)


def _uses_of(code: CodeType) -> _Uses:
    """What a code does with attributes, statement by statement."""
    uses, pending, held = _Uses(), list[str](), dict[str, str]()
    operates, last = False, ""
    for operation, name in _instructions(code):
        if operation == "LOAD_FAST" and held.get(name):
            pending.append(held[name])  # "n = x.n; x.n = n + 1" is an update, too
        elif operation.startswith(("LOAD_ATTR", "LOAD_METHOD")):
            pending.append(name)
        elif operation == "STORE_FAST":
            held[name] = last
        elif operation == "STORE_ATTR" and operates and name in pending:
            pending.remove(name)
            uses.updated.append(name)
        if operation.startswith(_ENDS) or "JUMP" in operation:
            uses.read |= {*pending}
            pending.clear()
        if operation != "CACHE":
            last = name if operation.startswith("LOAD_ATTR") else ""
        if not operation.startswith(_BEFORE_STORING):
            operates = operation.startswith(_OPERATIONS)
    return uses


def _set_first(code: CodeType) -> Iterator[str]:
    """Attributes that the code sets in any case, before it reads them."""
    read: set[str] = set()
    for operation, name in _instructions(code):
        if "JUMP" in operation or operation.startswith(("FOR_ITER", "YIELD")):
            return
        if operation.startswith("LOAD_ATTR"):
            read.add(name)
        elif operation == "STORE_ATTR" and name not in read:
            yield name


def _instructions(code: CodeType) -> Iterator[tuple[str, str]]:
    """Operation and name; newer Pythons have several locals in one."""
    for instruction in dis.get_instructions(code):
        locals_ = re.findall("(?:LOAD|STORE)_FAST", instruction.opname)
        names = instruction.argval if isinstance(instruction.argval, tuple) else (instruction.argval,)
        if locals_:
            yield from zip(locals_, map(str, names), strict=False)
        else:
            yield instruction.opname, str(instruction.argval)
