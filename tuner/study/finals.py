"""Runs the finals: what the schedule lacks, more rounds while those may decide more, then the verdict."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache

from tuner.analysis.accuracy import Screened
from tuner.analysis.comparison import NO_PROOF, contest_of, decide, failed_in, is_decided, pairs_of, told_of
from tuner.analysis.learning import LATER, is_later
from tuner.analysis.schedule import Schedule
from tuner.analysis.stats import Noninferiority
from tuner.events import FinalsStarted, PairFinished
from tuner.formatting import config_text, count_text
from tuner.model import BASELINE, Config, Phase, Ratio, Trial, Verdict, Winner
from tuner.storage.database import NewTrial
from tuner.study.budget import FEWEST_ROUNDS
from tuner.study.context import StudyContext
from tuner.study.schedules import GROWTH, Contest, all_finals, begun, more_rounds, save, schedule_of, was_judged
from tuner.study.screens import screen_of

LEFT_BEHIND = 0.9
"""Candidates whose interval at that confidence ends below the ratio of the leading one get no more rounds."""
LEEWAY = 1.5
"""So many times what is still to come is kept: on a busy machine runs become longer."""
Judge = Callable[[StudyContext, Schedule], Winner | None]
"""What is made of what finals of a contest measured."""


def run_finals(study: StudyContext) -> Winner | None:
    """The verdict of the finals; None where no candidate is fit or there is no time for any.

    As many of ``study.fit`` meet the baseline as the plan has finalists. Finals end where the time is up: what they
    measured is kept, and three rounds are enough for a proof. What earlier finals of the study proved stands, unless
    these judge the same config or prove a faster one. Raises as ``StudyContext.execute``.
    """
    schedule = schedule_of(study, Contest.KEEPING, study.fit)
    return _standing(study, hold(study, schedule, _verdict) if schedule is not None else None)


def hold(study: StudyContext, schedule: Schedule, judge: Judge) -> Winner | None:
    """Runs the finals to their end, and gives what ``judge`` makes of them. Raises as ``StudyContext.execute``."""
    head = cache(lambda: study.tell(FinalsStarted(schedule.candidates, schedule.rounds)))  # once, with the first run
    had = next((number - 1 for number, _ in runs_left(study, schedule)), schedule.rounds)
    while True:
        schedule, rounds_done = _run_rounds(study, schedule, head)
        if rounds_done < schedule.rounds:
            return _out_of_time(study, schedule, rounds_done, judge, had)
        # Where all of them reach a loss later, it is how well their speed is known.
        winner = _leading(study, schedule)[0] or decide(schedule, study.trials, study.plan.objective)
        extended = _extended(study, schedule, winner)
        if extended is None:
            return judge(study, schedule)
        schedule = extended


def verdict_so_far(study: StudyContext) -> Winner | None:
    """What a study that was stopped had proven by then, in these finals or earlier ones; None where it has nothing.

    Finals whose rounds aren't all done have proven what the last look at them did, and nothing before the first one:
    each stop would be one more look at them.
    """
    if study.space is None:
        return None  # nobody knows yet what needs a screen
    schedule = begun(study, Contest.KEEPING, study.fit)
    if schedule is None:
        return _standing(study, None)
    left, looked = runs_left(study, schedule), looked_at(study, schedule)
    winner = _verdict(study, looked) if looked is not None else None
    if left:
        is_proven = winner is not None and winner.verdict is Verdict.IMPROVED
        winner = winner if is_proven else None
        proven = f"proven by {count_text(looked.rounds, 'round')}" if is_proven and looked else "nothing is proven yet"
        rounds = f"{left[0][0] - 1} of {count_text(schedule.rounds, 'round')}"
        study.note(f"{proven}: stopped after {rounds} of the finals")
    return _standing(study, winner if winner is not None and winner.label in ("", LATER) else None)


def looked_at(study: StudyContext, schedule: Schedule) -> Schedule | None:
    """These finals, or as they were at the last look where they lack rounds; None where they had none by then."""
    return schedule.at_last_look if runs_left(study, schedule) else schedule


def _run_rounds(study: StudyContext, schedule: Schedule, head: Callable[[], None]) -> tuple[Schedule, int]:
    """Runs what the schedule lacks; how many rounds are done then.

    A round begins only where there is time for it; where there is none for all candidates, the weakest are dropped. So
    are those that the first rounds show to be behind. ``head`` is called before each run.
    """
    begun = 0
    while True:
        in_time = _run_interrupted(study, schedule, head)
        left = runs_left(study, schedule)
        if not left:
            return schedule, schedule.rounds
        number = left[0][0]
        if not in_time:
            return schedule, number - 1
        if number != begun and _are_compared(number - 1):
            ahead = _without_left_behind(study, schedule)
            if ahead != schedule:
                save(study, ahead)
                _note_left_behind(study, schedule, ahead)
                schedule = ahead
                continue
        # The first rounds prove nothing without the third.
        due = max(number, FEWEST_ROUNDS)
        if number != begun and not _fits(study, schedule, due):
            smaller = _with_fewer(study, schedule, due)
            if smaller is None:
                return schedule, number - 1
            schedule = smaller
            continue
        begun = number
        configs = [config for of, config in left if of == number]
        round_s = study.time.runs.round_s(configs)
        ahead_s = LEEWAY * (_left_s(study, schedule, schedule.rounds) - round_s)
        why = f"finals of {', '.join(map(str, schedule.group))}"
        head()
        runs = [study.store.begin(NewTrial(Phase.FINALS, one, why, number, group=schedule.group)) for one in configs]
        finished = study.execute_round(runs, kept_s=ahead_s)
        if not finished:
            return schedule, number - 1
        _report_pairs(study, schedule, finished)


def _are_compared(rounds: int) -> bool:
    """Whether candidates are held against each other after so many rounds: seldom, since each time one may drop out by
    bad luck.
    """
    at = FEWEST_ROUNDS
    while at < rounds:
        at = math.ceil(GROWTH * at)
    return at == rounds


def _run_interrupted(study: StudyContext, schedule: Schedule, head: Callable[[], None]) -> bool:
    """Runs what was interrupted: of these finals whole rounds, since a run has lost those that it took turns with. Runs
    of other finals wait until those go on, if they do: alone they prove nothing.

    Whether there was time for that.
    """
    rounds: dict[int, list[Trial]] = {}
    later: list[Trial] = []
    while (trial := study.claim(finals=True)) is not None:
        if trial.phase is not Phase.FINALS:
            study.execute(trial)
            continue
        if not schedule.holds(trial):
            later.append(trial)
            continue
        of_round = rounds.setdefault(trial.round or 0, [])
        of_round.append(trial)
        for other in [one for one in study.trials if schedule.holds(one) and one.round == trial.round]:
            if other.measurement is not None and other.measurement.turns:
                study.store.requeue(other)
    for trial in later:
        study.store.requeue(trial)
    for runs in rounds.values():
        head()
        kept_s = LEEWAY * _left_s(study, schedule, schedule.rounds)
        finished = study.execute_round(runs, kept_s=kept_s)
        if not finished:
            return False
        _report_pairs(study, schedule, finished)
    return True


def _with_fewer(study: StudyContext, schedule: Schedule, rounds: int) -> Schedule | None:
    """The schedule without its weakest candidates, so that its first ``rounds`` rounds fit; None where none do."""
    objective = study.plan.objective
    failed = failed_in(study.trials, objective)

    def so_far(candidate: Trial) -> float:
        gains = pairs_of(schedule, candidate.config, study.trials, objective).gains
        return math.prod(gains) ** (1 / len(gains)) if gains else 0.0

    still = [t for t in schedule.candidates if t.number not in schedule.dropped and t.config not in failed]
    ranked = sorted(still, key=so_far, reverse=True)  # without a round they keep their order, best first
    for kept in range(len(ranked) - 1, 0, -1):
        dropped = (*schedule.dropped, *(trial.number for trial in ranked[kept:]))
        smaller = replace(schedule, dropped=dropped)
        if _fits(study, smaller, rounds):
            save(study, smaller)
            gone = "; ".join(config_text(trial.config) for trial in ranked[kept:])
            study.note(f"no time for all candidates: the finals go on without {gone}")
            return smaller
    return None


def _fits(study: StudyContext, schedule: Schedule, rounds: int) -> bool:
    """Whether there is time for what is left of so many rounds; of the fewest, whether they may come off."""
    left_s = _left_s(study, schedule, rounds)
    if rounds > FEWEST_ROUNDS:
        return study.time.fits(left_s)
    still = [trial.config for trial in schedule.candidates if trial.number not in schedule.dropped]
    return study.time.may_fit(left_s, of=[BASELINE, *still])


def _left_s(study: StudyContext, schedule: Schedule, rounds: int) -> float:
    """What is left of the first ``rounds`` rounds takes, in seconds."""
    runs, of_rounds = study.time.runs, dict[int, list[Config]]()
    for number, config in runs_left(study, schedule):
        of_rounds.setdefault(number, []).append(config)
    return sum(runs.round_s(configs) for number, configs in of_rounds.items() if number <= rounds)


def runs_left(study: StudyContext, schedule: Schedule) -> list[tuple[int, Config]]:
    """The round and the config of each run that these finals lack."""
    return schedule.runs_left(study.trials, failed_in(study.trials, study.plan.objective))


def _out_of_time(study: StudyContext, schedule: Schedule, rounds_done: int, judge: Judge, had: int) -> Winner | None:
    """The verdict of the rounds that there was time for. Three prove what they prove, and no more are added later. That
    fewer prove nothing is noted, unless they ``had`` as many before.
    """
    if rounds_done < FEWEST_ROUNDS:
        still = [trial for trial in schedule.candidates if trial.number not in schedule.dropped]
        names = "; ".join(config_text(trial.config) for trial in still)
        if not 0 < rounds_done == had:
            study.note(f"not proven: no time left for {FEWEST_ROUNDS} rounds of the finals of {names}")
        winner = decide(schedule, study.trials, study.plan.objective)
        late = f"{NO_PROOF}no time left after {count_text(rounds_done, 'round')}"
        return replace(winner, label=late) if winner is not None and winner.label else winner
    study.note(f"the finals end after {rounds_done} of {schedule.rounds} rounds: no time left")
    return judge(study, _end(study, replace(schedule, rounds=rounds_done)))


def _end(study: StudyContext, schedule: Schedule) -> Schedule:
    """These finals, ended: no rounds are added any more, unless too few were calm for a look at them."""
    ended = replace(schedule, ended=schedule.ended or _has_calm_rounds(study, schedule))
    save(study, ended)
    _note_disturbed(study, ended)
    return ended


def _note_disturbed(study: StudyContext, schedule: Schedule) -> None:
    if not (schedule.ended or _has_calm_rounds(study, schedule)) and schedule.rounds < study.plan.most_rounds:
        study.note("too few rounds were calm to prove anything, and no time is left for more")


def _has_calm_rounds(study: StudyContext, schedule: Schedule) -> bool:
    """Whether a look at these finals may prove something, as far as others leave them alone: not where they disturbed
    all of the candidates that were measured in enough rounds in too many of these.
    """
    objective = study.plan.objective
    failed = failed_in(study.trials, objective)
    still = [trial.config for trial in schedule.candidates if trial.config not in failed]
    found = (contest_of(schedule, config, study.trials, objective) for config in still)
    contests = [each for each in found if each is not None and len(each.pairs.gains) >= FEWEST_ROUNDS]
    return not contests or any(contest.enough for contest in contests)


def _verdict(study: StudyContext, schedule: Schedule) -> Winner | None:
    """What the finals proved of those that reach a loss no later than the script as written.

    Where one of the others alone is proven to be faster, that is kept with its figures, and isn't improved.
    """
    winner, later = _leading(study, schedule)
    is_improved = winner is not None and winner.verdict is Verdict.IMPROVED
    return later[0] if later and not is_improved else winner


def _leading(study: StudyContext, schedule: Schedule) -> tuple[Winner | None, list[Winner]]:
    """What the finals say of those that reach a loss no later than the script as written, so far; and those of the
    others that are proven to be faster, which isn't improved.
    """
    later = list[Winner]()
    while True:
        winner = decide(schedule, study.trials, study.plan.objective, without=[one.config for one in later])
        if winner is None or winner.verdict is not Verdict.IMPROVED:
            return winner, later
        if not _is_later(study, candidate_of(schedule, winner), winner.speedup):
            return winner, later
        later.append(replace(winner, verdict=Verdict.KEEP_BASELINE, label=LATER))


def _is_later(study: StudyContext, candidate: Trial, speedup: Ratio) -> bool:
    screened = screen_of(study, candidate)
    if screened is None or screened.efficiency is None or not study.plan.objective.is_rate:
        return False
    return is_later(speedup, screened.efficiency, study.tiers.of(candidate.config))


def candidate_of(schedule: Schedule, winner: Winner) -> Trial:
    return next(trial for trial in schedule.candidates if trial.config == winner.config)


def _extended(study: StudyContext, schedule: Schedule, winner: Winner | None) -> Schedule | None:
    """The schedule with more rounds; None where it is decided, or where there is no time or look left.

    What is looked at once has all rounds that there turns out to be time for, whatever they say: none is a look. Then
    it has ended: a longer budget, later, would make another look of one more round. Not so where too few of the rounds
    were calm: no look was taken.
    """
    if schedule.one_look:
        longer, is_looked_at = replace(schedule, rounds=schedule.rounds + 1), _has_calm_rounds(study, schedule)
        most = more_rounds(schedule.first, study.plan.most_rounds) if is_looked_at else study.plan.most_rounds
        may_grow = not schedule.ended and longer.rounds <= most
        if not may_grow or study.budget.seconds is None or not study.time.fits(_left_s(study, longer, longer.rounds)):
            _end(study, schedule)
            return None
        save(study, longer)
        return longer
    if schedule.ended or is_decided(winner):
        return None
    # A look that too few calm rounds left nothing to prove has spent nothing; one before it was due is the last.
    is_early, took_look = schedule.rounds < schedule.first, _has_calm_rounds(study, schedule) or not schedule.first
    if is_early and took_look:
        _end(study, schedule)
        return None
    rounds = schedule.first if is_early else more_rounds(schedule.rounds, schedule.most or study.plan.most_rounds)
    ahead = _without_left_behind(study, schedule)
    counts = range(rounds, schedule.rounds, -1)
    fitting = (ahead.looked_at_again(more) if took_look else replace(ahead, rounds=more) for more in counts)
    extended = next((one for one in fitting if study.time.fits(_left_s(study, one, one.rounds))), None)
    if extended is None:
        _note_disturbed(study, schedule)
        return None
    save(study, extended)
    proven = winner is not None and winner.verdict is Verdict.IMPROVED
    why = "proven, and there is time to know it better" if proven else "still undecided"
    study.note(f"{why}: {count_text(extended.rounds - schedule.rounds, 'more round')}")
    _note_left_behind(study, schedule, extended)
    return extended


def _note_left_behind(study: StudyContext, before: Schedule, now: Schedule) -> None:
    left = [trial for trial in now.candidates if trial.number in set(now.dropped) - set(before.dropped)]
    if left:
        behind = "; ".join(config_text(trial.config) for trial in left)
        study.note(f"the finals go on without {behind}, unlikely to be the fastest")


def _without_left_behind(study: StudyContext, schedule: Schedule) -> Schedule:
    """The schedule without the candidates that are unlikely to be the fastest: their rounds' time goes to the others.

    They count as candidates all the same, so that the error is divided as it was. One that reaches a loss later than
    the script as written leads nobody; who would be judged now stays.
    """
    objective, contests = study.plan.objective, list[tuple[Trial, Ratio, float]]()
    failed = failed_in(study.trials, objective)
    still = [one for one in schedule.candidates if one.number not in schedule.dropped and one.config not in failed]
    for trial in still:
        contest = contest_of(schedule, trial.config, study.trials, objective)
        if contest is not None and contest.enough:
            contests.append((trial, contest.pairs.ratio(LEFT_BEHIND, objective), contest.bound.low))
    leads = max((own.ratio for trial, own, _ in contests if not _is_later(study, trial, own)), default=0.0)
    surest = max((low for *_, low in contests), default=0.0)
    behind = [trial.number for trial, own, low in contests if own.high < leads and low < surest]
    return replace(schedule, dropped=(*schedule.dropped, *behind))


def _standing(study: StudyContext, winner: Winner | None) -> Winner | None:
    """The fastest of all that was proven, by the lower end; the verdict where nothing was.

    Each opening has its share of the error, and so earlier proofs stand beside later ones: those of finals that were
    looked at when they were due, by their last look. One falls where its config isn't fit any more, where a run of it
    failed in any finals, or where later ones judged it to their end.
    """
    proofs = [winner] if winner is not None and winner.verdict is Verdict.IMPROVED else []
    screens, judged = dict[Config, Screened](), set[Config]()
    for schedule in reversed(all_finals(study, Contest.KEEPING)):
        unfinished, looked = bool(runs_left(study, schedule)), looked_at(study, schedule)
        earlier = _verdict(study, looked) if looked is not None else None
        if earlier is not None and earlier.verdict is Verdict.IMPROVED and earlier.config not in judged:
            candidate = candidate_of(schedule, earlier)
            screened = screen_of(study, candidate)
            if screened is not None:
                screens[earlier.config] = screened
            passed = screened is not None and screened.verdict is Noninferiority.PASS
            if passed or not study.time.needs_screen(earlier.config):
                proofs.append(earlier)
        if was_judged(study, schedule) and not unfinished:
            judged |= {trial.config for trial in schedule.candidates if trial.number not in schedule.dropped}
    # Of equal ones the latest.
    best = max(proofs, key=lambda proof: (proof.speedup.low, proof.speedup.ratio), default=winner)
    if best is not None and best.config in screens and all(one.config != best.config for one in study.screened):
        study.screened = (*study.screened, screens[best.config])
    return best


def _report_pairs(study: StudyContext, schedule: Schedule, runs: Sequence[Trial]) -> None:
    """Tells of each candidate whose pair these runs of a round completed."""
    held = [run for run in runs if schedule.holds(run) and run.outcome is not None and run.outcome.complete]
    for number in dict.fromkeys(run.round for run in held):
        ran = {run.config for run in held if run.round == number}
        measured = {t.config for t in study.trials if schedule.holds(t) and t.round == number and t.measurement}
        for candidate in schedule.candidates:
            if not {BASELINE, candidate.config} <= measured or not {BASELINE, candidate.config} & ran:
                continue
            pairs = pairs_of(schedule, candidate.config, study.trials, study.plan.objective)
            if not pairs.gains:
                continue
            contest = contest_of(schedule, candidate.config, study.trials, study.plan.objective)
            told = contest is not None and len(pairs.gains) > 2
            so_far = told_of(schedule, contest, study.trials, study.plan.objective) if contest and told else None
            study.tell(PairFinished(len(pairs.gains), schedule.rounds, candidate.config, pairs.gains[-1], so_far))
