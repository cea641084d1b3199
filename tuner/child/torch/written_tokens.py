"""Which model wrote, without gradients, the tokens that it is trained on next: that generation is part of training.

A model that writes is asked about rows that grow by a token with each call, or about the newest token alone where it
keeps what it computed of the others. Samples that a script draws to be read grow likewise: they don't come again, but
where a model has learned its training data by heart, or is asked for them. Then a loader gives them of data that were
there before.
"""

from __future__ import annotations

import itertools
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from time import perf_counter
from types import ModuleType
from typing import Any

from .rows import tensors
from .types import Module

MOST_ROWS = 8
"""Of a call that are followed, the first ones."""
BEFORE, FEWEST, MOST_WRITTEN = 4, 3, 16
"""Tokens of a row that are looked for: so many of those that were given, and at least and at most of those written."""
LOOKED_AT = 8
"""Calls to train behind what was written, in which it is looked for."""
FETCHED = 4
"""Batches, the newest ones, that may be what a model is called to train on: some loaders fetch ahead."""
MOST_NUMBERS = 1 << 18
"""Of a call to train that are looked at, in its first rows."""
MOST_CALLS, MOST_S = 512, 0.25
"""Without gradients that are followed, and what all looks may take: less than a warm-up."""


class WrittenTokens:
    """Is told of the calls of models until one is known to train on what it wrote."""

    def __init__(self, torch: ModuleType) -> None:
        self._torch = torch
        self.may_read: Callable[[], bool] = lambda: True
        """Whether what tensors hold may be read now."""
        self._rows: list[list[int]] = []
        self._model: weakref.ref[Module] | None = None
        self._given = 0
        """Tokens of each row that weren't written."""
        self._found: set[int] = set()
        self.began_s = 0.0
        """When the first token was asked for, as ``time.perf_counter`` tells it."""
        self._fetched: deque[list[str]] = deque(maxlen=FETCHED)
        self._calls = self._looked_at = 0
        self._seconds = 0.0

    def asked(self, module: Module, given: Iterable[object]) -> None:
        """A module is called without gradients."""
        if self._calls > MOST_CALLS or self._seconds > MOST_S or not self.may_read():
            return
        began = perf_counter()
        rows = next(self._integers(given, MOST_ROWS), None)
        self._calls += rows is not None
        is_kept = self._has_written and not self._looked_at  # until it was looked for, whatever else is asked about
        if rows and not self._grows(module, rows) and not is_kept:
            self._model, self._rows, self._given = weakref.ref(module), rows, len(rows[0])
            self._found, self._looked_at, self.began_s = set(), 0, began
            self._fetched.clear()
        self._seconds += perf_counter() - began

    def _grows(self, module: Module, rows: list[list[int]]) -> bool:
        """Whether these are the rows that the module was asked about before, and a token more."""
        before = self._rows
        if self._model is None or self._model() is not module or len(rows) != len(before) or self._looked_at:
            return False
        width = len(rows[0])
        if width == 1 or all(row[:-1] == known[1 - width :] for row, known in zip(rows, before, strict=True)):
            for row, known in zip(rows, before, strict=True):
                known.append(row[-1])
            return True
        return False

    @property
    def _has_written(self) -> bool:
        return bool(self._rows) and len(self._rows[0]) - self._given >= FEWEST

    @property
    def is_looked_for(self) -> bool:
        """Whether what was written may be trained on now."""
        may_be = self._has_written and self._looked_at < LOOKED_AT and self._seconds <= MOST_S
        return may_be and self.may_read()

    def fetched(self, batch: object) -> None:
        """A loader gave a batch of data that were there before anything was written: it holds nothing of that."""
        began = perf_counter()
        tables = itertools.islice(self._integers((batch,), None), 2)
        self._fetched.append([_text(row) for rows in tables for row in rows])
        self._seconds += perf_counter() - began

    def trains_on(self, given: Iterable[object]) -> Module | None:
        """A module is called to train: the one that wrote at least half of the rows that were followed, once seen."""
        if not self.is_looked_for:
            return None
        began = perf_counter()
        self._looked_at += 1
        first = max(0, self._given - BEFORE)
        wanted = [_text(row[first : self._given + MOST_WRITTEN]) for row in self._rows]
        known = [text for texts in self._fetched for text in texts]
        for rows in itertools.islice(self._integers(given, None), 2):
            texts = [_text(row) for row in rows]
            found = {place for place, row in enumerate(wanted) if any(row in text for text in texts)}
            self._found |= {place for place in found if not any(wanted[place] in text for text in known)}
        self._seconds += perf_counter() - began
        return self._model() if 2 * len(self._found) >= len(self._rows) and self._model is not None else None

    def _integers(self, given: Iterable[object], most: int | None) -> Any:
        """The rows of each table of whole numbers among what a module is given, ``most`` of them."""
        torch = self._torch
        for tensor in tensors(torch, tuple(given)):
            told: Any = tensor
            if told.dtype in (torch.int64, torch.int32) and told.dim() == 2 and told.layout is torch.strided:
                few = max(1, MOST_NUMBERS // max(1, told.shape[1])) if most is None else most
                if told.numel() and not told.is_nested and told.device.type in ("cpu", "cuda"):
                    rows: list[list[int]] = []
                    with suppress(Exception):  # a function transform's has no values, nor has one that is traced
                        rows = told.detach()[:few].tolist()
                    yield rows


def _text(tokens: Sequence[int]) -> str:
    """By which a row is found within a longer one."""
    return f" {' '.join(map(str, tokens))} "
