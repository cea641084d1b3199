"""Measures the script as written; where that gives no figure, says why it can't be tuned, and what would mend it."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

from tuner.child.words import INSTRUMENTS
from tuner.devices.allocators import installed
from tuner.errors import OwnFaultError, UntunableError, UserScriptError
from tuner.formatting import AS_WRITTEN, bytes_text, seconds_text
from tuner.knowledge import Knowledge, count_of, with_arguments
from tuner.model import BASELINE, TOOK_THE_STUDY_DOWN, Measurement, Outcome, OutcomeKind, Phase, Trial
from tuner.runner.classify import ENDED_EARLY, NO_FRAMEWORK, NO_STEP_IN_TIME, PROCESSES_AWAITED
from tuner.runner.ranks import log_of
from tuner.space.arguments import bound_knobs
from tuner.storage.atomic import write_durably
from tuner.storage.database import NewTrial
from tuner.storage.folder import CHECKS, FAULT, trial_folder
from tuner.study.blame import (
    Inquiry,
    Verdict,
    Whose,
    alike,
    cannot_be_parsed,
    fault_text,
    is_raised_by_us,
    least_check_s,
    longest_check_s,
    may_be_ours,
    names_file_of_trial,
)  # fmt: skip
from tuner.study.context import StudyContext
from tuner.study.plan import StudyPlan
from tuner.study.screens import note_unseen
from tuner.study.surroundings import surroundings_error

SHORT_STEP_S = 0.004
"""Of a longer step autotune's own instruments are 5% at most: 0.02 to 0.2 ms (tests/benchmarks/overhead.py)."""
RUNS_AT_LEAST = 10
"""A study with fewer runs finds and proves next to nothing: three rounds of the finals alone are six."""
_OF_ITS_OWN = "; one that trains by then, unseen, can tell of its own steps, with tuner.report(step=n)"
_WITHOUT_FILES = "--new --without files may help: a trial then writes where the script does, over your files as well"


def measure_baseline(study: StudyContext) -> None:
    """Runs trial 0 unless it was run before, and takes what it shows of the script into ``study.knowledge``.

    A watch that breaks the script is left out from here on. Raises ``UserScriptError``, ``UntunableError`` or
    ``OwnFaultError`` where there is no figure, and as ``StudyContext.execute``.
    """
    baseline = study.baseline
    if baseline is None:
        interrupted = study.claim()
        baseline = study.execute(interrupted) if interrupted else study.run(NewTrial(Phase.BASELINE, BASELINE))
    if baseline.outcome is not None and may_be_ours(baseline.outcome):
        baseline = _without_fault(study, baseline, baseline.outcome)
    assert baseline.outcome is not None
    if not baseline.outcome.complete:
        # What is wrong may be mended outside of the script, so it is run again next time.
        study.store.requeue(baseline)
        _check_budget(study, baseline.outcome)
        raise baseline_error(baseline.outcome, trial_folder(study.plan.folder, 0))
    _check_unit(study, baseline)
    if not study.resumed:
        note_unseen(study, baseline)
        _note_unlimited(study, baseline)
        if baseline.outcome.detail:
            study.note(f"{AS_WRITTEN}: {baseline.outcome.detail}: its rate is a rough one")
        for remark in baseline.outcome.knowledge.remarks:
            study.note(f"{AS_WRITTEN}: {remark}")
        _note_short_steps(study, baseline)
    knowledge = replace(
        baseline.outcome.knowledge, effective_batch=study.plan.effective_batch,
        free_host_bytes=_free_host_bytes(study.plan, baseline.outcome.measurement),
        allocators=tuple(installed()),
        loop_s=_loop_s(baseline.outcome),
    )  # fmt: skip
    study.knowledge = with_arguments(_with_whole_batches(knowledge, study), bound_knobs(study.placeholders))


