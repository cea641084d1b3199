"""What the epochs of ``Model.fit`` begin with: part of a rate, as it is by the clock of the script itself."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.keras_trials import Trial, arrays, begin, keras, model
from support.rates import naive

__all__ = ["begin"]
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(300)]

# It takes its own time: that of all but its validation, as whoever holds two runs of it against each other does.
OWN_CLOCK = """
    import os, time
    os.environ["KERAS_BACKEND"] = "BACKEND"
    import keras, numpy

    class Timed(keras.Sequential):
        seconds, samples, since = 0.0, 0, None
        def evaluate(self, *args, **kwargs):
            if self.since:
                self.seconds += time.perf_counter() - self.since
                self.samples += ROWS
            try:
                return super().evaluate(*args, **kwargs)
            finally:
                self.since = time.perf_counter()

    x = numpy.random.default_rng(0).random((ROWS, 64), dtype="float32")
    model = Timed([keras.Input((64,)), keras.layers.Dense(256, "relu"), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    model.fit(x, x.sum(1), batch_size=BATCH, epochs=EPOCHS, verbose=0, validation_data=(x, x.sum(1)))
    print("by its own clock:", model.samples / model.seconds)
"""
TO_THE_END = {"warmup_steps": 1, "warmup_s": 0, "block_s": 0.02, "min_s": 200, "max_s": 200}


def own_clock(backend: str, batch: int) -> str:
    """The script with 64 epochs of that backend, and of batches of that size."""
    text = OWN_CLOCK.replace("BACKEND", backend).replace("ROWS", "2048").replace("BATCH", str(batch))
    return text.replace("EPOCHS", "64")


def check(ran: Any, own: float) -> None:
    """That the rate of its records is that of its own clock, in samples a second."""
    assert any(block["flagged"] for block in ran.of("block")), "validation is set apart"
    assert naive(ran) == pytest.approx(own, rel=0.05)


@pytest.mark.slow  # 14 s beside three others
@pytest.mark.timed
@pytest.mark.usefixtures("begin")
def test_what_an_epoch_begins_with_is_no_validation(write_script: Callable[..., Path]) -> None:
    """A new iterator, threads, the first batch: all that lay between a validation and the next call of the step."""
    script, names = write_script(own_clock("tensorflow", 2048)), dict[str, Any]()
    trial = Trial({}, {"set_apart": "all"}, window=TO_THE_END)
    exec(compile(script.read_text(), str(script), "exec"), names)
    trial.end()
    check(trial.log, names["model"].samples / names["model"].seconds)


@pytest.mark.timed
@pytest.mark.slow
@pytest.mark.parametrize(
    ("backend", "batch"),
    [
        pytest.param("tensorflow", 2048, id="tensorflow, one step"),
        pytest.param("tensorflow", 512, id="tensorflow, four steps"),
        pytest.param("torch", 2048, id="torch, one step"),
        pytest.param("jax", 2048, id="jax, one step"),
    ],
)
def test_nor_is_it_in_a_process_of_its_own(
    write_script: Callable[..., Path], run_child: Callable[..., Any], backend: str, batch: int
) -> None:
    script = write_script(own_clock(backend, batch))
    ran = run_child(script, window=TO_THE_END, knowledge={"set_apart": "all"}, fresh=True)
    assert ran.returncode == 0, ran.output
    check(ran, float(ran.output.rpartition("by its own clock:")[2].split()[0]))


ON_BATCH = """
    import os, time
    os.environ["KERAS_BACKEND"] = "torch"
    import keras, numpy
    x = numpy.random.default_rng(0).random((1024, 64), dtype="float32")
    y = x.sum(1)
    model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(512, "relu"), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    seconds, samples = 0.0, 0
    for epoch in range(40):
        began = time.perf_counter()
        for step in range(4):
            model.train_on_batch(x, y)
        if epoch > 1:
            seconds += time.perf_counter() - began
            samples += 4 * len(x)
        for step in range(2):
            model.test_on_batch(x, y)
    print("by its own clock:", samples / seconds)
"""


@pytest.mark.timed
@pytest.mark.slow  # of TensorFlow's loops: test_tf_loops.py
def test_the_first_step_behind_a_validation_takes_its_time(
    write_script: Callable[..., Path], run_child: Callable[..., Any]
) -> None:
    """Of loops by ``train_on_batch`` on the other backends: the time of one in four counted with the validation."""
    ran = run_child(write_script(ON_BATCH), window={**TO_THE_END, "block_s": 0.001}, fresh=True)
    assert ran.returncode == 0, ran.output
    own = float(ran.output.rpartition("by its own clock:")[2].split()[0])
    assert any(block["flagged"] for block in ran.of("block")), "validation is set apart"
    assert naive(ran) == pytest.approx(own, rel=0.05)


@pytest.mark.slow  # 5 s beside three others
@pytest.mark.parametrize(("epochs", "updates"), [(12, 3), (3, 0)])
def test_a_step_may_take_several_epochs(begin: Callable[..., Trial], epochs: int, updates: int) -> None:
    """Keras sums gradients over the end of an epoch; of a script that ends before the first update that is said."""
    trial = begin()
    x, y = arrays(128)
    made = model(optimizer=keras().optimizers.SGD(gradient_accumulation_steps=16))
    made.fit(x, y, batch_size=32, epochs=epochs, verbose=0)
    facts = trial.end()
    assert trial.session.clock.total_steps == updates == int(made.optimizer.iterations)
    assert facts["samples"] == (128 * epochs if updates else 0)
    failures = [record["detail"] for record in trial.log.of("failure")]
    told = "it trains on 12 batches in all, and its gradient_accumulation_steps is 16: "
    assert failures == ([] if updates else [f"{told}Keras updates no weights before so many"])


@pytest.mark.parametrize("batches", [1, 2])
def test_several_steps_in_one_call_take_an_epoch_of_several(begin: Callable[..., Trial], batches: int) -> None:
    """A replay memory's batch is all that a fit is given, time after time: no call could hold two of them."""
    trial, made = begin(), model()
    for _ in range(3):
        x, y = arrays(16 * batches)
        made.fit(x, y, batch_size=16, verbose=0)
    left_out = trial.end()["left_out"]
    assert left_out.get("steps_per_execution") == ("an epoch of this fit has one step" if batches == 1 else None)
