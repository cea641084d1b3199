"""Configs of a Keras script that are switched between two calls of its training function, step by step."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import pytest
from support.keras_switching import Knobs, acting, rotating, same, state, unpatched
from support.keras_trials import arrays, keras, model
from support.processor import WIDE

from tuner.child.keras.switch import KerasSwitcher

__all__ = ["unpatched"]
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(300)]

ROWS, BATCH = 100, 16
SEVERAL: Knobs = {"steps_per_execution": 4}
XLA: Knobs = {"jit_compile": True}
BF16: Knobs = {"precision": "bf16"}
REWRITTEN: Knobs = {"grappler_mixed_precision": True}
BOTH: Knobs = {**SEVERAL, **BF16}
ALL: tuple[Knobs, ...] = (SEVERAL, XLA, BF16, *((REWRITTEN,) if WIDE else ()))


def network(**compiled: Any) -> Any:
    """Everything that a step changes: weights, running means, states of dropout, moments, metrics."""
    k = keras()
    k.utils.set_random_seed(0)
    made = k.Sequential(
        [
            k.Input((4,)), k.layers.Dense(32), k.layers.BatchNormalization(), k.layers.Dropout(0.3),
            k.layers.Dense(16, activation="relu"), k.layers.Dense(1, dtype="float32"),
        ]
    )  # fmt: skip
    made.compile(**{"optimizer": "adam", "loss": "mse", "metrics": ["mae"], **compiled})
    return made


def fit(made: Any, **arguments: Any) -> Any:
    return made.fit(
        *arrays(ROWS), **{"epochs": 3, "verbose": 0, "shuffle": False, "batch_size": BATCH, **arguments}
    ).history


def test_what_a_config_is_compiled_on_leaves_no_trace_in_the_training() -> None:
    """Bit for bit, against the same script without any of it."""
    plain = network()
    expected = fit(plain)
    trial = rotating(*ALL)

    def prepare(switcher: KerasSwitcher, made: Any) -> None:
        before = state(made)
        assert switcher.obstacle() == ""
        assert [switcher.refusal(config) for config in ALL] == [""] * len(ALL)
        switcher.begin()
        for config in ALL:
            switcher.to(config)
            assert switcher.doubt(config) == "" and same(state(made), before), config
        switcher.to({})

    acting(trial, {10: prepare})
    made = network()
    history = fit(made)
    assert same(state(made), state(plain)) and history == expected
    assert trial.end()["samples"] == 3 * ROWS, "nor is what it was compiled on counted"


@pytest.mark.slow
def test_weights_and_moments_are_put_back_bit_for_bit() -> None:
    trial, kept = rotating(BF16), []

    def begin(switcher: KerasSwitcher, made: Any) -> None:
        kept.append(state(made))
        switcher.begin()
        switcher.to(BF16)

    def put_back(switcher: KerasSwitcher, made: Any) -> None:
        assert not same(state(made), kept[0]), "it has trained on"
        switcher.put_back_weights()
        assert same(state(made), kept[0])

    acting(trial, {5: begin, 12: put_back})
    fit(network())


@pytest.mark.slow
def test_a_config_has_its_turn_and_the_script_its_settings_again() -> None:
    trial, seen = rotating(BOTH), {}

    def settings(made: Any) -> Any:
        return made.jit_compile, made.steps_per_execution, [layer.compute_dtype for layer in made.layers]

    def begin(switcher: KerasSwitcher, made: Any) -> None:
        seen["written"] = settings(made)
        switcher.begin()
        switcher.to(BOTH)
        seen["turned"] = settings(made)

    def end(switcher: KerasSwitcher, made: Any) -> None:
        switcher.to({})
        seen["again"] = settings(made)

    acting(trial, {3: begin, 6: end})
    fit(network())
    assert seen["written"] == seen["again"] == (False, 1, ["float32"] * 5)
    assert seen["turned"] == (False, 4, ["bfloat16"] * 4 + ["float32"]), "the last layer's format is the script's own"
    facts = trial.end()
    assert facts["samples"] == 3 * ROWS and facts["steps"] == 3 * 7


@pytest.mark.slow  # test_keras_own_pipelines.py
def test_an_epoch_has_its_batches_however_many_a_call_takes() -> None:
    """Of seven: three calls of one, then calls of four, of which the last one in an epoch finds three."""
    trial, ends = rotating(SEVERAL), []
    k = keras()

    class Epochs(k.callbacks.Callback):  # type: ignore[misc, name-defined]
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            ends.append(int(self.model.optimizer.iterations.numpy()))

    def begin(switcher: KerasSwitcher, made: Any) -> None:
        switcher.begin()
        switcher.to(SEVERAL)

    acting(trial, {3: begin})
    with warnings.catch_warnings(record=True) as warned:
        fit(network(), callbacks=[Epochs()])
    assert ends == [7, 14, 21]
    assert not any("ran out of data" in str(warning.message) for warning in warned)


@pytest.mark.slow
def test_validation_is_never_traced_in_a_configs_format() -> None:
    trial = rotating(BF16)

    def begin(switcher: KerasSwitcher, made: Any) -> None:
        switcher.begin()
        switcher.to(BF16)

    acting(trial, {3: begin})
    made = network()
    dtypes: list[str] = []
    original = made.test_step

    def test_step(data: Any) -> Any:
        dtypes.append(made.layers[0].compute_dtype)
        return original(data)

    made.test_step = test_step
    fit(made, validation_data=arrays(ROWS))
    assert set(dtypes) == {"float32"}
    assert made.layers[0].compute_dtype == "bfloat16", "it is its turn still"


@pytest.mark.slow  # 4 s beside three others
def test_one_that_cannot_be_compiled_leaves_everything_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where the device has too little memory for it, in the middle of the training on the kept batch."""
    trial, told = rotating(SEVERAL), []
    fits = trial.adapter.watches.fits
    assert fits is not None and fits.steps.by_turns is not None
    by_turns = fits.steps.by_turns
    rehearse = by_turns.rehearse

    def fail(*args: Any) -> int:
        rehearse(*args)
        raise MemoryError("no room")

    def prepare(switcher: KerasSwitcher, made: Any) -> None:
        before, function = state(made), made.train_function
        switcher.begin()
        monkeypatch.setattr(by_turns, "rehearse", fail)
        with pytest.raises(MemoryError):
            switcher.to(SEVERAL)
        assert same(state(made), before) and made.train_function is function and made.steps_per_execution == 1
        told.append("prepared")

    acting(trial, {4: prepare})
    fit(network())
    assert told and trial.end()["samples"] == 3 * ROWS


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"precision": "fp16"}, "fp16 scales losses from the first step on"),
        ({"threads": 1}, "threads can't be turned while it trains"),
        ({"steps_per_execution": 4}, "Watcher acts with every batch"),
    ],
)
@pytest.mark.slow  # of a trial of its own: test_keras_claims.py
def test_what_can_only_be_had_from_the_start_is_refused(config: Mapping[str, Any], reason: str) -> None:
    class Watcher(keras().callbacks.Callback):  # type: ignore[misc]
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            pass

    trial, refusals = rotating(config), []
    acting(trial, {4: lambda switcher, made: refusals.append(switcher.refusal(config))})
    fit(network(), callbacks=[Watcher()])
    assert len(refusals) == 1 and reason in refusals[0]


