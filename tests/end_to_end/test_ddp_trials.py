"""Options of DistributedDataParallel in trials of two ranks: known of the script as written, turned, seen at work."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.rank_scripts import ddp, run_ranks

from tuner.child.torch.ddp import CHANGES
from tuner.model import Evidence, Outcome, OutcomeKind

BRANCHING = """
class Branching(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers, self.taken = torch.nn.ModuleList([torch.nn.Linear(8, 1), torch.nn.Linear(8, 1)]), 0
    def forward(self, x):
        return self.layers[self.taken](x)
model = DistributedDataParallel(Branching(), find_unused_parameters=True)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
""".strip()
SLOW = "time.sleep(0.01)"
CHANGING = f"{SLOW}\nmodel.module.taken = step % 2"
TURNED = {"ddp_bucket_mb": 1, "ddp_bucket_view": True, "ddp_static_graph": True, "ddp_communication": "bf16"}


@pytest.fixture(scope="module")
def as_written(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """A script of which other parameters are unused with each step."""
    return run_ranks(tmp_path_factory.mktemp("written"), ddp(setup=BRANCHING, step=CHANGING))


def test_what_the_script_gives_is_known_of_it(as_written: Outcome) -> None:
    assert as_written.complete, as_written.detail
    known = as_written.knowledge
    assert {knob: known.as_written[knob] for knob in TURNED} == {
        "ddp_bucket_mb": 25, "ddp_bucket_view": False, "ddp_static_graph": False, "ddp_communication": "default",
    }  # fmt: skip
    assert {knob: known.left_out.get(knob) for knob in TURNED} == {
        **dict.fromkeys(TURNED), "ddp_static_graph": CHANGES,
    }  # fmt: skip
    assert known.gradient_bytes == 2 * 9 * 4


def test_each_rank_has_what_the_config_asks_for(tmp_path: Path) -> None:
    outcome = run_ranks(tmp_path, ddp(setup=BRANCHING, step=SLOW), TURNED)
    assert outcome.complete and outcome.measurement is not None, outcome.detail
    found = {report.knob: (report.evidence, report.observed) for report in outcome.measurement.knobs}
    assert found == {knob: (Evidence.VERIFIED, value) for knob, value in TURNED.items()}


def test_a_graph_that_is_not_static_fails_the_config_and_not_the_script(tmp_path: Path) -> None:
    outcome = run_ranks(tmp_path, ddp(setup=BRANCHING, step=CHANGING), {"ddp_static_graph": True})
    assert (outcome.kind, outcome.reason) == (OutcomeKind.INFEASIBLE, "script-raised"), outcome.detail
    assert re.match(r"rank \d: RuntimeError: .*training graph has changed", outcome.detail), outcome.detail
