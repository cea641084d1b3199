"""Runs the screens: a config that changes more than speed learns beside the script as written, on the same seeds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from tuner.analysis.accuracy import (
    MOST_SEEDS,
    SEEDS,
    AccuracyLimits,
    Screened,
    is_settled,
    judge,
    same_course,
    untold,
)
from tuner.analysis.checks import Pair
from tuner.analysis.first_loss import of_batch
from tuner.analysis.learning import Descent, descent_of
from tuner.analysis.loss_checks import sample_efficiency, shows_never
from tuner.analysis.schedule import CONFIDENCE, opening_share
from tuner.analysis.stats import Noninferiority
from tuner.analysis.tiers import holds, rejected_part
from tuner.events import Screening
from tuner.model import BASELINE, Config, Phase, Trial
from tuner.search.history import History
from tuner.search.proven_first import candidates_of
from tuner.storage.database import NewTrial
from tuner.study.budget import FEWEST_ROUNDS
from tuner.study.context import StudyContext
from tuner.study.lengths import screen_lengths, screened_samples
from tuner.study.metrics import metrics_of
from tuner.study.study_time import keeping_batch, larger_step

MORE_THAN_LUCK = 2
"""That the screens of so many configs with the same knobs beyond speed stay open is no bad luck of one's seeds."""


def limits_of(study: StudyContext, candidate: Trial) -> AccuracyLimits:
    """What the candidate is held to. A larger effective batch may learn less from each sample than its speed brings:
    it has to reach a loss sooner, and to keep to the bounds of the user's own metrics.
    """
    limits = study.plan.accuracy
    if study.space is None or not study.space.is_larger(candidate.config):
        return limits
    least = min(1.0, 1 / max(1.0, study.track.gain(candidate) or 1.0))
    return replace(
        limits, max_loss_increase=None, min_sample_efficiency=least, efficiency_alone=True, same_steps=False
    )


def lengths_of(study: StudyContext, candidate: Trial) -> tuple[int, ...]:
    """The samples of its screens."""
    step = larger_step(candidate.config, study.space)
    return screen_lengths(study.plan, study.baseline, step, screened_samples(study.trials))


def _judged(study: StudyContext, candidate: Trial, pairs: Sequence[Pair], samples: int) -> Screened:
    larger = study.space is not None and study.space.is_larger(candidate.config)
    return replace(judge(candidate.config, pairs, limits_of(study, candidate), samples), by_time=larger)


def missing_s(study: StudyContext, candidate: Trial, seeds: int, samples: int) -> float:
    """What the runs of so many seeds of its screen take that aren't in the record."""
    if _is_settled_by_record(study, candidate, samples):
        return 0.0
    wanted = [run for seed in range(1, seeds + 1) for run in _runs(candidate, seed, samples)]
    return sum(study.time.runs.screen_s(run.config, samples) for run in wanted if study.store.find(run) is None)


def screen_of(study: StudyContext, candidate: Trial) -> Screened | None:
    """What the candidate's screen showed, this time or, by the record, earlier; None where it has or needs none."""
    if not study.time.needs_screen(candidate.config):
        return None
    known = next((screened for screened in study.screened if screened.config == candidate.config), None)
    if known is not None:
        return known
    unlike: Screened | None = None
    for samples in lengths_of(study, candidate):
        pairs = recorded_pairs(study, candidate, samples)
        if pairs and is_settled(candidate.config, pairs):
            return _judged(study, candidate, pairs, samples)
        left = _unlike(study, candidate, pairs, samples)
        if left is not None:
            unlike = left
        elif unlike is not None and (nothing := _nothing_told(study, candidate, samples)) is not None:
            unlike = _over_both(unlike, nothing)
        else:
            seeds = MOST_SEEDS if len(pairs) >= MOST_SEEDS else SEEDS
            if len(pairs) >= seeds:
                return _judged(study, candidate, pairs[:seeds], samples)
            if unlike is not None:
                return None  # the longer one has yet to say
            continue
        if _longer_is_no_use(study, candidate, samples):
            break
    return unlike


def note_unseen(study: StudyContext, baseline: Trial) -> None:
    """Says at once which bounded metrics the script as written didn't give: a screen of them would show nothing."""
    unseen = study.plan.accuracy.unseen(metrics_of(study, baseline)[1])
    if unseen:
        study.note(f"no screen can pass as long as this is so: {unseen}")


