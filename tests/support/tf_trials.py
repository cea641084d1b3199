"""Trials in this very process: TensorFlow is instrumented, nothing ends, and every patch is put back."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from support.in_process import InProcess
from tuner.child.own_batches import UNTOLD
from tuner.child.patches import unpatch_all

STEPS_ALONE = f"steps are counted, and not samples: {UNTOLD}"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")


class TensorFlowTrial(InProcess):
    """With the watch on loops alone."""

    def __init__(
        self, config: dict[str, Any], knowledge: dict[str, Any], datasets: Any, request: dict[str, Any]
    ) -> None:
        super().__init__(config, knowledge, **request)
        import keras
        import tensorflow as tf

        from tuner.child.tensorflow.loops import LoopWatch

        self.loops = LoopWatch(self.session, tf, datasets)
        self.loops.install()
        self.loops.note_keras(keras)
        self.session.clock.synchronize = self.loops.synchronize
        self.session.clock.activity = self.loops.activity
        self.session.observers.append(self.loops.observe)


@pytest.fixture
def begin(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., TensorFlowTrial]]:
    """Begins trials; what they patched is put back."""
    # A trial that stops would end this process, should its script not unwind in time.
    monkeypatch.setattr("tuner.child.session._watchdog", lambda: None)

    def start(
        config: dict[str, Any] | None = None, *, datasets: Any = None, request: dict[str, Any] | None = None,
        **knowledge: Any,
    ) -> TensorFlowTrial:  # fmt: skip
        unpatch_all()
        return TensorFlowTrial(config or {}, knowledge, datasets, request or {})

    yield start
    unpatch_all()
