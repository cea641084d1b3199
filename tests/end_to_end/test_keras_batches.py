"""Which batches ``Model.fit`` trains on where the script, or its model, decides otherwise than usual."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from support.keras_trials import Trial, arrays, begin, keras, model

__all__ = ["begin"]
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(300)]

Begin = Callable[..., Trial]
WRITTEN = {"batch_size": 8, "grad_accumulation": 1}
SPLIT = {"batch_size": 4, "grad_accumulation": 2}


@pytest.mark.parametrize(
    ("config", "steps"),
    [pytest.param({}, 5, marks=pytest.mark.slow), ({"batch_size": 10, "grad_accumulation": 2}, 5),
     ({"batch_size": 10}, 10)],
)  # fmt: skip
def test_steps_of_an_epoch_make_the_batches_where_the_script_gives_no_size(
    begin: Begin, config: dict[str, int], steps: int
) -> None:
    """Keras cuts arrays into as many batches: one of the usual size is none of the script's."""
    trial = begin(config, framework="keras", as_written={"batch_size": 20, "grad_accumulation": 1})
    validation = arrays(30)
    sizes: list[int] = []

    def loss(y: Any, p: Any) -> Any:
        sizes.append(len(y))
        return keras().ops.mean(keras().ops.square(p - y), axis=-1)

    made = model(loss=loss, run_eagerly=True)
    made.fit(*arrays(), steps_per_epoch=5, epochs=2, verbose=0, validation_data=validation, validation_steps=3)
    facts = trial.end()
    assert facts["as_written"]["batch_size"] == 20
    assert (facts["samples"], facts["steps"]) == (2 * 100, 2 * steps)
    assert all(trial.evidence(knob)[0] == "verified" for knob in config)
    assert sizes[-3:] == [10, 10, 10]


@pytest.mark.slow  # 6 s beside three others
@pytest.mark.parametrize("by", ["arrays", "dataset"])
@pytest.mark.parametrize("config", [SPLIT, pytest.param({"batch_size": 16}, marks=pytest.mark.slow)])
def test_another_fit_keeps_batches_of_another_size(begin: Begin, by: str, config: dict[str, int]) -> None:
    """A config's batches make up those of eight. Tried before: a later fit's of 24 became what they are, too."""
    import tensorflow as tf

    trial = begin(config, framework="keras", as_written=WRITTEN)
    made, updates = model(), []
    for size in (24, 8, 24):
        if by == "arrays":
            made.fit(*arrays(48), batch_size=size, verbose=0)
        else:
            made.fit(tf.data.Dataset.from_tensor_slices(arrays(48)).batch(size), verbose=0)
        updates.append(int(made.optimizer.iterations.numpy()))
    facts = trial.end()
    eights = 6 if config is SPLIT else 3
    assert updates == [2, 2 + eights, 4 + eights]
    assert trial.evidence("batch_size")[0] == "contradicted"
    assert "batches of 24 samples" in trial.evidence("batch_size")[1]
    assert any("batches of 8 samples by now, and of 24 at first" in remark for remark in facts["remarks"])


def own_step(sizes: list[int]) -> Any:
    """A model with a training step of its own, which notes how large its batches are."""
    k = keras()

    class Own(k.Model):  # type: ignore[misc, name-defined]  # Keras is imported late
        def __init__(self) -> None:
            super().__init__()
            self.dense = k.layers.Dense(1)

        def call(self, x: Any) -> Any:
            return self.dense(x)

        def train_step(self, data: Any) -> Any:
            import tensorflow as tf

            tf.numpy_function(lambda x: sizes.append(len(x)), [data[0]], [])
            return super().train_step(data)

    made = Own()
    made.compile("sgd", "mse")
    return made