def _with_whole_batches(known: Knowledge, study: StudyContext) -> Knowledge:
    """What is known, with no smaller batch that is made up for: no framework adds up gradients, unless the script does
    when it is asked to.
    """
    name = "grad_accumulation"
    if known.framework or name in {**known.as_written, **known.left_out, **study.placeholders}:
        return known
    return replace(known, left_out={**known.left_out, name: "nothing is seen to add up batches' gradients"})


def _check_budget(study: StudyContext, outcome: Outcome) -> None:
    """Raises ``UntunableError`` where the time of the whole study didn't suffice for the script as written."""
    plan = study.plan
    late = ("deadline", NO_FRAMEWORK, NO_STEP_IN_TIME, PROCESSES_AWAITED)
    if outcome.kind is not OutcomeKind.TIMED_OUT or outcome.reason not in late or plan.budget_s is None:
        return
    if plan.budget_s <= plan.limits.trial_timeout_s or not study.time.left_s:
        minutes = math.ceil(RUNS_AT_LEAST * plan.budget_s / 60)
        raise UntunableError(
            f"the budget of {seconds_text(plan.budget_s)} ended while the script as written was measured:"
            f" {outcome.detail}",
            hint=f"a study starts the script many times over: give it {RUNS_AT_LEAST} times as long at least, as with"
            f" --budget {minutes}m{_BESIDE_TIME.get(outcome.reason, '')}",
        )


def _check_unit(study: StudyContext, baseline: Trial) -> None:
    """Raises ``UntunableError`` where samples are planned and the script as written shows none."""
    measurement, planned = baseline.measurement, study.plan.objective.planned_samples
    if planned is not None and measurement is not None and measurement.unit != "samples":
        raise UntunableError(
            f"{planned} samples are planned, and the script's samples can't be counted: only its steps are seen",
            hint="leave out --planned-samples, with another study's folder or --new",
        )


def _note_unlimited(study: StudyContext, baseline: Trial) -> None:
    """Says that a limit binds nobody, where nothing tells how much of the device's memory a trial takes."""
    measurement, most = baseline.measurement, study.plan.limits.max_device_bytes
    if most is not None and measurement is not None and measurement.peak_device_bytes is None:
        study.note(
            f"how much of the memory of {study.plan.device.label} the script takes isn't seen: no config is held to the"
            f" limit of {bytes_text(most)} (--max-memory)"
        )


def _note_short_steps(study: StudyContext, baseline: Trial) -> None:
    """Says that what autotune does with each step is a part of short ones, but where a trial has measured how much.

    With each call, where the script has several steps in one.
    """
    measurement, outcome = baseline.measurement, baseline.outcome
    steps = sum(block.steps for block in measurement.blocks) if measurement is not None else 0
    if measurement is None or outcome is None or not steps:
        return
    if outcome.knowledge.instruments_s:
        return
    step_s = sum(block.seconds for block in measurement.blocks) / steps
    per_call = outcome.knowledge.as_written.get("steps_per_execution", 1)
    if step_s * (per_call if isinstance(per_call, int) else 1) < SHORT_STEP_S:
        study.note(
            f"{AS_WRITTEN}: a step takes {1000 * step_s:.2g} ms, of which {INSTRUMENTS} are 0.02 to 0.2 ms: a config"
            " with fewer steps for as many samples (a larger batch, several in a call) may read faster than it is by as"
            " large a share"
        )