@pytest.mark.slow
def test_layers_that_have_their_format_from_a_description_refuse_another_one() -> None:
    """In a process of its own the inner layers would be made in bf16; here they would stay in float32."""
    k, refusals = keras(), []
    trial = rotating(BF16)
    acting(trial, {4: lambda switcher, made: refusals.append(switcher.refusal(BF16))})
    made = k.Sequential([k.Input((4, 1)), k.layers.Bidirectional(k.layers.LSTM(2)), k.layers.Dense(1)])
    made.compile(optimizer="sgd", loss="mse")
    x, y = arrays(ROWS)
    made.fit(x[..., None], y, epochs=2, verbose=0, batch_size=BATCH)
    assert "made from the description of another one" in refusals[0]


@pytest.mark.slow
def test_a_model_that_is_compiled_anew_keeps_what_it_makes() -> None:
    trial, doubts = rotating(SEVERAL), []

    def begin(switcher: KerasSwitcher, made: Any) -> None:
        switcher.begin()
        switcher.to(SEVERAL)

    def judge(switcher: KerasSwitcher, made: Any) -> None:
        doubts.append(switcher.doubt(SEVERAL))
        function = made.train_function
        switcher.to({})
        assert made.train_function is function

    acting(trial, {4: begin, 9: judge})
    made = network()
    fit(made, epochs=1)
    made.compile(optimizer="sgd", loss="mse")
    fit(made, epochs=1)
    assert doubts == ["the model was compiled anew in its turn"]


