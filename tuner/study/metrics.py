"""The metrics that a trial gave: what its framework told of them, and what its script printed."""

from __future__ import annotations

from tuner.analysis.accuracy import metrics_in
from tuner.model import Trial
from tuner.storage.folder import LOG, trial_folder
from tuner.study.context import StudyContext


def metrics_of(study: StudyContext, trial: Trial) -> tuple[dict[str, float], dict[str, float]]:
    """The first value of each metric that was given more than once, and the last one of each."""
    measurement = trial.outcome.measurement if trial.outcome is not None else None
    firsts = dict(measurement.first_metrics) if measurement is not None else {}
    lasts = dict(measurement.metrics) if measurement is not None else {}
    if not study.plan.accuracy.patterns:
        return firsts, lasts
    log = trial_folder(study.plan.folder, trial.number) / LOG
    try:
        text = log.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return firsts, lasts
    for name, values in metrics_in(text, study.plan.accuracy.patterns).items():
        lasts[name] = values[-1]
        firsts.pop(name, None)
        if len(values) > 1:
            firsts[name] = values[0]
    return firsts, lasts
