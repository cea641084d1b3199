"""Serves outcomes from a function: studies and samplers are tested without processes or devices."""

from __future__ import annotations

import threading
from collections.abc import Callable

from tuner.model import Config, Outcome
from tuner.runner.request import Interrupted, Runner, TrialRequest


class ReplayRunner(Runner):
    """A runner whose device is a function of the config. ``requests`` holds what it was asked, in order."""

    def __init__(self, outcome_of: Callable[[Config], Outcome]) -> None:
        self._outcome_of = outcome_of
        self.requests: list[TrialRequest] = []

    def run(self, request: TrialRequest, stop: threading.Event) -> Outcome:
        """The function's outcome for the request's config."""
        if stop.is_set():
            raise Interrupted
        self.requests.append(request)
        request.folder.mkdir(parents=True, exist_ok=True)
        outcome = self._outcome_of(request.config)
        if stop.is_set():
            raise Interrupted
        return outcome
