"""A recording: every config once, whatever it comes to, and nothing twice however often it is interrupted."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support import worlds

from tuner.errors import UnknownKnobError, UsageError
from tuner.model import BASELINE, Config, Outcome, OutcomeKind
from tuner.runner.grid_replay import GridReplay
from tuner.runner.replay import ReplayRunner
from tuner.runner.request import Interrupted
from tuner.space.choose import Spaces
from tuner.storage.grid import Grid
from tuner.study.record import Recording, narrowed, record

ALL = Recording()


class Recorded:
    """A recording on a made-up machine, and what was run of it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.world = worlds.World()
        self.seconds = 0.0

    def run(
        self, recording: Recording = ALL, *, outcome_of: Callable[[Config], Outcome] | None = None,
        stop: threading.Event | None = None, **changes: Any,
    ) -> Grid:  # fmt: skip
        plan = worlds.plan(self.folder, **changes)
        runner = ReplayRunner(outcome_of or self.world.outcome)
        return record(
            plan, recording, runner, lambda event: None, stop or threading.Event(), clock=lambda: self.seconds
        )

    @property
    def configs(self) -> list[Config]:
        """What was run, but for the script as written."""
        return [Config(run) for run in self.world.runs if run]


@pytest.fixture
def recorded(tmp_path: Path) -> Recorded:
    return Recorded(tmp_path / "grid")


SELECTION = ("workers", "prefetch", "batch_size")
COUNT = (4 * 2 + 1) * 5 - 1


def test_every_config_is_recorded_once(recorded: Recorded) -> None:
    grid = recorded.run(selection=SELECTION)
    assert grid.header.complete and grid.header.configs == COUNT
    assert len(recorded.configs) == COUNT == len(set(recorded.configs))
    assert len(grid.configs) == COUNT + 1 and BASELINE in grid.configs
    assert {knob.name for knob in grid.header.knobs} == set(SELECTION)
    too_large = [row for row in grid.rows if row.config.get("batch_size") == 512]
    assert len(too_large) == 9
    assert all((row.kind, row.reason) == (OutcomeKind.INFEASIBLE, "device-oom") for row in too_large)
    # A figure is the world's own, held against the script as written.
    config, gain = GridReplay(grid).best
    assert gain == pytest.approx(recorded.world.truth(config)[0] / recorded.world.truth(BASELINE)[0])


def test_configs_of_all_kinds_come_in_any_order(recorded: Recorded) -> None:
    """A machine that slows down with the hour mustn't look like a knob."""
    recorded.run(selection=SELECTION)
    places = [place for place, config in enumerate(recorded.configs) if config.get("batch_size") == 512]
    assert min(places) < COUNT / 3 and max(places) > 2 * COUNT / 3


def test_a_choice_of_configs_goes_by_the_seed(recorded: Recorded, tmp_path: Path) -> None:
    grid = recorded.run(Recording(configs=7), selection=SELECTION, seed=4)
    assert grid.header.complete and grid.header.configs == 7 and len(grid.configs) == 8
    same, other = Recorded(tmp_path / "same"), Recorded(tmp_path / "other")
    same.run(Recording(configs=7), selection=SELECTION, seed=4)
    other.run(Recording(configs=7), selection=SELECTION, seed=5)
    assert same.configs == recorded.configs != other.configs
    # More of them later: those that there are stay, and only the others are run.
    recorded.run(Recording(configs=9), selection=SELECTION, seed=4)
    assert len(recorded.configs) == 9 and recorded.configs[:7] == same.configs


@pytest.mark.slow  # 2 s beside three others
def test_the_fastest_of_a_grid_are_recorded_for_longer(recorded: Recorded, tmp_path: Path) -> None:
    grid = recorded.run(selection=SELECTION)
    longer = Recorded(tmp_path / "longer")
    among = replace(grid, place="x/a.jsonl.gz")
    found = longer.run(Recording(configs=5, among=among, window_s=8.0), selection=SELECTION)
    replay = GridReplay(grid)
    by_gain = sorted(grid.configs, key=replay.true_gain, reverse=True)
    assert BASELINE not in by_gain[:5] and {*longer.configs} == {*by_gain[:5]}
    assert found.header.complete and found.header.notes == ("the fastest configs of a.jsonl.gz",)
    # None that failed is among them, however many are asked for.
    most = Recorded(tmp_path / "most").run(Recording(among=grid), selection=SELECTION)
    assert most.header.complete
    assert {*most.configs} == {config for config in by_gain if replay.true_gain(config) > 0}


def test_a_grid_of_another_space_has_nothing_to_choose_among(recorded: Recorded, tmp_path: Path) -> None:
    grid = replace(recorded.run(selection=SELECTION), place="a.jsonl.gz")
    other = Recorded(tmp_path / "other")
    with pytest.raises(UsageError, match=r"--among: a\.jsonl\.gz has batch_size=.*, and this search no batch_size"):
        other.run(Recording(among=grid), selection=("workers", "prefetch"))
    with pytest.raises(UsageError, match=r"has no precision, and this search precision="):
        Recorded(tmp_path / "more").run(Recording(among=grid), selection=(*SELECTION, "precision"))


