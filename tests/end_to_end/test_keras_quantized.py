"""Models of Keras' whose weights are no float32: integers with adapters of low rank, or what ``set_floatx`` says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from support.keras_trials import Trial, arrays, begin, keras, model

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


@pytest.mark.slow  # 4 s beside three others
@pytest.mark.parametrize("config", [{}, {"precision": "bf16"}])
def test_a_format_of_all_floats_is_the_scripts_choice(begin: Callable[..., Trial], config: dict[str, str]) -> None:
    """It was told to be fp32 as written."""
    trial = begin(config, **({"framework": "keras"} if config else {}))
    k = keras()
    k.utils.clear_session()  # the policy that was asked for first lasts
    k.config.set_floatx("bfloat16")
    try:
        model().fit(*arrays(24), batch_size=8, verbose=0)
    finally:
        k.config.set_floatx("float32")
        k.utils.clear_session()
    facts = trial.end()
    why = "the script chooses the policy bfloat16 itself"
    assert (facts["as_written"]["precision"], facts["left_out"]["precision"]) == ("bf16", why)
    if config:
        assert trial.evidence("precision") == ("not applicable", why)
