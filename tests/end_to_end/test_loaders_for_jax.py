"""Loops of JAX's that PyTorch's loaders feed, in a real child: the wait for data, and the loaders' knobs."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.jax_loops import UPDATE, WHOLE, known_by, losses

Run = Callable[..., Any]
Write = Callable[..., Path]

HEAD = "import sys, time\nimport torch\n" + UPDATE
TORCH = (
    HEAD
    + """
from torch.utils.data import DataLoader, Dataset
torch.manual_seed(0)

class Slow(Dataset):
    def __len__(self):
        return 64
    def __getitem__(self, number):
        time.sleep(0.002)
        x = np.random.default_rng(number).normal(size=8).astype("float32")
        return x, np.int32(x.sum() > 0)

def collate(items):
    xs, ys = zip(*items)
    return np.stack(xs), np.stack(ys)

def main(epochs):
    loader = DataLoader(Slow(), batch_size=16, shuffle=True, collate_fn=collate)
    validation = DataLoader(Slow(), batch_size=32, collate_fn=collate)
    params, trained = weights(), 0
    try:
        for epoch in range(epochs):
            for x, y in loader:
                params, loss = update(params, x, y)
                trained += len(x)
                print("loss", float(loss).hex())
            for x, y in validation:
                loss_of(params, x, y)
    finally:
        print("trained on", trained, flush=True)
"""
)
GUARDED = (
    TORCH
    + """
if __name__ == "__main__":
    main(int(sys.argv[1]))
"""
)
TELLS = GUARDED.replace(
    "    xs, ys = zip(*items)",
    """    import os
    who = "worker" if torch.utils.data.get_worker_info() else "training"
    print(who, "takes ahead:", os.environ.get("XLA_PYTHON_CLIENT_PREALLOCATE"), flush=True)
    xs, ys = zip(*items)""",
)


def wait_share(ran: Any) -> float:
    """Of the time in its steps."""
    blocks = [block for block in ran.of("block") if not block["flagged"]]
    waited = float(sum(block["wait_s"] for block in blocks))
    return waited / float(sum(block["seconds"] for block in blocks))


@pytest.mark.slow  # unit/child/test_feeds_of_jax.py
def test_the_wait_for_a_data_loader_and_its_workers(run_child: Run, write_script: Write) -> None:
    """Workers are started anew beside JAX's threads, and the losses are the same to the last bit."""
    script = write_script(GUARDED)
    ran = run_child(script, argv=("3",), window=WHOLE)
    assert ran.returncode == 0, ran.output
    assert [note["text"] for note in ran.of("note")] == []
    facts = ran.facts
    assert (facts["framework"], facts["fed_by"]) == ("jax", "DataLoader")
    assert (facts["unit"], facts["samples"]) == ("samples", 192), facts["remarks"]
    assert not facts["wait_is_unseen"] and wait_share(ran) > 0.5
    assert len(facts["batch_waits"]) >= 9 and min(facts["batch_waits"]) > 0.03
    written = {knob: facts["as_written"].get(knob) for knob in ("num_workers", "batch_size", "persistent_workers")}
    assert written == {"num_workers": 0, "batch_size": 16, "persistent_workers": True}  # of workers that are added
    assert not {"num_workers", "prefetch_factor", "persistent_workers", "batch_size"} & set(facts["left_out"])
    assert facts["left_out"]["prefetch"] == "no tf.data dataset feeds the training steps"

    config = {"num_workers": 1, "prefetch_factor": 4, "persistent_workers": True}
    with_workers = run_child(write_script(TELLS), config, knowledge=known_by(ran), argv=("3",), window=WHOLE)
    assert with_workers.returncode == 0, with_workers.output
    assert {knob: with_workers.evidence(knob) for knob in config} == dict.fromkeys(config, "verified")
    assert losses(with_workers) == losses(ran) and len(losses(ran)) == 12
    assert "os.fork() was called" not in with_workers.output
    # Of a card's memory JAX would take three quarters in each of them.
    assert set(re.findall(r"^(\w+) takes ahead: (.*)$", with_workers.output, re.MULTILINE)) == {
        ("worker", "false"), ("training", "None"),
    }  # fmt: skip


@pytest.mark.slow  # of what a profile says the trial above shows most
def test_workers_are_applied(run_child: Run, write_script: Write) -> None:
    script, config = write_script(GUARDED), {"num_workers": 1, "prefetch_factor": 4, "persistent_workers": True}
    ran = run_child(script, argv=("3",), window=WHOLE)
    applied = run_child(script, config, knowledge=known_by(ran), argv=("6",), mode="apply")
    assert applied.returncode == 0 and losses(applied)[:12] == losses(ran), applied.output
    assert "in effect: num_workers, prefetch_factor, persistent_workers" in applied.output
    assert "NOT in effect" not in applied.output and "os.fork() was called" not in applied.output


@pytest.mark.slow  # what a study proves: test_cli_study.py; that it is told of these knobs: the trials above
@pytest.mark.timed
@pytest.mark.timeout(900)
def test_a_study_of_a_loop_that_waits_finds_workers(write_script: Write, tmp_path: Path) -> None:
    """A batch takes 32 ms of sleep, and two workers make two at once."""
    script, folder = write_script(GUARDED.replace("return 64", "return 2000")), tmp_path / "study"
    short = Path(__file__).parents[1] / "support" / "short_study.py"
    command = [sys.executable, str(short), "study", str(script), "--device", "cpu", "--study", str(folder)]
    options = ["--budget", "8m", "--trials", "3", "--no-probe", "--knobs", "num_workers", "--max-loss-increase", "off"]
    done = subprocess.run(
        [*command, *options, "--", "100000"], capture_output=True, text=True, timeout=800, check=False
    )
    assert done.returncode == 0, done.stderr
    profile = json.loads((folder / "best.json").read_text())["profiles"][0]
    assert profile["config"].get("num_workers", 0) >= 2, done.stdout
    assert profile["verdict"] == "improved" and profile["speedup"]["high"] > 1.5, done.stdout
