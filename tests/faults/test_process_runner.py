"""Everything that a trial can do to its runner: hang, fork away, eat memory, die, and outlive its parent.

The children here are small real programs that speak the wire; nothing is replaced by a mock.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from support.forked import lives

from tuner.child import wire
from tuner.child.records import Window
from tuner.child.watch import Silences
from tuner.devices.cpu import cpu_device
from tuner.knowledge import Knowledge
from tuner.model import Config, Outcome, OutcomeKind, Script
from tuner.runner.process import ProcessRunner
from tuner.runner.request import Interrupted, Limits, TrialRequest, screen_window

ROOT = Path(__file__).resolve().parents[2]

SPEAK = """
import json, os, signal, sys, time
request = json.load(open(os.environ["AUTOTUNE_REQUEST"]))
descriptor = int(os.environ["AUTOTUNE_RECORDS_FD"])
def emit(kind, **fields):
    os.write(descriptor, (json.dumps({"v": 1, "t": time.monotonic(), "kind": kind, **fields}) + "\\n").encode())
def blocks(count, phase="window"):
    for _ in range(count):
        emit("block", phase=phase, steps=5, samples=50, seconds=0.1, wait_s=0.01, flagged=False)
def remember(name, pid):
    open(os.path.join(request["folder"], name), "w").write(str(pid))
emit("hello", pid=os.getpid(), python="3", executable="python3")
"""

WINDOW = 'emit("first_step", seconds=0.1); blocks(12); emit("window", complete=True, why="")\n'

DAEMON = """
if os.fork() == 0:
    os.setsid()
    if os.fork():
        os._exit(0)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.environ.clear()
    remember("daemon", os.getpid())
    os.execv("/bin/sleep", ["sleep", "600"])
os.wait()
while not os.path.exists(os.path.join(request["folder"], "daemon")): time.sleep(0.01)
"""

Run = Callable[..., Outcome]


def write_program(folder: Path, body: str) -> Path:
    path = folder / "child.py"
    path.write_text(SPEAK + textwrap.dedent(body))
    return path


def request_for(tmp_path: Path, *, config: Config | None = None, limits: Limits | None = None) -> TrialRequest:
    script = Script("train.py", ("--epochs", "1"))
    return TrialRequest(
        tmp_path / "trial", script, cpu_device(), Config(config or {}), limits=limits or Limits(trial_timeout_s=30)
    )


@pytest.fixture
def run(tmp_path: Path) -> Run:
    def run_program(body: str, *, config: Config | None = None, **limits: float) -> Outcome:
        chosen = Limits(**{"trial_timeout_s": 30.0, **limits})  # type: ignore[arg-type]
        runner = ProcessRunner(child=write_program(tmp_path, body))
        return runner.run(request_for(tmp_path, config=config, limits=chosen), threading.Event())

    return run_program


def gone_within(pid: int, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while lives(pid):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def wait_for(path: Path, seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not (path.exists() and path.read_text()):
        assert time.monotonic() < deadline, f"{path} never came"
        time.sleep(0.02)


def test_a_full_window_is_complete_and_everything_raw_is_kept(run: Run, tmp_path: Path) -> None:
    outcome = run('print("hello log")\n' + WINDOW + 'emit("exit", code=0)')
    assert outcome.complete
    assert outcome.measurement is not None
    assert outcome.measurement.rate == pytest.approx(500)
    folder = tmp_path / "trial"
    assert (folder / "log.txt").read_text() == "hello log\n"
    assert len((folder / "records.jsonl").read_bytes().splitlines()) == 16
    assert all(json.loads(line)["t"] for line in (folder / "resources.jsonl").read_text().splitlines())


def test_the_child_gets_what_the_request_promises(run: Run, tmp_path: Path) -> None:
    body = """
    report = dict(
        parent=os.getppid(), request=request, stdin=sys.stdin.read(), cwd=os.getcwd(), leads=os.getsid(0) == os.getpid(),
        environment=dict(os.environ), adjusted=open("/proc/self/oom_score_adj").read().strip(),
        interrupts=signal.getsignal(signal.SIGINT) is signal.default_int_handler,
        terminates=signal.getsignal(signal.SIGTERM) is signal.SIG_DFL)
    open(os.path.join(request["folder"], "report.json"), "w").write(json.dumps(report))
    """  # noqa: E501
    run(body, config={"threads": 3, "batch_size": 64})
    report = json.loads((tmp_path / "trial" / "report.json").read_text())
    request = wire.decode_request(json.dumps(report["request"]))
    assert request.parent_pid == report["parent"]
    assert (request.mode, request.device, request.argv) == ("trial", "cpu", ("--epochs", "1"))
    assert request.config == {"threads": 3, "batch_size": 64}
    assert request.script == os.path.abspath("train.py")
    assert request.window.block_s == 0.25
    assert report["stdin"] == ""
    assert report["cwd"] == os.getcwd()
    assert report["leads"] and report["interrupts"] and report["terminates"]
    assert report["adjusted"] == "1000"
    assert report["environment"]["CUDA_VISIBLE_DEVICES"] == ""
    assert report["environment"]["OMP_NUM_THREADS"] == "3"
    assert report["environment"]["WANDB_MODE"] == "disabled"


def test_a_script_that_exits_without_a_step(run: Run) -> None:
    outcome = run('emit("exit", code=0)')
    assert (outcome.kind, outcome.reason) == (OutcomeKind.USER_ERROR, "ended-early")


def test_a_hang_with_signals_blocked_meets_the_deadline(run: Run) -> None:
    body = """
    signal.pthread_sigmask(signal.SIG_BLOCK, set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP})
    emit("first_step", seconds=0.1)
    time.sleep(600)
    """
    outcome = run(body, trial_timeout_s=1.0)
    assert outcome.kind is OutcomeKind.TIMED_OUT
    assert outcome.seconds < 20, "and not what it sleeps"


COUNTS = """
import time, tuner
for step in range(1, 100_000):
    time.sleep(STEP_S)
    tuner.report(step=step, samples=8 * step)
