"""The search: proposes configs and runs a trial of each until a bound is reached."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tuner.analysis.contention import MOVED, contamination
from tuner.analysis.gain import SUSPECT, WORTH_HAVING, changes_with_time, moved, reference_of, score_of
from tuner.analysis.memory_forecast import MemoryLimits
from tuner.devices.present import kind_of
from tuner.formatting import shift_text
from tuner.model import BASELINE, Config, Phase, Trial
from tuner.search.history import History, Proposal, Sampler
from tuner.space.resolved import ResolvedSpace
from tuner.storage.database import NewTrial
from tuner.study.context import StudyContext
from tuner.study.plan import StudyPlan
from tuner.study.probe import tell_bottleneck
from tuner.study.run_times import compiled_setting
from tuner.study.screens import bar_what_stays_open, rejected_by, too_slow_by
from tuner.study.search_space import widen_space
from tuner.study.study_time import StudyTime, compiled_text, was_late

MANY_FAILURES = 8
"""So many trials in a row without a figure, and the search isn't getting anywhere."""

LOOKS = 3
"""So often in a row the script as written is started anew to see whether it changes with time: twice, and once more
where others disturbed one of these.
"""
CALM = 8
"""So many trials in a row must have brought no gain before the search ends since none is expected of the next one: of
several together some is. On three recorded grids five to seven trials more than after three in a row brought 5 percent
points of the best config's gain (tests/benchmarks/grids/README.md).
"""


def search(study: StudyContext, sampler: Sampler) -> str:
    """Runs trials until a bound is reached, and says which. Raises as ``StudyContext.execute``.

    The baseline is measured again, as an anchor, every few trials, before the first one of a resumed study, and after
    one that has nothing but a disturbed run of it to be held against.
    Trials that don't take turns are held against it. What there was no time for isn't tried again before the study is
    resumed, with more of it; what there is none for gives way to what there is time for. What screens have
    rejected is neither tried nor built on, nor what they leave open of several configs, or where nothing else is found.
    """
    plan, study.rejected, study.too_slow = study.plan, rejected_by(study), too_slow_by(study)
    bar_what_stays_open(study)
    late_before = {trial.number for trial in study.trials if was_late(trial)}
    after_a_pause, missed = study.resumed, set[str]()
    told = changes_with_time(study.trials, plan.host)
    if told is not None:
        _look_at(study, told)
    while True:
        widen_space(study)
        interrupted = study.claim()
        if interrupted is not None:
            study.execute(interrupted)
            continue
        assert study.space is not None
        over = _is_over(study, study.space)
        if over:
            return over
        known = [trial for trial in study.trials if trial.number not in late_before]
        ahead = _next(study, sampler, study.space, known)
        enough, hurried = _nothing_is_expected(study, ahead.proposal), _proof_is_due(study, ahead.proposal)
        # The first isn't concluded by a measure which has changed, though a machine's moods may explain it as well.
        unconfirmed = _is_unconfirmed(study)
        if hurried or (enough and (ahead.lacking or not (unconfirmed or _has_moved(study, MOVED)))):
            return ahead.lacking or enough or hurried
        unsure = _unsure_by(study)
        has_failed = unsure is not None and any(trial.number > unsure.number for trial in _as_written(study))
        is_due = after_a_pause or _since_baseline(study) >= plan.anchor_every or (unsure is not None and not has_failed)
        if enough or is_due or unconfirmed or _has_moved(study, SUSPECT):
            after_a_pause = False
            in_place_of = (unsure.number,) if unsure is not None else ()
            _look_at(study, study.run(NewTrial(Phase.ANCHOR, BASELINE, "drift check", group=in_place_of)))
            tell_bottleneck(study)
            continue
        assert ahead.proposal is not None
        if ahead.missed and ahead.missed not in missed:
            missed.add(ahead.missed)
            study.note(f"no time for a trial of {ahead.missed}, and the search goes on with what takes less")
        study.run(NewTrial(Phase.SEARCH, ahead.proposal.config, _why(ahead.proposal, ahead.history, plan)))


