"""What a script evaluates and predicts by itself, of a model whose training a config has changed: as it is written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
from support.keras_trials import Trial, arrays, begin, keras, model

from tuner.child.patches import unpatch_all

__all__ = ["begin"]
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(300)]

Begin = Callable[..., Trial]
CONFIG = {"steps_per_execution": 4}
ROWS = 8


def numbered() -> Any:
    """Endless batches of eight rows, whose answers are the numbers of the batches."""
    import tensorflow as tf

    return tf.data.Dataset.range(10**6).map(lambda n: (tf.ones((ROWS, 4)), tf.fill((ROWS, 1), tf.cast(n, tf.float32))))


def number(y: Any, p: Any) -> Any:
    """As a metric: the mean of the batches' numbers."""
    return keras().ops.mean(y, axis=-1)


@pytest.mark.slow  # 2 s beside three others
@pytest.mark.parametrize("mode", ["trial", pytest.param("apply", marks=pytest.mark.slow)])
def test_as_many_steps_are_evaluated_and_predicted_as_the_script_asks_for(begin: Begin, mode: str) -> None:
    """Tried before: with four steps in a call of training ten steps of an evaluation were twelve."""
    begin()
    unpatch_all()
    Trial(CONFIG, {"framework": "keras"}, mode=mode)
    made = model(metrics=[number])
    told = []

    class Asks(keras().callbacks.Callback):  # type: ignore[misc]  # Keras is imported late
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            told.append(self.model.evaluate(numbered(), steps=10, verbose=0)[1])

    made.fit(*arrays(64), batch_size=ROWS, epochs=2, verbose=0, callbacks=[Asks()], validation_data=arrays(64))
    assert made.steps_per_execution == 4
    assert told == [4.5, 4.5]
    assert len(made.predict(numbered(), steps=10, verbose=0)) == 10 * ROWS
    assert made.evaluate(numbered(), steps=3, verbose=0)[1] == 1.0
    assert int(made.optimizer.iterations.numpy()) == 16


def test_predictions_of_different_shapes_are_put_together_as_keras_does_it(begin: Begin) -> None:
    """Tried before: several steps in a call make one array of theirs, and of these none can be made."""
    import tensorflow as tf

    k = keras()
    begin(CONFIG, framework="keras")
    made = k.Sequential([k.Input((None, 4)), k.layers.Dense(1)])
    made.compile("sgd", "mse")
    made.fit(numpy.ones((32, 3, 4)), numpy.ones((32, 3, 1)), batch_size=4, verbose=0)
    lengths = tf.data.Dataset.range(1, 7).map(lambda n: tf.ones(tf.stack([2, tf.cast(n, tf.int32), 4])))
    assert [row.shape[0] for row in made.predict(lengths, verbose=0)] == [1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6]


class Looks:
    """Notes what a model has while something of it runs."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, int, bool]] = []

    def callback(self) -> Any:
        looks = self

        class Look(keras().callbacks.Callback):  # type: ignore[misc]  # Keras is imported late
            def note(self, what: str) -> None:
                looks.seen.append((what, self.model.steps_per_execution, self.model.jit_compile))

            def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
                self.note("fit")

            def on_test_begin(self, logs: Any = None) -> None:
                self.note("evaluate")

            def on_predict_begin(self, logs: Any = None) -> None:
                self.note("predict")

        return Look()


@pytest.mark.slow  # 2 s beside three others
def test_what_fit_validates_on_runs_as_it_trains_and_all_else_as_written(begin: Begin) -> None:
    begin({**CONFIG, "jit_compile": True}, framework="keras")
    made, looks, data = model(), Looks(), arrays(64)
    made.fit(*data, batch_size=ROWS, verbose=0, callbacks=[looks.callback()], validation_data=data)
    made.evaluate(*data, verbose=0, callbacks=[looks.callback()])
    made.predict(data[0], verbose=0, callbacks=[looks.callback()])
    made.fit(*data, batch_size=ROWS, verbose=0, callbacks=[looks.callback()])
    trains, written = (4, True), (1, False)
    assert looks.seen == [
        ("fit", *trains), ("evaluate", *trains), ("evaluate", *written), ("predict", *written), ("fit", *trains),
    ]  # fmt: skip


@pytest.mark.slow  # 8 s beside three others
def test_it_is_traced_no_more_often_and_follows_a_model_that_is_compiled_anew(begin: Begin) -> None:
    begin(CONFIG, framework="keras")
    traces = []

    def traced(y: Any, p: Any) -> Any:
        traces.append(1)
        return keras().ops.mean(p, axis=-1)

    def rounds(made: Any) -> list[int]:
        counts = []
        for _ in range(3):
            made.fit(*arrays(64), batch_size=ROWS, verbose=0, validation_data=arrays(64))
            before = len(traces)
            made.evaluate(*arrays(64), batch_size=ROWS, verbose=0)
            counts.append(len(traces) - before)
        return counts

    made = model(metrics=[traced])
    assert rounds(made)[1:] == [0, 0]
    made.compile("sgd", "mse", metrics=[number], steps_per_execution=4)
    assert made.evaluate(numbered(), steps=4, verbose=0, return_dict=True).keys() == {"loss", "number"}
    made.fit(*arrays(64), batch_size=ROWS, verbose=0)
    assert made.evaluate(numbered(), steps=4, verbose=0, return_dict=True)["number"] == 1.5
    made.compile("sgd", "mse", metrics=["mae"])
    made.fit(*arrays(64), batch_size=ROWS, verbose=0)
    assert made.evaluate(*arrays(64), verbose=0, return_dict=True).keys() == {"loss", "mae"}
    assert len(made.predict(numbered(), steps=5, verbose=0)) == 5 * ROWS


@pytest.mark.slow  # 4 s beside three others
def test_a_model_that_nobody_holds_any_more_goes(begin: Begin) -> None:
    """Under ``autotune run`` a search over models makes hundreds of them."""
    import gc
    import weakref

    begin(CONFIG, framework="keras")
    gone = []
    for _ in range(3):
        made = model()
        made.fit(*arrays(64), batch_size=ROWS, verbose=0)
        made.evaluate(*arrays(64), verbose=0)
        gone.append(weakref.ref(made))
    del made
    gc.collect()
    assert sum(each() is not None for each in gone) <= 1, "the newest one"


ON_JAX = """
    import os
    os.environ["KERAS_BACKEND"] = "jax"
    import keras, numpy

    def endless():
        while True:
            yield numpy.ones((8, 4), "float32"), numpy.ones((8, 1), "float32")

    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    model.fit(endless(), steps_per_epoch=8, epochs=2, verbose=0)
    print("has", model.steps_per_execution, "predicted", len(model.predict(endless(), steps=10, verbose=0)))
