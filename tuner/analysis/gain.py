"""Gains: a trial's score against the baseline's, as a ratio above 1 for better whichever way the objective points.

Pure. A score is what the objective gives for a measurement, in the objective's unit; it is positive and finite.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import pairwise

from tuner.analysis.cold_start import with_cold_starts
from tuner.analysis.contention import MOVED, Host, contamination, is_calmer
from tuner.errors import ObjectiveError
from tuner.model import SIDELINES, Block, Measurement, Outcome, Phase, Reference, Shift, Trial
from tuner.objective import Objective

_ANCHORS = frozenset({Phase.BASELINE, Phase.ANCHOR})
WORTH_HAVING = 1.01
"""A gain below this isn't worth a change of config, nor more search."""
SUSPECT = 1.5
"""A process that is kept alive whose rate has changed by such a factor is held against a fresh one. Machines change by
less from one minute to the next, as a rule."""
DRAWN = 0.02
"""A gain that is shown may be so much off the rates beside it, as a logarithm, without a word."""
ROUGH = 1.5
"""A rate by itself whose interval ends at more than so many times its beginning is told as approximate."""
_SCATTER = 0.5
"""The standard deviation of the logarithms of configs' gains, at the least: a factor of 1.6."""
_STRETCH_S = 3.0
"""As long as a trial is measured at least before it may be called hopeless."""


def score_of(outcome: Outcome | None, objective: Objective) -> float | None:
    """The objective's figure of a complete outcome; None where there is none, or none above 0.

    Raises ``ObjectiveError`` where the objective raises anything.
    """
    if outcome is None or not outcome.complete or outcome.measurement is None:
        return None
    try:
        score = float(objective.score(outcome.measurement))
    except Exception as error:  # a third party's function may raise anything
        raise ObjectiveError(
            f"the objective {objective.name} fails on a measurement: {type(error).__name__}: {error}",
            hint="fix it; where a measurement lacks the figure it may return math.nan",
        ) from error
    # A ratio needs a positive finite figure; anything else is a measurement that failed.
    return score if math.isfinite(score) and score > 0 else None


def slowest_share(runs: Iterable[Sequence[Block]]) -> float:
    """How slow the machine was at its slowest: the rate of the slowest stretch of ``_STRETCH_S`` in any run of one
    config, as a share of its fastest run's rate. 1 where there is nothing to tell it by.

    ``runs``: the blocks of each run's window.
    """
    rates, slowest = [], []
    for blocks in runs:
        for first in range(len(blocks)):
            stretch = _stretch(blocks[first:])
            if stretch:
                slowest.append(_rate(stretch))
        if blocks:
            rates.append(_rate(blocks))
    return min(1.0, min(slowest) / max(rates)) if slowest and max(rates) > 0 else 1.0


def _stretch(blocks: Sequence[Block]) -> Sequence[Block]:
    """The first blocks that take a stretch together; empty where all of them take less."""
    seconds = 0.0
    for number, block in enumerate(blocks, 1):
        seconds += block.seconds
        if seconds >= _STRETCH_S:
            return blocks[:number]
    return ()


def _rate(blocks: Sequence[Block]) -> float:
    return sum(block.samples for block in blocks) / sum(block.seconds for block in blocks)


def gain(score: float, reference: float, objective: Objective) -> float:
    """How many times better a score (> 0) is than a reference (> 0)."""
    return score / reference if objective.maximize else reference / score


def _known(measured: float, reference: Reference | None) -> float:
    """What is known of a gain, from the logarithm that was measured: the mean of the posterior, as a logarithm.

    Gains are taken to scatter around 1 by ``_SCATTER``; one that is larger than that and its error shows that here they
    scatter by more, since a loader's are often tenfold.
    """
    if reference is None:
        return measured
    if not 0 < reference.gain.low <= reference.gain.high < math.inf:
        return 0.0
    error = math.log(reference.gain.high / reference.gain.low) / (2 * 1.96)
    scattered = max(_SCATTER**2, measured**2 - error**2)
    return measured * scattered / (scattered + error**2)


def is_drawn(trial: Trial) -> bool:
    """Whether the gain that is shown of the trial isn't what the two rates beside it give, by more than ``DRAWN``.

    It is drawn towards 1 by what its interval leaves open. Those of the finals aren't.
    """
    reference = reference_of(trial)
    if reference is None or trial.phase in {*SIDELINES, Phase.FINALS}:
        return False
    ratio = reference.gain.ratio
    measured = math.log(ratio) if 0 < ratio < math.inf else math.inf
    return abs(measured - _known(measured, reference)) > DRAWN


def is_rough(trial: Trial | None) -> bool:
    """Whether its rate is left open by its own blocks. By turns the gain has an interval of its own."""
    measurement = trial.measurement if trial is not None else None
    if measurement is None or measurement.reference is not None or measurement.turns:
        return False
    return measurement.high > ROUGH * measurement.low


