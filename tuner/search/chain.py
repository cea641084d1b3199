"""Samplers one after the other."""

from __future__ import annotations

from tuner.search.history import History, Proposal, Sampler


class Chain:
    """A sampler that asks several in turn; the next one only where the one before has nothing left."""

    def __init__(self, *samplers: Sampler) -> None:
        self._samplers = samplers

    def propose(self, history: History) -> Proposal | None:
        """The first proposal, None where no sampler has one."""
        for sampler in self._samplers:
            proposal = sampler.propose(history)
            if proposal is not None:
                return proposal
        return None
