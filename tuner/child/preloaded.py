"""What a fork server had imported before it forked this process, so that hooks can be made up for.

In a fresh process a hook acts right after its library was imported: what is imported later takes from it what the hook
has put there. A fork has both behind it, so the order in which they came has to be known.
"""

from __future__ import annotations

import gc
import importlib.abc
import importlib.machinery
import os
import random
import sys
import weakref
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import ModuleType
from typing import Any, cast

from .holders import Holders

_MOST_DRAWN = 1000


class NotInstalled(BaseException):
    """A module that belongs to no installed package was about to be imported. No ``Exception``: nobody catches it."""


@dataclass
class Preloaded:
    """``before``: the modules of a process that has imported nothing for the script yet.

    ``drawn``: so many numbers of 32 bits were drawn from ``random`` meanwhile, as rich does for its styles, and
    ``drawn_by_numpy`` from NumPy's global generator, as JAX does for its patience.
    ``completed``: libraries that have hooks, in the order in which their imports ended, each with what had taken its
    names by then: see ``taken_by_now``. ``seed_anew``: seeds each generator that an import made and seeded by chance.
    ``holders``: of what hooks replace; None where that isn't known.
    """

    before: frozenset[str]
    completed: list[tuple[str, frozenset[str]]] = field(default_factory=list)
    drawn: int = 0
    drawn_by_numpy: int = 0
    seed_anew: list[Callable[[], None]] = field(default_factory=list)
    holders: Holders | None = None

    def note(self, module: ModuleType) -> None:
        """To be called when the import of a library that has hooks has ended."""
        self.completed.append((module.__name__, taken_by_now()))


def taken_by_now() -> frozenset[str]:
    """The modules whose imports are done, and of each that has begun its names so far, as ``module:name``.

    One that has begun may yet take what a hook puts into the library that it has just imported.
    """
    found: set[str] = set()
    for name, module in list(sys.modules.items()):
        names = vars(module) if issubclass(type(module), ModuleType) else {}  # asking a lazy module may import it
        if getattr(names.get("__spec__"), "_initializing", False):
            found.update(f"{name}:{own}" for own in names)
        else:
            found.add(name)
    return frozenset(found)


def drawn_since(state: object) -> int | None:
    """How many numbers of 32 bits ``random`` has given since that state of it; None where that are too many to count.

    A fresh process draws as many after it is seeded, as long as none is drawn until it suits.
    """
    then, now = random.Random(), random.getstate()
    then.setstate(state)  # type: ignore[arg-type]
    return _draws_until(lambda: then.getstate()[1] == now[1], lambda: then.getrandbits(32))


def _draws_until(is_there: Callable[[], bool], draw: Callable[[], object]) -> int | None:
    for count in range(_MOST_DRAWN):
        if is_there():
            return count
        draw()
    return None


class GlobalGenerator:
    """Counts what is drawn from NumPy's global generator, from the import of ``NAME`` on, which makes it."""

    NAME = "numpy.random.mtrand"

    def __init__(self) -> None:
        self._made: tuple[Any, Any] | None = None

    def note(self, mtrand: Any) -> None:
        """To be called when the import of that module has ended."""
        self._made = mtrand, mtrand.get_state()

    def drawn(self) -> int | None:
        """As ``drawn_since``."""
        if self._made is None:
            return 0
        mtrand, state = self._made
        then, now = mtrand.RandomState(), _plain(mtrand.get_state())
        then.set_state(state)
        return _draws_until(lambda: _plain(then.get_state()) == now, lambda: then.bytes(4))


def _plain(state: Any) -> tuple[object, ...]:
    return state[1].tobytes(), *state[2:]


