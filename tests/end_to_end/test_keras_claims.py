"""What is claimed of Keras' knobs: each holds only where it changes nothing that the script counts or draws."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy
import pytest
from support.keras_trials import Trial, arrays, begin, keras, model

__all__ = ["begin"]
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(300)]

Begin = Callable[..., Trial]
ROWS = 100


def fit(made: Any, **arguments: Any) -> Any:
    return made.fit(*arrays(), **{"epochs": 2, "verbose": 0, "batch_size": 10, **arguments})


# several steps in one call


def by_batch(kind: str, tmp_path: Any) -> Any:
    """A callback that acts with batches."""
    k = keras()

    class OneCycle(k.callbacks.Callback):  # type: ignore[misc, name-defined]
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.model.optimizer.learning_rate = 0.1 / (1 + batch)

    if kind == "own":
        return OneCycle()
    if kind == "lambda":
        return k.callbacks.LambdaCallback(on_train_batch_begin=lambda batch, logs: None)
    return k.callbacks.ModelCheckpoint(str(tmp_path / "at-{batch}.keras"), save_freq=3)


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("own", "OneCycle acts with every batch"),
        pytest.param("lambda", "LambdaCallback acts with every batch", marks=pytest.mark.slow),
        ("save", "ModelCheckpoint saves after a number of batches"),
    ],
)  # fmt: skip
def test_several_steps_in_one_call_are_refused_where_a_callback_counts_batches(
    begin: Begin, tmp_path: Any, kind: str, why: str
) -> None:
    baseline = begin()
    fit(model(), callbacks=[by_batch(kind, tmp_path)])
    facts = baseline.end()
    assert why in facts["left_out"]["steps_per_execution"]
    assert facts["acts_by_batch"] == ("" if kind == "save" else why.split(maxsplit=1)[0])

    trial = begin({"steps_per_execution": 4}, framework="keras")
    made = model()
    fit(made, callbacks=[by_batch(kind, tmp_path)])
    trial.end()
    assert made.steps_per_execution == 1
    evidence, reason = trial.evidence("steps_per_execution")
    assert evidence == "contradicted"
    assert why in reason


def test_a_callback_is_told_to_act_as_often_as_the_script_has_it(begin: Begin, tmp_path: Any) -> None:
    """Not with every batch, where the script itself takes several steps in a call."""
    baseline = begin()
    fit(model(steps_per_execution=4), callbacks=[by_batch("own", tmp_path)])
    told = baseline.end()["left_out"]["steps_per_execution"]
    assert told == "OneCycle acts every 4 batches, as the script has it, and would do so at others"


def test_callbacks_that_only_look_leave_several_steps_in_one_call(begin: Begin, tmp_path: Any) -> None:
    k = keras()
    looking = [
        k.callbacks.CSVLogger(str(tmp_path / "log.csv")), k.callbacks.EarlyStopping("loss"),
        k.callbacks.TerminateOnNaN(),
        k.callbacks.ModelCheckpoint(str(tmp_path / "kept.keras")), k.callbacks.LearningRateScheduler(lambda n: 0.1),
        k.callbacks.ReduceLROnPlateau("loss"), k.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: None),
    ]  # fmt: skip
    trial = begin({"steps_per_execution": 4}, framework="keras")
    fit(model(), callbacks=looking)
    facts = trial.end()
    assert trial.evidence("steps_per_execution") == ("verified", "")
    assert "steps_per_execution" not in facts["left_out"]
    assert facts["samples"] == 2 * ROWS


@pytest.mark.parametrize(("steps", "taken"), [(8, True), (10, False)])
def test_an_epoch_that_the_script_counts_is_not_overrun(begin: Begin, steps: int, taken: bool) -> None:
    """Keras takes as many steps as fit into its calls: twelve where the script asks for ten, and four are in one."""
    import tensorflow as tf

    trial = begin({"steps_per_execution": 4}, framework="keras")
    made = model()
    endless = tf.data.Dataset.from_tensor_slices(arrays()).repeat().batch(10)
    made.fit(endless, epochs=2, steps_per_epoch=steps, verbose=0)
    facts = trial.end()
    assert int(made.optimizer.iterations.numpy()) == 2 * steps
    assert (facts["samples"], facts["steps"]) == (20 * steps, 2 * steps)
    assert facts["counted_steps"] == (steps,) or facts["counted_steps"] == [steps]
    assert trial.evidence("steps_per_execution")[0] == ("verified" if taken else "contradicted")


WRITTEN = {"batch_size": 10, "grad_accumulation": 1, "steps_per_execution": 1}


def fit_endless(made: Any, steps: int, epochs: int = 3, dataset: Any = None) -> Any:
    """A dataset without an end, in batches of ten, and epochs of so many of them."""
    import tensorflow as tf

    endless = tf.data.Dataset.from_tensor_slices(arrays()).repeat().batch(10) if dataset is None else dataset
    made.fit(endless, epochs=epochs, steps_per_epoch=steps, verbose=0)
    return endless


@pytest.mark.parametrize(("steps", "taken"), [(8, False), (16, True)])
def test_an_epoch_of_larger_batches_is_not_overrun(begin: Begin, steps: int, taken: bool) -> None:
    """Eight steps of the script are four of batches twice as large, and no call of eight."""
    trial = begin({"batch_size": 20, "steps_per_execution": 8}, framework="keras", as_written=WRITTEN)
    made = model()
    fit_endless(made, steps)
    facts = trial.end()
    assert int(made.optimizer.iterations.numpy()) == facts["steps"] == 3 * steps // 2
    assert facts["samples"] == 3 * 10 * steps
    assert trial.evidence("batch_size") == ("verified", "")
    evidence, reason = trial.evidence("steps_per_execution")
    assert evidence == ("verified" if taken else "contradicted")
    assert reason == ("" if taken else "4 steps, in batches of this size, are no multiple of 8")


def test_steps_beyond_an_epoch_are_not_hidden(begin: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
    """Should a refusal be missing: what the optimizer has counted tells."""
    monkeypatch.setattr("tuner.child.keras.fit.FitCall.why_not_several_steps", lambda *call: "")
    trial = begin({"batch_size": 20, "steps_per_execution": 8}, framework="keras", as_written=WRITTEN)
    fit_endless(model(), 8)
    trial.end()
    why = "the model was trained on 24 batches, where its epochs have 12"
    assert trial.evidence("steps_per_execution") == trial.evidence("batch_size") == ("contradicted", why)


def test_each_call_of_fit_is_asked_how_many_steps_its_epochs_have(begin: Begin) -> None:
    """What an earlier call has set on the model isn't the script's own."""
    trial = begin({"steps_per_execution": 8}, framework="keras", as_written=WRITTEN)
    made = model(steps_per_execution=2)
    fit_endless(made, 16, epochs=1)
    assert made.steps_per_execution == 8
    fit_endless(made, 10, epochs=1)
    facts = trial.end()
    assert made.steps_per_execution == 2
    assert int(made.optimizer.iterations.numpy()) == facts["steps"] == 26
    assert trial.evidence("steps_per_execution")[0] == "contradicted"


@pytest.mark.parametrize("fed_by", ["dataset", "arrays"])
def test_an_epoch_that_larger_batches_cannot_make_stays_as_it_is(begin: Begin, fed_by: str) -> None:
    trial = begin({"batch_size": 20}, framework="keras", as_written=WRITTEN)
    made = model()
    if fed_by == "dataset":
        fit_endless(made, 5)
    else:
        made.fit(*arrays(150), batch_size=10, steps_per_epoch=5, epochs=3, verbose=0)
    facts = trial.end()
    assert (facts["samples"], facts["steps"]) == (150, 15)
    evidence, reason = trial.evidence("batch_size")
    assert (evidence, reason) == ("contradicted", "5 steps of 10 samples each can't be made of batches of 20")


def test_each_call_of_fit_is_asked_whether_larger_batches_make_its_epochs(begin: Begin) -> None:
    trial = begin({"batch_size": 20}, framework="keras", as_written=WRITTEN)
    made = model()
    dataset = fit_endless(made, 6, epochs=1)
    fit_endless(made, 5, epochs=1, dataset=dataset)
    fit_endless(made, 4, epochs=1, dataset=dataset)
    facts = trial.end()
    assert (facts["samples"], facts["steps"]) == (150, 3 + 5 + 2)


def test_larger_batches_do_not_overrun_the_scripts_own_calls(begin: Begin) -> None:
    """It takes four steps in one call itself: of three steps it would take four."""
    trial = begin({"batch_size": 40}, framework="keras", as_written={**WRITTEN, "steps_per_execution": 4})
    made = model(steps_per_execution=4)
    fit_endless(made, 12)
    assert trial.end()["samples"] == 360
    assert int(made.optimizer.iterations.numpy()) == 36
    assert trial.evidence("batch_size")[0] == "contradicted"


# eager steps that are traced


class Noise:
    """Draws from a generator that nobody else knows."""

    def __init__(self) -> None:
        self.chance = numpy.random.default_rng(0)
        self.calls = 0


def own_layer(kind: str) -> Any:
    """A layer whose eager call depends on Python."""
    hidden = Noise()

    class Own(keras().layers.Layer):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.seen = 0

        def call(self, x: Any) -> Any:
            if kind == "numpy":
                return x + hidden.chance.normal()
            if kind == "python":
                return x * random.random()
            if kind == "branch":
                hidden.calls += 1
                return x * 2 if hidden.calls % 2 else x
            if kind == "counter":
                self.seen += 1
            return x

    return Own()


ELSE = [pytest.param(kind, marks=pytest.mark.slow) for kind in ("python", "branch", "none", "dropout")]


@pytest.mark.slow  # 4 s beside three others
@pytest.mark.parametrize("kind", ["numpy", "counter", *ELSE])
def test_an_eager_step_that_depends_on_python_may_not_be_traced(begin: Begin, kind: str) -> None:
    k = keras()
    trial = begin({"run_eagerly": False}, framework="keras")
    between = k.layers.Dropout(0.5) if kind == "dropout" else own_layer(kind)
    norm = [k.layers.BatchNormalization()] if kind == "dropout" else []
    made = k.Sequential([k.Input((4,)), between, *norm, k.layers.Dense(1)])
    made.compile("adam", "mse", run_eagerly=True, metrics=["mae"])
    fit(made)
    trial.end()
    evidence, reason = trial.evidence("run_eagerly")
    assert evidence == ("verified" if kind in ("none", "dropout") else "contradicted"), reason
    if kind == "counter":
        assert "seen" in reason


def test_a_format_that_an_eager_step_computes_in_is_not_taken_for_seen(begin: Begin) -> None:
    trial = begin({"precision": "bf16"}, framework="keras")
    fit(model(run_eagerly=True), epochs=1)
    trial.end()
    assert trial.evidence("precision")[0] == "unverifiable"


# loss scaling


def own_step(scales: bool) -> Any:
    """A model with a training step of its own."""
    import tensorflow as tf

    k = keras()

    class Own(k.Model):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.dense = k.layers.Dense(1)

        def call(self, x: Any) -> Any:
            return self.dense(x)

        def train_step(self, data: Any) -> Any:
            x, y = data
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((tf.cast(self(x), tf.float32) - y) ** 2)
                scaled = self.optimizer.scale_loss(loss) if scales else loss
            gradients = tape.gradient(scaled, self.trainable_weights)
            self.optimizer.apply_gradients(zip(gradients, self.trainable_weights, strict=True))
            return {"loss": loss}

    made = Own()
    made.compile(optimizer="sgd")
    return made


class Fp16Device:
    """As a card offers it; what is computed is computed here."""

    def __init__(self, trial: Trial) -> None:
        device = trial.session.device
        device.tensorflow_precisions = lambda: ["fp32", "bf16", "fp16"]  # type: ignore[method-assign]


@pytest.mark.slow  # 6 s beside three others
@pytest.mark.parametrize("scales", [True, False])
def test_fp16_is_offered_only_where_the_step_scales_its_loss(begin: Begin, scales: bool) -> None:
    """Keras divides the gradients by the scale in any case."""
    baseline = begin()
    Fp16Device(baseline)
    fit(own_step(scales))
    assert ("fp16" in baseline.end()["precisions"]) is scales

    trial = begin({"precision": "fp16"}, framework="keras")
    fit(own_step(scales))
    trial.end()
    evidence, reason = trial.evidence("precision")
    assert evidence == ("verified" if scales else "contradicted"), reason


@pytest.mark.slow  # 3 s beside three others
def test_a_usual_step_is_offered_fp16_and_tells_of_skipped_updates(begin: Begin) -> None:
    trial = begin({"precision": "fp16"}, framework="keras")
    Fp16Device(trial)
    made = model(optimizer=keras().optimizers.SGD(1e-3))
    x, y = arrays()
    made.fit(x, y + 50, epochs=5, batch_size=10, verbose=0)  # its gradients overflow at first
    facts = trial.end()
    assert "fp16" in facts["precisions"]
    scaler = facts["gradient_scaler"]
    assert scaler["steps"] == 50
    assert scaler["skipped"] == 50 - int(made.optimizer.inner_optimizer._iterations.numpy()) > 0
    assert scaler["late_steps"] == 30


def test_a_loop_of_the_scripts_own_is_not_offered_fp16(begin: Begin) -> None:
    import tensorflow as tf

    trial = begin()
    Fp16Device(trial)
    made, optimizer = keras().layers.Dense(1), keras().optimizers.SGD(0.01)
    for x, y in tf.data.Dataset.from_tensor_slices(arrays()).batch(10):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((made(x) - y) ** 2)
        weights = made.trainable_weights
        optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
    assert trial.end()["precisions"] == ["fp32", "bf16"]


# the learning rate of another effective batch


def test_a_schedule_follows_the_samples_and_stays_the_scripts_own(begin: Begin, tmp_path: Any) -> None:
    k = keras()
    trial = begin(
        {"batch_size": 40, "lr_scale": 4.0}, framework="keras", as_written={"batch_size": 10, "grad_accumulation": 1},
        effective_batch="free",
    )  # fmt: skip
    decay = k.optimizers.schedules.PolynomialDecay(0.01, 80, 0.002)
    optimizer = k.optimizers.SGD(decay)
    made = model(optimizer=optimizer)
    made.fit(*arrays(400), epochs=2, batch_size=10, verbose=0)
    trial.end()
    assert int(optimizer.iterations.numpy()) == 20
    assert float(optimizer.learning_rate) == pytest.approx(4 * 0.002)
    assert trial.evidence("lr_scale") == ("verified", "")
    assert trial.evidence("batch_size") == ("verified", "")
    assert optimizer.get_config()["learning_rate"]["config"] == decay.get_config()
    made.save(tmp_path / "saved.keras")
    begin()
    assert isinstance(k.models.load_model(tmp_path / "saved.keras").optimizer._learning_rate, type(decay))


@pytest.mark.parametrize("sets", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_rate_that_the_script_sets_takes_no_factor(begin: Begin, sets: bool) -> None:
    k = keras()

    class Halves(k.callbacks.Callback):  # type: ignore[misc, name-defined]
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            self.model.optimizer.learning_rate = 0.1 / 2**epoch

    def train() -> None:
        plateau = k.callbacks.ReduceLROnPlateau("loss", patience=0, min_delta=10.0)
        fit(model(), callbacks=[Halves() if sets else plateau])

    baseline = begin()
    train()
    assert ("lr_scale" in baseline.end()["left_out"]) is sets
    trial = begin({"lr_scale": 2.0}, framework="keras")
    train()
    trial.end()
    assert trial.evidence("lr_scale")[0] == ("contradicted" if sets else "verified")
