"""What a loader's workers copy when they start: its data as they are then, their random generators included.

A worker sees nothing of what changes in the training process afterwards, and workers that start alike draw alike. Where
the data are no mere table, other or more lasting workers would train on something else: that is looked for here.
"""

from __future__ import annotations

import os
import random
import re
import sys
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import _lru_cache_wrapper
from types import FunctionType, MemberDescriptorType, MethodDescriptorType

from ..call_sites import is_library
from ..data_state import ITERATIONS_READ, State, StateWatch, hands_out_numbers, state_of, values
from ..identities import ByIdentity
from .counting import counted_up
from .open_files import OPEN, opened
from .reached import OPTIONS, Named, class_attributes, functions, named, names_read, seeds, uses
from .set_anew import is_set_anew
from .told_samplers import feedback
from .types import Arguments, DataLoader, LoaderIterator, Result
from .worker_seeds import ALIKE, SeedWatch

_GENERATORS = {
    "numpy.random": ("Generator", "RandomState", "MT19937", "PCG64"), "numpy.random._generator": ("Generator",),
    "numpy.random.mtrand": ("RandomState",), "torch": ("Generator",), "torch._C": ("Generator",),
}  # fmt: skip
OWN = "{} draws random numbers of its own, which every worker would copy"
GOES_ON = "{} is an iterator, and every worker would go through a copy of its own"
COUNTS = "{} is counted up as the data are read: workers would count copies of their own"
READING = ("__getitem__", "__getitems__", "__iter__", "__next__", "__call__", "forward")
"""Methods by which data are read and transformed."""
KEPT = (
    "{} keeps what is read: an epoch that finds it there may be faster than what is measured, and workers keep copies"
    " of their own, which end with them"
)
"""Said of the data, by name: what a later epoch gains from it, a trial doesn't show."""
UNKNOWN = "whether workers may read the data can't be told: a look at them failed"
_OF_WORKERS = ("num_workers", "prefetch_factor", "persistent_workers")
Note = Callable[[str], None]
"""Is told of a fault of ours, in a line for people."""
_ITEMS = re.compile(r"(\[[^\]]*\])+$")
"""Of a path, where it leads into lists and dictionaries."""
_ABSTRACT = ("Dataset", "IterableDataset", "Generic", "Protocol", "ABC", "_AttributeHolder")
"""Base classes whose own code reads no attributes of the data."""
_MEMBERS = (FunctionType, MethodDescriptorType, MemberDescriptorType)
"""Methods, those of C's among them, and what objects hold outside of their attributes."""
_OF_ENVIRONMENT = frozenset({"environ", "getenv"})
_DEEPEST = 3
"""Objects beside the data whose methods name others, so many times."""


def refusals(given: Arguments, note: Note = lambda text: None) -> dict[str, str]:
    """Knob → why it can't be turned, as far as the loader's arguments show it. ``note``: is told where that fails."""
    try:
        return _refusals(given)
    except Exception as error:  # a fault of ours mustn't end the script, nor read as if nothing spoke against workers
        return _unknown(error, note)


def _unknown(error: Exception, note: Note) -> dict[str, str]:
    note(f"a look at the data of a loader failed, and is a fault of autotune's: {type(error).__name__}: {error}")
    return dict.fromkeys(_OF_WORKERS, UNKNOWN)


def _refusals(given: Arguments) -> dict[str, str]:
    refused: dict[str, str] = {}
    drawn_by = given.get("generator")
    if not given.get("num_workers") and getattr(getattr(drawn_by, "device", None), "type", "cpu") == "cuda":
        refused["num_workers"] = "the loader's random generator lives on the GPU, which a worker can't reach"
    data = {"dataset": given.get("dataset"), "collate_fn": given.get("collate_fn")}
    near = _beside(data, READING)
    generator = own_generator(data) or own_generator(near)
    reason = OWN.format(generator) if generator else ""
    if not reason and not hasattr(type(data["dataset"]), "__iter__"):
        iterator = own_iterator(data) or own_iterator(near)
        reason = GOES_ON.format(iterator) if iterator else ""
    if reason and given.get("worker_init_fn") is None:
        refused.update(num_workers=reason, persistent_workers=reason)
    if not given.get("num_workers") and (where := _seeding({**data, **near})):
        reason = f"{where} seeds the random numbers of the training as well, and workers have their own"
        refused.setdefault("num_workers", reason)
    counter = counted_up(data) or own_numbers({**data, **near})
    if counter:
        reason = COUNTS.format(counter)
        refused["persistent_workers"] = reason  # those that last go on where others begin anew
        if not given.get("num_workers"):
            refused["num_workers"] = reason
    knows = given.get("worker_init_fn") is not None or (given.get("num_workers") or 0) > 1
    if not knows and (held := opened({**data, **near}, READING)):
        refused.setdefault("num_workers", OPEN.format(held))
    told = next(filter(None, (feedback(given.get(name)) for name in ("sampler", "batch_sampler"))), "")
    if told:
        refused.update(num_workers=told, prefetch_factor=told)
    return refused


