"""Predictions in loops of the script's own: those of a policy, or a target network, are part of what is timed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy
import pytest
from support.keras_trials import Trial, begin, model
from support.tf_trials import STEPS_ALONE

from tuner.child.tensorflow.evidence import EAGER

__all__ = ["begin"]
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(300)]

Begin = Callable[..., Trial]
REMARK = "a model predicts for other values each time, between steps: that is part of what is timed"


def observed(chance: Any, rows: int = 1) -> Any:
    return chance.random((rows, 4), dtype="float32")


@pytest.mark.parametrize("way", ["predict", "predict_on_batch"])
def test_what_a_policy_is_asked_is_part_of_the_loop(begin: Begin, way: str) -> None:
    """As in PPO: every rollout was set apart as validation, and the rate told was three times the real one."""
    import tensorflow as tf

    trial = begin()
    policy, chance = model(), numpy.random.default_rng(0)
    for _ in range(5):
        states = [observed(chance) for _ in range(6)]
        for state in states:
            policy.predict(state, verbose=0) if way == "predict" else policy.predict_on_batch(state)
        for _ in range(4):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(policy(numpy.concatenate(states)))
            gradients = tape.gradient(loss, policy.trainable_variables)
            policy.optimizer.apply_gradients(zip(gradients, policy.trainable_variables, strict=True))
    facts = trial.end()
    assert trial.set_apart() == 0
    assert facts["remarks"] == [REMARK, STEPS_ALONE, EAGER]


@pytest.mark.slow  # 2 s beside three others
def test_what_a_target_network_is_asked_is_part_of_the_loop(begin: Begin) -> None:
    """As in Q-learning with ``fit``, once the batches that it is asked about are many steps apart."""
    trial = begin()
    network, target, chance = model(), model(), numpy.random.default_rng(0)
    for _ in range(6):
        x = observed(chance, 16)
        network.fit(x, target.predict(x, verbose=0), batch_size=4, verbose=0)
    facts = trial.end()
    assert (facts["steps"], facts["samples"], trial.set_apart()) == (24, 96, 0)
    assert facts["remarks"] == [REMARK]


@pytest.mark.slow  # 2 s beside three others
@pytest.mark.parametrize("way", ["predict", "predict_on_batch", "evaluate"])
def test_what_is_asked_again_and_again_is_validated_on(begin: Begin, way: str) -> None:
    trial = begin()
    made, chance = model(), numpy.random.default_rng(0)
    held_out = observed(chance, 8)
    for _ in range(5):
        for _ in range(4):
            made.train_on_batch(observed(chance, 8), numpy.ones((8, 1)))
        if way == "predict_on_batch":
            made.predict_on_batch(held_out)
        elif way == "predict":
            made.predict(held_out, verbose=0)
        else:
            made.evaluate(observed(chance, 8), numpy.ones((8, 1)), verbose=0)
    facts = trial.end()
    assert trial.set_apart() >= 4
    assert facts["steps"] == 20 and REMARK not in facts["remarks"]


def test_a_dataset_is_validated_on_however_it_differs(begin: Begin) -> None:
    import tensorflow as tf

    trial = begin()
    made, chance = model(), numpy.random.default_rng(0)
    for _ in range(5):
        made.fit(observed(chance, 32), numpy.ones((32, 1)), batch_size=8, verbose=0)
        made.predict(tf.data.Dataset.from_tensors(observed(chance, 8)), verbose=0)
    facts = trial.end()
    assert trial.set_apart() >= 4 and facts["remarks"] == []
