"""Which loaders take turns in one process, how long these turns are, and what their ranking leaves out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support import worlds

from tuner.model import BASELINE, Config, Outcome, Phase, Ratio, Rotated, Side, Trial
from tuner.search.history import History
from tuner.search.rotation import FEWEST_STEPS, LONGEST_STEP_S, is_outranked, loads, loses, next_rotation, ranking_of
from tuner.space.declare import Knob, Known, SearchSpace
from tuner.space.resolve import resolve
from tuner.space.resolved import ResolvedSpace
from tuner.study.lengths import LOADER_STEPS, LOADER_TURN_S, rotation_turn_s, rotation_window

NUMBERS = (0, 1, 2, 4, 8, 12, 16, 32, 64)
SPACE = SearchSpace(
    "made-up",
    "none",
    (
        Knob(
            "workers", lambda known: NUMBERS, "loader workers", ordered=True, loader=True, on_cores=True,
            switchable=True,
        ),
        Knob(
            "prefetch", lambda known: [2, 4], "prefetch", ordered=True, loader=True, switchable=True,
            needs=lambda config: int(config.get("workers", 0)) > 0,
        ),
        Knob("layout", lambda known: [False, True], "layout", switchable=True),
        Knob("threads", lambda known: [1, 2, 4], "threads", ordered=True, switchable=True),
        Knob("compile", lambda known: ["default", "max"], "compiler", late=True),
    ),
)  # fmt: skip
WORKERS, LAYOUT, ONE = Config(workers=4), Config(layout=True), Config(threads=1)


def space(cores: int = 16, written: int = 0, **knowledge: Any) -> ResolvedSpace:
    as_written = {**worlds.WRITTEN, "threads": 4, "workers": written}
    known = replace(worlds.measured(1.0).knowledge, as_written=as_written, **knowledge)
    return resolve(SPACE, Known(worlds.DEVICE, cores, knowledge=known), pinned={})


def outcome(wait: float | None, step_s: float = 0.05) -> Outcome:
    made = worlds.measured(1000.0)
    assert made.measurement is not None
    blocks = tuple(replace(block, steps=FEWEST_STEPS) for block in made.measurement.blocks)
    measurement = replace(made.measurement, data_wait_share=wait, steps_per_s=1 / step_s, blocks=blocks)
    return replace(made, measurement=measurement)


def baseline(wait: float | None, step_s: float = 0.05) -> Trial:
    return Trial(0, Phase.BASELINE, BASELINE, outcome=outcome(wait, step_s))


def workers_in(configs: Iterable[Config]) -> list[object]:
    return [config["workers"] for config in configs if "workers" in config]


@pytest.mark.parametrize(
    ("cores", "written", "numbers"),
    [(2, 0, [1, 2]), (16, 0, [2, 4, 8, 16]), (16, 4, [1, 2, 8, 16]), (1, 0, [1]), (12, 0, [2, 4, 8, 12])],
)  # fmt: skip
def test_a_few_numbers_of_workers_have_their_turns_up_to_the_cores(
    cores: int, written: int, numbers: list[int]
) -> None:
    found = workers_in(next_rotation(space(cores, written), [baseline(0.6)]))
    assert found == numbers


def test_what_the_workers_prefetch_has_its_turn_where_the_script_has_some() -> None:
    assert Config(prefetch=4) in next_rotation(space(written=4), [baseline(0.6)])
    assert not any("prefetch" in config for config in next_rotation(space(), [baseline(0.6)]))


@pytest.mark.parametrize(("wait", "turned"), [(0.6, True), (0.1, True), (0.03, False), (None, False)])
def test_loaders_have_turns_where_the_script_waits_for_its_own(wait: float | None, *, turned: bool) -> None:
    configs = next_rotation(space(), [baseline(wait)])
    assert bool(workers_in(configs)) is turned is loads(space(), configs)
    assert LAYOUT in configs and ONE in configs


def test_loaders_have_turns_where_one_kept_batch_is_faster() -> None:
    """What they take of the cores is no wait."""
    kept = Trial(1, Phase.PROBE, BASELINE, side=Side.COMPUTE, outcome=worlds.measured(1300.0))
    assert workers_in(next_rotation(space(), [baseline(0.0), kept]))


def test_with_long_steps_turns_would_be_too_long_for_them() -> None:
    assert not workers_in(next_rotation(space(), [baseline(0.6, 1.1 * LONGEST_STEP_S)]))


def test_a_script_s_own_option_for_its_workers_is_no_obstacle() -> None:
    """Of another knob's it is: what else it does in the script nobody knows."""
    own = space(options={"workers": "workers", "layout": "layout"})
    configs = next_rotation(own, [baseline(0.6)])
    assert workers_in(configs) and LAYOUT not in configs
    assert not workers_in(next_rotation(space(placeholders=("workers",)), [baseline(0.6)]))