def own_generator(roots: Mapping[str, object]) -> str:
    """The path of a random generator that the data hold and use, "" where there is none.

    PyTorch seeds the generators of PyTorch, NumPy and Python in each worker, but no other.
    """
    seeded = {id(each) for each in _seeded()}

    def is_one(value: object) -> bool:
        kind = type(value)
        of_python = isinstance(value, random.Random) and not isinstance(value, random.SystemRandom)
        return id(value) not in seeded and (of_python or kind.__name__ in _GENERATORS.get(kind.__module__, ()))

    return _used(roots, is_one)


def own_iterator(roots: Mapping[str, object]) -> str:
    """The path of an iterator of Python's own, a generator among them, that the data hold and use; "" without one."""
    return _used(roots, lambda it: type(it).__module__ in ("builtins", "itertools") and hasattr(type(it), "__next__"))


def own_numbers(roots: Mapping[str, object]) -> str:
    """The path of a dictionary that is to number what it is asked for, as it comes, and has numbered nothing yet."""
    return _used(roots, lambda it: hands_out_numbers(it) and not it)


def _used(roots: Mapping[str, object], is_one: Callable[[object], bool]) -> str:
    known = list(values(roots))
    held = [(path, holder) for path, value, holder in known if is_one(value)]
    among = names_read([value for _, value, _ in known], READING) if held else None
    return next((path for path, holder in held if uses(holder, path.rpartition(".")[2], among)), "")


def _seeded() -> Iterator[object]:
    """The generators behind ``random.random``, ``np.random.rand`` and ``torch.rand``."""
    behind = (("random", "_inst"), ("numpy.random.mtrand", "_rand"), ("torch", "default_generator"))
    return (getattr(sys.modules.get(module), name, None) for module, name in behind)


def _seeding(data: Mapping[str, object]) -> str:
    """The function of the script's own by which the data are read that seeds the process's generators, "" without one.

    What is drawn after it, for the data and by the training, is another number where a worker seeds its own.
    """
    known = [value for _, value, _ in values(data)]
    for function, _ in functions(known, READING):
        if not is_library(function.__code__.co_filename) and seeds(function.__code__):
            return function.__qualname__
    return ""


class CopyWatch:
    """Looks at the data of the loaders: in a trial whether they change, and before each epoch whether they have."""

    def __init__(self, note: Note = lambda text: None) -> None:
        self._note = note
        self._watches: weakref.WeakKeyDictionary[LoaderIterator, StateWatch] = weakref.WeakKeyDictionary()
        self._iterations = 0
        self._seeds = SeedWatch()
        self.growing = ""
        """As ``StateWatch.growing``, of the loaders that are watched."""
        self._copied: ByIdentity[State] = ByIdentity()

    def fetch(
        self, original: Callable[[LoaderIterator], Result], iterator: LoaderIterator, loader: DataLoader | None
    ) -> Result:
        """The iterator's next batch; ``loader``: whose it is, None where that isn't known."""
        return self._seeds.fetch(original, iterator, loader)

    def changed(self, iterator: LoaderIterator, loader: DataLoader) -> dict[str, str]:
        """As ``refusals``, by what is seen after a batch that the training process made itself."""
        try:
            return self._changed(iterator, loader)
        except Exception as error:  # as there
            return _unknown(error, self._note)

    def _changed(self, iterator: LoaderIterator, loader: DataLoader) -> dict[str, str]:
        watch = self._watches.get(iterator)
        if watch is None and self._iterations < ITERATIONS_READ:
            self._iterations += 1
            watch = self._watches[iterator] = StateWatch()
        moved = watch.read(lambda: copied(loader), _AreRead(loader)) if watch is not None else ""
        self.growing = self.growing or (watch.growing if watch is not None else "")
        reason = f"{moved} changes while the data are read: workers have copies of their own, or read it ahead"
        reason = reason if moved else ALIKE if self._seeds.draws(iterator) else ""
        return {"num_workers": reason} if reason else {}

    def renew(self, loader: DataLoader) -> None:
        """Ends the workers that have lasted since the last epoch where they hold other data than the script does."""
        try:
            is_other = self._is_other(loader)
        except Exception as error:
            _unknown(error, self._note)
            is_other = True
        lasting = loader._iterator
        if lasting is not None and is_other:
            lasting._shutdown_workers()
            loader._iterator = None

    def _is_other(self, loader: DataLoader) -> bool:
        """Whether what is read isn't as it was at the last look, if there was one."""
        now, before = state_of(copied(loader)), self._copied.get(loader)
        self._copied[loader] = now
        is_read = _AreRead(loader)
        other = (path for path in {**now, **(before or {})} if now.get(path) != (before or {}).get(path))
        return before is not None and any(map(is_read, other))


