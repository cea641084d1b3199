"""Configs of a Keras script that have pipelines of tf.data of their own: what these give, and what they leave alone."""

from __future__ import annotations

import time
import weakref
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from support.keras_switching import Knobs, acting, rotating, same, state, unpatched
from support.keras_trials import Trial, arrays, keras

from tuner.child.keras.switch import KerasSwitcher
from tuner.child.tensorflow.data import own

__all__ = ["unpatched"]
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(300)]

SLOW = pytest.mark.slow
ROWS, BATCH = 112, 16
CALLS: Knobs = {"parallel_calls": 2}
AHEAD: Knobs = {"prefetch": 4}
UNORDERED: Knobs = {"deterministic": False, "parallel_calls": 2}
THREADS: Knobs = {"private_threads": 3, "parallel_calls": 2}
VECTORIZED: Knobs = {"vectorized_map": True}
BOTH: Knobs = {"prefetch": 4, "steps_per_execution": 2}
ALL: tuple[Knobs, ...] = (CALLS, AHEAD, UNORDERED, THREADS, VECTORIZED, BOTH)


def noisy(x: Any, y: Any) -> Any:
    import tensorflow as tf

    return x + tf.random.uniform(tf.shape(x), 0.0, 0.01), y


def rows() -> Any:
    """Shuffled anew in each epoch, with random numbers for each sample."""
    import tensorflow as tf

    data = tf.data.Dataset.from_tensor_slices(arrays(ROWS)).map(noisy)
    return data.map(lambda x, y: (2 * x, y)).shuffle(32).batch(BATCH)


def network(*, normal: bool = True, **compiled: Any) -> Any:
    k = keras()
    k.utils.set_random_seed(0)
    layers = [k.layers.Dense(32), *([k.layers.BatchNormalization()] if normal else []), k.layers.Dense(1)]
    made = k.Sequential([k.Input((4,)), *layers])
    made.compile(**{"optimizer": "adam", "loss": "mse", "metrics": ["mae"], **compiled})
    return made


def fit(made: Any, data: Any, **arguments: Any) -> Any:
    return made.fit(data, **{"epochs": 4, "verbose": 0, **arguments}).history


@pytest.mark.slow  # 8 s beside three others
def test_what_configs_pipelines_do_leaves_no_trace_in_the_training() -> None:
    """Bit for bit, with the shuffles and random numbers of two epochs behind it, against the script by itself."""
    plain = network()
    expected = fit(plain, rows())
    trial = rotating(*ALL)

    def prepare(switcher: KerasSwitcher, made: Any) -> None:
        before = state(made)
        assert [switcher.refusal(config) for config in ALL] == [""] * len(ALL)
        switcher.begin()
        for config in (*ALL, {}, *ALL):
            switcher.to(config)
            assert switcher.doubt(config) == "" and same(state(made), before), config
        switcher.to({})
        switcher.end()

    acting(trial, {10: prepare})
    made = network()
    history = fit(made, rows())
    assert same(state(made), state(plain)) and history == expected
    assert trial.end()["samples"] == 4 * ROWS


@pytest.mark.slow  # 3 s beside three others
def test_steps_in_a_turn_train_on_the_configs_own_batches_and_an_epoch_has_its_steps() -> None:
    trial, ends = rotating(AHEAD, BOTH), list[int]()
    alive: list[weakref.ref[Any]] = []
    by_turns = trial.adapter.watches.fits.steps.by_turns  # type: ignore[union-attr]
    assert by_turns is not None

    class Epochs(keras().callbacks.Callback):  # type: ignore[misc]
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            ends.append(int(self.model.optimizer.iterations.numpy()))

    def to(config: Knobs) -> Callable[[KerasSwitcher, Any], None]:
        def act(switcher: KerasSwitcher, made: Any) -> None:
            if not alive:
                switcher.begin()
            switcher.to(config)
            assert switcher.loads(AHEAD) and by_turns.own is not None
            assert sum(each() is not None for each in alive) == 0, "the one of the turn before has ended"
            alive.append(weakref.ref(by_turns.own))

        return act

    def end(switcher: KerasSwitcher, made: Any) -> None:
        switcher.to({})
        switcher.end()
        assert by_turns.own is None and not any(each() for each in alive)

    acting(trial, {3: to(AHEAD), 9: to({}), 12: to(AHEAD), 16: end})
    fit(network(), rows(), callbacks=[Epochs()])
    assert ends == [7, 14, 21, 28] and trial.end()["samples"] == 4 * ROWS


