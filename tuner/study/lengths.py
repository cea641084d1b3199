"""How long the runs of a study measure: windows in seconds, screens in samples."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace
from typing import NamedTuple

from tuner.child.records import Window
from tuner.child.rounds import MOST_SHUFFLED, turns_of, turns_of_round
from tuner.child.turns import LEAD_IN_S
from tuner.devices.present import kind_of
from tuner.knowledge import Knowledge
from tuner.model import Measurement, Phase, Trial
from tuner.runner.request import probe_window, screen_window
from tuner.study.plan import StudyPlan

SCREEN_S, SHORTEST_SCREEN_S = 10.0, 3.0
"""A screen trains for as many samples as the script as written takes in this time, and in a short study in less: what
six runs of it spare are rounds of the finals."""
SCREEN_SHARE = 0.02
"""Of the budget that one of its runs trains for at most."""
LONGER = 4
"""And for so many times as many where that tells nothing: the script has hardly begun to learn."""
FEWEST_SCREEN_STEPS = 60
FEWEST_LARGER_STEPS = 20
"""Of a config with a larger effective batch: so many make a curve."""
SLOWER = 1.15
"""What comes between steps is no part of a rate, such as validation, and takes its time all the same."""
WARMUP_S = 1.0
"""Of a trial by turns: what the machine warms up to meets both sides."""
SHORT_TURN_S = 0.1
"""A turn of a trial that makes its batches between its steps. What the machine does lasts seconds: turns that follow
each other more quickly meet more of it alike. Of A/A pairs cut from one run of studies/digits on two shared cores, 10
seconds told the ratio to 1.3% (a standard error) in such turns, to 2.0% in turns of 0.25 s, and to 2.6% in turns of
0.5 s. Where others make batches, a turn has to hold some of theirs."""
LOADER_TURN_S, LOADER_STEPS = 0.5, 4
"""A turn of a rotation takes so long, and so many steps of the script as written, where loaders are compared."""
HOPELESS = 0.6
"""A trial ends early where its rate is sure to stay below this share of the best one's."""
LARGEST_SHARE = 0.25
"""Of the time for searching that one rotation takes at most, as it is foreseen."""
TURNS_SHARE, SHARE_WITH_COMPILERS = 0.5, 0.75
"""Of the time that one run of the script may take: for turns alone, and together with what is compiled before them."""
COMPILED_S = 20.0
"""What a compiler is taken to need for a config of a rotation, before any was seen."""
MOST_COMPILED = 3
"""Configs of a rotation that turn a compiler."""
TRACED = 0.5
"""Of the time until its first step, in which a script starts and compiles, that each config takes in Keras' own loop:
it is traced and compiled before its first turn."""
TORCH = "torch"
_SAMPLES = "samples"
_STEPS_ON_A_CARD = 8
"""A block holds so many where waiting for the device takes away the lead that the script had."""
_BY_ITSELF = {Phase.BASELINE: 1.0, Phase.ANCHOR: 1.0, Phase.PROBE: 0.25, Phase.SEARCH: 0.5, Phase.FINALS: 0.5}
_BY_TURNS = {Phase.BASELINE: 0.35, Phase.ANCHOR: 0.125, Phase.PROBE: 0.25, Phase.SEARCH: 0.08, Phase.FINALS: 0.15}
_FINALS_BY_SHORT_TURNS = 0.075
"""Of 44 rounds of studies/digits (``--knobs channels_last``) with a window of 3 s, on two cores, the first half of the
turns told ratios that scattered from round to round as those of all turns did (in four studies 3.7%, 5.4%, 3.8% and
5.3% by the logarithm, and 3.9%, 5.6%, 3.7% and 5.2%, November 2026; in the second and the fourth the runs of a round
were forks of one server): more rounds say more."""
FEWEST_SHORT_TURNS = 15
"""And no shorter than so many turns, each of which holds a step at least: so many had those that tell of it, with many
steps each, and of fewer than four none that others disturbed can be left out."""


def window_s(
    plan: StudyPlan, phase: Phase, *, by_turns: bool, turn_s: float | None = None, step_s: float = 0.0
) -> float:
    """The longest window of a run of that phase, but a screen's. ``by_turns``: where trials of the study take turns,
    ``turn_s`` how long these are, where that is known, and ``step_s`` how long a step of the script as written is.

    By themselves the baseline and its anchors get all the time, since everything is held against them. A search trial
    only ranks. In the finals what differs from run to run is more than what differs within one, by turns all the more:
    more runs say more than longer ones.
    """
    usual_s = plan.window.max_s * (_BY_TURNS if by_turns else _BY_ITSELF)[phase]
    if not by_turns or phase is not Phase.FINALS or turn_s is None or turn_s >= plan.window.block_s:
        return usual_s
    short_s = max(plan.window.max_s * _FINALS_BY_SHORT_TURNS, FEWEST_SHORT_TURNS * max(turn_s, step_s))
    return min(usual_s, short_s)


