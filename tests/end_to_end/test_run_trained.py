"""``autotune run`` doesn't end with status 0 where nothing was trained, and accuses nobody who may have trained."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tuner.child.started import OF_A_FORK

ENDED = "autotune: no training step was seen; exit status 8 instead of 0"
HINT = (
    "autotune: hint: an evaluation, or a training that is complete already, needs no profile: run it without; what"
    " trains by other means than PyTorch, TensorFlow, Keras and JAX says so by tuner.report(step=n)"
)
TRAIN = """
    import torch

    def train(steps):
        model = torch.nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for step in range(steps):
            optimizer.zero_grad()
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
"""
THREADS = {"threads": 1}
BATCH = {"batch_size": 4}
"""Which no process has to begin with: a script that imports PyTorch first is forked."""


def run_of(run_child: Callable[..., Any], script: Path, **options: Any) -> Any:
    config = options.pop("config", THREADS if options.get("strict") else BATCH)
    return run_child(script, config, mode="apply", **options)


EVALUATES = """
    import torch
    with torch.no_grad():
        print(len(torch.nn.Linear(4, 1)(torch.ones(2, 4))))
"""
NOTHING = "print('nothing to do')"


@pytest.mark.parametrize(
    ("config", "strict"), [pytest.param({"threads": 1}, True, marks=pytest.mark.slow), ({"batch_size": 4}, False)],
    ids=["in effect", "not in effect"],
)
def test_a_script_that_only_evaluates_ends_with_a_status_of_its_own(
    write_script: Callable[..., Path], run_child: Callable[..., Any], config: dict[str, Any], strict: bool
) -> None:
    """It ended with 0, under ``strict`` too, where all that the profile sets is in effect."""
    run = run_of(run_child, write_script(EVALUATES), config=config, strict=strict)
    assert run.returncode == 8, run.output
    effect = "in effect: threads" if "threads" in config else "NOT in effect: batch_size (no DataLoader was made)"
    assert run.output.splitlines() == ["2", f"autotune: at the script's end {effect}", ENDED, HINT]


EXIT, AT_ONCE = "import sys\nsys.exit({})", "import os\nos._exit({})"
HANDLER = "import atexit, os\natexit.register(os._exit, {})"


@pytest.mark.parametrize(
    ("how", "status"),
    [
        (EXIT, 3), (AT_ONCE, 0), (HANDLER, 0),
        *(pytest.param(*each, marks=pytest.mark.slow) for each in ((EXIT, 0), (AT_ONCE, 3))),
    ],
    ids=["exit-3", "_exit-0", "a handler", "exit-0", "_exit-3"],
)
def test_however_it_ends_another_status_of_its_own_stays(
    write_script: Callable[..., Path], run_child: Callable[..., Any], how: str, status: int
) -> None:
    run = run_of(run_child, write_script(how.format(status)))
    assert run.returncode == (status or 8), run.output
    assert (ENDED in run.output) is (status == 0)


def test_an_option_that_is_set_is_no_training(write_script: Callable[..., Path], run_child: Callable[..., Any]) -> None:
    text = """
        import argparse
        parser = argparse.ArgumentParser()
        parser.add_argument("--batch-size", type=int, default=8)
        print(parser.parse_args().batch_size)
    """
    knowledge = {"options": {"batch_size": "batch_size"}}
    run = run_of(run_child, write_script(text), config={"batch_size": 4}, knowledge=knowledge, strict=True)
    assert run.returncode == 8, run.output
    assert run.output.splitlines()[0] == "4"


def test_a_script_that_computes_gradients_and_takes_no_step_has_not_trained(
    write_script: Callable[..., Path], run_child: Callable[..., Any]
) -> None:
    """As where a batch of the profile's leaves fewer batches than the script accumulates."""
    text = TRAIN.replace("            optimizer.step()", "            if step == 8:\n                optimizer.step()")
    run = run_of(run_child, write_script(text + "\n    train(4)"), config=BATCH)
    assert run.returncode == 8 and ENDED in run.output, run.output


