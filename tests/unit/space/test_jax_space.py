"""The declared knobs of JAX: those of what feeds its loops are the ones of PyTorch and of TensorFlow."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support import worlds

from search_spaces import loaders
from search_spaces.jax import SPACE
from search_spaces.keras import SPACE as KERAS
from search_spaces.torch import SPACE as TORCH
from tuner.knowledge import Knowledge
from tuner.model import Config, Value
from tuner.space.declare import Known
from tuner.space.resolve import resolve

WRITTEN: dict[str, Value] = {
    "batch_size": 64, "num_workers": 0, "prefetch_factor": 2, "persistent_workers": True, "threads": 2,
    "async_dispatch": True,
}  # fmt: skip


def test_loaders_have_the_knobs_that_they_have_elsewhere_and_nothing_switches_them() -> None:
    declared = {knob.name: knob for knob in SPACE.knobs}
    for knobs, space in ((loaders.DATALOADER, TORCH), (loaders.TF_DATA, KERAS)):
        for knob in knobs:
            assert knob in space.knobs and declared[knob.name] == replace(knob, switchable=False)


def test_workers_that_are_added_last_and_what_doesnt_feed_the_loop_is_left_out_with_the_reason() -> None:
    no_pipeline = {knob.name: "no tf.data dataset feeds the training steps" for knob in loaders.TF_DATA}
    knowledge = Knowledge(as_written=WRITTEN, left_out=no_pipeline, dataset_len=1000, effective_batch="keep")
    space = resolve(SPACE, Known(worlds.DEVICE, 2, knowledge=knowledge))
    values = {axis.knob.name: axis.values for axis in space.axes}
    assert values["num_workers"][:3] == (0, 1, 2) and set(values["persistent_workers"]) == {True, False}
    assert {space.left_out[name].reason for name in no_pipeline} == {*no_pipeline.values()}
    alone = space.canonical(Config({"num_workers": 2, "persistent_workers": True}))
    assert alone == Config({"num_workers": 2})
    assert space.canonical(Config({"num_workers": 0, "persistent_workers": False})) == Config({})


@pytest.mark.parametrize(("written", "tried"), [("tf32", ("tf32", "bf16")), ("fp32", ("fp32", "tf32", "bf16"))])
def test_no_product_is_tried_more_exactly_than_as_written(written: str, tried: tuple[str, ...]) -> None:
    """Which takes longer on a card, and on none else is it turned."""
    knowledge = Knowledge(as_written={**WRITTEN, "precision": written}, precisions=("fp32", "tf32", "bf16"))
    card = replace(worlds.DEVICE, kind="cuda")
    values = {axis.knob.name: axis.values for axis in resolve(SPACE, Known(card, 2, knowledge=knowledge)).axes}
    assert values["precision"] == tried
    assert resolve(SPACE, Known(worlds.DEVICE, 2, knowledge=knowledge)).left_out["precision"].reason
