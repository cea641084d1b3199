"""Runs the finals: what the schedule lacks, more rounds while those may decide more, then the verdict."""

from __future__ import annotations

import math
from dataclasses import replace

from tuner.analysis.comparison import Schedule, decide, failed_in, is_decided, pairs_of
from tuner.analysis.contention import CONTAMINATING
from tuner.events import FinalsStarted, PairFinished
from tuner.formatting import config_text, count_text
from tuner.model import BASELINE, Phase, Trial, Winner
from tuner.storage.database import NewTrial
from tuner.study.budget import FEWEST_ROUNDS
from tuner.study.context import StudyContext

MORE_ROUNDS = 2
"""So many rounds are added to undecided finals at a time."""
LEEWAY = 1.5
"""So many times what is still to come is kept when a run is repeated: on a busy machine runs become longer."""


def run_finals(study: StudyContext) -> Winner | None:
    """The verdict of the finals; None where no candidate is fit or there is no time for any.

    As many of ``study.fit`` meet the baseline as the plan has finalists. Finals end where the time is up: what they
    measured is kept, and three rounds are enough for a proof. Raises as ``StudyContext.execute``.
    """
    schedule = _schedule(study)
    if schedule is None:
        return None
    study.tell(FinalsStarted(schedule.candidates, schedule.rounds))
    while True:
        rounds_done = _run_rounds(study, schedule)
        if rounds_done < schedule.rounds:
            return _out_of_time(study, schedule, rounds_done)
        winner = decide(schedule, study.trials, study.plan.objective)
        extended = _extended(study, schedule, winner)
        if extended is None:
            return winner
        schedule = extended


def note_lack_of_time(study: StudyContext, fastest: Trial, winner: Winner | None) -> None:
    """Names the budget that would do, where nothing but time was lacking to prove the fastest config."""
    screened = [result.config for result in study.screened]
    lacked = winner is None if fastest in study.fit else fastest.config not in screened
    if study.budget.seconds is None or not lacked:
        return
    # A study that goes on measures the script as written once more.
    time = study.time
    wanted_s = study.budget.elapsed(time.now) + time.trial_s() + time.proof_s(fastest.config)
    study.note(
        f"with --budget {math.ceil(wanted_s / 60) + 1}m the same command goes on, and has the time to prove"
        f" {config_text(fastest.config)}"
    )


def verdict_so_far(study: StudyContext) -> Winner | None:
    """What finals that were stopped had proven by then; None where they had not begun or prove nothing yet."""
    schedule = _begun(study)
    winner = decide(schedule, study.trials, study.plan.objective) if schedule is not None else None
    return winner if winner is not None and not winner.label else None


def _run_rounds(study: StudyContext, schedule: Schedule) -> int:
    """Runs what the schedule lacks; how many rounds are done then. A round begins only where there is time for it."""
    begun = 0
    while True:
        trial = study.claim()
        if trial is not None:
            kept_s = LEEWAY * _left_s(study, schedule, schedule.rounds)
            _report_pairs(study, schedule, study.execute(trial, kept_s=kept_s))
            continue
        left = schedule.runs_left(study.trials, failed_in(schedule, study.trials, study.plan.objective))
        if not left:
            return schedule.rounds
        number, config = left[0]
        # The first rounds prove nothing without the third.
        if number != begun and not study.time.fits(_left_s(study, schedule, max(number, FEWEST_ROUNDS))):
            return number - 1
        begun = number
        ahead_s = LEEWAY * (_left_s(study, schedule, schedule.rounds) - study.time.run_s(Phase.FINALS, config))
        why = f"finals of {', '.join(map(str, schedule.group))}"
        trial = study.run(NewTrial(Phase.FINALS, config, why, number, group=schedule.group), kept_s=ahead_s)
        _report_pairs(study, schedule, trial)


def _left_s(study: StudyContext, schedule: Schedule, rounds: int) -> float:
    """What is left of the first ``rounds`` rounds takes, in seconds."""
    left = schedule.runs_left(study.trials, failed_in(schedule, study.trials, study.plan.objective))
    return sum(study.time.run_s(Phase.FINALS, config) for number, config in left if number <= rounds)


