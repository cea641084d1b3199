"""Real scripts in a real child: what is measured, what each knob does, and that the evidence tells the truth."""

from __future__ import annotations

import math
import os
import tempfile
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tuner.runner.created_files import move_created_files

TRAIN = """
    import argparse, json, sys, torch, torch.nn as nn, torch.nn.functional as F
    from torch.utils.data import DataLoader, TensorDataset
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--epochs", type=int, default=100000)
    args = parser.parse_args()
    torch.manual_seed(0)
    x, y = torch.randn(512, 3, 8, 8), torch.randint(0, 4, (512,))
    train = DataLoader(TensorDataset(x, y), batch_size=args.batch_size, shuffle=True)
    val = DataLoader(TensorDataset(x[:64], y[:64]), batch_size=32)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.Flatten(), nn.Linear(128, 4))
    optimizer = torch.optim.AdamW(model.parameters())
    for epoch in range(args.epochs):
        model.train()
        for a, b in train:
            optimizer.zero_grad()
            F.cross_entropy(model(a), b).backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            for a, b in val:
                model(a)
"""
KNOWN = {"training_loaders": ["train.py:10#0"]}


@pytest.fixture
def trained(write_script: Callable[..., Path], run_child: Callable[..., Any]) -> Callable[..., Any]:
    """Runs ``TRAIN`` with a config."""

    def run(config: dict[str, Any] | None = None, **more: Any) -> Any:
        more.setdefault("knowledge", KNOWN if config else {})
        return run_child(write_script(TRAIN), config, **more)

    return run


def test_baseline_learns_what_the_script_wrote(trained: Callable[..., Any]) -> None:
    run = trained()
    facts = run.facts
    [key] = facts["training_loaders"]
    assert key.startswith("__main__.module~") and key.endswith("#0")
    assert facts["as_written"]["batch_size"] == 16
    assert facts["as_written"]["num_workers"] == 0
    assert facts["as_written"]["precision"] == "fp32"
    assert facts["options"] == {"batch_size": "batch_size"}
    assert facts["unit"] == "samples"
    assert facts["framework"] == "torch" and facts["framework_version"].startswith("2.")
    assert run.of("window")[0]["complete"]
    assert run.returncode == 0
    assert all(math.isfinite(record["value"]) for record in run.of("loss"))
    assert run.of("first_step")[0]["seconds"] > 0


def test_a_script_that_ends_early_is_counted_and_described(
    write_script: Callable[..., Path], run_child: Callable[..., Any]
) -> None:
    """Everything lives in a function that has returned by the time that the facts are written."""
    lines = textwrap.dedent(TRAIN).strip().splitlines()
    text = "import torch\ndef main():\n" + "\n".join(f"    {line}" for line in lines) + "\nmain()\n"
    window = {"min_s": 60, "max_s": 60, "warmup_s": 0, "warmup_steps": 1}
    run = run_child(write_script(text), argv=("--epochs", "3"), window=window)
    # The first step is start-up: 3 epochs of 512 samples less its batch.
    assert sum(b["samples"] for b in run.of("block")) == 3 * 512 - 16
    assert any(b["flagged"] for b in run.of("block")), "validation must be set apart"
    assert all(b["samples"] == 0 for b in run.of("block") if b["flagged"])
    assert not run.of("window")[0]["complete"]
    assert run.facts["optimizers"] == ["AdamW"]
    assert run.facts["left_out"] == {"checkpointing": "the model has no list of blocks of one kind"}


@pytest.mark.parametrize(
    ("config", "options"),
    [
        (
            {
                "num_workers": 1, "prefetch_factor": 4, "persistent_workers": True, "precision": "bf16",
                "channels_last": True, "optimizer": "foreach", "batch_size": 32,
            },
            {},
        ),
        (
            {"batch_size": 8, "grad_accumulation": 2, "optimizer": "fused", "num_workers": 2},
            {"batch_size": "batch_size"},
        ),
    ],
    ids=["patched", "by the script's own option"],
)  # fmt: skip
def test_every_knob_is_verified_by_observation(
    trained: Callable[..., Any], config: dict[str, Any], options: dict[str, str]
) -> None:
    run = trained(config, knowledge={**KNOWN, "framework": "torch", "options": options})
    assert {k: run.evidence(k) for k in config} == dict.fromkeys(config, "verified"), run.output
    places = {record["knob"]: (record["sites_changed"], record["sites_seen"]) for record in run.of("knob")}
    assert places["batch_size"] == ((0, 0) if options else (1, 1))
    assert places["num_workers"] == places["optimizer"] == (1, 1)
    reasons = {record["knob"]: record["reason"] for record in run.of("knob")}
    assert ("by an option" in reasons["batch_size"]) == bool(options)


