"""Trials that are forked train as those that start fresh: the same losses to the last bit, the same knobs applied."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support.forked import (
    KNOWN,
    QUICK,
    Studied,
    asked,
    both,
    log_of,
    quickly_loaded,
    records_of,
    run,
    runner,
    was_forked,
)

from tuner.model import Outcome
from tuner.runner.process import ProcessRunner
from tuner.runner.request import TrialRequest, screen_window

__all__ = ["quickly_loaded", "runner"]

SLOW = pytest.mark.slow
TRAIN = """
    import argparse
    import os
    import numpy as np
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, Dataset

    class Rows(Dataset):
        def __len__(self):
            return 6400
        def __getitem__(self, index):
            return torch.randn(3, 8, 8) + index % 10, torch.tensor(index % 10), np.random.rand()

    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, default=0)
    workers = parser.parse_args().workers
    torch.manual_seed(3)
    np.random.seed(3)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Dropout(0.2), nn.Linear(8 * 36, 10))
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    for epoch in range(100):
        for x, y, _ in DataLoader(Rows(), batch_size=16, shuffle=True, num_workers=workers):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            if os.path.exists("model.pt"):
                old = torch.load("model.pt")
            torch.save(model.state_dict(), "model.pt")
"""


@pytest.fixture(scope="module")
def of_module(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Studied]:
    """``TRAIN``, and a file of the user's."""
    made = Studied.of(TRAIN, KNOWN, tmp_path_factory.mktemp("script"))
    torch.save({"the user's": torch.ones(1)}, made.script.with_name("model.pt"))
    yield made
    made.runner.close()


@pytest.fixture
def studied(of_module: Studied, monkeypatch: pytest.MonkeyPatch) -> Studied:
    """It trains in its own folder, and writes over a file of the user's with each step."""
    of_module.surround(monkeypatch)
    return of_module


@pytest.fixture
def reporting(quickly_loaded: None, write_script: Callable[..., Path]) -> Path:
    """A script whose servers have little to load."""
    return write_script("""
        import numpy
        import time
        import tuner
        for step in range(1, 100_000):
            time.sleep(0.005)
            tuner.report(step=step, samples=8 * step)
    """)


@pytest.fixture(scope="module")
def pair(of_module: Studied, tmp_path_factory: pytest.TempPathFactory) -> list[tuple[TrialRequest, Outcome]]:
    """A seeded trial of the script as it is written: as it starts fresh, and as it is forked."""
    with pytest.MonkeyPatch.context() as patch:
        of_module.surround(patch)
        folder, script = tmp_path_factory.mktemp("pair"), of_module.script
        return both(of_module.runner, folder, script, window=screen_window(1600), seed=2)


def check_losses(pair: list[tuple[TrialRequest, Outcome]]) -> None:
    """Those of each step, in full."""
    fresh, forked = ([record["value"] for record in records_of(request, "loss")] for request, _ in pair)
    assert len(fresh) >= 90 and fresh == forked


def test_losses_are_the_same_to_the_last_bit(pair: list[tuple[TrialRequest, Outcome]]) -> None:
    """On a seed: what imports have drawn before it is drawn again after it."""
    check_losses(pair)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("workers", "seed"),
    [("2", None), ("0", None), ("2", 2)],
)
def test_losses_are_the_same_with_workers_and_without_a_seed(
    studied: Studied, tmp_path: Path, workers: str, seed: int | None
) -> None:
    """The script sets a seed of its own."""
    options: dict[str, Any] = {"window": screen_window(1600), "seed": seed}
    check_losses(both(studied.runner, tmp_path, studied.script, "--workers", workers, **options))


def test_facts_and_watches_are_the_same(pair: list[tuple[TrialRequest, Outcome]]) -> None:
    (_, fresh), (_, forked) = pair
    names = ("framework", "as_written", "left_out", "training_loaders", "optimizers", "precisions", "watches", "unit",
             "options", "arguments", "remarks", "dataset_len", "loss_reduction", "optimizer_choices")  # fmt: skip
    for name in names:
        assert getattr(fresh.knowledge, name) == getattr(forked.knowledge, name), name


@SLOW  # of forks that tests make by the same functions: test_torch_child.py
@pytest.mark.parametrize(
    "config",
    [{"precision": "bf16", "channels_last": True, "optimizer": "fused"},
     {"num_workers": 2, "prefetch_factor": 4, "batch_size": 8, "grad_accumulation": 2, "optimizer": "fused"}],
    ids="-".join,
)  # fmt: skip
def test_knobs_are_applied_and_seen(
    runner: ProcessRunner, studied: Studied, pair: list[tuple[TrialRequest, Outcome]], tmp_path: Path,
    config: dict[str, Any],
) -> None:  # fmt: skip
    """Its servers import more than those of the module: what a baseline has shown of its optimizers."""
    known = pair[0][1].knowledge
    run(runner, request := asked(tmp_path, studied.script, fresh=False, config=config, knowledge=known))
    assert was_forked(request), runner.why_no_forks
    evidence = {record["knob"]: record["evidence"] for record in records_of(request, "knob")}
    assert evidence == dict.fromkeys(config, "verified"), log_of(request)


def test_files_of_the_users_stay_as_they_were(
    of_module: Studied, pair: list[tuple[TrialRequest, Outcome]]
) -> None:
    model = of_module.script.with_name("model.pt")
    assert [*torch.load(model)] == ["the user's"]
    for request, _ in pair:
        kept = request.folder / "files" / str(model).lstrip("/")
        assert "0.weight" in torch.load(kept)


