"""Trials in this very process: TensorFlow is instrumented, nothing ends, and every patch is put back."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from torch_trials import ENDLESS, Log

from tuner.child.patches import unpatch_all
from tuner.child.session import Session

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")


class TensorFlowTrial:
    """A session, the watch on loops and its records, none of which ends this process."""

    def __init__(self, config: dict[str, Any], knowledge: dict[str, Any], datasets: Any) -> None:
        import keras
        import tensorflow as tf

        from tuner.child.tf_loops import LoopWatch

        self.log = Log()
        request = {"config": config, "knowledge": knowledge, "window": ENDLESS, "device": "cpu", "folder": ""}
        self.session = Session(request, self.log)
        self.loops = LoopWatch(self.session, tf, datasets)
        self.loops.install()
        self.loops.note_keras(keras)
        self.session.clock.synchronize = self.loops.synchronize
        self.session.clock.activity = self.loops.activity
        self.session.observers.append(self.loops.observe)

    @property
    def steps(self) -> int:
        """Steps that were counted."""
        return self.session.clock.total_steps

    def end(self) -> dict[str, Any]:
        """The facts record."""
        self.session.finish(complete=False)
        return self.log.of("facts")[0]

    @property
    def samples(self) -> float:
        """Samples that were trained on; the open block's included, once ended."""
        return self.session.clock.total_samples

    def evidence(self, knob: str) -> tuple[str, str]:
        """What was found of a knob at last, and why."""
        record = [r for r in self.log.of("knob") if r["knob"] == knob][-1]
        return record["evidence"], record["reason"]

    def set_apart(self) -> int:
        """Blocks that aren't training."""
        return sum(block["flagged"] for block in self.log.of("block"))


@pytest.fixture
def begin(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., TensorFlowTrial]]:
    """Begins trials; what they patched is put back."""
    # A trial that stops would end this process, should its script not unwind in time.
    monkeypatch.setattr("tuner.child.session._watchdog", lambda: None)

    def start(config: dict[str, Any] | None = None, *, datasets: Any = None, **knowledge: Any) -> TensorFlowTrial:
        unpatch_all()
        return TensorFlowTrial(config or {}, knowledge, datasets)

    yield start
    unpatch_all()
