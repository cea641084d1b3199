"""A Keras config that departs from the script's own course is contradicted: its rates, schedules and batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from support.keras_trials import Trial, arrays, begin, keras, model

from tuner.child.patches import unpatch_all

__all__ = ["begin"]
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(300)]

Begin = Callable[..., Trial]
Train = Callable[[int, Any], None]
ROWS, EPOCHS = 192, 3


def fit(size: int, optimizer: Any, **given: Any) -> None:
    model(optimizer=optimizer).fit(*arrays(ROWS), batch_size=size, epochs=EPOCHS, verbose=0, shuffle=False, **given)


def dataset(size: int, optimizer: Any) -> None:
    import tensorflow as tf

    data = tf.data.Dataset.from_tensor_slices(arrays(ROWS)).batch(size)
    model(optimizer=optimizer).fit(data, epochs=EPOCHS, verbose=0)


def on_batch(size: int, optimizer: Any) -> None:
    made = model(optimizer=optimizer)
    for x, y in batches(size):
        made.train_on_batch(x, y)


def eager(size: int, optimizer: Any) -> None:
    made = model()
    for x, y in batches(size):
        taken(made, optimizer, x, y)


def traced(size: int, optimizer: Any) -> None:
    import tensorflow as tf

    made = model()
    step = tf.function(lambda x, y: taken(made, optimizer, x, y))
    for x, y in batches(size):
        step(x, y)


def batches(size: int) -> Any:
    """All batches of a training, as tensors."""
    import tensorflow as tf

    return tf.data.Dataset.from_tensor_slices(arrays(ROWS)).batch(size).repeat(EPOCHS)


def taken(made: Any, optimizer: Any, x: Any, y: Any) -> None:
    import tensorflow as tf

    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((made(x) - y) ** 2)
    optimizer.apply_gradients(zip(tape.gradient(loss, made.trainable_weights), made.trainable_weights, strict=True))


WAYS: dict[str, Train] = {"fit": fit, "dataset": dataset, "on_batch": on_batch, "eager": eager, "traced": traced}
SEEN_BY_FAST = ("dataset", "on_batch", "eager", "traced")
"""What they share with the other one is tested with that in every run."""
OF_EVERY_RUN = [pytest.param(way, marks=pytest.mark.slow) if way in SEEN_BY_FAST else way for way in WAYS]
NUMBER = "a number", lambda size: 0.05
BY_BATCH = "by the batch", lambda size: 0.05 * size / 32
OF_SAMPLES = "of samples", lambda size: schedules().CosineDecay(0.05, EPOCHS * ROWS // size)
OF_BATCHES = "of batches", lambda size: schedules().CosineDecay(0.05, 18)
SPLIT = {"batch_size": 8, "grad_accumulation": 4}
FREED = {"batch_size": 64, "lr_scale": 2.0}


def schedules() -> Any:
    return keras().optimizers.schedules


def as_written(begin: Begin, train: Train, rate: Callable[[int], Any]) -> dict[str, Any]:
    """What the baseline's facts are."""
    trial = begin()
    train(32, keras().optimizers.SGD(rate(32)))
    facts = trial.end()
    assert facts["rates"][0] == [1, pytest.approx(0.05)]
    assert [step for step, _ in facts["rates"]] == [*range(1, 17)]
    assert facts["optimizer_steps"] == facts["steps"] == 18
    return {name: value for name, value in facts.items() if name not in ("kind", "t")}


@pytest.mark.parametrize("way", OF_EVERY_RUN)
def test_the_rate_of_each_step_is_noted(begin: Begin, way: str) -> None:
    facts = as_written(begin, WAYS[way], OF_BATCHES[1])
    written = schedules().CosineDecay(0.05, 18)
    assert [rate for _, rate in facts["rates"]] == [pytest.approx(float(written(n)), rel=1e-5) for n in range(16)]
    (schedule,) = facts["schedules"]
    assert (schedule["name"], schedule["steps"]) == ("CosineDecay", 18)
    assert schedule["horizon"]["decay_steps"] == 18


@pytest.mark.slow  # 3 s beside three others
@pytest.mark.parametrize("way", OF_EVERY_RUN)
@pytest.mark.parametrize(
    ("rate", "why"),
    [
        pytest.param(NUMBER, "", marks=pytest.mark.slow),
        pytest.param(
            BY_BATCH, "step 1 is taken at a learning rate of 0.2, as written 0.05 times 2", marks=pytest.mark.slow
        ),
        (OF_SAMPLES, ""),
        (OF_BATCHES, "CosineDecay has decay_steps 2 times the samples that it covers as written"),
    ],
    ids=lambda each: each[0] if isinstance(each, tuple) else "",
)
def test_a_freed_batch_that_the_script_is_told_keeps_its_course(
    begin: Begin, way: str, rate: tuple[str, Callable[[int], Any]], why: str
) -> None:
    facts = as_written(begin, WAYS[way], rate[1])
    trial = begin(FREED, **{**facts, "placeholders": ["batch_size"], "effective_batch": "free"})
    WAYS[way](64, keras().optimizers.SGD(rate[1](64)))
    trial.end()
    assert trial.evidence("lr_scale") == (("contradicted", why) if why else ("verified", ""))
    if why:
        assert trial.evidence("batch_size") == ("contradicted", why)
    elif way in ("fit", "dataset"):
        assert trial.evidence("batch_size")[0] == "verified"


