"""Which attributes a library's object sets anew as data are read: what a transform has drawn for one sample, say.

Libraries keep it between two of their own methods, and no later sample depends on it. What an object computes from what
it was (a counter), or what only methods set by which no data are read, is another matter.
"""

from __future__ import annotations

from collections.abc import Sequence
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
        called = {name for code in reached for each in codes(code) for name in each.co_names}
        more = [name for name, _ in methods if name in called and name not in found]
        if not more:
            return any(attribute in _stored(code) for code in reached if lies_in_library(code.co_filename))
        found.update(dict.fromkeys(more))


def _stored(code: CodeType) -> frozenset[str]:
    return frozenset(name for each in codes(code) for name in stored_by(each))
