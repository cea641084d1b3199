"""What happens to several ranks when one of them, or what starts or watches them, fails: no process left, one reason.

The ranks here are small real programs that speak the wire; those that train are in tests/end_to_end/test_ranks.py.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from support.forked import lives

from tuner.devices.cpu import cpu_device
from tuner.model import Config, Outcome, OutcomeKind, Script
from tuner.runner.process import ProcessRunner
from tuner.runner.request import Limits, TrialRequest
from tuner.study.baseline import baseline_error, blame_error
from tuner.study.blame import Verdict, Whose

ROOT = Path(__file__).resolve().parents[2]
SPEAK = """
import json, os, signal, sys, time
request = json.load(open(os.environ["AUTOTUNE_REQUEST"]))
rank, folder = int(os.environ["RANK"]), request["folder"]
def emit(kind, **fields):
    line = json.dumps({"v": 1, "t": time.monotonic(), "kind": kind, **fields}) + "\\n"
    os.write(int(os.environ["AUTOTUNE_RECORDS_FD"]), line.encode())
def blocks(count, at=1):
    for number in range(count):
        emit("block", phase="window", steps=5, samples=50, seconds=0.1, wait_s=0.01, at=at + 5 * (number + 1))
def raised(text):
    emit("exception", type="RuntimeError", text=text, traceback=f"Traceback\\nRuntimeError: {text}\\n")
    emit("exit", code=1)
    sys.exit(1)
def others_came():
    for other in range(int(os.environ["WORLD_SIZE"])):
        while not os.path.exists(os.path.join(folder, f"pid{other}")): time.sleep(0.01)
emit("hello", pid=os.getpid(), python="3", executable="python3")
if os.fork() == 0:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    open(os.path.join(folder, f"worker{rank}"), "w").write(str(os.getpid()))
    os.execv("/bin/sleep", ["sleep", "600"])
while not os.path.exists(os.path.join(folder, f"worker{rank}")): time.sleep(0.01)
open(os.path.join(folder, f"pid{rank}"), "w").write(str(os.getpid()))
others_came()
emit("first_step", seconds=0.1)
"""
WHOLE = 'blocks(12); emit("window", complete=True, why=""); emit("exit", code=0); os._exit(0)\n'

Run = Callable[..., Outcome]


def _request(tmp_path: Path, body: str, ranks: int = 2, **limits: float) -> tuple[TrialRequest, Path]:
    program = tmp_path / "child.py"
    program.write_text(SPEAK + textwrap.dedent(body))
    chosen = Limits(**{"trial_timeout_s": 30.0, **limits})  # type: ignore[arg-type]  # seconds, by name
    request = TrialRequest(
        tmp_path / "trial", Script("train.py", ()), cpu_device(), Config({}), limits=chosen, ranks=ranks
    )
    return request, program


@pytest.fixture
def run(tmp_path: Path) -> Run:
    def run_program(body: str, ranks: int = 2, **limits: float) -> Outcome:
        request, program = _request(tmp_path, body, ranks, **limits)
        outcome = ProcessRunner(child=program).run(request, threading.Event())
        assert not _left(tmp_path, ranks=ranks)
        return outcome

    return run_program


def _left(tmp_path: Path, *, within_s: float = 0.0, ranks: int = 2) -> list[str]:
    """The names of the trial's processes that are still there."""
    deadline = time.monotonic() + within_s
    while True:
        names = [f"{kind}{rank}" for kind in ("pid", "worker") for rank in range(ranks)]
        left = [name for name in names if lives(int((tmp_path / "trial" / name).read_text()))]
        if not left or time.monotonic() >= deadline:
            return left
        time.sleep(0.02)


