"""A study has configs take turns in one process before its search: what that ranks, and what it leaves out."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support import worlds
from support.in_process import Log
from support.learning import searched
from support.switching import Willing

from tuner.analysis.rotation import ENDED, TOO_FEW
from tuner.child.clock import StepClock
from tuner.child.rotation import Rotation
from tuner.child.rounds import turns_of
from tuner.child.unison import RANKS_APART
from tuner.events import Event, Noted
from tuner.knowledge import Knowledge
from tuner.model import BASELINE, Config, Outcome, OutcomeKind, Phase, Ratio, Rotated, Trial
from tuner.objective import Objective
from tuner.report.summary import summary
from tuner.report.trials import TrialsReport
from tuner.result import StudyResult
from tuner.runner.replay import ReplayRunner
from tuner.runner.request import Limits, TrialRequest
from tuner.search.history import History
from tuner.search.rotation import FEWEST_STEPS, is_outranked, loses, next_rotation, ranking_of
from tuner.search.structured import StructuredSampler
from tuner.space.choose import Spaces
from tuner.space.declare import Knob, Known, SearchSpace
from tuner.space.resolve import resolve
from tuner.space.resolved import ResolvedSpace
from tuner.study.context import StudyContext
from tuner.study.lengths import rotation_s, rotation_window
from tuner.study.run import run_study

SPACE = SearchSpace(
    "made-up",
    "none",
    (
        Knob("workers", lambda known: [0, 1, 2, 4, 8], "loader workers", ordered=True, loader=True),
        Knob("precision", lambda known: ["fp32", "bf16", "fp16"], "precision", switchable=True),
        Knob("layout", lambda known: [False, True], "layout", switchable=True),
        Knob("threads", lambda known: [1, 2], "threads", ordered=True, switchable=True),
        Knob("compile", lambda known: ["default", "max"], "compiler", late=True),
    ),
)  # fmt: skip
WRITTEN = {**worlds.WRITTEN, "threads": 2}
TRUTH = {("precision", "bf16"): 1.7, ("precision", "fp16"): 0.5, ("layout", True): 1.15, ("threads", 1): 0.6}
LAYOUT, ONE, BOTH = Config(layout=True), Config(threads=1), Config(precision="bf16", layout=True)
BF16, FP16 = Config(precision="bf16"), Config(precision="fp16")
RateOf = Callable[[Config], float]


def space(**pinned: object) -> ResolvedSpace:
    known = Known(worlds.DEVICE, 8, knowledge=replace(worlds.measured(1.0).knowledge, as_written=WRITTEN))
    return resolve(SPACE, known, pinned=pinned)  # type: ignore[arg-type]


def truth(config: Config) -> float:
    return math.prod(TRUTH.get(each, 1.0) for each in config.items())


def outcome_of(config: Config, rate_of: RateOf = truth) -> Outcome:
    outcome = with_steps(worlds.measured(1000 * rate_of(config)), FEWEST_STEPS)
    return replace(outcome, knowledge=replace(outcome.knowledge, as_written=WRITTEN))


def with_steps(outcome: Outcome, steps: int, unevenness: float = 0.0) -> Outcome:
    """So many in each block, of which every other one has that share more, and the next one less."""
    assert outcome.measurement is not None
    blocks = tuple(
        replace(block, steps=steps, samples=block.samples * (1 + (-1) ** number * unevenness))
        for number, block in enumerate(outcome.measurement.blocks)
    )
    return replace(outcome, measurement=replace(outcome.measurement, blocks=blocks))


def rotated(configs: Iterable[Config], *, broke: Config | None = None, rate_of: RateOf = truth) -> Outcome:
    """What a rotation of these is made up to say; ``broke``: in whose first turn the process ended."""
    configs = list(configs)
    if broke in configs:
        said = [Rotated(config, None, 0, ENDED if config == broke else TOO_FEW) for config in configs]
        return Outcome(OutcomeKind.CRASHED, "signal-9", "killed", rotation=tuple(said[: configs.index(broke) + 1]))
    gains = ((config, rate_of(config)) for config in configs)
    said = [Rotated(config, Ratio(gain, gain / 1.05, gain * 1.05), 5) for config, gain in gains]
    return replace(worlds.measured(1000), rotation=tuple(said))


class Rotating(ReplayRunner):
    """Several configs may take turns in one of its processes."""

    rotates = True

    def __init__(self, broke: Config | None = None, refuses: str = "", rate_of: RateOf = truth) -> None:
        super().__init__(lambda config: outcome_of(config, rate_of))
        self._broke, self._rate_of, self._refuses = broke, rate_of, refuses
        self.rotations: list[tuple[Config, ...]] = []

    def run(self, request: TrialRequest, stop: threading.Event) -> Outcome:
        outcome = super().run(request, stop)
        if not request.rotation:
            return outcome
        self.rotations.append(request.rotation)
        if self._refuses:
            return Outcome(OutcomeKind.INFEASIBLE, "unsupported", self._refuses)
        return rotated(request.rotation, broke=self._broke, rate_of=self._rate_of)


def study(
    folder: Path, runner: ReplayRunner, tell: Callable[[Event], None] = lambda event: None, **changes: Any
) -> StudyResult:
    plan = worlds.plan(folder, **{"spaces": Spaces((SPACE,)), "trials": 9, **changes})
    return run_study(plan, runner, StructuredSampler(), tell, threading.Event())


def test_each_value_then_combinations_of_what_helped_and_the_best_get_their_trials_first(tmp_path: Path) -> None:
    runner = Rotating()
    result = study(tmp_path, runner)
    assert runner.rotations[0] == (BF16, FP16, LAYOUT, ONE)
    assert runner.rotations[1:] == [] or all(len(config) > 1 for config in runner.rotations[1])
    assert searched(result)[0] == (BOTH if len(runner.rotations) > 1 else BF16)
    assert not any("fp16" in config.values() or config.get("threads") == 1 for config in searched(result))
    assert all(config.get("precision") == "bf16" for config in searched(result)), "nothing of the best is taken back"
    rotations = [trial for trial in result.trials if trial.phase is Phase.ROTATION]
    assert all(trial.config == BASELINE and trial.outcome and trial.outcome.rotation for trial in rotations)
    assert result.best is not None and result.best.config.get("precision") == "bf16"


def test_what_was_not_ranked_without_a_value_is_tried_without_it(tmp_path: Path) -> None:
    """Each value gains alone, and all three are ranked first; two of them aren't among the combinations."""
    knobs = tuple(
        Knob(name, lambda known: ["off", "on", "more"], name, switchable=True) for name in ("first", "second", "third")
    )

    def rate_of(config: Config) -> float:
        if len(config) == 3:
            return 1.8 + 0.05 * sum(value == "more" for value in config.values())
        return {0: 1.0, 1: 1.2}.get(len(config), 2.6 if config == Config(first="more", second="more") else 1.3)

    class AsWritten(Rotating):
        def run(self, request: TrialRequest, stop: threading.Event) -> Outcome:
            outcome = super().run(request, stop)
            written = dict.fromkeys(("first", "second", "third"), "off")
            return replace(outcome, knowledge=replace(outcome.knowledge, as_written=written))

    runner = AsWritten(rate_of=rate_of)
    result = study(tmp_path, runner, trials=16, spaces=Spaces((SearchSpace("three", "none", knobs),)))
    assert Config(first="more", second="more") not in runner.rotations[1]
    assert Config(first="more", second="more") in searched(result)


