"""A study begins with a probe: on a made-up machine whose sides of the loop are known."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support import worlds
from support.learning import searched
from support.ran import of

from tuner.analysis.accuracy import AccuracyLimits
from tuner.analysis.bottleneck import Bottleneck, Bound, bottleneck_of, find_bottleneck
from tuner.child.records import ProbeSide
from tuner.cli import main
from tuner.devices.present import host_of
from tuner.errors import DeviceBusyError
from tuner.events import Event, Noted, Probed
from tuner.formatting import bottleneck_text
from tuner.model import BASELINE, Block, Config, Outcome, Phase, Side
from tuner.report.bottleneck import ProbeReport
from tuner.report.trials import TrialsReport
from tuner.result import StudyResult
from tuner.runner.replay import ReplayRunner
from tuner.runner.request import Interrupted, TrialRequest
from tuner.search.structured import StructuredSampler
from tuner.storage.lock import DeviceLock
from tuner.study.probe import REAL, probe
from tuner.study.run import run_study

ORDER = [Side.COMPUTE, Side.LOADER, Side.HALF]


class Loop(ReplayRunner):
    """A loop of so many samples per second, and each side of it; it seems to wait for ``wait`` of its time.

    A run of a side in ``broken`` fails. The study is interrupted as run number ``stop_at`` begins.
    """

    def __init__(
        self,
        sides: Mapping[Side, float],
        *,
        wait: float = 0.0,
        loaders: tuple[str, ...] = ("train",),
        broken: tuple[Side, ...] = (),
        stop_at: int = 0,
    ) -> None:
        super().__init__(self._rate)
        self._sides, self._wait, self._loaders, self._broken, self._stop_at = sides, wait, loaders, broken, stop_at

    def run(self, request: TrialRequest, stop: threading.Event) -> Outcome:
        if len(self.requests) + 1 == self._stop_at:
            raise Interrupted
        return super().run(request, stop)

    def _rate(self, config: Config) -> Outcome:
        side = self._side()
        if side in self._broken:
            return worlds.infeasible("device-oom")
        outcome = worlds.measured(self._sides[side] if side else 100.0, self._wait)
        assert outcome.measurement is not None
        # Steps take as long as their samples: half a batch of a rate of 100/s has twice the steps.
        size = int(config.get("batch_size", worlds.WRITTEN["batch_size"]))
        measurement = replace(outcome.measurement, steps_per_s=outcome.measurement.rate / size)
        knowledge = replace(outcome.knowledge, training_loaders=self._loaders)
        return replace(outcome, measurement=measurement, knowledge=knowledge)

    def _side(self) -> Side | None:
        request = self.requests[-1]
        if request.probe is ProbeSide.COMPUTE:
            return Side.HALF if request.config else Side.COMPUTE
        return Side.LOADER if request.probe else None

    @property
    def probes(self) -> list[tuple[ProbeSide, Config]]:
        """The sides that it was asked for."""
        return [(request.probe, request.config) for request in self.requests if request.probe]


EVEN = {Side.COMPUTE: 101.0, Side.LOADER: 1000.0, Side.HALF: 101.0}
OVERHEAD = {Side.COMPUTE: 101.0, Side.LOADER: 1000.0, Side.HALF: 51.0}


class Altered(Loop):
    """One whose measurements show the fields that ``fields_of`` gives for a side, None for the real loop."""

    def __init__(self, sides: Mapping[Side, float], fields_of: Callable[[Side | None], dict[str, Any]]) -> None:
        super().__init__(sides)
        self._fields_of = fields_of

    def _rate(self, config: Config) -> Outcome:
        outcome = super()._rate(config)
        assert outcome.measurement is not None
        return replace(outcome, measurement=replace(outcome.measurement, **self._fields_of(self._side())))


def study(folder: Path, loop: Loop, **changes: Any) -> tuple[StudyResult, list[Event]]:
    events: list[Event] = []
    unscreened = AccuracyLimits(max_loss_increase=None)
    plan = worlds.plan(folder, **{"probe": True, "trials": 6, "accuracy": unscreened, **changes})
    return run_study(plan, loop, StructuredSampler(), events.append, threading.Event()), events


def test_a_study_begins_with_its_probe(tmp_path: Path) -> None:
    loop = Loop(EVEN)
    result, events = study(tmp_path, loop)
    assert [t.phase for t in result.trials[:5]] == [Phase.BASELINE, *[Phase.PROBE] * 3, Phase.SEARCH]
    assert [t.side for t in result.trials[1:4]] == ORDER
    assert loop.probes == [
        (ProbeSide.COMPUTE, BASELINE), (ProbeSide.LOADER, BASELINE), (ProbeSide.COMPUTE, Config(batch_size=32)),
    ]  # fmt: skip
    windows = {request.probe: request.window for request in loop.requests[:4]}
    assert windows[ProbeSide.COMPUTE].max_s == windows[None].max_s / 4
    assert sum(t.phase in (Phase.BASELINE, Phase.SEARCH) for t in result.trials) == 6, "--trials doesn't count them"
    assert result.bottleneck == bottleneck_of(result.trials, host_of(worlds.DEVICE, 8))
    assert result.bottleneck is not None and result.bottleneck.bound is Bound.COMPUTE
    assert [event.bottleneck for event in of(events, Probed)] == [result.bottleneck]


def test_what_holds_it_up_is_told_anew_once_a_calm_run_takes_the_place_of_a_disturbed_one(tmp_path: Path) -> None:
    """The view of a study went on to show a bottleneck that its result didn't have any more."""

    class Calming(Loop):
        as_written = 0

        def _rate(self, config: Config) -> Outcome:
            outcome = super()._rate(config)
            assert outcome.measurement is not None
            if config or self._side() is not None:
                return outcome
            self.as_written += 1
            disturbed: dict[str, Any] = {"rate": 60.0, "data_wait_share": 0.5, "foreign_cpus": 6.0}
            disturbed = disturbed if self.as_written <= 2 else {}
            return replace(outcome, measurement=replace(outcome.measurement, **disturbed))

    result, events = study(tmp_path, Calming(EVEN), anchor_every=2)
    told = [event.bottleneck for event in of(events, Probed)]
    assert [bottleneck.bound for bottleneck in told] == [Bound.INPUT, Bound.COMPUTE]
    assert told[-1] == result.bottleneck


