"""Trials beside the script as written, which stays alive from one to the next: each may be killed at any moment."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import textwrap
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from support.forked import wait_until_gone
from support.turn_takers import note_others, nothing_is_left, pids_in, program, requests_for

from tuner.analysis.race import Race
from tuner.child.records import Block, Hello
from tuner.model import Outcome, OutcomeKind, Phase, Trial
from tuner.runner.guard import descendants, stat_fields
from tuner.runner.process import ProcessRunner
from tuner.runner.request import Interrupted, Limits, TrialRequest
from tuner.storage.audit import audit
from tuner.storage.records import read_records

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def before() -> None:
    note_others()


class Study:
    """A runner, and what it is asked: trials in ``folder``, and the script as written below ``standing``."""

    def __init__(self, folder: Path, body: str = "pass", enough: str = "count >= 12") -> None:
        self.folder = folder
        self.runner = ProcessRunner(child=program(folder, textwrap.dedent(body).strip(), enough))
        (self.request,) = requests_for(folder, 1)
        self.written = replace(self.request, folder=folder / "standing", limits=Limits(trial_timeout_s=1e6))

    def asked(self, number: int) -> TrialRequest:
        return replace(requests_for(self.folder, 2)[1], folder=self.folder / f"{number:04d}")

    def run(self, number: int, race: Race | None = None, stop: threading.Event | None = None) -> Outcome:
        found = self.runner.run_beside(self.asked(number), self.written, stop or threading.Event(), race or Race())
        assert found.obstacle == ""
        (outcome,) = found.outcomes
        return outcome

    @property
    def started(self) -> list[str]:
        """The folders of the script as written, one for each time that it was started."""
        return sorted(path.name for path in (self.folder / "standing").iterdir())


@pytest.mark.timed
def test_one_script_as_written_serves_many_trials(tmp_path: Path) -> None:
    study = Study(tmp_path)
    for number in range(3):
        outcome = study.run(number)
        assert outcome.complete and outcome.measurement is not None and outcome.measurement.reference is not None
        assert outcome.measurement.reference.gain.ratio == pytest.approx(2.0, rel=0.2)
        assert outcome.measurement.turns >= 4
    assert study.started == ["0000"]
    study.runner.close()
    assert nothing_is_left()


@pytest.mark.slow  # 4 s beside three others
@pytest.mark.parametrize(
    ("start_s", "least_s", "most_s"), [(0.0, 0.6, 1.6), pytest.param(3.0, 1.5, 2.3, marks=pytest.mark.slow)]
)
def test_a_rough_trial_that_may_be_the_best_goes_on_until_it_was_worth_its_start(
    tmp_path: Path, start_s: float, least_s: float, most_s: float
) -> None:
    """It goes by fits and starts; windows are 0.3 s long, and two to four times that where nothing else is known."""
    study = Study(tmp_path, "if me and count % 3 == 0: time.sleep(0.1)")
    child = tmp_path / "child.py"
    first = 'emit("first_step"'
    child.write_text(child.read_text().replace(first, f"time.sleep({start_s} if me else 0)\n{first}"))
    outcome = study.run(0)
    study.runner.close()
    assert outcome.measurement is not None
    assert least_s <= sum(block.seconds for block in outcome.measurement.blocks) <= most_s
    assert nothing_is_left()


@pytest.mark.slow  # 3 s beside three others
def test_figures_follow_from_what_lies_in_the_trials_own_folder(tmp_path: Path) -> None:
    """The turns of the script as written as well, and what was read of the cores in them."""
    study = Study(tmp_path)
    outcome = study.run(0)
    study.runner.close()
    raw = tmp_path / "0000"
    theirs = [e.record for e in read_records(raw / "reference.jsonl") if isinstance(e.record, Block)]
    own = [e.record for e in read_records(raw / "records.jsonl") if isinstance(e.record, Block)]
    assert sorted(block.turn for block in [*own, *theirs]) == list(range(1, len(own) + len(theirs) + 1))

    (tmp_path / "trials").mkdir()
    raw.rename(tmp_path / "trials" / "0000")
    trial = Trial(0, Phase.SEARCH, study.asked(0).config, outcome=outcome)
    assert audit(tmp_path, [trial]).different == []
    (tmp_path / "trials" / "0000" / "reference.jsonl").write_bytes(b"")
    assert any("reference" in line for line in audit(tmp_path, [trial]).different)


@pytest.mark.slow  # 2 s beside three others
def test_a_trial_that_dies_holds_up_nobody(tmp_path: Path) -> None:
    study = Study(tmp_path, "if me == 1 and count == 3: os.kill(os.getpid(), 9)")
    assert study.run(0).kind is OutcomeKind.CRASHED
    assert study.run(1).kind is OutcomeKind.CRASHED
    assert study.started == ["0000"], "the script as written lives on"
    study.runner.close()
    assert nothing_is_left()


@pytest.mark.slow  # 31 s beside three others
def test_a_trial_beyond_its_own_memory_limit_is_told_apart_and_ends_nobody_else(tmp_path: Path) -> None:
    study = Study(tmp_path, "if me and count == 3: kept = b'1' * 2**28; time.sleep(5)")
    limits = Limits(trial_timeout_s=30.0, max_host_bytes=2**27)
    found = study.runner.run_beside(replace(study.asked(0), limits=limits), study.written, threading.Event(), Race())
    assert (found.outcomes[0].reason, found.outcomes[0].over_limit) == ("host-oom", 2**27)
    dies = study.runner.run_beside(study.asked(1), study.written, threading.Event(), Race())
    assert dies.outcomes[0].over_limit is None
    assert study.started == ["0000"], "the script as written lives on"
    study.runner.close()
    assert nothing_is_left()


FIRST = 'request["folder"].endswith("standing/0000")'
DIES = {
    "in its turn": f"if {FIRST} and count == 3: os.kill(os.getpid(), 9)",
    "held": f"""
        if {FIRST} and not count:
            open(PLACE, "w").write(str(os.getpid()))
        elif me and count == 3 and os.path.exists(PLACE):
            os.kill(int(open(PLACE).read()), 9)
            os.remove(PLACE)
        """,
    "between trials": "pass",
}


@pytest.mark.slow  # 5 s beside three others
@pytest.mark.parametrize(
    "when", ["held", *(pytest.param(when, marks=pytest.mark.slow) for when in ("in its turn", "between trials"))]
)
def test_a_script_as_written_that_is_killed_is_started_again(tmp_path: Path, when: str) -> None:
    """The trial beside it goes on with the next one."""
    study = Study(tmp_path, DIES[when].replace("PLACE", repr(str(tmp_path / "pid"))))
    first = study.run(0)
    assert first.complete and first.measurement is not None and first.measurement.reference is not None
    if when == "between trials":
        records = [entry.record for entry in read_records(tmp_path / "standing" / "0000" / "records.jsonl")]
        (pid,) = [record.pid for record in records if isinstance(record, Hello)]
        os.kill(pid, signal.SIGKILL)
    second = study.run(1)
    assert second.complete and second.measurement is not None and second.measurement.reference is not None
    assert study.started == ["0000", "0001"]
    study.runner.close()
    assert nothing_is_left()


STARTS = {
    "its process": "os.kill(os.getpid(), 9)",
    "its guard": "os.kill(os.getppid(), 9); time.sleep(60)",
    "nobody: it raises, by chance": "os.kill(worker, 9); os._exit(1)",
}


@pytest.mark.slow  # 5 s beside three others
@pytest.mark.parametrize("victim", [pytest.param("its process", marks=pytest.mark.slow), *[*STARTS][1:]])
def test_a_script_as_written_that_is_killed_or_fails_as_it_starts_is_started_again(tmp_path: Path, victim: str) -> None:
    study = Study(tmp_path)
    child = tmp_path / "child.py"
    kills = f'if {FIRST}: {STARTS[victim]}\nemit("first_step", seconds=0.1)'
    child.write_text(child.read_text().replace('emit("first_step", seconds=0.1)', kills))
    outcome = study.run(0)
    assert outcome.complete and outcome.measurement is not None and outcome.measurement.reference is not None
    assert study.started == ["0000", "0001"]
    study.runner.close()
    assert nothing_is_left() and not sessions_of(tmp_path / "standing")


def sessions_of(folder: Path) -> list[int]:
    """Processes in the sessions of the trials in the folder, those too that nobody leads to any more."""
    files = folder.glob("0*/records.jsonl")
    leaders = {e.record.pid for file in files for e in read_records(file) if isinstance(e.record, Hello)}
    found = {int(name): stat_fields(int(name)) for name in os.listdir("/proc") if name.isdigit()}
    return [pid for pid, fields in found.items() if fields and fields[0] not in "ZX" and int(fields[3]) in leaders]


def test_what_is_held_is_ended_as_its_guard_is_killed(tmp_path: Path) -> None:
    """Whatever the study is at: it may be killed before the next turn, and nobody would be left to end it."""
    study = Study(tmp_path)
    assert study.run(0).complete
    ours = pids_in(tmp_path / "standing")
    guard = next(pid for pid in descendants(os.getpid()) if ours & {*descendants(pid)} and pid not in ours)
    os.kill(guard, signal.SIGKILL)
    assert not wait_until_gone(ours, 5.0)
    assert study.run(1).complete and study.started == ["0000", "0001"]
    study.runner.close()
    assert nothing_is_left()
    assert not [thread for thread in threading.enumerate() if thread.name == "held trial"]


@pytest.mark.slow  # 2 s beside three others
def test_nothing_is_left_stopped_of_a_script_as_written_whose_guard_is_killed(tmp_path: Path) -> None:
    """Its worker is held, belongs to nobody, and can't notice that its parent has gone."""
    study = Study(tmp_path)
    assert study.run(0).complete
    ours = pids_in(tmp_path / "standing")
    guards = [pid for pid in descendants(os.getpid()) if ours & {*descendants(pid)} and pid not in ours]
    assert len(ours) == 2 and len(guards) == 1
    os.kill(guards[0], signal.SIGKILL)
    study.runner.close()
    assert not wait_until_gone(ours, 5.0) and not sessions_of(tmp_path / "standing")


