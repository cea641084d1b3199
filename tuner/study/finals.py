"""Runs the finals: what the schedule lacks, more rounds while those may decide more, then the verdict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tuner.analysis.comparison import Schedule, decide, failed_in, is_decided, pairs_of
from tuner.analysis.contention import CONTAMINATING
from tuner.events import FinalsStarted, PairFinished
from tuner.formatting import count_text
from tuner.model import BASELINE, Phase, Trial, Winner
from tuner.storage.database import NewTrial
from tuner.study.budget import FEWEST_ROUNDS
from tuner.study.context import Bench

MORE_ROUNDS = 2
"""So many rounds are added to undecided finals at a time."""
LEEWAY = 1.5
"""So many times what is still to come is kept when a run is repeated: on a busy machine runs become longer."""


def hold_finals(bench: Bench, candidates: Sequence[Trial]) -> Winner | None:
    """The verdict of the finals; None where there is no candidate or no time for any. Raises as ``Bench.conduct``.

    ``candidates`` are those fit to win, best first; as many of them meet the baseline as the plan has finalists.
    Finals end where the time is up: what they measured is kept, and three rounds are enough for a proof.
    """
    schedule = _schedule(bench, candidates)
    if schedule is None:
        return None
    bench.tell(FinalsStarted(schedule.candidates, schedule.rounds))
    while True:
        played = _play(bench, schedule)
        if played < schedule.rounds:
            return _out_of_time(bench, schedule, played)
        winner = decide(schedule, bench.trials, bench.plan.objective)
        longer = _longer(bench, schedule, winner)
        if longer is None:
            return winner
        schedule = longer


def verdict_so_far(bench: Bench, candidates: Sequence[Trial]) -> Winner | None:
    """What finals that were stopped had proven by then; None where they had not begun or prove nothing yet."""
    schedule = _begun(bench, candidates)
    winner = decide(schedule, bench.trials, bench.plan.objective) if schedule is not None else None
    return winner if winner is not None and not winner.label else None


def _play(bench: Bench, schedule: Schedule) -> int:
    """Runs what the schedule lacks; how many rounds are done then. A round begins only where there is time for it."""
    begun = 0
    while True:
        trial = bench.waiting()
        if trial is not None:
            kept_s = LEEWAY * _left_s(bench, schedule, schedule.rounds)
            _tell_pairs(bench, schedule, bench.conduct(trial, kept_s=kept_s))
            continue
        left = schedule.runs_left(bench.trials, failed_in(schedule, bench.trials, bench.plan.objective))
        if not left:
            return schedule.rounds
        number, config = left[0]
        # The first rounds prove nothing without the third.
        if number != begun and not bench.time_for(_left_s(bench, schedule, max(number, FEWEST_ROUNDS))):
            return number - 1
        begun = number
        ahead_s = LEEWAY * (_left_s(bench, schedule, schedule.rounds) - bench.run_s(Phase.FINALS, config))
        why = f"finals of {', '.join(map(str, schedule.group))}"
        trial = bench.run(NewTrial(Phase.FINALS, config, why, number, group=schedule.group), kept_s=ahead_s)
        _tell_pairs(bench, schedule, trial)


def _left_s(bench: Bench, schedule: Schedule, rounds: int) -> float:
    """What is left of the first ``rounds`` rounds takes, in seconds."""
    left = schedule.runs_left(bench.trials, failed_in(schedule, bench.trials, bench.plan.objective))
    return sum(bench.run_s(Phase.FINALS, config) for number, config in left if number <= rounds)


def _out_of_time(bench: Bench, schedule: Schedule, played: int) -> Winner | None:
    """The verdict of the rounds that there was time for. Three prove what they prove, and no more are added later."""
    if played < FEWEST_ROUNDS:
        bench.note(f"not proven: no time left for {FEWEST_ROUNDS} rounds of the finals")
        winner = decide(schedule, bench.trials, bench.plan.objective)
        late = f"no proof: no time left after {count_text(played, 'round')}"
        return replace(winner, label=late) if winner is not None and winner.label else winner
    bench.note(f"the finals end after {played} of {schedule.rounds} rounds: no time left")
    ended = replace(schedule, rounds=played, ended=True)
    _save(bench, ended)
    return decide(ended, bench.trials, bench.plan.objective)


def _longer(bench: Bench, schedule: Schedule, winner: Winner | None) -> Schedule | None:
    """The schedule with more rounds; None where it is decided, or where there is no time or look left."""
    rounds = min(schedule.rounds + MORE_ROUNDS, bench.plan.most_rounds)
    if schedule.looks == 1 or schedule.ended or is_decided(winner) or rounds <= schedule.rounds:
        return None
    longer = replace(schedule, rounds=rounds)
    if not bench.time_for(_left_s(bench, longer, rounds)):
        return None
    _save(bench, longer)
    bench.note(f"still undecided: {rounds - schedule.rounds} more rounds")
    return longer


def _begun(bench: Bench, candidates: Sequence[Trial]) -> Schedule | None:
    """Finals that an earlier process began, where nothing has been searched since and all in them are still fit."""
    plan = bench.plan
    stored = bench.repository.finals(bench.study_id)
    fit = {trial.number: trial for trial in candidates}
    if not stored or stored["after"] != len(bench.searched()) or not set(stored["candidates"]) <= set(fit):
        return None
    most_foreign_cpus = plan.host.allowed_foreign_cpus(CONTAMINATING)
    begun = tuple(fit[number] for number in stored["candidates"])
    ended = stored.get("ended", False)
    return Schedule(begun, stored["rounds"], plan.seed, stored["looks"], most_foreign_cpus, ended)


def _schedule(bench: Bench, candidates: Sequence[Trial]) -> Schedule | None:
    """Finals that have begun already; else as many candidates and rounds as the time left allows."""
    plan = bench.plan
    begun = _begun(bench, candidates)
    if begun is not None:
        return begun
    candidates = candidates[: plan.finalists]
    if not candidates:
        return None
    runs_s = [bench.run_s(Phase.FINALS, config) for config in (BASELINE, *(trial.config for trial in candidates))]
    count, rounds = bench.budget.finals_fit(bench.clock(), runs_s, plan.finals_rounds)
    if not count:
        bench.note(f"not proven: no time left for {FEWEST_ROUNDS} rounds of the finals")
        return None
    # Where all rounds fit there may be time for more; how often they are looked at is settled before the first.
    looks = 1 + -(-(plan.most_rounds - rounds) // MORE_ROUNDS) if rounds == plan.finals_rounds else 1
    most_foreign_cpus = plan.host.allowed_foreign_cpus(CONTAMINATING)
    schedule = Schedule(tuple(candidates[:count]), rounds, plan.seed, looks, most_foreign_cpus)
    _save(bench, schedule)
    return schedule


def _save(bench: Bench, schedule: Schedule) -> None:
    document = {
        "after": len(bench.searched()), "candidates": [trial.number for trial in schedule.candidates],
        "rounds": schedule.rounds, "looks": schedule.looks, "ended": schedule.ended,
    }  # fmt: skip
    bench.repository.save_finals(bench.study_id, document)


def _tell_pairs(bench: Bench, schedule: Schedule, trial: Trial) -> None:
    """Tells of each candidate whose pair this run completed."""
    if not schedule.holds(trial) or trial.outcome is None or not trial.outcome.complete:
        return
    same_round = (t for t in bench.trials if schedule.holds(t) and t.round == trial.round)
    measured = {t.config for t in same_round if t.measurement is not None}
    for candidate in schedule.candidates:
        other = BASELINE if trial.config else candidate.config
        concerned = not trial.config or trial.config == candidate.config
        if not concerned or other not in measured:
            continue
        pairs = pairs_of(schedule, candidate.config, bench.trials, bench.plan.objective)
        so_far = pairs.ratio(schedule.confidence, bench.plan.objective) if len(pairs.gains) > 2 else None
        bench.tell(PairFinished(len(pairs.gains), schedule.rounds, candidate.config, pairs.gains[-1], so_far))