"""


@pytest.mark.slow  # another backend
def test_so_it_is_on_jax(write_script: Callable[..., Path], run_child: Callable[..., Any]) -> None:
    ran = run_child(write_script(ON_JAX), CONFIG, mode="apply")
    assert ran.returncode == 0 and "has 4 predicted 80" in ran.output, ran.output


# several calls of fit


def stages(made: Any, *, freezes: bool) -> None:
    """A head is trained first, and all of the model later."""
    made.layers[0].trainable = not freezes
    made.compile("sgd", "mse")
    made.fit(*arrays(64), batch_size=ROWS, verbose=0)
    made.layers[0].trainable = True
    made.compile("sgd", "mse")
    for _ in range(2):
        made.fit(*arrays(64), batch_size=ROWS, verbose=0)


STAGES = "fit trains 49 weights by now, and 9 at first: "


@pytest.mark.slow  # 2 s beside three others
@pytest.mark.parametrize("freezes", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_stages_that_train_other_weights_are_told(
    begin: Begin, capfd: pytest.CaptureFixture[str], freezes: bool
) -> None:
    """A profile was proven in the first seconds of the first one, and nothing said so."""
    trial = begin()
    stages(model(), freezes=freezes)
    remarks = trial.end().get("remarks", [])
    assert [remark.startswith(STAGES) for remark in remarks] == [True] * freezes
    unpatch_all()
    Trial(CONFIG, {"framework": "keras"}, mode="apply")
    stages(model(), freezes=freezes)
    told = [line for line in capfd.readouterr().err.splitlines() if "weights by now" in line]
    assert [line.startswith(f"autotune: {STAGES}the profile") for line in told] == [True] * freezes


# what feeds it


def loader() -> Any:
    import torch

    class Own(torch.utils.data.DataLoader):  # type: ignore[misc]  # torch is Any to mypy
        """A class of the script's."""

    x, y = map(torch.from_numpy, arrays(64))
    return Own(torch.utils.data.TensorDataset(x, y), batch_size=ROWS)


def distributed() -> Any:
    import tensorflow as tf

    data = tf.data.Dataset.from_tensor_slices(arrays(64)).batch(ROWS)
    return tf.distribute.get_strategy().experimental_distribute_dataset(data)


@pytest.mark.parametrize(("kind", "why"), [("loader", "torch DataLoader"), ("distributed", "shares its batches out")])
def test_batches_that_keras_does_not_make_are_none_of_its_arrays(begin: Begin, kind: str, why: str) -> None:
    """Tried before: they were taken for batches of 32, Keras' own size for arrays, and another one was tried."""
    import tensorflow as tf

    trial = begin()
    if kind == "loader":
        model().fit(loader(), verbose=0)
    else:
        with tf.distribute.OneDeviceStrategy("CPU:0").scope():
            model().fit(distributed(), verbose=0)
    facts = trial.end()
    assert facts["samples"] == 64
    assert why in facts["left_out"]["batch_size"]
    assert "batch_size" not in facts["as_written"]
