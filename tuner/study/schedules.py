"""The schedules of a study's finals: made, kept in its record, and found there again, for each contest by itself."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from typing import Any

from tuner.analysis.comparison import failed_in, pairs_of
from tuner.analysis.gain import WORTH_HAVING
from tuner.analysis.schedule import Schedule
from tuner.formatting import config_text
from tuner.model import BASELINE, Config, Trial
from tuner.search.history import History
from tuner.search.proven_first import candidates_of
from tuner.study.budget import FEWEST_ROUNDS
from tuner.study.context import StudyContext

GROWTH = 1.5
"""Undecided finals get so many times the rounds that they have had: few looks, and none that comes to nothing."""


_LARGER = "larger"


class Contest(StrEnum):
    """Who is to win: a config that keeps the effective batch, or one that makes it larger (tier 3)."""

    KEEPING = "keeping"
    LARGER = "larger"


def stored_finals(study: StudyContext, contest: Contest) -> dict[str, Any]:
    """The contest's present finals as ``save`` kept them, with the earlier ones; empty where there are none."""
    stored = study.repository.finals(study.record.id)
    if contest is Contest.LARGER:
        return dict(stored.get(_LARGER, {}))
    return {key: value for key, value in stored.items() if key != _LARGER}


def begun(study: StudyContext, contest: Contest, fit: Sequence[Trial]) -> Schedule | None:
    """Finals that an earlier process began, where nothing has been searched since and all in them are still fit."""
    numbers = going_on(study, contest)
    if not numbers or not set(numbers) <= {trial.number for trial in fit}:
        return None
    return _read(study, stored_finals(study, contest))


def _read(study: StudyContext, stored: Mapping[str, Any]) -> Schedule | None:
    """Finals as ``save`` stored them, by this or an earlier version; None where a candidate isn't known any more."""
    plan = study.plan
    known = {trial.number: trial for trial in study.trials}
    if not set(stored["candidates"]) <= set(known):
        return None
    return Schedule(
        tuple(known[number] for number in stored["candidates"]), stored["rounds"], plan.seed, stored.get("looks", 1),
        plan.host, stored.get("ended", False), stored.get("opening", 0), tuple(stored.get("dropped", ())),
        stored["first"] if "most" in stored else 0, stored.get("most", 0), tuple(stored.get("looked", ())),
    )  # fmt: skip


def going_on(study: StudyContext, contest: Contest) -> tuple[int, ...]:
    """The numbers of the candidates of finals that may go on, since nothing has been searched after them; none where
    all of these have failed in them.
    """
    numbers = _present(study, contest)
    return numbers if numbers != failed_altogether(study, contest) else ()


def failed_altogether(study: StudyContext, contest: Contest) -> tuple[int, ...]:
    """The numbers of the candidates of the present finals, where all of these have failed in them; else none."""
    numbers, failed = _present(study, contest), failed_in(study.trials, study.plan.objective)
    left = [trial for trial in study.trials if trial.number in numbers and trial.config not in failed]
    return () if left else numbers


def _present(study: StudyContext, contest: Contest) -> tuple[int, ...]:
    """The numbers of the candidates of the last finals, where nothing has been searched after them."""
    stored = stored_finals(study, contest)
    return tuple(stored["candidates"]) if stored and stored["after"] == len(study.searched) else ()


def through(study: StudyContext) -> tuple[int, ...]:
    """The numbers of the candidates of finals of what keeps the batch that might go on, but have no run left."""
    numbers = going_on(study, Contest.KEEPING)
    present = next(reversed(all_finals(study, Contest.KEEPING)), None) if numbers else None
    if present is None or present.runs_left(study.trials, failed_in(study.trials, study.plan.objective)):
        return ()
    return tuple(number for number in numbers if number not in present.dropped)


def in_order(
    study: StudyContext, history: History, trials: Sequence[Trial]
) -> tuple[tuple[Trial, ...], tuple[int, ...]]:
    """Those of the trials that may be proven, best first, and the numbers of those whose finals go on before any other:
    none where these are through, and a better one had no time.
    """
    begun, by_gain = going_on(study, Contest.KEEPING), candidates_of(history, trials, study.tiers)
    if lacked_time(study, history, by_gain):
        return by_gain, ()
    return candidates_of(history, trials, study.tiers, going_on=begun), begun


def lacked_time(study: StudyContext, history: History, trials: Sequence[Trial]) -> bool:
    """Whether one of these had no finals, and is expected to be faster by a gain worth having than those of the present
    ones, which are through.
    """
    numbers = through(study)
    gains = [history.expected(trial) or 0.0 for trial in study.trials if trial.number in numbers]
    least = WORTH_HAVING * max(gains, default=math.inf)
    return any(
        (history.expected(trial) or 0.0) > least and study.time.rounds_done(trial.config) < FEWEST_ROUNDS
        for trial in trials
    )  # fmt: skip


def all_finals(study: StudyContext, contest: Contest) -> list[Schedule]:
    """Every finals of the contest, oldest first, the present ones last."""
    stored = stored_finals(study, contest)
    documents = [*stored.get("earlier", ()), stored] if stored else []
    schedules = [_read(study, document) for document in documents]
    return [schedule for schedule in schedules if schedule is not None]


def was_judged(study: StudyContext, schedule: Schedule) -> bool:
    """Whether these finals could have proven something by now."""
    objective = study.plan.objective
    pairs = (pairs_of(schedule, trial.config, study.trials, objective) for trial in schedule.candidates)
    return any(len(found.gains) >= FEWEST_ROUNDS for found in pairs)