def test_a_probe_is_no_trial_of_a_config(tmp_path: Path) -> None:
    """The loader alone is ten times as fast as the loop, which makes it no candidate, no best and no gain."""
    result, _ = study(tmp_path, Loop(EVEN))
    assert result.best is not None and result.best.phase is Phase.BASELINE
    assert result.winner is None
    shown = {row[0]: row for row in TrialsReport(result.trials, worlds.OBJECTIVE).table().rows}
    assert shown["2"][1:3] == ["probe", "the loader alone"]
    assert shown["2"][4] == ""


@pytest.mark.parametrize("foreign_cpus", [0.0, 6.0])
def test_trials_tells_the_bottleneck_that_the_study_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], foreign_cpus: float
) -> None:
    """A kept batch came out no faster than the loop, which waits for half of its time: on a CPU that costs it half."""

    def fields(side: Side | None) -> dict[str, Any]:
        return {"data_wait_share": 0.0 if side else 0.5, "foreign_cpus": 0.0 if side else foreign_cpus}

    result, _ = study(tmp_path, Altered(EVEN, fields))
    assert result.bottleneck is not None
    told = bottleneck_text(result.bottleneck)
    assert "would give 2.00x" in told and ("disturbed" in told) is (foreign_cpus > 0)
    assert main(["trials", str(tmp_path)]) == 0
    assert told in capsys.readouterr().out.splitlines()


@pytest.mark.slow  # 2 s beside three others
def test_a_probe_that_was_broken_off_goes_on(tmp_path: Path) -> None:
    whole, _ = study(tmp_path / "whole", Loop(EVEN))
    for stop_at in (2, 3, 4):
        folder = tmp_path / str(stop_at)
        first, _ = study(folder, Loop(EVEN, stop_at=stop_at))
        assert first.interrupted
        assert len(first.trials) == stop_at - 1
        again, _ = study(folder, loop := Loop(EVEN))
        assert [(t.phase, t.side) for t in again.trials[:4]] == [(t.phase, t.side) for t in whole.trials[:4]]
        assert len(loop.probes) == 5 - stop_at, "none was run twice"
        assert again.bottleneck == whole.bottleneck


