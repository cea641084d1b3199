"""What data count up as they are read, as their code tells it: copies of the data don't learn of each other's."""

from __future__ import annotations

import dis
import itertools
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import CodeType, FunctionType, MethodType

from ..call_sites import is_library
from ..data_state import values
from ..taken import each_local

_READING = ("__iter__", "__next__", "__getitem__", "__getitems__", "__call__")
"""Methods by which data are read, beside those that a loader is given (a ``collate_fn`` of the dataset's)."""
_ENDS = ("STORE_", "POP_TOP", "RETURN", "YIELD", "FOR_ITER")
"""Instructions that end a statement, jumps beside."""
_OPERATIONS = ("BINARY_OP", "BINARY_ADD", "BINARY_SUBTRACT", "INPLACE_")
_CALLS = ("PRECALL", "CALL", "CALL_FUNCTION")
_BEFORE_STORING = ("LOAD_FAST", "LOAD_DEREF", "LOAD_ATTR", "SWAP", "ROT_TWO", "CACHE")
"""Instructions that find the object whose attribute is stored."""


def counted_up(roots: Mapping[str, object], methods: Sequence[str] = ()) -> str:
    """An attribute that the script's own data compute from what it was as they are read; or "".

    A number of the epoch, say, that seeds the order. What each iteration sets first begins anew in a copy, too. What is
    counted with each item and never read is statistics: whether it matters shows while the data are read. ``methods``:
    others by which they are.
    """
    held = [value for _, value, _ in values(roots)]
    kinds = [_own_classes(kind) for kind in dict.fromkeys(map(type, held))]
    reading = dict.fromkeys([*_READING, *methods, *(each.__name__ for each in held if isinstance(each, MethodType))])
    classes = [*dict.fromkeys(cls for own in kinds for cls in own)]
    reached = {
        (own, method): [(holder, _uses_of(code)) for holder, code in _reached(own, method, classes)]
        for own in kinds for method in reading
    }  # fmt: skip
    read = {name for each in reached.values() for _, uses in each for name in uses.read}
    for (own, method), each in reached.items():
        anew = {name for cls in own for code, _ in _codes_of(cls, "__iter__") for name in _set_first(code)}
        for holder, uses in each:
            for name in uses.updated:
                if name not in anew and (name in read or method == "__iter__"):
                    return f"{holder}.{name}"
    return ""


def _own_classes(kind: type) -> tuple[type, ...]:
    """Those of the script that an object of this kind is of."""
    return tuple(cls for cls in kind.__mro__ if not is_library(_file_of(cls)))


def _file_of(cls: type) -> str:
    return getattr(sys.modules.get(cls.__module__), "__file__", None) or ""


def _codes_of(cls: type, name: str) -> list[tuple[CodeType, Mapping[str, object]]]:
    """Of the class's method or property of that name, with its globals."""
    member = vars(cls).get(name)
    member = getattr(member, "fget", None) or getattr(member, "__func__", member)
    return [(member.__code__, member.__globals__)] if isinstance(member, FunctionType) else []


def _reached(own: Sequence[type], method: str, classes: Sequence[type]) -> Iterator[tuple[str, CodeType]]:
    """The method's code, with the functions within it, the script's own ones and the methods that it names."""
    waiting = [(cls.__name__, code, names) for cls in own for code, names in _codes_of(cls, method)]
    seen: set[CodeType] = set()
    for holder, code, names in waiting:
        if code in seen:
            continue
        seen.add(code)
        yield holder, code
        waiting += [(holder, inner, names) for inner in code.co_consts if isinstance(inner, CodeType)]
        for name in code.co_names:
            waiting += [(cls.__name__, *called) for cls in classes for called in _codes_of(cls, name)]
            function = names.get(name)
            if isinstance(function, FunctionType) and not is_library(function.__code__.co_filename):
                waiting.append((holder, function.__code__, function.__globals__))


@dataclass
class _Uses:
    """``updated``: attributes that are computed from what they were. ``read``: those that are read, that apart."""

    updated: list[str] = field(default_factory=list)
    read: set[str] = field(default_factory=set)


def _uses_of(code: CodeType) -> _Uses:
    """What a code does with attributes, statement by statement."""
    uses, pending, held, computed = _Uses(), list[str](), dict[str, str](), set[str]()
    operates, last, before, measured = False, "", list[str](), list[str]()
    for operation, name in _instructions(code):
        if operation == "LOAD_FAST" and held.get(name):
            pending.append(held[name])  # "n = x.n; x.n = n + 1" is an update, too, and so is "n += 1; x.n = n"
            operates = operates or name in computed
        elif operation.startswith(("LOAD_ATTR", "LOAD_METHOD")):
            pending.append(name)
        elif operation == "STORE_FAST":
            held[name] = last or (pending[-1] if operates and pending else "")
            (computed.add if operates else computed.discard)(name)
        elif operation == "STORE_ATTR" and operates and name in pending:
            pending.remove(name)
            uses.updated.append(name)
        if operation in _CALLS and before[:1] == ["len"] and last:
            measured.append(last)  # "x.ids[word] = len(x.ids)", or by setdefault
        before = [*before[-2:], name] if operation not in ("CACHE", "PUSH_NULL") else before
        if operation == "STORE_SUBSCR" or (operation.startswith(_ENDS) and "setdefault" in pending):
            uses.updated += [each for each in measured if pending.count(each) > 1]
        if operation.startswith(_ENDS) or "JUMP" in operation:
            measured.clear()
            uses.read |= {*pending}
            pending.clear()
        if operation != "CACHE":
            last = name if operation.startswith("LOAD_ATTR") else ""
        if not operation.startswith(_BEFORE_STORING):
            operates = operation.startswith(_OPERATIONS)
    return uses


def updated_by(code: CodeType) -> frozenset[str]:
    """Attributes that a code computes from what they were."""
    return frozenset(_uses_of(code).updated)


def stored_by(code: CodeType) -> frozenset[str]:
    """Attributes that a code sets."""
    return frozenset(name for operation, name in _instructions(code) if operation == "STORE_ATTR")


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
    """Operation and name; what loads or stores a local is called so, in whatever way it does."""
    for each in itertools.chain.from_iterable(map(each_local, dis.get_instructions(code))):
        local = re.match("(?:LOAD|STORE)_FAST", each.opname)
        yield local[0] if local else each.opname, str(each.argval)