@pytest.mark.slow  # 2 s beside three others
def test_a_trial_that_is_held_and_whose_guard_is_killed_is_ended_at_once(tmp_path: Path) -> None:
    """And not with its next turn: the study may have been killed by then, and nobody would be left to end it."""
    kills = """
    if me == 1:
        open(PLACE, "w").write(f"{os.getppid()} {worker}")
    elif count == 3:
        guard, its_worker = map(int, open(PLACE).read().split())
        os.kill(guard, 9)
        time.sleep(2)
        open(PLACE + ".state", "w").write(str(os.path.exists(f"/proc/{its_worker}")))
    """.replace("PLACE", repr(str(tmp_path / "pids")))
    study = Study(tmp_path, kills)
    assert study.run(0).kind is OutcomeKind.INFRASTRUCTURE
    assert (tmp_path / "pids.state").read_text() == "False"
    study.runner.close()
    assert nothing_is_left()


def test_a_script_as_written_that_ends_too_soon_gives_no_evidence(tmp_path: Path) -> None:
    study = Study(tmp_path, "if me == 0 and count == 1: os.kill(worker, 9); os._exit(0)")
    found = study.runner.run_beside(study.asked(0), study.written, threading.Event(), Race())
    assert "too soon" in found.obstacle
    study.runner.close()
    assert nothing_is_left()