"""


@pytest.mark.timed
def test_a_window_that_the_deadline_cuts_short_is_measured_all_the_same(
    tmp_path: Path, write_script: Callable[..., Path]
) -> None:
    """The script as written would end the study otherwise, with everything there that the study needs."""
    script = write_script(COUNTS.replace("STEP_S", "0.02"))
    window = Window(warmup_steps=3, warmup_s=0.1, block_s=0.05, min_s=600.0, max_s=600.0)
    request = replace(request_for(tmp_path, limits=Limits(trial_timeout_s=4.0)), script=Script(str(script), ()))
    outcome = ProcessRunner().run(replace(request, window=window), threading.Event())
    assert (outcome.kind, outcome.detail) == (OutcomeKind.COMPLETE, "its time was up before its window was complete")
    assert outcome.measurement is not None and not outcome.measurement.steady
    assert 200 < outcome.measurement.rate < 405
    assert outcome.knowledge.unit == "samples" and outcome.knowledge.steps > 100
    assert outcome.seconds < 20, "and not the window"


@pytest.mark.slow  # 6 s beside three others
def test_a_deadline_before_there_is_a_figure_is_a_deadline(tmp_path: Path, write_script: Callable[..., Path]) -> None:
    script = write_script(COUNTS.replace("STEP_S", "0.02"))
    for window in (Window(warmup_s=600.0, max_s=600.0), screen_window(10**9)):
        request = replace(request_for(tmp_path, limits=Limits(trial_timeout_s=3.0)), script=Script(str(script), ()))
        outcome = ProcessRunner().run(replace(request, window=window), threading.Event())
        assert (outcome.kind, outcome.reason) == (OutcomeKind.TIMED_OUT, "deadline")


@pytest.mark.slow  # 4 s beside three others
def test_a_loop_in_c_meets_the_no_progress_deadline(tmp_path: Path) -> None:
    """Of a script that is known to take a tenth of a second between two steps."""
    body = """
    import re
    signal.signal(signal.SIGTERM, lambda *_: None)
    emit("first_step", seconds=0.1); blocks(1)
    re.match("(a+)+$", "a" * 64 + "b")
    """
    asked = request_for(tmp_path, limits=Limits(trial_timeout_s=30.0, no_progress_s=1.0))
    asked = replace(asked, knowledge=Knowledge(silences=Silences(training_s=0.1)))
    outcome = ProcessRunner(child=write_program(tmp_path, body)).run(asked, threading.Event())
    assert outcome.kind is OutcomeKind.NO_PROGRESS
    assert outcome.reason in ("no-progress", "crowded-out"), "where others have the core meanwhile"
    assert outcome.seconds < 20, "before its deadline"


def test_a_stopped_child_is_killed(run: Run) -> None:
    outcome = run('emit("first_step", seconds=0.1)\nos.kill(os.getpid(), signal.SIGSTOP)', no_progress_s=1.0)
    assert outcome.kind is OutcomeKind.NO_PROGRESS


@pytest.mark.slow  # 2 s beside three others
def test_a_silent_start_up_is_given_more_time_than_a_silent_loop(run: Run) -> None:
    outcome = run("time.sleep(2)\n" + WINDOW, no_progress_s=0.5)
    assert outcome.complete


def test_a_script_that_will_not_leave_is_ended_and_complete(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tuner.runner.watch.LEAVE_S", 1.0)
    outcome = run(WINDOW + "time.sleep(600)")
    assert outcome.complete
    assert outcome.seconds < 20, "and not what it sleeps"


def test_an_exception_raised_by_our_own_kill_is_not_the_scripts(run: Run) -> None:
    body = """
    def end(*_):
        emit("exception", type="Terminated", text="", traceback="", origin="script"); os._exit(1)
    signal.signal(signal.SIGTERM, end)
    emit("first_step", seconds=0.1)
    while True: time.sleep(0.1)
    """
    assert run(body, no_progress_s=0.5).kind is OutcomeKind.NO_PROGRESS


def test_a_daemonised_grandchild_does_not_outlive_the_trial(run: Run, tmp_path: Path) -> None:
    outcome = run(DAEMON + WINDOW)
    assert outcome.complete
    assert not lives(int((tmp_path / "trial" / "daemon").read_text()))


def test_memory_beyond_the_cap_ends_the_trial(run: Run) -> None:
    body = """
    emit("first_step", seconds=0.1)
    held = []
    for _ in range(100):
        held.append(b"x" * 20_000_000); time.sleep(0.05)
    time.sleep(600)
    """
    outcome = run(body, config={"batch_size": 512}, max_host_bytes=300_000_000)
    assert (outcome.kind, outcome.reason) == (OutcomeKind.INFEASIBLE, "host-oom")
    assert "of 286 MiB allowed" in outcome.detail


@pytest.mark.slow  # 3 s beside three others
def test_pages_that_workers_share_count_once(run: Run) -> None:
    body = (
        """
    held = b"x" * 150_000_000
    for _ in range(4):
        if os.fork() == 0:
            time.sleep(2.5); os._exit(0)
    time.sleep(2.5)
    """
        + WINDOW
    )
    outcome = run(body, max_host_bytes=400_000_000)
    assert outcome.complete
    assert outcome.measurement is not None
    assert 100_000_000 < outcome.measurement.peak_host_bytes < 400_000_000


@pytest.mark.parametrize(("number", "slug"), [(signal.SIGKILL, "signal-kill"), (signal.SIGSEGV, "signal-segv")])
def test_death_by_a_signal_is_a_crash(run: Run, number: signal.Signals, slug: str) -> None:
    outcome = run(f'emit("first_step", seconds=0.1)\nos.kill(os.getpid(), {int(number)})')
    assert (outcome.kind, outcome.reason) == (OutcomeKind.CRASHED, slug)


def test_a_torn_last_record_loses_nothing_before_it(run: Run) -> None:
    outcome = run(WINDOW + 'os.write(descriptor, b\'{"v":1,"kind":"blo\'); os.kill(os.getpid(), 9)')
    assert outcome.complete


@pytest.mark.slow  # 3 s beside three others
def test_a_flood_of_records_and_garbage_is_taken(run: Run) -> None:
    body = (
        'emit("first_step", seconds=0.1)\nos.write(descriptor, b"\\xff\\xfe not json\\n[1]\\n{}\\n")\nblocks(20000)\n'
    )
    outcome = run(body + WINDOW)
    assert outcome.measurement is not None
    assert len(outcome.measurement.blocks) == 20012


def test_a_program_that_can_not_be_started_is_our_fault(tmp_path: Path) -> None:
    runner = ProcessRunner(python=str(tmp_path / "no-python"))
    outcome = runner.run(request_for(tmp_path), threading.Event())
    assert (outcome.kind, outcome.reason) == (OutcomeKind.INFRASTRUCTURE, "no-start")
    assert "no-python" in outcome.detail


def test_a_folder_that_can_not_be_written_is_our_fault(tmp_path: Path) -> None:
    (tmp_path / "trial").write_text("a file, not a folder")
    outcome = ProcessRunner().run(request_for(tmp_path), threading.Event())
    assert (outcome.kind, outcome.reason) == (OutcomeKind.INFRASTRUCTURE, "unwritable")
    assert str(tmp_path / "trial") in outcome.detail


def test_a_full_disk_is_our_fault_and_leaves_no_process(run: Run, tmp_path: Path) -> None:
    (tmp_path / "trial").mkdir()
    (tmp_path / "trial" / "records.jsonl").symlink_to("/dev/full")
    outcome = run('remember("pid", os.getpid())\n' + WINDOW + "time.sleep(600)")
    assert (outcome.kind, outcome.reason) == (OutcomeKind.INFRASTRUCTURE, "disk-full")
    pid = tmp_path / "trial" / "pid"
    assert not pid.exists() or not lives(int(pid.read_text()))


def test_stop_ends_the_trial_at_once(tmp_path: Path) -> None:
    child = write_program(tmp_path, 'remember("pid", os.getpid())\n' + DAEMON + "time.sleep(600)")
    stop = threading.Event()

    def stop_once_it_runs() -> None:
        wait_for(tmp_path / "trial" / "daemon")
        stop.set()

    threading.Thread(target=stop_once_it_runs).start()
    started = time.monotonic()
    with pytest.raises(Interrupted):
        ProcessRunner(child=child).run(request_for(tmp_path), stop)
    assert time.monotonic() - started < 20, "and not what it sleeps"
    for name in ("pid", "daemon"):
        assert not lives(int((tmp_path / "trial" / name).read_text()))


@pytest.mark.slow  # 3 s beside three others
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_nothing_outlives_the_study(tmp_path: Path, number: signal.Signals) -> None:
    child = write_program(tmp_path, 'remember("pid", os.getpid())\n' + DAEMON + "time.sleep(600)")
    study = f"""