@pytest.mark.parametrize(
    ("loop", "changes", "note"),
    [
        (Loop(EVEN, loaders=()), {}, "no probe: no loader is seen to feed the training"),
        (Loop(EVEN), {"budget_s": 150.0}, "no probe: it takes about 30 s, too much of the 1 min 30 s for searching"),
        (Loop(EVEN), {"budget_s": 1e-6}, "no probe: no time is left for searching"),
        (Loop(EVEN), {"probe": False}, ""),
    ],
)
def test_where_there_is_no_probe_it_says_why(tmp_path: Path, loop: Loop, changes: dict[str, Any], note: str) -> None:
    result, events = study(tmp_path, loop, **changes)
    assert loop.probes == []
    assert result.bottleneck is None
    noted = [n.text for n in of(events, Noted) if n.text.startswith("no probe")]
    # A machine with other work took seconds of the budget by then.
    noted = [re.sub(r"1 min 2\d s", "1 min 30 s", text) for text in noted]
    assert noted == ([note] if note else [])


def test_a_study_that_searches_already_is_not_probed_later(tmp_path: Path) -> None:
    study(tmp_path, Loop(EVEN), probe=False, trials=3)
    loop = Loop(EVEN)
    result, _ = study(tmp_path, loop, trials=5)
    assert loop.probes == []
    assert sum(t.phase is Phase.SEARCH for t in result.trials) == 4


def test_a_side_that_fails_is_left_out(tmp_path: Path) -> None:
    loop = Loop(EVEN, broken=(Side.COMPUTE,))
    result, _ = study(tmp_path, loop)
    assert [side for side, _ in loop.probes] == [ProbeSide.COMPUTE, ProbeSide.LOADER]
    assert result.bottleneck is not None
    assert (result.bottleneck.compute, result.bottleneck.loader) == (None, 1000.0)


def test_a_wait_that_costs_nothing_is_not_worth_a_loader(tmp_path: Path) -> None:
    """The host waits for 30% of the time, while the device computes: a kept batch is no faster."""
    card = worlds.device("hidden")
    hidden, _ = study(tmp_path / "hidden", Loop(EVEN, wait=0.3), device=card)
    assert not any("workers" in config for config in searched(hidden))
    shown, _ = study(tmp_path / "shown", Loop({**EVEN, Side.COMPUTE: 143.0}, wait=0.3))
    assert "workers" in searched(shown)[0]
    blind, _ = study(tmp_path / "blind", Loop(EVEN, wait=0.3), probe=False)
    assert "workers" in searched(blind)[0]


@pytest.mark.parametrize("compute", [101.0, 57.0])
def test_while_the_host_waits_nothing_computes_whatever_a_probe_says(tmp_path: Path, compute: float) -> None:
    """A kept batch is no faster, since it is longer than most: the loop waits for a third of its time all the same."""
    result, _ = study(tmp_path, Loop({**EVEN, Side.COMPUTE: compute}, wait=1 / 3))
    found = result.bottleneck
    assert found is not None and found.bound is Bound.INPUT and not found.hides_its_wait
    assert found.most_from_input == pytest.approx(1.5)
    assert "workers" in searched(result)[0]


@pytest.mark.parametrize(
    ("compute", "error", "foreign_cpus", "hidden"),
    [(101.0, 0.02, 0.0, True), (57.0, 0.02, 0.0, False), (101.0, 0.4, 0.0, False), (101.0, 0.02, 7.0, False)],
)
def test_a_card_computes_on_while_the_host_waits_as_far_as_the_readings_tell(
    compute: float, error: float, foreign_cpus: float, *, hidden: bool
) -> None:
    """Not where a kept batch was slower by far, where it may be as fast as the wait says, or others disturbed it."""
    outcome = worlds.measured(100.0, 0.3).measurement
    assert outcome is not None
    real = replace(outcome, low=100.0 / (1 + error), high=100.0 * (1 + error))
    kept = replace(real, rate=compute, low=compute / (1 + error), high=compute * (1 + error), foreign_cpus=foreign_cpus)
    host = host_of(worlds.device("card"), 8)
    found = find_bottleneck(real, {Side.COMPUTE: kept}, host)
    assert found.hides_its_wait is hidden
    assert bool(found.disturbed) is bool(foreign_cpus)
    assert not find_bottleneck(real, {Side.COMPUTE: kept}, host_of(worlds.DEVICE, 8)).hides_its_wait


