"""Tells a validation from what recurs with every step, such as a frozen teacher: by the steps that lie between."""

from __future__ import annotations

from collections.abc import Mapping

from .records import Knowledge
from .words import Value

MIN_STEPS_BETWEEN_VALIDATIONS = 3
"""What recurs after fewer (a frozen teacher, the scores of a full-batch script) is part of the step."""

ALL, SOME, NOTHING = "all", "some", "nothing"


class Recurring:
    """What isn't training and comes between steps, by its source. ``fewest_steps`` lie between two validations."""

    def __init__(self) -> None:
        self.fewest_steps: float = MIN_STEPS_BETWEEN_VALIDATIONS
        self._last_seen: dict[object, int] = {}
        self._was_part = self._was_apart = False

    def decide_as(self, written: Knowledge, config: Mapping[str, Value]) -> None:
        """As the script as written: the same epoch has fewer steps with larger batches, and more with smaller ones."""
        if written.set_apart == ALL:
            self.fewest_steps = 1
        elif written.set_apart == NOTHING:
            more = _batch(written.as_written) / (_batch({**written.as_written, **config}) or 1)
            self.fewest_steps = MIN_STEPS_BETWEEN_VALIDATIONS * max(1.0, more)

    def is_part_of_step(self, source: object, steps: int, *, is_open: bool) -> bool:
        """Whether the source, which shows after so many steps of the trial, belongs to them.

        ``is_open``: it was set apart, and training hasn't resumed.
        """
        is_first = not steps or source not in self._last_seen
        between = steps - self._last_seen.get(source, 0)
        self._last_seen[source] = steps
        return not is_open and self.comes_with_steps(between, is_first=is_first)

    def missed(self, count: int) -> None:
        """So many steps went unseen: what had come with those before came with them, too. They lie between nothing."""
        for source in self._last_seen:
            self._last_seen[source] += count

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
