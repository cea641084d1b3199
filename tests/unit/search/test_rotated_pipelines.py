"""Which values of a Keras script's pipeline and batch take turns in one process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support import worlds

from search_spaces.keras import SPACE
from tuner.child.rounds import MOST_SHUFFLED, turns_of
from tuner.model import BASELINE, Config, Outcome, Phase, Ratio, Rotated, Trial, Value
from tuner.search.rotation import FEWEST, FEWEST_COMBINED, FEWEST_STEPS, loads, next_rotation
from tuner.space.declare import Known
from tuner.space.resolve import resolve
from tuner.space.resolved import ResolvedSpace
from tuner.study.lengths import TRACED, foreseen

PIPELINE: Mapping[str, Value] = {
    "parallel_calls": "none", "prefetch": 0, "vectorized_map": False, "deterministic": True, "private_threads": 0,
    "cache": False,
}  # fmt: skip
COMPUTING: Mapping[str, Value] = {
    "run_eagerly": False, "precision": "fp32", "grappler_mixed_precision": False, "steps_per_execution": 1,
    "jit_compile": False,
}  # fmt: skip
BATCH: Mapping[str, Value] = {"batch_size": 32, "grad_accumulation": 1, "lr_scale": 1.0}


def space(*written: Mapping[str, Value], **knowledge: Any) -> ResolvedSpace:
    as_written = {knob: value for each in written for knob, value in each.items()}
    known = replace(
        worlds.measured(1.0).knowledge, framework="keras", as_written=as_written, precisions=("fp32", "bf16"),
        **knowledge,
    )  # fmt: skip
    return resolve(SPACE, Known(worlds.DEVICE, 2, knowledge=known), pinned={})


def outcome(wait: float) -> Outcome:
    made = worlds.measured(1000.0)
    assert made.measurement is not None
    blocks = tuple(replace(block, steps=FEWEST_STEPS) for block in made.measurement.blocks)
    return replace(made, measurement=replace(made.measurement, data_wait_share=wait, blocks=blocks))


def baseline(wait: float = 0.4) -> Trial:
    return Trial(0, Phase.BASELINE, BASELINE, outcome=outcome(wait))


def ranked(gains: dict[Config, float]) -> Trial:
    said = tuple(Rotated(config, Ratio(gain, gain / 1.02, gain * 1.02), 3) for config, gain in gains.items())
    return Trial(1, Phase.ROTATION, BASELINE, outcome=replace(outcome(0.4), rotation=said))


def test_the_knobs_of_tf_data_have_turns_where_the_script_waits_but_for_the_cache() -> None:
    found = next_rotation(space(PIPELINE), [baseline()])
    assert {knob for config in found for knob in config} == set(PIPELINE) - {"cache"}
    assert Config(parallel_calls="auto") in found and Config(parallel_calls=2) in found
    assert loads(space(PIPELINE), found)
    computing = next_rotation(space(PIPELINE, COMPUTING), [baseline(0.01)])
    assert computing and not any(knob in PIPELINE for config in computing for knob in config)


def test_a_smaller_batch_has_no_turns() -> None:
    found = next_rotation(space(BATCH, COMPUTING), [baseline(0.0)])
    assert found and not any("batch_size" in config for config in found)


@pytest.mark.parametrize("most", [5, 7, 9])
def test_as_many_have_turns_as_there_is_time_for_and_each_knob_before_the_second_value_of_any(most: int) -> None:
    """Twelve took too long for a study, which made no rotation for that, and not a smaller one."""
    whole = next_rotation(space(PIPELINE), [baseline()])
    found = next_rotation(space(PIPELINE), [baseline()], fits=lambda configs: len(configs) <= most)
    assert len(whole) == 9 and len(found) == most
    assert {knob for config in found for knob in config} == set(PIPELINE) - {"cache"}
    assert [config for config in whole if config in found] == list(found), "in the same order"


def test_where_there_is_time_for_none_the_fewest_say_what_they_would_take() -> None:
    found = next_rotation(space(PIPELINE), [baseline()], fits=lambda configs: False)
    assert len(found) == FEWEST == len({knob for config in found for knob in config})


def test_combinations_are_as_many_as_there_is_time_for_too() -> None:
    whole = space(COMPUTING)
    first = next_rotation(whole, [baseline(0.0)])
    trials = [baseline(0.0), ranked(dict.fromkeys(first, 1.1))]
    combined = next_rotation(whole, trials)
    fewer = next_rotation(whole, trials, fits=lambda configs: len(configs) <= 4)
    assert len(combined) > len(fewer) == 4 and set(fewer) < set(combined)
    assert len(next_rotation(whole, trials, fits=lambda configs: False)) == FEWEST_COMBINED


def test_what_a_turn_s_own_pipeline_takes_to_begin_is_foreseen(tmp_path: Path) -> None:
    """Nothing of it is measured, and a rotation of two minutes was taken for one of half a minute."""
    plan, measurement = worlds.plan(tmp_path), baseline().measurement
    assert measurement is not None
    begun_s = MOST_SHUFFLED / measurement.rate + 1 / measurement.steps_per_s
    elsewhere, here = (foreseen(plan, measurement, 9, loads=True, fitted=fitted).turns_s for fitted in (False, True))
    assert here - elsewhere == pytest.approx(turns_of(9) * begun_s + TRACED * 9 * measurement.first_step_s)
    computing = [foreseen(plan, measurement, 9, fitted=fitted).turns_s for fitted in (False, True)]
    assert computing[1] - computing[0] == pytest.approx(TRACED * 9 * measurement.first_step_s)