@pytest.mark.slow  # 3 s beside three others
def test_the_rank_that_failed_is_told_with_the_file_of_what_it_printed(run: Run, tmp_path: Path) -> None:
    body = """
    print("this is rank", rank, flush=True)
    if rank == 1: raised("bad row")
    time.sleep(60)
    """
    failed = run(body)
    assert (failed.rank, failed.detail) == (1, "rank 1: RuntimeError: bad row")
    told = [baseline_error(failed, tmp_path / "trial"), blame_error(failed, Verdict(Whose.OPEN), tmp_path / "trial")]
    for error in told:
        (named,) = re.findall(r"/\S+\.txt", error.hint or "")
        assert Path(named).read_text() == "this is rank 1\n"


def test_ranks_get_what_torchrun_would_give_them_and_are_measured_together(run: Run, tmp_path: Path) -> None:
    body = """
    names = ["RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "OMP_NUM_THREADS"]
    json.dump({name: os.environ[name] for name in names}, open(os.path.join(folder, f"report{rank}"), "w"))
    print("this is rank", rank, flush=True)
    """
    outcome = run(body + WHOLE)
    assert outcome.complete and outcome.measurement is not None
    assert outcome.measurement.rate == pytest.approx(1000)
    reports = [json.loads((tmp_path / "trial" / f"report{rank}").read_text()) for rank in range(2)]
    ports = {report.pop("MASTER_PORT") for report in reports}
    assert len(ports) == 1 and int(ports.pop()) > 1023
    threads = os.environ.get("OMP_NUM_THREADS", "1")
    assert reports == [
        {
            "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2",
            "MASTER_ADDR": "127.0.0.1", "OMP_NUM_THREADS": threads,
        } for rank in range(2)
    ]  # fmt: skip
    logs = [(tmp_path / "trial" / name).read_text() for name in ("log.txt", "log-1.txt")]
    assert logs == ["this is rank 0\n", "this is rank 1\n"]


def test_a_killed_rank_decides_though_another_says_first_that_it_is_gone(run: Run) -> None:
    body = """
    if rank == 0:
        os.kill(int(open(os.path.join(folder, "pid1")).read()), signal.SIGSTOP)
        open(os.path.join(folder, "told"), "w").close()
        emit("exception", type="RuntimeError", text="[gloo/transport/tcp] Connection closed by peer", traceback="x")
        os.kill(int(open(os.path.join(folder, "pid1")).read()), signal.SIGKILL)
        sys.exit(1)
    time.sleep(600)
    """
    began = time.monotonic()
    outcome = run(body)
    assert (outcome.kind, outcome.reason) == (OutcomeKind.CRASHED, "signal-kill")
    assert outcome.detail.startswith("rank 1: died of SIGKILL")
    assert time.monotonic() - began < 15


@pytest.mark.slow  # 3 s beside three others
def test_of_four_ranks_the_killed_one_decides_and_none_is_left(run: Run) -> None:
    body = """
    if rank == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.1 * (3 - rank))
    raised("[gloo/transport/tcp] Connection closed by peer")
    """
    outcome = run(body, ranks=4)
    assert (outcome.kind, outcome.reason) == (OutcomeKind.CRASHED, "signal-kill")
    assert outcome.detail.startswith("rank 2: died of SIGKILL")


def test_the_first_rank_to_fail_decides_and_shows_its_traceback(run: Run) -> None:
    body = """
    if rank == 1:
        raised("no such column")
    time.sleep(0.3)
    raised("something else")
    """
    outcome = run(body)
    assert (outcome.kind, outcome.reason) == (OutcomeKind.USER_ERROR, "script-raised")
    assert outcome.detail == "rank 1: RuntimeError: no such column"
    assert outcome.traceback_text == "Traceback\nRuntimeError: no such column\n"


@pytest.mark.slow  # 3 s beside three others
def test_a_rank_that_fails_after_the_window_was_whole_changes_nothing(run: Run) -> None:
    body = """
    if rank == 1:
        blocks(12); time.sleep(1.0); raised("Connection closed by peer")
    """
    assert run(body + WHOLE).complete


