"""A model that runs eagerly stays so where a graph would go on with what a callback has set anew."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from support.keras_trials import Trial, arrays, begin, keras

__all__ = ["begin"]
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(300)]

Begin = Callable[..., Trial]


def train(name: str) -> None:
    """An epoch of a model whose step reads ``beta``, with a callback that would set ``name`` in a later one."""
    k = keras()

    class Own(k.Sequential):  # type: ignore[misc, name-defined]  # Keras is imported late
        beta = 0.0

        def compute_loss(self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None, training: bool = True) -> Any:
            return super().compute_loss(x, y, y_pred, sample_weight) + self.beta * k.ops.mean(y_pred)

        def be_warm(self, warmth: float) -> None:
            self.beta = warmth

    class Later(k.callbacks.Callback):  # type: ignore[misc, name-defined]  # likewise
        pass

    def rate(self: Any, epoch: int, logs: Any = None) -> None:
        if epoch:
            self.model.layers[0].rate = 0.5

    def beta(self: Any, epoch: int, logs: Any = None) -> None:
        if epoch:
            self.model.beta = 1.0

    def method(self: Any, epoch: int, logs: Any = None) -> None:
        if epoch:
            self.model.be_warm(1.0)

    def best(self: Any, epoch: int, logs: Any = None) -> None:
        self.model.best = self.beta = epoch

    def stopping(self: Any, epoch: int, logs: Any = None) -> None:
        self.model.stop_training = epoch > 9

    Later.on_epoch_begin = {each.__name__: each for each in (rate, beta, method, best, stopping)}[name]
    made = Own([k.Input((4,)), k.layers.Dropout(0.1), k.layers.Dense(1)])
    made.compile("sgd", "mse", run_eagerly=True)
    made.fit(*arrays(24), batch_size=8, verbose=0, callbacks=[Later()])


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("beta", "Later sets beta, which the step reads"),
        pytest.param("method", "Later sets beta, which the step reads", marks=pytest.mark.slow),  # likewise
        pytest.param("rate", "Later sets rate, which the step reads", marks=pytest.mark.slow),  # as beta
        ("best", ""),
        pytest.param("stopping", "", marks=pytest.mark.slow),  # as best
    ],
)  # fmt: skip
def test_what_a_callback_sets_later_keeps_a_step_eager(begin: Begin, name: str, why: str) -> None:
    baseline = begin()
    train(name)
    left_out = baseline.end()["left_out"].get("run_eagerly", "")
    assert left_out.startswith(why) and bool(left_out) is bool(why)

    trial = begin({"run_eagerly": False}, framework="keras")
    train(name)
    trial.end()
    evidence, reason = trial.evidence("run_eagerly")
    assert evidence == ("contradicted" if why else "verified") and reason.startswith(why)