@pytest.mark.slow  # what configs' pipelines do leaves no trace: above
def test_the_script_s_orders_and_draws_stay_what_they_are() -> None:
    """Those of another iterator over its very dataset don't."""
    trial = rotating(AHEAD)
    datasets = trial.adapter.watches.datasets
    assert datasets is not None

    def epochs(between: Callable[[Any], Any]) -> list[bytes]:
        keras().utils.set_random_seed(0)
        data = rows()
        return [b"".join(x.numpy().tobytes() for x, _ in data) for _ in range(3) if between(data)]

    def another(made: Any) -> bool:
        iterator = iter(made)
        return bool([next(iterator) for _ in range(5)])

    plain = epochs(lambda data: True)
    assert epochs(lambda data: another(own.apart(datasets.book.read(data)).build())) == plain
    assert epochs(another) != plain


def test_a_pipeline_of_its_own_gives_every_sample_as_often_and_whole_batches() -> None:
    import tensorflow as tf

    trial = rotating(AHEAD)
    datasets = trial.adapter.watches.datasets
    assert datasets is not None
    data = tf.data.Dataset.range(100).shuffle(1000).map(lambda x: x).repeat(2).batch(16).prefetch(2)
    made = own.apart(datasets.book.read(data)).build()
    assert made.element_spec == data.element_spec
    taken: Any = made.take(75)
    batches = [batch.numpy().tolist() for batch in taken]
    assert {len(batch) for batch in batches} == {16}
    counts = Counter(number for batch in batches for number in batch)
    # 12 passes: a buffer of 64 may hold back as many, from one pass or from the next one.
    assert set(counts) == set(range(100)) and sum(counts.values()) == 12 * 100
    assert min(counts.values()) >= 10 and max(counts.values()) <= 14


def generated() -> Any:
    import tensorflow as tf

    spec = (tf.TensorSpec((4,), tf.float32), tf.TensorSpec((1,), tf.float32))
    return tf.data.Dataset.from_generator(lambda: zip(*arrays(ROWS), strict=True), output_signature=spec).batch(BATCH)


def with_python() -> Any:
    import tensorflow as tf

    def called(x: Any, y: Any) -> Any:
        return tf.ensure_shape(tf.numpy_function(lambda a: a, [x], tf.float32), (4,)), y

    return tf.data.Dataset.from_tensor_slices(arrays(ROWS)).map(called).batch(BATCH)


def with_state() -> Any:
    import tensorflow as tf

    seen = tf.Variable(0.0)

    def counted(x: Any, y: Any) -> Any:
        return x + 0 * seen.assign_add(1.0), y

    return tf.data.Dataset.from_tensor_slices(arrays(ROWS)).map(counted).batch(BATCH)


@pytest.mark.parametrize(
    ("made", "arguments", "reason"),
    [
        (generated, {}, "a Python generator makes the data"),
        pytest.param(with_python, {}, "calls Python", marks=SLOW),
        pytest.param(with_state, {}, "another pipeline may change what it gives the script's", marks=SLOW),
        pytest.param(lambda: rows().cache(), {}, "it caches its data", marks=SLOW),
        pytest.param(lambda: rows().prefetch(4), {}, "the script is written so already", marks=SLOW),
        pytest.param(rows, {"class_weight": dict.fromkeys(range(5), 1.0)}, "as it does for class_weight", marks=SLOW),
        pytest.param(
            lambda: arrays(ROWS)[0], {"y": arrays(ROWS)[1]}, "no dataset of tf.data is seen to feed Model.fit",
            marks=SLOW,
        ),
    ],
    ids=["generator", "python", "state", "cache", "same", "class_weight", "arrays"],
)
def test_what_two_pipelines_would_share_is_refused(made: Any, arguments: dict[str, Any], reason: str) -> None:
    trial, refusals = rotating(AHEAD), []
    acting(trial, {4: lambda switcher, made: refusals.append(switcher.refusal(AHEAD))})
    fit(network(), made(), epochs=2, **arguments)
    assert len(refusals) == 1 and reason in refusals[0]


