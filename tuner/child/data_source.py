"""What is known of the data that are iterated at one place of the user's code."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

MOST_WAITS = 400
"""Of the newest batches of a source, which are kept one by one."""


@dataclass
class DataSource:
    """What is known of the data that are iterated at one place of the user's code: the same in each epoch and each run.

    ``key``: ``stack``, ``#`` and a number that tells several of one place apart. ``stack``: the user's frames.
    ``fetches``: batches given. ``samples``: in all of them. ``sizes``: samples of a batch → batches of that size.
    ``training_gaps``: gaps in which it was fetched; ``gaps_with``: those in which others were, too, by their keys.
    ``fed``: gaps whose gradient it fed itself: no primary source was fetched in them, and it was the last one.
    ``iterated``: whether an iteration began. ``dataset``: a weak
    reference to the newest dataset, None once it is gone. ``first_start_s``: seconds from the beginning of the first
    iteration to its first batch; ``later_starts``, ``later_start_s``: number and sum of those of later iterations.
    ``thread``: the last that fetched. ``tokens``: of all its batches, padding left out; 0 where none are counted.
    ``shortest``, ``longest``: tokens per sample, of its batches.
    ``waits``: seconds that each of its newest batches was waited for, but for the first of an iteration.
    ``given``: batches of the newest iteration; ``asked_about``: those of them that a model was asked about at once, as
    where it is evaluated; ``evaluated``: those of these behind which the next fetch came, and no training; ``ended``:
    whether it has come to its end. ``trains``: whether a gradient was taken on it. ``passes``: earlier iterations that
    trained; ``taken``, ``most_taken``: the batches of all of them, and of the longest one.
    ``is_validated_on``: whether one came to its end, a model being asked about all of it and no gradient taken on
    anything meanwhile; false for good once it trains.
    """

    key: str
    stack: str
    fetches: int = 0
    samples: float = 0.0
    sizes: dict[int, int] = field(default_factory=dict)
    training_gaps: int = 0
    gaps_with: Counter[str] = field(default_factory=Counter)
    fed: int = 0
    iterated: bool = False
    dataset: Callable[[], object] = lambda: None
    first_start_s: float | None = None
    later_starts: int = 0
    later_start_s: float = 0.0
    thread: int = 0
    tokens: int = 0
    shortest: float = 0.0
    longest: float = 0.0
    given: int = 0
    asked_about: int = 0
    evaluated: int = 0
    ended: bool = False
    trains: bool = False
    is_validated_on: bool = False
    passes: int = 0
    taken: int = 0
    most_taken: int = 0
    waits: deque[float] = field(default_factory=lambda: deque(maxlen=MOST_WAITS))
    _begun_s: float | None = None
    _begun_behind: int = 0
    _came_behind: int = 0

    def count(self, samples: int, tokens: int = 0, gradients: int = 0) -> None:
        """Counts one batch, which came behind so many ``gradients``."""
        self._came_behind = gradients
        self.fetches += 1
        self.given += 1
        self.samples += samples
        if tokens:
            length = tokens / max(1, samples)
            self.tokens += tokens
            self.shortest, self.longest = min(self.shortest or length, length), max(self.longest, length)
        self.sizes[samples] = self.sizes.get(samples, 0) + 1

    def feeds_gradient(self, together: Collection[str] = ()) -> None:
        """A gradient was taken on it: it is no data to validate on, from this batch on. ``together``: on which keys."""
        self.training_gaps += 1
        if len(together) > 1:
            self.gaps_with.update(list(together))  # of a mapping the values would be added up
        self.trains, self.is_validated_on = True, False

    @property
    def is_beginning(self) -> bool:
        """Whether an iteration has begun whose first batch has not come yet."""
        return self._begun_s is not None

    def begins(self, wait_s: float, gradients: int = 0) -> None:
        """An iteration began behind so many ``gradients``, which took so many seconds."""
        self.iterated = True
        was_asked_about = self.ended and 0 < self.given <= self.asked_about and not self.trains
        is_whole = was_asked_about and self._came_behind == self._begun_behind
        self.is_validated_on = (self.is_validated_on or is_whole) and not self.training_gaps
        self._begun_behind = gradients
        if self.trains:
            self.passes += 1
            self.taken += self.given
            self.most_taken = max(self.most_taken, self.given)
        self.trains = False
        self.given = self.asked_about = self.evaluated = 0
        self.ended = False
        self._begun_s = wait_s

    def start_ends(self, wait_s: float) -> float | None:
        """A batch came after so many seconds: those since the iteration began if it is its first one, else None."""
        if self._begun_s is None:
            return None
        start_s, self._begun_s = self._begun_s + wait_s, None
        if self.first_start_s is None:
            self.first_start_s = start_s
        else:
            self.later_starts += 1
            self.later_start_s += start_s
        return start_s

    def taken_of(self, batches: int) -> float:
        """Of an iteration of so many batches those that are taken on average; 0 where all are, or nobody knows.

        The newest one may be longer than any before: a search for a learning rate came first.
        """
        if not self.passes or self.given > self.most_taken:
            return 0.0
        mean = self.taken / self.passes
        return mean if mean < batches - 1 else 0.0

    @property
    def usual_size(self) -> int:
        """Samples in most of its batches; 0 before the first one."""
        return max(self.sizes, key=lambda size: self.sizes[size]) if self.sizes else 0
