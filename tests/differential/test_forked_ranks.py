"""A rank's world, and what it trains, are the same whether the ranks started fresh or were forked off one server."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.forked import KNOWN, Studied, asked, log_of, quickly_loaded, records_of, run, runner, was_forked
from support.rank_scripts import ddp
from support.script_world import TORCH, WORLD

from tuner.knowledge import Knowledge
from tuner.runner.process import ProcessRunner
from tuner.runner.request import Limits, TrialRequest, screen_window

__all__ = ["quickly_loaded", "runner"]

NUMPY = """
    import argparse, json, os, sys
    import multiprocessing, multiprocessing.util
    import numpy as np
    import numpy.random
    import sysconfig
    sysconfig.get_config_vars()  # as a server has, and each framework at its import

    def state_of_framework():
        return []

    def drawn_by_framework():
        return {}
"""
OF_A_RANK = WORLD.replace("open(sys.argv[1]", "open(sys.argv[1] + os.environ['RANK']")
DIGITS = Path(__file__).resolve().parents[2] / "studies" / "digits_ddp" / "train.py"


def worlds(made: Studied, folder: Path, *, fresh: bool) -> list[dict[str, Any]]:
    """What each of two ranks tells, without what differs from trial to trial."""
    limits, name = Limits(trial_timeout_s=200.0), str(made.script.with_name("world-"))
    request = asked(folder, made.script, name, fresh=fresh, ranks=2, limits=limits)
    with pytest.MonkeyPatch.context() as patch:
        made.surround(patch)
        run(made.runner, request)
    assert was_forked(request) is not fresh, made.runner.why_no_forks
    found = []
    for rank in (0, 1):
        written = next(iter((folder / "files").rglob(f"world-{rank}")), None)
        assert written is not None, log_of(request)
        text = written.read_text().replace(str(folder), "FOLDER")
        told = json.loads(re.sub(r'("MASTER_PORT", )"\d{4,5}"', r'\1"PORT"', text))
        for kind in ("environment", "getenv"):  # whose order is none that anything goes by
            told["world"][kind] = dict(told["world"][kind])
        found.append(told)
    return found


@pytest.mark.usefixtures("quickly_loaded")
def test_the_world_of_a_forked_rank_is_that_of_a_fresh_one(tmp_path: Path) -> None:
    check_worlds(NUMPY, tmp_path)


@pytest.mark.slow  # that of NumPy above, and test_forked_world.py
def test_the_world_of_a_forked_rank_with_pytorch_is_that_of_a_fresh_one(tmp_path: Path) -> None:
    check_worlds(TORCH, tmp_path)


def check_worlds(imports: str, folder: Path) -> None:
    """All that a script can ask, in each rank, and what it draws by chance."""
    (home := folder / "home").mkdir()
    made = Studied.of(imports + OF_A_RANK, KNOWN, home)
    try:
        fresh = worlds(made, folder / "fresh", fresh=True)
        forked = worlds(made, folder / "forked", fresh=False)
    finally:
        made.runner.close()
    for rank, (as_fresh, as_forked) in enumerate(zip(fresh, forked, strict=True)):
        environment = as_fresh["world"]["environment"]
        assert (environment["RANK"], environment["MASTER_PORT"]) == (str(rank), "PORT")
        for name, value in as_fresh["world"].items():
            assert as_forked["world"][name] == value, (rank, name)
    alike = {"seed"}  # PyTorch begins with a constant one
    for name in fresh[0]["chance"]:
        drawn = {json.dumps(each["chance"][name]) for each in (*fresh, *forked)}
        assert len(drawn) == 4 or name in alike or name == "torch", name


@pytest.mark.slow  # of one process: test_forked_world.py
@pytest.mark.usefixtures("quickly_loaded")
def test_what_an_import_prints_is_in_the_log_of_each_rank(
    tmp_path: Path, write_script: Callable[..., Path], runner: ProcessRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    (installed := tmp_path / "python" / "site-packages").mkdir(parents=True)
    (installed / "yaml.py").write_text("print('imported')\n")
    monkeypatch.setenv("PYTHONPATH", str(installed))
    script = write_script("import numpy, yaml, os\nprint('rank', os.environ['RANK'])\n")
    for fresh in (True, False):
        run(runner, request := asked(tmp_path / str(fresh), script, fresh=fresh, ranks=2))
        assert was_forked(request) is not fresh, runner.why_no_forks
        logs = [(request.folder / name).read_text() for name in ("log.txt", "log-1.txt")]
        assert logs == ["imported\nrank 0\n", "imported\nrank 1\n"]


def trained(runner: ProcessRunner, folder: Path, *, fresh: bool) -> tuple[TrialRequest, dict[str, Any]]:
    """The example of several ranks, two epochs of it, and its checkpoint."""
    known = Knowledge(framework="torch", optimizers=("AdamW",), framework_version=torch.__version__)
    options = ("--width", "64", "--checkpoints", str(folder / "checkpoints"))
    given: dict[str, Any] = {"knowledge": known, "window": screen_window(3800), "limits": Limits(trial_timeout_s=200.0)}
    request = asked(folder / "trial", DIGITS, *options, fresh=fresh, ranks=2, seed=5, **given)
    outcome = run(runner, request)
    assert outcome.complete, (outcome, log_of(request))
    assert was_forked(request) is not fresh, runner.why_no_forks
    saved: dict[str, Any] = torch.load(next((request.folder / "files").rglob("last.pt")))
    return request, saved


@pytest.mark.slow  # the world of a forked rank, above; losses of one process: end_to_end/test_forked_trials.py
def test_forked_ranks_train_bit_for_bit_as_fresh_ones(runner: ProcessRunner, tmp_path: Path) -> None:
    """Losses of each step in each rank, and weights and the optimizer's state after two epochs, on a seed."""
    (fresh, of_fresh), (forked, of_forked) = (
        trained(runner, tmp_path / str(each), fresh=each) for each in (True, False)
    )
    losses = [
        {rank: [r["value"] for r in records_of(request, "loss") if r.get("rank", 0) == rank] for rank in (0, 1)}
        for request in (fresh, forked)
    ]
    for of_rank in zip(*(each.values() for each in losses), strict=True):
        common = min(map(len, of_rank))  # all end after a step that none had taken: which one hangs on who is ahead
        assert common >= 28 and of_rank[0][:common] == of_rank[1][:common]
    assert of_fresh["epoch"] == of_forked["epoch"] == 2
    for name, value in of_fresh["model"].items():
        assert torch.equal(value, of_forked["model"][name]), name
    for number, state in of_fresh["optimizer"]["state"].items():
        for name, value in state.items():
            assert torch.equal(value, of_forked["optimizer"]["state"][number][name]), (number, name)
    firsts = [records_of(request, "first_step") for request in (fresh, forked)]
    assert [len(each) for each in firsts] == [2, 2]
    assert all(0 < first["spared_s"] < first["seconds"] for first in firsts[1])
    assert not any(first.get("spared_s") for first in firsts[0])


@pytest.mark.slow  # end_to_end/test_rank_turns.py, and test_forked_trials.py
def test_forked_ranks_take_turns_off_a_server_for_each_trial(
    runner: ProcessRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in the finals: nobody else is forked off it, and all of a round start alike."""
    monkeypatch.delenv("PYTEST_CURRENT_TEST")
    (script := tmp_path / "train.py").write_text(ddp(step="time.sleep(0.01)"))
    requests = [asked(tmp_path / side, script, fresh=True, ranks=2) for side in ("a", "b")]
    outcomes = runner.run_by_turns(requests, threading.Event()).outcomes
    assert all(outcome.complete for outcome in outcomes), [outcome.detail for outcome in outcomes]
    assert all(was_forked(request) for request in requests), runner.why_no_forks
    assert [server.trials for server in runner._servers.alive] == [1, 1]
    assert all(outcome.measurement is not None and outcome.measurement.turns > 3 for outcome in outcomes)