@pytest.mark.parametrize(("share", "made"), [(0.4, True), (0.7, False)])
def test_what_waits_for_its_data_first_needs_another_loader(tmp_path: Path, share: float, *, made: bool) -> None:
    """Another number format can't show there, and what makes the data can't be switched in a process."""

    class Waiting(Rotating):
        def run(self, request: TrialRequest, stop: threading.Event) -> Outcome:
            outcome = super().run(request, stop)
            if outcome.measurement is None:
                return outcome
            return replace(outcome, measurement=replace(outcome.measurement, data_wait_share=share))

    events: list[Event] = []
    runner = Waiting()
    study(tmp_path, runner, events.append)
    notes = [event.text for event in events if isinstance(event, Noted)]
    assert bool(runner.rotations) is made
    assert any("it waits for its data most of the time" in note for note in notes) is not made


def test_it_is_told_for_what_it_is(tmp_path: Path) -> None:
    result = study(tmp_path, Rotating())
    assert "configs ranked in one process" in summary(result, {}, "")
    report = TrialsReport(result.trials, worlds.OBJECTIVE)
    row = next(row for row in report.table().rows if row[1] == "rotation")
    assert "no proof" in row[3] and row[4] == "", "it is no trial with a gain"
    assert any("ranks configs and proves nothing" in line for line in report.footnotes())
    documents = [document for document in report.documents() if document["rotation"]]
    assert documents[0]["rotation"][0]["config"] == {"precision": "bf16"}