def _without_fault(study: StudyContext, baseline: Trial, failed: Outcome) -> Trial:
    """The baseline, measured without what broke it, once that is seen to be autotune's; run again where it failed by
    chance.

    Raises ``UserScriptError`` or ``UntunableError`` where the fault isn't ours, ``OwnFaultError`` where nothing is left
    to measure it by, and as ``StudyContext.execute``, also where the script was edited meanwhile.
    """
    plan = study.plan
    verdict = _verdict(study, baseline, failed)
    if verdict.whose is Whose.CHANCE:
        told = f"it failed by chance: run again it didn't, with autotune's instruments or without: {failed.detail}"
        if is_raised_by_us(failed):
            kept = keep_fault(plan.folder, failed, verdict)
            told += f"; code of autotune's own raised it: please report it, with {kept}"
        study.note(told)
        baseline = _run_again(study)
        if baseline.outcome is None or not may_be_ours(baseline.outcome):
            return baseline
        failed = baseline.outcome
        verdict = _verdict(study, baseline, failed, by_chance_before=True)
    if verdict.whose is not Whose.OURS:
        raise blame_error(failed, verdict, trial_folder(plan.folder, 0))
    keep_fault(plan.folder, failed, verdict)
    for way in verdict.ways:
        names = ", ".join(sorted(way - plan.without))
        study.note(f"autotune breaks this script: {failed.detail}")
        study.note(f"the script is in order, and the study goes on without what broke it: {names}")
        study.knowledge = replace(study.knowledge, without=tuple(sorted(way)))
        trial = _run_again(study)
        if trial.outcome is not None and trial.outcome.complete:
            return trial
        study.store.requeue(trial)
        if trial.outcome is not None:
            _check_budget(study, trial.outcome)
    raise blame_error(failed, verdict, trial_folder(plan.folder, 0), plan.folder / FAULT)


def _run_again(study: StudyContext) -> Trial:
    """The baseline that was put back into the queue, run."""
    waiting = study.claim()
    assert waiting is not None, "it was put back into the queue"
    return study.execute(waiting)


def _verdict(study: StudyContext, baseline: Trial, failed: Outcome, *, by_chance_before: bool = False) -> Verdict:
    """Whose fault it is that the baseline failed, which is put back into the queue. Raises as ``_without_fault``."""
    plan = study.plan
    study.store.requeue(baseline)
    request = study.executor.request_of(baseline, study.knowledge, plan.window)
    check_failure(failed, plan)
    if cannot_be_parsed(failed):
        return Verdict(Whose.SCRIPT)

    def left_s() -> float:
        return math.inf if study.time.left_s is None else study.time.left_s

    longest_s = min(longest_check_s(failed), left_s())
    if longest_s >= least_check_s(failed):
        study.note(
            f"the script as written fails; to see whose fault that is, it is run again without autotune's instruments,"
            f" at most {seconds_text(longest_s)} at a time"
        )
    check, folder = study.executor.check, plan.folder / CHECKS
    verdict = Inquiry(request, failed, folder, check, left_s, by_chance_before=by_chance_before).verdict()
    study.sources.check(failed.knowledge.module_hashes)  # another version tells nothing of the fault
    return verdict


def check_failure(failed: Outcome, plan: StudyPlan) -> None:
    """Raises ``UserScriptError`` for a failure that a trial's surroundings explain: nobody is to blame for that."""
    error = surroundings_error(failed, plan.device)
    if error is not None:
        raise error


def keep_fault(folder: Path, failed: Outcome, verdict: Verdict) -> Path:
    """Writes what is known of a fault of ours into the study's folder. Raises ``StorageError``."""
    path = folder / FAULT
    write_durably(path, fault_text(failed, verdict).encode())
    return path


