"""Measures the real loop and each side of it by itself: for ``autotune probe``, and at the start of a study."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace

from tuner.analysis.bottleneck import Bottleneck, bottleneck_of, find_bottleneck, sides
from tuner.analysis.contention import contamination, disturbance
from tuner.child.records import ProbeSide
from tuner.devices.present import kind_of
from tuner.events import Probed
from tuner.formatting import SIDE_TEXT, seconds_text
from tuner.knowledge import Knowledge, first_knowledge, with_arguments
from tuner.model import BASELINE, Config, Measurement, Outcome, Phase, Side
from tuner.runner.request import Runner, TrialRequest, probe_window
from tuner.space.arguments import bound_knobs, parse, render
from tuner.space.declare import Known
from tuner.space.resolve import resolve, selected_names
from tuner.space.resolved import ResolvedSpace
from tuner.storage.database import NewTrial
from tuner.storage.folder import CHECKS, PROBE
from tuner.storage.lock import both_locks
from tuner.storage.moves import moving, place_beside, swap_folders
from tuner.study.baseline import baseline_error, blame_error, check_failure, keep_fault
from tuner.study.blame import Inquiry, Whose, may_be_ours
from tuner.study.context import StudyContext
from tuner.study.plan import StudyPlan

REAL = "the real loop"
LARGEST_SHARE = 0.15
"""Of the time for searching that a study's probe takes at most: the search needs it more."""


def probe(
    plan: StudyPlan, runner: Runner, tell: Callable[[str, Outcome], None], stop: threading.Event
) -> tuple[Bottleneck, ResolvedSpace, int | None]:
    """Up to four runs in fresh processes, each once more where others disturbed it: what holds the loop up, what can be
    turned, the bytes left below the limit.

    ``tell`` gets each run's name and outcome. Raises ``UserScriptError`` and ``UntunableError`` where the real loop
    gives no figure, ``Interrupted`` when ``stop`` is set, and the errors of the locks.
    """
    placeholders = parse(plan.script.argv)
    with both_locks(plan.folder, plan.device):
        bound = bound_knobs(placeholders)
        knowledge = first_knowledge(bound)

        def run(name: str, config: Config, side: ProbeSide | None = None) -> Outcome:
            script = replace(plan.script, argv=render(plan.script.argv, knowledge.given(config)))
            window = probe_window(plan.window) if side else plan.window
            folder = plan.folder / PROBE / name
            request = TrialRequest(
                folder, script, plan.device, config, knowledge, window, plan.limits, probe=side, without=plan.without,
                ranks=plan.ranks,
            )  # fmt: skip
            outcome = _undisturbed(plan, runner, request, stop)
            tell(name, outcome)
            if name == REAL and (not outcome.complete or outcome.measurement is None):
                raise _real_error(plan, request, outcome, lambda check: runner.run(check, stop))
            return outcome

        real = run(REAL, BASELINE)
        assert real.measurement is not None
        knowledge = with_arguments(replace(real.knowledge, effective_batch="free"), bound)
        asked = replace(knowledge, effective_batch=plan.effective_batch)  # what a study would turn, told as it does
        known = Known(plan.device, plan.cores_of_a_rank, knowledge=asked, ranks=plan.ranks)
        chosen = plan.spaces.chosen(knowledge, placeholders, selected_names(plan.selection))
        space = resolve(chosen, known, selection=plan.selection)
        measured = _measure(knowledge, lambda side, config: run(SIDE_TEXT[side], config, side.in_child))
        found = find_bottleneck(real.measurement, measured, plan.host, len(real.knowledge.training_loaders))
        return found, space, _headroom(plan, real.measurement)


def _undisturbed(plan: StudyPlan, runner: Runner, request: TrialRequest, stop: threading.Event) -> Outcome:
    """The run's outcome; that of a second one where others disturbed the first, and it came out calmer."""
    first = runner.run(request, stop)
    if not contamination(first, plan.host):
        return first
    aside = place_beside(request.folder, "disturbed")
    with moving(plan.folder):
        request.folder.rename(aside)
    second = runner.run(request, stop)
    if second.complete and disturbance(second, plan.host) <= disturbance(first, plan.host):
        return second
    with moving(plan.folder):
        swap_folders(request.folder, aside)
    return first


