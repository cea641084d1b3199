"""Memory caps and strategies of a card, with TensorFlow's own functions on a stand-in for one."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from support.keras_trials import begin, keras

__all__ = ["begin"]

pytestmark = pytest.mark.filterwarnings("ignore")
TESTS = Path(__file__).parents[1]

# A card that TensorFlow believes to be there: everything but its runtime, which never starts here, is the real thing.
# It can't be taken away again, and so each case has a process of its own, forked once TensorFlow is imported.
CARD = """
import json, os, sys, traceback
import tensorflow as tf
from tensorflow.python.eager import context
from support.in_process import Log, session_of
from tuner.child.keras.adapter import KerasAdapter

def show(grows, value="", silent=""):
    config = {"memory_growth": value == "yes"} if value else {"prefetch": 4}
    known = {"yes": {"memory_growth": True}, "no": {"memory_growth": False}, "unknown": {}}[grows]
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
        for gpu in tf.config.list_physical_devices("GPU") if not silent else []:
            tf.config.experimental.set_memory_growth(gpu, True)  # as every other script begins
    except RuntimeError as error:
        print(error)
    experimental, threading = tf.config.experimental, tf.config.threading
    print("set", experimental.tensor_float_32_execution_enabled(), tf.config.optimizer.get_jit(),
          tf.config.optimizer.get_experimental_options(), tf.config.get_soft_device_placement(),
          threading.get_intra_op_parallelism_threads(), threading.get_inter_op_parallelism_threads())
    limits = tf.config.get_logical_device_configuration(card) or []
    grows = bool(tf.config.experimental.get_memory_growth(card))
    print("limits", [limit.memory_limit for limit in limits], "grows", grows)

for number, words in enumerate(json.loads(sys.argv[1])):
    if os.fork() == 0:
        for descriptor, name in ((1, "out"), (2, "err")):
            os.dup2(os.open(f"{sys.argv[2]}/{number}.{name}", os.O_WRONLY | os.O_CREAT), descriptor)
        try:
            show(*words)
        except BaseException:
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)
    os.wait()
"""
CASES = (("yes",), ("unknown",), ("no",), ("no", "yes", "silent"), ("no", "no", "silent"), ("no", "no"))
"""Whether the baseline's memory grew; the knob's value, if it is turned; and whether the script says nothing of it."""
OnACard = Mapping[tuple[str, ...], tuple[list[str], str]]


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> OnACard:
    """The lines that each case printed, and its errors."""
    folder = tmp_path_factory.mktemp("card")
    subprocess.run([sys.executable, "-c", CARD, json.dumps(CASES), str(folder)], cwd=TESTS, timeout=240, check=True)
    told = [[(folder / f"{number}.{name}").read_text() for name in ("out", "err")] for number in range(len(CASES))]
    return {case: (out.splitlines(), errors) for case, (out, errors) in zip(CASES, told, strict=True)}


@pytest.mark.slow  # 14 s beside three others
@pytest.mark.parametrize("grows", ["yes", "unknown"])
def test_a_script_may_ask_for_memory_as_it_needs_it(shown: OnACard, grows: str) -> None:
    """A card whose memory is capped can't grow any more, and the ValueError is one that no script waits for."""
    lines, errors = shown[(grows,)]
    assert "Traceback" not in errors, errors[-3000:]
    assert lines[-1] == "limits [] grows True"


def test_a_card_is_capped_where_the_baseline_took_all_of_it(shown: OnACard) -> None:
    # Here the script does what its baseline didn't: that the cap holds shows by TensorFlow's refusal.
    assert "ValueError: Cannot set memory growth on device when virtual devices configured" in shown[("no",)][1]


def test_how_a_card_gives_its_memory_is_all_that_the_knob_sets(shown: OnACard) -> None:
    """Neither is it capped, nor does anything change that decides what is computed."""
    (grown, at_need), (taken, at_once) = (shown[("no", value, "silent")][0][-2:] for value in ("yes", "no"))
    assert (at_need, at_once) == ("limits [] grows True", "limits [] grows False")
    assert grown == taken
    assert grown.startswith("set True  {") and grown.endswith("} True 0 0"), "as TensorFlow has it by itself"


def test_a_script_that_says_itself_how_memory_is_given_has_its_way(shown: OnACard) -> None:
    assert shown[("no", "no")][0][-1] == "limits [] grows True"


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


def train(*, mirrored: bool = True) -> Any:
    import numpy as np
    import tensorflow as tf

    layers = keras().layers
    with tf.distribute.MirroredStrategy(["CPU:0"]).scope() if mirrored else tf.name_scope("plain"):
        model = keras().Sequential([layers.Input([4]), layers.Dense(1)])
        model.compile("sgd", "mse")
    model.fit(np.zeros((64, 4)), np.zeros((64, 1)), verbose=0)
    return model


@pytest.mark.slow  # 4 s beside three others
def test_a_strategy_that_is_undone_does_not_switch_xla_on(begin: Callable[..., Any], on_a_card: None) -> None:
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


@pytest.mark.slow  # 2 s beside three others
@pytest.mark.parametrize("mirrored", [True, False])
def test_the_wait_under_a_strategy_is_not_seen(begin: Callable[..., Any], mirrored: bool) -> None:
    trial = begin()
    train(mirrored=mirrored)
    assert trial.end()["wait_is_unseen"] is mirrored