def blame_error(
    failed: Outcome, verdict: Verdict, folder: Path, fault: Path | None = None
) -> UserScriptError | UntunableError | OwnFaultError:
    """The error for a script that fails as written, by whose fault that is.

    ``folder`` is the trial's, with what it printed, ``fault`` the file that tells of a fault of ours.
    """
    plain, log = verdict.plain, _log_of(failed, folder)
    if verdict.whose is Whose.OURS:
        left = "nothing of it can be measured without what breaks it" if verdict.ways else _WITHOUT_FILES
        return OwnFaultError(
            f"the script is in order, and autotune breaks it: {failed.detail}",
            hint=f"{left}; please report it, with {fault}", traceback_text=failed.with_ours or failed.traceback_text,
        )  # fmt: skip
    if verdict.whose is Whose.CHANCE:
        return _chance_error(failed, log)
    if verdict.silenced:
        names = " and ".join(verdict.silenced)
        return UserScriptError(
            f"the script fails with {names} switched off, as it is in trials: {failed.detail}",
            hint=f"that may explain it, since plain Python was tried with {names} off as well: leave that out by an"
            f" argument of the script, or mend the script; all that it printed is in {log}",
            traceback_text=failed.traceback_text,
        )
    if verdict.whose is Whose.OPEN and names_file_of_trial(failed, folder):
        return OwnFaultError(
            f"autotune may break this script: {failed.detail}",
            hint=f"the path that it names is the trial's, in place of one of yours; {_WITHOUT_FILES}",
            traceback_text=failed.with_ours or failed.traceback_text,
        )
    if verdict.lacked_s:
        return _lacks_time(failed, verdict, log)
    if verdict.obstacle:
        return UserScriptError(
            f"the script fails in a trial: {failed.detail}",
            hint="whose fault that is isn't known, for the run that was to show it came to nothing"
            f" ({verdict.obstacle}): run the same command again; all that it printed is in {log}",
            traceback_text=failed.traceback_text,
        )
    if verdict.whose is Whose.OPEN:
        return UserScriptError(
            f"the script fails: {failed.detail}",
            hint="so it does with nothing of autotune's at work but what keeps your files safe; without that it wasn't"
            f" tried, since it would write over them. All that it printed is in {log}",
            traceback_text=failed.traceback_text,
        )
    if plain is not None and (shown := _shown_by_plain(failed, plain, log)) is not None:
        return shown
    error = baseline_error(failed, folder)
    if verdict.off:
        names = " and ".join(verdict.off)
        error.hint = f"{error.hint}; so it fails with {names} off, as in trials: an argument may leave that out"
    return error


def _shown_by_plain(failed: Outcome, plain: Outcome, log: Path) -> UserScriptError | None:
    """The error of a script that fails otherwise under plain Python, or dies under both; None of any other."""
    if not alike(failed, plain):
        return UserScriptError(
            f"the script fails by itself: {plain.detail}",
            hint=f"so it does under plain Python; in a trial it failed otherwise: {failed.detail} ({log})",
            traceback_text=plain.traceback_text,
        )
    if failed.kind is not OutcomeKind.CRASHED:
        return None
    return UserScriptError(
        f"the script fails by itself: {failed.detail}",
        hint=f"so it does under plain Python; all that it printed is in {log}",
    )


def _chance_error(failed: Outcome, log: Path) -> UserScriptError:
    """The error where the failure doesn't come again."""
    return UserScriptError(
        f"the script failed in a trial, and run again it didn't: {failed.detail}",
        hint=f"it fails by chance: run the same command again; all that it printed is in {log}",
        traceback_text=failed.traceback_text,
    )


def _lacks_time(failed: Outcome, verdict: Verdict, log: Path) -> UserScriptError:
    """The error where the budget had no time for what was to show whose fault a failure is."""
    lacks, minutes = seconds_text(math.ceil(verdict.lacked_s)), math.ceil(RUNS_AT_LEAST * failed.seconds / 60)
    return UserScriptError(
        f"the script fails in a trial: {failed.detail}",
        hint=f"whose fault that is isn't known: the budget lacks {lacks} for the run that was to show it, and a"
        f" study has many more: give it --budget {minutes}m at least; all that it printed is in {log}",
        traceback_text=failed.traceback_text,
    )


def _loop_s(baseline: Outcome) -> float:
    """Seconds that a batch takes the loop beside its wait; 0 where that isn't seen."""
    measurement, size = baseline.measurement, count_of(baseline.knowledge.as_written, "batch_size", 0)
    if measurement is None or measurement.data_wait_share is None or measurement.unit != "samples":
        return 0.0
    return size * (1 - measurement.data_wait_share) / measurement.rate if measurement.rate > 0 else 0.0


def _free_host_bytes(plan: StudyPlan, baseline: Measurement | None) -> int | None:
    """What the memory limit leaves beside the script as written; None without a limit."""
    limit = plan.limits.max_host_bytes
    return None if limit is None or baseline is None else max(0, limit - baseline.peak_host_bytes)


