"""A script's world is the same whether its process started fresh or was forked from one that had its imports done."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.forked import (
    KNOWN,
    KNOWN_OF_JAX,
    KNOWN_OF_KERAS,
    Studied,
    asked,
    log_of,
    quickly_loaded,
    run,
    runner,
    was_forked,
)
from support.script_world import JAX, KERAS, TORCH, WORLD

from tuner.runner.process import ProcessRunner
from tuner.runner.request import TrialRequest

__all__ = ["quickly_loaded", "runner"]

SLOW = pytest.mark.slow


IMPORTS = {
    "torch": (TORCH, KNOWN), "keras": (KERAS, KNOWN_OF_KERAS), "jax": (JAX, KNOWN_OF_JAX),
    "keras-first": ("    import keras" + KERAS, KNOWN_OF_KERAS),
    "lazy": ("    from tensorflow.keras import layers" + KERAS, KNOWN_OF_KERAS),
}  # fmt: skip
"""What a script imports first, and what is known of it then."""


def importing(*usual: str) -> pytest.MarkDecorator:
    """Parametrizes ``studied``: with these in every run, with the others in those of everything."""
    marked = [pytest.param(name, marks=() if name in usual else SLOW) for name in IMPORTS]
    return pytest.mark.parametrize("studied", marked, indirect=True)


@pytest.fixture(scope="module")
def studied(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Studied]:
    """A script that tells its world."""
    imports, known = IMPORTS[request.param]
    made = Studied.of(imports + WORLD, known, tmp_path_factory.mktemp("world"))
    yield made
    made.runner.close()


def ran(runner: ProcessRunner, folder: Path, script: Path, *argv: str, fresh: bool) -> TrialRequest:
    """The script's trial, through, started as it was meant to be."""
    request = asked(folder, script, *argv, fresh=fresh)
    run(runner, request)
    assert was_forked(request) is not fresh, log_of(request)
    return request


def told(folder: Path, name: str) -> dict[str, Any]:
    """What the trial wrote, with its own folder's name taken out; it was put aside there."""
    text = next((folder / "files").rglob(name)).read_text()
    world: dict[str, Any] = json.loads(text.replace(str(folder), "FOLDER"))
    return world


def worlds(studied: Studied, tmp_path: Path, *ways: bool, seed: int | None = None) -> list[dict[str, Any]]:
    """What the script tells in trials that start fresh or don't."""
    found = []
    name = str(studied.script.with_name("world.json"))
    for number, fresh in enumerate(ways):
        folder = tmp_path / f"trial-{number}"
        request = asked(folder, studied.script, name, fresh=fresh, seed=seed, knowledge=studied.known)
        with pytest.MonkeyPatch.context() as patch:
            studied.surround(patch)
            run(studied.runner, request)
        assert (folder / "files").exists(), log_of(request)
        assert was_forked(request) is not fresh, studied.runner.why_no_forks
        found.append(told(folder, "world.json"))
    return found


@pytest.mark.slow  # what is trained in it: end_to_end/test_forked_trials.py
@importing()
def test_the_world_of_a_fork_is_that_of_a_fresh_process(studied: Studied, tmp_path: Path) -> None:
    """All that a script can ask, and each place in any module, class or default that holds something patched."""
    fresh, *forks = worlds(studied, tmp_path, True, False, False)
    assert len(fresh["world"]["patched"]) > 500
    for fork in forks:
        for name, value in fresh["world"].items():
            assert fork["world"][name] == value, name
    names = {"torch": "torch.save", "keras": "tensorflow.python.ops.io_ops.write_file", "jax": "jax.jit"}
    assert names[studied.known.framework] in fresh["world"]["patched"], "the names are as they are meant"
    for name in fresh["chance"]:  # both forks are of one server
        assert len({json.dumps(each["chance"][name]) for each in (fresh, *forks)}) == 3, name