class _AreRead:
    """Asked for the path of what changes among a loader's data: whether the code that reads them may read it.

    Of an object of options, or of one of the script's own, an attribute that this code doesn't name is no matter. What
    is read of other libraries' isn't known, but for what these set anew for each sample.
    """

    def __init__(self, loader: DataLoader) -> None:
        self._loader = loader
        self._holders: dict[str, object] | None = None
        self._names: Collection[str] | None = None

    def __call__(self, path: str) -> bool:
        if self._holders is None:
            known = list(values(copied(self._loader)))
            self._holders = {path: holder for path, _, holder in known}
            with suppress(Exception):  # the user's own classes may raise anything
                self._names = names_read([value for _, value, _ in known], READING)
        owned = _ITEMS.sub("", path)
        if is_set_anew(self._holders.get(owned), owned.rpartition(".")[2], READING):
            return False
        holder, name = type(self._holders.get(path)), path.rpartition(".")[2]
        is_own = holder is not type(None) and all(map(_is_own, holder.__mro__[:-1]))
        return not is_own or self._names is None or not name.isidentifier() or name in self._names


def _is_own(kind: type) -> bool:
    """Whether a class is the script's, or one whose own code reads no attributes."""
    file = getattr(sys.modules.get(kind.__module__), "__file__", None)
    is_plain = kind.__name__ in OPTIONS.get(kind.__module__, ()) or kind.__name__ in _ABSTRACT
    return is_plain or (file is not None and not is_library(file))


def copied(loader: DataLoader) -> Mapping[str, object]:
    """What a loader's workers copy when they start: its data, and what the code that reads them names beside them."""
    data = {"dataset": loader.dataset, "collate_fn": loader.collate_fn}
    return {**data, **beside(data)}


def beside(data: Mapping[str, object], methods: Sequence[str] = READING) -> dict[str, object]:
    """Name → value of the script's variables that the code by which these data are read names.

    Of options, settings and a trained model those parts are told that are named: others may change with each step.
    ``methods``: those by which the data are read.
    """
    with suppress(Exception):  # the user's own classes may raise anything
        return _beside(data, methods)
    return {}


def _beside(data: Mapping[str, object], methods: Sequence[str]) -> dict[str, object]:
    beside: dict[str, object] = {}
    for _ in range(_DEEPEST):
        known = [value for _, value, _ in values({**data, **beside})]
        found: dict[str, object] = {}
        for variable in named(known, methods):
            parts = _parts_of(variable)
            if parts is None:
                found[variable.name] = variable.value
            else:
                found.update({f"{variable.name}.{key}": part for key, part in parts.items()})
        found.update(_environment(known, methods))
        if found.keys() <= beside.keys():
            break
        beside.update(found)
    return beside


def _environment(known: Sequence[object], methods: Sequence[str]) -> dict[str, object]:
    """Those variables of the environment that code names by which these data are read."""
    reading = functions(known, methods)
    codes = [function.__code__ for function, names in reading if not _OF_ENVIRONMENT.isdisjoint(names)]
    keys = [key for code in codes if not is_library(code.co_filename) for key in code.co_consts if isinstance(key, str)]
    return {f"os.environ[{key!r}]": os.environ.get(key) for key in keys if key and not set(key) & {"=", "\0"}}


def _parts_of(variable: Named) -> dict[str, object] | None:
    """The attributes or items that are read of a variable; None where more of it may be, or is by its methods."""
    value, taken = variable.value, variable.taken
    if isinstance(value, type):
        read = variable.names if taken is None else taken
        return {key: part for key, part in class_attributes(value).items() if key in read}
    held = value if isinstance(value, dict) else getattr(value, "__dict__", {})
    if taken and taken <= held.keys():
        return {key: held[key] for key in taken}
    held = _held(value)
    return None if held is None else {key: part for key, part in held.items() if key in variable.names}


def _held(value: object) -> dict[str, object] | None:
    """What an object of options or settings holds; None of any other.

    A class of C's (a file, ``functools.partial``, a list with attributes) holds more than attributes tell.
    """
    kinds = type(value).__mro__[:-1]
    names = [name for cls in kinds for name, each in vars(cls).items() if isinstance(each, _MEMBERS)]
    caches = isinstance(value, _lru_cache_wrapper)
    if caches or not hasattr(value, "__dict__") or any(not name.startswith("_") or name in READING for name in names):
        return None
    return vars(value)
