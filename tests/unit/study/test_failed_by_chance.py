"""A script as written that fails in its trial, and doesn't when it is run again: what is told and kept of that."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from support import worlds
from support.ran import Ran, of

from tuner.events import Noted
from tuner.model import Config, Outcome, OutcomeKind
from tuner.storage.folder import FAULT

TRACE = 'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\n    for batch in loader:\n'
OURS = '  File "/x/tuner/child/torch/loader.py", line 9, in iterate\n    next(rows)\n'
DATASET = '  File "/x/data.py", line 5, in __getitem__\n    assert row\n'
RAISED = "RuntimeError: a bad draw\n"


@pytest.mark.parametrize(
    ("frames", "is_ours"), [(OURS, True), (DATASET + OURS, True), (OURS + DATASET, False), ("", False)]
)
def test_what_is_raised_in_a_frame_of_ours_is_kept(tmp_path: Path, frames: str, is_ours: bool) -> None:
    """A race in a watch passed for the script's own chance, and the run again threw its trace away."""
    with_ours = TRACE + frames + RAISED if OURS in frames else ""
    failed = Outcome(
        OutcomeKind.USER_ERROR, "script-raised", RAISED.strip(), TRACE + RAISED, seconds=2.0, with_ours=with_ours
    )
    runs: list[Config] = []

    def outcome(config: Config) -> Outcome:
        runs.append(config)
        return failed if len(runs) == 1 else replace(worlds.World().outcome(config), seconds=2.0)

    plan = worlds.plan(tmp_path, trials=2)
    ran = Ran(plan, outcome)
    assert ran.result.broke_it == () and ran.result.best is not None
    [told] = [each.text for each in of(ran.events, Noted) if "it failed by chance" in each.text]
    assert "a bad draw" in told
    fault = plan.folder / FAULT
    assert fault.exists() is is_ours is (str(fault) in told)
    if is_ours:
        kept = fault.read_text(encoding="utf-8")
        assert "by chance" in kept and "breaks" not in kept and OURS in kept and "as in the trial: it runs" in kept