@pytest.mark.parametrize("argv", [pytest.param((), marks=pytest.mark.slow), ("--epochs", "1")])
def test_a_loss_that_is_not_finite_is_a_failure(
    write_script: Callable[..., Path], run_child: Callable[..., Any], argv: tuple[str, ...]
) -> None:
    """Whether it shows in the middle or only in the last block of a script that ends before its window."""
    text = TRAIN.replace("F.cross_entropy(model(a), b)", "(F.cross_entropy(model(a), b) * float('nan'))")
    window = {"block_s": 60} if argv else {}
    run = run_child(write_script(text), argv=argv, window=window)
    assert [failure["reason"] for failure in run.of("failure")] == ["nan"]
    assert not run.of("window")[0]["complete"]
    assert run.facts["as_written"]["batch_size"] == 16
    assert run.returncode == 0


SPAWN = """
    import torch, torch.multiprocessing as mp
    def train(rank, model=None):
        import time
        time.sleep(60)
    if __name__ == "__main__":
        START
"""


@pytest.mark.parametrize(
    "start",
    [
        pytest.param("mp.spawn(train, nprocs=2)", marks=pytest.mark.slow),
        "p = mp.get_context('spawn').Process(target=train, args=(0, torch.nn.Linear(2, 2))); p.start(); p.join()",
    ],
)
def test_training_in_processes_of_the_scripts_own_is_told_at_once(
    write_script: Callable[..., Path], run_child: Callable[..., Any], start: str
) -> None:
    run = run_child(write_script(SPAWN.replace("START", start)))
    failure = run.of("failure")[0]
    assert failure["reason"] == "own-processes"
    assert "processes that it starts itself (train)" in failure["detail"]


def test_a_wait_for_a_process_is_told_as_it_begins_and_ends(
    write_script: Callable[..., Path], run_child: Callable[..., Any]
) -> None:
    """A trial that is ended in it has to say what it waited for: a training in it may take hours."""
    script = """
        import multiprocessing, torch
        other = multiprocessing.get_context("fork").Process(target=print)
        other.start()
        other.join(0.01)
        other.join()
        other.join()
    """
    run = run_child(write_script(script))
    assert [awaited["function"] for awaited in run.of("processes-awaited")] == ["print", "", "print", ""]


def test_a_thread_beside_the_script_that_waits_for_a_process_is_no_wait_of_the_script(
    write_script: Callable[..., Path], run_child: Callable[..., Any]
) -> None:
    """What a script does until its time is up was told as a wait for what such a thread watches over."""
    script = """
        import multiprocessing, threading, torch
        other = multiprocessing.get_context("fork").Process(target=print)
        other.start()
        watcher = threading.Thread(target=other.join)
        watcher.start()
        watcher.join()
    """
    assert not run_child(write_script(script)).of("processes-awaited")


@pytest.mark.slow  # 7 s beside three others
def test_a_script_that_catches_everything_is_still_ended(
    write_script: Callable[..., Path], run_child: Callable[..., Any]
) -> None:
    body = TRAIN.split("    for epoch in range", maxsplit=1)[0]
    loop = """
    import time
    while True:
        try:
            for a, b in train:
                optimizer.zero_grad()
                F.cross_entropy(model(a), b).backward()
                optimizer.step()
                time.sleep(0.02)  # it needs no core until it is ended
        except BaseException:
            pass
    """
    run = run_child(write_script(body + loop))
    assert run.of("window")[0]["complete"]
    assert run.returncode == 0


