"""What can be reached of a script's data in its process, and whether it changes while the data are read.

Attributes, items of containers and closures are followed, nothing is called; of much only the first so many are read.
"""

from __future__ import annotations

import sys
import zlib
from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import suppress
from contextvars import ContextVar
from functools import _lru_cache_wrapper, partial
from itertools import chain, islice
from types import FunctionType, MemberDescriptorType, MethodType, MethodWrapperType, ModuleType
from typing import Any, NamedTuple

from .call_sites import is_library
from .file_backed import FileBacked
from .taken import taken_by

State = Mapping[str, Hashable]
"""Path of a value, such as ``dataset.transform.size`` → what it is now."""

MOST_VALUES = 5000
DEEPEST = 5
ITEMS_READ, FEWEST_ITEMS, ITEMS_IN_ALL = 128, 2, 512
"""Of a list or a dictionary at most and at least, and of all those within one together, however deep they lie."""
NUMBERS_READ = 4096
NESTED, NUMBERS_OF_NESTED = 2, 256
"""Of an array in so many lists or dictionaries fewer numbers are read."""
PAGES_READ = 16
"""Places of an array in a mapped file: each may have a page read from a disk."""
_LARGE = 1 << 20
"""Bytes from which that is asked."""
_BYTES_READ = 1 << 20
FIRST_LOOK, LATER_LOOKS = 3, (8, 16, 64, 256)
"""Batches after which the data are looked at: what opens its files with the first batch is done with it by then."""
ITERATIONS_READ = 3
"""So many iterations are looked at, each for some milliseconds in all: the rate of the others is what is measured."""
_PLAIN: tuple[Any, ...] = (type(None), bool, int, float, complex, str)
UNCHANGING = (*_PLAIN, bytes)
"""Types of values that nothing can change."""
_COMPARED = (type(None), bool, int, str)
"""Plain values that are compared as they are: a float may be no number, which equals nothing."""
_NUMBERING = frozenset({"__next__", "__len__", "next", "len"})
"""Methods that give the next number, and names in functions that do."""
_MODULES = "._modules"
"""Where a module of PyTorch's holds those within it."""
_SHARED = "multiprocessing.sharedctypes"
"""Where Python has the classes of what processes share: ``multiprocessing.Value``, ``multiprocessing.Array``."""
_TRAINERS = {"accelerate": "Accelerator", "lightning": "Fabric", "lightning_fabric": "Fabric"}
"""Package → the class of what trains: a function that makes batches may ask it for what never changes."""

_COLLATORS = "transformers"
"""The package whose collators are given a model, for how it shifts labels: no batch is made of its weights."""


class StateWatch:
    """Looks at data while they are read, and tells what of them has changed since the first look.

    One for each iteration: what a script changes between two of them isn't changed by reading. What was None, or not
    there at all, is no change: files that are opened late, results that are kept.
    """

    def __init__(self) -> None:
        self._batches = 0
        self._first: State | None = None
        self._kept: Mapping[str, int] = {}
        self.growing = ""
        """The path of what keeps more of the data the more of them are read (a cache of the script's own), or ""."""

    def read(
        self, roots: Callable[[], Mapping[str, object]], is_read: Callable[[str], bool] = lambda path: True
    ) -> str:
        """One more batch was made: the path of a value that isn't as it was and ``is_read``; "" where none is, or no
        look is due.
        """
        self._batches += 1
        if self._batches == FIRST_LOOK:
            data = roots()
            self._first, self._kept = state_of(data), kept_in(data)
        if self._batches not in LATER_LOOKS or self._first is None:
            return ""
        data = roots()
        now, kept = state_of(data), kept_in(data)
        grown = (path for path, count in self._kept.items() if kept.get(path, 0) > count + 1)
        self.growing = self.growing or next(grown, "")
        known = {path: before for path, before in self._first.items() if before is not None and path in now}
        return next((path for path, before in known.items() if now[path] != before and is_read(path)), "")


def state_of(roots: Mapping[str, object]) -> State:
    """What can be reached from these values now; ``roots``: name → value."""
    state: dict[str, Hashable] = {}
    files = FileBacked()
    for path, value, _ in values(roots):
        with suppress(Exception):  # the user's own classes may raise anything
            state[path] = _told(value, _Reads(NUMBERS_READ if path.count("[") < NESTED else NUMBERS_OF_NESTED, files))
    return state


def kept_in(roots: Mapping[str, object]) -> Mapping[str, int]:
    """Path → how many results are kept there: in a dictionary, in places of a list, by ``functools.lru_cache``."""
    kept: dict[str, int] = {}
    for path, value, _ in values(roots):
        with suppress(Exception):  # as above
            if isinstance(value, dict):
                kept[path] = dict.__len__(value)
            elif isinstance(value, list):
                kept[path] = sum(item is not None for _, item in _items(value, ITEMS_READ))
            for name, member in caching(value):
                kept[path + name] = member.cache_info().currsize
    return kept


