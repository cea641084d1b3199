"""How a trial comes to its ranks: what they share, what starts them, and what each is given where it is forked."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Mapping, Sequence

from tuner.child import unison
from tuner.runner import rank_starter
from tuner.runner.fork_server import RANK_STARTER, ForkedRank
from tuner.runner.memory_file import memory_file
from tuner.runner.request import TrialRequest
from tuner.storage.folder import RANK_LOG

_ANY_PORT = 0


def shared_by(ranks: int, stack: contextlib.ExitStack) -> int:
    """What the ranks of a trial share, as an open file."""
    descriptor = memory_file("autotune-ranks")
    stack.callback(os.close, descriptor)
    os.ftruncate(descriptor, unison.bytes_for(ranks))
    return descriptor


def by_starter(command: Sequence[str], request: TrialRequest, records: int) -> list[str]:
    """What starts the command once for each rank."""
    started = [str(request.ranks), str(records), str(request.folder.absolute()), RANK_LOG]
    return [sys.executable, "-I", "-S", str(RANK_STARTER), *started, "--", *command]


def of_all_ranks(environment: Mapping[str, str], ranks: int) -> dict[str, str]:
    """The environment in which each rank is started, without what they differ in: that of a server for them."""
    if ranks == 1:
        return dict(environment)
    every = {**environment, **rank_starter.environment_of(0, ranks, _ANY_PORT, environment)}
    return {name: value for name, value in every.items() if name not in rank_starter.OWN}


def forked_ranks(environment: Mapping[str, str], request: TrialRequest) -> list[ForkedRank]:
    """Each rank of the trial, beside that environment; none where it is one process."""
    if request.ranks == 1:
        return []
    port, log = rank_starter.free_port(), os.path.join(request.folder.absolute(), RANK_LOG)
    ranks = []
    for rank in range(request.ranks):
        own = rank_starter.environment_of(rank, request.ranks, port, environment)
        ranks.append(ForkedRank(log.format(rank) if rank else "", own))
    return ranks
