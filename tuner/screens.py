"""Runs the screens: a config that changes more than speed learns beside the script as written, on the same seeds."""

from __future__ import annotations

from collections.abc import Sequence

from tuner.accuracy import MOST_SEEDS, SEEDS, Pair, Screened, is_settled, judge, metrics_in
from tuner.bench import Bench
from tuner.budget import FEWEST_ROUNDS
from tuner.events import Screening
from tuner.ledger import TRIALS
from tuner.model import Config, Phase, Trial
from tuner.scoring import key_of
from tuner.space import ResolvedSpace
from tuner.stats import Verdict

_Run = tuple[Config, str, int]
"""The config, the words that its trial is stored under, and the seed."""


def screen(bench: Bench, space: ResolvedSpace, candidates: Sequence[Trial]) -> list[Screened]:
    """The screens of the candidates that need one, until as many pass as the finals take.

    Raises as ``Bench.conduct``. A candidate for which there was no time isn't in the list.
    """
    screened: list[Screened] = []
    fit = 0
    for trial in candidates:
        if fit >= bench.plan.finalists:
            break
        if not needs_screen(space, trial.config) or not bench.plan.accuracy.any:
            fit += 1
            continue
        # The first is screened whatever the time: an unscreened winner is none. Others leave the finals theirs.
        if (screened or fit) and not bench.time_for(_missing(bench, trial, SEEDS) + 2 * FEWEST_ROUNDS):
            continue
        result = _screen(bench, trial)
        screened.append(result)
        fit += result.verdict is Verdict.PASS
        bench.tell(Screening(trial, result))
    return screened


def needs_screen(space: ResolvedSpace, config: Config) -> bool:
    """Whether a config turns a knob that changes more than speed."""
    return any(knob.tier > 1 for knob in space.space.knobs if knob.name in config)


def note_unseen(bench: Bench, baseline: Trial) -> None:
    """Says at once which bounded metrics the script as written didn't give: a screen of them would show nothing."""
    unseen = bench.plan.accuracy.unseen(_metrics(bench, baseline))
    if unseen:
        bench.note(f"no screen can pass as long as this is so: {unseen}")


def _screen(bench: Bench, candidate: Trial) -> Screened:
    samples = bench.screen_samples()
    pairs: list[Pair] = []
    for count in (SEEDS, MOST_SEEDS):
        if pairs and not bench.time_for(_missing(bench, candidate, count)):
            break
        for seed in range(len(pairs) + 1, count + 1):
            pairs.append(_pair(bench, candidate, seed))
            if is_settled(candidate.config, pairs):
                return judge(candidate.config, pairs, bench.plan.accuracy, samples)
        if judge(candidate.config, pairs, bench.plan.accuracy, samples).verdict is not Verdict.INCONCLUSIVE:
            break
    return judge(candidate.config, pairs, bench.plan.accuracy, samples)


def _missing(bench: Bench, candidate: Trial, seeds: int) -> int:
    """How many runs of so many seeds haven't been done yet."""
    wanted = [run for seed in range(1, seeds + 1) for run in _runs(bench, candidate, seed)]
    return sum(_recorded(bench, run) is None for run in wanted)


def _runs(bench: Bench, candidate: Trial, seed: int) -> tuple[_Run, _Run]:
    """A pair: the script as written, which all candidates share, and the candidate."""
    length = f"over {bench.screen_samples()} samples"
    return ({}, f"screen {length}", seed), (candidate.config, f"screen of trial {candidate.number} {length}", seed)


def _pair(bench: Bench, candidate: Trial, seed: int) -> Pair:
    before, after = (_run(bench, run) for run in _runs(bench, candidate, seed))
    assert before.outcome is not None and after.outcome is not None
    return Pair(seed, before.outcome, after.outcome, _metrics(bench, before), _metrics(bench, after))


def _run(bench: Bench, run: _Run) -> Trial:
    """The run, from the study's record where it was done before."""
    while (trial := bench.waiting()) is not None:
        bench.conduct(trial)
    config, why, seed = run
    return _recorded(bench, run) or bench.run(Phase.SCREEN, config, why, seed=seed)


def _recorded(bench: Bench, run: _Run) -> Trial | None:
    config, why, seed = run
    for trial in bench.trials:
        same = trial.phase is Phase.SCREEN and (trial.why, trial.seed) == (why, seed)
        if same and key_of(trial.config) == key_of(config):
            return trial
    return None


def _metrics(bench: Bench, trial: Trial) -> dict[str, float]:
    measurement = trial.outcome.measurement if trial.outcome is not None else None
    reported = dict(measurement.metrics) if measurement is not None else {}
    if not bench.plan.accuracy.patterns:
        return reported
    log = bench.plan.folder / TRIALS / f"{trial.number:04d}" / "log.txt"
    try:
        text = log.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return reported
    return {**reported, **metrics_in(text, bench.plan.accuracy.patterns)}