import signal, sys, threading
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs start with it ignored
sys.path[:0] = [{str(ROOT)!r}, {str(ROOT / "tests")!r}, {str(Path(__file__).parent)!r}]
from pathlib import Path
from test_process_runner import request_for
from tuner.runner.process import ProcessRunner
ProcessRunner(child=Path({str(child)!r})).run(request_for(Path({str(tmp_path)!r})), threading.Event())
"""
    with subprocess.Popen([sys.executable, "-c", study], stderr=subprocess.DEVNULL) as process:
        wait_for(tmp_path / "trial" / "daemon")
        process.send_signal(number)
        process.wait(20)
    for name in ("pid", "daemon"):
        assert gone_within(int((tmp_path / "trial" / name).read_text()), 15), name


def test_a_killed_guard_is_our_fault_and_takes_the_trial_with_it(run: Run, tmp_path: Path) -> None:
    body = """
    remember("pid", os.getpid())
    if os.fork() == 0:
        remember("worker", os.getpid()); time.sleep(600)
    emit("first_step", seconds=0.1)
    time.sleep(1.5)
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(600)
    """
    outcome = run(body)
    assert (outcome.kind, outcome.reason) == (OutcomeKind.INFRASTRUCTURE, "guard-lost")
    for name in ("pid", "worker"):
        assert gone_within(int((tmp_path / "trial" / name).read_text()), 5), name


def test_an_applied_run_replaces_the_process_and_keeps_its_streams(tmp_path: Path) -> None:
    child = tmp_path / "child.py"
    child.write_text(
        "import json, os, sys\n"
        "path = os.environ['AUTOTUNE_REQUEST']\n"
        "request = json.load(open(path))\n"
        "print(request['mode'], request['config'], os.getpid(), 'AUTOTUNE_RECORDS_FD' in os.environ)\n"
        "print(sys.stdin.read().upper()); sys.exit(7)\n"
    )
    caller = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
from pathlib import Path
from tuner.devices.cpu import cpu_device
from tuner.knowledge import Knowledge
from tuner.model import Script
from tuner.runner.launch import exec_applied
exec_applied(Script("train.py", ()), cpu_device(), {{"workers": 2}}, Knowledge(), child=Path({str(child)!r}))
"""
    process = subprocess.Popen([sys.executable, "-c", caller], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    output, _ = process.communicate("quiet please", timeout=60)
    assert process.returncode == 7
    assert output == f"apply {{'workers': 2}} {process.pid} False\nQUIET PLEASE\n"
