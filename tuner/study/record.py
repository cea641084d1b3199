"""Records a grid: a trial of every config of a script's search space, so that samplers can be judged on what is known.

The trials are those of a study's search, by turns with the script as written, with a short window of one length: what
is lost in precision by that is won in configs, and no config ends early for being slow. They lie in a study's folder of
their own, and a recording that was interrupted or killed goes on where it was.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tuner import __version__
from tuner.analysis.measurement import Beside, Slices, slices_of
from tuner.analysis.turns import Turn
from tuner.errors import UsageError
from tuner.events import Listener
from tuner.formatting import value_text
from tuner.masking import masked
from tuner.model import BASELINE, Config, Measurement, Phase, Trial, Value
from tuner.runner.grid_replay import GridReplay
from tuner.runner.request import Interrupted, Runner
from tuner.space.choose import Spaces
from tuner.space.declare import Known, SearchSpace
from tuner.space.resolved import ResolvedSpace
from tuner.storage.database import NewTrial
from tuner.storage.folder import RECORDS, REFERENCE, REFERENCE_RESOURCES, RESOURCES, trial_folder
from tuner.storage.grid import SCHEMA, Grid, GridEvidence, GridHeader, GridReading, GridRow
from tuner.storage.grid_space import MOST_CONFIGS, configs_of, knobs_of
from tuner.storage.records import read_records, read_resources
from tuner.study.baseline import measure_baseline
from tuner.study.context import StudyContext
from tuner.study.lengths import turn_length_s, window_s
from tuner.study.plan import StudyPlan
from tuner.study.probe import probe_study
from tuner.study.run import opened
from tuner.study.search_space import resolve_space

WHY = "recorded"
LONGEST_DETAIL = 160
_MACHINE = frozenset({"platform", "kernel"})
"""What of a study's software is the machine's own: a grid is made to be given away."""


@dataclass(frozen=True)
class Recording:
    """How a grid is recorded: so many ``configs``, chosen at random where the space has more, all with None;
    ``seconds`` for all of it, None without a bound; of each trial ``window_s`` are measured, after ``warmup_s``.

    ``among``: a grid of the same space, whose fastest configs are chosen instead: a longer window tells them apart.
    """

    configs: int | None = None
    among: Grid | None = None
    seconds: float | None = None
    window_s: float = 1.0
    warmup_s: float = 0.5


def narrowed(spaces: Spaces, values: Mapping[str, Sequence[Value]]) -> Spaces:
    """The spaces with these values of knobs, in place of those that they would offer; the script's own stays one.

    Raises ``UnknownKnobError`` for a name that none of the spaces has, ``UsageError`` for a value that no script takes.
    """

    def narrow(space: SearchSpace) -> SearchSpace:
        knobs = []
        for knob in space.knobs:
            chosen = values.get(knob.name)
            for value in chosen or ():
                knob.check(value)
            knobs.append(knob if chosen is None else replace(knob, choices=_always(chosen)))
        return replace(space, knobs=tuple(knobs))

    spaces.check({}, tuple(values), {})
    return replace(spaces, declared=tuple(map(narrow, spaces.declared)))


def _always(values: Sequence[Value]) -> Callable[[Known], Sequence[Value]]:
    return lambda known: values


def record(
    plan: StudyPlan,
    recording: Recording,
    runner: Runner,
    listener: Listener,
    stop: threading.Event,
    *,
    clock: Callable[[], float] = time.monotonic,
) -> Grid:
    """Runs what is left to run, and gives all that was recorded: complete, or what there is when ``stop`` is set or the
    time is up. The script as written is run in any case.

    Raises ``UsageError`` for a space that is too large to be recorded as a whole and for a grid of another script,
    space or number of ranks to choose among, ``Interrupted`` where not even the script as written was measured, and
    otherwise as ``run_study``.
    """
    if recording.among is not None:
        _check_script(plan, recording.among)
    plan = _plan_of(plan, recording)
    with opened(plan, runner, listener, stop, clock=clock) as study:
        study.races = False
        measure_baseline(study)
        resolve_space(study)
        assert study.space is not None
        configs = chosen_configs(study.space, recording.configs, plan.seed, recording.among)
        try:
            probe_study(study)
            _run(study, configs, recording)
        except Interrupted:
            stop.set()
        return grid_of(study, configs, recording)


def chosen_configs(space: ResolvedSpace, count: int | None, seed: int, among: Grid | None = None) -> list[Config]:
    """The configs to record, in the order in which they are: at random, so that nothing goes with the hour.

    The script as written isn't among them. Raises ``UsageError`` where there are too many to go through, and where
    ``among`` (as in ``Recording``) is a grid of another space.
    """
    if space.size > MOST_CONFIGS:
        raise UsageError(
            f"the space spans {space.size:,} configs, of which {MOST_CONFIGS:,} can be gone through",
            hint="name fewer knobs (--knobs) or fewer of their values (--values KNOB=A,B)",
        )
    configs = [config for config in configs_of(space) if config != BASELINE]
    if among is not None:
        configs = _fastest(configs, space, among)[:count]
    random.Random(seed).shuffle(configs)
    return configs[:count]


def _fastest(configs: Sequence[Config], space: ResolvedSpace, among: Grid) -> list[Config]:
    """Those that ran in that grid, the fastest first."""
    recorded = {knob.name: knob.values for knob in among.header.knobs}
    spans = {axis.knob.name: axis.values for axis in space.axes}
    for name in sorted({*recorded, *spans}):
        if recorded.get(name) != spans.get(name):
            ours, theirs = _values_text(spans, name), _values_text(recorded, name)
            raise UsageError(
                f"--among: {among.place} has {theirs}, and this search {ours}",
                hint="give the knobs and values that the grid was recorded with",
            )
    replay = GridReplay(among)
    gains = {config: replay.true_gain(config) for config in configs if config in among.configs}
    return sorted((config for config, gain in gains.items() if gain > 0), key=lambda config: -gains[config])


def _check_script(plan: StudyPlan, among: Grid) -> None:
    """Raises ``UsageError`` where the grid is of another script, of another version of it, of other arguments, or of
    another number of ranks.
    """
    header = among.header
    if header.ranks != plan.ranks:
        raise UsageError(
            f"--among: {among.place} was recorded in {header.ranks} ranks, and this search is of {plan.ranks}",
            hint=f"a choice of its fastest is one for as many: --ranks {header.ranks}",
        )
    if (header.script_sha256, header.arguments) != (plan.script.sha256, masked(plan.script.argv)):
        command = " ".join((header.script, *header.arguments))
        raise UsageError(
            f"--among: {among.place} was recorded with {command}, and its text or arguments are others now",
            hint="record the grid anew, or give what it was recorded with",
        )


def _values_text(values: Mapping[str, Sequence[Value]], name: str) -> str:
    return f"{name}={','.join(map(value_text, values[name]))}" if name in values else f"no {name}"


def grid_of(study: StudyContext, configs: Sequence[Config], recording: Recording) -> Grid:
    """What was recorded of these configs so far."""
    recorded = [trial for trial in study.trials if trial.phase in (Phase.BASELINE, Phase.PROBE)]
    wanted = frozenset(configs)
    seen = set[Config]()
    for trial in study.trials:
        if trial.phase is Phase.SEARCH and trial.config in wanted and trial.config not in seen:
            seen.add(trial.config)
            recorded.append(trial)
    rows = tuple(_row(trial, study) for trial in recorded)
    return Grid(_header(study, recording, len(configs), complete=len(seen) == len(configs)), rows)


def _plan_of(plan: StudyPlan, recording: Recording) -> StudyPlan:
    """The plan with the short window; what bounds it is held against between trials, and none is cut short by it."""
    # A search trial by turns has a share of the longest window.
    share = window_s(plan, Phase.SEARCH, by_turns=True) / plan.window.max_s
    window = replace(plan.window, max_s=recording.window_s / share, warmup_s=recording.warmup_s)
    return replace(plan, trials=None, budget_s=None, window=window)


def _run(study: StudyContext, configs: Sequence[Config], recording: Recording) -> None:
    left = (config for config in configs if study.store.find(NewTrial(Phase.SEARCH, config)) is None)
    for place, config in enumerate(left):
        while (interrupted := study.claim()) is not None:
            study.execute(interrupted)
        if recording.seconds is not None and study.budget.elapsed(study.clock()) >= recording.seconds:
            study.note("the time for recording is used up: the same command with more of it goes on")
            return
        if study.executor.obstacle and place % study.plan.anchor_every == 0:
            study.run(NewTrial(Phase.ANCHOR, BASELINE, "drift check"))
        if study.store.find(NewTrial(Phase.SEARCH, config)) is None:
            study.run(NewTrial(Phase.SEARCH, config, WHY))


def _header(study: StudyContext, recording: Recording, count: int, *, complete: bool) -> GridHeader:
    plan, space, bottleneck = study.plan, study.space, study.bottleneck
    assert space is not None
    path = Path(plan.script.path)
    return GridHeader(
        schema=SCHEMA, name=plan.name, version=__version__, recorded=time.strftime("%Y-%m-%d", time.gmtime()),
        # Of a path that starts at the root the folders are nobody's business.
        script=plan.script.module or (path.name if path.is_absolute() else str(path)),
        script_sha256=plan.script.sha256, arguments=masked(plan.script.argv), device_kind=plan.device.kind,
        device_name=plan.device.name, memory_bytes=plan.device.memory_bytes, cores=plan.cores,
        software={name: version for name, version in plan.software.items() if name not in _MACHINE},
        space=space.space.name, framework=study.knowledge.framework,
        effective_batch=plan.effective_batch, knobs=knobs_of(space), as_written=dict(study.knowledge.as_written),
        pinned=dict(space.pinned), configs=count, complete=complete, seed=plan.seed, window_s=recording.window_s,
        warmup_s=recording.warmup_s, turn_s=turn_length_s(plan, study.knowledge),
        trial_timeout_s=plan.limits.trial_timeout_s, max_host_bytes=plan.limits.max_host_bytes,
        max_device_bytes=plan.limits.max_device_bytes,
        bottleneck=str(bottleneck.bound) if bottleneck is not None else "",
        input_share=bottleneck.input_share if bottleneck is not None else None,
        notes=() if recording.among is None else (f"the fastest configs of {Path(recording.among.place).name}",),
        ranks=plan.ranks,
    )  # fmt: skip


def _row(trial: Trial, study: StudyContext) -> GridRow:
    outcome = trial.outcome
    assert outcome is not None, "it is finished"
    detail = outcome.detail.splitlines()[0][:LONGEST_DETAIL] if outcome.detail else ""
    return GridRow(
        config=dict(trial.config), kind=outcome.kind, seconds=outcome.seconds, reason=outcome.reason,
        detail="" if "/" in detail else detail, side=trial.side,
        reading=_reading(trial, outcome.measurement, study) if outcome.measurement is not None else None,
    )  # fmt: skip


def _reading(trial: Trial, measurement: Measurement, study: StudyContext) -> GridReading:
    slices = _slices(trial, measurement, study.plan.folder)
    return GridReading(
        unit=measurement.unit,
        pairs=tuple(
            (own.amount, own.seconds, own.lost, other.amount, other.seconds, other.lost) for own, other in slices.pairs
        ),
        blocks=tuple((block.amount, block.seconds) for block in slices.blocks),
        reference_rate=None if slices.pairs or trial.side is not None else study.track.reference(trial.number),
        steps_per_s=measurement.steps_per_s, wait_share=measurement.data_wait_share,
        host_bytes=measurement.peak_host_bytes, device_bytes=measurement.peak_device_bytes,
        first_step_s=measurement.first_step_s, compile_s=measurement.compile_s,
        compile_cache=measurement.compile_cache, warmup_s=slices.warmup_s,
        cpu_s_per_sample=measurement.cpu_s_per_sample, foreign_cpus=measurement.foreign_cpus,
        wanted_cpus=measurement.wanted_cpus, steady=measurement.steady,
        knobs=tuple(
            GridEvidence(each.knob, each.evidence, each.sites_seen, each.sites_changed, each.of_value)
            for each in measurement.knobs
        ),
    )  # fmt: skip


def _slices(trial: Trial, measurement: Measurement, folder: Path) -> Slices:
    """From the trial's raw files; its blocks where these are gone."""
    raw = trial_folder(folder, trial.number)
    beside = Beside(read_records(raw / REFERENCE), read_resources(raw / REFERENCE_RESOURCES))
    slices = slices_of(read_records(raw / RECORDS), read_resources(raw / RESOURCES), beside)
    if slices is not None:
        return slices
    return Slices((), tuple(Turn(0, block.samples, block.seconds) for block in measurement.blocks), 0.0)