def is_left_open(trial: Trial) -> bool:
    """Whether its own window leaves its gain open, which is told as approximate then, whatever the machine did. That of
    the script as written isn't: it is held against itself.
    """
    return is_drawn(trial) or (bool(trial.config) and is_rough(trial))


def at_rate(measurement: Measurement, rate: float) -> Measurement:
    """The measurement as it would have been at another rate, with the same power; as it is where its own is 0."""
    if measurement.rate <= 0:
        return measurement
    factor = rate / measurement.rate
    tokens_per_s = measurement.tokens_per_s
    return replace(
        measurement, rate=rate, low=measurement.low * factor, high=measurement.high * factor,
        steps_per_s=measurement.steps_per_s * factor, cpu_s_per_sample=measurement.cpu_s_per_sample / factor,
        tokens_per_s=tokens_per_s * factor if tokens_per_s is not None else None,
        energy=measurement.energy.times(1 / factor),
    )  # fmt: skip


def reference_of(trial: Trial) -> Reference | None:
    """What the script as written made in turns between the trial's own; None where it had none."""
    return trial.measurement.reference if trial.measurement is not None else None


def moved(anchor: Trial, trials: Iterable[Trial]) -> bool:
    """Whether a fresh start of the script as written runs at another rate than the process of it that is kept alive,
    with which the anchor took turns: surely by more than ``MOVED``, or by ``SUSPECT`` where that process has changed by
    as much since the baseline, whose trend makes any interval wide.
    """
    reference = reference_of(anchor)
    if anchor.phase is not Phase.ANCHOR or reference is None:
        return False
    if reference.gain.low > MOVED or reference.gain.high < 1 / MOVED:
        return True
    baseline = next((t.measurement for t in trials if t.phase is Phase.BASELINE), None)
    change = baseline.rate / reference.rate if baseline is not None and reference.rate > 0 else 1.0
    return min(reference.gain.ratio, change) > SUSPECT or max(reference.gain.ratio, change) < 1 / SUSPECT


def looks(trials: Iterable[Trial], host: Host | None) -> list[Trial]:
    """The anchors that took turns with the process that is kept alive, in the order of their numbers, without those
    that others disturbed. ``host``: as for ``contaminated_by``.
    """
    anchors = [trial for trial in trials if trial.phase is Phase.ANCHOR and reference_of(trial) is not None]
    calm = (one for one in anchors if host is None or one.outcome is None or not contamination(one.outcome, host))
    return sorted(calm, key=lambda trial: trial.number)


def changes_with_time(trials: Iterable[Trial], host: Host | None) -> Trial | None:
    """The anchor that shows that the process of the script as written that is kept alive changes with time: the second
    of two in a row, neither of which others disturbed, between which and that process a fresh start has ``moved`` the
    same way. One may be chance, as a start that the disk was slow for. None where there are none.
    """
    trials = list(trials)
    for one, other in pairwise(looks(trials, host)):
        before, after = reference_of(one), reference_of(other)
        if before is None or after is None or not (moved(one, trials) and moved(other, trials)):
            continue
        if (before.gain.ratio > 1) == (after.gain.ratio > 1):
            return other
    return None


def comparable(stored: Iterable[Trial], host: Host | None) -> list[Trial]:
    """Trials as they were stored, in their order, with what only the others tell: cold starts, and what each may be
    held against. ``host``: as for ``looks``.
    """
    return against_fresh(with_cold_starts(stored), host)


def against_fresh(trials: Iterable[Trial], host: Host | None) -> list[Trial]:
    """The trials, in their order; those of the search without what the script as written made in turns between their
    own, where the process of it that is kept alive ``changes_with_time``: it is no measure then.
    """
    trials = list(trials)
    if changes_with_time(trials, host) is None:
        return trials
    return [_without_reference(trial) if trial.phase is Phase.SEARCH else trial for trial in trials]


def _without_reference(trial: Trial) -> Trial:
    if trial.outcome is None or trial.measurement is None:
        return trial
    measurement = replace(trial.measurement, reference=None)
    return replace(trial, outcome=replace(trial.outcome, measurement=measurement))


def runs_as_written(trials: Iterable[Trial]) -> list[Trial]:
    """The baseline and the anchors that were measured, in the order of their numbers, by which others are held.

    One that others disturbed isn't among them where an anchor that was measured in its place (its ``group``) is calmer.
    """
    runs = {trial.number: trial for trial in trials if trial.phase in _ANCHORS and trial.measurement is not None}
    replaced = {
        number for run in runs.values() for number in run.group
        if number in runs and is_calmer(_measurement_of(run), _measurement_of(runs[number]))
    }  # fmt: skip
    return [runs[number] for number in sorted(runs.keys() - replaced)]


def _measurement_of(run: Trial) -> Measurement:
    assert run.measurement is not None
    return run.measurement