def test_batches_of_another_shape_are_no_figure_of_a_config() -> None:
    """What it is traced anew for is time that it doesn't cost."""
    trial, doubts = rotating(REWRITTEN), []

    def begin(switcher: KerasSwitcher, made: Any) -> None:
        switcher.begin()
        switcher.to(REWRITTEN)
        doubts.append(switcher.doubt(REWRITTEN))

    acting(trial, {3: begin, 5: lambda switcher, made: doubts.append(switcher.doubt(REWRITTEN))})
    k = keras()
    made = k.Sequential([k.Input((None, 4)), k.layers.Dense(2), k.layers.GlobalAveragePooling1D(), k.layers.Dense(1)])
    made.compile(optimizer="sgd", loss="mse")

    def batches(length: int, steps: int) -> Any:
        import tensorflow as tf

        return tf.data.Dataset.from_tensors((tf.ones([8, length, 4]), tf.ones([8, 1]))).repeat(steps)

    made.fit(batches(5, 4), verbose=0)
    made.fit(batches(7, 4), verbose=0)
    not_rewritten = "" if WIDE else "its graphs hold 0 products in bf16"
    assert doubts == [not_rewritten, "its step was traced anew in its turn, by batches of another shape"]


@pytest.mark.slow  # 6 s beside three others
def test_a_turn_in_which_xla_compiles_for_another_size_is_told() -> None:
    """The last batch of a dataset is smaller, as nobody knows before: neither the script's own step nor a config's is
    compiled for it until it comes.
    """
    trial, told = rotating(BF16), list[str]()

    def begin(switcher: KerasSwitcher, made: Any) -> None:
        switcher.begin()
        switcher.to(BF16)

    def tell(switcher: KerasSwitcher, made: Any, config: Knobs) -> None:
        told.append(switcher.disturbed(config))
        switcher.to({})

    def of_the_config(switcher: KerasSwitcher, made: Any) -> None:
        tell(switcher, made, BF16)

    def as_written(switcher: KerasSwitcher, made: Any) -> None:
        tell(switcher, made, {})

    epoch = -(-ROWS // BATCH)
    acting(
        trial, {3: begin, epoch: of_the_config, 10: as_written, 2 * epoch: as_written, 3 * epoch: as_written}
    )
    import tensorflow as tf

    data = tf.data.Dataset.from_tensor_slices(arrays(ROWS)).batch(BATCH)
    model(jit_compile=True).fit(data, epochs=3, verbose=0)
    compiled = "XLA compiled its step for 1 other shape of batches"
    assert told == [compiled, "", compiled, ""]


@pytest.mark.slow  # 3 s beside three others
def test_a_loop_without_fit_has_none() -> None:
    trial = rotating(SEVERAL)
    made = network()
    made.train_on_batch(*arrays(8))
    assert trial.adapter.switcher().obstacle() == "no Model.fit of it is seen to train"
