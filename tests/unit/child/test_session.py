"""Which of the frameworks that a script imports is the one that trains."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Container

import numpy as np
import pytest
from support.in_process import ENDLESS, Log, NoModules, session_of

from tuner.child import applied, wire
from tuner.child.applied import Effect
from tuner.child.recorder import Recorder
from tuner.child.records import Facts
from tuner.child.session import Session, StopTrial

WINDOW = {"block_s": 1.0, "warmup_s": 1.0, "warmup_steps": 1, "min_s": 1.0, "max_s": 9.0, "min_blocks": 3}


def test_the_first_framework_that_takes_a_step_is_the_one_that_trains() -> None:
    session = session_of({"window": WINDOW}, Recorder(None))
    assert session.may_be_of("torch")
    assert session.may_be_of("keras")
    session.step("keras")
    assert session.may_be_of("keras")
    assert not session.may_be_of("torch")


def test_steps_of_a_framework_that_does_not_train_count_for_nothing() -> None:
    session = session_of({"window": WINDOW}, Recorder(None))
    session.step("keras", 3)
    session.step("torch", 5)
    assert session.clock.total_steps == 3


def test_what_the_baseline_saw_training_trains_in_every_trial() -> None:
    session = session_of({"window": WINDOW, "knowledge": {"framework": "keras"}}, Recorder(None))
    assert not session.may_be_of("torch")


def test_what_the_script_reports_stays_as_it_gave_it() -> None:
    log = Log()
    session = session_of({"window": WINDOW}, log)
    metrics = {"accuracy": 0.5, "step": 3, "samples": 24}
    session.report(metrics)
    assert metrics == {"accuracy": 0.5, "step": 3, "samples": 24}
    assert [(r["name"], r["value"]) for r in log.of("metric")] == [("accuracy", 0.5)]
    assert (session.clock.total_steps, session.clock.total_samples) == (3, 24)


def test_every_trial_does_the_same_at_its_first_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the baseline alone looked at the modules, what that left of the heap made it up to 10% faster."""
    begun: list[NoModules] = []

    def begin(modules: NoModules) -> None:
        begun.append(modules)

    monkeypatch.setattr(NoModules, "begin", begin)
    for config in ({}, {"threads": 2}):
        session_of({"window": WINDOW, "config": config}, Recorder(None)).step("torch")
    assert len(begun) == 2


def test_whatever_a_script_writes_can_be_read_by_the_parent() -> None:
    """A record that can't be read is lost, and with it all that is known of the script."""
    log = Log()
    session = session_of({"window": WINDOW}, log)
    session.facts.as_written.update(
        batch_size=np.int64(32), lr_scale=np.float32(0.5), precision=("bf", 16), prefetch=None, cache=np.bool_(True)
    )
    session.suggest("width", [64, 32])
    session.finish(complete=False)
    (facts,) = log.of("facts")
    assert facts["as_written"] == {
        "batch_size": 32, "lr_scale": 0.5, "precision": "('bf', 16)", "cache": True, "width": "[64, 32]"
    }  # fmt: skip
    (entry,) = wire.decode([wire.encode(session.facts.record(session.clock, {}), 0.0)])
    assert isinstance(entry.record, Facts)


def test_an_applied_run_is_never_ended_by_us(capfd: pytest.CaptureFixture[str]) -> None:
    """A trial ends itself by an exception that the script doesn't see; the user's own training must not."""
    session = session_of({"mode": "apply", "config": {"strategy": "tpu"}}, Recorder(None))
    session.fail("unsupported", "strategy tpu: there is none")
    session.stop("the strategy can't be had", complete=False)
    session.check_stop()
    session.step("keras")
    assert not session.stopped
    assert capfd.readouterr().err == "autotune: strategy tpu: there is none\n"


