"""What a script on an XLA device may turn of torch_xla's loader; elsewhere nobody is told of it."""

from __future__ import annotations

from typing import Any

from search_spaces.torch import SPACE
from search_spaces.uploads import KNOBS
from tuner.knowledge import Knowledge
from tuner.model import Device, Value
from tuner.space.declare import Known
from tuner.space.resolve import resolve
from tuner.space.resolved import ResolvedSpace

NAMES = {knob.name for knob in KNOBS}
WRITTEN: dict[str, Value] = {
    "loader_prefetch_size": 16, "device_prefetch_size": 8, "host_to_device_transfer_threads": 1,
    "batches_per_execution": 1,
}  # fmt: skip


def space(kind: str, *, selection: tuple[str, ...] = (), **written: Any) -> ResolvedSpace:
    device = Device(kind, 0, kind, kind, 8 << 30)
    return resolve(SPACE, Known(device, 4, knowledge=Knowledge(as_written={**WRITTEN, **written})), selection=selection)


def values(resolved: ResolvedSpace) -> dict[str, tuple[Value, ...]]:
    return {axis.knob.name: axis.values for axis in resolved.axes if axis.knob.name in NAMES}


def test_each_is_tried_around_what_the_script_gives() -> None:
    assert values(space("xla")) == values(space("tpu")) == {
        "loader_prefetch_size": (8, 16, 32, 128), "device_prefetch_size": (1, 4, 8, 16),
        "host_to_device_transfer_threads": (1, 2, 4), "batches_per_execution": (1, 2, 4, 8),
    }  # fmt: skip


def test_a_script_that_accumulates_gets_graphs_of_whole_steps() -> None:
    assert values(space("xla", grad_accumulation=3))["batches_per_execution"] == (1, 3, 6, 12)


def test_elsewhere_they_are_told_of_only_where_they_are_asked_for() -> None:
    assert not NAMES & {*values(space("cpu")), *space("cpu").left_out}
    asked = space("cpu", selection=("device_prefetch_size",))
    assert asked.left_out["device_prefetch_size"].reason == "means nothing on cpu"
