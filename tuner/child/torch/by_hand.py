"""Whether a script without an optimizer updates by hand what it takes gradients of: else no backward is a step."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Sequence
from contextlib import suppress
from types import ModuleType
from typing import Any

from ..session import Session
from .losses import leaves
from .types import Optimizer, Tensor
from .weights import WeightWatch

_READ_ON = ("cpu", "cuda")
"""Where a look at all weights costs little. Elsewhere it might have a graph compiled, and isn't taken."""
_Look = dict[int, Hashable]
"""Each weight by its number, which another one may bear that is made once it is gone; what tells whether it changed.

None of them is referred to: it would stay, or not be exchanged (``torch.utils.swap_tensors``).
"""


class HandUpdates:
    """Looks at the weights before each backward while there is no optimizer, until they change from one to the next.

    A script may take gradients before it makes its optimizer, or once that has gone: to estimate where adapters begin,
    which weights to prune, or Fisher's information. Nothing moves there. So the first backward waits for the second
    one's look. What an optimizer moved that has gone since is no update by hand.
    """

    def __init__(self, session: Session, torch: ModuleType, weights: WeightWatch) -> None:
        self.are_seen = self.waits = False
        """Whether backwards are steps from here on, and whether the newest one is the first, which waits."""
        self.may_be = True
        """Whether the newest backward may be one of a script that updates by hand."""
        self.since_s = 0.0
        """When the first backward began that no step may have followed, by the clock."""
        self._has_stepped = False
        """Whether an optimizer has since the newest backward."""
        self._session = session
        self._torch = torch
        self._weights = weights
        self._before: _Look | None = None

    @property
    def only_takes(self) -> bool:
        """Whether gradients were taken several times by now, and nothing moved between them."""
        return self.may_be and not (self.are_seen or self.waits)

    def optimizer_stepped(self) -> None:
        """It may be gone by the next backward: some scripts make one for each step."""
        self._has_stepped = True

    def backward_begins(self, losses: Sequence[Tensor], optimizers: Collection[Optimizer]) -> bool:
        """Whether the backward before this one is known by this to have been a step, which wasn't counted yet."""
        if not optimizers:
            self._weights.backward_begins(losses)
        has_stepped, self._has_stepped = self._has_stepped, False
        self.may_be = not (optimizers or has_stepped) and self._session.measuring
        if not self.may_be:
            self.are_seen, self.waits, self._before = False, False, None
            self.since_s = self._session.clock.now
        if self.are_seen or not self.may_be:
            return False
        look, before = self._looked_at(losses), self._before
        self.waits, self._before = before is None, look
        if before is None:
            return False
        common = look.keys() & before.keys()
        # Weights that each update makes anew are others; and what can't be looked at is taken to change.
        self.are_seen = not common or any(look[key] != before[key] for key in common)
        self._before = None if self.are_seen else look
        return self.are_seen

    def _looked_at(self, losses: Sequence[Tensor]) -> _Look:
        look: _Look = {}
        with suppress(Exception):  # of a kind that tells not even where it lies
            leaf: Any
            for leaf in leaves(losses):
                if leaf.device.type in _READ_ON:
                    look[id(leaf)] = self._told(leaf)
        return look

    def _told(self, leaf: Any) -> Hashable:
        """Its version, sum and norm: an update may keep one of them. Where it has none, what equals nothing else."""
        torch = self._torch
        with suppress(Exception):
            values = torch.view_as_real(leaf.detach()) if leaf.is_complex() else leaf.detach()
            norm = torch.linalg.vector_norm(values, dtype=torch.float64)
            return leaf._version, float(values.sum(dtype=torch.float64)), float(norm)
        return object()
