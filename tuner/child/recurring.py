"""Tells a validation from what recurs with every step, such as a frozen teacher: by the steps that lie between."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set

from .records import Knowledge
from .words import Value

MIN_STEPS_BETWEEN_VALIDATIONS = 3
"""What recurs after fewer (a frozen teacher, the scores of a full-batch script) is part of the step. Not so what lies
that many batches apart, of which a step accumulates several, nor data that a model is asked about from their beginning
to their end while nothing trains.
"""

ALL, SOME, NOTHING = "all", "some", "nothing"


class Recurring:
    """What isn't training and comes between steps, by its source. ``fewest_steps`` lie between two validations."""

    def __init__(self) -> None:
        self.fewest_steps: float = MIN_STEPS_BETWEEN_VALIDATIONS
        self.batches = 0
        """Trained on, of the loader that trains: several of them may be accumulated for a step."""
        self.catches_up: Callable[[], None] = lambda: None
        """Has steps run and count that wait for further ones, which came before what is no training."""
        self._last_seen: dict[object, tuple[int, int]] = {}
        self._validated_on: set[object] = set()
        self._was_part = self._was_apart = False

    def decide_as(self, written: Knowledge, config: Mapping[str, Value]) -> None:
        """As the script as written: the same epoch has fewer steps with larger batches, and more with smaller ones."""
        if written.set_apart == ALL:
            self.fewest_steps = 1
        elif written.set_apart == NOTHING:
            more = _batch(written.as_written) / (_batch({**written.as_written, **config}) or 1)
            self.fewest_steps = MIN_STEPS_BETWEEN_VALIDATIONS * max(1.0, more)

    def is_part_of_step(self, source: object, steps: int, set_apart: Set[object]) -> bool:
        """Whether the source, which shows after so many steps of the trial, belongs to them.

        ``set_apart``: what shows in the time that is set apart at present; empty where training has resumed.
        """
        is_first = not steps or source not in self._last_seen
        steps_before, batches_before = self._last_seen.get(source, (0, 0))
        between = max(steps - steps_before, self.batches - batches_before)
        self._last_seen[source] = steps, self.batches
        self._was_apart |= source in self._validated_on
        if source in set_apart or not self._validated_on.isdisjoint({source, *set_apart}):
            return False
        return self.comes_with_steps(between, is_first=is_first)

    def sets_apart(self, source: object, steps: Callable[[], int]) -> None:
        """What isn't training begins with the source. ``steps``: of the trial by now."""
        self.catches_up()
        self._last_seen[source] = steps(), self.batches

    def validates_on(self, source: object, *, is_so: bool) -> None:
        """Whether the source is known to be validated on: it and what comes with it are part of no step, then."""
        (self._validated_on.add if is_so else self._validated_on.discard)(source)

    def is_validated_on(self, source: object) -> bool:
        """Whether ``validates_on`` has told of it."""
        return source in self._validated_on

    def missed(self, count: int) -> None:
        """So many steps went unseen: what had come with those before came with them, too. They lie between nothing."""
        self._last_seen = {source: (steps + count, self.batches) for source, (steps, _) in self._last_seen.items()}

    def comes_with_steps(self, between: int, *, is_first: bool = False) -> bool:
        """The same of what shows after so many steps since the last time, or since the beginning."""
        is_part = between < self.fewest_steps
        self._was_apart |= not is_part
        self._was_part |= is_part and not is_first
        return is_part

    @property
    def set_apart(self) -> str:
        """Of what came between steps: ``ALL``, ``SOME`` or ``NOTHING`` was set apart; "" where nothing came again."""
        if self._was_apart:
            return SOME if self._was_part else ALL
        return NOTHING if self._was_part else ""


def _batch(values: Mapping[str, Value]) -> int:
    """Samples in an optimizer step; 1 where the script's own values are no numbers."""
    size = values.get("batch_size")
    parts = values.get("grad_accumulation", 1)
    return size * (parts if type(parts) is int else 1) if type(size) is int else 1
