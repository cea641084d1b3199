"""Runs the screens: a config that changes more than speed learns beside the script as written, on the same seeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tuner.analysis.accuracy import MOST_SEEDS, SEEDS, Pair, Screened, is_settled, judge, metrics_in
from tuner.analysis.comparison import choose_candidates
from tuner.analysis.stats import Noninferiority
from tuner.events import Screening
from tuner.formatting import config_text
from tuner.model import BASELINE, Phase, Trial
from tuner.storage.database import NewTrial
from tuner.storage.folder import LOG, trial_folder
from tuner.study.budget import FEWEST_ROUNDS
from tuner.study.context import StudyContext
from tuner.study.plan import StudyPlan

CANDIDATES = 3
"""So many candidates for each place in the finals are screened, if those before them fail."""
SCREEN_S = 10.0
"""A screen trains for as many samples as the script as written takes in this time."""
FEWEST_SCREEN_STEPS = 60


def screen_candidates(study: StudyContext) -> tuple[Trial, ...]:
    """Screens the best trials, and sets ``study.screened`` and ``study.fit``. Returns those trials, best first.

    The screens go on until as many candidates are fit as the finals take. Raises as ``StudyContext.execute``. A
    candidate for which there was no time, with the fewest rounds of the finals that have to follow, has no screen.
    """
    plan = study.plan
    candidates = choose_candidates(study.trials, plan.objective, CANDIDATES * plan.finalists)
    study.screened = tuple(_screens(study, candidates))
    passed = [screened.config for screened in study.screened if screened.verdict is Noninferiority.PASS]
    study.fit = tuple(t for t in candidates if not study.time.needs_screen(t.config) or t.config in passed)
    return candidates


def _screens(study: StudyContext, candidates: Sequence[Trial]) -> list[Screened]:
    screened: list[Screened] = []
    fit = 0
    for trial in candidates:
        if fit >= study.plan.finalists:
            break
        if not study.time.needs_screen(trial.config):
            fit += 1
            continue
        if _lacks_time(study, trial, SEEDS):
            if not fit:
                study.note(f"no time left to compare how {config_text(trial.config)} learns, and to prove it")
            continue
        result = _screen(study, trial)
        screened.append(result)
        fit += result.verdict is Noninferiority.PASS
        study.tell(Screening(trial, result))
    return screened


def note_unseen(study: StudyContext, baseline: Trial) -> None:
    """Says at once which bounded metrics the script as written didn't give: a screen of them would show nothing."""
    unseen = study.plan.accuracy.unseen(_metrics(study, baseline))
    if unseen:
        study.note(f"no screen can pass as long as this is so: {unseen}")


def _screen(study: StudyContext, candidate: Trial) -> Screened:
    samples = screen_samples(study.plan, study.baseline)
    pairs: list[Pair] = []
    for count in (SEEDS, MOST_SEEDS):
        if pairs and _lacks_time(study, candidate, count):
            break
        for seed in range(len(pairs) + 1, count + 1):
            pairs.append(_pair(study, candidate, seed))
            if is_settled(candidate.config, pairs):
                return judge(candidate.config, pairs, study.plan.accuracy, samples)
        if judge(candidate.config, pairs, study.plan.accuracy, samples).verdict is not Noninferiority.INCONCLUSIVE:
            break
    return judge(candidate.config, pairs, study.plan.accuracy, samples)


def _lacks_time(study: StudyContext, candidate: Trial, seeds: int) -> bool:
    """Whether there is no time for the runs of so many seeds that are missing, and for the fewest rounds after them.

    What the runs so far have settled lacks none: a study that is derived again comes to the same verdict.
    """
    recorded = _recorded_pairs(study, candidate)
    if recorded and is_settled(candidate.config, recorded):
        return False
    wanted = [run for seed in range(1, seeds + 1) for run in _runs(study, candidate, seed)]
    missing_s = sum(study.time.run_s(Phase.SCREEN, run.config) for run in wanted if study.store.find(run) is None)
    return missing_s > 0 and not study.time.fits(missing_s + study.time.finals_s(candidate.config, FEWEST_ROUNDS))


def _runs(study: StudyContext, candidate: Trial, seed: int) -> tuple[NewTrial, NewTrial]:
    """A pair: the script as written, which all candidates share, and the candidate."""
    samples = screen_samples(study.plan, study.baseline)
    baseline = NewTrial(Phase.SCREEN, BASELINE, f"screen over {samples} samples", seed=seed, samples=samples)
    why = f"screen of trial {candidate.number} over {samples} samples"
    return baseline, replace(baseline, config=candidate.config, why=why, group=(candidate.number,))


def screen_samples(plan: StudyPlan, baseline: Trial | None) -> int:
    """How many samples each run of a screen trains on; the same for all of a study, 0 before the baseline."""
    if plan.accuracy.samples is not None:
        return plan.accuracy.samples
    measurement = baseline.measurement if baseline is not None else None
    if measurement is None:
        return 0
    per_step = measurement.rate / measurement.steps_per_s
    wanted = max(measurement.rate * SCREEN_S, FEWEST_SCREEN_STEPS * per_step)
    # A config may be half as fast, and has to come through in time all the same.
    most_s = max(1.0, plan.limits.trial_timeout_s / 2 - measurement.first_step_s)
    return int(min(wanted, measurement.rate * most_s))


def _recorded_pairs(study: StudyContext, candidate: Trial) -> list[Pair]:
    """The pairs that were run already, from the first seed on."""
    pairs: list[Pair] = []
    for seed in range(1, MOST_SEEDS + 1):
        before, after = (study.store.find(run) for run in _runs(study, candidate, seed))
        if before is None or after is None:
            break
        pairs.append(_paired(study, seed, before, after))
    return pairs


def _pair(study: StudyContext, candidate: Trial, seed: int) -> Pair:
    before, after = (study.run_once(run) for run in _runs(study, candidate, seed))
    return _paired(study, seed, before, after)


def _paired(study: StudyContext, seed: int, before: Trial, after: Trial) -> Pair:
    assert before.outcome is not None and after.outcome is not None
    return Pair(seed, before.outcome, after.outcome, _metrics(study, before), _metrics(study, after))


def _metrics(study: StudyContext, trial: Trial) -> dict[str, float]:
    measurement = trial.outcome.measurement if trial.outcome is not None else None
    reported = dict(measurement.metrics) if measurement is not None else {}
    if not study.plan.accuracy.patterns:
        return reported
    log = trial_folder(study.plan.folder, trial.number) / LOG
    try:
        text = log.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return reported
    return {**reported, **metrics_in(text, study.plan.accuracy.patterns)}
