"""Which predictions are part of the loop: a policy is asked what to do, or a target network about the next batch."""

from __future__ import annotations

import weakref
from types import ModuleType
from typing import Any

from ..session import Session
from ..stretches import Stretches, hash_of
from .types import Model


class PredictionWatch:
    """Is told of each ``predict`` and ``predict_on_batch`` of the script's own loop.

    A model that is asked about other arrays each time acts in what is trained on, and one that is asked about the same
    again, or about a dataset, validates: as for functions in ``tensorflow/apart.py``.
    """

    def __init__(self, session: Session, keras: ModuleType) -> None:
        self._session = session
        self._keras = keras
        self._seen: weakref.WeakKeyDictionary[Model, Stretches] = weakref.WeakKeyDictionary()

    def acts(self, model: Model, given: object) -> bool:
        """Whether this prediction is part of the loop; says so to the clock and, once, to people."""
        clock = self._session.clock
        seen = self._seen.setdefault(model, Stretches())
        since, is_new = seen.called(clock.total_steps)
        seen.compare(lambda: hash_of(self._keras.tree.flatten(given), self._every), is_new=is_new)
        if not seen.varies:
            return False
        clock.fetch_begins()  # what was set apart before it has ended
        if clock.total_steps and since >= clock.recurring.fewest_steps:
            self._session.facts.remark(
                "a model predicts for other values each time, between steps: that is part of what is timed"
            )
        return True

    def _every(self, array: Any, number: int) -> Any:
        flat = array if hasattr(array, "flat") else self._keras.ops.reshape(array, (-1,))
        return flat.flat[::number] if flat is array else self._keras.ops.convert_to_numpy(flat[::number])
