"""How long the runs of a study measure: windows in seconds, screens in samples."""

from __future__ import annotations

from tuner.model import Phase, Trial
from tuner.study.plan import StudyPlan

SCREEN_S = 10.0
"""A screen trains for as many samples as the script as written takes in this time."""
LONGER = 4
"""And for so many times as many where that tells nothing: the script has hardly begun to learn."""
FEWEST_SCREEN_STEPS = 60
WARMUP_S = 1.0
"""Of a search trial by turns: what the machine warms up to meets both sides."""
_BY_ITSELF = {Phase.BASELINE: 1.0, Phase.ANCHOR: 1.0, Phase.PROBE: 0.25, Phase.SEARCH: 0.5, Phase.FINALS: 0.5}
_BY_TURNS = {Phase.BASELINE: 0.5, Phase.ANCHOR: 0.125, Phase.PROBE: 0.25, Phase.SEARCH: 0.125, Phase.FINALS: 0.15}


def window_s(plan: StudyPlan, phase: Phase, *, by_turns: bool) -> float:
    """The longest window of a run of that phase, but a screen's. ``by_turns``: where trials of the study take turns.

    By themselves the baseline and its anchors get all the time, since everything is held against them. A search trial
    only ranks. In the finals what differs from run to run is more than what differs within one, by turns all the more:
    more runs say more than longer ones.
    """
    return plan.window.max_s * (_BY_TURNS if by_turns else _BY_ITSELF)[phase]


def screen_lengths(plan: StudyPlan, baseline: Trial | None) -> tuple[int, ...]:
    """How many samples each run of a screen trains on: as usual, and where that tells nothing. 0 before a baseline."""
    if plan.accuracy.samples is not None:
        return (plan.accuracy.samples,)
    measurement = baseline.measurement if baseline is not None else None
    if measurement is None:
        return (0,)
    per_step = measurement.rate / measurement.steps_per_s
    wanted = max(measurement.rate * SCREEN_S, FEWEST_SCREEN_STEPS * per_step)
    # A config may be half as fast, and has to come through in time all the same.
    most_s = max(1.0, plan.limits.trial_timeout_s / 2 - measurement.first_step_s)
    usual, longer = (int(min(samples, measurement.rate * most_s)) for samples in (wanted, LONGER * wanted))
    return (usual, longer) if longer > usual else (usual,)
