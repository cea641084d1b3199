"""What several ranks may turn of their exchange of gradients; in one process nobody is told of it."""

from __future__ import annotations

from typing import Any

import pytest
from support import worlds

from search_spaces.ranks import KNOBS
from search_spaces.torch import SPACE
from tuner.knowledge import Knowledge
from tuner.model import Value
from tuner.space.declare import Known
from tuner.space.resolve import resolve
from tuner.space.resolved import ResolvedSpace

MIB = 1 << 20
NAMES = {knob.name for knob in KNOBS}
WRITTEN: dict[str, Value] = {
    "ddp_bucket_mb": 25, "ddp_bucket_view": False, "ddp_static_graph": False, "ddp_communication": "default",
}  # fmt: skip


def space(*, ranks: int = 2, selection: tuple[str, ...] = (), **changes: Any) -> ResolvedSpace:
    knowledge = Knowledge(**{"as_written": WRITTEN, "gradient_bytes": 30 * MIB, **changes})
    return resolve(SPACE, Known(worlds.DEVICE, 4, knowledge=knowledge, ranks=ranks), selection=selection)


def values(resolved: ResolvedSpace) -> dict[str, tuple[Value, ...]]:
    return {axis.knob.name: axis.values for axis in resolved.axes if axis.knob.name in NAMES}


def test_each_is_tried_around_what_the_script_gives() -> None:
    assert values(space()) == {
        "ddp_bucket_mb": (1, 5, 25, 100), "ddp_bucket_view": (False, True), "ddp_static_graph": (False, True),
        "ddp_communication": ("default", "bf16"),
    }  # fmt: skip
    assert "ddp_static_graph" not in values(space(as_written={**WRITTEN, "ddp_static_graph": True}))


@pytest.mark.parametrize(
    ("exchanged", "sizes"),
    [(None, (1, 5, 25, 100)), (200 * MIB, (1, 5, 25, 100)), (7 * MIB, (1, 5, 25)), (3 * MIB, (1, 5, 25)), (MIB, ())],
)
def test_buckets_that_hold_all_alike_are_tried_once(exchanged: int | None, sizes: tuple[int, ...]) -> None:
    """The script's own 25 are one bucket, too, or two of them: the first one of PyTorch's default is smaller."""
    resolved = space(gradient_bytes=exchanged)
    assert values(resolved).get("ddp_bucket_mb", ()) == sizes
    assert ("one bucket" in resolved.left_out["ddp_bucket_mb"].reason) if not sizes else True


def test_in_one_process_nobody_is_told_of_them_who_does_not_ask() -> None:
    alone = space(ranks=1, as_written={})
    assert not NAMES & {*alone.left_out} and not values(alone)
    asked = space(ranks=1, as_written={}, selection=("ddp_bucket_mb",))
    assert asked.left_out["ddp_bucket_mb"].reason == "nothing in the script that it could turn"


@pytest.mark.parametrize(("exchanging", "allowed"), [(True, False), (False, True)])
def test_what_is_compiled_of_a_wrapper_takes_no_batch_in_parts(*, exchanging: bool, allowed: bool) -> None:
    model: dict[str, Value] = {"compile": "off", "grad_accumulation": 1, "batch_size": 64}
    resolved = space(as_written={**(WRITTEN if exchanging else {}), **model})
    parts: dict[str, Value] = {"batch_size": 32, "grad_accumulation": 2}
    assert resolved.allows(parts) and resolved.allows({"compile": "default"})
    assert resolved.allows({**parts, "compile": "default"}) is allowed