@pytest.mark.parametrize(
    ("ending", "config"),
    [
        ("train(1)", BATCH),
        pytest.param("train(1)\n    import os\n    os._exit(0)", BATCH, marks=pytest.mark.slow),
        pytest.param("torch.compile(train, backend='eager')(2)", BATCH, marks=pytest.mark.slow),
        pytest.param("train(2)", {"threads": 1, "precision": "bf16"}, marks=pytest.mark.slow),
        ("import multiprocessing\n    process = multiprocessing.get_context('fork').Process(target=train, args=(2,))\n"
         "    process.start()\n    process.join()", BATCH),
    ],
    ids=["one step", "one step and os._exit", "compiled whole", "precision", "in a forked process"],
)  # fmt: skip
def test_one_step_is_a_training(
    write_script: Callable[..., Path], run_child: Callable[..., Any], ending: str, config: dict[str, Any]
) -> None:
    run = run_of(run_child, write_script(f"{TRAIN}\n    {ending}"), config=config)
    assert run.returncode == 0 and "no training step" not in run.output, run.output


BY_HAND = """
    import torch
    weight = torch.ones(4, requires_grad=True)
    for step in range(3):
        (weight * torch.ones(4)).sum().backward()
        with torch.no_grad():
            weight -= 0.1 * weight.grad
            weight.grad = None
"""
REPORTED = """
    import tuner
    for step in range({first}, 3):
        tuner.report(step=step)
"""


@pytest.mark.parametrize(
    ("text", "status"),
    [
        (BY_HAND, 0), (REPORTED.replace("{first}", "1"), 0), (REPORTED.replace("{first}", "3"), 8),
        ("import tuner\ntuner.report(samples=64)", 0),
    ],
    ids=["updates by hand", "reported steps", "none reported", "reported samples"],
)
def test_steps_of_the_scripts_own_are_seen(
    write_script: Callable[..., Path], run_child: Callable[..., Any], text: str, status: int
) -> None:
    run = run_of(run_child, write_script(text), config=BATCH)
    assert run.returncode == status, run.output


SPAWNS = """
    import multiprocessing
    import time

    def work(seconds):
        time.sleep(seconds)

    if __name__ == "__main__":
        process = multiprocessing.get_context("spawn").Process(target=work, args=(0.0,))
        process.start()
        process.join()
"""
FORKS = """
    import multiprocessing, subprocess, sys

    def work():
        subprocess.run([sys.executable, "-c", "pass"], check=True)

    process = multiprocessing.get_context("fork").Process(target=work)
    process.start()
    process.join()
"""
GOES_ON = "import threading, time\nthreading.Thread(target=time.sleep, args=(1.0,), name='trainer').start()"
UNSEEN = "autotune: no training step was seen here; {} may have trained, without the profile"


@pytest.mark.slow  # 5 s beside three others
@pytest.mark.parametrize(
    ("text", "who"),
    [
        (SPAWNS, "the process work"),
        pytest.param(
            f"import subprocess, sys\nsubprocess.run([{sys.executable!r}, '-c', 'pass'], check=True)",
            f"the command {Path(sys.executable).name}", marks=pytest.mark.slow,
        ),
        pytest.param("import os\nos.system('sh ./launch.sh')", "the command launch.sh", marks=pytest.mark.slow),
        (f"import subprocess\nsubprocess.run(['sh', '-c', 'cd . && \"{sys.executable}\" -c pass'], check=True)",
         f"the command {Path(sys.executable).name}"),
        ("import os, sys\nos.waitpid(os.posix_spawn(sys.executable, [sys.executable, '-c', 'pass'], os.environ), 0)",
         f"the command {Path(sys.executable).name}"),
        ("import os, sys\nos.spawnv(os.P_WAIT, sys.executable, [sys.executable, '-c', 'pass'])", OF_A_FORK),
        (FORKS, OF_A_FORK),
        pytest.param(
            "import subprocess\nsubprocess.run(['bash', '-c', 'cd . && ./launch'], check=True)", "the command launch",
            marks=pytest.mark.slow,
        ),
        ("import subprocess\nsubprocess.run(['./launch', '--epochs', '3'], check=True)", "the command launch"),
        ("import numpy\nfrom sklearn.linear_model import SGDClassifier\n"
         "SGDClassifier().partial_fit(numpy.eye(2), [0, 1], classes=[0, 1])", "SGDClassifier of scikit-learn"),
        pytest.param("import jax\nprint(jax.numpy.ones(2))", "JAX", marks=pytest.mark.slow),
        (GOES_ON, "the thread trainer"),
        (f"{GOES_ON}\nimport atexit, os\natexit.register(os._exit, 0)", "the thread trainer"),
    ],
    ids=[
        "spawned", "a command", "a shell", "a shell's text", "posix_spawn", "spawnv", "of a fork",
        "any program of a shell", "any program", "scikit-learn", "JAX", "a thread that goes on",
        "and leaves at once then",
    ],
)  # fmt: skip
def test_who_may_have_trained_elsewhere_is_not_accused(
    write_script: Callable[..., Path], run_child: Callable[..., Any], tmp_path: Path, text: str, who: str
) -> None:
    (tmp_path / "launch.sh").write_text("true\n")
    (tmp_path / "launch").write_text("#!/bin/sh\ntrue\n")
    (tmp_path / "launch").chmod(0o755)
    run = run_of(run_child, write_script(text), fresh="atexit" in text)
    assert run.returncode == 0 and ENDED not in run.output, run.output
    assert UNSEEN.format(who) in run.output.splitlines()


