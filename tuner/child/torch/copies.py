"""What a loader's workers copy when they start: its data as they are then, their random generators included.

A worker sees nothing of what changes in the training process afterwards, and workers that start alike draw alike. Where
the data are no mere table, other or more lasting workers would train on something else: that is looked for here.
"""

from __future__ import annotations

import random
import sys
import weakref
import zlib
from collections import deque
from collections.abc import Hashable, Iterator, Mapping
from contextlib import suppress
from itertools import islice
from types import FunctionType, MethodType, ModuleType
from typing import Any

from ..call_sites import is_library
from .types import Arguments, DataLoader

State = Mapping[str, Hashable]
"""Path of a value among the data, such as ``.transform.size`` → what it is now."""

MOST_VALUES = 5000
DEEPEST = 5
ITEMS_READ = 128
NUMBERS_READ = 4096
FIRST_LOOK, LATER_LOOKS = 3, (16, 64, 256)
"""Batches after which the data are looked at: what opens its files with the first batch is done with it by then."""
_PLAIN = (type(None), bool, int, float, complex, str)
_GENERATORS = {
    "numpy.random": ("Generator", "RandomState", "MT19937", "PCG64"), "numpy.random._generator": ("Generator",),
    "numpy.random.mtrand": ("RandomState",), "torch": ("Generator",), "torch._C": ("Generator",),
}  # fmt: skip
# Methods that a sampler may have and that tell it nothing of the training.
_KNOWN_METHODS = ("set_epoch", "state_dict", "load_state_dict")


def refusals(given: Arguments) -> dict[str, str]:
    """Knob → why it can't be turned, as far as the loader's arguments show it."""
    with suppress(Exception):  # the user's own classes may raise anything
        return _refusals(given)
    return {}


def _refusals(given: Arguments) -> dict[str, str]:
    refused: dict[str, str] = {}
    generator = own_generator({"dataset": given.get("dataset"), "collate_fn": given.get("collate_fn")})
    if generator and given.get("worker_init_fn") is None:
        reason = f"{generator} draws random numbers of its own, which every worker would copy"
        refused.update(num_workers=reason, persistent_workers=reason)
    feedback = next(filter(None, (_feedback(given.get(name)) for name in ("sampler", "batch_sampler"))), "")
    if feedback:
        refused.update(num_workers=feedback, prefetch_factor=feedback)
    return refused


def own_generator(roots: Mapping[str, object]) -> str:
    """The path of a random generator that the data hold and use, "" where there is none.

    PyTorch seeds the generators of PyTorch, NumPy and Python in each worker, but no other.
    """
    for path, value, holder in _values(roots):
        kind = type(value)
        numbers = isinstance(value, random.Random) or kind.__name__ in _GENERATORS.get(kind.__module__, ())
        if numbers and _uses(holder, path.rpartition(".")[2]):
            return path
    return ""


def _uses(holder: object, attribute: str) -> bool:
    """Whether a method of the object but its constructor names this attribute; unknown counts as used."""
    if not attribute.isidentifier():
        return True
    classes = [cls for cls in type(holder).__mro__ if cls is not object]
    methods = [value for cls in classes for name, value in vars(cls).items() if name != "__init__"]
    codes = [method.__code__ for method in methods if isinstance(method, FunctionType)]
    return not codes or any(attribute in code.co_names for code in codes)


def _feedback(sampler: object) -> str:
    """Why a sampler of the script's own may learn from the training; "" where nothing says so."""
    file = getattr(sys.modules.get(type(sampler).__module__), "__file__", None)
    if sampler is None or file is None or is_library(file):
        return ""
    own = [name for cls in type(sampler).__mro__ if not cls.__module__.startswith(("torch.", "builtins", "typing"))
           for name, value in vars(cls).items() if isinstance(value, FunctionType)]  # fmt: skip
    told = next((name for name in own if not name.startswith("_") and name not in _KNOWN_METHODS), "")
    return f"{type(sampler).__name__}.{told} may tell it of the training, and workers ask it ahead" if told else ""


