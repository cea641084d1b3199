"""Which run follows on which, and what is concluded: the runs are functions of the watches that are in place."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import worlds

from tuner.child.records import Knowledge
from tuner.child.watch import Watch
from tuner.child.wire import KEPT
from tuner.errors import OwnFaultError, UserScriptError
from tuner.model import BASELINE, Outcome, OutcomeKind, Script
from tuner.runner.plain.sitecustomize import SILENCED
from tuner.runner.request import TrialRequest
from tuner.storage.folder import RESOURCES
from tuner.study.baseline import blame_error
from tuner.study.blame import ALL, Inquiry, Verdict, Whose, alike, may_be_ours, watches_in

TRACE = 'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\n    step()\n{}: it broke\n'
RUNS = Outcome(OutcomeKind.TIMED_OUT, "deadline", "not through")


def raised(name: str = "TypeError", trace: str = "", **fields: object) -> Outcome:
    text = trace or TRACE.format(name)
    detail = text.splitlines()[-1]
    return Outcome(OutcomeKind.USER_ERROR, "script-raised", detail, text, seconds=2.0, **fields)  # type: ignore[arg-type]  # its own fields


def inquire(
    folder: Path, failed: Outcome, answer: Callable[[TrialRequest], Outcome], without: frozenset[Watch] = frozenset(),
    *, by_chance_before: bool = False,
) -> tuple[Verdict, list[TrialRequest]]:  # fmt: skip
    asked: list[TrialRequest] = []

    def run(request: TrialRequest) -> Outcome:
        asked.append(request)
        return answer(request)

    request = TrialRequest(folder / "0000", Script("train.py", ()), worlds.DEVICE, BASELINE, without=without)
    inquiry = Inquiry(request, failed, folder / "checks", run, by_chance_before=by_chance_before)
    return inquiry.verdict(), asked


def broken_by(*watches: Watch) -> Callable[[TrialRequest], Outcome]:
    return lambda request: RUNS if request.plain or request.without >= set(watches) else raised()


@settings(max_examples=30)
@given(st.sampled_from(sorted(ALL - {Watch.FILES})), st.booleans())
def test_the_one_watch_that_breaks_a_script_is_found(watch: Watch, traced: bool) -> None:
    frame = '  File "/x/tuner/child/torch/loader.py", line 1, in f\n' if traced else ""
    failed = raised(with_ours=frame, knowledge=Knowledge(watches=tuple(Watch)))
    verdict, asked = inquire(Path("/nowhere"), failed, broken_by(watch))
    assert verdict.whose is Whose.OURS
    assert verdict.ways == (frozenset({watch}), ALL - {Watch.FILES})
    assert all(request.limits.trial_timeout_s == 14.0 for request in asked), "each is bounded"
    if traced and watch is Watch.LOADER:
        assert len(asked) == 3, "all but files, as in the trial, and the watch in the trace"
    assert not any(request.plain for request in asked), "what runs with nothing but the watch on files is ours to mend"


def test_two_watches_at_once_leave_the_smallest_set_that_is_known(tmp_path: Path) -> None:
    verdict, _ = inquire(tmp_path, raised(), broken_by(Watch.LOADER, Watch.KERAS))
    assert verdict.ways == (ALL - {Watch.FILES},)


def test_what_the_user_left_out_stays_out(tmp_path: Path) -> None:
    verdict, asked = inquire(tmp_path, raised(), broken_by(Watch.LOADER), frozenset({Watch.KERAS}))
    assert verdict.ways[0] == {Watch.LOADER, Watch.KERAS}
    assert all(request.plain or Watch.KERAS in request.without for request in asked)


def test_plain_python_comes_last_and_for_hardly_longer_than_the_failure_took(tmp_path: Path) -> None:
    verdict, asked = inquire(tmp_path, raised(), lambda request: raised())
    assert (verdict.whose, [request.plain for request in asked]) == (Whose.SCRIPT, [False, True])
    assert asked[1].limits.trial_timeout_s == 5.0, "what it writes later isn't known from any trial"


BY_THE_SCRIPT = """Traceback (most recent call last):
  File "/home/me/try-wandb.py", line 3, in <module>
    net(batch)  # nothing to do with wandb
    ^^^^^^^^^^
  File "/x/site-packages/torch/nn/modules/linear.py", line 134, in forward
    return F.linear(input, self.weight, self.bias)