class TimeForTrials:
    """Whether the search has time for a trial of a config, asked often: what it compiles decides that."""

    def __init__(self, time: StudyTime) -> None:
        self._time = time
        self._over = dict[Config, str]()

    def __call__(self, config: Config) -> bool:
        return not self.lacking(config)

    def lacking(self, config: Config) -> str:
        """Why the search would be over before such a trial, or ""."""
        setting = Config(compiled_setting(config))
        if setting not in self._over:
            self._over[setting] = self._time.search_is_over(setting)
        return self._over[setting]

    @property
    def lacked(self) -> str:
        """The same of the first config that was asked for and has none; "" where all have."""
        return next(filter(None, self._over.values()), "")


class _Next(NamedTuple):
    """What is tried next of what there is time for, None where nothing is left, by which history.

    ``missed``: what the sampler would rather have had compiled, for which there is no time; ``lacking``: what the
    search ends for where nothing else is worth a trial. Both are "" where time is not what is lacking.
    """

    proposal: Proposal | None
    history: History
    missed: str = ""
    lacking: str = ""


def _next(study: StudyContext, sampler: Sampler, space: ResolvedSpace, known: Sequence[Trial]) -> _Next:
    """The sampler's proposal of what there is time for; what is expected of others, too, keeps no search going.

    Nothing is stored of what has none: with a larger budget it is proposed again.
    """
    plan, has_time_for = study.plan, TimeForTrials(study.time)
    limits = MemoryLimits(plan.limits.max_device_bytes, plan.limits.max_host_bytes)
    known = [trial for trial in known if not study.rejects(trial.config)]

    def may_be_tried(config: Config) -> bool:
        return not study.rejects(config) and has_time_for(config)

    history = History(space, plan.objective, known, limits, may_be_tried)
    proposal = sampler.propose(history)
    if proposal is not None and not may_be_tried(proposal.config):
        proposal = None
    if not has_time_for.lacked:
        return _Next(proposal, history)
    rather = sampler.propose(History(space, plan.objective, known, limits, lambda one: not study.rejects(one)))
    if rather is None or _nothing_is_expected(study, rather) or _proof_is_due(study, rather):
        return _Next(proposal or rather, history)
    lacking = has_time_for.lacking(rather.config)
    return _Next(proposal, history, compiled_text(rather.config) if lacking else "", lacking or has_time_for.lacked)


def _since_baseline(study: StudyContext) -> float:
    """How many search trials have been run since the baseline was measured; one beside it counts half."""
    since = 0.0
    for trial in reversed(study.trials):
        if trial.phase in (Phase.BASELINE, Phase.ANCHOR):
            break
        if trial.phase is Phase.SEARCH:
            since += 0.5 if trial.measurement is not None and trial.measurement.reference is not None else 1
    return since


def _as_written(study: StudyContext) -> list[Trial]:
    return [trial for trial in study.trials if trial.phase in (Phase.BASELINE, Phase.ANCHOR) and trial.outcome]


def _unsure_by(study: StudyContext) -> Trial | None:
    """The last run of the script as written, where it was disturbed and a trial without turns after it was calm: the
    gain is as rough as that run. On a machine where two runs of it in a row were disturbed a third would be no better.
    A run that failed tells nothing of either.
    """
    runs = [trial for trial in _as_written(study) if trial.measurement]
    disturbed = [bool(trial.outcome and contamination(trial.outcome, study.plan.host)) for trial in runs[-2:]]
    if disturbed not in ([True], [False, True]):
        return None
    since = [trial for trial in study.searched if trial.number > runs[-1].number and trial.measurement]
    calm = any(
        trial.outcome is not None and reference_of(trial) is None and not contamination(trial.outcome, study.plan.host)
        for trial in since
    )
    return runs[-1] if calm else None


def _has_moved(study: StudyContext, by: float) -> bool:
    """Whether the script as written, kept alive, runs at another rate by now than when it was last looked at, by such a
    factor: it may change with time, by which each trial would be held against another script.
    """
    before: float | None = None
    now: float | None = None
    for trial in study.trials:
        measured = trial.measurement
        reference = reference_of(trial)
        beside = reference.rate if reference is not None else None
        if trial.phase is Phase.SEARCH:
            now = beside or now
        elif trial.phase in (Phase.BASELINE, Phase.ANCHOR):
            # Whatever came of a look, there is no other before another trial, or as long as nothing changes again.
            alone = measured.rate if measured is not None else None
            before, now = beside or now or alone, None
    if not before or not now or study.executor.obstacle:
        return False
    return max(before / now, now / before) > by


