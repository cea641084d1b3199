"""Whose steps count where several functions, updates or models of a loop step by turns, as a GAN's do."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable

PATIENCE = 50
"""Another one that steps so often while the first one rests has taken over from it."""


class Leader:
    """The first one that steps, by what it is known as. ``replaced`` is called when another one has taken over."""

    def __init__(self, replaced: Callable[[], object] = lambda: None) -> None:
        self.key: object = None
        self._replaced = replaced
        self._others = 0

    def leads(self, key: object) -> bool:
        """Whether the step that ``key`` takes now counts."""
        if self.key is None or key is self.key or key == self.key:
            self.key, self._others = key, 0
            return True
        self._others += 1
        if self._others <= PATIENCE:
            return False
        self.key, self._others = key, 0
        self._replaced()
        return True

    def resigns(self) -> None:
        """Whoever steps next leads."""
        self.key, self._others = None, 0


class Cycle:
    """The first one of those that step one after another on the same batch, each of them an object of the script's.

    Scripts make such objects anew, one a layer, a fold or a client (PyTorch's optimizers): who steps again, or on
    another batch, leads at once, where a ``Leader`` would have left fifty steps uncounted.
    """

    def __init__(self) -> None:
        self._stepped: weakref.WeakSet[object] = weakref.WeakSet()
        self._batches = 0

    def leads(self, key: object, batches: int) -> bool:
        """Whether the step that ``key`` has taken counts. ``batches``: those that the loop has fetched so far."""
        counts = not self._stepped or key in self._stepped or batches != self._batches
        if counts:
            self._stepped.clear()
            self._batches = batches
        self._stepped.add(key)
        return counts


class _Token:
    """Stands for a key that can't be referred to weakly."""


class Turns:
    """As a ``Cycle``, of keys of any kind: functions, places in the script, optimizers.

    Where no batches are seen, the first step of one that goes on by itself counts with its second one: it might have
    been another network's on the same batch, and wasn't.
    """

    def __init__(self) -> None:
        self._cycle = Cycle()
        self._tokens: dict[Hashable, _Token] = {}
        self._newest: Callable[[], object] = lambda: None
        self._owed = 0

    def counted(self, key: Hashable, steps: int, batches: int) -> int | None:
        """How many of the ``steps`` that ``key`` has taken count, with those owed to it; None where it doesn't lead.

        ``batches``: those that the loop has fetched so far, 0 where none are seen.
        """
        token = self._held(key)
        owed = self._owed if self._newest() is token and not batches else 0
        self._newest, self._owed = weakref.ref(token), 0
        if self._cycle.leads(token, batches):
            return steps + owed
        self._owed = owed + steps
        return None

    def _held(self, key: Hashable) -> object:
        try:
            weakref.ref(key)
        except TypeError:
            return self._tokens.setdefault(key, _Token())
        return key
