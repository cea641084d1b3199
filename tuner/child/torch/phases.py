"""Whether a training goes on with batches of another size than those that a config's learning rate goes with."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable

from ..session import Session
from .loader_places import Loader


class Phases:
    """Sees a training go on with batches that aren't the config's: a curriculum makes its loaders at one place.

    ``on_other``: called once, before the first step on such batches. What doesn't shuffle alike validates, as does what
    no step follows on: it may be made in the same line.
    """

    def __init__(self, session: Session) -> None:
        self.on_other: Callable[[], None] = lambda: None
        self._is_open = session.knobs.wants("batch_size") and session.knobs.wants("lr_scale")
        self._changed: list[Loader] = []
        self._other: Callable[[], object | None] = lambda: None
        """The newest iterator over such batches, as long as anything holds it: a validation lets go of its own."""
        self._is_hooked = False

    def begins(self, loader: Loader, iterator: object) -> None:
        """An iteration begins."""
        if not self._is_open:
            return
        if "batch_size" in loader.changed:
            self._changed += [loader] if loader not in self._changed else []
            self._other = lambda: None
        elif any(self._goes_on(before, loader) for before in self._changed):
            self._other = weakref.ref(iterator)
            if not self._is_hooked:
                self._is_hooked = True
                sys.modules["torch.optim.optimizer"].register_optimizer_step_pre_hook(self._step_begins)

    def _step_begins(self, *_: object) -> None:
        if self._is_open and _may_go_on(self._other()):
            self._is_open = False
            self.on_other()

    def _goes_on(self, before: Loader, loader: Loader) -> bool:
        is_alike = before.stack == loader.stack and before.written["shuffle"] == loader.written["shuffle"]
        return is_alike and before.written["batch_size"] != loader.written["batch_size"]


def _may_go_on(iterator: object | None) -> bool:
    """Whether it is there, and not through: a loader whose workers stay holds on to its iterator for the next time."""
    stays, left = getattr(iterator, "_persistent_workers", False), getattr(iterator, "_tasks_outstanding", 1)
    return iterator is not None and not (stays and left == 0)
