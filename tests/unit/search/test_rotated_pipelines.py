"""Which values of a Keras script's pipeline and batch take turns in one process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from support import worlds

from search_spaces.keras import SPACE
from tuner.model import BASELINE, Config, Outcome, Phase, Ratio, Rotated, Trial, Value
from tuner.search.rotation import FEWEST_STEPS, loads, next_rotation
from tuner.space.declare import Known
from tuner.space.resolve import ResolvedSpace, resolve

PIPELINE: Mapping[str, Value] = {
    "parallel_calls": "none", "prefetch": 0, "vectorized_map": False, "deterministic": True, "private_threads": 0,
    "cache": False,
}  # fmt: skip
COMPUTING: Mapping[str, Value] = {
    "run_eagerly": False, "precision": "fp32", "grappler_mixed_precision": False, "steps_per_execution": 1,
    "jit_compile": False,
}  # fmt: skip
BATCH: Mapping[str, Value] = {"batch_size": 32, "grad_accumulation": 1, "lr_scale": 1.0}
HALF = Config(batch_size=16, grad_accumulation=2)


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


def test_a_smaller_batch_is_combined_with_what_helps_beside_it_once() -> None:
    whole = space(BATCH, COMPUTING)
    first = next_rotation(whole, [baseline(0.0)])
    gains = dict.fromkeys(first, 1.0) | {HALF: 1.2, Config(precision="bf16"): 1.3}
    combined = next_rotation(whole, [baseline(0.0), ranked(gains)])
    assert combined[0] == Config(batch_size=16, grad_accumulation=2, precision="bf16")
    assert not next_rotation(whole, [baseline(0.0), ranked(gains), ranked(dict.fromkeys(combined, 1.0))])