def test_one_that_never_comes_to_its_window_is_told(tmp_path: Path) -> None:
    study = Study(tmp_path)
    study.runner = ProcessRunner(child=study.folder / "nothing.py")
    found = study.runner.run_beside(study.asked(0), study.written, threading.Event(), Race())
    assert found.outcomes == () and "window" in found.obstacle
    assert "nothing.py" in found.obstacle, "what it died of"
    assert nothing_is_left()


@pytest.mark.slow  # 2 s beside three others
def test_scripts_that_make_many_files_are_told(tmp_path: Path) -> None:
    made = """
        with open(os.path.join(request["folder"], "made.jsonl"), "a") as notes:
            path = os.path.join(request["folder"], f"new-{count}")
            open(path, "w").close()
            notes.write(json.dumps({"made": path, "folder": False, "after_first_step": True}) + "\\n")
    """
    study = Study(tmp_path, made)
    found = study.runner.run_beside(study.asked(0), study.written, threading.Event(), Race())
    assert "makes files" in found.obstacle
    study.runner.close()


@pytest.mark.slow  # 8 s beside three others
def test_a_trial_is_over_when_the_studys_time_is_up(tmp_path: Path) -> None:
    """With its figures, once there are some; without, where it hasn't come to its window."""
    study = Study(tmp_path, enough="False")
    asked = replace(study.asked(0), ends_by=time.monotonic() + 5.0)
    began = time.monotonic()
    (outcome,) = study.runner.run_beside(asked, study.written, threading.Event(), Race()).outcomes
    assert outcome.complete and time.monotonic() - began < 25.0, "no trial's limit is as short"
    late = replace(study.asked(1), ends_by=time.monotonic() - 5.0)
    slow = Study(tmp_path, "time.sleep(3) if me else None", enough="False")
    (outcome,) = slow.runner.run_beside(late, slow.written, threading.Event(), Race()).outcomes
    assert outcome.kind is OutcomeKind.UNFINISHED and outcome.reason == "out-of-time"
    study.runner.close()
    slow.runner.close()
    assert nothing_is_left()