def _out_of_time(study: StudyContext, schedule: Schedule, rounds_done: int) -> Winner | None:
    """The verdict of the rounds that there was time for. Three prove what they prove, and no more are added later."""
    if rounds_done < FEWEST_ROUNDS:
        study.note(f"not proven: no time left for {FEWEST_ROUNDS} rounds of the finals")
        winner = decide(schedule, study.trials, study.plan.objective)
        late = f"no proof: no time left after {count_text(rounds_done, 'round')}"
        return replace(winner, label=late) if winner is not None and winner.label else winner
    study.note(f"the finals end after {rounds_done} of {schedule.rounds} rounds: no time left")
    ended = replace(schedule, rounds=rounds_done, ended=True)
    _save(study, ended)
    return decide(ended, study.trials, study.plan.objective)


def _extended(study: StudyContext, schedule: Schedule, winner: Winner | None) -> Schedule | None:
    """The schedule with more rounds; None where it is decided, or where there is no time or look left."""
    rounds = min(schedule.rounds + MORE_ROUNDS, study.plan.most_rounds)
    if schedule.looks == 1 or schedule.ended or is_decided(winner) or rounds <= schedule.rounds:
        return None
    extended = replace(schedule, rounds=rounds)
    if not study.time.fits(_left_s(study, extended, rounds)):
        return None
    _save(study, extended)
    study.note(f"still undecided: {rounds - schedule.rounds} more rounds")
    return extended


def _begun(study: StudyContext) -> Schedule | None:
    """Finals that an earlier process began, where nothing has been searched since and all in them are still fit."""
    plan = study.plan
    stored = study.repository.finals(study.record.id)
    fit = {trial.number: trial for trial in study.fit}
    if not stored or stored["after"] != len(study.searched) or not set(stored["candidates"]) <= set(fit):
        return None
    most_foreign_cpus = plan.host.allowed_foreign_cpus(CONTAMINATING)
    begun = tuple(fit[number] for number in stored["candidates"])
    ended = stored.get("ended", False)
    return Schedule(begun, stored["rounds"], plan.seed, stored["looks"], most_foreign_cpus, ended)


def _schedule(study: StudyContext) -> Schedule | None:
    """Finals that have begun already; else as many candidates and rounds as the time left allows."""
    plan = study.plan
    begun = _begun(study)
    if begun is not None:
        return begun
    candidates = study.fit[: plan.finalists]
    if not candidates:
        return None
    configs = (BASELINE, *(trial.config for trial in candidates))
    runs_s = [study.time.run_s(Phase.FINALS, config) for config in configs]
    count, rounds = study.budget.finals_fit(study.clock(), runs_s, plan.finals_rounds)
    if not count:
        study.note(f"not proven: no time left for {FEWEST_ROUNDS} rounds of the finals")
        return None
    # Where all rounds fit there may be time for more; how often they are looked at is settled before the first.
    looks = 1 + -(-(plan.most_rounds - rounds) // MORE_ROUNDS) if rounds == plan.finals_rounds else 1
    most_foreign_cpus = plan.host.allowed_foreign_cpus(CONTAMINATING)
    schedule = Schedule(candidates[:count], rounds, plan.seed, looks, most_foreign_cpus)
    _save(study, schedule)
    return schedule


def _save(study: StudyContext, schedule: Schedule) -> None:
    document = {
        "after": len(study.searched), "candidates": [trial.number for trial in schedule.candidates],
        "rounds": schedule.rounds, "looks": schedule.looks, "ended": schedule.ended,
    }  # fmt: skip
    study.repository.save_finals(study.record.id, document)


def _report_pairs(study: StudyContext, schedule: Schedule, trial: Trial) -> None:
    """Tells of each candidate whose pair this run completed."""
    if not schedule.holds(trial) or trial.outcome is None or not trial.outcome.complete:
        return
    same_round = (t for t in study.trials if schedule.holds(t) and t.round == trial.round)
    measured = {t.config for t in same_round if t.measurement is not None}
    for candidate in schedule.candidates:
        other = BASELINE if trial.config else candidate.config
        concerned = not trial.config or trial.config == candidate.config
        if not concerned or other not in measured:
            continue
        pairs = pairs_of(schedule, candidate.config, study.trials, study.plan.objective)
        so_far = pairs.ratio(schedule.confidence, study.plan.objective) if len(pairs.gains) > 2 else None
        study.tell(PairFinished(len(pairs.gains), schedule.rounds, candidate.config, pairs.gains[-1], so_far))
