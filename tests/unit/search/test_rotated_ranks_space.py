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
    apart = replace(knowledge, as_written={k: v for k, v in WRITTEN.items() if not k.startswith("ddp_")})
    turned = [
        {knob for config in next_rotation(resolve(SPACE, known), trials) for knob in config}
        for known in (
            Known(worlds.DEVICE, 2, knowledge=knowledge), Known(worlds.DEVICE, 2, knowledge=knowledge, ranks=2),
            Known(worlds.DEVICE, 2, knowledge=apart, ranks=2),
        )
    ]  # fmt: skip
    assert {"precision", "optimizer", "channels_last", "compile"} <= turned[0]
    assert turned[1] == turned[0] - {"compile", "channels_last"}, "which was proposed, and refused in each study"
    assert turned[2] == turned[0] - {"compile"}, "without a wrapper nothing keeps the layout"