def keep_screen(study: StudyContext, candidate: Trial, result: Screened) -> None:
    """Takes what a candidate's screen showed into what the study found, and tells of it where it is news."""
    if result not in study.screened:
        study.tell(Screening(candidate, result))
    others = [screened for screened in study.screened if screened.config != result.config]
    study.screened = (*others, result)
    study.rejected, study.too_slow = rejected_by(study), too_slow_by(study)
    _bar_what_no_luck_explains(study)


def rejected_by(study: StudyContext) -> tuple[Config, ...]:
    """Of each config that a screen has rejected, now or by the record, the knobs that change more than speed: with any
    others they would be rejected again. All of its knobs where a run failed, which may be the doing of each, and where
    a screen of others has let these pass.

    Larger batches are held to their speed, and tell nothing of others.
    """
    results = [result for _, result in _told(study)]
    passed = [result.config for result in results if result.verdict is Noninferiority.PASS]
    parts = (_part(study, result, passed) for result in results if result.verdict is Noninferiority.FAIL)
    return tuple(dict.fromkeys(parts))


def too_slow_by(study: StudyContext) -> frozenset[Config]:
    """The larger batches that their own screens, now or by the record, show to learn too little for their speed, or
    leave open with no more to come. They tell nothing of others: on top of another config one has another speed.
    """
    told = [(trial, result) for trial, result in _shown(study) if result.by_time]
    fail = Noninferiority.FAIL
    return frozenset(trial.config for trial, one in told if one.verdict is fail or _stays_open(study, trial, one))


def bar_what_stays_open(study: StudyContext) -> None:
    """Sets ``study.unshown`` and ``study.untold``: what screens leave open of several configs, and all of what they
    leave open where whatever may be proven turns that, or is rejected.

    No more seeds come to a screen that six leave open, and what is like it would be left open as well; but the seeds of
    one may have had bad luck.
    """
    assert study.space is not None
    history = History(study.space, study.plan.objective, study.trials)
    candidates = candidates_of(history, keeping_batch(study.trials, study.space), study.tiers)
    _bar_what_no_luck_explains(study)
    unshown, is_untold, gone = _left_open(study, 1), _is_untold(study), study.gone

    def is_out(config: Config) -> bool:
        is_open = any(holds(config, part) for part in unshown) or (is_untold and study.time.needs_screen(config))
        return is_open or gone(config)

    if candidates and all(is_out(trial.config) for trial in candidates):
        study.unshown, study.untold = unshown, is_untold


def _bar_what_no_luck_explains(study: StudyContext) -> None:
    study.unshown = tuple(dict.fromkeys((*study.unshown, *_left_open(study, MORE_THAN_LUCK))))


def _left_open(study: StudyContext, fewest: int) -> tuple[Config, ...]:
    """The knobs beyond speed that the screens of so many configs leave open, as ``rejected_by`` has them."""
    told = _told(study)
    passed = [result.config for _, result in told if result.verdict is Noninferiority.PASS]
    parts = Counter(_part(study, result, passed) for trial, result in told if _stays_open(study, trial, result))
    return tuple(part for part, count in parts.items() if count >= fewest)


def _told(study: StudyContext) -> list[tuple[Trial, Screened]]:
    """As ``_shown``, of the configs that keep the effective batch."""
    return [(trial, result) for trial, result in _shown(study) if not result.by_time]


def _shown(study: StudyContext) -> list[tuple[Trial, Screened]]:
    """The configs that were screened, now or by the record, with what that showed: each once, however many trials it
    had.
    """
    screened = {trial.config for trial in study.trials if trial.phase is Phase.SCREEN and trial.config}
    tried = {trial.config: trial for trial in study.searched if trial.config in screened}
    found = [(trial, screen_of(study, trial)) for trial in tried.values()]
    return [(trial, result) for trial, result in found if result is not None]


def _part(study: StudyContext, screened: Screened, passed: Sequence[Config]) -> Config:
    part = rejected_part(screened, study.tiers)
    return screened.config if any(holds(other, part) for other in passed) else part


def _stays_open(study: StudyContext, trial: Trial, screened: Screened) -> bool:
    """Whether a screen that could compare shows too little, and has no more to come."""
    if screened.verdict is not Noninferiority.INCONCLUSIVE or not screened.seeds or screened.lacked_time:
        return False
    pairs = recorded_pairs(study, trial, screened.samples)
    has_no_more = is_settled(trial.config, pairs) or _unlike(study, trial, pairs, screened.samples) is not None
    return screened.seeds >= MOST_SEEDS or has_no_more