RuntimeError: mat1 and mat2 shapes cannot be multiplied
"""
IN_THE_TRACKER = """Traceback (most recent call last):
  File "/home/me/train.py", line 3, in <module>
    run.summary["accuracy"]
  File "/x/site-packages/wandb/sdk/wandb_summary.py", line 41, in __getitem__
    raise KeyError(key)
KeyError: 'accuracy'
"""
WITHOUT_A_LIBRARY = """Traceback (most recent call last):
  File "/home/me/train.py", line 3, in <module>
    import wandb
  File "/x/site-packages/wandb/__init__.py", line 22, in <module>
    from opentelemetry import trace
ModuleNotFoundError: No module named 'opentelemetry'
"""
OF_THE_TRACKER = """Traceback (most recent call last):
  File "/home/me/train.py", line 3, in <module>
    number = int(wandb.run.name.split("-")[-1])
ValueError: invalid literal for int() with base 10: 'dummy'
"""
NAMED = BY_THE_SCRIPT.replace("mat1 and mat2", "no such file: '/home/me/wandb/latest-run': ")


@pytest.mark.parametrize(
    ("trace", "may_explain"),
    [
        (BY_THE_SCRIPT, False), (WITHOUT_A_LIBRARY, False), (IN_THE_TRACKER, True), (OF_THE_TRACKER, True),
        (NAMED, True), ("", True),
    ],
)  # fmt: skip
def test_a_tracker_that_is_off_under_plain_python_as_well_may_explain_what_goes_through_it(
    tmp_path: Path, trace: str, may_explain: bool
) -> None:
    """What names it nowhere is the script's own, as plain Python shows; an exit status alone tells nothing of it."""
    failed = raised(trace=trace) if trace else Outcome(OutcomeKind.USER_ERROR, "script-failed", "it ended with 1")

    def run(request: TrialRequest) -> Outcome:
        if request.plain:
            request.folder.mkdir(parents=True)
            (request.folder / SILENCED).write_text("comet_ml/by-library\nmlflow\nwandb\n" if trace else "wandb\n")
            return replace(failed, traceback_text=trace and f"{trace}wandb: it was disabled\n")
        return failed

    verdict, _ = inquire(tmp_path, failed, run)
    error = blame_error(failed, verdict, tmp_path)
    assert (verdict.whose, verdict.silenced) == ((Whose.OPEN, ("wandb",)) if may_explain else (Whose.SCRIPT, ()))
    if may_explain:
        assert error.message == f"the script fails with wandb switched off, as it is in trials: {failed.detail}"
        assert error.hint is not None and "that may explain it" in error.hint
    else:
        assert error.message == f"the script fails by itself: {failed.detail}"
        assert error.hint is not None and "with mlflow and wandb off, as in trials" in error.hint


@pytest.mark.parametrize(
    ("failed", "hint"),
    [
        (Outcome(OutcomeKind.CRASHED, "signal-segv", "died of SIGSEGV", seconds=2.0), "so it does under plain Python"),
        (
            Outcome(OutcomeKind.USER_ERROR, "script-failed", "the script ended with status 2: no --data", seconds=2.0),
            "give it the arguments that it needs behind --",
        ),
    ],
)
def test_what_fails_so_under_plain_python_is_told_as_the_scripts_own(
    tmp_path: Path, failed: Outcome, hint: str
) -> None:
    """'died of SIGSEGV' was all that was told after the runs that were to show whose fault that is; and who had left
    out an argument of the script was to mend it and run the same command again.
    """
    verdict, _ = inquire(tmp_path, failed, lambda request: failed)
    assert verdict.whose is Whose.SCRIPT and verdict.plain is not None
    error = blame_error(failed, verdict, tmp_path)
    assert (type(error), error.message) == (UserScriptError, f"the script fails by itself: {failed.detail}")
    assert error.hint is not None and hint in error.hint and "log.txt" in error.hint