def test_what_is_no_rate_is_not_ranked_by_one(tmp_path: Path) -> None:
    """Where memory is bought, the slowest config may be the best one."""
    memory = Objective("memory", "bytes", False, lambda measurement: measurement.peak_host_bytes)
    runner = Rotating()
    result = study(tmp_path, runner, objective=memory)
    assert not runner.rotations
    assert any(config.get("threads") == 1 for config in searched(result))


def test_a_resumed_study_makes_none_again(tmp_path: Path) -> None:
    first = study(tmp_path, Rotating())
    runner = Rotating()
    again = study(tmp_path, runner)
    assert runner.rotations == [] and len(again.trials) == len(first.trials)


def test_without_a_runner_that_can_the_study_goes_as_before(tmp_path: Path) -> None:
    result = study(tmp_path, ReplayRunner(outcome_of))
    assert not any(trial.phase is Phase.ROTATION for trial in result.trials)
    assert any("threads" in config for config in searched(result))


def test_a_script_that_refuses_it_is_searched_as_before(tmp_path: Path) -> None:
    told: list[Event] = []
    runner = Rotating(refuses="no rotation: it scales its gradients itself")
    result = study(tmp_path, runner, told.append)
    assert len(runner.rotations) == 1 and any("threads" in config for config in searched(result))
    assert any(isinstance(event, Noted) and "scales its gradients" in event.text for event in told)


def test_an_error_in_one_costs_one_process_and_the_others_go_on(tmp_path: Path) -> None:
    runner = Rotating(broke=FP16)
    result = study(tmp_path, runner)
    assert runner.rotations[1] == (BF16, LAYOUT, ONE)
    assert len(runner.rotations) <= 3 and searched(result)
    told = {each.config: each for trial in result.trials if trial.outcome for each in trial.outcome.rotation}
    assert told[FP16].fault == ENDED and told[BF16].gain is not None


def test_ranks_that_come_apart_in_one_have_no_other(tmp_path: Path) -> None:
    class Apart(Rotating):
        def run(self, request: TrialRequest, stop: threading.Event) -> Outcome:
            outcome = super().run(request, stop)
            return replace(outcome, kind=OutcomeKind.INFEASIBLE, reason=RANKS_APART) if request.rotation else outcome

    study(tmp_path, runner := Apart(), ranks=2)
    assert len(runner.rotations) == 1


def test_one_that_takes_too_long_is_ended_and_none_follows(tmp_path: Path) -> None:
    """A format that a processor emulates may take sixty times as long; what was foreseen is forty seconds at most."""
    ends: list[float] = []

    class Late(Rotating):
        def run(self, request: TrialRequest, stop: threading.Event) -> Outcome:
            outcome = super().run(request, stop)
            if request.rotation:
                ends.append(request.ends_by - time.monotonic())
                return replace(outcome, kind=OutcomeKind.UNFINISHED, rotation=rotated([BF16], broke=BF16).rotation)
            return outcome

    result = study(tmp_path, Late(), budget_s=300.0)
    assert len(ends) == 1 and ends[0] < 150.0
    assert not any(isinstance(trial.outcome, Outcome) and trial.outcome.reason for trial in result.trials)


def test_what_a_rotation_takes_of_memory_is_none_of_the_script_as_written(monkeypatch: pytest.MonkeyPatch) -> None:
    def taking(number: int, phase: Phase, peak: int) -> Trial:
        outcome = worlds.measured(1.0)
        assert outcome.measurement is not None
        measurement = replace(outcome.measurement, peak_host_bytes=peak)
        return Trial(number, phase, BASELINE, outcome=replace(outcome, measurement=measurement))

    monkeypatch.setattr("tuner.study.context.host_memory", lambda: (100, 100))
    context: Any = SimpleNamespace(
        executor=SimpleNamespace(obstacle="", kept_bytes=0), baseline=object(),
        trials=[taking(0, Phase.BASELINE, 30), taking(1, Phase.ROTATION, 90)],
        plan=SimpleNamespace(limits=Limits()), knowledge=Knowledge(),
    )  # fmt: skip
    assert StudyContext._may_be_alive(context, [BASELINE, BF16])