@pytest.mark.slow  # 3 s beside three others
def test_a_rank_that_goes_on_failing_to_end_is_killed(run: Run) -> None:
    """The one that failed is gone, the other one waits for it forever and ignores what would end it."""
    body = """
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if rank == 1:
        print("no such file", file=sys.stderr); os._exit(3)
    time.sleep(600)
    """
    began = time.monotonic()
    outcome = run(body)
    assert outcome.detail == "rank 1: the script ended with status 3: no such file"
    assert time.monotonic() - began < 15


def test_a_hang_in_a_collective_ends_and_says_how_far_each_rank_had_come(run: Run) -> None:
    body = """
    sys.path.insert(0, ROOT)
    from tuner.child.unison import Unison
    Unison(int(os.environ["AUTOTUNE_RANKS_FD"]), rank, 2).stepped(7 + rank, 1.0, 0)
    blocks(1)
    time.sleep(600)
    """.replace("ROOT", repr(str(ROOT)))
    outcome = run(body, no_progress_s=3.0, trial_timeout_s=10.0)
    assert outcome.kind in (OutcomeKind.TIMED_OUT, OutcomeKind.NO_PROGRESS)
    assert "steps by then: 7 in rank 0, 8 in rank 1" in outcome.detail


@pytest.mark.slow  # 2 s beside three others
def test_what_starts_the_ranks_takes_them_with_it(run: Run) -> None:
    outcome = run("os.kill(os.getppid(), signal.SIGKILL) if rank else None; time.sleep(600)")
    assert (outcome.kind, outcome.reason) == (OutcomeKind.CRASHED, "signal-kill")


@pytest.mark.slow  # 2 s beside three others
def test_a_killed_guard_takes_all_ranks_with_it(tmp_path: Path) -> None:
    body = """
    if rank:
        stat = open(f"/proc/{os.getppid()}/stat").read()
        os.kill(int(stat.rpartition(")")[2].split()[1]), signal.SIGKILL)
    time.sleep(600)
    """
    request, program = _request(tmp_path, body)
    outcome = ProcessRunner(child=program).run(request, threading.Event())
    assert (outcome.kind, outcome.reason) == (OutcomeKind.INFRASTRUCTURE, "guard-lost")
    assert not _left(tmp_path, within_s=5)


@pytest.mark.slow  # 2 s beside three others
@pytest.mark.parametrize("ranks", [2, 4])
def test_a_killed_study_takes_all_ranks_with_it(tmp_path: Path, ranks: int) -> None:
    request, program = _request(tmp_path, "time.sleep(600)", ranks)
    study = f"""
import sys, threading
sys.path[:0] = [{str(ROOT)!r}, {str(ROOT / "tests")!r}]
from pathlib import Path
from tuner.devices.cpu import cpu_device
from tuner.model import Config, Script
from tuner.runner.process import ProcessRunner
from tuner.runner.request import TrialRequest
request = TrialRequest(Path({str(request.folder)!r}), Script("train.py", ()), cpu_device(), Config({{}}), ranks={ranks})
ProcessRunner(child=Path({str(program)!r})).run(request, threading.Event())
"""
    with subprocess.Popen([sys.executable, "-c", study], stderr=subprocess.DEVNULL) as process:
        deadline = time.monotonic() + 20
        while not all((tmp_path / "trial" / f"pid{rank}").exists() for rank in range(ranks)):
            assert time.monotonic() < deadline and process.poll() is None
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
        process.wait(20)
    assert not _left(tmp_path, within_s=15, ranks=ranks)


def test_plain_python_runs_as_many_ranks(tmp_path: Path) -> None:
    """To tell whose fault a failure is, the script is run as it is: in as many ranks, of which one fails."""
    script = tmp_path / "train.py"
    script.write_text('import os, time\nif os.environ["RANK"] == "1": raise ValueError("bad row")\ntime.sleep(60)\n')
    request = dataclasses.replace(_request(tmp_path, "")[0], script=Script(str(script), ()), plain=True)
    outcome = ProcessRunner().run(request, threading.Event())
    assert (outcome.kind, outcome.detail) == (OutcomeKind.USER_ERROR, "rank 1: ValueError: bad row")