def _log_of(failed: Outcome, folder: Path) -> Path:
    """What the script printed; of several ranks, the one that failed first."""
    return folder / log_of(failed.rank or 0)


def baseline_error(outcome: Outcome, folder: Path) -> UserScriptError | UntunableError:
    """The error to raise for a script that gives no figure as it was written. ``folder`` is the trial's."""
    log = _log_of(outcome, folder)
    if outcome.kind is OutcomeKind.USER_ERROR and outcome.reason in ("script-raised", "script-failed"):
        # An exception says what is wrong; a status may be that of a script whose own arguments weren't given.
        given = "" if outcome.reason == "script-raised" else "give it the arguments that it needs behind --, or "
        return UserScriptError(
            f"the script fails by itself: {outcome.detail}",
            hint=f"all that it printed is in {log}; {given}mend it and run the same command again",
            traceback_text=outcome.traceback_text,
        )
    hint = _HINTS.get(outcome.reason, f"see {log}")
    told = [remark for remark in outcome.knowledge.remarks if remark.startswith(REPORTED)]
    return UntunableError(outcome.detail or f"{outcome.kind}: {outcome.reason}", hint="; ".join([hint, *told]))


REPORTED = "tuner.report("
"""What remarks begin with that tell of the script's own reports: where no step is seen, one may say why."""
_BY_OTHERS = (
    "something else killed it, twice: a limit of the machine, a guard against full memory, or a person; run the same"
    " command again once that is mended"
)
_IN_ANOTHER = (
    "only the script's first process can be measured: where the other one trains, call its function instead, or have"
    " one for each rank started from outside, with --ranks N"
)
_BESIDE_TIME = {NO_STEP_IN_TIME: _OF_ITS_OWN, PROCESSES_AWAITED: f"; {_IN_ANOTHER}"}
"""What else may mend it where time was up; what stands before it asks for more."""
_HINTS = {
    "no-step": "a step is an optimizer's step(); a script in which none is seen can tell of its own, with"
    " tuner.report(step=n)",
    "own-processes": "where it starts one process, call that function instead; where it starts one for each rank, have"
    " them started from outside, as torchrun does, and study the script with --ranks N",
    PROCESSES_AWAITED: f"{_IN_ANOTHER}; where it only prepares something, give a trial more time with --trial-timeout",
    "no-group": "leave out --ranks for a script of one process; several join by init_process_group(), whose rank"
    " and size come from the environment, as torchrun gives them",
    "too-short": "let it train longer: more epochs or more data",
    "deadline": "give a trial more time with --trial-timeout",
    NO_STEP_IN_TIME: f"a script that comes to its training later needs more time (--trial-timeout){_OF_ITS_OWN}",
    ENDED_EARLY: "where what it printed says why it ended, mend that, or give it the arguments that it needs behind --;"
    " one that did train can tell of its own steps, with tuner.report(step=n)",
    NO_FRAMEWORK: "what trains with one of these can be tuned: a script that comes to it later needs more time"
    " (--trial-timeout); one that trains with something else can tell of its own steps, with tuner.report(step=n)",
    "long-call": "within one call nothing can be measured: let it take fewer steps, or, where more such calls follow,"
    " give a trial more time with --trial-timeout",
    "no-progress": "does it wait for something, such as a download or an answer? A script that computes for long"
    " between two steps needs more time: --trial-timeout",
    "crowded-out": "end what else runs on this machine, and run the same command again; a script that computes for long"
    " between two steps needs more time: --trial-timeout",
    "device-oom": "the script as written doesn't fit the device: choose a smaller batch or another device",
    "host-oom": "the script as written takes more memory than it may, or takes ever more: use fewer workers or a"
    " smaller batch, end other processes that take memory, or raise --max-memory",
    "signal-kill": _BY_OTHERS, "worker-killed": _BY_OTHERS,
    TOOK_THE_STUDY_DOWN: "something ended the whole study each time: a limit of the machine, a guard against full"
    " memory, or a person; the same command tries it anew",
    "nan": "its loss is not a number as written: tune it once it trains",
}