@pytest.mark.parametrize(
    "how",
    [
        "os.execv(name, [name, '-c', 'pass'])",
        pytest.param("os.execlp(name, name, '-c', 'pass')", marks=pytest.mark.slow),
        pytest.param("os.execve(path=name, argv=[name, '-c', 'pass'], env=os.environ)", marks=pytest.mark.slow),
        "assert os.execve in os.supports_fd; os.execve(os.open(name, os.O_RDONLY), [name, '-c', 'pass'], os.environ)",
    ],
)  # fmt: skip
def test_a_script_that_becomes_another_program_is_told_of(
    write_script: Callable[..., Path], run_child: Callable[..., Any], how: str
) -> None:
    """It may start itself again with other variables: nothing of ours sees steps there, or applies knobs."""
    run = run_of(run_child, write_script(f"import os, sys\nname = sys.executable\n{how}"))
    become = "another program" if "os.open" in how else Path(sys.executable).name
    line = f"autotune: the script goes on as {become}, without the profile"
    assert run.returncode == 0 and run.output.splitlines() == [line], run.output


@pytest.mark.slow
def test_what_trains_nothing_excuses_nobody(write_script: Callable[..., Path], run_child: Callable[..., Any]) -> None:
    """Commands that ask for a version, scores and scalers of scikit-learn, and workers that load data."""
    text = """
        import os
        import subprocess
        from sklearn.metrics import accuracy_score
        from sklearn.preprocessing import StandardScaler
        StandardScaler().fit([[0.0], [1.0]])
        accuracy_score([0, 1], [0, 1])
        os.system("cd . && uname -a | tr a-z A-Z")
        subprocess.run(["sh", "-c", "LC_ALL=C git --version"], check=True)
        import torch
        from torch.utils.data import DataLoader, TensorDataset
        subprocess.run(["uname"], check=True)
        for context in ("fork", "spawn"):
            loader = DataLoader(TensorDataset(torch.ones(4, 1)), num_workers=1, multiprocessing_context=context)
            if __name__ == "__main__":
                list(loader)
    """
    run = run_of(run_child, write_script(text))
    assert run.returncode == 8 and ENDED in run.output, run.output


def test_a_framework_that_our_watches_do_not_fit_accuses_nobody(
    write_script: Callable[..., Path], run_child: Callable[..., Any], tmp_path: Path
) -> None:
    """What takes no hooks trains unseen: that is no fault of the script."""
    (tmp_path / "keras").mkdir()
    (tmp_path / "keras" / "__init__.py").write_text("__version__ = '3.2.0'\n")
    run = run_of(run_child, write_script("import keras"), fresh=True)  # a fork would have the real one
    assert run.returncode == 0, run.output
    assert UNSEEN.format("keras") in run.output.splitlines()


