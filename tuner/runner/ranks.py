"""Which of several ranks says what a trial ended as, and what of its traces that is to be judged by."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tuner.analysis.ranks import have_ranks, united, unlike_steps
from tuner.child.records import Exit, Failure, RankEnded, Record, ScriptException, WindowEnd
from tuner.child.wire import Entry
from tuner.model import OutcomeKind
from tuner.runner.classify import Judgement
from tuner.runner.log_text import one_line
from tuner.storage.folder import LOG, RANK_LOG

_LOST = re.compile(
    r"Connection (?:closed by|reset by) (?:peer|remote)|Broken pipe|Socket closed|failed to recv|"
    r"gloo/transport|Connection refused|DistNetworkError|DistStoreError|"
    r"(?:ncclRemoteError|remote process exited)|Some ranks failed|peer .*(?:exited|disconnected)",
    re.IGNORECASE,
)
"""What the others say of a rank that is gone."""
PORT_TAKEN = "port-taken"
"""Reason of an outcome: the port at which the ranks were to meet was another program's by then, or another trial's."""
_PORT_TAKEN = re.compile(r"server socket has failed to listen on any local network address")
"""PyTorch, where it can't have the port at which the ranks meet."""

_THREAD_LOST = "terminate called without an active exception"
"""The C++ library, where Python ends a thread that asks for its lock while Python itself is ending. A thread of gloo's
does so that drops a finished exchange too late (https://github.com/pytorch/pytorch/issues/190489).
"""


@dataclass(frozen=True)
class Deciding:
    """``records`` and ``status`` are those to judge by, ``log`` is the name of the file with what it printed.

    ``rank`` is the one that failed first; None where none did, and all speak together. ``beside``: what another
    rank did that explains it, for people; "" without.
    """

    records: list[Record]
    status: int | None
    log: str = LOG
    rank: int | None = None
    beside: str = ""

    def judged(self, judgement: Judgement) -> Judgement:
        """What it ended as, with whose that is; a port that another program took meanwhile is nobody's fault."""
        kind, reason, detail = judgement
        if self.rank is None or not detail:
            return judgement
        if _PORT_TAKEN.search(detail):
            kind, reason = OutcomeKind.INFRASTRUCTURE, PORT_TAKEN
        return kind, reason, one_line(f"rank {self.rank}: {detail}{self.beside}")


def log_of(rank: int) -> str:
    """The name of the file with what the rank printed."""
    return RANK_LOG.format(rank) if rank else LOG


def deciding(entries: Sequence[Entry], status: int | None, printed: Callable[[str], str]) -> Deciding:
    """What a trial is judged by; its own records and status where it has one process.

    A rank that fails takes the others down: of those that failed before the window was complete, the first one that
    doesn't merely miss another. ``printed`` gives the end of a log by its name.
    """
    if not have_ranks(entries):
        return Deciding([entry.record for entry in entries], status)
    rank = _first_to_fail(entries, printed)
    if rank is None:
        records = [entry.record for entry in united(entries)]
        unlike = unlike_steps(entries)
        ended_badly = {entry.rank for entry in entries if _ended_badly(entry.record)}
        if any(_aborted_as_python_ended(each, entries, printed) for each in ended_badly):
            status = 0
        return Deciding([*records, Failure("unsupported", unlike)] if unlike else records, status)
    own = [entry.record for entry in entries if entry.rank == rank]
    ended = next((record.status for record in own if isinstance(record, RankEnded)), status)
    beside = ""
    if _misses_another(rank, entries, printed):
        through = [entry.rank for entry in entries if isinstance(entry.record, RankEnded) and not entry.record.status]
        beside = f" (rank {through[0]} had ended by then)" if through else ""
    return Deciding([record for record in own if not isinstance(record, RankEnded)], ended, log_of(rank), rank, beside)


def _first_to_fail(entries: Sequence[Entry], printed: Callable[[str], str]) -> int | None:
    whole = [entry.t for entry in entries if not entry.rank and _is_whole(entry.record)]
    failed: dict[int, float] = {}
    for entry in entries:
        if _ended_badly(entry.record) and _aborted_as_python_ended(entry.rank, entries, printed):
            continue
        if _is_failure(entry.record) and not (whole and entry.t >= whole[0]):
            failed.setdefault(entry.rank, entry.t)
    return min(failed, key=lambda rank: (_misses_another(rank, entries, printed), failed[rank]), default=None)


def _is_whole(record: Record) -> bool:
    return isinstance(record, WindowEnd) and record.complete


def _is_failure(record: Record) -> bool:
    return _ended_badly(record) or isinstance(record, (Failure, ScriptException))


def _ended_badly(record: Record) -> bool:
    return isinstance(record, RankEnded) and record.status != 0


def _aborted_as_python_ended(rank: int, entries: Sequence[Entry], printed: Callable[[str], str]) -> bool:
    """Whether the rank's script was through by then, and only its process lost a thread as Python ended."""
    own = [entry.record for entry in entries if entry.rank == rank]
    through = any(isinstance(record, Exit) and record.code == 0 for record in own)
    aborted = any(isinstance(record, RankEnded) and record.status & 0x7F == signal.SIGABRT for record in own)
    return through and aborted and _THREAD_LOST in printed(log_of(rank))


def _misses_another(rank: int, entries: Sequence[Entry], printed: Callable[[str], str]) -> bool:
    """Whether all that went wrong in the rank is that another one was gone."""
    own = [entry.record for entry in entries if entry.rank == rank]
    raised = [f"{record.type}: {record.text}" for record in own if isinstance(record, ScriptException)]
    if any(isinstance(record, Failure) for record in own):
        return False
    if raised:
        return bool(_LOST.search(raised[-1])) and not _PORT_TAKEN.search(raised[-1])
    status = next((record.status for record in own if isinstance(record, RankEnded)), 0)
    if status & 0x7F not in (0, signal.SIGABRT):
        return False
    return bool(_LOST.search(printed(log_of(rank))))


def standing(steps: Sequence[int]) -> str:
    """How far each rank had come, for people."""
    if len(steps) < 2:
        return ""
    taken = ", ".join(f"{count} in rank {rank}" for rank, count in enumerate(steps))
    return f" (steps by then: {taken}; ranks may wait for each other)"