def test_what_goes_wrong_in_us_is_said_under_run(capfd: pytest.CaptureFixture[str]) -> None:
    session = session_of({"mode": "apply", "config": {"batch_size": 4}}, Recorder(None))
    for _ in range(2):
        session.note("torch could not be instrumented: RuntimeError: torch 1.9 is older than 2.4")
    assert capfd.readouterr().err.count("autotune: torch could not be instrumented: ") == 1


def test_one_rank_speaks_for_all(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    session = session_of({"mode": "apply", "config": {"batch_size": 4}, "strict": True}, Recorder(None))
    assert session.applied is not None
    assert session.applied.ended(0) == 7, "each of them has its own status"
    assert capfd.readouterr().err == ""


def test_a_fault_of_ours_does_not_take_the_training_down(capfd: pytest.CaptureFixture[str]) -> None:
    session = session_of({"mode": "apply", "config": {"batch_size": 4}}, Recorder(None))
    assert session.applied is not None

    def broken() -> dict[str, Effect]:
        raise KeyError("x")

    session.applied.attend(broken)
    session.applied.trains()
    assert session.applied.ended(0) == 0
    said = capfd.readouterr().err.splitlines()
    assert said[0] == "autotune: a fault of its own: what was applied can't be told: KeyError: 'x'"
    assert said[1] == "autotune: at the script's end NOT in effect: batch_size (nothing that it could turn was reached)"


def test_where_steps_are_not_seen_it_is_told_after_a_while(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(applied, "SECONDS", 0.05)
    session = session_of({"mode": "apply", "config": {"batch_size": 4}}, Recorder(None))
    assert session.applied is not None
    session.applied.attend(lambda: {"batch_size": Effect(2)})
    for _ in range(3):
        session.applied.training_begins()
    for thread in [thread for thread in threading.enumerate() if isinstance(thread, threading.Timer)]:
        thread.join()
    session.applied.trains()
    assert session.applied.ended(0) == 0
    assert capfd.readouterr().err == "autotune: after 0 s of training in effect: batch_size (2 places)\n"


def test_a_forked_process_is_not_the_one_that_is_measured() -> None:
    session = session_of({"window": WINDOW}, Recorder(None))
    pid = os.fork()
    if pid == 0:
        os._exit(int(session.here))
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert session.here


def _reporting(log: Log, others: float = 0.0, late: float = 0.0) -> list[float]:
    """Samples after each of ten steps that are seen, of 4 each by the script's own count; ``others``: by a loader's."""
    session = session_of({"mode": "trial", "window": ENDLESS, "folder": "", "device": "cpu"}, log)
    totals = []
    for step in range(1, 11):
        for samples in (others, late * (step > 5)):
            if samples:
                session.clock.add_samples(samples, 0.0)
        session.step("torch")
        if step % 4 == 3:
            session.clock.validation_begins("model")
            session.clock.training_resumes()
        session.report({"step": step, "samples": 4 * step} if step % 2 else {"samples": 4 * step})
        totals.append(session.clock.total_samples)
    session.finish(complete=False)
    return totals


def test_reported_samples_count_where_steps_are_seen_and_nothing_else_counts_samples() -> None:
    log = Log()
    assert _reporting(log)[-1] == 40
    assert log.of("facts")[0]["unit"] == "samples"


def test_reported_samples_never_count_beside_others() -> None:
    assert _reporting(Log(), others=4.0)[-1] == 40
    assert _reporting(Log(), late=4.0)[-1] == 5 * 4 + 5 * 4


@pytest.mark.parametrize("first", [0, 1000], ids=["from the start", "resumed"])
def test_samples_that_are_reported_now_and_then_are_those_of_all_steps(first: int) -> None:
    """A window that held one report more or less had a rate that was as much too high or too low."""
    log = Log()
    session = session_of({"mode": "trial", "window": ENDLESS, "folder": "", "device": "cpu"}, log)
    totals = {}
    for step in range(1, 50):
        session.step("torch")
        totals[step] = session.clock.total_samples
        if step % 7 == 0:
            session.report({"samples": first + 4 * step})
    # What was reported before any rate is known counts with the step after it.
    assert [totals[step] for step in range(15, 50)] == [first + 4 * step for step in range(15, 50)]
    session.finish(complete=False)
    assert log.of("facts")[0]["unit"] == "samples"


def test_one_report_tells_of_no_rate() -> None:
    log = Log()
    session = session_of({"mode": "trial", "window": ENDLESS, "folder": "", "device": "cpu"}, log)
    for step in range(1, 20):
        session.step("torch")
        session.report({"samples": 40}) if step == 10 else None
    session.finish(complete=False)
    assert log.of("facts")[0]["unit"] == "steps"


Reporting = Callable[..., tuple[Session, Log]]


@pytest.fixture
def reporting(monkeypatch: pytest.MonkeyPatch) -> Reporting:
    """Trains until the window is complete, and reports its samples after these steps."""
    monkeypatch.setattr("tuner.child.session._watchdog", lambda: None)  # it would end this process

    def run(reports: Container[int], unit: str, *, max_s: float = 1e9, **limits: float) -> tuple[Session, Log]:
        log, ends = Log(), {"min_blocks": 3, "min_s": 0.0, "max_s": max_s, "target_half_width": 1e9}
        window = {**ENDLESS, **ends, **limits}
        request = {"mode": "trial", "window": window, "folder": "", "device": "cpu", "knowledge": {"unit": unit}}
        session, now = session_of(request, log), 0.0
        vars(session.clock)["_clock"] = lambda: now
        with contextlib.suppress(StopTrial):
            for step in range(1, 1000):
                now += 0.0015
                session.step("torch")
                session.report({"samples": 4 * step}) if step in reports else None
        session.finish(complete=False)
        return session, log

    return run


@pytest.mark.parametrize("unit", ["", "samples"])
def test_the_window_waits_for_the_reports_that_tell_of_samples(reporting: Reporting, unit: str) -> None:
    """Its blocks are through before the second epoch ends, and the rate would be one of steps."""
    session, log = reporting((4, 30), unit)
    assert log.of("facts")[0]["unit"] == "samples" and session.clock.complete and not log.of("failure")


@pytest.mark.parametrize("reports", [(20, 40), (1, 40)])
def test_a_rate_is_not_hopeless_before_its_samples_are_told_of(reporting: Reporting, reports: tuple[int, ...]) -> None:
    """What is counted until then are steps, or nothing: less than any rate of samples."""
    session, log = reporting(reports, "samples", hopeless_below=800.0)
    assert session.clock.total_steps >= 40
    assert log.of("facts")[0]["unit"] == "samples" and not log.of("failure")


@pytest.mark.parametrize("max_s", [0.06, 0.03])
def test_a_config_waits_for_its_reports_as_long_as_the_script_as_written(reporting: Reporting, max_s: float) -> None:
    """A search gives it half or a quarter of the time: where the baseline saw two epochs end, no config would."""
    log = reporting((4, 100), "samples", max_s=max_s)[1]
    assert log.of("facts")[0]["unit"] == "samples" and not log.of("failure")


def test_samples_that_are_reported_too_seldom_are_told_of(reporting: Reporting) -> None:
    for reports, said in (((4,), "it reported them once"), ((), "none were seen or reported")):
        (failure,) = reporting(reports, "samples", max_s=0.06)[1].of("failure")
        assert failure["reason"] == "unsupported" and said in failure["detail"]
        assert ("report them more often" in failure["detail"]) is bool(reports), "it may never have reported any"
    log = reporting((4,), "", max_s=0.06)[1]
    facts = log.of("facts")[0]
    assert facts["unit"] == "steps" and "it reported them once" in str(facts["remarks"]) and not log.of("failure")


def test_samples_that_the_baseline_did_not_count_are_not_counted(reporting: Reporting) -> None:
    log = reporting((2, 3, 4, 5), "steps")[1]
    assert log.of("facts")[0]["unit"] == "steps" and not log.of("failure")