def window_of(
    trial: Trial,
    plan: StudyPlan,
    best: Trial | None,
    slowest: float = 1.0,
    *,
    by_turns: bool = False,
    turn_s: float | None = None,
    step_s: float = 0.0,
) -> Window:
    """How long the trial is measured; ``best`` is the best one of the search so far.

    ``slowest``: the baseline's slowest stretch as a share of its rate. The best one may have met a faster machine.
    ``by_turns``: whether trials take turns, and ``turn_s`` how long these are, None for as long as a block; ``step_s``:
    how long a step of the script as written is. A screen ends by its samples; a search trial may end once it is
    hopeless, by turns as its ``Race`` says.
    """
    if trial.samples is not None:
        return screen_window(trial.samples)
    if trial.phase in (Phase.PROBE, Phase.ROTATION):
        return probe_window(plan.window)
    window = replace(plan.window, max_s=window_s(plan, trial.phase, by_turns=by_turns, turn_s=turn_s, step_s=step_s))
    if by_turns and trial.phase is not Phase.BASELINE:
        return replace(window, warmup_s=min(window.warmup_s, WARMUP_S), block_s=turn_s or window.block_s)
    if trial.phase not in (Phase.SEARCH, Phase.ANCHOR):
        return window
    measurement = best.measurement if best is not None else None
    if trial.phase is Phase.ANCHOR or measurement is None or not plan.objective.is_rate:
        return window
    return replace(window, hopeless_below=HOPELESS * measurement.rate * slowest)


def usual_step_s(baseline: Trial | None) -> float:
    """How long a step of the script as written is, in seconds; 0 before it was measured."""
    measurement = baseline.measurement if baseline is not None else None
    return 1 / measurement.steps_per_s if measurement is not None else 0.0


def turn_length_s(plan: StudyPlan, knowledge: Knowledge, *, loads: bool = False) -> float:
    """Seconds that are measured in a turn of a trial, or longer where a step is. ``loads``: whether its config turns
    knobs of the loader.
    """
    written = knowledge.as_written
    by_thread = "num_workers" in written and knowledge.wait_is_unseen  # which fetches from the loader
    makes_its_batches = knowledge.framework == TORCH and not (loads or written.get("num_workers") or by_thread)
    short = makes_its_batches and kind_of(plan.device).is_host
    return min(SHORT_TURN_S, plan.window.block_s) if short else plan.window.block_s


def rotation_turn_s(plan: StudyPlan, baseline: Measurement, *, loads: bool = False) -> float:
    """Seconds that are measured in a turn of a rotation: a block, which ends with a step.

    Where configs have loaders of their own (``loads``) it holds several batches: workers make them by fits and starts.
    """
    step_s, block_s = 1 / baseline.steps_per_s, _rotation_block_s(plan, baseline, loads=loads)
    fewest_s = (1 if kind_of(plan.device).is_host else _STEPS_ON_A_CARD) * step_s
    return max(block_s + step_s / 2, fewest_s)


def _rotation_block_s(plan: StudyPlan, baseline: Measurement, *, loads: bool) -> float:
    block_s = plan.window.block_s
    return max(block_s, LOADER_TURN_S, LOADER_STEPS / baseline.steps_per_s) if loads else block_s


def rotation_window(plan: StudyPlan, baseline: Trial | None, count: int, *, loads: bool = False) -> Window:
    """The window of a rotation of so many configs, all turns together but half of the last round. ``loads``: see
    ``rotation_turn_s``.

    A round that has begun is gone through, and none is begun late: turns that are a little longer than foreseen don't
    take one away.
    """
    window, measurement = plan.window, baseline.measurement if baseline is not None else None
    block_s = turn_s = window.block_s
    if measurement is not None:
        block_s = _rotation_block_s(plan, measurement, loads=loads)
        turn_s = rotation_turn_s(plan, measurement, loads=loads)
    turns = turns_of(count) - turns_of_round(count) / 2
    return replace(window, block_s=block_s, warmup_s=min(window.warmup_s, WARMUP_S), max_s=turns * turn_s)