def test_a_step_costs_more_than_its_samples_only_as_far_as_the_readings_tell() -> None:
    """By half a batch that is off by 2% the share of a step is off by 4%."""

    def found(half_steps: float, error: float, foreign_cpus: float = 0.0) -> Bottleneck:
        outcome = worlds.measured(100.0).measurement
        assert outcome is not None
        whole = replace(outcome, steps_per_s=10.0, low=100.0 / (1 + error), high=100.0 * (1 + error))
        half = replace(whole, steps_per_s=half_steps, foreign_cpus=foreign_cpus)
        return find_bottleneck(outcome, {Side.COMPUTE: whole, Side.HALF: half}, host_of(worlds.DEVICE, 8))

    def bound(half_steps: float, error: float, foreign_cpus: float = 0.0) -> Bound:
        return found(half_steps, error, foreign_cpus).bound

    assert bound(12.9, 0.01) is Bound.OVERHEAD, "55% of a step"
    assert bound(12.9, 0.05) is bound(12.9, 0.01, foreign_cpus=4.0) is Bound.COMPUTE
    assert bound(10.5, 0.05) is Bound.OVERHEAD
    shares = [found(half_steps, 0.01, foreign_cpus=4.0).overhead_share for half_steps in (12.9, 5.0, 40.0, 21.0)]
    assert shares == [pytest.approx(0.55, abs=0.01), None, None, 0.0], "twice as long as a whole one, a quarter of it"
    assert [found(half_steps, 0.01).overhead_share for half_steps in (5.0, 40.0)] == [1.0, 0.0]


def test_data_that_are_prepared_on_the_cores_that_compute_hold_the_loop_up_without_a_wait(tmp_path: Path) -> None:
    result, _ = study(tmp_path, Loop({**EVEN, Side.COMPUTE: 178.0}))
    assert result.bottleneck is not None and result.bottleneck.bound is Bound.INPUT
    assert bottleneck_text(result.bottleneck) == (
        "input-bound: preparing data takes time away from computing"
        " (44% of the time; a perfect loader would give 1.78x the speed)"
    )
    assert "workers" in searched(result)[0]


@pytest.mark.parametrize(
    ("loader", "loaders", "most", "bound"),
    [(1e6, 1, 1.0, Bound.COMPUTE), (2000.0, 1, 1.56, Bound.INPUT), (1e6, 2, 1.56, Bound.INPUT)],
)
def test_data_take_no_more_than_all_cores_for_as_long_as_their_loader_takes(
    tmp_path: Path, loader: float, loaders: int, most: float, bound: Bound
) -> None:
    """A kept batch that is faster by more was another batch than most, or had a calmer machine. But of several loaders
    the first one alone was looked at: another one's workers may take the cores."""
    loop = Loop({Side.COMPUTE: 156.0, Side.LOADER: loader, Side.HALF: 156.0}, loaders=("one", "other")[:loaders])
    result, _ = study(tmp_path / "study", loop)
    found, blind = result.bottleneck, bottleneck_of(result.trials)
    assert found is not None and found.bound is bound and found.most_from_input == pytest.approx(most, abs=0.01)
    assert blind is not None and blind.bound is Bound.INPUT, "nobody knows how many cores there are"
    probed, _, _ = probe(worlds.plan(tmp_path / "probe"), loop, lambda name, ran: None, threading.Event())
    assert probed.bound is bound


def test_a_side_in_another_unit_is_held_against_nothing(tmp_path: Path) -> None:
    loop = Altered(EVEN, lambda side: {"unit": "steps" if side is Side.LOADER else "samples"})
    result, _ = study(tmp_path, loop)
    assert result.bottleneck is not None
    assert (result.bottleneck.loader, result.bottleneck.compute) == (None, EVEN[Side.COMPUTE])


