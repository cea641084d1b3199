"""``Model.fit`` under the adapter: what it counts, what it turns, and what it says of both."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy
import pytest
from support.keras_trials import Trial, arrays, begin, keras, model

__all__ = ["begin"]
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(300)]

Begin = Callable[..., Trial]
ROWS = 100


def fit(made: Any, x: Any = None, y: Any = None, **arguments: Any) -> Any:
    if x is None:
        x, y = arrays()
    return made.fit(x, y, **{"epochs": 2, "verbose": 0, **arguments})


def test_samples_are_counted_as_they_are_trained_on_with_the_last_part_of_a_batch(begin: Begin) -> None:
    trial = begin()
    fit(model(), batch_size=32)
    facts = trial.end()
    assert facts["samples"] == 2 * ROWS
    assert facts["steps"] == 2 * 4
    assert facts["framework"] == "keras"
    assert facts["as_written"]["batch_size"] == 32
    assert facts["dataset_len"] == ROWS


def test_keras_default_batch_size_is_what_the_script_wrote(begin: Begin) -> None:
    trial = begin()
    fit(model())
    assert trial.end()["as_written"]["batch_size"] == 32


class Sparse:
    """As SciPy's sparse arrays: they have a shape and no length."""

    shape = (ROWS, 4)

    def __len__(self) -> int:
        raise TypeError("sparse array length is ambiguous")


def test_rows_of_sparse_arrays_are_counted_by_their_shape(begin: Begin) -> None:
    fits = begin().adapter.watches.fits
    assert fits is not None
    assert fits._rows({"x": Sparse(), "validation_split": 0.25}) == 75