def rotation_s(
    plan: StudyPlan, baseline: Measurement, count: int, *, loads: bool = False, fitted: bool = False
) -> float:
    """What the turns of a rotation take at most: where all configs stay. ``fitted``: see ``foreseen``."""
    turn_s = rotation_turn_s(plan, baseline, loads=loads) + max(LEAD_IN_S, 1 / baseline.steps_per_s)
    return (turn_s + (_pipeline_start_s(baseline) if loads and fitted else 0.0)) * turns_of(count)


def _pipeline_start_s(baseline: Measurement) -> float:
    """What a pipeline of tf.data takes to begin anew with a turn, at most: the buffer of its shuffle is filled, and its
    first batch is made. Samples aren't made more slowly than the script as written trains on them.
    """
    shuffled_s = MOST_SHUFFLED / baseline.rate if baseline.unit == _SAMPLES else 0.0
    return shuffled_s + 1 / baseline.steps_per_s


class Foreseen(NamedTuple):
    """What a rotation takes, in seconds: ``turns_s`` from its process's start to its last turn, and besides what is
    compiled before turns.
    """

    turns_s: float
    compiling_s: float

    def is_within(self, plan: StudyPlan, search_s: float | None) -> bool:
        """Whether a rotation may take that long; ``search_s``: those left for searching, None without an end."""
        timeout_s, all_s = plan.limits.trial_timeout_s, self.turns_s + self.compiling_s
        in_time = self.turns_s <= TURNS_SHARE * timeout_s and all_s <= SHARE_WITH_COMPILERS * timeout_s
        return in_time and (search_s is None or all_s <= LARGEST_SHARE * search_s)


def foreseen(
    plan: StudyPlan, baseline: Measurement, count: int, *, compiled: int = 0, loads: bool = False, fitted: bool = False
) -> Foreseen:
    """What a rotation of so many configs takes, of which so many turn a compiler; elsewhere than in Keras' own loop
    (``fitted``) a trial of such a config would compile as long. There each is traced, and each turn of a rotation that
    turns knobs of the data (``loads``) begins a pipeline anew.
    """
    traced_s = TRACED * count * baseline.first_step_s if fitted else 0.0
    turns_s = baseline.first_step_s + traced_s + rotation_s(plan, baseline, count, loads=loads, fitted=fitted)
    return Foreseen(turns_s, 0.0 if fitted else COMPILED_S * compiled)


def screen_lengths(
    plan: StudyPlan, baseline: Trial | None, larger_step: int = 0, recorded: Collection[int] = ()
) -> tuple[int, ...]:
    """How many samples each run of a screen trains on: as usual, and where that tells nothing. 0 before a baseline.

    ``larger_step``: the samples of a step of a config with a larger effective batch, 0 of others. ``recorded``: see
    ``screened_samples``. What was compared at a length that will do stays compared, whatever the budget becomes.
    """
    if plan.accuracy.samples is not None:
        return (plan.accuracy.samples,)
    measurement = baseline.measurement if baseline is not None else None
    if measurement is None:
        return (0,)
    rate, per_step = measurement.rate, measurement.rate / measurement.steps_per_s
    fewest = max(FEWEST_SCREEN_STEPS * per_step, float(FEWEST_LARGER_STEPS * larger_step))
    # A config may train half as fast, and has to come through in time all the same. Its start takes no longer for that.
    most = rate * max(1.0, (plan.limits.trial_timeout_s - measurement.first_step_s) / (2 * SLOWER))
    wanted = min(most, max(rate * _screen_s(plan), fewest))
    usual, longer = int(wanted), int(min(most, LONGER * wanted))
    if usual not in recorded:
        will_do = [n for n in recorded if int(min(most, fewest)) <= n <= int(min(most, max(rate * SCREEN_S, fewest)))]
        if will_do:
            usual = max(will_do)
            # The longer one was so many times a length of which the fraction isn't known any more.
            longer = next((n for n in recorded if 0 <= n - LONGER * usual < LONGER), int(min(most, LONGER * usual)))
    return (usual, longer) if longer > usual else (usual,)


def _screen_s(plan: StudyPlan) -> float:
    """Seconds that a run of a screen trains for. The user's own metrics may come seldom: there none is shortened."""
    if plan.budget_s is None or plan.accuracy.metrics:
        return SCREEN_S
    return min(SCREEN_S, max(SHORTEST_SCREEN_S, SCREEN_SHARE * plan.budget_s))


def screened_samples(trials: Iterable[Trial]) -> frozenset[int]:
    """The lengths of the study's screens so far, in samples."""
    return frozenset(trial.samples for trial in trials if trial.phase is Phase.SCREEN and trial.samples is not None)
