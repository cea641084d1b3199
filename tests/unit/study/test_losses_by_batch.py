"""Studies of a script whose loss is another one in larger batches, whatever is learned: it proves none of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.overhead import Overhead, studied

from tuner.model import Phase
from tuner.report.summary import summary


@pytest.mark.parametrize("by_batch", [-0.2, 0.2], ids=["lower", "higher"])
def test_no_larger_batch_is_proven_by_a_loss_that_depends_on_it(tmp_path: Path, by_batch: float) -> None:
    """A loss that begins lower seemed to be reached sooner; one that begins higher was said to learn too little."""
    ran = studied(tmp_path, Overhead(by_batch=by_batch))
    larger = ran.result.larger
    assert larger is not None and not larger.proven and larger.efficiency is None
    assert larger.why == "its screen can't tell how it learns"
    screens = {trial.config: trial.seed for trial in ran.result.trials if trial.phase is Phase.SCREEN and trial.config}
    assert [*screens.values()] == [3], "one of the sizes, with no more seeds: the others would tell no more"
    told = summary(ran.result, {}, "")
    assert "it depends on the size of the batch, and can't be compared" in told and "would decide it" not in told
