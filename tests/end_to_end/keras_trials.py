"""Trials in this very process: Keras is instrumented, nothing ends, and every patch is put back."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest
from torch_trials import ENDLESS, Log

from tuner.child.patches import unpatch_all
from tuner.child.session import Session


def keras() -> ModuleType:
    """Keras on TensorFlow. What these libraries warn of while they are imported is no business of a test."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
    pytest.importorskip("tensorflow", reason="TensorFlow isn't installed", exc_type=ImportError)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import keras as module
    imported: ModuleType = module
    return imported


class Trial:
    """A session, its adapter and its records, none of which ends this process."""

    def __init__(self, config: dict[str, Any], knowledge: dict[str, Any], probe: str = "", device: str = "cpu") -> None:
        import tensorflow

        from tuner.child.keras_adapter import KerasAdapter

        self.log = Log()
        request = {
            "config": config, "knowledge": knowledge, "window": ENDLESS, "device": device, "folder": "", "probe": probe,
        }  # fmt: skip
        self.session = Session(request, self.log)
        self.adapter = KerasAdapter(self.session)
        self.adapter.meet_tensorflow(tensorflow)
        self.adapter.meet_keras(keras())

    def end(self) -> dict[str, Any]:
        """The facts record."""
        self.session.finish(complete=False)
        return self.log.of("facts")[0]

    def evidence(self, knob: str) -> tuple[str, str]:
        """What was found of a knob, and why."""
        record = next(r for r in self.log.of("knob") if r["knob"] == knob)
        return record["evidence"], record["reason"]


@pytest.fixture
def begin(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Trial]]:
    """Begins trials; what they patched is put back."""
    # A trial that stops would end this process, should its script not unwind in time.
    monkeypatch.setattr("tuner.child.session._watchdog", lambda: None)
    keras()

    def start(
        config: dict[str, Any] | None = None, *, probe: str = "", device: str = "cpu", **knowledge: Any
    ) -> Trial:
        unpatch_all()
        return Trial(config or {}, knowledge, probe, device)

    yield start
    unpatch_all()