def test_where_no_wait_can_be_seen_the_probe_says_whether_a_loader_is_worth_it(tmp_path: Path) -> None:
    def blind(sides: Mapping[Side, float]) -> Loop:
        return Altered(sides, lambda side: {"data_wait_share": None})

    even, _ = study(tmp_path / "even", blind(EVEN))
    assert not any("workers" in config for config in searched(even))
    uneven, _ = study(tmp_path / "uneven", blind({**EVEN, Side.COMPUTE: 178.0}))
    assert "workers" in searched(uneven)[0]
    unknown, _ = study(tmp_path / "unknown", blind(EVEN), probe=False)
    assert "workers" in searched(unknown)[0]


def test_a_probe_is_weighed_by_its_own_window_and_not_by_the_baselines(tmp_path: Path) -> None:
    class Long(Loop):
        def _rate(self, config: Config) -> Outcome:
            outcome = super()._rate(config)
            assert outcome.measurement is not None
            blocks = (Block(100.0, 2, 20.0, 0.0),)
            measurement = replace(outcome.measurement, blocks=blocks)
            return replace(outcome, seconds=30.0, measurement=measurement)

    # Three times thirty seconds, of which a probe's window saves fifteen: 15% of 300; 150 are for the proof.
    for budget_s, probed in ((449.0, False), (452.0, True)):
        loop = Long(EVEN)
        study(tmp_path / str(budget_s), loop, budget_s=budget_s)
        assert bool(loop.probes) is probed


def test_where_a_step_costs_more_than_its_samples_larger_batches_come_first(tmp_path: Path) -> None:
    found, _ = study(tmp_path / "overhead", Loop(OVERHEAD), trials=20)
    assert found.bottleneck is not None and found.bottleneck.bound is Bound.OVERHEAD
    batches = [config["batch_size"] for config in searched(found) if "batch_size" in config]
    assert searched(found)[0] == {"batch_size": 256}, "halfway to the largest"
    assert 32 not in batches, "smaller ones cost more"
    other, _ = study(tmp_path / "compute", Loop(EVEN), trials=20)
    assert "batch_size" not in searched(other)[0]
    assert {"batch_size": 32} in searched(other)


class Busy(Loop):
    """Others take so many cores of each run in ``busy``, by its place."""

    def __init__(self, busy: Mapping[int, float]) -> None:
        super().__init__(EVEN)
        self._busy = busy

    def _rate(self, config: Config) -> Outcome:
        outcome = super()._rate(config)
        assert outcome.measurement is not None
        (self.requests[-1].folder / "run").write_text(str(len(self.requests)))
        taken = self._busy.get(len(self.requests), 0.0)
        return replace(outcome, measurement=replace(outcome.measurement, foreign_cpus=taken))


@pytest.mark.parametrize(
    ("busy", "runs", "kept", "disturbed"),
    [
        ({}, 4, "1", False), ({1: 4.0}, 5, "2", False), ({1: 4.0, 2: 3.0}, 5, "2", True),
        ({1: 3.0, 2: 4.0}, 5, "1", True), ({4: 4.0, 5: 4.0}, 5, "1", True),
    ],
)  # fmt: skip
def test_the_verb_measures_again_what_others_disturbed_and_says_so_where_that_is_no_calmer(
    tmp_path: Path, busy: dict[int, float], runs: int, kept: str, *, disturbed: bool
) -> None:
    runner, told = Busy(busy), list[str]()
    plan = worlds.plan(tmp_path)
    found, _, _ = probe(plan, runner, lambda name, outcome: told.append(name), threading.Event())
    assert len(runner.requests) == runs and len(told) == len(set(told)) == 4
    assert (tmp_path / "probe" / REAL / "run").read_text() == kept, "the calmer one's records"
    assert bool(found.disturbed) is disturbed
    report = ProbeReport(found, {}, None, (), (), {}, "")
    said = [line for line in report.lines() if line.startswith("disturbed: other processes used")]
    assert len(said) == disturbed == bool(report.document()["disturbed"])
    assert not disturbed or "of 8 cores" in said[0]


def test_the_verb_leaves_no_folder_behind_where_the_device_is_busy(tmp_path: Path) -> None:
    plan = worlds.plan(tmp_path / "new")
    with DeviceLock(plan.device, "another study"), pytest.raises(DeviceBusyError):
        probe(plan, Busy({}), lambda name, outcome: None, threading.Event())
    assert not plan.folder.exists()
