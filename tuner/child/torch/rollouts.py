"""Which calls without gradients are a rollout's: they make the data that is trained on next, and are part of training.

A loop of reinforcement learning asks its policy what to do, in ``eval()`` and without gradients, as a validation asks
its model. What it asked comes again where it trains; what a model is validated on doesn't, had been trained on before,
or, where folds take turns, is asked about again before it is. So rows are known again by what they hold, until this is
decided or has been looked for long enough.

Rows may train otherwise than they were asked about: continued by the tokens that were drawn (``written_tokens``), or as
a set of data that is made anew of as many as were asked about, whatever was made of their numbers.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from math import inf
from time import perf_counter
from types import ModuleType
from typing import Any, NamedTuple

from ..identities import ByIdentity
from .rows import tensors
from .types import Module
from .written_tokens import WrittenTokens

SHOWN_BY = 8
"""Rows that were asked about and trained on next, after which it is a rollout."""
EARLY = 64
"""Calls to train by which a rollout has begun: what is looked at later, and not before, is validated on. But not where
that is one row at a time, as by who imitates first and then acts (DAgger), and none of those were trained on.
"""
MOST_CALLS = 512
"""To train, that are looked at: on a card each look waits for it."""
MOST_S = 0.5
"""That looks at what is trained on may take together: less than a warm-up. Of thousands of rows one takes longer than a
step, and the script as written, which lives through many trials, takes none any more. A rollout shows at the first.
"""
MOST_ROWS = 4096
"""Asked about that are remembered, and to a call that are looked at."""
MOST_NUMBERS = 1 << 22
"""Of a call that are looked at, in its first rows: a batch of pictures of an Atari game holds twice that."""
MADE_ANEW = 2
"""Times in a row that data were made of as many rows as a model had just been asked about, after which it acts."""
_ON = ("cpu", "cuda")
_PIXELS = 255.0
_DIGITS = 5


class _Asked(NamedTuple):
    """Of a row that was asked about: the model, the rows of the call, and how many calls to train came before it."""

    model: weakref.ref[Module]
    size: int
    at: int


@dataclass
class _Stretch:
    """What a module was asked about between two calls to train: rows, those of its newest call, in which memory, and
    since when.
    """

    rows: int = 0
    newest: int = 0
    storages: set[int] = field(default_factory=set)
    began_s: float = field(default_factory=perf_counter)

    def makes(self, length: int | None) -> bool:
        """Whether data of this length may be those rows: all, or all but the last call's, about where they ended."""
        return bool(length) and int(length or 0) in (self.rows - self.newest, self.rows)


def _storages(held: Iterable[Any]) -> set[int]:
    """Where the memory of these tensors begins; of those that have none of their own nothing."""
    found: set[int] = set()
    for tensor in held:
        with suppress(Exception):  # kinds that have no such memory
            if not hasattr(tensor, "fake_mode"):  # PyTorch would warn of the question
                found.add(int(tensor.untyped_storage().data_ptr()))
    return found