def caching(value: Any) -> Iterator[tuple[str, Any]]:
    """What of it is made by ``functools.lru_cache``: itself, or methods of its class."""
    if isinstance(value, _lru_cache_wrapper):
        yield "", value
    elif type(value).__module__ not in ("builtins", "numpy", "torch"):
        yield from ((f".{name}", own) for name, own in vars(type(value)).items() if isinstance(own, _lru_cache_wrapper))


def values(roots: Mapping[str, object]) -> Iterator[tuple[str, object, object]]:
    """Path, value and holder of what can be reached; of much only the first so many."""
    waiting: deque[tuple[str, object, object, int, int]] = deque(
        (name, value, None, 0, ITEMS_IN_ALL) for name, value in roots.items()
    )
    seen: set[int] = set()
    for _ in range(MOST_VALUES):
        if not waiting:
            return
        path, value, holder, depth, room = waiting.popleft()
        if not answers(value):
            continue
        yield path, value, holder
        if isinstance(value, _PLAIN) or id(value) in seen or depth == DEEPEST:
            continue
        seen.add(id(value))
        # Modules within modules are one model, however deep its weights lie.
        deeper = depth if path.endswith(_MODULES) else depth + 1
        with suppress(Exception):  # as above
            most = min(ITEMS_READ, max(FEWEST_ITEMS, room))
            within = room // max(1, min(_length(value), most)) if isinstance(value, (dict, list, tuple)) else room
            for name, below in _parts(value, most):
                waiting.append((path + name, below, value, depth if name == _MODULES else deeper, within))


def hands_out_numbers(value: object) -> bool:
    """Whether it is a dictionary that numbers what it is asked for, as it comes: by a counter, or its own length."""
    made_by: Any = value.default_factory if isinstance(value, defaultdict) else None
    if isinstance(made_by, FunctionType):
        return not _NUMBERING.isdisjoint(made_by.__code__.co_names)
    return isinstance(made_by, MethodWrapperType) and made_by.__name__ in _NUMBERING


def answers(value: object) -> bool:
    """Whether an object tells its class and its attributes: a proxy may raise an error where it stands for nothing."""
    with suppress(Exception):
        return value.__class__ is not None and getattr(value, "__dict__", ()) is not None
    return False


def _parts(value: Any, most: int) -> Iterator[tuple[str, object]]:
    if isinstance(value, (dict, list, tuple)):
        own = {} if type(value) in (dict, list, tuple) else _attributes(value)
        return chain(_items(value, most), ((f".{name}", item) for name, item in own.items()))
    if isinstance(value, MethodType):
        taken = taken_by(value)
        named = {"": value.__self__} if taken is None else {f".{name}": part for name, part in taken.items()}
        return ((f".__self__{name}", part) for name, part in named.items())
    if isinstance(value, FunctionType):
        return _around(value)
    if isinstance(value, partial):
        given = {"func": value.func, "args": value.args, "keywords": value.keywords}
        return ((f".{name}", item) for name, item in given.items())
    if isinstance(value, ContextVar):
        return iter([(".get()", value.get(None))])
    if type(value).__module__ == "numpy" or isinstance(value, (type, ModuleType)) or _is_trainer(value):
        return iter(())
    return ((f".{name}", item) for name, item in _attributes(value).items())


def _length(value: dict[Any, Any] | list[Any] | tuple[Any, ...]) -> int:
    kind: Any = dict if isinstance(value, dict) else list if isinstance(value, list) else tuple
    return int(kind.__len__(value))


