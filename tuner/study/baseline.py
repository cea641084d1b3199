"""Measures the script as written; where that gives no figure, says why it can't be tuned, and what would mend it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tuner.errors import UntunableError, UserScriptError
from tuner.formatting import AS_WRITTEN
from tuner.knowledge import with_arguments
from tuner.model import BASELINE, Measurement, Outcome, OutcomeKind, Phase
from tuner.space.arguments import bound_knobs
from tuner.storage.database import NewTrial
from tuner.storage.folder import LOG, trial_folder
from tuner.study.context import StudyContext
from tuner.study.plan import StudyPlan
from tuner.study.screens import note_unseen


def measure_baseline(study: StudyContext) -> None:
    """Runs trial 0 unless it was run before, and takes what it shows of the script into ``study.knowledge``.

    Raises ``UserScriptError`` or ``UntunableError`` where it gives no figure, and as ``StudyContext.execute``.
    """
    baseline = study.baseline
    if baseline is None:
        interrupted = study.claim()
        baseline = study.execute(interrupted) if interrupted else study.run(NewTrial(Phase.BASELINE, BASELINE))
    assert baseline.outcome is not None
    if not baseline.outcome.complete:
        # What is wrong may be mended outside of the script, so it is run again next time.
        study.store.requeue(baseline)
        raise baseline_error(baseline.outcome, trial_folder(study.plan.folder, 0) / LOG)
    if not study.resumed:
        note_unseen(study, baseline)
        for remark in baseline.outcome.knowledge.remarks:
            study.note(f"{AS_WRITTEN}: {remark}")
    knowledge = replace(
        baseline.outcome.knowledge, effective_batch=study.plan.effective_batch,
        free_host_bytes=_free_host_bytes(study.plan, baseline.outcome.measurement),
    )  # fmt: skip
    study.knowledge = with_arguments(knowledge, bound_knobs(study.placeholders))


def _free_host_bytes(plan: StudyPlan, baseline: Measurement | None) -> int | None:
    """What the memory limit leaves beside the script as written; None without a limit."""
    limit = plan.limits.max_host_bytes
    return None if limit is None or baseline is None else max(0, limit - baseline.peak_host_bytes)


def baseline_error(outcome: Outcome, log: Path) -> UserScriptError | UntunableError:
    """The error to raise for a script that gives no figure as it was written. ``log`` is what it printed."""
    if outcome.kind is OutcomeKind.USER_ERROR and outcome.reason in ("script-raised", "script-failed"):
        return UserScriptError(
            f"the script fails by itself: {outcome.detail}",
            hint=f"all that it printed is in {log}; mend it and run the same command again",
            traceback_text=outcome.traceback_text,
        )
    return UntunableError(
        outcome.detail or f"{outcome.kind}: {outcome.reason}", hint=_HINTS.get(outcome.reason, f"see {log}")
    )


_HINTS = {
    "no-step": "a step is an optimizer's step(); a script that has none can tell of its own with tuner.report(step=n)",
    "too-short": "let it train longer: more epochs or more data",
    "deadline": "give a trial more time with --trial-timeout",
    "no-progress": "the script stands still; does it wait for something, such as a download or an answer?",
    "device-oom": "the script as written doesn't fit the device: choose a smaller batch or another device",
    "host-oom": "the script as written doesn't fit the machine's memory: use fewer workers or raise --max-memory",
    "nan": "its loss is not a number as written: tune it once it trains",
}
