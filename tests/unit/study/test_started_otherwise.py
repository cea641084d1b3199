"""A script that ranks can't be measured of as it is started: what is advised has to help with that."""

from __future__ import annotations

from pathlib import Path

import pytest

from tuner.model import Outcome, OutcomeKind
from tuner.study.baseline import baseline_error


@pytest.mark.parametrize(("reason", "advice"), [
    ("own-processes", "--ranks N"), ("processes-awaited", "--ranks N"), ("no-group", "leave out --ranks"),
])  # fmt: skip
def test_how_ranks_are_studied_is_advised(tmp_path: Path, reason: str, advice: str) -> None:
    """A script without steps may tell of its own; one whose steps are taken elsewhere has none to tell of."""
    error = baseline_error(Outcome(OutcomeKind.INFEASIBLE, reason, "trains otherwise"), tmp_path)
    assert error.hint is not None and advice in error.hint and "tuner.report" not in error.hint


def test_who_had_the_cores_is_advised_to_end_where_the_script_stood_still_for_want_of_them(tmp_path: Path) -> None:
    """All that was advised was to look into the log."""
    outcome = Outcome(OutcomeKind.NO_PROGRESS, "crowded-out", "no step for 30 s; others had 1.6 cores that it wanted")
    hint = baseline_error(outcome, tmp_path).hint
    assert hint is not None and "end what else runs" in hint and "--trial-timeout" in hint
