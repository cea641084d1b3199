"""The runner that serves outcomes from a function: what studies and samplers are tested on."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from tuner.model import BASELINE, Config, Device, Outcome, OutcomeKind, Script
from tuner.runner.replay import ReplayRunner
from tuner.runner.request import Interrupted, TrialRequest


def _request(config: Config) -> TrialRequest:
    return TrialRequest(Path("trial"), Script("train.py", ()), Device("cpu", 0, "a CPU", "", 0), config)


def _outcome(reason: str) -> Outcome:
    return Outcome(OutcomeKind.CRASHED, reason)


def test_what_was_asked_is_kept_in_order() -> None:
    runner = ReplayRunner(lambda config: _outcome(str(config["a"])))
    requests = [_request(Config(a=1)), _request(Config(a=2))]
    assert [runner.run(request, threading.Event()).reason for request in requests] == ["1", "2"]
    assert runner.requests == requests


def test_a_stop_before_or_during_a_trial_gives_no_outcome() -> None:
    stop = threading.Event()

    def stopping(config: Config) -> Outcome:
        stop.set()
        return _outcome("too late")

    runner = ReplayRunner(stopping)
    for asked in (1, 1):
        with pytest.raises(Interrupted):
            runner.run(_request(BASELINE), stop)
        assert len(runner.requests) == asked
