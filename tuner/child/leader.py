"""Whose steps count where several functions, updates or models of a loop step by turns, as a GAN's do."""

from __future__ import annotations

from collections.abc import Callable

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
