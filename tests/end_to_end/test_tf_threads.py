"""Loops of TensorFlow's in threads of the script's, whose steps aren't seen: no trial waits for its time to be over."""

from __future__ import annotations

import sys
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
@pytest.mark.parametrize("imports", [False, True], ids=["plain", "imports tuner"])
def test_training_in_a_thread_alone_is_told(begin: Begin, steps: int, imports: bool) -> None:
    """An actor-critic of several workers was said to be in its start-up still, and to need ten times as long.

    One that imports tuner may tell of its steps, as it is advised to: its own thread does so now and then only.
    """
    trial = begin()
    trial.loops.gradient_taken = ThreadWatch(trial.session, tf).gradient_taken
    with pytest.MonkeyPatch.context() as modules:
        if not imports:
            modules.delitem(sys.modules, "tuner")  # this process has it, unlike a trial's of a script that doesn't
        beside(steps)
    is_told = steps > MOST_UNSEEN and not imports
    assert told(trial) == ([("no-step", UNSEEN)] if is_told else [])
    assert trial.session.stopped == is_told


def test_training_beside_what_is_counted_is_let_be(begin: Begin) -> None:
    trial = begin()
    trial.loops.gradient_taken = ThreadWatch(trial.session, tf).gradient_taken
    train(4)
    beside(MOST_UNSEEN + 4)
    assert told(trial) == [] and not trial.session.stopped
