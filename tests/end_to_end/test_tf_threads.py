"""Loops of TensorFlow's in threads of the script's, whose steps aren't seen: no trial waits for its time to be over."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from support.tf_here import tf
from support.tf_networks import Net, batches
from support.tf_trials import begin

from tuner.child.tensorflow.threads import MOST_UNSEEN, UNSEEN, ThreadWatch

__all__ = ["begin"]
pytestmark = pytest.mark.filterwarnings("ignore")
Begin = Callable[..., Any]


def train(steps: int) -> None:
    net, (x, y) = Net(), next(iter(batches()))
    for _ in range(steps):
        net.step(x, y)


def beside(steps: int) -> None:
    worker = threading.Thread(target=train, args=(steps,))
    worker.start()
    worker.join()


def told(trial: Any) -> list[tuple[str, str]]:
    return [(failure["reason"], failure["detail"]) for failure in trial.log.of("failure")]


@pytest.mark.parametrize("steps", [MOST_UNSEEN - 1, MOST_UNSEEN + 4])
def test_training_in_a_thread_alone_is_told(begin: Begin, steps: int) -> None:
    """An actor-critic of several workers was said to be in its start-up still, and to need ten times as long."""
    trial = begin()
    trial.loops.gradient_taken = ThreadWatch(trial.session, tf).gradient_taken
    beside(steps)
    assert told(trial) == ([("no-step", UNSEEN)] if steps > MOST_UNSEEN else [])
    assert trial.session.stopped == (steps > MOST_UNSEEN)


def test_training_beside_what_is_counted_is_let_be(begin: Begin) -> None:
    trial = begin()
    trial.loops.gradient_taken = ThreadWatch(trial.session, tf).gradient_taken
    train(4)
    beside(MOST_UNSEEN + 4)
    assert told(trial) == [] and not trial.session.stopped
