"""Which configs that compile take turns in one process, and what a ranking leaves out; batches have no turns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support import worlds

from search_spaces import batches
from tuner.analysis.rotation import ENDED, TOO_FEW
from tuner.knowledge import FREE, KEEP
from tuner.model import BASELINE, Config, Outcome, OutcomeKind, Phase, Ratio, Rotated, Trial
from tuner.search.history import History
from tuner.search.rotation import FEWEST_STEPS, MOST_COMBINED, compiled, is_outranked, loses, next_rotation, ranking_of
from tuner.space.declare import Knob, Known, SearchSpace
from tuner.space.resolve import resolve
from tuner.space.resolved import ResolvedSpace
from tuner.study.lengths import COMPILED_S, LARGEST_SHARE, MOST_COMPILED, foreseen

WRITTEN: dict[str, Any] = {
    "precision": "fp32", "layout": False, "batch_size": 64, "grad_accumulation": 1, "compile": "off",
}  # fmt: skip
SPACE = SearchSpace(
    "made-up",
    "none",
    (
        Knob("precision", lambda known: ["fp32", "bf16"], "precision", switchable=True),
        Knob("compile", lambda known: ["default", "regional", "dynamic"], "compiler", late=True, switchable=True),
        batches.BATCH_SIZE,
        batches.GRAD_ACCUMULATION,
        Knob("layout", lambda known: [False, True], "layout", switchable=True),
    ),
    allowed=batches.allowed,
    derive=batches.derive,
)  # fmt: skip
BF16, LAYOUT, WHOLE = Config(precision="bf16"), Config(layout=True), Config(compile="default")


def space(effective_batch: str = KEEP, **knowledge: Any) -> ResolvedSpace:
    known = replace(
        worlds.measured(1.0).knowledge, as_written=WRITTEN, effective_batch=effective_batch, **knowledge
    )
    return resolve(SPACE, Known(worlds.DEVICE, 4, knowledge=known), pinned={})


def outcome(rate: float = 1000.0) -> Outcome:
    made = worlds.measured(rate)
    assert made.measurement is not None
    blocks = tuple(replace(block, steps=FEWEST_STEPS) for block in made.measurement.blocks)
    return replace(made, measurement=replace(made.measurement, blocks=blocks))


def baseline() -> Trial:
    return Trial(0, Phase.BASELINE, BASELINE, outcome=outcome())


def ranked(gains: dict[Config, float], broke: Config | None = None) -> Trial:
    said = [Rotated(config, Ratio(gain, gain / 1.02, gain * 1.02), 3) for config, gain in gains.items()]
    made = replace(outcome(), rotation=tuple(said))
    if broke is not None:
        lost = tuple(Rotated(config, None, 0, ENDED if config == broke else TOO_FEW) for config in gains)
        made = Outcome(OutcomeKind.CRASHED, rotation=lost)
    return Trial(1, Phase.ROTATION, BASELINE, outcome=made)


def turning(knob: str, configs: Iterable[Config]) -> list[object]:
    return [config[knob] for config in configs if knob in config]


@pytest.mark.parametrize(("most", "modes"), [(1, ["default"]), (9, ["default", "regional", "dynamic"])])
def test_those_that_compile_come_last_and_as_many_as_fit(most: int, modes: list[str]) -> None:
    configs = next_rotation(space(), [baseline()], most)
    assert turning("compile", configs) == modes and compiled(space(), configs) == len(modes)
    assert not modes or turning("compile", configs[-len(modes) :]) == modes
    assert BF16 in configs and LAYOUT in configs


@pytest.mark.parametrize("effective_batch", [KEEP, FREE])
def test_no_batch_has_turns_of_its_own(effective_batch: str) -> None:
    found = next_rotation(space(effective_batch), [baseline()])
    assert BF16 in found and not turning("batch_size", found)


def test_what_the_script_sets_by_an_option_of_its_own_has_no_turns() -> None:
    assert not turning("layout", next_rotation(space(options={"layout": "layout"}), [baseline()]))


def test_combinations_hold_compilers_where_there_is_time_for_them() -> None:
    first = next_rotation(space(), [baseline()])
    trials = [baseline(), ranked(dict.fromkeys(first, 1.0) | {WHOLE: 1.4, BF16: 1.3})]
    combined = next_rotation(space(), trials)
    assert len(combined) == MOST_COMBINED
    assert Config(compile="default", precision="bf16") in combined
    assert compiled(space(), next_rotation(space(), trials, 1)) == 1
    assert not compiled(space(), next_rotation(space(), trials, 0))
    again = ranked(dict.fromkeys(combined, 1.2))
    assert next_rotation(space(), [*trials, replace(again, number=2)]) == (), "both were made"


def test_one_that_broke_goes_on_without_it() -> None:
    first = next_rotation(space(), [baseline()])
    left = next_rotation(space(), [baseline(), ranked(dict.fromkeys(first, 1.0), broke=WHOLE)])
    assert list(left) == [config for config in first if config != WHOLE]


def test_a_compiler_that_loses_in_a_rotation_is_left_out() -> None:
    """By itself, and beside others where it loses by far; but not beside a batch that had no turns."""
    gains = {BF16: 1.4, LAYOUT: 1.1, WHOLE: 0.4}
    ranking = ranking_of([ranked(gains)])
    assert loses({**WHOLE, **LAYOUT}, ranking) and not loses({**BF16, **LAYOUT}, ranking)
    history = History(space(), worlds.OBJECTIVE, [baseline(), ranked(gains)])
    assert history.is_ruled_out({**WHOLE, **BF16}) and not history.is_ruled_out(BF16)
    assert not history.is_ruled_out({**WHOLE, "batch_size": 32, "grad_accumulation": 2})


def test_what_nobody_has_measured_on_a_quiet_machine_has_to_lose_by_more() -> None:
    said = {WHOLE: 0.7, LAYOUT: 0.7, BF16: 1.0}
    ranking = ranking_of([ranked(said)])
    assert [loses(config, ranking) for config in said] == [False, True, False]
    best = ranking_of([ranked({WHOLE: 1.4, LAYOUT: 1.0, BF16: 1.8})])
    assert is_outranked(LAYOUT, BF16, best) and not is_outranked(LAYOUT, WHOLE, best)


def in_time(tmp_path: Path, search_s: float | None) -> tuple[Config, ...]:
    """The first rotation of a study that has so much time left for searching."""
    plan, measurement = worlds.plan(tmp_path), baseline().measurement
    assert measurement is not None

    def fits(configs: Sequence[Config]) -> bool:
        assert measurement is not None
        return foreseen(plan, measurement, len(configs), compiled=compiled(space(), configs)).is_within(plan, search_s)

    return next_rotation(space(), [baseline()], MOST_COMPILED, fits)


@pytest.mark.parametrize(("search_s", "count"), [(None, MOST_COMPILED), (0.0, 1), (1e9, MOST_COMPILED)])
def test_compilers_have_turns_where_there_is_time_for_them(tmp_path: Path, search_s: float | None, count: int) -> None:
    """Where there is time for nothing the fewest are told of."""
    found = in_time(tmp_path, search_s)
    assert compiled(space(), found) == count and BF16 in found and LAYOUT in found


def test_each_that_compiles_takes_its_share_of_the_time(tmp_path: Path) -> None:
    shares = [COMPILED_S * share / LARGEST_SHARE for share in range(12)]
    found = [compiled(space(), in_time(tmp_path, search_s)) for search_s in shares]
    assert sorted(found) == found and set(found) == {1, 2, MOST_COMPILED}
