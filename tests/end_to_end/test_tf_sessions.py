"""Sessions of TensorFlow 1, in which no step can be seen: the script is told so, unless it tells of its steps."""

# mypy: disable-error-code="untyped-decorator, name-defined, misc"
from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from support.tf_here import tf
from support.tf_trials import begin

from tuner.child.session import StopTrial
from tuner.child.tensorflow.sessions import UNSEEN, SessionWatch

__all__ = ["begin"]

pytestmark = pytest.mark.filterwarnings("ignore")
Begin = Callable[..., Any]


def graph_run(runs: int, each: Callable[[int], object] = lambda step: None, *, trains: bool = True) -> None:
    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as session:
        weight = v1.get_variable("w", [4])
        loss = tf.reduce_sum(weight**2)
        train = v1.train.GradientDescentOptimizer(0.1).minimize(loss) if trains else loss
        session.run(v1.global_variables_initializer())
        for step in range(runs):
            session.run(train)
            each(step)


def watched(begin: Begin, deadline_s: float) -> tuple[Any, SessionWatch]:
    import tensorflow

    trial = begin(request={"deadline_s": deadline_s})
    watch = SessionWatch(trial.session, tensorflow)
    watch.install()
    return trial, watch


def test_a_session_without_a_step_is_told_at_the_scripts_end(begin: Begin) -> None:
    trial, watch = watched(begin, 600.0)
    graph_run(5)
    assert not trial.log.of("failure"), "the script may still tell of its steps"
    watch.script_ended()
    assert [(told["reason"], told["detail"]) for told in trial.log.of("failure")] == [("no-step", UNSEEN)]


def test_the_scripts_own_steps_count(begin: Begin) -> None:
    trial, watch = watched(begin, 600.0)
    graph_run(20, lambda step: trial.session.step("tensorflow"))
    watch.script_ended()
    assert trial.steps == 20 and not trial.log.of("failure")


@pytest.mark.parametrize("trains", [True, False])
def test_no_trial_waits_for_its_time_limit(begin: Begin, trains: bool) -> None:
    """But one that trains nothing in its session: what comes behind it may be seen."""
    trial, _ = watched(begin, 0.5)
    if not trains:
        graph_run(10, lambda step: time.sleep(0.1), trains=False)
        assert not trial.log.of("failure")
        return
    with pytest.raises(StopTrial):
        graph_run(20, lambda step: time.sleep(0.1))
    assert [told["reason"] for told in trial.log.of("failure")] == ["no-step"]


def test_eager_training_has_no_session(begin: Begin) -> None:
    _, watch = watched(begin, 600.0)
    weight = tf.Variable([1.0])
    tf.compat.v1.train.GradientDescentOptimizer(0.1).minimize(lambda: weight**2, var_list=[weight])
    watch.script_ended()
    assert not watch.session.recorder.of("failure")  # type: ignore[attr-defined]  # the tests' own
