"""A budget that is shorter than a trial may be: it bounds what is measured first, too."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from support import worlds

from tuner.child.watch import Watch
from tuner.errors import AutotuneError, UntunableError, UserScriptError
from tuner.formatting import seconds_text
from tuner.model import Outcome, OutcomeKind
from tuner.runner.classify import NO_FRAMEWORK, PROCESSES_AWAITED
from tuner.runner.request import Runner, TrialRequest
from tuner.search.structured import StructuredSampler
from tuner.study.blame import ALL
from tuner.study.run import run_study


class Slow(Runner):
    """Nothing of it is through in time."""

    def __init__(self, reason: str, kind: OutcomeKind = OutcomeKind.TIMED_OUT) -> None:
        self.limits: list[float] = []
        self.reason, self.kind = reason, kind

    def run(self, request: TrialRequest, stop: threading.Event) -> Outcome:
        """As the limit says."""
        self.limits.append(request.limits.trial_timeout_s)
        detail = f"not through after {self.limits[-1]:.0f} s: still in its start"
        return Outcome(self.kind, self.reason, detail)


@pytest.mark.parametrize("reason", ["deadline", NO_FRAMEWORK])
@pytest.mark.parametrize(("budget_s", "limit_s"), [(40.0, 40.0), (120.0, 120.0), (1800.0, 120.0), (None, 120.0)])
def test_a_short_budget_bounds_what_is_measured_first(
    tmp_path: Path, budget_s: float | None, limit_s: float, reason: str
) -> None:
    """The search and the finals go by what runs take; of the first one nothing is known."""
    slow = Slow(reason)
    with pytest.raises(UntunableError) as raised:
        run_study(
            worlds.plan(tmp_path, budget_s=budget_s), slow, StructuredSampler(), lambda event: None, threading.Event()
        )
    assert slow.limits == pytest.approx([limit_s], abs=5)  # less what it took to begin
    if budget_s == limit_s:
        assert raised.value.message == (
            f"the budget of {seconds_text(limit_s)} ended while the script as written was measured: not through after"
            f" {limit_s:.0f} s: still in its start"
        )
        assert raised.value.hint is not None and raised.value.hint.endswith("7m" if limit_s == 40 else "20m")
    else:
        assert raised.value.hint is not None and "more time" in raised.value.hint
        assert "--trial-timeout" in raised.value.hint and "--budget" not in raised.value.hint


@pytest.mark.parametrize(("kind", "is_told"), [(OutcomeKind.TIMED_OUT, True), (OutcomeKind.NO_PROGRESS, False)])
def test_a_wait_for_a_process_that_a_short_budget_ends_is_told_as_that(
    tmp_path: Path, kind: OutcomeKind, is_told: bool
) -> None:
    """A longer --trial-timeout was advised, which the budget bounds all the same."""
    slow = Slow(PROCESSES_AWAITED, kind)
    with pytest.raises(UntunableError) as raised:
        run_study(
            worlds.plan(tmp_path, budget_s=40.0), slow, StructuredSampler(), lambda event: None, threading.Event()
        )
    hint = raised.value.hint or ""
    assert ("--budget 7m" in hint, "--trial-timeout" in hint) == (is_told, not is_told)
    assert "only the script's first process can be measured" in hint


class Broken(Runner):
    """The script fails after a while, but without any watch: then it runs until it is ended. Time passes by that.

    ``by_itself``: it fails then, too, a twentieth later.
    """

    def __init__(self, fails_after_s: float = 30.0, *, by_itself: bool = False) -> None:
        self.now = 0.0
        self.runs: list[float] = []
        self.fails_after_s = fails_after_s
        self.by_itself = by_itself

    def run(self, request: TrialRequest, stop: threading.Event) -> Outcome:
        """As the limit says, at the latest."""
        bare, limit_s = request.without >= ALL - {Watch.FILES}, request.limits.trial_timeout_s
        after_s = (1.05 if bare else 1.0) * self.fails_after_s
        fails = after_s < limit_s and (self.by_itself or not bare)
        seconds = min(after_s, limit_s) if fails or not bare else limit_s
        self.now += seconds
        self.runs.append(seconds)
        if fails:
            return Outcome(OutcomeKind.USER_ERROR, "script-raised", "KeyError: 1", "KeyError: 1", seconds=seconds)
        return Outcome(OutcomeKind.TIMED_OUT, "deadline", "not through: still in its start", seconds=seconds)


@pytest.mark.parametrize(
    ("budget_s", "runs", "error", "said"),
    [
        (45.0, [30.0], UserScriptError, "the budget lacks 24 s for the run that was to show it, and a study has many"),
        (140.0, [30.0, 70.0, 30.0, 10.0], UntunableError, "the budget of 2 min 20 s ended while the script as written"),
    ],
)
def test_whose_fault_a_failure_is_is_looked_for_within_the_budget(
    tmp_path: Path, budget_s: float, runs: list[float], error: type[AutotuneError], said: str
) -> None:
    """A study of 2:20 took 3:18, most of it in runs that were to show that."""
    broken = Broken()
    with pytest.raises(error) as raised:
        run_study(
            worlds.plan(tmp_path, budget_s=budget_s), broken, StructuredSampler(), lambda event: None,
            threading.Event(), clock=lambda: broken.now,
        )  # fmt: skip
    assert broken.runs == runs and broken.now <= budget_s
    assert said in f"{raised.value.message} {raised.value.hint}"


@pytest.mark.parametrize("budget_s", [204.0, 222.0, 300.0])
def test_a_run_that_the_budget_cuts_off_shows_no_fault_of_ours(tmp_path: Path, budget_s: float) -> None:
    """It was told that autotune breaks the script, which failed by itself, a second after the budget had ended."""
    broken, notes = Broken(100.0, by_itself=True), list[str]()
    with pytest.raises(UserScriptError):
        run_study(
            worlds.plan(tmp_path, budget_s=budget_s), broken, StructuredSampler(),
            lambda event: notes.append(str(event)), threading.Event(), clock=lambda: broken.now,
        )  # fmt: skip
    assert not any("autotune breaks" in note for note in notes) and broken.now <= budget_s


@pytest.mark.parametrize(
    ("text", "error", "is_known"),
    [
        ("def f(:\n", "SyntaxError: invalid syntax", True),
        ("if 1:\nprint()\n", "IndentationError: expected an indented block", True),
        ("print(0)\n", "SyntaxError: invalid syntax", False),  # nobody knows what Python was given
        ("def f(:\n", "ValueError: 1", False),
    ],
)
def test_what_python_itself_can_not_compile_is_the_scripts_fault_whatever_the_budget(
    tmp_path: Path, text: str, error: str, is_known: bool
) -> None:
    """With a budget of 15 s it was told that nobody knows whose fault an error of syntax is."""
    script = tmp_path / "own module.py"
    script.write_text(text)
    frame = f'  File "{script}", line 1\n    {text.split(maxsplit=1)[0]}\n    ^\n'
    shown = f"Traceback (most recent call last):\n{frame}{error}\n"

    class Unparsed(Runner):
        ran = 0

        def run(self, request: TrialRequest, stop: threading.Event) -> Outcome:
            self.ran += 1
            return Outcome(OutcomeKind.USER_ERROR, "script-raised", error, shown, seconds=2.0)

    runner, notes = Unparsed(), list[str]()
    with pytest.raises(UserScriptError) as raised:
        run_study(
            worlds.plan(tmp_path / "s", budget_s=2.0), runner, StructuredSampler(),
            lambda event: notes.append(str(event)), threading.Event(),
        )  # fmt: skip
    assert runner.ran == 1
    assert (raised.value.message == f"the script fails by itself: {error}") is is_known
    assert ("whose fault that is isn't known" in str(raised.value.hint)) is not is_known
    assert raised.value.traceback_text == shown
    assert not (is_known and any("it is run again" in note for note in notes))
