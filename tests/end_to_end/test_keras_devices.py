"""Memory caps and strategies of a card, with TensorFlow's own functions on a stand-in for one."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.keras_trials import begin, keras

__all__ = ["begin"]

pytestmark = pytest.mark.filterwarnings("ignore")
TESTS = Path(__file__).parents[1]

# A card that TensorFlow believes to be there: everything but its runtime, which never starts here, is the real thing.
CARD = """
import sys
import tensorflow as tf
from tensorflow.python.eager import context
from support.in_process import Log, session_of
from tuner.child.keras.adapter import KerasAdapter

config = {"memory_growth": sys.argv[2] == "yes"} if len(sys.argv) > 2 else {"prefetch": 4}
known = {"yes": {"memory_growth": True}, "no": {"memory_growth": False}, "unknown": {}}[sys.argv[1]]
inside = context.context()
inside._initialize_physical_devices()
card = context.PhysicalDevice("/physical_device:GPU:0", "GPU")
inside._physical_devices.append(card)
inside._physical_device_to_index[card] = 0
inside._memory_growth_map[card] = None
request = {"device": "cuda:0", "config": config, "knowledge": {"as_written": known}, "max_device_bytes": 2**30}
adapter = KerasAdapter(session_of(request, Log()))
adapter.libraries["tensorflow"].configure(tf)
try:
    for gpu in tf.config.list_physical_devices("GPU") if "silent" not in sys.argv else []:
        tf.config.experimental.set_memory_growth(gpu, True)  # as every other script begins
except RuntimeError as error:
    print(error)
experimental, threading = tf.config.experimental, tf.config.threading
print("set", experimental.tensor_float_32_execution_enabled(), tf.config.optimizer.get_jit(),
      tf.config.optimizer.get_experimental_options(), tf.config.get_soft_device_placement(),
      threading.get_intra_op_parallelism_threads(), threading.get_inter_op_parallelism_threads())
limits = tf.config.get_logical_device_configuration(card) or []
print("limits", [limit.memory_limit for limit in limits], "grows", bool(tf.config.experimental.get_memory_growth(card)))
"""


@pytest.mark.parametrize("grows", [pytest.param("yes", marks=pytest.mark.slow), "unknown"])
def test_a_script_may_ask_for_memory_as_it_needs_it(grows: str) -> None:
    """A card whose memory is capped can't grow any more, and the ValueError is one that no script waits for."""
    done = subprocess.run(
        [sys.executable, "-c", CARD, grows], cwd=TESTS, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines()[-1] == "limits [] grows True"


def test_a_card_is_capped_where_the_baseline_took_all_of_it() -> None:
    done = subprocess.run(
        [sys.executable, "-c", CARD, "no"], cwd=TESTS, capture_output=True, text=True, timeout=120, check=False
    )
    # Here the script does what its baseline didn't: that the cap holds shows by TensorFlow's refusal.
    assert "ValueError: Cannot set memory growth on device when virtual devices configured" in done.stderr


def _on_a_card(*words: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", CARD, "no", *words], cwd=TESTS, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.splitlines()[-2:]


def test_how_a_card_gives_its_memory_is_all_that_the_knob_sets() -> None:
    """Neither is it capped, nor does anything change that decides what is computed."""
    (grown, at_need), (taken, at_once) = (_on_a_card(value, "silent") for value in ("yes", "no"))
    assert (at_need, at_once) == ("limits [] grows True", "limits [] grows False")
    assert grown == taken
    assert grown.startswith("set True  {") and grown.endswith("} True 0 0"), "as TensorFlow has it by itself"


@pytest.mark.slow
def test_a_script_that_says_itself_how_memory_is_given_has_its_way() -> None:
    assert _on_a_card("no")[-1] == "limits [] grows True"


@pytest.fixture
def on_a_card(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Keras decides on XLA as it does where there is a card."""

    def resolve(model: Any) -> bool:
        return not model._distribute_strategy

    trainer = next(cls for cls in keras().Model.__mro__ if "_resolve_auto_jit_compile" in cls.__dict__)
    monkeypatch.setattr(trainer, "_resolve_auto_jit_compile", resolve)
    import tensorflow as tf

    yield
    tf.distribute.experimental_set_strategy(None)


def test_a_strategy_that_is_undone_does_not_switch_xla_on(begin: Callable[..., Any], on_a_card: None) -> None:
    import numpy as np
    import tensorflow as tf

    def train(*, mirrored: bool = True) -> Any:
        layers = keras().layers
        with tf.distribute.MirroredStrategy(["CPU:0"]).scope() if mirrored else tf.name_scope("plain"):
            model = keras().Sequential([layers.Input([4]), layers.Dense(1)])
            model.compile("sgd", "mse")
        model.fit(np.zeros((64, 4)), np.zeros((64, 1)), verbose=0)
        return model

    baseline = begin()
    train()
    written = baseline.end()["as_written"]
    assert (written["strategy"], written["jit_compile"]) == ("mirrored", False)
    trial = begin({"strategy": "default"}, as_written=written)
    assert train().jit_compile is False
    trial.end()
    assert trial.evidence("strategy") == ("verified", "")
    both = begin({"strategy": "default", "jit_compile": True}, as_written=written)
    assert train().jit_compile is True
    both.end()
    begin()
    assert train(mirrored=False).jit_compile is True, "the stand-in decides as Keras does"


@pytest.mark.parametrize("mirrored", [True, False])
def test_the_wait_under_a_strategy_is_not_seen(begin: Callable[..., Any], mirrored: bool) -> None:
    import numpy as np
    import tensorflow as tf

    layers = keras().layers
    trial = begin()
    with tf.distribute.MirroredStrategy(["CPU:0"]).scope() if mirrored else tf.name_scope("plain"):
        model = keras().Sequential([layers.Input([4]), layers.Dense(1)])
        model.compile("sgd", "mse")
    model.fit(np.zeros((64, 4)), np.zeros((64, 1)), verbose=0)
    assert trial.end()["wait_is_unseen"] is mirrored
