"""Which of several ranks says what a trial ended as."""

from __future__ import annotations

import signal

import pytest

from tuner.child.records import Block, Exit, Failure, Hello, Phase, RankEnded, Record, ScriptException, WindowEnd
from tuner.child.wire import Entry
from tuner.model import OutcomeKind
from tuner.runner.ranks import deciding, standing

LOST = ScriptException("RuntimeError", "[../gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:460")
OWN = ScriptException("ValueError", "bad row", "Traceback")
WHOLE = WindowEnd(complete=True)


def _entries(*sent: tuple[int, Record]) -> list[Entry]:
    return [Entry(float(number), record, rank) for number, (rank, record) in enumerate(sent)]


def _printed(log: str) -> str:
    return {"log-1.txt": "terminate called: Connection closed by peer"}.get(log, "")


def test_one_process_speaks_for_itself() -> None:
    decided = deciding(_entries((0, Hello(1, "3", "python")), (0, OWN)), 256, _printed)
    assert (decided.rank, decided.status, decided.log) == (None, 256, "log.txt")
    assert decided.judged((OutcomeKind.USER_ERROR, "script-raised", "bad")) == (
        OutcomeKind.USER_ERROR, "script-raised", "bad",
    )  # fmt: skip


def test_the_first_that_fails_of_its_own_accord_decides() -> None:
    decided = deciding(_entries((0, LOST), (1, OWN), (1, RankEnded(256)), (0, RankEnded(256))), 256, _printed)
    assert (decided.rank, decided.status, decided.log, decided.records) == (1, 256, "log-1.txt", [OWN])
    assert decided.judged((OutcomeKind.USER_ERROR, "script-raised", "bad"))[2] == "rank 1: bad"


def test_a_killed_one_decides_before_those_that_miss_it() -> None:
    decided = deciding(_entries((0, LOST), (1, RankEnded(signal.SIGKILL)), (0, RankEnded(256))), 256, _printed)
    assert (decided.rank, decided.status) == (1, signal.SIGKILL)


def test_one_that_aborts_since_another_is_gone_doesnt_decide() -> None:
    decided = deciding(_entries((1, RankEnded(signal.SIGABRT)), (0, OWN), (0, RankEnded(256))), 256, _printed)
    assert decided.rank == 0


@pytest.mark.parametrize(
    ("sent", "said", "decides"),
    [
        ((Exit(0),), "0 127 1.28\nterminate called without an active exception\n", None),
        ((Exit(1),), "terminate called without an active exception\n", 1),
        ((), "terminate called without an active exception\n", 1),
        ((Exit(0),), "terminate called after throwing an instance of 'std::bad_alloc'\n", 1),
    ],
    ids=["through", "failed", "not through", "another error"],
)
def test_one_that_aborts_as_python_ends_has_not_failed(
    sent: tuple[Record, ...], said: str, decides: int | None
) -> None:
    """Its script was through: a thread of gloo's dropped a tensor too late, as it does without autotune."""
    aborted = [(1, record) for record in (*sent, RankEnded(signal.SIGABRT))]
    decided = deciding(_entries((0, Exit(0)), (0, RankEnded(0)), *aborted), 256, lambda log: said)
    assert (decided.rank, decided.status) == (decides, 0 if decides is None else signal.SIGABRT)


def test_one_that_ended_too_soon_is_named_by_those_that_miss_it() -> None:
    decided = deciding(_entries((1, Exit(0)), (1, RankEnded(0)), (0, LOST), (0, RankEnded(256))), 256, _printed)
    assert (decided.rank, decided.beside) == (0, " (rank 1 had ended by then)")


def test_what_fails_once_the_window_is_whole_decides_nothing() -> None:
    blocks = [(rank, Block(Phase.WINDOW, 5, 10.0, 0.1, 0.0, at=at)) for at in (6, 11, 16) for rank in (0, 1)]
    decided = deciding(_entries(*blocks, (0, WHOLE), (1, LOST), (1, RankEnded(256))), 256, _printed)
    assert decided.rank is None and decided.records[-1] == WHOLE
    before = deciding(_entries(*blocks, (1, Failure("nan", "the loss became nan")), (0, WHOLE)), 0, _printed)
    assert before.rank == 1


def test_ranks_that_take_other_steps_are_no_trial() -> None:
    blocks = [(0, Block(Phase.WINDOW, 5, 10.0, 0.1, 0.0, at=at)) for at in (6, 11, 16)]
    decided = deciding(_entries((1, Hello(2, "3", "python")), *blocks, (0, WHOLE)), 0, _printed)
    assert isinstance(decided.records[-1], Failure)
    assert "don't take the same steps (rank 0 16, rank 1 0" in decided.records[-1].detail


def test_a_port_that_was_taken_is_nobodys_fault() -> None:
    text = "The server socket has failed to listen on any local network address. port: 29500, name: EADDRINUSE"
    decided = deciding(_entries((0, ScriptException("DistNetworkError", text)), (1, RankEnded(256))), 256, _printed)
    judged = decided.judged((OutcomeKind.USER_ERROR, "script-raised", f"DistNetworkError: {text}"))
    assert judged[:2] == (OutcomeKind.INFRASTRUCTURE, "port-taken")


def test_how_far_each_had_come_is_told() -> None:
    assert standing([]) == ""
    assert standing([7, 8]) == " (steps by then: 7 in rank 0, 8 in rank 1; ranks may wait for each other)"