@pytest.mark.parametrize("after_s", [0.05, 0.4, 0.8])
def test_a_stop_leaves_nothing(tmp_path: Path, after_s: float) -> None:
    stop = threading.Event()
    study = Study(tmp_path, enough="False")
    threading.Timer(after_s, stop.set).start()
    with pytest.raises(Interrupted):
        study.run(0, stop=stop)
    assert nothing_is_left()


PARENT = """
import sys
from pathlib import Path
sys.path.insert(0, {tests!r})
from dataclasses import replace
from support.turn_takers import program, requests_for
from tuner.analysis.race import Race
from tuner.runner.process import ProcessRunner
import threading
folder = Path(sys.argv[1])
runner = ProcessRunner(child=program(folder))
written, asked = requests_for(folder, 2)
for number in range(1000):
    asked = replace(asked, folder=folder / f"{{number:04d}}")
    runner.run_beside(asked, replace(written, folder=folder / "standing"), threading.Event(), Race())
"""


def kill_parents(folder: Path, times: int, seed: int) -> None:
    """Kills a runner so often, at random moments; fails where anything of its trials is left, running or stopped."""
    chance = random.Random(seed)
    for attempt in range(times):
        own = folder / str(attempt)
        own.mkdir()
        parent = subprocess.Popen([sys.executable, "-c", PARENT.format(tests=str(ROOT / "tests")), str(own)], cwd=ROOT)
        deadline = time.monotonic() + 30.0
        while not list(own.glob("0*/records.jsonl")) and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(chance.random() * 2.0)
        ours = pids_in(own) | pids_in(own / "standing")
        assert ours
        parent.send_signal(signal.SIGKILL)
        parent.wait()
        assert not wait_until_gone(ours, 10.0)


def test_a_killed_parent_leaves_nothing_not_even_stopped(tmp_path: Path) -> None:
    kill_parents(tmp_path, 4, seed=5)


@pytest.mark.slow
def test_a_hundred_killed_parents_leave_nothing(tmp_path: Path) -> None:
    kill_parents(tmp_path, 100, seed=6)
