"""A script that starts its trainers itself: what is advised has to reach where the steps are taken."""

from __future__ import annotations

from pathlib import Path

from tuner.model import Outcome, OutcomeKind
from tuner.study.baseline import baseline_error


def test_a_script_that_starts_its_own_trainers_is_told_how_ranks_are_studied(tmp_path: Path) -> None:
    """A script without steps may tell of its own; one whose steps are taken elsewhere has none to tell of."""
    error = baseline_error(Outcome(OutcomeKind.INFEASIBLE, "own-processes", "in processes of its own"), tmp_path)
    assert error.hint is not None and "--ranks N" in error.hint and "tuner.report" not in error.hint