def _real_error(
    plan: StudyPlan, request: TrialRequest, outcome: Outcome, run: Callable[[TrialRequest], Outcome]
) -> Exception:
    """The error for a real loop that gives no figure, by whose fault that is. Raises ``Interrupted``."""
    if not may_be_ours(outcome):
        return baseline_error(outcome, request.folder)
    check_failure(outcome, plan)
    verdict = Inquiry(request, outcome, plan.folder / CHECKS, run).verdict()
    fault = keep_fault(plan.folder, outcome, verdict) if verdict.whose is Whose.OURS else None
    error = blame_error(outcome, verdict, request.folder, fault)
    if verdict.ways:
        names = ",".join(sorted(verdict.ways[0]))
        error.hint = f"--without {names} leaves out what breaks it; please report it, with {fault}"
    return error


def probe_study(study: StudyContext) -> None:
    """Sets ``study.bottleneck``, by runs that are trials like any other. Raises as ``StudyContext.execute``.

    Once the search has begun, what was measured until then counts. None, with a note of why, where nothing was.
    """
    assert study.space is not None
    if not study.space.axes and not study.space.pinned:
        return
    if study.plan.probe and len(study.searched) < 2:
        obstacle = _obstacle(study)
        if obstacle:
            study.note(f"no probe: {obstacle}")
        else:
            _measure(study.knowledge, lambda side, config: _outcome(study, side, config))
    tell_bottleneck(study)


def tell_bottleneck(study: StudyContext) -> None:
    """Tells what holds the script up, where that is news: a calm run of it may have taken a disturbed one's place."""
    found = bottleneck_of(study.trials, study.plan.host)
    if found is not None and found != study.bottleneck:
        study.bottleneck = found
        study.tell(Probed(found))


def _outcome(study: StudyContext, side: Side, config: Config) -> Outcome:
    trial = study.run_once(_new_trial(side, config))
    assert trial.outcome is not None
    return trial.outcome


def _new_trial(side: Side, config: Config) -> NewTrial:
    return NewTrial(Phase.PROBE, config, SIDE_TEXT[side], side=side)


def _obstacle(study: StudyContext) -> str:
    """Why a study isn't probed, or ""."""
    configs = sides(study.knowledge)
    if not configs:
        return "no loader is seen to feed the training"
    missing = [side for side, config in configs.items() if study.store.find(_new_trial(side, config)) is None]
    probe_s, search_s = len(missing) * study.time.runs.probe_s(), study.time.search_s()
    if search_s == 0 and missing:
        return f"no time is left for searching{' beside the proof' if study.time.left_s else ''}"
    if search_s is not None and probe_s > LARGEST_SHARE * search_s:
        return f"it takes about {seconds_text(probe_s)}, too much of the {seconds_text(search_s)} for searching"
    return ""


def _measure(knowledge: Knowledge, run: Callable[[Side, Config], Outcome]) -> dict[Side, Measurement]:
    """The sides that gave a figure."""
    measured: dict[Side, Measurement] = {}
    for side, config in sides(knowledge).items():
        if side is Side.HALF and Side.COMPUTE not in measured:
            continue  # there is nothing to hold it against
        outcome = run(side, config)
        if outcome.complete and outcome.measurement is not None:
            measured[side] = outcome.measurement
    return measured


def _headroom(plan: StudyPlan, real: Measurement) -> int | None:
    """Bytes between what the script takes and its limit, of the device or of the host."""
    if kind_of(plan.device).own_memory:
        limit, peak = plan.limits.max_device_bytes, real.peak_device_bytes
    else:
        limit, peak = plan.limits.max_host_bytes, real.peak_host_bytes
    return None if limit is None or peak is None else limit - peak
