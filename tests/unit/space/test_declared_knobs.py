"""What the declared knobs take, and what they are called."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from support import worlds

from search_spaces.keras import SPACE as KERAS
from search_spaces.torch import SPACE
from tuner.errors import UnknownKnobError, UsageError
from tuner.knowledge import Knowledge
from tuner.space import Known, SearchSpace
from tuner.space.resolve import resolve


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("batch_size", "abc", "whole number"),
        ("batch_size", 0, "at least 1"),
        ("num_workers", 3.5, "whole number"),
        ("num_workers", True, "whole number"),
        ("pin_memory", 1, "true or false"),
        ("precision", 16, "a word"),
    ],
)
def test_a_slip_in_a_pinned_value_is_told(name: str, value: bool | int | float | str, says: str) -> None:
    with pytest.raises(UsageError, match=says) as raised:
        SPACE.knob(name).check(value)
    assert f"{name}={value}" in str(raised.value)


def test_values_that_fit_are_taken() -> None:
    for name, value in (("batch_size", 1), ("num_workers", 0), ("pin_memory", False), ("precision", "bf16")):
        SPACE.knob(name).check(value)


def test_a_misspelled_knob_is_recognised() -> None:
    with pytest.raises(UnknownKnobError) as raised:
        SPACE.knob("batchsize")
    assert raised.value.hint.startswith("did you mean 'batch_size'?")


FREE = Knowledge(
    as_written={"batch_size": 32, "grad_accumulation": 1, "lr_scale": 1.0}, optimizers=("SGD",),
    loss_reduction="mean", effective_batch="free",
)  # fmt: skip


@pytest.mark.parametrize(
    ("config", "changes", "scale"),
    [
        ({"batch_size": 128}, {}, 4.0),
        ({"batch_size": 128}, {"optimizers": ("AdamW",)}, 2.0),
        ({"batch_size": 16, "grad_accumulation": 2}, {}, None),
        ({"batch_size": 128}, {"effective_batch": "keep"}, None),
        ({"batch_size": 128}, {"left_out": {"lr_scale": "the script sets its learning rate itself"}}, None),
        ({"batch_size": 128}, {"loss_reduction": "sum"}, None),
    ],
)
def test_the_learning_rate_follows_a_freed_batch(
    config: dict[str, int], changes: dict[str, Any], scale: float | None
) -> None:
    complete = {**FREE.as_written, **config}
    assert SPACE.derive(complete, replace(FREE, **changes)).get("lr_scale") == scale


@pytest.mark.parametrize(
    ("devices", "written", "kept", "freed"),
    [
        (1, 24, [24, 12, 6, 3], [6, 12, 48, 96, 192, 384]),
        (8, 24, [24], [48, 96, 192, 384]),
        (2, 24, [24, 12, 6], [6, 12, 48, 96, 192, 384]),
        (2, 3, [3], [1, 6, 12, 24, 48]),  # nor does the script's own, which may be what each device is given
    ],
)
def test_several_devices_share_each_batch_evenly(
    devices: int, written: int, kept: list[int], freed: list[int]
) -> None:
    knowledge = replace(FREE, as_written={"batch_size": written, "grad_accumulation": 1}, devices=devices)
    for effective_batch, sizes in (("free", freed), ("keep", kept)):
        known = Known(worlds.DEVICE, 2, knowledge=replace(knowledge, effective_batch=effective_batch))
        assert list(SPACE.knob("batch_size").choices(known)) == sizes


@pytest.mark.parametrize(
    ("space", "knob", "workers", "wait", "wanted"),
    [
        (SPACE, "num_workers", 0, 0.75, 3.0), (SPACE, "num_workers", 1, 0.75, 4.0), (SPACE, "num_workers", 3, 0.5, 6.0),
        (KERAS, "workers", 1, 0.75, 3.0), (KERAS, "workers", 2, 0.75, 8.0),
    ],
)  # fmt: skip
def test_workers_that_keep_up_are_told_by_the_wait(
    space: SearchSpace, knob: str, workers: int, wait: float, wanted: float
) -> None:
    """Three quarters of the time: a batch takes three times as long to make as the rest of its step."""
    keeps_up = space.knob(knob).keeps_up
    assert keeps_up is not None
    assert keeps_up(workers, wait) == wanted


@pytest.mark.parametrize(
    ("kind", "modes"),
    [("cpu", ["default", "off"]), ("cuda", ["default", "reduce-overhead", "off", "max-autotune-no-cudagraphs"])],
)
def test_modes_of_a_scripts_own_compiler_stand_beside_what_it_wrote(kind: str, modes: list[str]) -> None:
    written = {"compile_mode": "max-autotune"}
    known = Known(replace(worlds.DEVICE, kind=kind), 2, knowledge=Knowledge(as_written=written))
    (axis,) = (axis for axis in resolve(SPACE, known).axes if axis.knob.name == "compile_mode")
    assert axis.values == ("max-autotune", *modes) and axis.as_written == 0
    assert axis.knob.tier == 2 and axis.knob.late and not axis.knob.switchable


def test_a_script_that_compiles_nothing_itself_is_told_nothing_of_its_modes() -> None:
    def left_out(**facts: Any) -> Mapping[str, Any]:
        return resolve(SPACE, Known(worlds.DEVICE, 2, knowledge=Knowledge(**facts))).left_out

    assert "compile_mode" not in left_out()
    said = left_out(as_written={"compile_mode": "default"}, left_out={"compile_mode": "it gives options"})
    assert said["compile_mode"].reason == "it gives options"


def test_who_asks_for_a_knob_of_jax_s_client_is_told_that_none_computes() -> None:
    """A loop of TensorFlow's own has nothing that it could turn, was said; and nobody else is told of it."""
    known = Known(worlds.DEVICE, 2, knowledge=Knowledge(as_written={"threads": 2}, framework="keras"))
    asked = resolve(KERAS, known, selection=("async_dispatch",))
    assert asked.left_out["async_dispatch"].reason == "no client of JAX's computes in this script"
    assert "async_dispatch" not in resolve(KERAS, known).left_out
