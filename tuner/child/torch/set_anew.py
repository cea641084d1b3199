"""Which attributes a library's object sets anew as data are read: what a transform has drawn for one sample, say.

Libraries keep it between two of their own methods, and no later sample depends on it. What an object computes from what
it was (a counter), what it reads before it is set (the sample before), or what only methods set by which no data are
read, is another matter.
"""

from __future__ import annotations

import dis
from collections.abc import Collection, Iterator, Sequence
from types import CodeType, FunctionType

from ..call_sites import codes
from ..call_sites import is_library as lies_in_library
from .counting import stored_by, updated_by
from .reached import is_library


def is_set_anew(holder: object, attribute: str, reading: Sequence[str]) -> bool:
    """Whether a library's own code sets this attribute in methods named ``reading``, or in those that they call.

    PyTorch's and NumPy's don't count: a model that labels data is trained beside.
    """
    methods = [
        (name, member.__code__) for cls in type(holder).__mro__ if cls is not object and not is_library(cls.__module__)
        for name, member in vars(cls).items() if isinstance(member, FunctionType)
    ]  # fmt: skip
    if any(attribute in updated_by(code) for _, code in methods):
        return False
    found = dict.fromkeys(reading)
    while True:
        reached = [code for name, code in methods if name in found and name != "__init__"]
        called = {name for code in reached for name in _named(code)}
        more = [name for name, _ in methods if name in called and name not in found]
        if not more:
            sets = _leads_to_setting(attribute, methods)
            is_anew = not any(_reads_first(attribute, name, methods, sets, frozenset()) for name in reading)
            return is_anew and any(attribute in _stored(code) for code in reached if lies_in_library(code.co_filename))
        found.update(dict.fromkeys(more))


def _stored(code: CodeType) -> frozenset[str]:
    return frozenset(name for each in codes(code) for name in stored_by(each))


def _leads_to_setting(attribute: str, methods: Sequence[tuple[str, CodeType]]) -> Collection[str]:
    """Names of the methods that set the attribute, and of those that call them."""
    sets = {name for name, code in methods if attribute in _stored(code)}
    while True:
        more = {name for name, code in methods if name not in sets and not sets.isdisjoint(_named(code))}
        if not more:
            return sets
        sets |= more


def _reads_first(
    attribute: str, method: str, methods: Sequence[tuple[str, CodeType]], sets: Collection[str], within: frozenset[str]
) -> bool:
    """Whether a method, in that of any class, or one that it calls reads the attribute before it may have been set.

    ``within``: methods that call this one.
    """
    if method in within:
        return False
    among = {name for name, _ in methods}
    for code in (code for name, code in methods if name == method):
        for each, is_set in _until_set(attribute, code):
            name = each.argval
            if name == attribute and not is_set:
                return True
            if name in among and name != attribute:
                if not is_set and _reads_first(attribute, name, methods, sets, within | {method}):
                    return True
                if name in sets:
                    break  # also where it is called under a condition: what has been drawn is read under the same one
    return False


def _until_set(attribute: str, code: CodeType) -> Iterator[tuple[dis.Instruction, bool]]:
    """The instructions that read attributes before a code sets this one whatever comes; and whether it has been set
    where they lie: under the same condition, or on each way that leads there.
    """
    ends, set_until = list[int](), -1
    led_to: dict[int, bool] = {}  # where jumps lead -> whether it has been set before each of them
    for each in dis.get_instructions(code):
        ends = [end for end in ends if end > each.offset]  # of the conditions that it lies under
        if each.offset == set_until and led_to.get(set_until):
            if not ends:
                return
            set_until = min(ends)
        if "JUMP" in each.opname and isinstance(each.argval, int) and each.argval > each.offset:
            led_to[each.argval] = led_to.get(each.argval, True) and each.offset < set_until
            ends.append(each.argval)
        elif each.opname == "STORE_ATTR" and each.argval == attribute:
            if not ends:
                return
            set_until = max(set_until, min(ends))
        elif each.opname.startswith(("LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR")):
            yield each, each.offset < set_until


def _named(code: CodeType) -> set[str]:
    return {name for each in codes(code) for name in each.co_names}
