"""What a run under plain Python came to, by its exit status and its log."""

from __future__ import annotations

import signal
from dataclasses import replace

import pytest

from tuner.child.records import Hello, ScriptException
from tuner.model import OutcomeKind
from tuner.runner.classify import EndedBy, Judgement, Traces, classify, classify_plain
from tuner.runner.log_text import raised_line, traceback_in

OTHERS = "the machine's memory ran out: other processes hold 60 GiB"


def exited(code: int) -> int:
    return code << 8


PLAIN_LOG = """some output
Traceback (most recent call last):
  File "train.py", line 3, in <module>
    main()
  File "lib/data.py", line 9, in load
    raise DataError("none:
DataError: none: here
and there
"""


@pytest.mark.parametrize(
    ("log", "status", "withheld", "expected"),
    [
        ("", exited(0), "", (OutcomeKind.COMPLETE, "", "")),
        (PLAIN_LOG, exited(1), "", (OutcomeKind.USER_ERROR, "script-raised", "DataError: none: here")),
        ("bad options\n", exited(2), "", (OutcomeKind.USER_ERROR, "script-failed", "bad options")),
        (PLAIN_LOG, exited(0), "", (OutcomeKind.COMPLETE, "", "")),
        ('  File "train.py", line 1\n    (\n    ^\nSyntaxError: no\n', exited(1), "",
         (OutcomeKind.USER_ERROR, "script-raised", "SyntaxError: no")),
        ("", exited(0), "/home/me/a.pt", (OutcomeKind.INFRASTRUCTURE, "withheld", "it would write over /home/me/a.pt")),
    ],
)  # fmt: skip
def test_what_plain_python_came_to(log: str, status: int, withheld: str, expected: Judgement) -> None:
    assert classify_plain(Traces([], baseline=True, status=status, log=log), withheld) == expected


def test_plain_python_that_ran_on_or_died() -> None:
    late = Traces([], baseline=True, status=None, ended_by=EndedBy.DEADLINE, log=PLAIN_LOG)
    assert classify_plain(late)[0] is OutcomeKind.TIMED_OUT
    died = Traces([], baseline=True, status=int(signal.SIGSEGV))
    assert classify_plain(died)[:2] == (OutcomeKind.CRASHED, "signal-segv")


def test_the_last_traceback_of_a_log_is_found() -> None:
    assert traceback_in("no trace here\n") == ""
    assert traceback_in(PLAIN_LOG) == PLAIN_LOG.removeprefix("some output\n")
    assert raised_line(traceback_in(PLAIN_LOG * 2)) == "DataError: none: here"


def test_a_traceback_of_a_rank_is_one_as_any_other() -> None:
    """PyTorch's hook writes the rank before each line."""
    of_rank = "".join(f"[rank1]: {line}" for line in PLAIN_LOG.splitlines(keepends=True))
    assert traceback_in(of_rank) == traceback_in(PLAIN_LOG)
    ended = Traces([], baseline=True, status=exited(1), log=of_rank)
    assert classify_plain(ended) == classify_plain(replace(ended, log=PLAIN_LOG))


def test_plain_python_that_lacked_memory_is_told_by_who_took_it() -> None:
    full, own = (OutcomeKind.INFRASTRUCTURE, "machine-full"), (OutcomeKind.INFEASIBLE, "host-oom")
    ended = Traces([], baseline=True, status=None, ended_by=EndedBy.MACHINE_FULL, others_took=OTHERS)
    assert classify_plain(ended) == (*full, OTHERS)
    log = 'Traceback (most recent call last):\n  File "train.py", line 1, in f\nMemoryError\n'
    by_error = Traces([], baseline=True, status=exited(1), log=log)
    assert classify_plain(by_error) == (*own, "MemoryError")
    assert classify_plain(replace(by_error, others_took=OTHERS)) == (*full, OTHERS)
    killed = Traces([], baseline=True, status=int(signal.SIGKILL), oom_killed=True)
    assert classify_plain(killed)[:2] == own


def test_what_is_killed_could_not_say_so() -> None:
    """What it printed before is no reason: of a rank that was killed a banner of its libraries was told as one."""
    banner = "oneDNN custom operations are on.\n"
    killed = Traces([], baseline=True, status=int(signal.SIGKILL), log=banner)
    assert classify_plain(killed) == (OutcomeKind.CRASHED, "signal-kill", "died of SIGKILL")
    assert classify_plain(replace(killed, status=int(signal.SIGABRT)))[2] == f"died of SIGABRT: {banner.strip()}"
    lacking = replace(killed, log=f"{banner}RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB\n")
    assert "CUDA out of memory" in classify_plain(lacking)[2]


COMMENTED = """\
Traceback (most recent call last):
  File "/home/u/train.py", line 7, in <module>
    logits = model(batch)  # of 64 at most: CUDA out of memory otherwise
             ^^^^^^^^^^^^
ValueError: expected 3 channels
"""


def test_what_a_line_of_the_script_says_beside_its_code_was_not_raised() -> None:
    """A traceback quotes the source, with its comments."""
    error = ScriptException("ValueError", "expected 3 channels", COMMENTED, "script")
    kind, reason, _ = classify(Traces([Hello(1, "3.11.0", "/usr/bin/python"), error], True, 256))
    assert (kind, reason) == (OutcomeKind.USER_ERROR, "script-raised")
    kind, reason, _ = classify_plain(Traces([], True, 256, log=COMMENTED))
    assert (kind, reason) == (OutcomeKind.USER_ERROR, "script-raised")
    kind, reason, _ = classify(Traces([Hello(1, "3.11.0", "/usr/bin/python")], True, 256, log=COMMENTED))
    assert (kind, reason) == (OutcomeKind.USER_ERROR, "script-failed"), "where the script printed it itself"
    cause = COMMENTED.replace("ValueError: expected 3 channels", "torch.OutOfMemoryError: CUDA out of memory. Tried")
    chained = f"{cause}\nDuring handling of the above exception, another exception occurred:\n\n{COMMENTED}"
    error = ScriptException("ValueError", "expected 3 channels", chained, "script")
    assert classify(Traces([error], True, 256))[1] == "device-oom", "an error before it was"
