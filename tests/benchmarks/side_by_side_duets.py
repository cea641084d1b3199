"""Measures answers again, each in fresh pairs with the script as written: with the finals' own machinery.

A pair is a round of finals of one candidate: two fresh processes that take turns every quarter of a second, in an order
that is balanced over the rounds, run again where others disturbed them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from tuner.analysis.comparison import pairs_of
from tuner.analysis.schedule import Schedule
from tuner.analysis.tiers import Tiers
from tuner.cli import build_parser
from tuner.cli.planning import make_plan
from tuner.cli.settings import gather
from tuner.cli.trust import vouch_for_settings
from tuner.events import Event, Noted
from tuner.knowledge import BATCH_KNOBS, Knowledge, batch_factor, widened
from tuner.model import Config, Phase, Trial, Value
from tuner.runner.log_text import one_line
from tuner.runner.process import ProcessRunner
from tuner.runner.request import Runner
from tuner.space.applicable import check_applicable
from tuner.space.arguments import bound_knobs
from tuner.space.declare import Known
from tuner.space.registry import load_objective
from tuner.storage.database import NewTrial
from tuner.study.baseline import measure_baseline
from tuner.study.context import StudyContext
from tuner.study.plan import StudyPlan
from tuner.study.run import opened
from tuner.study.search_space import resolve_space

LR_SCALE, THROUGHPUT = "lr_scale", "throughput"
LONGEST = "10m"
"""A run that is measured again may take so long: whoever compiles by hand waits for it, and no search is kept up."""
_OPTIMISATION = 3


def plan_of(given: str, folder: Path, device: str) -> StudyPlan:
    """The plan of a study of the script as its study.toml says, but for samples a second, there and without any bound.

    Raises as ``autotune study``.
    """
    options = ["--study", str(folder), "--device", device, "--no-probe", "--trial-timeout", LONGEST]
    arguments = build_parser(["study"]).parse_args(["study", given, *options])
    arguments.script_args = None
    settings = gather(arguments)
    vouch_for_settings(settings, trusted=arguments.trust)
    return replace(make_plan(settings), trials=None, budget_s=None, objective=load_objective(THROUGHPUT))


def show(event: Event) -> None:
    """Prints what people should know."""
    if isinstance(event, Noted):
        print(f"  {event.text}", flush=True)


@contextmanager
def measuring(
    plan: StudyPlan, trials: Sequence[Trial] = (), *, runner: Callable[[], Runner] = ProcessRunner
) -> Iterator[StudyContext]:
    """A study in which the script as written is measured, and its space known. ``trials``: those of another study of
    the script, which may have shown what other values of its arguments bring. Raises as ``run_study``.
    """
    with opened(plan, runner(), show, threading.Event()) as study:
        measure_baseline(study)
        resolve_space(study)
        study.knowledge = widened(study.knowledge, bound_knobs(study.placeholders), trials)
        yield study


def check(study: StudyContext, config: Config) -> None:
    """Raises ``UsageError`` for what is no config of the study's space: what it would say couldn't be applied."""
    plan = study.plan
    known = Known(plan.device, plan.cores, knowledge=study.knowledge, spare_cores=plan.spare_cores)
    assert study.space is not None
    check_applicable(config, known, [study.space.space], study.placeholders)


def pair(study: StudyContext, config: Config, number: int, rounds: int, group: int) -> dict[str, Any]:
    """The line of one fresh pair: the ``number``-th of so many ``rounds`` of the config, which has a ``group`` of its
    own among those that are measured.

    ``failed`` says why a config gave no figure, ``void`` why there is no pair though it did.
    """
    candidate = Trial(group, Phase.SEARCH, config)
    schedule = Schedule((candidate,), rounds, study.plan.seed, host=study.plan.host, first=rounds)
    order = [each for of, each in schedule.runs_left([], []) if of == number]
    why = f"pair {number} of {rounds}"
    runs = [study.store.begin(NewTrial(Phase.FINALS, one, why, number, group=schedule.group)) for one in order]
    finished = study.execute_round(runs, kept_s=0.0)
    line: dict[str, Any] = {
        "kind": "pair", "config": dict(config), "round": number, "first": "candidate" if order[0] else "as written",
    }  # fmt: skip
    after = next(trial for trial in finished if trial.config)
    assert after.outcome is not None
    if not after.outcome.complete:
        kind, detail = after.outcome.kind, after.outcome.detail or after.outcome.reason
        return {**line, "failed": one_line(f"{kind}: {detail}")}
    objective = study.plan.objective
    pairs = pairs_of(schedule, config, finished, objective)
    if not pairs.rates:
        return {**line, "void": "the script as written gave no figure beside it, or one in another unit"}
    calm = bool(pairs_of(schedule, config, finished, objective, calm_only=True).rates)
    written, own = pairs.rates[0]
    measurement = pairs.candidate[0]
    return {
        **line, "written": written, "candidate": own, "unit": measurement.unit, "calm": calm,
        "turns": measurement.turns, "knobs": {each.knob: str(each.evidence) for each in measurement.knobs},
    }  # fmt: skip


def changes_of(config: Mapping[str, Value], tiers: Tiers, knowledge: Knowledge) -> str:
    """What the config changes of the training, for people: "" where that is nothing but its time, "numerics: …"
    where it is rounding, and what else it is where it is the optimisation.
    """
    own = Config(config)
    of = {knob: tiers.of_knob(knob, own) for knob in own}
    if tiers.of(own) < _OPTIMISATION:
        rounded = [knob for knob, tier in of.items() if tier > 1]
        return f"numerics: {', '.join(rounded)}" if rounded else ""
    parts = []
    factor = batch_factor(own, knowledge)
    if factor != 1:
        parts.append(f"effective batch x{factor:.3g}")
        parts.append(f"learning rate x{own[LR_SCALE]:.3g}" if LR_SCALE in own else "learning rate as written")
    others = [knob for knob, tier in of.items() if tier == _OPTIMISATION and knob not in (*BATCH_KNOBS, LR_SCALE)]
    if LR_SCALE in own and factor == 1:
        others.append(LR_SCALE)
    return "; ".join([*parts, *(f"{knob}={own[knob]}" for knob in others)])
