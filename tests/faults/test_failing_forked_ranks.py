"""What happens to ranks that are forked off one server when one of them, the server, or what watches them is killed.

The ranks here load NumPy and train nothing; those that train are in tests/differential/test_forked_ranks.py.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from support.forked import (
    asked,
    below,
    lives,
    log_of,
    quickly_loaded,
    run,
    runner_that_leaves_nothing,
    wait_until_gone,
    was_forked,
)

from tuner.model import Outcome, OutcomeKind
from tuner.runner import fork_server
from tuner.runner.guard import descendants
from tuner.runner.process import ProcessRunner
from tuner.runner.request import TrialRequest

__all__ = ["quickly_loaded", "runner_that_leaves_nothing"]

pytestmark = pytest.mark.usefixtures("quickly_loaded")
ROOT = Path(__file__).resolve().parents[2]
RANKS = """
    import os
    import signal
    import sys
    import time
    import numpy
    rank = os.environ["RANK"]
    if os.fork() == 0:
        os.setsid()
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(600)
    print("began", flush=True)
    if "dies" in sys.argv and rank == "1":
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.5 if "short" in sys.argv else 600)
    print("through", flush=True)
"""


@pytest.fixture
def script(write_script: Callable[..., Path]) -> Path:
    """Two ranks, each with a process that nothing of its own would end."""
    return write_script(RANKS)


def logs_of(request: TrialRequest) -> list[str]:
    """What each of two ranks has printed so far."""
    paths = [request.folder / name for name in ("log.txt", "log-1.txt")]
    return [path.read_text() if path.exists() else "" for path in paths]


@pytest.mark.slow  # 8 s beside three others
def test_a_forked_rank_that_dies_at_once_is_told_as_a_fresh_one(
    runner: ProcessRunner, tmp_path: Path, script: Path
) -> None:
    requests = [asked(tmp_path / str(fresh), script, "dies", fresh=fresh, ranks=2) for fresh in (True, False)]
    fresh, forked = (run(runner, request) for request in requests)
    assert [was_forked(request) for request in requests] == [False, True], runner.why_no_forks
    assert (forked.kind, forked.reason, forked.detail) == (fresh.kind, fresh.reason, fresh.detail)
    assert (forked.kind, forked.reason) == (OutcomeKind.CRASHED, "signal-kill")
    assert forked.detail.startswith("rank 1: died of SIGKILL")


def ranks_of(server: int) -> list[int]:
    """The ranks of the trial that is forked from the server, by now: the starter is the guard's child."""
    for guard in _children(server):
        for starter in _children(guard):
            return _children(starter)
    return []


