"""Which values take turns in the processes of several ranks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from support import worlds

from search_spaces.torch import SPACE
from tuner.model import BASELINE, Phase, Trial, Value
from tuner.search.rotation import next_rotation
from tuner.space.declare import Known
from tuner.space.resolve import resolve

WRITTEN: Mapping[str, Value] = {
    "threads": 1, "precision": "fp32", "optimizer": "default", "channels_last": False, "compile": "off",
    "ddp_bucket_mb": 25, "ddp_bucket_view": False,
}  # fmt: skip


def test_what_compiles_and_what_a_wrapper_fixes_have_no_turns() -> None:
    knowledge = replace(
        worlds.measured(1.0).knowledge, framework="torch", as_written=WRITTEN, precisions=("fp32", "bf16"),
        optimizer_choices=("foreach", "fused"),
    )  # fmt: skip
    trials = [Trial(0, Phase.BASELINE, BASELINE, outcome=worlds.measured(1000.0))]
    turned = [
        {knob for config in next_rotation(resolve(SPACE, replace(known, ranks=ranks)), trials) for knob in config}
        for known in [Known(worlds.DEVICE, 2, knowledge=knowledge)] for ranks in (1, 2)
    ]
    assert "compile" in turned[0] and turned[1] == turned[0] - {"compile"}
    assert {"precision", "optimizer", "channels_last"} <= turned[1]