def _is_untold(study: StudyContext) -> bool:
    """Whether the record of the script as written shows that no screen tells anything of what keeps the batch."""
    one = next((t for t in keeping_batch(study.searched, study.space) if study.time.needs_screen(t.config)), None)
    if one is None:
        return False
    for samples in lengths_of(study, one):
        if _nothing_told(study, one, samples) is None or _may_keep_course(study, one, samples):
            return False
        if _longer_is_no_use(study, one, samples):
            break
    return True


def _nothing_told(study: StudyContext, candidate: Trial, samples: int) -> Screened | None:
    """What is left open of a candidate where the script as written is in the record of that length, and shows nothing
    to hold it to; else None.
    """
    as_written = _as_written(study, candidate, samples)
    return untold(candidate.config, as_written, limits_of(study, candidate), samples) if as_written else None


def _may_keep_course(study: StudyContext, candidate: Trial, samples: int) -> bool:
    """Whether a course of the script as written is in the record of that length, which the candidate could keep."""
    return same_course(_as_written(study, candidate, samples), limits_of(study, candidate))


def _over_both(unlike: Screened, longer: Screened) -> Screened:
    """The verdict on what has left the course in a screen, where a longer one of the script as written shows nothing
    either.
    """
    return replace(unlike, reason=longer.reason, would_decide=longer.would_decide)


def _unlike(study: StudyContext, candidate: Trial, pairs: Sequence[Pair], samples: int) -> Screened | None:
    """The verdict, open, on a candidate that has left the course as written in pairs whose losses can't tell; else
    None.
    """
    limits = limits_of(study, candidate)
    if not pairs or is_settled(candidate.config, pairs) or same_course(pairs, limits):
        return None
    if untold(candidate.config, pairs, limits, samples) is None:
        return None
    judged = _judged(study, candidate, pairs, samples)
    return judged if judged.verdict is Noninferiority.INCONCLUSIVE else None


def _as_written(study: StudyContext, candidate: Trial, samples: int) -> list[Pair]:
    """The script as written beside itself, by the first run of a screen; empty where that isn't in the record."""
    first = study.store.find(_runs(candidate, 1, samples)[0])
    return [_paired(study, 1, first, first)] if first is not None else []


def screen(study: StudyContext, candidate: Trial) -> Screened | None:
    """The verdict on a candidate; None where there is no time for it.

    The script as written is looked at first. Where it shows nothing to hold a candidate to, only one whose training
    keeps to the same course is compared, as far as that can be seen; and where a longer one, that there is time for,
    shows something, any.
    """
    nothing: Screened | None = None
    unlike: Screened | None = None
    for samples in lengths_of(study, candidate):
        if _lacks_time(study, candidate, SEEDS, samples):
            return _lacking_time(unlike or nothing)
        if _run(study, candidate, _runs(candidate, 1, samples)[0]) is None:
            return _lacking_time(unlike or nothing)
        nothing = _nothing_told(study, candidate, samples)
        if nothing is not None and (unlike is not None or not _may_keep_course(study, candidate, samples)):
            unlike = _over_both(unlike, nothing) if unlike is not None else None
        else:
            compared = _compared(study, candidate, samples)
            if compared is None:
                return _lacking_time(unlike or nothing)
            if _unlike(study, candidate, recorded_pairs(study, candidate, samples), samples) is None:
                return compared
            unlike = compared
        if _longer_is_no_use(study, candidate, samples):
            break
    return unlike or nothing


def _lacking_time(screened: Screened | None) -> Screened | None:
    return replace(screened, lacked_time=True) if screened is not None else None


def _longer_is_no_use(study: StudyContext, candidate: Trial, samples: int) -> bool:
    """Whether some losses come down and others don't, or none is seen, and nothing else is bounded: a longer screen
    tells no more, but of weights that were looked at too seldom.
    """
    pairs = recorded_pairs(study, candidate, samples) or _as_written(study, candidate, samples)
    if limits_of(study, candidate).metrics or not pairs:
        return False
    baselines = [pair.baseline for pair in pairs]
    return descent_of(baselines) is Descent.MIXED or shows_never(baselines)