class RolloutWatch:
    """Decides it from calls alone, where no loader gives batches and what tensors hold may be read (``is_open``).

    A rollout asks about fewer rows at a time than are trained on together. ``is_dealt_out``: whether a loader may give
    what a model that trains is asked about now: of what nothing else tells apart, all that is trained on next is one.
    """

    def __init__(self, torch: ModuleType) -> None:
        self.torch = torch
        self.is_open: Callable[[], bool] = lambda: True
        self.is_dealt_out: Callable[[], bool] = lambda: False
        self._roll: weakref.WeakSet[Module] = weakref.WeakSet()
        self._asked: dict[str, _Asked] = {}  # by what a row holds
        self._asked_at: dict[int, Counter[weakref.ref[Module]]] = {}  # calls to train before → model → rows
        self._known: set[str] = set()
        self._fewest = self._most_trained = 0  # rows of a call without gradients, and of one to train
        self._shown: dict[weakref.ref[Module], int] = {}
        self._acts_first = self._is_late = False
        self._looked_back_at = -1
        self._calls = 0
        self._looked_s = 0.0
        self.is_of_each_batch: Callable[[Module], bool] = lambda module: False
        """Whether what a module is asked now comes with each batch that a loader gives, before any step on it."""
        self.is_given: Callable[[], bool] = lambda: False
        """Whether a loader that trains gave what a module may be asked about now."""
        self.written = WrittenTokens(torch)
        self._since: weakref.WeakKeyDictionary[Module, _Stretch] = weakref.WeakKeyDictionary()
        """What each module was asked about since a call to train, apart from ``_parts`` of one that was."""
        self._parts: weakref.WeakSet[Module] = weakref.WeakSet()
        self._has_trained = False
        self._given: ByIdentity[tuple[float, int | None]] = ByIdentity()
        """Sets of data that a loader that trains has given from: since when, and of which length they were then."""
        self._times = 0

    def asked(self, module: Module, given: Iterable[object]) -> bool:
        """A module is called without gradients. Returns whether it is known to be asked in rollouts."""
        if module in self._roll or self.is_of_each_batch(module):
            return True
        if module not in self._parts:
            given = tuple(given)
            self._note(module, given)
        again = self._calls not in self._asked_at
        has_room = not self._fewest or len(self._asked) < MOST_ROWS or again
        if has_room and self._looked_back_at != self._calls and self._looks():
            tensor = self._tensor(given)
            size = self._size(tensor)
            if module.training and self.is_dealt_out():
                size = min(size, 1)
            self._is_late |= not self._fewest and self._calls >= EARLY
            is_small = size == 1 if self._is_late else not self._most_trained or 2 * size <= self._most_trained
            if size and is_small:
                self._fewest = min(self._fewest or size, size)
                self._remember(module, set(self._rows(tensor)), size)
        return False

    def _remember(self, module: Module, rows: set[str], size: int) -> None:
        if self._is_late and rows & self._known:
            self._looked_back_at = self._calls  # at what it was trained on: what else it is asked now is no rollout's
            self._asked = {row: asked for row, asked in self._asked.items() if asked.at != self._calls}
            return
        rows -= self._known
        model = weakref.ref(module)
        self._asked_at.setdefault(self._calls, Counter())[model] += size
        known = {self._asked[row].at for row in rows if row in self._asked} - {self._calls}
        for row in [row for row, asked in self._asked.items() if asked.at in known] if known else ():
            del self._asked[row]  # asked about again, and not trained on meanwhile: validated on
            self._known.add(row)
        for row in rows - self._known if len(self._asked) < MOST_ROWS else ():
            self._asked.setdefault(row, _Asked(model, size, self._calls))

    def is_known(self, module: Module) -> bool:
        """Whether what this module is asked is known to be a rollout's."""
        return module in self._roll

    def _note(self, module: Module, given: tuple[object, ...]) -> None:
        self.written.asked(module, given)
        if self._has_trained:
            self._since, self._has_trained = weakref.WeakKeyDictionary(), False
        if module not in self._since:
            self._parts.update(part for part in module.modules() if part is not module)
            self._since[module] = _Stretch()
        stretch = self._since[module]
        tensor: Any = next(tensors(self.torch, given), None)
        if tensor is not None and tensor.dim() and not self.is_given():
            stretch.newest = int(tensor.shape[0])
            stretch.rows += stretch.newest
            stretch.storages |= _storages([tensor])

    def data_begin(self, dataset: Any, length: int | None, made_s: float) -> bool:
        """A loader that trains begins to give data; it was made at ``made_s``, as ``time.perf_counter`` tells it.

        Returns whether what came before is known by it to be a rollout: data were made anew of what was asked about.
        """
        is_new = dataset not in self._given
        with suppress(TypeError):  # no weak reference to it
            if is_new:
                self._given[dataset] = perf_counter(), length
        if self._has_trained and not is_new:
            return False  # another epoch on what a rollout was made into
        asked = [] if self._has_trained or not is_new else list(self._since.values())
        held = _storages(tensors(self.torch, getattr(dataset, "__dict__", {}).get("tensors")))
        made = any(each.began_s < made_s and each.makes(length) and not each.storages & held for each in asked)
        self._times = self._times + 1 if made else 0
        if self._times < MADE_ANEW or self._roll:
            return False
        self._acts()
        return True

    @property
    def looks_for_written(self) -> bool:
        """Whether what a model has written may be among what it is trained on next."""
        return not self._roll and self.written.is_looked_for

    def fetched(self, dataset: Any, length: int | None, batch: object) -> None:
        """A loader that trains gave a batch of these data."""
        since_s, known_length = self._given.get(dataset, (inf, None))
        if since_s < self.written.began_s and length == known_length:
            self.written.fetched(batch)

    def _acts(self) -> None:
        """What was asked since a call to train was asked in a rollout: of a policy, a critic, an older policy."""
        for module in list(self._since):
            self._roll.update(module.modules())  # its parts may be asked by themselves
        self._asked, self._known = {}, set()

    def trains_on(self, given: Iterable[object]) -> None:
        """A module is called to train."""
        self._has_trained = True
        if not self._roll and self.written.trains_on(given) in self._since:
            self._acts()
        if self._looks(MOST_CALLS if self._fewest else EARLY):
            began = perf_counter()
            self._look(given)
            self._looked_s += perf_counter() - began

    def _look(self, given: Iterable[object]) -> None:
        self._calls += 1
        tensor = self._tensor(given)
        size = self._size(tensor)
        self._most_trained = max(self._most_trained, size)
        if 2 * self._fewest > self._most_trained:
            self._fewest, self._asked = 0, {}  # whole batches, before the first was trained on
            self._asked_at.clear()
        for row in self._rows(tensor):
            self._known.add(row)
            asked = self._asked.pop(row, None)
            policy = asked.model() if asked is not None and self._may_be_acting(asked, size) else None
            if asked is None or policy is None:
                continue
            self._shown[asked.model] = self._shown.get(asked.model, 0) + 1
            if self._shown[asked.model] >= SHOWN_BY:
                self._roll.update(policy.modules())  # its parts may be asked by themselves
                self._asked, self._known = {}, set()
                return

    def _may_be_acting(self, asked: _Asked, size: int) -> bool:
        """One row at a time, or few; where training came first, few before it goes on: else a fold was validated on.

        Training came second where it begins with what was asked about before it, and not with a fold scored untrained.
        """
        self._acts_first |= not asked.at and len(self._asked_at) == 1
        few = self._acts_first or asked.size == 1 or self._asked_at[asked.at][asked.model] < size
        return 2 * asked.size <= size and few

    def _looks(self, most: int = MOST_CALLS) -> bool:
        return not self._roll and self._calls < most and self._looked_s < MOST_S and self.is_open()

    def _tensor(self, given: Iterable[object]) -> Any:
        """The first one, where it can be looked at."""
        tensor: Any = next(tensors(self.torch, tuple(given)), None)
        if tensor is None or tensor.layout is not self.torch.strided or tensor.is_nested or tensor.is_complex():
            return None
        return tensor if tensor.device.type in _ON and tensor.numel() >= 2 else None

    @staticmethod
    def _size(tensor: Any) -> int:
        """Its rows; 0 where it isn't looked at. One of a single dimension is a row."""
        return 0 if tensor is None else int(tensor.shape[0]) if tensor.dim() > 1 else 1

    def _rows(self, tensor: Any) -> list[str]:
        """What each row holds, in a few digits: pixels may come as bytes and train as fractions."""
        size = self._size(tensor)
        most = min(MOST_ROWS, MOST_NUMBERS * size // tensor.numel()) if size else 0
        if not most:
            return []
        try:
            rows = tensor.detach().reshape(size, -1)[:most]
            rows = rows.double() / (_PIXELS if tensor.dtype is self.torch.uint8 else 1.0)
            weights = self.torch.arange(1, rows.shape[1] + 1, dtype=rows.dtype, device=rows.device).sin()
            told = self.torch.stack((rows.sum(1), rows.square().sum(1), (rows * weights).sum(1)), 1).tolist()
        except RuntimeError:  # a function transform's has no values, a quantised one no such numbers
            return []
        return [" ".join(f"{number:.{_DIGITS}g}" for number in row) for row in told if row[1]]