def _children(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def began(runner: ProcessRunner, request: TrialRequest) -> tuple[threading.Thread, list[Outcome], int]:
    """The trial, which has been begun in a thread, the list that will hold what it ends as, and its server."""
    outcomes: list[Outcome] = []
    assert run(runner, asked(request.folder.with_name("first"), Path(request.script.path), "short", fresh=False,
                             ranks=2)).kind is not OutcomeKind.CRASHED  # fmt: skip
    server = min(runner._servers.alive, key=lambda each: each.trials).pid
    thread = threading.Thread(target=lambda: outcomes.append(run(runner, request)))
    thread.start()
    return thread, outcomes, server


@pytest.mark.slow  # 7 s beside three others
@pytest.mark.parametrize("victim", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_a_rank_that_is_killed_while_it_is_forked_decides(
    runner: ProcessRunner, tmp_path: Path, script: Path, victim: int
) -> None:
    """As soon as it is there: before what starts ranks has become itself."""
    request = asked(tmp_path / "trial", script, fresh=False, ranks=2)
    thread, outcomes, server = began(runner, request)
    while len(ranks := ranks_of(server)) <= victim and thread.is_alive():
        pass
    os.kill(ranks[victim], signal.SIGKILL)
    thread.join(60.0)
    assert was_forked(request) and outcomes[0].kind is OutcomeKind.CRASHED, outcomes[0]
    assert outcomes[0].detail.startswith(f"rank {victim}: died of SIGKILL")
    assert not wait_until_gone({*ranks})


@pytest.mark.slow  # 6 s beside three others
@pytest.mark.parametrize(
    "victim", ["starter", *(pytest.param(each, marks=pytest.mark.slow) for each in ("guard", "server"))]
)
def test_whoever_is_killed_no_rank_stays(runner: ProcessRunner, tmp_path: Path, script: Path, victim: str) -> None:
    request = asked(tmp_path / "trial", script, *(["short"] if victim == "server" else []), fresh=False, ranks=2)
    thread, outcomes, server = began(runner, request)
    while logs_of(request) != ["began\n"] * 2 and thread.is_alive():
        time.sleep(0.01)
    (guard,) = _children(server)
    (starter,) = _children(guard)
    ours = {guard, *descendants(guard)}
    assert len(ours) >= 6, "each rank's own process is below the guard"
    os.kill({"starter": starter, "guard": guard, "server": server}[victim], signal.SIGKILL)
    thread.join(60.0)
    assert not wait_until_gone(ours)
    told = {"starter": "signal-kill", "guard": "guard-lost"}
    if victim == "server":
        assert logs_of(request) == ["began\nthrough\n"] * 2, "a trial goes on without what it was forked from"
    else:
        assert outcomes[0].reason == told[victim], outcomes[0]


@pytest.mark.slow  # of one process: test_fork_server.py
def test_a_server_that_hangs_leaves_all_ranks_to_start_fresh(
    runner: ProcessRunner, tmp_path: Path, script: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tuner.runner.fork_servers.SERVERS", 1)
    run(runner, first := asked(tmp_path / "0", script, "short", fresh=False, ranks=2))
    hung = runner._servers.alive[0].pid
    os.kill(hung, signal.SIGSTOP)
    monkeypatch.setattr(fork_server, "FORK_PATIENCE_S", 1.0)
    run(runner, second := asked(tmp_path / "1", script, "short", fresh=False, ranks=2))
    assert [was_forked(request) for request in (first, second)] == [True, False] and not lives(hung)
    assert logs_of(first) == logs_of(second) == ["began\nthrough\n"] * 2


@pytest.mark.slow  # 7 s beside three others
@pytest.mark.parametrize(("reads", "forks"), [("os.environ.get('LOCAL_RANK')", False), ("dict(os.environ)", True)])
def test_an_import_that_reads_which_rank_it_is_in_is_forked_by_nobody(
    runner: ProcessRunner, tmp_path: Path, write_script: Callable[..., Path], monkeypatch: pytest.MonkeyPatch,
    reads: str, *, forks: bool,
) -> None:  # fmt: skip
    """Each rank would have been told another one's number; a library that looks for options of its own reads all."""
    (installed := tmp_path / "python" / "site-packages").mkdir(parents=True)
    (installed / "yaml.py").write_text(f"import os\nfound = {reads}\n")
    monkeypatch.setenv("PYTHONPATH", str(installed))
    script = write_script("import numpy\nimport yaml\n" + textwrap.dedent(RANKS))
    run(runner, request := asked(tmp_path / "0", script, "short", fresh=False, ranks=2))
    assert was_forked(request) is forks, log_of(request)
    assert runner.why_no_forks == ("" if forks else "an import reads LOCAL_RANK")
    assert logs_of(request) == ["began\nthrough\n"] * 2


PARENT = """
import sys
from pathlib import Path
sys.path.insert(0, {tests!r})
from support.forked import QUICKLY_LOADED, asked, run
from tuner.runner import fork_servers
from tuner.runner.process import ProcessRunner
fork_servers.FRAMEWORKS = QUICKLY_LOADED
runner = ProcessRunner()
for number in range(1000):
    given = ["short"] if number < 3 else []
    run(runner, asked(Path(sys.argv[1]) / str(number), Path(sys.argv[2]), *given, fresh=False, ranks=2))
"""


def test_a_killed_parent_leaves_no_rank(tmp_path: Path, script: Path) -> None:
    """At any moment: while a server loads, forks, and while ranks run."""
    chance = random.Random(7)
    for attempt in range(2):
        (folder := tmp_path / str(attempt)).mkdir()
        parent = subprocess.Popen(
            [sys.executable, "-c", PARENT.format(tests=str(ROOT / "tests")), str(folder), str(script)], cwd=ROOT
        )
        time.sleep(1.0 + 4.0 * chance.random())
        ours = {*below(parent.pid)}
        parent.send_signal(signal.SIGKILL)
        parent.wait()
        assert not wait_until_gone(ours - {parent.pid})