def test_a_rate_that_no_one_can_read_is_not_scaled_on_trust(begin: Begin) -> None:
    """A function of the script's own may count its calls: it isn't called for our sake."""
    facts = {name: value for name, value in _by_function(begin(), 32).items() if name not in ("kind", "t")}
    trial = begin(FREED, **{**facts, "placeholders": ["batch_size"], "effective_batch": "free"})
    _by_function(trial, 64)
    assert trial.evidence("lr_scale")[0] == "contradicted"
    trial = begin(FREED, **{**facts, "effective_batch": "free"})
    _by_function(trial, 32)
    assert trial.evidence("lr_scale") == ("verified", "")


def test_a_schedule_that_counts_its_calls_is_called_as_often(begin: Begin) -> None:
    """Reading its rates moved it on: the baseline trained at rates that the script never has."""

    class Counting(schedules().LearningRateSchedule):  # type: ignore[misc]  # Keras' own, known when this runs
        calls = 0

        def __call__(self, step: Any) -> float:
            self.calls += 1
            return 0.05 / self.calls

    def calls() -> int:
        made, rate = model(), Counting()
        made.compile(keras().optimizers.SGD(rate), "mse", run_eagerly=True)
        made.fit(*arrays(ROWS), batch_size=32, verbose=0)
        return rate.calls

    trial = begin()
    seen = calls()
    facts = trial.end()
    assert facts["rates"][0] == [1, pytest.approx(0.05)]
    unpatch_all()
    assert seen == calls()


class Touchy:
    """An object of the script's own that is asked for nothing that it doesn't have."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(f"asked for {name}")


def test_what_a_model_holds_beside_its_optimizers_is_asked_nothing(begin: Begin) -> None:
    """The script ended with this object's own error: each attribute was asked for an optimizer."""
    trial = begin({"batch_size": 64}, as_written={"batch_size": 32}, effective_batch="free")
    made = model(optimizer=keras().optimizers.SGD(0.05))
    vars(made)["store"] = Touchy()
    made.fit(*arrays(ROWS), batch_size=32, verbose=0)
    trial.end()
    assert trial.evidence("batch_size") == ("verified", "") and trial.log.of("note") == []


@pytest.mark.parametrize("unread", ["as written", pytest.param("the candidate", marks=pytest.mark.slow)])
def test_a_rate_that_only_one_of_the_two_shows_verifies_nothing(begin: Begin, unread: str) -> None:
    """Nothing was compared, and batches in parts were verified."""
    rates: list[Any] = [0.05, lambda: 0.05]
    written, now = reversed(rates) if unread == "as written" else rates
    trial = begin()
    fit(32, keras().optimizers.SGD(written))
    facts = {name: value for name, value in trial.end().items() if name not in ("kind", "t")}
    trial = begin(SPLIT, **facts)
    fit(32, keras().optimizers.SGD(now))
    trial.end()
    kind, why = trial.evidence("grad_accumulation")
    assert kind == "unverifiable" and "learning rate" in why


def _by_function(trial: Trial, size: int) -> dict[str, Any]:
    fit(size, keras().optimizers.SGD(lambda: 0.05 * size / 32))
    return trial.end()


def test_a_loop_that_updates_by_itself_is_offered_no_parts(begin: Begin) -> None:
    """Nothing there makes one step of several batches: smaller ones would be another effective batch."""
    import tensorflow as tf

    def train() -> None:
        weight = tf.Variable(tf.zeros((4, 1)))
        for x, y in tf.data.Dataset.from_tensor_slices(arrays(ROWS)).batch(32):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((x @ weight - y) ** 2)
            weight.assign_sub(0.05 * tape.gradient(loss, weight))

    trial = begin()
    train()
    facts = {name: value for name, value in trial.end().items() if name not in ("kind", "t")}
    assert facts["as_written"]["batch_size"] == 32
    assert "grad_accumulation" in facts["left_out"]
    trial = begin(SPLIT, **facts)
    train()
    trial.end()
    assert trial.evidence("grad_accumulation")[0] == "contradicted"


@pytest.mark.parametrize(
    "rate", [pytest.param(OF_SAMPLES, marks=pytest.mark.slow), OF_BATCHES], ids=lambda each: each[0]
)
def test_a_batch_that_the_scripts_own_option_splits_is_held_against_its_course(
    begin: Begin, rate: tuple[str, Callable[[int], Any]]
) -> None:
    """Keras counts each part as a batch, and so do its schedules."""
    facts = as_written(begin, fit, rate[1])
    trial = begin(SPLIT, **{**facts, "placeholders": ["batch_size", "grad_accumulation"]})
    fit(8, keras().optimizers.SGD(rate[1](8), gradient_accumulation_steps=4))
    trial.end()
    departs = rate is OF_BATCHES
    assert trial.evidence("grad_accumulation")[0] == ("contradicted" if departs else "verified")
    if departs:
        assert trial.evidence("batch_size")[1] == "CosineDecay has decay_steps 4.5, as written 18"


