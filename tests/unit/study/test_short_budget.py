"""A budget that is shorter than a trial may be: it bounds what is measured first, too."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from support import worlds

from tuner.errors import UntunableError
from tuner.formatting import seconds_text
from tuner.model import Outcome, OutcomeKind
from tuner.runner.request import Runner, TrialRequest
from tuner.search.structured import StructuredSampler
from tuner.study.run import run_study


class Slow(Runner):
    """Nothing of it is through in time."""

    def __init__(self) -> None:
        self.limits: list[float] = []

    def run(self, request: TrialRequest, stop: threading.Event) -> Outcome:
        """As the limit says."""
        self.limits.append(request.limits.trial_timeout_s)
        detail = f"not through after {self.limits[-1]:.0f} s: still in its start"
        return Outcome(OutcomeKind.TIMED_OUT, "deadline", detail)


@pytest.mark.parametrize(("budget_s", "limit_s"), [(40.0, 40.0), (120.0, 120.0), (1800.0, 120.0), (None, 120.0)])
def test_a_short_budget_bounds_what_is_measured_first(tmp_path: Path, budget_s: float | None, limit_s: float) -> None:
    """The search and the finals go by what runs take; of the first one nothing is known."""
    slow = Slow()
    with pytest.raises(UntunableError) as raised:
        run_study(
            worlds.plan(tmp_path, budget_s=budget_s), slow, StructuredSampler(), lambda event: None, threading.Event()
        )
    assert slow.limits == [limit_s]
    if budget_s == limit_s:
        assert raised.value.message == (
            f"the budget of {seconds_text(limit_s)} ended while the script as written was measured: not through after"
            f" {limit_s:.0f} s: still in its start"
        )
        assert raised.value.hint is not None and raised.value.hint.endswith("7m" if limit_s == 40 else "20m")
    else:
        assert raised.value.hint == "give a trial more time with --trial-timeout"