@importing()  # what is drawn shows in the losses: end_to_end/test_forked_trials.py and test_forked_keras_trials.py
def test_a_seeded_fork_draws_what_a_seeded_fresh_process_draws(studied: Studied, tmp_path: Path) -> None:
    """Screens compare runs of one seed: what an import has drawn before the shift is drawn again after it."""
    fresh, fork = worlds(studied, tmp_path, True, False, seed=7)
    drawn = {name: value for name, value in fresh["chance"].items() if name not in ("authkey", "started", "state")}
    assert {name: fork["chance"][name] for name in drawn} == drawn
    # The modules that define them are loaded by the hook itself in a fresh process, and had been loaded in a fork.
    both = {"numpy.random._generator.default_rng", "numpy.random.mtrand.seed"}
    assert set(fork["world"]["patched"]) ^ set(fresh["world"]["patched"]) <= both


@pytest.mark.usefixtures("quickly_loaded")
def test_what_an_import_prints_is_in_the_log(
    runner: ProcessRunner, tmp_path: Path, write_script: Callable[..., Path]
) -> None:
    deprecated = [name for name in ("cgi", "nturl2path") if name in sys.stdlib_module_names]
    script = write_script("".join(f"import {name}\n" for name in deprecated[:1]) + "import numpy\nprint('through')\n")
    logs = [log_of(ran(runner, tmp_path / str(n), script, fresh=fresh)) for n, fresh in enumerate((True, False))]
    assert logs[0] == logs[1] and logs[0].endswith("through\n")
    if deprecated[:1] == ["cgi"]:
        assert "train.py:1: DeprecationWarning" in logs[0]


@pytest.mark.usefixtures("quickly_loaded")
def test_an_error_is_told_as_by_a_fresh_process(
    runner: ProcessRunner, tmp_path: Path, write_script: Callable[..., Path]
) -> None:
    script = write_script("""
        import numpy
        def deeper(n):
            return deeper(n + 1)
        def f():
            raise KeyError("gone")
        try:
            deeper(0)
        except RecursionError as error:
            count, trace = 0, error.__traceback__
            while trace is not None:
                count, trace = count + 1, trace.tb_next
            print(count)
        f()
    """)
    logs = [log_of(ran(runner, tmp_path / str(n), script, fresh=fresh)) for n, fresh in enumerate((True, False))]
    assert logs[0] == logs[1] and "KeyError" in logs[0]


@pytest.mark.slow
def test_processes_start_in_every_way(
    runner: ProcessRunner, tmp_path: Path, write_script: Callable[..., Path]
) -> None:
    script = write_script("""
        import multiprocessing, os, subprocess, sys
        import torch
        from torch.utils.data import DataLoader

        def told(number):
            return number * number, multiprocessing.parent_process() is not None, sys.argv[1:]

        if __name__ == "__main__":
            for method in ("fork", "spawn", "forkserver"):
                with multiprocessing.get_context(method).Pool(2) as pool:
                    print(method, pool.map(told, range(3)))
            for method in ("fork", "spawn"):
                loader = DataLoader(torch.arange(8.0), batch_size=2, num_workers=2, multiprocessing_context=method)
                print(method, [batch.tolist() for batch in loader])
            queue = torch.multiprocessing.get_context("spawn").SimpleQueue()
            queue.put(torch.ones(3))
            print(queue.get())
            print(subprocess.run([sys.executable, "-c", "print(1)"], capture_output=True, text=True).stdout)
            print(os.fork() and os.wait()[1])
    """)
    logs = [
        log_of(ran(runner, tmp_path / str(n), script, "x", fresh=fresh)) for n, fresh in enumerate((True, False))
    ]
    assert logs[0] == logs[1]
    assert "forkserver [(0, True, ['x']), (1, True, ['x']), (4, True, ['x'])]" in logs[0]


@pytest.mark.slow  # of the script's own: the world of PyTorch above
def test_what_an_import_seeds_by_chance_differs_from_fork_to_fork(
    runner: ProcessRunner, tmp_path: Path, write_script: Callable[..., Path]
) -> None:
    """SymPy, which torch.compile imports, makes generators without a seed."""
    script = write_script("""
        import torch
        import torch._dynamo
        from sympy.core.random import rng
        print("drawn", rng.random())
    """)
    requests = [ran(runner, tmp_path / str(number), script, fresh=False) for number in range(4)]
    drawn = [re.findall(r"^drawn (\S+)$", log_of(request), re.MULTILINE) for request in requests]
    assert all(len(each) == 1 for each in drawn) and len({each[0] for each in drawn}) == 4