@pytest.mark.parametrize("change", [{"script_sha256": "0"}, {"arguments": ("--epochs", "2")}])
def test_a_grid_of_another_script_is_refused_before_anything_runs(
    recorded: Recorded, tmp_path: Path, change: Mapping[str, Any]
) -> None:
    grid = recorded.run(Recording(configs=2), selection=SELECTION)
    among = replace(grid, place="a.jsonl.gz", header=replace(grid.header, **change))
    other = Recorded(tmp_path / "other")
    with pytest.raises(UsageError, match=r"--among: a\.jsonl\.gz was recorded with .*are others now"):
        other.run(Recording(among=among), selection=SELECTION)
    assert not other.configs


def test_a_grid_of_several_ranks_says_so_and_is_none_of_one_process(recorded: Recorded, tmp_path: Path) -> None:
    grid = replace(recorded.run(Recording(configs=3), selection=SELECTION, ranks=2), place="a.jsonl.gz")
    assert grid.header.ranks == 2 and grid.header.cores == 8
    space = GridReplay(grid).space
    assert (space.ranks, space.cores) == (2, 4), "of each rank, as in the study that recorded it"
    other = Recorded(tmp_path / "other")
    with pytest.raises(UsageError, match=r"--among: a\.jsonl\.gz was recorded in 2 ranks, and this search is of 1"):
        other.run(Recording(among=grid), selection=SELECTION)
    assert not other.configs


def test_a_replay_of_a_choice_of_configs_serves_these_only(recorded: Recorded) -> None:
    grid = recorded.run(Recording(configs=7), selection=SELECTION)
    space = GridReplay(grid).space
    assert sum(space.allows(config) for config in grid.configs) == 8
    assert all(space.canonical(config) == config for config in grid.configs)


def test_what_was_interrupted_goes_on_where_it_was(recorded: Recorded) -> None:
    stop = threading.Event()

    def outcome_of(config: Config) -> Outcome:
        if len(recorded.configs) == 10:
            stop.set()
        return recorded.world.outcome(config)

    part = recorded.run(outcome_of=outcome_of, stop=stop, selection=SELECTION)
    assert not part.header.complete and part.header.configs == COUNT and len(part.configs) == 11
    grid = recorded.run(selection=SELECTION)
    assert grid.header.complete and len(grid.configs) == COUNT + 1
    # The one that was under way is run again, the finished ones aren't.
    assert len(recorded.configs) == COUNT + 1 and len(set(recorded.configs)) == COUNT
    assert recorded.run(selection=SELECTION) == grid and len(recorded.configs) == COUNT + 1


def test_one_that_is_stopped_at_once_has_nothing_to_write(recorded: Recorded) -> None:
    stop = threading.Event()
    stop.set()
    with pytest.raises(Interrupted):
        recorded.run(stop=stop)


def test_it_ends_when_its_time_is_up_and_goes_on_with_more(recorded: Recorded) -> None:
    def outcome_of(config: Config) -> Outcome:
        recorded.seconds += 10.0
        return recorded.world.outcome(config)

    part = recorded.run(Recording(seconds=100.0), outcome_of=outcome_of, selection=SELECTION)
    assert not part.header.complete and len(recorded.configs) == 8, "and the script as written, twice"
    assert recorded.run(Recording(seconds=1e6), outcome_of=outcome_of, selection=SELECTION).header.complete


def test_what_the_probe_ran_is_in_it(recorded: Recorded) -> None:
    def outcome_of(config: Config) -> Outcome:
        outcome = recorded.world.outcome(config)
        return replace(outcome, knowledge=replace(outcome.knowledge, training_loaders=("train.py:1",)))

    grid = recorded.run(outcome_of=outcome_of, selection=("workers",), probe=True)
    assert [row.side for row in grid.sides] == ["compute", "loader", "half"]
    assert grid.header.bottleneck and GridReplay(grid).trials()[1].side == "compute"


def test_a_machine_that_takes_no_turns_is_held_against_anchors(recorded: Recorded) -> None:
    grid = recorded.run(selection=SELECTION)
    assert len([run for run in recorded.world.runs if not run]) > COUNT / 8
    readings = [row.reading for row in grid.rows if row.config and row.reading]
    assert readings and all(reading.reference_rate and reading.blocks and not reading.pairs for reading in readings)


def test_values_take_the_place_of_those_that_the_search_has(recorded: Recorded) -> None:
    spaces = narrowed(Spaces((worlds.SPACE,)), {"workers": (0, 6), "batch_size": (1024,)})
    grid = recorded.run(selection=("workers", "batch_size"), spaces=spaces)
    assert {knob.name: knob.values for knob in grid.header.knobs} == {"workers": (0, 6), "batch_size": (64, 1024)}
    with pytest.raises(UnknownKnobError, match="wrokers"):
        narrowed(Spaces((worlds.SPACE,)), {"wrokers": (1,)})


@pytest.mark.slow  # 4 s beside three others
def test_a_space_that_nobody_can_go_through_is_refused(recorded: Recorded) -> None:
    many = tuple(range(60000))
    spaces = narrowed(Spaces((worlds.SPACE,)), {"workers": many})
    with pytest.raises(UsageError, match="can be gone through") as raised:
        recorded.run(spaces=spaces)
    assert "--values" in raised.value.hint
