"""Has the configs that can be switched take turns in one process, before the search: which of them get trials first."""

from __future__ import annotations

from collections.abc import Sequence

from tuner.child.rounds import turns_of
from tuner.child.turns import LEAD_IN_S
from tuner.formatting import seconds_text
from tuner.model import BASELINE, Config, Measurement, Phase
from tuner.search.rotation import loads, next_rotation
from tuner.storage.database import NewTrial
from tuner.study.context import StudyContext
from tuner.study.lengths import rotation_turn_s
from tuner.study.plan import StudyPlan

LARGEST_SHARE = 0.25
"""Of the time for searching that one rotation takes at most."""
WAITS = 0.5
"""Where the script as written waits for data for a larger share of its time, what it computes with decides little."""


FITTED = "keras"
"""The framework whose own loop is told of the switches; other trainers aren't."""
COMPILES = 0.5
"""Of the time until its first step, in which a script starts and compiles, that a config's compilation takes there."""


def rotate(study: StudyContext) -> None:
    """Runs the rotations that are due, as trials like any other. Raises as ``StudyContext.execute``.

    Once the search has begun, none is made any more. It ranks by the rate: there is none for an objective that another
    figure decides. What obstructs one is said, and the study goes on without.
    """
    if study.space is None or not study.executor.rotates or len(study.searched) > 1:
        return
    if not study.plan.objective.is_rate:
        return
    while configs := next_rotation(study.space, study.trials):
        interrupted = study.claim()
        if interrupted is not None:
            study.execute(interrupted)
            continue
        obstacle = _obstacle(study, configs, loads=loads(study.space, configs))
        if obstacle:
            study.note(f"no rotation: {obstacle}")
            return
        trial = study.run(NewTrial(Phase.ROTATION, BASELINE, f"{len(configs)} configs in one process"))
        outcome = trial.outcome
        if outcome is not None and not outcome.rotation:
            study.note(outcome.detail or "no rotation: no config had its turn")
            return


def _obstacle(study: StudyContext, configs: Sequence[Config], *, loads: bool) -> str:
    """Why these configs aren't rotated here, or "". ``loads``: some of them have loaders of their own."""
    count = len(configs)
    baseline = study.baseline.measurement if study.baseline is not None else None
    if baseline is None:
        return "the script as written has no figure"
    if study.knowledge.trainer not in ("", FITTED):
        return f"{study.knowledge.trainer} sets some of the knobs itself"
    if (baseline.data_wait_share or 0.0) > WAITS and not loads:
        return "it waits for its data most of the time, and no other loader is among what can be switched"
    compiled = count * COMPILES if study.knowledge.framework == FITTED else 0.0
    seconds = (1 + compiled) * baseline.first_step_s + foreseen_s(study.plan, baseline, count, loads=loads)
    within, search_s = study.plan.limits.trial_timeout_s / 2, study.time.search_s()
    if seconds > within or (search_s is not None and seconds > LARGEST_SHARE * search_s):
        return f"{count} configs in one process would take about {seconds_text(seconds)}"
    if seconds > count * study.time.trial_s():
        return "a trial of each takes no longer"
    return ""


def foreseen_s(plan: StudyPlan, baseline: Measurement, count: int, *, loads: bool = False) -> float:
    """What the turns of a rotation take at most: where all configs stay."""
    turn_s = rotation_turn_s(plan, baseline, loads=loads) + max(LEAD_IN_S, 1 / baseline.steps_per_s)
    return turn_s * turns_of(count)