def test_a_fit_that_could_not_be_prepared_shows_by_its_knobs(begin: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was trained on is as the script wrote it: that must not pass for the config."""
    trial = begin({"batch_size": 50, "run_eagerly": True}, framework="keras")
    monkeypatch.setattr(trial.adapter.watches.fits, "_rows", lambda arguments: 1 // 0)
    fit(model(), batch_size=10)
    trial.end()
    assert any("could not be prepared: ZeroDivisionError" in note["text"] for note in trial.log.of("note"))
    assert trial.evidence("batch_size")[0] == "contradicted"
    assert trial.evidence("run_eagerly")[0] == "contradicted"


@pytest.mark.parametrize(
    "validate", ["evaluate", *(pytest.param(each, marks=pytest.mark.slow) for each in ("split", "data"))]
)
def test_validation_is_neither_trained_nor_timed(begin: Begin, validate: str) -> None:
    trial = begin()
    made = model()
    if validate == "evaluate":
        fit(made)
        made.evaluate(*arrays(), verbose=0)
        fit(made)
        trained = 4 * ROWS
    else:
        fit(made, **({"validation_split": 0.2} if validate == "split" else {"validation_data": arrays()}))
        trained = 2 * (80 if validate == "split" else ROWS)
    assert trial.end()["samples"] == trained
    blocks = trial.log.of("block")
    assert sum(block["samples"] for block in blocks if block["flagged"]) == 0
    assert any(block["flagged"] for block in blocks)


def test_metrics_of_training_and_validation_reach_the_records(begin: Begin) -> None:
    trial = begin()
    fit(model(metrics=["mae"]), validation_data=arrays())
    assert {record["name"] for record in trial.log.of("metric")} == {"loss", "mae", "val_loss", "val_mae"}


def test_the_loss_is_that_of_the_block_and_not_of_the_epoch_so_far(begin: Begin) -> None:
    trial = begin()
    history = fit(model(), batch_size=50, epochs=3).history["loss"]
    losses = [record["value"] for record in trial.log.of("loss")]
    # The first block holds the first step and the second one: the clock starts with the first.
    per_epoch = [numpy.mean(losses[i : i + 2]) for i in range(len(losses) - 4, len(losses), 2)]
    assert per_epoch == pytest.approx(history[1:], rel=1e-4)


@pytest.mark.parametrize(
    "knob", ["jit_compile", "steps_per_execution", pytest.param("run_eagerly", marks=pytest.mark.slow)]
)
def test_a_knob_of_the_model_is_turned_at_the_entry_of_fit(begin: Begin, knob: str) -> None:
    values = {"run_eagerly": False, "jit_compile": True, "steps_per_execution": 4}
    trial = begin({knob: values[knob]}, framework="keras")
    made = model(run_eagerly=knob == "run_eagerly")
    fit(made, batch_size=10)
    facts = trial.end()
    assert facts["as_written"][knob] != values[knob]
    assert facts["samples"] == 2 * ROWS
    assert facts["steps"] >= 20
    assert trial.evidence(knob) == ("verified", "")
    in_one_call = ["the wait for data can't be seen: 4 steps are taken in one call"]
    assert facts.get("remarks", []) == (in_one_call if knob == "steps_per_execution" else [])
    assert bool(facts.get("wait_is_unseen")) is bool(facts.get("remarks"))


def test_a_batch_size_is_verified_by_the_rows_that_were_trained_on(begin: Begin) -> None:
    trial = begin({"batch_size": 50}, framework="keras")
    made = model()
    seen = []
    fit(made, batch_size=10, validation_data=arrays(), callbacks=keras().callbacks.LambdaCallback(
        on_test_batch_end=lambda batch, logs: seen.append(batch)
    ))  # fmt: skip
    facts = trial.end()
    assert (facts["steps"], facts["samples"]) == (4, 2 * ROWS)
    assert trial.evidence("batch_size") == ("verified", "")
    assert len(seen) == 2 * ROWS / 10, "validation keeps the script's batch size"


def test_a_batch_size_that_the_data_cannot_fill_is_contradicted(begin: Begin) -> None:
    trial = begin({"batch_size": 400}, framework="keras")
    fit(model(), batch_size=10)
    trial.end()
    assert trial.evidence("batch_size") == ("contradicted", f"observed {ROWS}")


def test_steps_per_epoch_follow_the_batch_size(begin: Begin) -> None:
    trial = begin({"batch_size": 20}, framework="keras")
    fit(model(), batch_size=10, steps_per_epoch=8, epochs=1)
    assert trial.end()["samples"] == 80


@pytest.mark.parametrize("optimizer", [pytest.param("sgd", marks=pytest.mark.slow), "adam"])
def test_accumulation_makes_the_update_of_the_whole_batch(begin: Begin, optimizer: str) -> None:
    weights = {}
    for name, config in {"whole": {}, "parts": {"batch_size": 5, "grad_accumulation": 4}}.items():
        trial = begin(config, framework="keras")
        keras().utils.set_random_seed(1)
        made = model(optimizer=optimizer)
        fit(made, batch_size=20, epochs=3, shuffle=False)
        facts = trial.end()
        assert facts["steps"] == 15
        assert facts["as_written"]["grad_accumulation"] == 1
        weights[name] = made.get_weights()
        if config:
            assert trial.evidence("grad_accumulation") == ("verified", "")
    for whole, parts in zip(weights["whole"], weights["parts"], strict=True):
        assert parts == pytest.approx(whole, abs=1e-5)


def test_a_loss_that_is_no_mean_is_not_accumulated(begin: Begin) -> None:
    trial = begin()
    fit(model(loss=keras().losses.MeanSquaredError(reduction="sum")))
    assert "no mean" in trial.end()["left_out"]["grad_accumulation"]


def test_the_rate_is_scaled_for_numbers_and_schedules(begin: Begin) -> None:
    for rate in (0.1, keras().optimizers.schedules.ExponentialDecay(0.1, 1000, 0.9)):
        trial = begin({"lr_scale": 2.0}, framework="keras")
        optimizer = keras().optimizers.SGD(learning_rate=rate)
        fit(model(optimizer=optimizer))
        trial.end()
        assert float(optimizer.learning_rate) == pytest.approx(0.2, rel=1e-3)
        assert trial.evidence("lr_scale") == ("verified", "")


def test_layers_compute_in_the_precision_that_is_asked_for_even_after_the_session_was_cleared(begin: Begin) -> None:
    trial = begin({"precision": "bf16"}, framework="keras")
    keras().utils.clear_session()
    made = model()
    fit(made)
    facts = trial.end()
    assert made.layers[0].compute_dtype == "bfloat16"
    assert facts["as_written"]["precision"] == "fp32"
    assert trial.evidence("precision") == ("verified", "")


def test_a_policy_that_the_script_chose_stays_its_own(begin: Begin) -> None:
    trial = begin({"precision": "fp32"}, framework="keras")
    try:
        keras().mixed_precision.set_global_policy("mixed_bfloat16")
        fit(model())
    finally:
        keras().mixed_precision.set_global_policy("float32")
    facts = trial.end()
    assert facts["as_written"]["precision"] == "bf16"
    assert "itself" in facts["left_out"]["precision"]


@pytest.mark.parametrize("word", ["tf32", pytest.param("quick", marks=pytest.mark.slow)])
def test_a_precision_that_keras_has_no_policy_for_is_not_applied(begin: Begin, word: str) -> None:
    """Layers compute in float32 all the same: that is no evidence of it."""
    trial = begin({"precision": word}, framework="keras")
    fit(model())
    trial.end()
    assert trial.evidence("precision") == ("contradicted", f"Keras has no policy for {word}")


@pytest.mark.parametrize(
    "word", [*(pytest.param(word, marks=pytest.mark.slow) for word in ("mixed_bfloat16", "quick")), "bf16", "float32"]
)
def test_a_policy_that_an_argument_of_the_script_chooses_is_judged_by_what_computes(begin: Begin, word: str) -> None:
    """``--dtype={precision=float32|mixed_bfloat16}``: what the script makes of its words is its own."""
    trial = begin({"precision": word}, framework="keras", placeholders=["precision"])
    try:
        keras().mixed_precision.set_global_policy("mixed_bfloat16")
        fit(model())
    finally:
        keras().mixed_precision.set_global_policy("float32")
    trial.end()
    evidence, reason = trial.evidence("precision")
    assert evidence == ("verified" if word in ("mixed_bfloat16", "bf16") else "unverifiable")
    assert ("in bfloat16" in reason) is (word == "float32")


def test_an_argument_of_the_script_that_differs_is_not_contradicted(begin: Begin) -> None:
    trial = begin(
        {"batch_size": 50, "jit_compile": True}, framework="keras", placeholders=["batch_size", "jit_compile"]
    )
    fit(model(jit_compile=False), batch_size=10)
    trial.end()
    assert [trial.evidence(knob)[0] for knob in ("batch_size", "jit_compile")] == ["unverifiable", "unverifiable"]


def test_a_generator_makes_its_batches_itself(begin: Begin) -> None:
    x, y = arrays()

    def batches() -> Any:
        while True:
            yield x[:10], y[:10]

    trial = begin()
    fit(model(), batches(), None, steps_per_epoch=7)
    facts = trial.end()
    assert facts["samples"] == 140
    assert "generator" in facts["left_out"]["batch_size"]


def test_the_workers_of_a_py_dataset_are_a_knob(begin: Begin) -> None:
    x, y = arrays()

    class Batches(keras().utils.PyDataset):  # type: ignore[misc]
        def __len__(self) -> int:
            return 10

        def __getitem__(self, index: int) -> Any:
            return x[10 * index : 10 * index + 10], y[10 * index : 10 * index + 10]

    trial = begin({"workers": 2}, framework="keras")
    data = Batches()
    fit(model(), data, None)
    facts = trial.end()
    assert facts["samples"] == 2 * ROWS
    assert data.workers == 2
    assert facts["as_written"]["workers"] == 1
    assert trial.evidence("workers") == ("verified", "")


def test_a_train_step_of_the_models_own_is_counted_and_not_accumulated(begin: Begin) -> None:
    k = keras()
    import tensorflow as tf

    class Own(k.Model):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.dense = k.layers.Dense(1)
            self.tracker = k.metrics.Mean(name="loss")

        @property
        def metrics(self) -> Any:
            return [self.tracker]

        def train_step(self, data: Any) -> Any:
            x, y = data
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((self.dense(x) - y) ** 2)
            self.optimizer.apply_gradients(
                zip(tape.gradient(loss, self.trainable_weights), self.trainable_weights, strict=True)
            )
            self.tracker.update_state(loss)
            return {"loss": self.tracker.result()}

    trial = begin()
    made = Own()
    made.compile(optimizer="sgd")
    history = fit(made, batch_size=20, epochs=2).history["loss"]
    facts = trial.end()
    assert facts["samples"] == 2 * ROWS
    assert "training step" in facts["left_out"]["grad_accumulation"]
    last = [(r["samples"], r["value"]) for r in trial.log.of("loss") if r["samples"] > ROWS]
    steps = numpy.diff([ROWS, *(samples for samples, _ in last)]) / 20
    assert numpy.average([value for _, value in last], weights=steps) == pytest.approx(history[-1], rel=1e-3)


def test_the_probe_computes_on_one_batch_and_loads_without_computing(begin: Begin) -> None:
    for side in ("compute", "loader"):
        trial = begin(probe=side)
        made = model(metrics=["mae"])  # made in the first step, which the loader's side hasn't
        before = [w.copy() for w in made.get_weights()]
        x, y = arrays()
        history = fit(made, x, y, batch_size=10, validation_data=(x, y)).history
        assert {"val_loss", "val_mae"} <= history.keys()
        assert trial.end()["samples"] == 2 * ROWS
        same = all(numpy.array_equal(a, b) for a, b in zip(before, made.get_weights(), strict=True))
        assert same is (side == "loader")


def test_steps_on_the_wrong_device_are_no_measurement(begin: Begin) -> None:
    """TensorFlow falls back to the CPU by itself, and says so to nobody who looks at figures only."""
    trial = begin(device="cuda:0")
    fit(model())
    trial.end()
    assert [record["detail"] for record in trial.log.of("failure")] == [
        "TensorFlow sees no GPU here: the steps ran on the CPU"
    ]


def test_a_model_under_a_strategy_is_counted_and_its_loss_read(begin: Begin) -> None:
    import tensorflow as tf

    trial = begin()
    with tf.distribute.MirroredStrategy(["CPU:0"]).scope():
        made = model()
    history = fit(made, batch_size=50).history["loss"]
    assert trial.end()["samples"] == 2 * ROWS
    assert numpy.mean([record["value"] for record in trial.log.of("loss")][-2:]) == pytest.approx(history[-1], rel=1e-4)


@pytest.fixture
def distributed(begin: Begin) -> Iterator[Any]:
    """tf.distribute; a strategy that was set is taken back."""
    import tensorflow as tf

    yield tf.distribute
    tf.distribute.experimental_set_strategy(None)


@pytest.mark.parametrize("wanted", ["default", pytest.param("one_device", marks=pytest.mark.slow)])
def test_a_strategy_that_a_script_needs_not_is_undone(begin: Begin, distributed: Any, wanted: str) -> None:
    def train() -> None:
        with distributed.MirroredStrategy(["CPU:0"]).scope():
            made = model()
        fit(made, batch_size=50)

    baseline = begin()
    train()
    assert baseline.end()["as_written"]["strategy"] == "mirrored"
    trial = begin({"strategy": wanted})
    train()
    assert trial.end()["samples"] == 2 * ROWS
    assert trial.evidence("strategy") == ("verified", "")


def test_a_strategy_is_set_before_the_first_layer(begin: Begin, distributed: Any) -> None:
    trial = begin({"strategy": "one_device"})
    made = model()
    fit(made, batch_size=50)
    facts = trial.end()
    assert type(made.distribute_strategy).__name__ == "OneDeviceStrategy"
    assert (facts["samples"], facts["as_written"]["strategy"]) == (2 * ROWS, "default")
    assert trial.evidence("strategy") == ("verified", "")


@pytest.mark.parametrize(
    "config", [pytest.param({}, marks=pytest.mark.slow), {"steps_per_execution": 2}], ids=["as written", "turned"]
)
def test_a_model_that_is_fit_again_and_again_is_traced_as_often_as_in_plain_keras(
    begin: Begin, config: dict[str, Any]
) -> None:
    trial = begin(config, framework="keras")
    made = model()
    fit(made, batch_size=50)
    traces = trial.adapter.watches.fits.steps.traces  # type: ignore[union-attr]
    for _ in range(3):
        fit(made, batch_size=50)
    assert trial.adapter.watches.fits.steps.traces == traces  # type: ignore[union-attr]
    assert trial.end()["samples"] == 8 * ROWS
