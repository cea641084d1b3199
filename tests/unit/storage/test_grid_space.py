"""The space of a grid, written and made again, is the one that was recorded."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support import worlds
from support.grids import following, header_of, made_up_grid

from search_spaces.keras import SPACE as KERAS
from search_spaces.torch import SPACE as TORCH
from tuner.devices.cpu import cpu_device
from tuner.knowledge import Knowledge
from tuner.model import Config, OutcomeKind, Value
from tuner.space.declare import Known
from tuner.space.resolve import resolve
from tuner.space.resolved import ResolvedSpace
from tuner.storage.grid import Grid, GridRow, read_grid, write_grid
from tuner.storage.grid_space import configs_of, knobs_of, space_of


def torch_space(**changes: Any) -> ResolvedSpace:
    """As a script with a loader and Adam has it, with fewer values than usual."""
    knowledge = Knowledge(
        as_written={
            "num_workers": 0, "prefetch_factor": 2, "persistent_workers": False, "batch_size": 64, "lr_scale": 1.0,
            "grad_accumulation": 1, "precision": "fp32",
        },
        precisions=("fp32", "bf16"), dataset_len=None, framework="torch", loss_reduction="mean", optimizers=("Adam",),
        **changes,
    )  # fmt: skip
    return resolve(TORCH, Known(cpu_device(), 2, knowledge=knowledge))


def keras_space() -> ResolvedSpace:
    as_written: dict[str, Value] = {
        "run_eagerly": True, "steps_per_execution": 1, "jit_compile": False, "precision": "fp32",
    }  # fmt: skip
    knowledge = Knowledge(as_written=as_written, precisions=("fp32", "bf16"), framework="keras")
    return resolve(KERAS, Known(cpu_device(), 2, knowledge=knowledge))


SPACES = {
    "made up": worlds.resolved(), "pinned": worlds.resolved(workers=2), "following": following(),
    "torch, batch kept": torch_space(effective_batch="keep"), "torch, batch free": torch_space(effective_batch="free"),
    "keras": keras_space(),
}  # fmt: skip


def bare_grid(space: ResolvedSpace) -> Grid:
    """A grid in which nothing but the script as written could be measured."""
    written = made_up_grid(worlds.World()).baseline
    rows = [GridRow(dict(config), OutcomeKind.CRASHED, 1.0) for config in configs_of(space) if config]
    header = header_of(space, len(rows), effective_batch=space.knowledge.effective_batch)
    return Grid(header, (written, *rows))


def complete(space: ResolvedSpace) -> Iterator[dict[str, Any]]:
    for values in itertools.product(*(axis.values for axis in space.axes)):
        yield dict(zip((axis.knob.name for axis in space.axes), values, strict=True))


@pytest.mark.parametrize("space", SPACES.values(), ids=SPACES)
def test_a_grid_of_a_space_spans_the_same_configs(space: ResolvedSpace, tmp_path: Path) -> None:
    write_grid(tmp_path / "grid.gz", bare_grid(space))
    made = space_of(read_grid(tmp_path / "grid.gz"))
    assert [axis.values for axis in made.axes] == [axis.values for axis in space.axes]
    assert [axis.knob.ordered for axis in made.axes] == [axis.knob.ordered for axis in space.axes]
    choices = list(complete(space))
    assert len(choices) > 10
    for chosen in choices:
        assert made.allows(chosen) == space.allows(chosen)
        if space.allows(chosen):
            assert made.canonical(chosen) == space.canonical(chosen)
            assert made.indices_of(made.canonical(chosen)) == space.indices_of(space.canonical(chosen))


def test_a_knob_is_moot_beside_the_values_that_say_so() -> None:
    knobs = {knob.name: knob for knob in knobs_of(SPACES["made up"])}
    assert knobs["prefetch"].moot_beside == {"workers": (0,)}
    assert all(not knob.moot_beside for name, knob in knobs.items() if name != "prefetch")


def test_each_config_is_there_once_the_script_as_written_first() -> None:
    configs = list(configs_of(SPACES["made up"]))
    assert configs[0] == Config() and len(set(configs)) == len(configs)
    # Without workers there is nothing to prefetch: four numbers of them with two each, and none.
    assert len(configs) == (4 * 2 + 1) * 3 * 5 * 2 * 3


def test_what_was_not_recorded_breaks_a_constraint() -> None:
    grid = bare_grid(SPACES["made up"])
    partial = replace(grid, rows=tuple(row for row in grid.rows if row.config.get("workers") != 4))
    space = space_of(partial)
    assert space.allows({"workers": 2, "precision": "bf16"})
    assert not space.allows({"workers": 4, "precision": "bf16"})