@pytest.mark.parametrize("word", ["--help", pytest.param("--version", marks=pytest.mark.slow)])
def test_a_script_that_is_asked_for_help_is_left_alone(
    write_script: Callable[..., Path], run_child: Callable[..., Any], word: str
) -> None:
    text = """
        import argparse
        parser = argparse.ArgumentParser()
        parser.add_argument("--version", action="version", version="3")
        parser.parse_args()
    """
    run = run_of(run_child, write_script(text), argv=(word,), strict=True)
    assert run.returncode == 0 and "autotune" not in run.output, run.output


@pytest.mark.parametrize(("rank", "status"), [("0", 8), ("1", 0)])
def test_of_several_ranks_the_first_one_has_to_train(
    write_script: Callable[..., Path], run_child: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, rank: str,
    status: int,
) -> None:  # fmt: skip
    """Another one may serve, or evaluate: its status would end the training of all."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", rank)
    run = run_of(run_child, write_script(NOTHING))
    assert run.returncode == status, run.output


def test_as_written_nothing_is_asked(write_script: Callable[..., Path], run_child: Callable[..., Any]) -> None:
    run = run_of(run_child, write_script(NOTHING), config={})
    assert run.returncode == 0 and "autotune" not in run.output, run.output


KERAS = """
    import os
    import sys
    import keras
    import numpy

    x, y = numpy.ones((16, 3), "float32"), numpy.ones((16, 1), "float32")
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile(optimizer="sgd", loss="mse")
    how = sys.argv[1]
    if how == "fit":
        model.fit(x, y, batch_size=8, verbose=0)
    elif how == "complete":
        model.fit(x, y, batch_size=8, verbose=0, epochs=2, initial_epoch=2)
    elif how == "on_batch":
        model.train_on_batch(x, y)
    elif how == "evaluate":
        model.evaluate(x, y, verbose=0)
        model.predict(x, verbose=0)
    elif how == "tape":
        import tensorflow as tf
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x) - y) ** 2)
        variables = model.trainable_variables
        model.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
"""


@pytest.mark.slow  # in this process: test_keras_fit.py
@pytest.mark.parametrize(
    ("how", "status"),
    [
        ("fit", 0),
        ("on_batch", 0),
        ("tape", 0),
        ("complete", 8),
        ("evaluate", 8),
    ],
)
def test_steps_of_keras_and_tensorflow_are_seen(
    write_script: Callable[..., Path], run_child: Callable[..., Any], how: str, status: int
) -> None:
    run = run_of(run_child, write_script(KERAS), argv=(how,), config={"batch_size": 8})
    assert run.returncode == status, run.output


@pytest.mark.slow
@pytest.mark.parametrize(
    ("backend", "how", "status"),
    [(backend, *each) for backend in ("jax", "torch") for each in (("fit", 0), ("on_batch", 0), ("evaluate", 8))],
)
def test_steps_of_keras_are_seen_on_its_other_backends(
    write_script: Callable[..., Path], run_child: Callable[..., Any], backend: str, how: str, status: int
) -> None:
    text = KERAS.replace("    import sys\n", f"    import sys\n    os.environ['KERAS_BACKEND'] = {backend!r}\n")
    run = run_of(run_child, write_script(text), argv=(how,), config={"batch_size": 8})
    assert run.returncode == status, run.output


@pytest.mark.slow
def test_a_loop_of_jax_by_keras_optimizer_is_seen(
    write_script: Callable[..., Path], run_child: Callable[..., Any]
) -> None:
    """It was accused of having trained nothing."""
    text = """
        import os
        os.environ["KERAS_BACKEND"] = "jax"
        import keras
        import numpy
        optimizer = keras.optimizers.SGD(0.1)
        weight = keras.Variable(numpy.ones(3, "float32"))
        optimizer.build([weight])
        held = [each.value for each in optimizer.variables]
        trained, held = optimizer.stateless_apply(held, [numpy.ones(3, "float32")], [weight.value])
    """
    run = run_of(run_child, write_script(text), config={"batch_size": 8})
    assert run.returncode == 0 and "no training step" not in run.output, run.output
