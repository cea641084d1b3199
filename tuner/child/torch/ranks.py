"""Whether several ranks train one model together, and what nobody has tried there."""

from __future__ import annotations

from types import ModuleType

from ..session import Session
from .parts import KNOB as ACCUMULATION

NOT_TRIED = "not tried yet in several ranks"


class RanksWatch:
    """Of a trial with one process it does nothing."""

    def __init__(self, session: Session, torch: ModuleType) -> None:
        self.session = session
        self.torch = torch
        self._size = 0

    def block_ended(self) -> None:
        """Looks whether the ranks are joined: a script leaves its group when it ends."""
        distributed = self.torch.distributed
        if self.session.ranks > 1 and not self._size and distributed.is_available() and distributed.is_initialized():
            self._size = int(distributed.get_world_size())

    def observe(self) -> None:
        """Fails ranks that train apart, each a model of its own; leaves out a trainer's accumulation."""
        session = self.session
        if session.ranks == 1:
            return
        self.block_ended()
        # A script that fails in its first steps may have left its group before anybody looked: its error says why.
        if session.clock.total_steps and self._size != session.ranks and not session.ended_badly:
            group = f"its process group has {self._size} of them" if self._size else "it makes no process group"
            session.fail(
                "unsupported",
                f"the script doesn't train in {session.ranks} ranks together: {group}"
                " (torch.distributed.init_process_group)",
            )
        # A trainer that accumulates has several backwards to a step, each of which may exchange gradients.
        if ACCUMULATION in session.knobs.trainer_options:
            session.facts.left_out[ACCUMULATION] = NOT_TRIED