class BaselineTrack:
    """The baseline's score over a study, from its runs (``runs_as_written``): a machine drifts.

    A trial that took turns with the script as written is held against that, and drifts with it (see ``against_fresh``).

    Between two runs it is interpolated linearly by trial number; before the first and after the last it is theirs.
    ``trials`` may come in any order, and of any phase.
    """

    def __init__(self, trials: Iterable[Trial], objective: Objective) -> None:
        self._objective = objective
        trials = list(trials)
        runs = [t.measurement for t in trials if t.phase in _ANCHORS]
        measured = {t.number: t.measurement for t in trials if t.measurement is not None}
        self._measured = frozenset(measured)
        self._beside_it = {trial.number for trial in trials if reference_of(trial) is not None}
        self._blocks = [run.blocks for run in runs if run is not None]
        self._unit = next((run.unit for run in runs if run is not None), None)
        self._runs = [run for run in runs_as_written(trials) if _measurement_of(run).unit == self._unit]
        self._replaced = {t.number for t in trials if t.phase in _ANCHORS} - {run.number for run in self._runs}
        scores = ((run.number, score_of(run.outcome, objective)) for run in self._runs)
        self._anchors = [(number, score) for number, score in scores if score is not None]

    def gain(self, trial: Trial | None) -> float | None:
        """The trial's ratio to the baseline's score at its number, above 1 for better.

        None without a score, without any run of the baseline, where it is counted in another unit than the baseline's
        (samples against steps), and for a probe or a rotation: neither is a run of one config.
        By turns it is drawn towards 1 by what its interval leaves open: the fastest of many rough figures is a lucky
        one. A disturbed run of the script as written in whose place another one is has 1, as each of them has.
        """
        if trial is None or trial.phase in SIDELINES:
            return None
        if trial.measurement is not None and self._unit not in (None, trial.measurement.unit):
            return None
        score, reference = score_of(trial.outcome, self._objective), self._beside(trial) or self.reference(trial.number)
        if score is None or reference is None:
            return None
        if trial.number in self._replaced:
            return 1.0
        read = math.log(gain(score, reference, self._objective))
        return math.exp(_known(read, reference_of(trial)))

    def _beside(self, trial: Trial) -> float | None:
        """What the baseline scored in its turns between the trial's own; None where it had none."""
        reference, run = reference_of(trial), self._run_before(trial.number)
        if reference is None or run is None or run.outcome is None or run.measurement is None:
            return None
        there = at_rate(run.measurement, reference.rate)
        return score_of(replace(run.outcome, measurement=there), self._objective)

    def score(self, trial: Trial) -> float | None:
        """As ``score_of``."""
        return score_of(trial.outcome, self._objective)

    def reference(self, number: int) -> float | None:
        """What the baseline would have scored as trial ``number``; None where no run of it has a score."""
        before, after = self._around(number)
        if before is None or after is None:
            return None
        if before[0] == after[0]:
            return before[1]
        share = (number - before[0]) / (after[0] - before[0])
        return before[1] + share * (after[1] - before[1])

    def slowest_share(self) -> float:
        """See ``slowest_share``, by the runs of the baseline so far."""
        return slowest_share(self._blocks)

    def drift(self, number: int) -> float:
        """The ratio (>= 1) between the baseline's runs before and after trial ``number``; 1 where one is lacking, or
        the trial took turns with the baseline.
        """
        if number in self._beside_it:
            return 1.0
        before, after = self._around(number)
        if before is None or after is None:
            return 1.0
        return max(before[1], after[1]) / min(before[1], after[1])

    def shifts(self, least: float) -> list[Shift]:
        """The neighbouring runs of the baseline that differ by more than the ratio ``least``, in their order; not where
        all trials between them took turns with the baseline.
        """
        shifts = []
        for (before, one), (after, other) in pairwise(self._anchors):
            ratio = max(one, other) / min(one, other)
            between = {number for number in self._measured if before < number < after}
            if ratio > least and (not between or between - self._beside_it):
                shifts.append(Shift(before, after, ratio))
        return shifts

    def _run_before(self, number: int) -> Trial | None:
        """The baseline's own first run, or the last before that number."""
        return next((run for run in reversed(self._runs) if run.number < number), next(iter(self._runs), None))

    def _around(self, number: int) -> tuple[tuple[int, float] | None, tuple[int, float] | None]:
        """Number and score of the nearest runs at or before ``number``, and at or after it."""
        before = next((anchor for anchor in reversed(self._anchors) if anchor[0] <= number), None)
        after = next((anchor for anchor in self._anchors if anchor[0] >= number), None)
        return before or after, after or before

    def best_of(self, trials: Iterable[Trial]) -> Trial | None:
        """The trial with the highest gain; the first one of equals. None where none has a gain."""
        best: Trial | None = None
        best_gain = 0.0
        for trial in trials:
            own = self.gain(trial)
            if own is not None and own > best_gain:
                best, best_gain = trial, own
        return best
