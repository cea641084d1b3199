"""TensorFlow on a TPU, as far as a made-up one reaches: what is asked for, in which order, and what then trains.

The resolver and the strategy are stand-ins, since TensorFlow's own find no TPU here; all else is the real thing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.keras_trials import arrays, begin, keras, model

__all__ = ["begin"]
pytestmark = pytest.mark.filterwarnings("ignore")
Begin = Callable[..., Any]


@pytest.fixture
def tpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """What TensorFlow is asked for."""
    keras()
    import tensorflow as tf

    asked: list[str] = []

    class TPUStrategy(tf.distribute.OneDeviceStrategy):  # type: ignore[misc]  # TensorFlow has no types
        def __init__(self, resolver: str) -> None:
            asked.append(f"strategy of {resolver}")
            super().__init__("CPU:0")

    def resolver(name: str) -> str:
        asked.append(f"resolver {name}")
        return "the resolver"

    listed = tf.config.list_logical_devices
    monkeypatch.setattr(tf.distribute.cluster_resolver, "TPUClusterResolver", resolver)
    monkeypatch.setattr(tf.config, "experimental_connect_to_cluster", lambda it: asked.append(f"connect {it}"))
    monkeypatch.setattr(tf.tpu.experimental, "initialize_tpu_system", lambda it: asked.append(f"initialize {it}"))
    monkeypatch.setattr(tf.distribute, "TPUStrategy", TPUStrategy)
    monkeypatch.setattr(
        tf.config, "list_logical_devices", lambda kind=None: ["a core"] if kind == "TPU" else listed(kind)
    )
    yield asked
    tf.distribute.experimental_set_strategy(None)


ASKED = ["resolver local", "connect the resolver", "initialize the resolver", "strategy of the resolver"]


@pytest.mark.parametrize("mirrored", [False, True])
def test_it_is_entered_around_a_script_that_makes_none(begin: Begin, tpu: list[str], mirrored: bool) -> None:
    """Before the first layer; in place of one that would train on the host's processor."""
    import tensorflow as tf

    trial = begin(device="tpu")
    with tf.distribute.MirroredStrategy().scope() if mirrored else tf.name_scope("plain"):
        net = model()
    net.fit(*arrays(), verbose=0)
    assert type(net.distribute_strategy).__name__ == "TPUStrategy"
    assert tpu == ASKED
    facts = trial.end()
    assert facts["as_written"]["strategy"] == "tpu"
    assert facts["left_out"]["strategy"] == "the TPU trains what runs on TPUStrategy, and nothing else"
    assert any("TPUStrategy was entered" in remark for remark in facts["remarks"])
    assert not trial.log.of("failure")


def test_one_of_the_scripts_own_is_left_alone(begin: Begin, tpu: list[str]) -> None:
    import tensorflow as tf

    trial = begin(device="tpu")
    with tf.distribute.TPUStrategy("its own").scope():
        net = model()
    net.fit(*arrays(), verbose=0)
    assert tpu == ["strategy of its own"]
    facts = trial.end()
    assert facts["left_out"]["strategy"] == "the script chooses its cluster itself"
    assert not any("TPUStrategy was entered" in remark for remark in facts["remarks"])


@pytest.mark.parametrize("runs", [False, True])
def test_a_loop_that_runs_nothing_on_it_is_refused(begin: Begin, tpu: list[str], runs: bool) -> None:
    import tensorflow as tf

    trial = begin(device="tpu")
    layer = keras().layers.Dense(1)
    layer.build((None, 4))

    def step(x: Any, y: Any) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((layer(x) - y) ** 2)
        for weight, gradient in zip(layer.trainable_variables, tape.gradient(loss, layer.weights), strict=True):
            weight.assign_sub(0.1 * gradient)

    strategy = tf.distribute.get_strategy()
    for x, y in tf.data.Dataset.from_tensor_slices(arrays()).batch(10):
        strategy.run(step, (x, y)) if runs else step(x, y)
    trial.end()
    failures = trial.log.of("failure")
    if runs:
        assert not failures
    else:
        assert failures[0]["reason"] == "unsupported" and "calls no strategy's run" in failures[0]["detail"]


SCRIPT = """
    import keras, numpy as np
    model = keras.Sequential([keras.layers.Input([4]), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    model.fit(np.zeros((64, 4)), np.zeros((64, 1)), verbose=0)
    print("trained on", type(model.distribute_strategy).__name__)
"""


@pytest.mark.parametrize("mode", ["trial", pytest.param("apply", marks=pytest.mark.slow)])
def test_a_machine_without_one_says_so(write_script: Callable[..., Path], run_child: Begin, mode: str) -> None:
    """TensorFlow's own resolver and initialization, in a process of its own. Nothing counts as trained on a TPU."""
    run = run_child(write_script(SCRIPT), {}, device="tpu", mode=mode)
    why = "strategy tpu can't be had: TPUs not found in the cluster"
    if mode == "apply":
        assert why in run.output and "trained on _DefaultDistributionStrategy" in run.output
    else:
        (failure,) = run.of("failure")
        assert failure["reason"] == "unsupported" and failure["detail"].startswith(why)
        assert "trained on" not in run.output