def test_turns_hold_several_batches_where_loaders_are_compared(tmp_path: Path) -> None:
    plan = worlds.plan(tmp_path)
    for step_s in (0.01, 0.2):
        trial = baseline(0.6, step_s)
        assert trial.measurement is not None
        window = rotation_window(plan, trial, 6, loads=True)
        assert window.block_s == pytest.approx(max(LOADER_TURN_S, LOADER_STEPS * step_s))
        assert rotation_turn_s(plan, trial.measurement, loads=True) == pytest.approx(window.block_s + step_s / 2)
        assert rotation_window(plan, trial, 6).block_s == plan.window.block_s
        assert window.max_s > rotation_window(plan, trial, 6).max_s


def ranked(gains: dict[Config, float]) -> Trial:
    said = tuple(Rotated(config, Ratio(gain, gain / 1.02, gain * 1.02), 3) for config, gain in gains.items())
    return Trial(1, Phase.ROTATION, BASELINE, outcome=replace(outcome(0.0), rotation=said))


def test_combinations_hold_the_loaders_that_are_fastest() -> None:
    first = next_rotation(space(), [baseline(0.6)])
    gains = dict.fromkeys(first, 1.0) | {WORKERS: 1.9, Config(workers=8): 1.7, LAYOUT: 1.1}
    combined = next_rotation(space(), [baseline(0.6), ranked(gains)])
    assert combined[0] == Config(workers=4, layout=True)
    assert set(workers_in(combined)) <= {4, 8}


def test_what_loaders_lose_has_to_be_more_to_be_left_out() -> None:
    """How far their ratios may be off isn't known as well as for what is computed."""
    ranking = ranking_of([ranked({ONE: 0.7, Config(workers=1): 0.7, WORKERS: 1.4, LAYOUT: 1.3})])
    assert loses(ONE, ranking, 0.0, ["workers"]) and not loses(Config(workers=1), ranking, 0.0, ["workers"])
    assert is_outranked(ONE, LAYOUT, ranking, ["workers"])
    others = ranking_of([ranked({ONE: 1.0, WORKERS: 1.4})])
    assert is_outranked(ONE, WORKERS, others) and not is_outranked(ONE, WORKERS, others, ["workers"])


def test_a_value_that_loses_alone_is_not_left_out_beside_another_loader() -> None:
    """Fewer threads leave cores to workers; and what one worker costs alone it may give back in company."""
    ranking = ranking_of([ranked({ONE: 0.5, WORKERS: 1.5, Config(workers=1): 0.5})])
    loaders = ("workers", "prefetch")
    assert loses(ONE, ranking, 0.0, loaders) and loses(Config(workers=1), ranking, 0.0, loaders)
    assert not loses(Config(threads=1, workers=4), ranking, 0.0, loaders)
    assert not loses(Config(layout=True, workers=1), ranking, 0.0, loaders)
    history = History(space(), worlds.OBJECTIVE, [baseline(0.0), ranked({ONE: 0.5, WORKERS: 1.5})])
    assert history.is_ruled_out(ONE) and not history.is_ruled_out({**ONE, **WORKERS})
