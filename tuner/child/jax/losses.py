"""Which of a function's results is the training loss: seen in its trace, or told by its name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

WORD = "loss"
Paths = Sequence[tuple[Any, Any]]
"""The leaves of a structure with their paths, as ``jax.tree_util.tree_flatten_with_path`` gives them."""


class LossPlace:
    """Of one function. ``site``: where the gradient of the loss is taken.

    A trace notes the values that are differentiated; the result that is one of them, as it is, is the loss. Where none
    is (it is averaged over devices, or computed again for the metrics), it is the one number called so.
    """

    def __init__(self) -> None:
        self.site = ""
        self._values: list[Any] = []
        self._number: int | None = None
        self._is_known = False

    def differentiated(self, value: Any, site: str) -> None:
        """A value whose gradient is taken in the trace that runs now; of several the first one counts."""
        if not self._values:
            self.site = site
        self._values.append(value)

    def traced(self, paths: Paths) -> None:
        """The trace has ended, with this result."""
        values, self._values = self._values, []
        if not values:
            return
        found = next((n for n, (_, leaf) in enumerate(paths) if leaf is values[0]), None)
        self._number = found if found is not None else _named(paths)
        self._is_known = True

    def ran(self, paths: Paths) -> None:
        """The function gave this result, and its trace couldn't be seen."""
        self._values = []
        if not self._is_known:
            self._number = _named(paths)
            self._is_known = True

    @property
    def is_known(self) -> bool:
        """Whether it was looked for."""
        return self._is_known

    def of(self, leaves: Sequence[Any]) -> Any:
        """The loss among a call's results; None where none is seen."""
        return leaves[self._number] if self._number is not None and self._number < len(leaves) else None


def _named(paths: Paths) -> int | None:
    """The only number whose path says that it is a loss."""
    found = [
        number for number, (path, leaf) in enumerate(paths)
        if WORD in "".join(map(str, path)).lower() and getattr(leaf, "shape", None) == ()
        and "float" in str(getattr(leaf, "dtype", ""))
    ]  # fmt: skip
    return found[0] if len(found) == 1 else None
