"""Models of Keras' whose weights are integers, and which are trained by adapters of low rank."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from support.keras_trials import Trial, arrays, begin, keras

__all__ = ["begin"]
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(300)]


def test_products_of_integers_cost_no_evidence(begin: Callable[..., Trial]) -> None:
    """TensorFlow's product of int8 has two formats of inputs: of no knob was anything observed for it."""
    trial = begin({"precision": "bf16", "steps_per_execution": 3}, framework="keras")
    k = keras()
    made: Any = k.Sequential([k.Input((4,)), k.layers.Dense(8), k.layers.Dense(1)])
    made.quantize("int8")
    made.layers[0].enable_lora(2)
    made.compile("adam", "mse")
    made.fit(*arrays(24), batch_size=8, verbose=0)
    trial.end()
    assert not trial.log.of("note")
    assert trial.evidence("precision") == ("verified", "")
    assert trial.evidence("steps_per_execution") == ("verified", "")