@pytest.mark.slow
def test_another_dataset_ends_the_turns_of_configs_with_pipelines_and_of_nobody_else() -> None:
    trial, seen = rotating(AHEAD), list[str]()
    several: Knobs = {"steps_per_execution": 2}

    def begin(switcher: KerasSwitcher, made: Any) -> None:
        switcher.begin()
        switcher.to(AHEAD)

    def judge(switcher: KerasSwitcher, made: Any) -> None:
        seen.append(switcher.doubt(AHEAD))
        switcher.to(several)
        with pytest.raises(RuntimeError, match="another dataset trains by now"):
            switcher.to(AHEAD)
        switcher.to({})

    acting(trial, {4: begin, 9: judge})
    made = network()
    fit(made, rows(), epochs=1)
    fit(made, rows(), epochs=1)
    assert seen == ["another dataset trains by now"] and trial.end()["samples"] == 2 * ROWS


def heavy(x: Any, y: Any) -> Any:
    """Some milliseconds for each sample."""
    import tensorflow as tf

    size = 300 + 0 * tf.cast(x[0], tf.int32)
    product = tf.linalg.matmul(tf.random.uniform((size, size)), tf.random.uniform((size, size)))
    return x + 0 * product[0, 0], y


@pytest.mark.slow  # 3 s beside three others
def test_nothing_is_made_in_others_turns() -> None:
    """A queue of 64 batches takes this pipeline many seconds to fill: of these none is spent once its turn is over."""
    import tensorflow as tf

    deep: Knobs = {"prefetch": 64}
    trial, used = rotating(deep), list[float]()

    def look(switcher: KerasSwitcher, made: Any) -> None:
        switcher.begin()
        switcher.to(deep)
        began, used_s = time.monotonic(), time.process_time()
        while time.process_time() - used_s < 0.2 and time.monotonic() - began < 60:
            time.sleep(0.02)  # however few of the cores are left to it
        took_s = time.monotonic() - began
        used.append(time.process_time() - used_s)
        switcher.end()
        used_s = time.process_time()
        time.sleep(took_s)
        used.append(time.process_time() - used_s)

    acting(trial, {4: look})
    data = tf.data.Dataset.from_tensor_slices(arrays(ROWS)).map(heavy).batch(BATCH)
    fit(network(), data, epochs=1)
    assert used[0] >= 0.2 and used[1] < 0.05, used


@pytest.mark.slow
def test_a_pipeline_that_goes_on_filling_keeps_configs_from_having_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """A long queue of the script's own is filled for as long as it isn't asked."""
    import tensorflow as tf

    monkeypatch.setattr("tuner.child.keras.own_pipelines.MOST_REST_S", 0.3)
    trial, seen = rotating(CALLS), list[str]()

    def begin(switcher: KerasSwitcher, made: Any) -> None:
        assert switcher.refusal(CALLS) == ""
        switcher.begin()
        with pytest.raises(RuntimeError) as raised:
            switcher.to(CALLS)
        seen.append(str(raised.value))
        switcher.to({})

    acting(trial, {4: begin})
    data = tf.data.Dataset.from_tensor_slices(arrays(ROWS)).map(heavy).repeat().batch(BATCH).prefetch(100)
    fit(network(), data, epochs=1, steps_per_epoch=7)
    assert seen == ["the script's own pipeline goes on filling its queue"]


@pytest.mark.slow
def test_without_a_look_at_tf_data_no_config_has_a_pipeline() -> None:
    trial = Trial({}, {}, rotation=[dict(AHEAD)], without=["tf.data"])
    refusals: list[str] = []
    acting(trial, {4: lambda switcher, made: refusals.append(switcher.refusal(AHEAD))})
    fit(network(), rows(), epochs=1)
    assert refusals == ["can't be switched to: no dataset of tf.data is seen to feed Model.fit"]


@pytest.mark.slow
def test_pipelines_with_larger_batches_than_the_script_s_leave_the_others_their_turns() -> None:
    """Its epochs are one batch each that isn't full: a pipeline without an end would fill it."""
    import tensorflow as tf

    trial, seen = rotating(CALLS), list[str]()
    half: Knobs = {"precision": "bf16"}

    def begin(switcher: KerasSwitcher, made: Any) -> None:
        assert switcher.refusal(CALLS) == "" and switcher.refusal(half) == ""
        switcher.begin()
        with pytest.raises(RuntimeError) as raised:
            switcher.to(CALLS)
        seen.append(str(raised.value))
        switcher.to(half)
        assert switcher.doubt(half) == ""
        switcher.to({})

    acting(trial, {4: begin})
    data = tf.data.Dataset.from_tensor_slices(arrays(20)).map(lambda x, y: (2 * x, y)).batch(64)
    fit(network(), data, epochs=8)
    assert seen == ["its batches would have 64 samples, and the script's have 20 at most"]
    assert trial.end()["samples"] == 8 * 20