class CopyWatch:
    """Looks at the data of the loaders: in a trial whether they change, and before each epoch whether they have."""

    def __init__(self) -> None:
        self._first: weakref.WeakKeyDictionary[DataLoader, State] = weakref.WeakKeyDictionary()
        self._copied: weakref.WeakKeyDictionary[DataLoader, State] = weakref.WeakKeyDictionary()

    def changed(self, loader: DataLoader, batches: int) -> str:
        """Why the data can't be left to workers, seen after so many batches that the training process made itself."""
        if batches == FIRST_LOOK:
            self._first[loader] = state_of(loader)
        first = self._first.get(loader)
        if batches not in LATER_LOOKS or first is None:
            return ""
        now = state_of(loader)
        moved = next((path for path in first if path in now and now[path] != first[path]), "")
        return f"{moved} changes while the data are read: each worker would change a copy of its own" if moved else ""

    def renew(self, loader: DataLoader) -> None:
        """Ends the workers that have lasted since the last epoch where they hold other data than the script does."""
        now, before = state_of(loader), self._copied.get(loader)
        self._copied[loader] = now
        lasting = loader._iterator
        if lasting is not None and before is not None and before != now:
            lasting._shutdown_workers()
            loader._iterator = None


def state_of(loader: DataLoader) -> State:
    """What the loader's workers would copy now."""
    state: dict[str, Hashable] = {}
    with suppress(Exception):  # the user's own classes may raise anything: then what was read so far has to do
        for path, value, _ in _values({"dataset": loader.dataset, "collate_fn": loader.collate_fn}):
            state[path] = _told(value)
    return state


def _values(roots: Mapping[str, object]) -> Iterator[tuple[str, object, object]]:
    """Path, value and holder of what can be reached; of much only the first so many."""
    waiting: deque[tuple[str, object, object, int]] = deque((name, value, None, 0) for name, value in roots.items())
    seen: set[int] = set()
    for _ in range(MOST_VALUES):
        if not waiting:
            return
        path, value, holder, depth = waiting.popleft()
        yield path, value, holder
        if isinstance(value, _PLAIN) or id(value) in seen or depth == DEEPEST:
            continue
        seen.add(id(value))
        waiting.extend((path + name, below, value, depth + 1) for name, below in _parts(value))


def _parts(value: Any) -> Iterator[tuple[str, object]]:
    if isinstance(value, dict):
        return ((f"[{key!r:.40}]", item) for key, item in list(islice(value.items(), ITEMS_READ)))
    if isinstance(value, (list, tuple)):
        step = max(1, len(value) // ITEMS_READ)
        return ((f"[{index}]", value[index]) for index in range(0, len(value), step))
    if isinstance(value, MethodType):
        return iter([(".__self__", value.__self__)])
    if isinstance(value, FunctionType):
        names, cells = value.__code__.co_freevars, value.__closure__ or ()
        return ((f".{name}", _content(cell)) for name, cell in zip(names, cells, strict=True))
    if isinstance(value, (type, ModuleType)) or not hasattr(value, "__dict__"):
        return iter(())
    return ((f".{name}", item) for name, item in list(vars(value).items()))


def _content(cell: Any) -> object:
    try:
        return cell.cell_contents
    except ValueError:
        return None  # nothing was put into it yet


def _told(value: Any) -> Hashable:
    """What tells the value from another one, in a few microseconds; of containers and objects their parts tell."""
    if isinstance(value, _PLAIN):
        return repr(value) if isinstance(value, (float, complex)) else value
    if isinstance(value, (list, deque)):
        return len(value)
    kind = type(value)
    if kind.__module__ == "numpy" and kind.__name__ == "ndarray":
        return _of_array(value)
    if hasattr(kind, "data_ptr") and not value.is_inference():
        return (tuple(value.shape), str(value.dtype), int(value._version))
    return kind.__name__


def _of_array(array: Any) -> Hashable:
    if array.dtype.hasobject:
        return (array.shape, str(array.dtype))
    flat = array.flat[:: max(1, array.size // NUMBERS_READ)]
    return (array.shape, str(array.dtype), zlib.crc32(flat.tobytes()))