def _compared(study: StudyContext, candidate: Trial, samples: int) -> Screened | None:
    """The verdict; None where runs take so long that there is no time for the fewest, and for a proof after them.

    After the fewest it may be left open for lack of time alone.
    """
    pairs: list[Pair] = []
    for count in (SEEDS, MOST_SEEDS):
        for seed in range(len(pairs) + 1, count + 1):
            pair = None if _lacks_time(study, candidate, count, samples) else _pair(study, candidate, seed, samples)
            if pair is None:
                if len(pairs) < SEEDS:
                    return None
                judged = _judged(study, candidate, pairs[:SEEDS], samples)
                return replace(judged, lacked_time=judged.verdict is Noninferiority.INCONCLUSIVE)
            pairs.append(pair)
            if is_settled(candidate.config, pairs) or _unlike(study, candidate, pairs, samples) is not None:
                return _judged(study, candidate, pairs, samples)
        told = _judged(study, candidate, pairs, samples).verdict is not Noninferiority.INCONCLUSIVE
        tells_nothing = of_batch(pairs) and not limits_of(study, candidate).metrics
        if tells_nothing or (told and _is_sharp(study, candidate, pairs)):
            break
    return _judged(study, candidate, pairs, samples)


def _is_sharp(study: StudyContext, candidate: Trial, pairs: Sequence[Pair]) -> bool:
    """Whether a larger effective batch is known well enough for what finals of a second opening hold it to.

    Of the others only the verdict counts, and of what fails nothing more has to be known.
    """
    if study.space is None or not study.space.is_larger(candidate.config):
        return True
    found = sample_efficiency(pairs, (1 - CONFIDENCE) * opening_share(2))
    gain = study.track.gain(candidate) or 1.0
    return found is None or found.low * gain > 1.0 or found.ratio * gain <= 1.0


def _lacks_time(study: StudyContext, candidate: Trial, seeds: int, samples: int) -> bool:
    """Whether there is no time for the runs of so many seeds that are missing, and for the fewest rounds after them.

    What the runs so far have settled lacks none: a study that is derived again comes to the same verdict.
    """
    screens_s = missing_s(study, candidate, seeds, samples)
    finals_s = study.time.finals_s(candidate.config, FEWEST_ROUNDS)
    return screens_s > 0 and not study.time.may_fit(finals_s, screens_s, of=[BASELINE, candidate.config])


def _is_settled_by_record(study: StudyContext, candidate: Trial, samples: int) -> bool:
    recorded = recorded_pairs(study, candidate, samples)
    if recorded and (is_settled(candidate.config, recorded) or _unlike(study, candidate, recorded, samples)):
        return True
    if _nothing_told(study, candidate, samples) is None:
        return False
    shorter = [length for length in lengths_of(study, candidate) if length < samples]
    has_left = any(_unlike(study, candidate, recorded_pairs(study, candidate, n), n) is not None for n in shorter)
    return has_left or not _may_keep_course(study, candidate, samples)


def _runs(candidate: Trial, seed: int, samples: int) -> tuple[NewTrial, NewTrial]:
    """A pair: the script as written, which all candidates share, and the candidate."""
    baseline = NewTrial(Phase.SCREEN, BASELINE, f"screen over {samples} samples", seed=seed, samples=samples)
    why = f"screen of trial {candidate.number} over {samples} samples"
    return baseline, replace(baseline, config=candidate.config, why=why, group=(candidate.number,))


def recorded_pairs(study: StudyContext, candidate: Trial, samples: int) -> list[Pair]:
    """The pairs that were run already, from the first seed on."""
    pairs: list[Pair] = []
    for seed in range(1, MOST_SEEDS + 1):
        before, after = (study.store.find(run) for run in _runs(candidate, seed, samples))
        if before is None or after is None:
            break
        pairs.append(_paired(study, seed, before, after))
    return pairs


def _pair(study: StudyContext, candidate: Trial, seed: int, samples: int) -> Pair | None:
    """None where the time was up before both were through."""
    runs = _runs(candidate, seed, samples)
    before = _run(study, candidate, runs[0])
    after = _run(study, candidate, runs[1]) if before is not None else None
    return _paired(study, seed, before, after) if before is not None and after is not None else None


def _run(study: StudyContext, candidate: Trial, run: NewTrial) -> Trial | None:
    """A run of the candidate's screen. What takes so long that no finals could follow, its own or, as long as there
    was more time than for these, others as long, is ended, and waits.
    """
    time, config = study.time, candidate.config
    finals_s, own_s = time.finals_s(config, FEWEST_ROUNDS), time.runs.screen_s(run.config, run.samples or 0)
    hoped_s = time.hoped_s(finals_s, of=[BASELINE, config])
    return study.run_screen(run, kept_s=finals_s if time.fits(own_s + finals_s) else hoped_s)


def _paired(study: StudyContext, seed: int, before: Trial, after: Trial) -> Pair:
    assert before.outcome is not None and after.outcome is not None
    (firsts, lasts), (_, ends) = metrics_of(study, before), metrics_of(study, after)
    return Pair(seed, before.outcome, after.outcome, lasts, ends, firsts)