@pytest.mark.parametrize("text", ['run(report_to="wandb")', "run()  # no_wandb"])
def test_a_tracker_that_a_library_imported_first_is_told_of_where_the_script_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    """An import that comes second imports nothing, and isn't seen."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(text)

    def run(request: TrialRequest) -> Outcome:
        if request.plain:
            request.folder.mkdir(parents=True)
            (request.folder / SILENCED).write_text("wandb/by-library\n")
        return raised()

    verdict, _ = inquire(tmp_path, raised(), run)
    assert (verdict.whose, verdict.off) == (Whose.SCRIPT, ("wandb",) if "to=" in text else ())


@pytest.mark.parametrize("exists", [True, False])
@pytest.mark.parametrize("trial", ["0000", "checks/without-any-watch-but-files"])
def test_where_files_were_written_plain_python_is_tried_only_if_it_harms_none(
    tmp_path: Path, trial: str, exists: bool
) -> None:
    users = tmp_path / "out.txt"
    if exists:
        users.write_text("the user's")
    own = tmp_path / trial / "files" / str(users).lstrip("/")
    own.parent.mkdir(parents=True)
    own.write_text("the trial's")
    verdict, asked = inquire(tmp_path, raised(), lambda request: raised())
    assert [request.plain for request in asked] == ([False] if exists else [False, True])
    assert verdict.whose is (Whose.OPEN if exists else Whose.SCRIPT)
    assert exists or asked[1].made == (str(users),), "it may come again, written by C"


def test_where_the_users_files_were_kept_from_the_script_plain_python_is_not_tried(tmp_path: Path) -> None:
    """A library may have removed a folder past Python: nothing lies in the trial's folder for it."""
    (tmp_path / "out").mkdir()
    (tmp_path / "0000").mkdir()
    (tmp_path / "0000" / KEPT).write_text(json.dumps(str(tmp_path / "out")) + '\n"torn')
    verdict, asked = inquire(tmp_path, raised(), lambda request: raised())
    assert (verdict.whose, [request.plain for request in asked]) == (Whose.OPEN, [False])


@pytest.mark.parametrize("place", ["0000/files/home/me/latest", "data/0000/latest"])
def test_a_path_of_the_trials_is_not_blamed_on_the_script(tmp_path: Path, place: str) -> None:
    """It stands in place of one of the user's, and only the watch on files can have given it."""
    text = f"No such file or directory: '{tmp_path / place}'"
    trace = f'Traceback (most recent call last):\n  File "train.py", line 1, in f\nFileNotFoundError: {text}\n'
    failed = Outcome(OutcomeKind.USER_ERROR, "script-raised", f"FileNotFoundError: {text}", trace)
    error = blame_error(failed, Verdict(Whose.OPEN), tmp_path / "0000")
    assert isinstance(error, OwnFaultError) is ("files" in place)
    assert ("--without files" in error.hint) is ("files" in place)


def test_the_watch_on_files_is_never_taken_away(tmp_path: Path) -> None:
    verdict, asked = inquire(tmp_path, raised(), broken_by(Watch.FILES))
    assert [request.plain for request in asked] == [False, True, False]
    assert (verdict.whose, verdict.ways) == (Whose.OURS, ())
    assert all(request.plain or Watch.FILES not in request.without for request in asked)


MACHINE = [
    Outcome(OutcomeKind.INFRASTRUCTURE, "machine-full", "the machine's memory ran out"),
    Outcome(OutcomeKind.INFRASTRUCTURE, "guard-lost", "the guard was killed"),
    Outcome(OutcomeKind.INFEASIBLE, "host-oom", "the kernel killed it"),
    Outcome(OutcomeKind.INFEASIBLE, "device-oom", "RuntimeError: CUDA out of memory", TRACE.format("RuntimeError")),
    Outcome(OutcomeKind.CRASHED, "signal-kill", "died of SIGKILL"),
    Outcome(OutcomeKind.NO_PROGRESS, "no-progress", "no first step for 130 s, and its processes use no CPU time"),
]


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("ended", MACHINE, ids=lambda outcome: outcome.reason)
def test_a_check_that_the_machine_ended_blames_nobody(tmp_path: Path, ended: Outcome, plain: bool) -> None:
    verdict, asked = inquire(tmp_path, raised(), lambda request: ended if request.plain is plain else raised())
    assert (verdict.whose, verdict.ways, len(asked)) == (Whose.OPEN, (), 1 + plain)
    assert ended.detail in verdict.obstacle and ended.detail in verdict.account[-1]
    error = blame_error(raised(), verdict, tmp_path)
    assert error.message == "the script fails in a trial: TypeError: it broke"
    assert error.hint is not None and ended.detail in error.hint and "isn't known" in error.hint


