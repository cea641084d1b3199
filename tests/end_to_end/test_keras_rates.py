"""The learning rate under Keras goes with the batches that training was really given, not with those asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.keras_trials import Trial, arrays, begin, keras, model

__all__ = ["begin"]
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(300)]

Begin = Callable[..., Trial]
WRITTEN = {"batch_size": 10, "grad_accumulation": 1}
DROPPED = ("contradicted", "it goes with a size of the batches that isn't in effect")


def batches(rows: int = 200) -> Iterator[tuple[Any, Any]]:
    """A generator, whose batches of ten are the script's own."""
    x, y = arrays(rows)
    for row in range(0, rows, 10):
        yield x[row : row + 10], y[row : row + 10]


def schedule() -> Any:
    """Falls to a tenth after the script's fifth batch."""
    return keras().optimizers.schedules.PiecewiseConstantDecay([4], [0.1, 0.01])


class Rates(list[float]):
    """The rate behind each step, as the script sees it."""

    def callback(self) -> Any:
        seen = self

        class Reading(keras().callbacks.Callback):  # type: ignore[misc]
            def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
                seen.append(round(float(self.model.optimizer.learning_rate), 6))

        return Reading()


OTHERS = ("arrays", None), ("dataset", 7)


@pytest.mark.parametrize(
    ("fed_by", "steps_per_epoch"),
    [("generator", None), ("arrays", 7), *(pytest.param(*each, marks=pytest.mark.slow) for each in OTHERS)],
)
def test_a_schedule_keeps_its_pace_where_the_batch_is_refused(
    begin: Begin, fed_by: str, steps_per_epoch: int | None
) -> None:
    """Seven steps can't be made of batches twice as large, and a generator's batches are its own."""
    import tensorflow as tf

    trial = begin({"batch_size": 20, "lr_scale": 2.0}, framework="keras", as_written=WRITTEN)
    rates = Rates()
    made = model(optimizer=keras().optimizers.SGD(schedule()))
    given: dict[str, Any] = {"verbose": 0, "steps_per_epoch": steps_per_epoch, "callbacks": [rates.callback()]}
    if fed_by == "generator":
        made.fit(batches(), **given)
    elif fed_by == "dataset":
        made.fit(tf.data.Dataset.from_tensor_slices(arrays(200)).batch(10), **given)
    else:
        made.fit(*arrays(200), batch_size=10, **given)
    trial.end()
    if fed_by == "arrays" and steps_per_epoch is None:
        assert rates == [0.2] * 3 + [0.02] * 7
        assert trial.evidence("lr_scale") == ("verified", "")
        return
    assert rates[:7] == [0.1] * 5 + [0.01] * 2
    assert trial.evidence("lr_scale") == DROPPED


@pytest.mark.parametrize("applied", [pytest.param(False, marks=pytest.mark.slow), True])
def test_a_number_is_scaled_only_with_its_batch(begin: Begin, applied: bool) -> None:
    trial = begin({"batch_size": 20, "lr_scale": 2.0}, framework="keras", as_written=WRITTEN)
    made = model(optimizer=keras().optimizers.Adam(0.1))
    made.fit(*arrays(200), batch_size=10, verbose=0, steps_per_epoch=8 if applied else 7)
    trial.end()
    assert float(made.optimizer.learning_rate) == pytest.approx(0.2 if applied else 0.1)
    assert trial.evidence("lr_scale") == (("verified", "") if applied else DROPPED)


def test_each_call_of_fit_has_the_rate_of_its_batches(begin: Begin) -> None:
    begin({"batch_size": 20, "lr_scale": 2.0}, framework="keras", as_written=WRITTEN)
    made = model(optimizer=keras().optimizers.SGD(0.1))
    seen = []
    for steps in (8, 7, 8):
        made.fit(*arrays(200), batch_size=10, verbose=0, steps_per_epoch=steps)
        seen.append(round(float(made.optimizer.learning_rate), 6))
    made.optimizer.learning_rate = 0.05  # the script's own, as for fine-tuning
    made.fit(*arrays(200), batch_size=10, verbose=0, steps_per_epoch=7)
    assert seen == [0.2, 0.1, 0.2]
    assert float(made.optimizer.learning_rate) == pytest.approx(0.05)


