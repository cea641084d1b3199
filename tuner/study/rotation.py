"""Has the configs that can be switched take turns in one process, before the search: which of them get trials first."""

from __future__ import annotations

from collections.abc import Sequence

from tuner.child.unison import RANKS_APART
from tuner.devices.frameworks import TENSORFLOW
from tuner.formatting import seconds_text
from tuner.model import BASELINE, Config, Phase
from tuner.search.rotation import loads
from tuner.storage.database import NewTrial
from tuner.study.context import FITTED, StudyContext

WAITS = 0.5
"""Where the script as written waits for data for a larger share of its time, what it computes with decides little."""


def rotate(study: StudyContext) -> None:
    """Runs the rotations that are due, as trials like any other. Raises as ``StudyContext.execute``.

    Once the search has begun, none is made any more. It ranks by the rate: there is none for an objective that another
    figure decides. What obstructs one is said, and the study goes on without.
    """
    if study.space is None or not study.executor.rotates or len(study.searched) > 1:
        return
    if not study.plan.objective.is_rate:
        return
    while configs := study.next_rotated(study.trials):
        interrupted = study.claim()
        if interrupted is not None:
            study.execute(interrupted)
            continue
        obstacle = _obstacle(study, configs)
        if obstacle:
            study.note(f"no rotation: {obstacle}")
            return
        trial = study.run(NewTrial(Phase.ROTATION, BASELINE, f"{len(configs)} configs in one process"))
        outcome = trial.outcome
        if outcome is not None and (not outcome.rotation or outcome.reason == RANKS_APART):
            study.note(outcome.detail or "no rotation: no config had its turn")
            return


def _obstacle(study: StudyContext, configs: Sequence[Config]) -> str:
    """Why these configs aren't rotated here, or ""."""
    count, time = len(configs), study.rotation_time(configs)
    baseline = study.baseline.measurement if study.baseline is not None else None
    if baseline is None or study.space is None or time is None:
        return "the script as written has no figure"
    if study.knowledge.trainer not in ("", FITTED):
        return f"{study.knowledge.trainer} sets some of the knobs itself"
    if study.knowledge.backend not in ("", TENSORFLOW):  # alone it has a training function for each config
        return f"Keras computes with {study.knowledge.backend} here"
    if (baseline.data_wait_share or 0.0) > WAITS and not loads(study.space, configs):
        return "it waits for its data most of the time, and no other loader is among what can be switched"
    if not time.is_within(study.plan, study.time.search_s()):
        return f"{count} configs in one process would take about {seconds_text(time.turns_s + time.compiling_s)}"
    if time.turns_s > count * study.time.runs.trial_s():
        return "a trial of each takes no longer"
    return ""