def test_checkpoints_are_found_again_and_old_ones_survive(
    tmp_path: Path, write_script: Callable[..., Path], run_child: Callable[..., Any]
) -> None:
    """What the user's have been through since they were made doesn't count."""
    old, log = tmp_path / "model.pt", tmp_path / "log.txt"
    old.write_bytes(b"the user's own")
    log.write_text("first line\n")
    for path in (old, log):
        os.utime(path, (time.time() + 100, time.time() + 100))
    script = write_script(
        """
        import os, subprocess, torch
        torch.save({"a": 1}, "model.pt")
        assert torch.load("model.pt") == {"a": 1}
        torch.save({"net.weight": 2}, "new.pt.tmp")
        os.replace("new.pt.tmp", "new.pt")
        assert os.path.exists("new.pt") and torch.load("new.pt") == {"net.weight": 2}
        subprocess.run(["cp", "new.pt", "copied.pt"], check=True)
        assert torch.load("copied.pt") == {"net.weight": 2}
        with open("log.txt", "a") as f:
            f.write("second line\\n")
        assert open("log.txt").read() == "first line\\nsecond line\\n"
        os.remove("log.txt")
        assert not os.path.exists("log.txt")
        print("fine")
        """
    )
    run = run_child(script)
    assert run.output.strip() == "fine"
    assert old.read_bytes() == b"the user's own"
    assert log.read_text() == "first line\n"
    move_created_files(run.folder)
    assert not (tmp_path / "new.pt").exists()
    assert any("diverted" in note["text"] for note in run.of("note"))


def test_workers_leave_nothing_behind(
    monkeypatch: pytest.MonkeyPatch, write_script: Callable[..., Path], run_child: Callable[..., Any]
) -> None:
    """Each makes a folder for its sockets, which only a process that ends by itself removes."""
    with tempfile.TemporaryDirectory() as folder:
        monkeypatch.setenv("TMPDIR", folder)
        text = TRAIN.replace("shuffle=True", "shuffle=True, num_workers=2, persistent_workers=True")
        run = run_child(write_script(text))
        assert run.of("window")[0]["complete"]
        assert not list(Path(folder).glob("pymp-*"))


def test_temporary_folders_are_removed_as_python_would(
    monkeypatch: pytest.MonkeyPatch, write_script: Callable[..., Path], run_child: Callable[..., Any]
) -> None:
    made = "import tempfile\nimport torch\nkept = tempfile.TemporaryDirectory()\nopen(f'{kept.name}/a', 'w').close()\n"
    with tempfile.TemporaryDirectory() as folder:
        monkeypatch.setenv("TMPDIR", folder)
        run = run_child(write_script(made + textwrap.dedent(TRAIN) + "print('to its end')\n"))
        assert run.of("window")[0]["complete"] and "to its end" not in run.output
        assert not list(Path(folder).glob("tmp*"))


@pytest.mark.parametrize(
    "replaced",
    ["tempfile.TemporaryDirectory = lambda: None", "tempfile.TemporaryDirectory._rmtree = lambda *a, **k: 1 / 0"],
)
def test_a_script_that_removes_its_folders_in_a_way_of_its_own_is_left_to_it(
    replaced: str, write_script: Callable[..., Path], run_child: Callable[..., Any]
) -> None:
    """No error of it ends the trial, by whose exit code the script would be blamed."""
    made = f"import tempfile\nimport torch\nkept = tempfile.TemporaryDirectory()\n{replaced}\n"
    run = run_child(write_script(made + textwrap.dedent(TRAIN)))
    assert run.of("window")[0]["complete"] and run.returncode == 0 and not run.output


def test_apply_mode_changes_knobs_and_nothing_else(
    write_script: Callable[..., Path], run_child: Callable[..., Any]
) -> None:
    text = TRAIN + '\n    print(train.batch_size, optimizer.param_groups[0]["fused"], type(open).__name__)\n'
    run = run_child(
        write_script(text), {"batch_size": 64, "optimizer": "fused"}, knowledge=KNOWN, mode="apply",
        argv=("--epochs", "1"),
    )  # fmt: skip
    assert run.output.splitlines() == [
        "64 True builtin_function_or_method", "autotune: after 8 steps in effect: batch_size, optimizer"
    ]
    assert not run.of("block")


POOLED = """
    import io, multiprocessing, os, pickle
    import torch

    if __name__ == "__main__":
        for function in (open, io.FileIO, torch.save, torch.manual_seed, torch.autograd.backward):
            assert pickle.loads(pickle.dumps(function)) is function, function
        torch.save(torch.ones(2), "shard.pt")
        for context in CONTEXTS:
            with multiprocessing.get_context(context).Pool(1) as pool:
                assert pool.map(os.listdir, ["."]) == [os.listdir(".")]
                assert [float(shard.sum()) for shard in pool.map(torch.load, ["shard.pt"])] == [2.0]
        print("through")
"""


@pytest.mark.parametrize("context", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_what_is_replaced_may_be_given_to_a_pool_of_processes(
    run_child: Callable[..., Any], write_script: Callable[..., Path], context: str
) -> None:
    ran = run_child(write_script(POOLED.replace("CONTEXTS", repr([context]))), seed=1)
    assert "through" in ran.output, ran.output