@pytest.mark.parametrize("by", ["arrays", "dataset"])
def test_a_step_of_the_scripts_own_takes_the_whole_batch(begin: Begin, by: str) -> None:
    """Tried before: it took a part of the batch, and as many times more updates."""
    import tensorflow as tf

    sizes: list[int] = []
    trial = begin(SPLIT, framework="keras", as_written=WRITTEN)
    data = arrays(24)
    if by == "arrays":
        own_step(sizes).fit(*data, batch_size=8, verbose=0)
    else:
        own_step(sizes).fit(tf.data.Dataset.from_tensor_slices(data).batch(8), verbose=0)
    trial.end()
    assert sizes == [8, 8, 8]
    assert trial.evidence("grad_accumulation")[0] == "contradicted"
    assert "the script's own training step" in trial.evidence("grad_accumulation")[1]


def test_a_script_that_accumulates_by_itself_keeps_its_batches(begin: Begin) -> None:
    """Tried before: it accumulated over parts of its batches, and updated its model twice as often."""
    k = keras()
    trial = begin(SPLIT, framework="keras", as_written=WRITTEN)
    made = model(optimizer=k.optimizers.SGD(0.1, gradient_accumulation_steps=2))
    made.fit(*arrays(80), batch_size=8, verbose=0)
    trial.end()
    assert trial.adapter.watches.fits is not None
    assert trial.adapter.watches.fits.steps.largest_batch == 8
    assert int(made.optimizer.iterations.numpy()) == 5
    assert trial.evidence("grad_accumulation") == ("contradicted", "the script accumulates gradients itself")


@pytest.mark.parametrize("readable", [True, False])
def test_several_steps_in_a_call_are_not_verified_where_nothing_counts_them(
    begin: Begin, monkeypatch: pytest.MonkeyPatch, readable: bool
) -> None:
    """Whether such a call takes more steps than its epoch has is known by the optimizer's count only."""
    if not readable:  # as of a strategy over several hosts
        monkeypatch.setattr("tuner.child.keras.updates._iterations", lambda optimizer: None)
    trial = begin({"steps_per_execution": 5}, framework="keras", as_written={"steps_per_execution": 1})
    model().fit(*arrays(), batch_size=10, verbose=0)
    trial.end()
    unread = ("unverifiable", "the optimizer's count of its steps can't be read")
    assert trial.evidence("steps_per_execution") == (("verified", "") if readable else unread)


def test_a_training_function_of_the_scripts_own_takes_no_several_steps(begin: Begin) -> None:
    """It takes one batch in a call, where Keras would count four: an epoch would train on a quarter of its data."""
    k = keras()

    class Own(k.Sequential):  # type: ignore[misc, name-defined]  # Keras is imported late
        def make_train_function(self, force: bool = False) -> Any:
            def one(iterator: Any) -> Any:
                return self.train_step(next(iterator))

            self.train_function = one
            return one

    def train() -> int:
        made = Own([k.Input((4,)), k.layers.Dense(1)])
        made.compile("sgd", "mse")
        made.fit(*arrays(80), batch_size=10, epochs=2, verbose=0)
        return int(made.optimizer.iterations.numpy())

    baseline = begin()
    assert train() == 16
    assert "steps_per_execution" not in baseline.end()["as_written"]
    begin({"steps_per_execution": 4}, framework="keras", as_written={"steps_per_execution": 1})
    assert train() == 16


@pytest.mark.parametrize("workers", [1, 2])
def test_processes_that_would_draw_alike_are_not_added(begin: Begin, workers: int) -> None:
    """Of three that Keras forks each gave the same augmentations: every one was trained on three times."""
    k = keras()

    class Drawn(k.utils.PyDataset):  # type: ignore[misc, name-defined]  # Keras is imported late
        def __len__(self) -> int:
            return 0

    data = Drawn(workers=workers, use_multiprocessing=True)
    trial = begin({"workers": 3}, framework="keras")
    fits = trial.adapter.watches.fits
    assert fits is not None
    fits._prepare(model(), {"x": data})
    assert data.workers == (1 if workers == 1 else 3)
    assert ("draw the same random numbers" in trial.session.facts.left_out.get("workers", "")) is (workers == 1)
