"""Trials in this very process: Keras is instrumented, nothing ends, and every patch is put back."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import numpy
import pytest

from support.in_process import InProcess
from tuner.child.adapter import instrument
from tuner.child.patches import unpatch_all


def keras() -> ModuleType:
    """Keras on TensorFlow. What these libraries warn of while they are imported is no business of a test."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import keras as module
    imported: ModuleType = module
    return imported


def arrays(rows: int = 100) -> tuple[Any, Any]:
    """Inputs of four numbers, and their sums: to be learned."""
    chance = numpy.random.default_rng(0)
    x = chance.random((rows, 4), dtype="float32")
    return x, x.sum(1, keepdims=True)


def model(**compiled: Any) -> Any:
    """A small network for them, compiled with SGD and the mean squared error unless told otherwise."""
    k = keras()
    made = k.Sequential([k.Input((4,)), k.layers.Dense(8, activation="relu"), k.layers.Dense(1)])
    made.compile(**{"optimizer": "sgd", "loss": "mse", **compiled})
    return made


class Trial(InProcess):
    """With the adapter of Keras and TensorFlow."""

    def __init__(self, config: dict[str, Any], knowledge: dict[str, Any], **request: Any) -> None:
        super().__init__(config, knowledge, **request)
        import tensorflow

        from tuner.child.keras.adapter import KerasAdapter

        self.adapter = KerasAdapter(self.session)
        instrument(self.session, self.adapter, tensorflow)
        instrument(self.session, self.adapter, keras())


@pytest.fixture
def begin(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Trial]]:
    """Begins trials; what they patched is put back."""
    # A trial that stops would end this process, should its script not unwind in time.
    monkeypatch.setattr("tuner.child.session._watchdog", lambda: None)
    keras()

    def start(
        config: dict[str, Any] | None = None, *, probe: str | None = None, device: str = "cpu", seed: int | None = None,
        **knowledge: Any,
    ) -> Trial:  # fmt: skip
        unpatch_all()
        return Trial(config or {}, knowledge, probe=probe, device=device, seed=seed)

    yield start
    unpatch_all()