def test_a_failure_for_want_of_memory_that_comes_again_is_told_as_such(tmp_path: Path) -> None:
    trace = TRACE.format("MemoryError")
    failed = Outcome(OutcomeKind.INFEASIBLE, "host-oom", "MemoryError: it broke", trace, seconds=2.0)
    verdict, _ = inquire(tmp_path, failed, lambda request: failed)
    assert (verdict.whose, verdict.obstacle) == (Whose.SCRIPT, "")
    assert "takes more memory than it may" in (blame_error(failed, verdict, tmp_path).hint or "")


@pytest.mark.parametrize(
    ("used_s", "others_s", "whose"), [(9.0, 8.0, Whose.OPEN), (13.0, 8.0, Whose.OURS), (9.0, 0.5, Whose.OURS)]
)
def test_plain_python_that_others_kept_from_the_cores_says_nothing(
    tmp_path: Path, used_s: float, others_s: float, whose: Whose
) -> None:
    """The failure had taken 12 s of CPU time; within its limit plain Python came to less of them, or went past them.

    A failure's last reading finds its processes gone, and holds no CPU time.
    """

    def sampled(folder: Path, cpu_s: float, foreign_s: float) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        samples = [(0.0, 0.0, 100.0), (10.0, cpu_s, 100.0 + cpu_s + foreign_s)]
        lines = [{"t": t, "cpu_s": own, "busy_s": busy, "cores": 2} for t, own, busy in samples]
        (folder / RESOURCES).write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="ascii")

    def answer(request: TrialRequest) -> Outcome:
        sampled(request.folder, used_s, others_s)
        return RUNS if request.plain else raised()

    sampled(tmp_path / "0000", 12.0, 0.0)
    with (tmp_path / "0000" / RESOURCES).open("a", encoding="ascii") as readings:
        readings.write(json.dumps({"t": 10.1, "busy_s": 112.2, "cores": 2}) + "\n")
    verdict, _ = inquire(tmp_path, raised(), answer)
    assert verdict.whose is whose
    assert bool(verdict.obstacle) is (whose is Whose.OPEN)


def test_what_others_killed_is_nobodys_fault() -> None:
    assert not may_be_ours(Outcome(OutcomeKind.CRASHED, "signal-kill", "died of SIGKILL"))
    assert not may_be_ours(Outcome(OutcomeKind.CRASHED, "worker-killed", traceback_text="Traceback"))
    assert may_be_ours(Outcome(OutcomeKind.CRASHED, "signal-segv", "died of SIGSEGV"))


def test_what_plain_python_was_kept_from_says_nothing(tmp_path: Path) -> None:
    withheld = Outcome(OutcomeKind.INFRASTRUCTURE, "withheld", "it would write over out.txt")
    verdict, _ = inquire(tmp_path, raised(), lambda request: withheld if request.plain else raised())
    assert (verdict.whose, verdict.obstacle) == (Whose.OPEN, "")
    verdict, _ = inquire(tmp_path, raised(), lambda r: withheld if r.plain else broken_by(Watch.LOADER)(r))
    assert (verdict.whose, verdict.ways[0]) == (Whose.OURS, frozenset({Watch.LOADER}))


def test_the_search_for_the_watch_ends(tmp_path: Path) -> None:
    def slow(request: TrialRequest) -> Outcome:
        bare = request.without >= ALL - {Watch.FILES}
        return RUNS if request.plain or bare else Outcome(OutcomeKind.CRASHED, "signal-segv", seconds=100.0)

    verdict, asked = inquire(tmp_path, raised(), slow)
    assert verdict.ways == (ALL - {Watch.FILES},)
    assert len(asked) == 3