def schedule_of(study: StudyContext, contest: Contest, fit: Sequence[Trial]) -> Schedule | None:
    """Finals of those that are ``fit``, best first: the ones that have begun already, else as the time left allows.

    None where there is nobody to meet the script as written, or no time.
    """
    plan = study.plan
    failed = failed_in(study.trials, plan.objective)
    again, still = begun(study, contest, fit), [trial for trial in fit if trial.config not in failed]
    if again is not None and not (contest is Contest.KEEPING and lacked_time(study, _history(study), still)):
        return again
    fit = still
    candidates = _still_best(study, contest, fit) or fit[: plan.finalists]
    if not candidates:
        return None
    configs = (BASELINE, *(trial.config for trial in candidates))
    time = study.time
    rounds_s = [time.runs.round_s(configs[: count + 1]) for count in range(1, len(configs))]
    to_tell = [time.rounds_to_tell(count) for count in range(1, len(configs))]
    count, rounds = time.budget.finals_fit(time.now, rounds_s, to_tell)
    if not count and study.time.may_fit(FEWEST_ROUNDS * rounds_s[0], of=configs[:2]):
        count, rounds = 1, FEWEST_ROUNDS
    if not count:
        if contest is Contest.KEEPING:
            first = config_text(configs[1])
            study.note(f"not proven: no time left for {FEWEST_ROUNDS} rounds of the finals of {first}")
        return None
    # How many rounds the error is for is settled before the first one: one look, where there is no time for much more.
    rounds, most = _first_and_most(study, rounds, configs[: count + 1])
    earlier = all_finals(study, contest)
    schedule = Schedule(tuple(candidates[:count]), rounds, plan.seed, host=plan.host, first=rounds, most=most)
    # The same candidates again, in whichever order: what was searched since brought nothing better. Their finals go on.
    same = next((finals for finals in earlier if set(finals.group) == set(schedule.group)), None)
    if same is None or not was_judged(study, same):
        # What others have spent of the permitted error since is spent, whoever began first.
        same = replace(same or schedule, opening=1 + _last_opening(study, contest))
    save(study, same)
    return same


def _still_best(study: StudyContext, contest: Contest, fit: Sequence[Trial]) -> list[Trial]:
    """The candidates of the last finals, where all are fit and none of the others is expected to be faster than the
    least of them by a gain worth having: finals of others would begin anew, at a smaller share of the error.

    Empty without such finals.
    """
    last = next(reversed([finals for finals in all_finals(study, contest) if was_judged(study, finals)]), None)
    numbers = set(last.group) if last is not None else set()
    again, others = ([trial for trial in fit if (trial.number in numbers) is is_in] for is_in in (True, False))
    if study.space is None or not again or len(again) < len(numbers):
        return []
    history = _history(study)
    least = min(history.expected(trial) or 0.0 for trial in again)
    return again if all((history.expected(trial) or 0.0) <= WORTH_HAVING * least for trial in others) else []


def _history(study: StudyContext) -> History:
    assert study.space is not None
    return History(study.space, study.plan.objective, study.trials)


def _last_opening(study: StudyContext, contest: Contest) -> int:
    """The last opening that may have been spent: of the contest by finals that could prove something, of the other one
    by any that have begun, for they go on. So both contests together keep to the permitted error.
    """
    own = [finals for finals in all_finals(study, contest) if was_judged(study, finals)]
    others = [finals for other in Contest if other is not contest for finals in all_finals(study, other)]
    return max((max(1, finals.opening) for finals in (*own, *others)), default=0)


def save(study: StudyContext, schedule: Schedule) -> None:
    """Keeps these finals as the present ones of their contest, beside the earlier ones."""
    larger = study.space is not None and any(study.space.is_larger(trial.config) for trial in schedule.candidates)
    contest = Contest.LARGER if larger else Contest.KEEPING
    stored = stored_finals(study, contest)
    present = {
        "after": len(study.searched), "candidates": [trial.number for trial in schedule.candidates],
        "rounds": schedule.rounds, "ended": schedule.ended, "opening": schedule.opening,
        "dropped": list(schedule.dropped),
        **(
            {"first": schedule.first, "most": schedule.most, "looked": list(schedule.looked)} if schedule.first
            else {"looks": schedule.looks}
        ),
    }  # fmt: skip
    others = [*stored.get("earlier", ()), {k: v for k, v in stored.items() if k != "earlier"}] if stored else []
    others = [finals for finals in others if finals["candidates"] != present["candidates"]]
    document = {**present, "earlier": others}
    if larger:
        kept = {**stored_finals(study, Contest.KEEPING), _LARGER: document}
    else:
        beside = stored_finals(study, Contest.LARGER)
        kept = {**document, **({_LARGER: beside} if beside else {})}
    study.repository.save_finals(study.record.id, kept)


def _longer(most: int, looks: int) -> int:
    """The most rounds with so many looks more; as it is with none."""
    for _ in range(looks):
        most = math.ceil(GROWTH * most)
    return most


def _first_and_most(study: StudyContext, rounds: int, configs: Sequence[Config]) -> tuple[int, int]:
    """The rounds of these to the first look, at least so many, and the most that there may be.

    A second look has a part of the error: where there is no time for so many more rounds, all that there is time for
    come before the first.
    """
    most, left_s, round_s = study.plan.most_rounds, study.time.left_s, study.time.runs.round_s(configs)
    for more in range(study.plan.looks_beyond, 0, -1):
        if left_s is not None and study.time.may_fit(_longer(most, more) * round_s, of=configs):
            return rounds, _longer(most, more)
    if left_s is None or more_rounds(rounds, most) * round_s <= left_s:
        return rounds, max(rounds, most)
    rounds = max(rounds, min(most, int(left_s / round_s)))
    return rounds, rounds


def more_rounds(rounds: int, most: int) -> int:
    """The rounds at the look after that one."""
    return min(math.ceil(GROWTH * rounds), most)