def _items(value: dict[Any, Any] | list[Any] | tuple[Any, ...], most: int) -> Iterator[tuple[str, object]]:
    """Some of them, as they lie there: a class of the script's may make items as they are asked for."""
    if isinstance(value, dict):
        return ((f"[{key!r:.40}]", item) for key, item in list(islice(dict.items(value), most)))
    kind: Any = list if isinstance(value, list) else tuple
    length = _length(value)
    places = range(0, length, max(1, length // most))
    return ((f"[{index}]", kind.__getitem__(value, index)) for index in places)


def _around(function: FunctionType) -> Iterator[tuple[str, object]]:
    """What a function keeps: variables around it, its own attributes, and what its arguments are by default."""
    code = function.__code__
    cells = zip(code.co_freevars, function.__closure__ or (), strict=True)
    yield from ((f".{name}", _content(cell)) for name, cell in cells)
    last = code.co_varnames[: code.co_argcount][::-1]
    yield from ((f".{name}", value) for name, value in zip(last, (function.__defaults__ or ())[::-1], strict=False))
    yield from ((f".{name}", value) for name, value in (function.__kwdefaults__ or {}).items())
    yield from ((f".{name}", value) for name, value in vars(function).items())


def _attributes(value: object) -> dict[str, object]:
    """Of an object, in slots as well, and of the script's own classes that it is of: those that are no methods."""
    found: dict[str, object] = {}
    for cls in reversed(type(value).__mro__):
        file = getattr(sys.modules.get(cls.__module__), "__file__", None)
        if file is None or is_library(file):
            continue
        for name, item in vars(cls).items():
            if isinstance(item, MemberDescriptorType):
                if hasattr(value, name):
                    found[name] = getattr(value, name)
            elif not name.startswith("__") and not hasattr(item, "__get__"):
                found[name] = item
    found.update(getattr(value, "__dict__", {}))
    if type(value).__module__.partition(".")[0] == _COLLATORS:
        return {name: item for name, item in found.items() if not hasattr(item, "_parameters")}
    return found


def _is_trainer(value: object) -> bool:
    """Whether it holds the models, the optimizers and the schedules that are trained, and counts their steps."""
    return any(_TRAINERS.get(kind.__module__.partition(".")[0]) == kind.__name__ for kind in type(value).__mro__)


def _content(cell: Any) -> object:
    try:
        return cell.cell_contents
    except ValueError:
        return None  # nothing was put into it yet


class _Reads(NamedTuple):
    """How many numbers of an array are read, and what tells which of them lie in files."""

    most: int
    files: FileBacked

    def of(self, flat: Any, size: int, count: int, address: int) -> Iterator[Any]:
        """Slices of what lies ``flat``: ``count`` numbers of so many bytes."""
        if size * count < _LARGE or not self.files.holds(address):
            yield flat[:: max(1, count // self.most)]
            return
        for place in range(0, count, max(1, count // PAGES_READ)):
            yield flat[place : place + self.most // PAGES_READ]


def _told(value: Any, reads: _Reads) -> Hashable:
    """What tells the value from another one, in a few microseconds; of containers and objects their parts tell."""
    plain: Any = next((kind for kind in _PLAIN if isinstance(value, kind)), None)
    if plain is not None:  # of a class of the script's, too, which may compare and show itself otherwise
        return value if type(value) in _COMPARED else str(plain.__repr__(value))
    if isinstance(value, deque):  # one that is full stays as long as it is
        newest = [deque.__getitem__(value, place) for place in range(max(-3, -deque.__len__(value)), 0)]
        return (deque.__len__(value), *(each if isinstance(each, _COMPARED) else id(each) for each in newest))
    sized: Any = next((kind for kind in (list, set) if isinstance(value, kind)), None)
    if sized is not None:
        return int(sized.__len__(value))
    if hands_out_numbers(value):
        return dict.__len__(value)
    if isinstance(value, bytearray):
        return zlib.crc32(value if len(value) <= _BYTES_READ else value[:: len(value) // NUMBERS_READ])
    kind = type(value)
    if kind.__module__ == _SHARED and hasattr(value, "get_obj"):
        return _told(value.get_obj(), reads)
    if type(kind).__module__ == "_ctypes":
        held = memoryview(value).cast("B")
        apart = len(held) // NUMBERS_READ | 1  # odd: of numbers each byte has its turn, the first one changes least
        return zlib.crc32(held if len(held) <= _BYTES_READ else held[::apart].tobytes())
    if kind.__module__ == "numpy" and kind.__name__ == "ndarray":
        return _of_array(value, reads)
    if hasattr(kind, "data_ptr") and hasattr(kind, "is_inference") and not value.is_inference():
        return (tuple(value.shape), str(value.dtype), int(value._version), _numbers_of(value, reads))
    return kind.__name__


def _numbers_of(tensor: Any, reads: _Reads) -> int | None:
    """As of an array, for what is written past PyTorch's own count (``.data``, ``.numpy()``), or bound anew; None where
    the numbers don't lie one after the other in the host's memory.
    """
    with suppress(Exception):  # kinds of tensors that have no such view
        if tensor.device.type == "cpu" and tensor.is_contiguous():
            flat, told = tensor.detach().view(-1), 0
            for some in reads.of(flat, tensor.element_size(), tensor.numel(), tensor.data_ptr()):
                told = zlib.crc32(some.clone().view(sys.modules["torch"].uint8).numpy(), told)
            return told
    return None


def _of_array(array: Any, reads: _Reads) -> Hashable:
    if array.dtype.hasobject:
        return (array.shape, array.dtype.str)
    told = 0
    for some in reads.of(array.flat, array.itemsize, array.size, array.__array_interface__["data"][0]):
        told = zlib.crc32(some.tobytes(), told)
    return (array.shape, array.dtype.str, told)