@pytest.mark.parametrize("before", [False, True])
def test_what_runs_when_it_is_run_again_as_in_the_trial_failed_by_chance(tmp_path: Path, before: bool) -> None:
    """A script that draws what it trains on may fail in one run of thirty: no watch broke it."""
    verdict, asked = inquire(tmp_path, raised(), lambda request: RUNS, by_chance_before=before)
    if before:
        assert verdict.whose is Whose.OURS, "what never fails without the instruments, and again with them, is theirs"
        return
    assert (verdict.whose, verdict.ways, verdict.account[-1]) == (Whose.CHANCE, (), "as in the trial: it runs")
    assert (len(asked), asked[1].plain, asked[1].without) == (2, False, frozenset())
    error = blame_error(raised(), verdict, tmp_path)
    assert error.message == "the script failed in a trial, and run again it didn't: TypeError: it broke"


def test_what_failed_by_chance_twice_is_not_blamed_on_the_watch_on_files(tmp_path: Path) -> None:
    """One that fails in each third run was told to be in order, and to be run over the user's files."""
    outcomes = iter([raised(), RUNS, RUNS])
    verdict, asked = inquire(tmp_path, raised(), lambda request: next(outcomes))
    assert (verdict.whose, [request.plain for request in asked]) == (Whose.CHANCE, [False, True, False])
    assert (asked[2].without, verdict.account[-1]) == (frozenset(), "as in the trial: it runs")


@pytest.mark.parametrize(
    ("outcome", "expected"),
    [
        (raised(), True),
        (Outcome(OutcomeKind.USER_ERROR, "script-failed"), True),
        (Outcome(OutcomeKind.CRASHED, "signal-segv"), True),
        (Outcome(OutcomeKind.INFEASIBLE, "device-oom", traceback_text="MemoryError"), True),
        (Outcome(OutcomeKind.CRASHED, "took-the-study-down"), False),
        (Outcome(OutcomeKind.INFEASIBLE, "host-oom"), False),
        (Outcome(OutcomeKind.USER_ERROR, "no-step"), False),
        (Outcome(OutcomeKind.USER_ERROR, "ended-early"), False),
        (Outcome(OutcomeKind.TIMED_OUT, "deadline"), False),
        (Outcome(OutcomeKind.NO_PROGRESS, "no-progress"), False),
        (Outcome(OutcomeKind.INFRASTRUCTURE, "no-start", traceback_text="x"), False),
        (worlds.measured(1.0), False),
    ],
)
def test_which_ends_are_followed_up(outcome: Outcome, expected: bool) -> None:
    assert may_be_ours(outcome) is expected


def test_failures_are_compared_by_what_was_raised() -> None:
    assert alike(raised("TypeError"), raised("TypeError"))
    assert not alike(raised("TypeError"), raised("ValueError"))
    assert not alike(raised(), Outcome(OutcomeKind.USER_ERROR, "script-failed"))
    assert alike(Outcome(OutcomeKind.CRASHED, "signal-segv"), Outcome(OutcomeKind.CRASHED, "signal-segv"))


def test_every_watch_that_patches_is_recognised_by_its_files() -> None:
    frames = [
        ("torch/loader.py", Watch.LOADER), ("torch/steps.py", Watch.OPTIMIZER), ("keras/fit.py", Watch.KERAS),
        ("tensorflow/data/watch.py", Watch.TF_DATA), ("tensorflow/loops.py", Watch.TENSORFLOW),
        ("files.py", Watch.FILES), ("torch/modules.py", Watch.MODULES),
    ]  # fmt: skip
    trace = "".join(f'  File "/a/tuner/child/{name}", line 1, in f\n    x\n' for name, _ in frames)
    assert watches_in(trace) == [watch for _, watch in reversed(frames)]
    of_none = '  File "/home/me/train.py", line 1, in f\n  File "/a/tuner/child/session.py", line 2, in g\n'
    assert watches_in(of_none) == []