def finished(*outcomes: Outcome) -> list[Trial]:
    return [Trial(number, Phase.ROTATION, BASELINE, outcome=outcome) for number, outcome in enumerate(outcomes, 1)]


def test_what_is_rotated_follows_from_what_was() -> None:
    singles = next_rotation(space(), [])
    assert singles == (BF16, FP16, LAYOUT, ONE)
    assert next_rotation(space(precision="bf16"), []) == (), "nothing of it is as written"
    ranked = finished(rotated(singles))
    assert next_rotation(space(), ranked) in ((BOTH,), ()), "one combination is a trial's business"
    broken = rotated(singles, broke=FP16)
    left = next_rotation(space(), finished(broken))
    assert left == (BF16, LAYOUT, ONE)
    assert next_rotation(space(), finished(broken, rotated(left, broke=LAYOUT))) == (), "once only"
    assert next_rotation(space(), finished(Outcome(OutcomeKind.CRASHED))) == ()


@pytest.mark.parametrize(("alone", "combined"), [(0.88, True), (0.7, False)])
def test_a_value_is_combined_unless_it_is_sure_to_do_harm(alone: float, *, combined: bool) -> None:
    """A rotation's ratio may be off by a fifth, and a value may gain in company what it costs alone."""

    def rate_of(config: Config) -> float:
        return {BF16: 1.7, FP16: 0.4, LAYOUT: alone, ONE: 1.1}[config]

    following = next_rotation(space(), finished(rotated([BF16, FP16, LAYOUT, ONE], rate_of=rate_of)))
    assert (BOTH in following) is combined
    assert not any("fp16" in config.values() for config in following)


@pytest.mark.parametrize("step_s", [0.015, 0.045])
def test_one_in_which_all_configs_stay_takes_what_was_foreseen(tmp_path: Path, step_s: float) -> None:
    """Turns are a little shorter than foreseen, or longer."""
    outcome, plan = worlds.measured(1000), worlds.plan(tmp_path)
    assert outcome.measurement is not None
    measurement = replace(outcome.measurement, steps_per_s=1 / step_s)
    baseline = Trial(0, Phase.BASELINE, BASELINE, outcome=replace(outcome, measurement=measurement))
    log, now, began = Log(), [0.0], 0.0
    clock = StepClock(log, rotation_window(plan, baseline, 5), clock=lambda: now[0])
    configs = [{"threads": threads} for threads in range(5)]
    clock.turns = rotation = Rotation(log, configs, Willing(), lambda why: None)
    while not clock.step():
        now[0] += step_s
        clock.add_samples(8, 0.0)
        began = began or now[0] * (rotation.current > 0)
    assert rotation.current == turns_of(5)
    assert now[0] - began == pytest.approx(rotation_s(plan, measurement, 5), rel=0.15)


@pytest.mark.parametrize(
    ("gain", "lost", "in_company"),
    [(0.4, True, True), (0.6, True, True), (0.7, True, False), (0.78, True, False), (0.9, False, False)],
)
def test_only_what_clearly_loses_is_left_out(gain: float, lost: bool, in_company: bool) -> None:
    """A rotation's ratio may be off by more than its interval; and what loses by itself may gain with others."""
    said = Rotated(ONE, Ratio(gain, gain * 0.97, gain * 1.03), 9)
    ranking = ranking_of(finished(replace(worlds.measured(1.0), rotation=(said,))))
    assert loses(ONE, ranking) == lost
    assert not loses(BF16, ranking) and not loses({**BF16, **ONE}, ranking), "nothing says how bf16 goes with it"
    other = Rotated(BF16, Ratio(1.0, 0.97, 1.03), 9)
    both = ranking_of(finished(replace(worlds.measured(1.0), rotation=(said, other))))
    assert loses({**BF16, **ONE}, both) == in_company
    assert not loses({**BF16, **ONE, "workers": 2}, both), "fewer threads leave a core to workers"