@pytest.mark.slow  # 2 s beside three others
@pytest.mark.parametrize("rate", [pytest.param(NUMBER, marks=pytest.mark.slow), OF_BATCHES], ids=lambda each: each[0])
def test_a_freed_batch_that_is_changed_behind_the_scripts_back_keeps_its_course(
    begin: Begin, rate: tuple[str, Callable[[int], Any]]
) -> None:
    facts = as_written(begin, fit, rate[1])
    trial = begin(FREED, **{**facts, "effective_batch": "free"})
    fit(32, keras().optimizers.SGD(rate[1](32)))
    trial.end()
    assert trial.evidence("lr_scale") == ("verified", "")
    assert trial.evidence("batch_size")[0] == "verified"


@pytest.mark.parametrize("averages", [True, False])
def test_a_moving_average_of_keras_goes_by_the_samples(begin: Begin, averages: bool) -> None:
    """At its end the model has the average's weights: of twice the samples, and with few steps its first values."""

    def train() -> None:
        fit(8, keras().optimizers.SGD(0.05, use_ema=averages, ema_momentum=0.9))

    trial = begin()
    train()
    facts = {name: value for name, value in trial.end().items() if name not in ("kind", "t")}
    trial = begin({"batch_size": 16, "lr_scale": 2.0}, **{**facts, "effective_batch": "both"})
    train()
    trial.end()
    why = "a moving average of the weights moves with its steps: it covers 2 times the samples that it does as written"
    assert trial.evidence("batch_size") == (("contradicted", why) if averages else ("verified", ""))


@pytest.mark.slow
@pytest.mark.parametrize("told", [True, False])
def test_rates_that_callbacks_set_are_the_same_in_parts(begin: Begin, told: bool) -> None:
    """And one that follows the loss is another in each run: only its first step is held against the baseline's."""

    def train(size: int, lowered: float) -> Callable[[int, Any], None]:
        callback = keras().callbacks
        plateau = callback.ReduceLROnPlateau("loss", 0.5, patience=0, min_delta=10.0)
        falling = callback.LearningRateScheduler(lambda epoch, rate: rate * lowered)
        return lambda _, optimizer: fit(size, optimizer, callbacks=[falling, plateau][: 2 if lowered == 1.0 else 1])

    def evidence(lowered: float, lowered_now: float) -> tuple[str, str]:
        trial = begin()
        train(32, lowered)(32, keras().optimizers.SGD(0.05))
        facts = {name: value for name, value in trial.end().items() if name not in ("kind", "t")}
        trial = begin(SPLIT, **{**facts, "placeholders": ["batch_size"] if told else []})
        train(32, lowered_now)(32, keras().optimizers.SGD(0.05))
        trial.end()
        return trial.evidence("grad_accumulation")

    assert evidence(0.5, 0.5) == ("verified", "")
    kind, why = evidence(0.5, 0.4)
    assert (kind, why.partition(" is taken")[0]) == ("contradicted", "step 1")
    assert evidence(1.0, 1.0) == ("verified", "")


ELSEWHERE = """
    import os, sys
    os.environ["KERAS_BACKEND"] = sys.argv[1]
    import keras, numpy
    x = numpy.random.default_rng(0).random((192, 4), dtype="float32")
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    rate = keras.optimizers.schedules.CosineDecay(0.05, 18) if sys.argv[2] == "schedule" else 0.05
    model.compile(keras.optimizers.SGD(rate), "mse")
    class WarmUp(keras.callbacks.Callback):
        seen = 0
        def on_train_batch_begin(self, batch, logs=None):
            self.seen += 1
            self.model.optimizer.learning_rate = 0.01 * self.seen
    if sys.argv[2] == "by batch":
        for row in range(0, 192, 32):
            model.train_on_batch(x[row:row + 32], x[row:row + 32].sum(1, keepdims=True))
    else:
        model.fit(x, x.sum(1, keepdims=True), batch_size=32, epochs=3, verbose=0,
                  callbacks=[WarmUp()] if sys.argv[2] == "callback" else [])
"""


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_rates_are_noted_on_every_backend(
    write_script: Callable[..., Any], run_child: Callable[..., Any], backend: str
) -> None:
    """With JAX what an optimizer holds is no variable's value while an epoch lasts."""
    script, whole = write_script(ELSEWHERE), {"min_s": 100, "max_s": 100, "warmup_s": 0.0, "warmup_steps": 1}
    noted = {}
    for what in ("schedule", "callback", "by batch"):
        ran = run_child(script, argv=(backend, what), window=whole)
        assert ran.returncode == 0, ran.output
        noted[what] = [pytest.approx(rate, rel=1e-4) for _, rate in ran.facts["rates"]]
    assert noted["callback"] == [0.01 * step for step in range(1, 17)]
    assert noted["by batch"] == [0.05] * 6
    assert noted["schedule"] == [float(schedules().CosineDecay(0.05, 18)(n)) for n in range(16)]