def test_a_schedule_that_was_traced_follows_each_call_of_fit(begin: Begin) -> None:
    """Plain SGD with a gradient of one moves the only weight by what the rate is."""
    begin({"batch_size": 20}, framework="keras", as_written=WRITTEN)
    k = keras()

    def moved(*steps: int) -> float:
        made = k.Sequential([k.Input((1,)), k.layers.Dense(1, use_bias=False, kernel_initializer="zeros")])
        made.compile(k.optimizers.SGD(schedule()), lambda y, prediction: prediction)
        ones = k.ops.convert_to_numpy(k.ops.ones((200, 1)))
        for taken in steps:
            made.fit(ones, ones, batch_size=10, verbose=0, steps_per_epoch=taken)
        return -float(made.get_weights()[0][0, 0])

    assert moved(8) == pytest.approx(3 * 0.1 + 0.01)  # at 0, 2, 4 and 6 of the script's own steps
    assert moved(7) == pytest.approx(5 * 0.1 + 2 * 0.01)
    assert moved(2, 7) == pytest.approx(0.1 + 4 * 0.1 + 3 * 0.01)


@pytest.mark.parametrize("way", ["train_on_batch", "loop"])
def test_batches_of_the_scripts_own_keep_its_rate(begin: Begin, way: str) -> None:
    import tensorflow as tf

    trial = begin({"batch_size": 20, "lr_scale": 2.0}, framework="keras", as_written=WRITTEN)
    optimizer = keras().optimizers.SGD(schedule())
    number = keras().optimizers.SGD(0.1)
    made = model(optimizer=optimizer)
    rates = []
    for x, y in batches():
        rates.append(round(float(optimizer.learning_rate), 6))
        if way == "train_on_batch":
            made.train_on_batch(x, y)
            continue
        with tf.GradientTape(persistent=True) as tape:
            loss = tf.reduce_mean((made(x) - y) ** 2)
        for each in (optimizer, number):
            each.apply_gradients(zip(tape.gradient(loss, made.trainable_weights), made.trainable_weights, strict=True))
    trial.end()
    assert rates[1:7] == [0.1] * 4 + [0.01] * 2
    if way == "loop":
        assert float(number.learning_rate) == pytest.approx(0.1)
    assert trial.evidence("lr_scale") == DROPPED


@pytest.mark.parametrize("fitted", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_an_optimizer_that_is_saved_and_loaded_is_scaled_once(begin: Begin, fitted: bool, tmp_path: Path) -> None:
    """Tried before: the rate of a copy was scaled twice, and a saved model said the scaled one."""
    k = keras()
    trial = begin({"batch_size": 20, "lr_scale": 2.0}, framework="keras", as_written=WRITTEN)
    made = model(optimizer=k.optimizers.SGD(0.01))
    if fitted:
        made.fit(*arrays(), batch_size=10, verbose=0)
    made.save(tmp_path / "model.keras")
    loaded = k.models.load_model(tmp_path / "model.keras")
    copied = k.optimizers.SGD.from_config(made.optimizer.get_config())
    assert made.optimizer.get_config()["learning_rate"] == pytest.approx(0.01, rel=1e-7)
    for optimizer in (made.optimizer, loaded.optimizer, copied):
        assert float(optimizer.learning_rate.numpy()) == pytest.approx(0.02)
    loaded.fit(*arrays(), batch_size=10, verbose=0)
    assert float(loaded.optimizer.learning_rate.numpy()) == pytest.approx(0.02)
    loaded.optimizer.learning_rate = 0.003
    assert float(k.optimizers.SGD.from_config(loaded.optimizer.get_config()).learning_rate.numpy()) == pytest.approx(
        0.003
    )
    if not fitted:
        loaded.optimizer.learning_rate = 0.02
    trial.end()
    assert trial.evidence("lr_scale")[0] == ("contradicted" if fitted else "verified")