@pytest.mark.parametrize(("wait", "lost"), [(0.0, True), (0.1, True), (0.4, False)])
def test_computing_that_is_hidden_behind_the_wait_for_data_loses_nothing(wait: float, *, lost: bool) -> None:
    said = Rotated(ONE, Ratio(0.6, 0.59, 0.61), 9)
    assert loses(ONE, ranking_of(finished(replace(worlds.measured(1.0), rotation=(said,)))), wait) is lost


@pytest.mark.parametrize(
    ("steps", "unevenness", "foreign_cpus", "left_out"),
    [(4, 0.0, 0.0, True), (3, 0.0, 0.0, False), (40, 0.3, 0.0, False), (4, 0.1, 0.0, True), (4, 0.0, 1.0, False)],
)
def test_a_ranking_leaves_out_only_where_many_steps_alike_were_counted_and_nobody_disturbed_it(
    steps: int, unevenness: float, foreign_cpus: float, *, left_out: bool
) -> None:
    """A turn of few steps holds either the cheap or the dear ones of a loop: which of them is chance."""
    as_written = with_steps(outcome_of(BASELINE), steps, unevenness)
    rotation = rotated([ONE, BF16], rate_of=lambda config: 0.4 if config == ONE else 1.0)
    assert rotation.measurement is not None
    disturbed = replace(rotation, measurement=replace(rotation.measurement, foreign_cpus=foreign_cpus))
    trials = [Trial(0, Phase.BASELINE, BASELINE, outcome=as_written), *finished(disturbed)]
    history = History(space(), worlds.OBJECTIVE, trials)
    assert history.is_ruled_out(ONE) is left_out and history.is_outranked(ONE, BF16) is left_out
    assert not history.is_ruled_out(BF16)


def test_what_is_ranked_first_and_fails_takes_no_others_place() -> None:
    """A value that the script sets back, say, and each combination with it."""
    gains = {ONE: 3.0, Config({**BF16, **ONE}): 5.0, BF16: 1.5, LAYOUT: 1.45}
    rotation = rotated(gains, rate_of=lambda config: gains.get(config, 1.0))
    trials = [Trial(0, Phase.BASELINE, BASELINE, outcome=outcome_of(BASELINE)), *finished(rotation)]
    trials.append(Trial(2, Phase.SEARCH, ONE, outcome=worlds.infeasible("not-applied")))
    proposal = StructuredSampler().propose(History(space(), worlds.OBJECTIVE, trials))
    assert proposal is not None and proposal.config == BF16


def test_a_config_that_was_ranked_itself_is_judged_by_that() -> None:
    said = [Rotated(ONE, Ratio(0.3, 0.29, 0.31), 3), Rotated(Config({**BF16, **ONE}), Ratio(1.5, 1.4, 1.6), 3)]
    ranking = ranking_of(finished(replace(worlds.measured(1.0), rotation=tuple(said))))
    assert loses(ONE, ranking) and not loses({**BF16, **ONE}, ranking)


def test_a_layout_that_costs_by_itself_and_gains_with_a_format_is_found(tmp_path: Path) -> None:
    """As channels-last does on cards whose fast kernels for it compute in bf16."""

    def rate_of(config: Config) -> float:
        layout = {"bf16": 1.3, "fp32": 0.7}.get(str(config.get("precision", "fp32")), 0.7)
        return truth(Config({knob: value for knob, value in config.items() if knob != "layout"})) * (
            layout if config.get("layout") else 1.0
        )

    result = study(tmp_path, Rotating(rate_of=rate_of), trials=12)
    assert BOTH in searched(result)
    assert result.best is not None and result.best.config == BOTH


def test_what_is_ranked_clearly_below_another_is_outranked() -> None:
    ranking = ranking_of(finished(rotated([BF16, LAYOUT, BOTH])))
    assert list(ranking) == [BOTH, BF16, LAYOUT]
    assert is_outranked(LAYOUT, BOTH, ranking)
    assert not is_outranked(BF16, BOTH, ranking), "within what a rotation may be off"
    assert not is_outranked(ONE, BOTH, ranking) and not is_outranked(BOTH, LAYOUT, ranking)