@pytest.mark.usefixtures("quickly_loaded")
def test_no_file_is_written_over_by_what_a_library_keeps_in_an_object(
    runner: ProcessRunner, tmp_path: Path, write_script: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """``numpy.savetxt`` writes through a function that NumPy took when it was imported."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "history.txt").write_text("7")
    script = write_script("""
        import numpy as np
        np.savetxt("history.txt", np.ones(2))
        print(np.loadtxt("history.txt"), np.genfromtxt("history.txt"))
    """)
    for fresh in (True, False):
        run(runner, request := asked(tmp_path / str(fresh), script, fresh=fresh))
        assert was_forked(request) is not fresh and log_of(request) == "[1. 1.] [1. 1.]\n"
        assert (tmp_path / "history.txt").read_text() == "7"


@pytest.mark.slow  # unit/runner/test_leading_imports.py
def test_variables_that_a_script_sets_first_are_heeded(
    runner: ProcessRunner, tmp_path: Path, write_script: Callable[..., Path]
) -> None:
    """A library reads them when it is loaded: nothing behind such a line may be loaded before."""
    script = write_script("""
        import os
        os.environ["OMP_NUM_THREADS"] = "1"
        import torch
        print("threads", torch.get_num_threads())
    """)
    request = asked(tmp_path / "trial", script, fresh=False)
    run(runner, request)
    assert log_of(request) == "threads 1\n" and not was_forked(request)


def test_an_environment_of_its_own_starts_fresh(
    runner: ProcessRunner, tmp_path: Path, reporting: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(runner, asked(tmp_path / "0", reporting, fresh=False))
    monkeypatch.setenv("MKL_NUM_THREADS", "1")
    run(runner, request := asked(tmp_path / "1", reporting, fresh=False))
    assert not was_forked(request)
    monkeypatch.delenv("MKL_NUM_THREADS")
    run(runner, request := asked(tmp_path / "2", reporting, fresh=False))
    assert was_forked(request)


def test_memory_isnt_less_for_being_shared(pair: list[tuple[TrialRequest, Outcome]]) -> None:
    """It may be more on a busy machine: which pages server and fork both have touched is read now and then only."""
    (_, fresh), (_, forked) = pair
    assert fresh.measurement is not None and forked.measurement is not None
    most, alike = fresh.measurement.peak_host_bytes, forked.measurement.peak_host_bytes
    assert most > 100_000_000
    assert 0.9 * most < alike < 1.15 * most, (most, alike)


@SLOW
@pytest.mark.parametrize("workers", ["0", "2"])
def test_the_most_memory_of_two_trials_isnt_less(studied: Studied, tmp_path: Path, workers: str) -> None:
    peaks: dict[bool, list[int]] = {True: [], False: []}
    window = replace(QUICK, warmup_s=0.5, min_s=1.0, max_s=2.0)
    for number in range(2):
        for fresh, found in peaks.items():
            folder = tmp_path / f"{number}-{fresh}"
            request = asked(folder, studied.script, "--workers", workers, fresh=fresh, window=window)
            measurement = run(studied.runner, request).measurement
            assert measurement is not None and was_forked(request) is not fresh
            found.append(measurement.peak_host_bytes)
    assert max(peaks[False]) == pytest.approx(max(peaks[True]), rel=0.1), peaks


def test_a_first_step_is_told_as_from_a_fresh_start(pair: list[tuple[TrialRequest, Outcome]]) -> None:
    (_, fresh), (request, forked) = pair
    (first,) = records_of(request, "first_step")
    assert 0 < first["spared_s"] < first["seconds"]
    assert fresh.measurement is not None and forked.measurement is not None
    assert forked.measurement.first_step_s == first["seconds"]
    assert KNOWN.framework == "torch" and json.loads((request.folder / "request.json").read_text())["spared_s"]


@pytest.mark.slow  # faults/test_fork_server.py
def test_runs_of_a_round_have_a_server_each(
    runner: ProcessRunner, tmp_path: Path, reporting: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever were loaded before; those of one round serve the next one as well, and all of them start alike."""
    monkeypatch.delenv("PYTEST_CURRENT_TEST")  # as ``run`` does
    assert run(runner, asked(tmp_path / "search", reporting, fresh=False)).complete
    used = {server.pid for server in runner._servers.alive}
    configs: list[dict[str, Any]] = [{"optimizer": "foreach"}, {"optimizer": "foreach"}, {"threads": 1}]
    for number, config in enumerate(configs):
        servers = set[int]()
        for round_number in (1, 2):
            requests = [
                asked(tmp_path / f"{number}-{round_number}-{side}", reporting, fresh=True, config=given)
                for side, given in enumerate([{}, config])
            ]
            outcomes = runner.run_by_turns(requests, threading.Event()).outcomes
            assert all(outcome.complete for outcome in outcomes), [log_of(request) for request in requests]
            servers |= {server.pid for server in runner._servers.alive}
            assert [server.trials for server in runner._servers.alive] == [round_number] * len(servers)
            assert [was_forked(request) for request in requests] == [bool(servers)] * 2
        assert not servers & used and len(servers) == (0 if "threads" in config else 2)
        used |= servers
        run(runner, requests[-1])
        assert not was_forked(requests[-1]) and not runner._servers.alive
