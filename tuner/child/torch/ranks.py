"""Whether several ranks train one model together, and what nobody has tried there."""

from __future__ import annotations

from contextlib import suppress
from types import ModuleType

from ..records import ProbeSide
from ..session import Session
from .parts import KNOB as ACCUMULATION

NOT_TRIED = "not tried yet in several ranks"
EXCHANGE_NOTHING = "its ranks exchange nothing by torch.distributed"
_FEWEST_STEPS = 8
"""In fewer of them ranks that average their models once in a while may have exchanged nothing."""


class RanksWatch:
    """Of a trial with one process it does nothing."""

    def __init__(self, session: Session, torch: ModuleType) -> None:
        self.session = session
        self.torch = torch
        self._size = 0
        self._exchanged: dict[str, int] | None = None
        """How often each group had exchanged something when the first block ended; None where that isn't known."""
        self._since = self._alone = 0
        """The steps that had been taken by then, and those by the last look at which nothing had been exchanged."""

    def block_ended(self) -> None:
        """Looks whether the ranks are joined: a script leaves its group when it ends. And whether they exchange."""
        distributed = self.torch.distributed
        if self.session.ranks == 1 or not distributed.is_available() or not distributed.is_initialized():
            return
        self._size = self._size or int(distributed.get_world_size())
        steps, exchanged = self.session.clock.total_steps, self._counts()
        if not self._since:
            self._since, self._exchanged = steps, exchanged
        elif exchanged is not None and exchanged == self._exchanged:
            self._alone = steps
        else:
            self._exchanged = None

    def _counts(self) -> dict[str, int] | None:
        """How often each group has exchanged something; None where one doesn't count that."""
        with suppress(Exception):  # no part of its interface
            groups = self.torch.distributed.distributed_c10d._world.pg_names
            return {name: int(group._get_sequence_number_for_group()) for group, name in groups.items()}
        return None

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
                "no-group",
                f"the script doesn't train in {session.ranks} ranks together: {group}"
                " (torch.distributed.init_process_group)",
            )
        trains = session.request.probe is not ProbeSide.LOADER
        if trains and self._exchanged is not None and self._alone - self._since >= _FEWEST_STEPS:
            session.facts.remark(
                f"{EXCHANGE_NOTHING} in {self._alone - self._since} steps: each trains a model of its own, unless they"
                " meet by other means or more rarely"
            )
        # A trainer that accumulates has several backwards to a step, each of which may exchange gradients.
        if ACCUMULATION in session.knobs.trainer_options:
            session.facts.left_out[ACCUMULATION] = NOT_TRIED
