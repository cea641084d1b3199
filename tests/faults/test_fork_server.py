"""A fork server may hang, die or be of no use at any moment: trials start fresh then, and nothing of it stays."""

from __future__ import annotations

import itertools
import os
import random
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
from support.forked import (
    QUICK,
    asked,
    below,
    lives,
    log_of,
    pid_of,
    quickly_loaded,
    run,
    runner_that_leaves_nothing,
    wait_until_gone,
    was_forked,
)

from tuner.model import Outcome, OutcomeKind
from tuner.runner import fork_server
from tuner.runner.fork_servers import Fork, ForkServers, Launch
from tuner.runner.guard import descendants
from tuner.runner.process import ProcessRunner
from tuner.runner.request import Interrupted, Limits, TrialRequest

__all__ = ["quickly_loaded", "runner_that_leaves_nothing"]

pytestmark = pytest.mark.usefixtures("quickly_loaded")
ROOT = Path(__file__).resolve().parents[2]
TRAIN = """
    import os
    import sys
    import time
    import numpy
    import tuner
    worker = os.fork()
    if not worker:
        while True:
            time.sleep(0.01)
    if os.fork() == 0:
        os.setsid()
        if os.fork():
            os._exit(0)
        while True:
            time.sleep(0.01)  # belongs to nobody but the guard
    for step in range(1, 2000):
        time.sleep(0.05 if "slow" in sys.argv else 0.005)
        if "dies" in sys.argv and step == 30:
            os.kill(os.getpid(), 9)
        tuner.report(step=step, samples=8 * step)
"""


@pytest.fixture
def script(write_script: Callable[..., Path]) -> Path:
    """Trains, and leaves processes behind."""
    return write_script(TRAIN)


def server_of(runner: ProcessRunner, number: int = -1) -> int:
    """The pid of one of the runner's servers."""
    return runner._servers.alive[number].pid


def test_a_server_that_hangs_is_killed_and_the_trial_starts_fresh(
    runner: ProcessRunner, tmp_path: Path, script: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fork_server, "FORK_PATIENCE_S", 3.0)
    monkeypatch.setattr("tuner.runner.fork_servers.SERVERS", 1)
    names = itertools.count()
    for _ in (1, 2):
        assert run(runner, request := asked(tmp_path / str(next(names)), script, fresh=False)).complete
        assert was_forked(request) and not runner.why_no_forks, "another server has taken its place"
        hung = server_of(runner, 0)
        os.kill(hung, signal.SIGSTOP)
        assert run(runner, request := asked(tmp_path / str(next(names)), script, fresh=False)).complete
        assert not was_forked(request) and not lives(hung)
    assert "said nothing" in runner.why_no_forks
    assert run(runner, request := asked(tmp_path / str(next(names)), script, fresh=False)).complete
    assert not was_forked(request)