def _is_unconfirmed(study: StudyContext) -> bool:
    """Whether the last trial was a look by which a fresh start runs at another rate than the script as written, kept
    alive, and another one should say whether that was chance: up to ``LOOKS`` in a row.
    """
    runs = [trial for trial in study.trials if trial.phase in (Phase.BASELINE, Phase.ANCHOR, Phase.SEARCH)]
    if study.executor.obstacle or not runs or not moved(runs[-1], study.trials):
        return False
    return any(trial.phase is not Phase.ANCHOR for trial in runs[-LOOKS:])


def _look_at(study: StudyContext, anchor: Trial) -> None:
    """Says how far the baseline drifted; where it took turns with itself, whether fresh starts are as fast.

    One that grows faster with time, since it keeps what it has read or made once, is no measure for fresh starts.
    """
    reference = reference_of(anchor)
    if reference is not None:
        if changes_with_time(study.trials, study.plan.host) is not None:
            faster = "faster" if reference.gain.ratio < 1 else "slower"
            study.executor.end_turns(f"it grows {faster} with time, {reference.gain.ratio:.2f}x from a fresh start")
        return
    for shift in study.track.shifts(MOVED):
        if shift.after == anchor.number:
            study.note(shift_text(shift))


def _is_over(study: StudyContext, space: ResolvedSpace) -> str:
    """Why no further trial is started, or ""."""
    # What there was no time for has not failed.
    plan, done = study.plan, [trial for trial in study.searched if not was_late(trial)]
    if not space.axes and not space.pinned and space.larger is None:
        return "there is nothing to search"
    by_budget = study.time.search_is_over()
    if by_budget:
        return by_budget
    if space.pinned and len(done) == 2 and score_of(done[1].outcome, plan.objective) is None:
        outcome = done[1].outcome
        return f"what is pinned does not work here: {outcome.detail if outcome else ''}"
    failed = [trial for trial in done[-MANY_FAILURES:] if score_of(trial.outcome, plan.objective) is None]
    if len(failed) == MANY_FAILURES:
        return f"the last {MANY_FAILURES} configs failed"
    if plan.patience is not None and _since_gain(study) >= plan.patience:
        return f"{plan.patience} trials in a row brought no gain"
    return ""


def _nothing_is_expected(study: StudyContext, proposal: Proposal | None) -> str:
    """Why the search ends for the proof, by what a config that is left is expected to gain; or "".

    Only a sampler that forecasts gains ends it though there is one, and so never the walk.
    """
    if proposal is None:
        return "every config worth a trial has been tried"
    expected = proposal.expected
    if expected is None or expected >= WORTH_HAVING or _since_gain(study) < CALM:
        return ""
    failing = f", but for values that failed before ({proposal.failing:.3f}x at most)" if proposal.failing else ""
    found = f"no config left is expected to be {WORTH_HAVING - 1:.0%} faster than the best ({expected:.3f}x at most)"
    return found + failing


def _proof_is_due(study: StudyContext, proposal: Proposal | None) -> str:
    """Why the search ends though another config may gain more, by the time that the proof takes; or ""."""
    expected = proposal.expected if proposal is not None else None
    if expected is None or not study.time.proof_is_worth_more(expected):
        return ""
    return f"the time left is worth more for the proof than for another {expected:.3f}x"


def _since_gain(study: StudyContext) -> int:
    """How many trials have been run since one was better than all before it by what is worth having, in its contest.
    Those that are rejected are none, nor is what there was no time for.
    """
    track, larger = study.track, study.larger
    best, since = {True: 0.0, False: 0.0}, 0
    for trial in study.searched:
        if study.rejects(trial.config) or was_late(trial):
            continue
        own, contest = track.gain(trial) or 0.0, trial in larger
        improved = own > best[contest] * WORTH_HAVING
        since = 0 if improved else since + 1
        best[contest] = own if improved else best[contest]
    return since


def _why(proposal: Proposal, history: History, plan: StudyPlan) -> str:
    """What the trial is for, with the memory that it is expected to take: what came of that can be looked up."""
    expected = history.forecast(proposal.config)
    if expected is None:
        return proposal.why
    forecast = expected.device_bytes if kind_of(plan.device).own_memory else expected.host_bytes
    return proposal.why if forecast is None else f"{proposal.why}; forecast: {forecast / 2**20:,.0f} MiB"
