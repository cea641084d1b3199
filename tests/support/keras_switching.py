"""Keras scripts in this very process, in whose rotation the test itself switches between two calls of the step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy
import pytest

from support.in_process import ENDLESS
from support.keras_trials import Trial, keras
from tuner.child.keras.switch import KerasSwitcher
from tuner.child.patches import unpatch_all

Knobs = Mapping[str, Any]
Act = Callable[[KerasSwitcher, Any], None]


@pytest.fixture(autouse=True)
def unpatched(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Before and after each test nothing is patched."""
    monkeypatch.setattr("tuner.child.session._watchdog", lambda: None)
    keras()
    unpatch_all()
    yield
    unpatch_all()


def state(made: Any) -> list[Any]:
    """All that a step changes of a model."""
    held = [*made.variables, *made.metrics_variables, *made.optimizer.variables]
    return [numpy.array(variable.numpy()) for variable in held]


def same(one: list[Any], other: list[Any]) -> bool:
    """Bit for bit."""
    return len(one) == len(other) and all(a.tobytes() == b.tobytes() for a, b in zip(one, other, strict=True))


def acting(trial: Trial, at: Mapping[int, Act]) -> Any:
    """A callback that does something behind calls of these numbers, as the rotation does between two steps."""
    switcher, fits = trial.adapter.switcher(), trial.adapter.watches.fits
    assert fits is not None
    calls = [0]

    def stepped(made: Any) -> None:
        calls[0] += 1
        if calls[0] in at:
            at[calls[0]](switcher, made)

    fits.steps.on_step = stepped
    return switcher


def rotating(*configs: Knobs) -> Trial:
    """It never gets beyond its warm-up: the switches are the test's own."""
    return Trial({}, {}, rotation=[dict(config) for config in configs], window={**ENDLESS, "warmup_steps": 10**9})