@pytest.mark.slow
def test_the_time_that_a_server_takes_is_no_trials(
    runner: ProcessRunner, tmp_path: Path, script: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that isn't ready in time has used up more than the trial may take."""
    (tmp_path / "site").mkdir()
    waits = "import os, time\nif 'AUTOTUNE_SERVER_FD' in os.environ: time.sleep(600)\n"
    (tmp_path / "site" / "sitecustomize.py").write_text(waits)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
    monkeypatch.setattr(fork_server, "LOAD_PATIENCE_S", 20.0)
    request = asked(tmp_path / "0", script, fresh=False, limits=Limits(trial_timeout_s=20.0))
    assert run(runner, request).complete
    assert not was_forked(request)


def test_a_server_that_is_killed_before_a_trial_is_no_fault_of_it(
    runner: ProcessRunner, tmp_path: Path, script: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tuner.runner.fork_servers.SERVERS", 1)
    assert run(runner, asked(tmp_path / "0", script, fresh=False)).complete
    os.kill(server_of(runner), signal.SIGKILL)
    assert run(runner, request := asked(tmp_path / "1", script, fresh=False)).complete
    assert not was_forked(request)
    assert run(runner, request := asked(tmp_path / "2", script, fresh=False)).complete
    assert was_forked(request)


@pytest.mark.parametrize("victim", ["server", "guard", pytest.param("child", marks=pytest.mark.slow)])
def test_whoever_is_killed_during_a_trial_nothing_stays(
    runner: ProcessRunner, tmp_path: Path, script: Path, victim: str
) -> None:
    outcomes: list[Outcome] = []
    request = asked(tmp_path / "0", script, "slow", fresh=False, window=replace(QUICK, min_s=3.0, max_s=5.0))
    thread = threading.Thread(target=lambda: outcomes.append(run(runner, request)))
    thread.start()
    deadline = time.monotonic() + 60.0
    while (child := pid_of(request.folder)) is None and time.monotonic() < deadline:
        time.sleep(0.01)
    assert child is not None
    server = server_of(runner, 0)
    guard = next(pid for pid in descendants(server) if child in descendants(pid))
    while len(descendants(guard)) < 3 and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(0.5)  # until the daemon's parent has ended
    ours = {guard, child, *descendants(guard)}
    assert len(ours) >= 4, "the worker and the daemon are below the guard"
    os.kill({"server": server, "guard": guard, "child": child}[victim], signal.SIGKILL)
    thread.join(60.0)
    kinds = {"server": OutcomeKind.COMPLETE, "guard": OutcomeKind.INFRASTRUCTURE, "child": OutcomeKind.CRASHED}
    assert outcomes[0].kind is kinds[victim], outcomes[0]
    assert not wait_until_gone(ours)
    assert run(runner, asked(tmp_path / "1", script, fresh=False)).complete


def test_a_trial_that_dies_is_told_as_a_fresh_one(runner: ProcessRunner, tmp_path: Path, script: Path) -> None:
    outcomes = [run(runner, asked(tmp_path / str(fresh), script, "dies", fresh=fresh)) for fresh in (True, False)]
    assert outcomes[0].kind is outcomes[1].kind is OutcomeKind.CRASHED
    assert outcomes[0].detail == outcomes[1].detail


def test_a_server_with_threads_serves_nobody(
    runner: ProcessRunner, tmp_path: Path, script: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(
        "import threading, time\nthreading.Thread(target=time.sleep, args=(600,), daemon=True).start()\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
    assert run(runner, request := asked(tmp_path / "0", script, fresh=False)).complete
    assert not was_forked(request)
    assert "threads" in runner.why_no_forks


def test_packages_of_another_environment_that_the_path_leads_to_are_installed(
    runner: ProcessRunner, tmp_path: Path, write_script: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a .pth file of the environment may, by which it has the machine's packages."""
    (installed := tmp_path / "python" / "site-packages").mkdir(parents=True)
    (installed / "theirs.py").write_text("HALF = 0.5\n")
    monkeypatch.setenv("PYTHONPATH", str(installed))
    script = write_script("import numpy\nimport theirs\n" + textwrap.dedent(TRAIN))
    assert run(runner, request := asked(tmp_path / "0", script, fresh=False)).complete
    assert was_forked(request), runner.why_no_forks


def test_a_library_keeps_its_own_file_open_in_a_fork_too(
    runner: ProcessRunner, tmp_path: Path, write_script: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As libffi does on many machines, which maps each further table of ctypes' functions from it."""
    (installed := tmp_path / "python" / "site-packages").mkdir(parents=True)
    (installed / "tqdm.py").write_text(textwrap.dedent("""
        import _ctypes, os
        SEEN = os.open(_ctypes.__file__, os.O_RDONLY)
    """))
    monkeypatch.setenv("PYTHONPATH", str(installed))
    told = "import os\nprint(os.path.samefile(tqdm._ctypes.__file__, f'/proc/self/fd/{tqdm.SEEN}'))\n"
    script = write_script("import numpy\nimport tqdm\n" + told + textwrap.dedent(TRAIN))
    assert run(runner, request := asked(tmp_path / "0", script, fresh=False)).complete
    assert was_forked(request), runner.why_no_forks
    assert "True" in log_of(request)


def test_a_module_of_the_users_own_is_run_by_no_server(
    runner: ProcessRunner, tmp_path: Path, write_script: Callable[..., Path]
) -> None:
    write_script("import os\nprint('imported in', os.getpid())\nopen('runs.txt', 'a').write('x')", "yaml.py")
    script = write_script("import numpy\nimport yaml\n" + textwrap.dedent(TRAIN))
    assert run(runner, request := asked(tmp_path / "0", script, fresh=False)).complete
    assert not was_forked(request) and log_of(request).count("imported in") == 1
    assert runner.why_no_forks == "yaml lies in no installed package"


STARTS = {
    "pass": "sitecustomize lies in no installed package", "kept = open('kept.txt', 'w')": "had opened files",
}  # fmt: skip


@pytest.mark.parametrize("line", [pytest.param("pass", marks=pytest.mark.slow), *[*STARTS][1:]])
def test_what_starts_with_python_and_is_the_users_own_is_in_no_server(
    runner: ProcessRunner, tmp_path: Path, script: Path, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    """A file that it had open would be closed in a fork, and its number be another file's."""
    why = STARTS[line]
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(line)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
    monkeypatch.chdir(tmp_path)
    assert run(runner, request := asked(tmp_path / "0", script, fresh=False)).complete
    assert not was_forked(request) and why in runner.why_no_forks


def test_an_import_that_fails_is_the_scripts_to_tell(
    runner: ProcessRunner, tmp_path: Path, write_script: Callable[..., Path]
) -> None:
    script = write_script("import numpy\nfrom numpy import no_such_thing\n")
    outcome = run(runner, request := asked(tmp_path / "0", script, fresh=False))
    assert outcome.kind is OutcomeKind.USER_ERROR and not was_forked(request)
    assert "an import failed: ImportError" in runner.why_no_forks


def test_a_server_that_was_closed_is_signalled_no_more(
    runner: ProcessRunner, tmp_path: Path, script: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its pid may be a stranger's by then, and so may be what is below that."""
    assert run(runner, asked(tmp_path / "0", script, fresh=False)).complete
    server = runner._servers.alive[0]
    server.close()
    signalled: list[int] = []
    monkeypatch.setattr(fork_server, "signal_all", lambda pids, number: signalled.extend(pids))
    monkeypatch.setattr(fork_server, "descendants", lambda pid: [-pid])
    server.close()
    fork_server._kill_below(server)
    assert not signalled


PARENT = """
import sys, threading
from pathlib import Path
sys.path.insert(0, {tests!r})
from support.forked import QUICKLY_LOADED, asked, run
from tuner.child.records import Window
from tuner.runner import fork_servers
from tuner.runner.process import ProcessRunner
fork_servers.FRAMEWORKS = QUICKLY_LOADED
runner = ProcessRunner()
for number in range(1000):
    window = Window(max_s=0.5 if number < 3 else 600.0, min_s=0.2, warmup_s=0.0)
    run(runner, asked(Path(sys.argv[1]) / str(number), Path(sys.argv[2]), fresh=False, window=window))
"""


@pytest.mark.slow  # 7 s beside three others
def test_a_killed_parent_leaves_nothing(tmp_path: Path, script: Path) -> None:
    """At any moment: while a server loads, forks, and while its trials run."""
    chance = random.Random(5)
    for attempt in range(2):
        (folder := tmp_path / str(attempt)).mkdir()
        parent = subprocess.Popen(
            [sys.executable, "-c", PARENT.format(tests=str(ROOT / "tests")), str(folder), str(script)], cwd=ROOT
        )
        time.sleep(0.5 + 4.0 * chance.random())
        ours = {*below(parent.pid)}
        parent.send_signal(signal.SIGKILL)
        parent.wait()
        assert not wait_until_gone(ours - {parent.pid})


def test_a_runner_that_is_forgotten_leaves_no_server(tmp_path: Path, script: Path) -> None:
    runner = ProcessRunner()
    assert run(runner, asked(tmp_path / "0", script, fresh=False)).complete
    server = server_of(runner)
    assert lives(server)
    del runner
    assert not wait_until_gone({server})


def test_what_may_not_be_forked_starts_fresh(runner: ProcessRunner, tmp_path: Path, script: Path) -> None:
    requests: list[TrialRequest] = [
        asked(tmp_path / "threads", script, fresh=False, config={"threads": 1}),
    ]
    for request in requests:
        run(runner, request)
        assert not was_forked(request) and not runner._servers.alive


@pytest.mark.slow  # that each side has a server: test_forked_trials.py
@pytest.mark.parametrize("rounds", [0, 1])
def test_runs_of_a_round_start_alike_where_a_server_is_killed_between_them(
    runner: ProcessRunner, tmp_path: Path, script: Path, monkeypatch: pytest.MonkeyPatch, rounds: int
) -> None:
    """In their first round, and in one that servers of an earlier one serve."""
    ready, begun = ForkServers.ready, list[TrialRequest]()

    def killing(servers: ForkServers, trial: Launch, stop: threading.Event | None = None) -> Fork | None:
        begun.append(trial.request)
        if len(begun) == 2 * rounds + 2:
            os.kill(servers.alive[1 - rounds].pid, signal.SIGKILL)  # the other one has begun its trial
        return ready(servers, trial, stop)

    monkeypatch.setattr(ForkServers, "ready", killing)
    for number in range(rounds + 1):
        requests = [
            asked(tmp_path / f"{number}-{side}", script, fresh=True, config={"grad_accumulation": 2} if side else {})
            for side in range(2)
        ]
        outcomes = runner.run_by_turns(requests, threading.Event()).outcomes
        assert all(outcome.complete for outcome in outcomes)
        assert [was_forked(request) for request in requests] == [number < rounds] * 2
    assert begun[2 * rounds :] == requests * 2


@pytest.mark.slow  # 2 s beside three others
@pytest.mark.parametrize("by_turns", [False, True])
def test_a_study_that_is_stopped_while_servers_load_waits_for_none(
    runner: ProcessRunner, tmp_path: Path, script: Path, monkeypatch: pytest.MonkeyPatch, *, by_turns: bool
) -> None:
    (tmp_path / "site").mkdir()
    waits = "import os, time\nif 'AUTOTUNE_SERVER_FD' in os.environ: time.sleep(600)\n"
    (tmp_path / "site" / "sitecustomize.py").write_text(waits)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
    stop, began = threading.Event(), time.monotonic()
    threading.Timer(1.0, stop.set).start()
    with pytest.raises(Interrupted):
        if by_turns:
            runner.run_by_turns([asked(tmp_path / str(side), script, fresh=True) for side in range(2)], stop)
        else:
            runner.run(asked(tmp_path / "0", script, fresh=False), stop)
    assert time.monotonic() - began < fork_server.LOAD_PATIENCE_S / 2
