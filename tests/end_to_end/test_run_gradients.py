"""Who takes gradients and updates by hand, where no step can be seen: not accused by a run, told in a trial."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ENDED = "autotune: no training step was seen; exit status 8 instead of 0"
GRADIENTS = "autotune: no training step was seen, but gradients were taken by {}: an update by hand may have trained"
AUTOGRAD = """
    import torch
    weight = torch.ones(4, requires_grad=True)
    {made}
    for step in range(3):
        gradient, = torch.autograd.grad((weight * weight).sum(), [weight])
        with torch.no_grad():
            weight -= 0.1 * gradient
"""
FUNCTIONAL = """
    import torch
    weight = torch.ones(4)
    for step in range(3):
        weight = weight - 0.1 * torch.func.grad(lambda weight: (weight * weight).sum())(weight)
"""
COMPILED = """
    import torch
    def step(weight):
        return weight - 0.1 * torch.func.grad(lambda weight: (weight * weight).sum())(weight)
    weight = torch.compile(step, backend="eager", fullgraph=True)(torch.ones(4))
    assert weight.allclose(torch.full((4,), 0.8)), weight
"""


@pytest.mark.parametrize(
    "text",
    [AUTOGRAD.replace("{made}", ""), *(pytest.param(text, marks=pytest.mark.slow) for text in (FUNCTIONAL, COMPILED))],
    ids=["autograd", "functional", "compiled"],
)
def test_who_takes_gradients_and_makes_no_optimizer_is_not_accused(
    write_script: Callable[..., Path], run_child: Callable[..., Any], text: str
) -> None:
    run = run_child(write_script(text), {"batch_size": 4}, mode="apply")
    assert run.returncode == 0, run.output
    assert GRADIENTS.format("torch.autograd.grad") in run.output.splitlines()


@pytest.mark.slow
def test_gradients_beside_an_optimizer_that_takes_no_step_are_no_training(
    write_script: Callable[..., Path], run_child: Callable[..., Any]
) -> None:
    text = AUTOGRAD.replace("{made}", "optimizer = torch.optim.SGD([weight], lr=0.1)")
    run = run_child(write_script(text), {"threads": 1}, mode="apply")
    assert run.returncode == 8 and ENDED in run.output, run.output


SCRIPTED = """
    import torch

    @torch.jit.script
    def forces(place: torch.Tensor):
        return torch.autograd.grad([(place * place).sum()], [place])[0]

    def step(place):
        return place - 0.1 * torch.autograd.grad((place * place).sum(), [place])[0]

    print(forces(torch.ones(1, requires_grad=True)))
    print(torch.compile(step, backend="eager")(torch.ones(1, requires_grad=True)).detach())
"""


@pytest.mark.slow  # 2 s beside three others
def test_what_is_scripted_or_compiled_takes_its_gradients_as_written(
    write_script: Callable[..., Path], run_child: Callable[..., Any]
) -> None:
    run = run_child(write_script(SCRIPTED), {"batch_size": 4}, mode="apply")
    assert run.returncode == 0, run.output
    assert run.output.splitlines()[:2] == ["tensor([2.])", "tensor([0.8000])"]


BESIDE_TENSORFLOW = """
    import sys
    import tensorflow as tf
    if sys.argv[1] == "jax":
        import jax
        weight = 1.0
        for part in tf.data.Dataset.range(3):
            weight -= 0.1 * jax.vjp(lambda weight: weight * weight, weight)[1](1.0)[0]
    elif sys.argv[1] == "function":
        weight = tf.Variable(tf.ones(4))
        @tf.function
        def step():
            weight.assign_sub(0.1 * tf.gradients(tf.reduce_sum(weight * weight), [weight])[0])
        step()
    elif sys.argv[1] == "session":
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            weight = tf.compat.v1.get_variable("weight", initializer=tf.ones(4))
            train = tf.compat.v1.train.GradientDescentOptimizer(0.1).minimize(tf.reduce_sum(weight * weight))
            session.run(tf.compat.v1.global_variables_initializer())
            session.run(train)
    elif sys.argv[1] == "evaluation":
        import jax
        print(jax.numpy.ones(2) * float(tf.reduce_sum(tf.ones(4))))
"""


@pytest.mark.slow  # the same of PyTorch above
@pytest.mark.parametrize(
    ("how", "line"),
    [
        ("jax", GRADIENTS.format("jax.vjp")),
        ("function", GRADIENTS.format("tf.gradients")),
        ("session", GRADIENTS.format("an optimizer of TensorFlow 1")),
        ("evaluation", ""),
    ],
)
def test_what_trains_unseen_beside_tensorflow_is_not_accused(
    write_script: Callable[..., Path], run_child: Callable[..., Any], how: str, line: str
) -> None:
    run = run_child(write_script(BESIDE_TENSORFLOW), {"batch_size": 4}, mode="apply", argv=(how,))
    assert run.returncode == (0 if line else 8), run.output
    assert (line or ENDED) in run.output.splitlines()


@pytest.mark.parametrize("text", [AUTOGRAD.replace("{made}", ""), FUNCTIONAL], ids=["autograd", "functional"])
def test_a_trial_is_told_of_updates_by_hand(
    write_script: Callable[..., Path], run_child: Callable[..., Any], text: str
) -> None:
    """It was told to be in its start-up still, and to need more time, where it had trained all along."""
    run = run_child(write_script(text.replace("range(3)", "range(300)")))
    told = [record["gradients"] for record in run.records if record["kind"] == "unstepped"]
    assert told == [128, 256], run.output


def test_a_trial_is_not_told_of_gradients_beside_an_optimizer(
    write_script: Callable[..., Path], run_child: Callable[..., Any]
) -> None:
    text = AUTOGRAD.replace("{made}", "optimizer = torch.optim.SGD([weight], lr=0.1)")
    run = run_child(write_script(text.replace("range(3)", "range(300)")))
    assert not [record for record in run.records if record["kind"] == "unstepped"], run.output


@pytest.mark.slow  # 2 s beside three others
def test_a_trial_leaves_what_is_scripted_or_compiled_as_written(
    write_script: Callable[..., Path], run_child: Callable[..., Any]
) -> None:
    run = run_child(write_script(SCRIPTED))
    assert run.output.splitlines()[:2] == ["tensor([2.])", "tensor([0.8000])"], run.output
