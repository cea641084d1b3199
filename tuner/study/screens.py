"""Runs the screens: a config that changes more than speed learns beside the script as written, on the same seeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tuner.analysis.accuracy import MOST_SEEDS, SEEDS, Pair, Screened, is_settled, judge, metrics_in
from tuner.analysis.stats import Noninferiority
from tuner.events import Screening
from tuner.formatting import config_text
from tuner.model import BASELINE, Phase, Trial
from tuner.storage.database import NewTrial
from tuner.storage.folder import LOG, trial_folder
from tuner.study.budget import FEWEST_ROUNDS
from tuner.study.context import Bench


def screen(bench: Bench, candidates: Sequence[Trial]) -> list[Screened]:
    """The screens of the candidates that need one, until as many pass as the finals take.

    Raises as ``Bench.conduct``. A candidate for which there was no time, with the fewest rounds of the finals that
    have to follow, isn't in the list.
    """
    screened: list[Screened] = []
    fit = 0
    for trial in candidates:
        if fit >= bench.plan.finalists:
            break
        if not bench.needs_screen(trial.config):
            fit += 1
            continue
        missing_s = _missing_s(bench, trial, SEEDS)
        if missing_s and not bench.time_for(missing_s + bench.finals_s(trial.config, FEWEST_ROUNDS)):
            if not fit:
                bench.note(f"no time left to compare how {config_text(trial.config)} learns, and to prove it")
            continue
        result = _screen(bench, trial)
        screened.append(result)
        fit += result.verdict is Noninferiority.PASS
        bench.tell(Screening(trial, result))
    return screened


def note_unseen(bench: Bench, baseline: Trial) -> None:
    """Says at once which bounded metrics the script as written didn't give: a screen of them would show nothing."""
    unseen = bench.plan.accuracy.unseen(_metrics(bench, baseline))
    if unseen:
        bench.note(f"no screen can pass as long as this is so: {unseen}")


def _screen(bench: Bench, candidate: Trial) -> Screened:
    samples = bench.screen_samples()
    pairs: list[Pair] = []
    for count in (SEEDS, MOST_SEEDS):
        missing_s = _missing_s(bench, candidate, count)
        if pairs and missing_s and not bench.time_for(missing_s + bench.finals_s(candidate.config, FEWEST_ROUNDS)):
            break
        for seed in range(len(pairs) + 1, count + 1):
            pairs.append(_pair(bench, candidate, seed))
            if is_settled(candidate.config, pairs):
                return judge(candidate.config, pairs, bench.plan.accuracy, samples)
        if judge(candidate.config, pairs, bench.plan.accuracy, samples).verdict is not Noninferiority.INCONCLUSIVE:
            break
    return judge(candidate.config, pairs, bench.plan.accuracy, samples)


def _missing_s(bench: Bench, candidate: Trial, seeds: int) -> float:
    """What the runs of so many seeds take that haven't been done yet, in seconds."""
    wanted = [run for seed in range(1, seeds + 1) for run in _runs(bench, candidate, seed)]
    return sum(bench.run_s(Phase.SCREEN, run.config) for run in wanted if bench.recorded(run) is None)


def _runs(bench: Bench, candidate: Trial, seed: int) -> tuple[NewTrial, NewTrial]:
    """A pair: the script as written, which all candidates share, and the candidate."""
    samples = bench.screen_samples()
    baseline = NewTrial(Phase.SCREEN, BASELINE, f"screen over {samples} samples", seed=seed, samples=samples)
    why = f"screen of trial {candidate.number} over {samples} samples"
    return baseline, replace(baseline, config=candidate.config, why=why, group=(candidate.number,))


def _pair(bench: Bench, candidate: Trial, seed: int) -> Pair:
    before, after = (bench.run_once(run) for run in _runs(bench, candidate, seed))
    assert before.outcome is not None and after.outcome is not None
    return Pair(seed, before.outcome, after.outcome, _metrics(bench, before), _metrics(bench, after))


def _metrics(bench: Bench, trial: Trial) -> dict[str, float]:
    measurement = trial.outcome.measurement if trial.outcome is not None else None
    reported = dict(measurement.metrics) if measurement is not None else {}
    if not bench.plan.accuracy.patterns:
        return reported
    log = trial_folder(bench.plan.folder, trial.number) / LOG
    try:
        text = log.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return reported
    return {**reported, **metrics_in(text, bench.plan.accuracy.patterns)}