class ByChance:
    """Notes the generators that imports make without a seed: in a fresh process each begins elsewhere.

    Python's by the method that seeds them, NumPy's by what is drawn for them, from the import of ``NAME`` on.
    """

    NAME = "numpy.random.bit_generator"

    def __init__(self) -> None:
        self._pythons: weakref.WeakSet[random.Random] = weakref.WeakSet()
        self._drawn: set[int] = set()
        self._numpy: Any = None
        self._put_back: list[Callable[[], None]] = []
        pythons, seed, kind = self._pythons, random.Random.seed, cast("Any", random.Random)

        def noting(generator: random.Random, a: Any = None, version: int = 2) -> None:
            (pythons.add if a is None else pythons.discard)(generator)
            seed(generator, a, version)

        kind.seed = noting
        self._put_back.append(lambda: setattr(kind, "seed", seed))

    def note(self, module: Any) -> None:
        """To be called when the import of that module has ended."""
        draw, drawn = getattr(module, "randbits", None), self._drawn
        if draw is None:
            return  # another version's: its generators are the server's
        self._numpy = module

        def noting(bits: int) -> int:
            number: int = draw(bits)
            drawn.add(number)
            return number

        module.randbits = noting
        self._put_back.append(lambda: setattr(module, "randbits", draw))

    def found(self) -> list[Callable[[], None]]:
        """What seeds each of them anew. Nothing is noted any more."""
        for put_back in self._put_back:
            put_back()
        pythons = [each.seed for each in self._pythons if not isinstance(each, random.SystemRandom)]
        return [*pythons, *(partial(_seed_anew, each) for each in self._of_numpy())]

    def _of_numpy(self) -> list[Any]:
        if self._numpy is None:
            return []
        of_all = sys.modules["numpy.random"].get_bit_generator()  # seeded anew by NumPy itself, and stays at its place
        made = [
            each for each in gc.get_objects() if issubclass(type(each), self._numpy.BitGenerator) and each is not of_all
        ]
        seeds = ((each, getattr(each, "seed_seq", None) or getattr(each, "_seed_seq", None)) for each in made)
        return [each for each, seed in seeds if getattr(seed, "entropy", None) in self._drawn]


class Asked:
    """Notes which of these variables of the environment are read by their name; whoever reads all is no matter."""

    def __init__(self, names: Collection[str]) -> None:
        found, kind = set[str](), cast("Any", type(os.environ))
        self._found, self._kind, self._read = found, kind, kind.__getitem__
        read = self._read

        def noting(environment: Any, name: str) -> str:
            if name in names:
                found.add(name)
            value: str = read(environment, name)
            return value

        kind.__getitem__ = noting

    def found(self) -> list[str]:
        """Which those were. Nothing is noted any more."""
        self._kind.__getitem__ = self._read
        return sorted(self._found)


def _seed_anew(generator: Any) -> None:
    generator.state = type(generator)().state


here: Preloaded | None = None
"""Of this process; None in one that started fresh."""


class InstalledOnly(importlib.abc.MetaPathFinder):
    """Goes before all other finders, and raises ``NotInstalled`` where they find a module outside of ``folders``.

    ``refused``: which those were: a library may have caught the error, and done without the module.
    """

    def __init__(self, folders: Collection[str]) -> None:
        self._folders = tuple(folders)
        self.refused: list[str] = []

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The spec that the next finders give."""
        for finder in list(sys.meta_path):
            if finder is self or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(fullname, path, target)
            if spec is not None:
                if not self._is_installed(spec):
                    self.refused.append(fullname)
                    raise NotInstalled(f"{fullname} lies in no installed package")
                return spec
        return None

    def strangers(self) -> list[str]:
        """Modules that are there already, such as ``sitecustomize``, and belong to no installed package."""
        main, own = sys.modules.get("__main__"), __name__.partition(".")[0]  # which has another name, too
        theirs = [name for name, module in sys.modules.items() if module is not main and name.partition(".")[0] != own]
        files = {name: getattr(sys.modules[name], "__file__", None) for name in theirs}
        return [name for name, file in files.items() if isinstance(file, str) and not file.startswith(self._folders)]

    def _is_installed(self, spec: importlib.machinery.ModuleSpec) -> bool:
        if spec.origin in ("built-in", "frozen"):
            return True
        places = [spec.origin] if spec.origin and spec.has_location else list(spec.submodule_search_locations or ())
        if not places:  # made by a program, as six makes six.moves
            maker = sys.modules.get(type(spec.loader).__module__)
            places = [getattr(maker, "__file__", None) or ""] if spec.loader is not None else []
        return bool(places) and all(place.startswith(self._folders) for place in places)
