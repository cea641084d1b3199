"""Real scripts in a real child: what is measured, what each knob does, and that the evidence tells the truth."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="PyTorch isn't installed")

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
    assert facts["training_loaders"] == KNOWN["training_loaders"]
    assert facts["as_written"]["batch_size"] == 16
    assert facts["as_written"]["num_workers"] == 0
    assert facts["as_written"]["precision"] == "fp32"
    assert facts["options"] == {"batch_size": "batch_size"}
    assert facts["unit"] == "samples"
    assert run.of("window")[0]["complete"]
    assert run.returncode == 0


def test_samples_are_counted_in_training_only(trained: Callable[..., Any]) -> None:
    run = trained(argv=("--epochs", "3"), window={"min_s": 60, "max_s": 60, "warmup_s": 0, "warmup_steps": 1})
    counted = sum(b["samples"] for b in run.of("block"))
    # The first step is start-up: 3 epochs of 512 samples less its batch.
    assert counted == 3 * 512 - 16
    assert any(b["flagged"] for b in run.of("block")), "validation must be set apart"
    assert all(b["samples"] == 0 for b in run.of("block") if b["flagged"])


@pytest.mark.parametrize(
    "config",
    [
        {"batch_size": 32}, {"num_workers": 1}, {"num_workers": 1, "prefetch_factor": 4, "persistent_workers": True},
        {"precision": "bf16"}, {"channels_last": True}, {"threads": 1}, {"optimizer": "fused"},
        {"optimizer": "foreach"}, {"batch_size": 8, "grad_accumulation": 2},
    ],
)  # fmt: skip
def test_every_knob_is_verified_by_observation(trained: Callable[..., Any], config: dict[str, Any]) -> None:
    run = trained(config)
    assert {k: run.evidence(k) for k in config} == dict.fromkeys(config, "verified"), run.output


def test_a_bound_option_moves_the_batch(trained: Callable[..., Any]) -> None:
    run = trained({"batch_size": 64}, knowledge={**KNOWN, "options": {"batch_size": "batch_size"}})
    knob = run.of("knob")[0]
    assert (knob["evidence"], knob["observed"], knob["sites_changed"]) == ("verified", 64, 0)


LEARN = """
    import json, sys, torch, torch.nn as nn
    from torch.utils.data import DataLoader, TensorDataset
    torch.manual_seed(0)
    x, y = torch.randn(64, 5), torch.randn(64, 1)
    loader = DataLoader(TensorDataset(x, y), batch_size=BATCH, shuffle=False)
    model = nn.Linear(5, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    loss_of = nn.MSELoss(reduction="REDUCTION")
    for epoch in range(2):
        for a, b in loader:
            optimizer.zero_grad()
            loss_of(model(a), b).backward()
            if CLIP:
                torch.nn.utils.clip_grad_norm_(model.parameters(), 0.05)
            optimizer.step()
            scheduler.step()
    print(json.dumps([model.weight.tolist()[0], model.bias.tolist(), optimizer.param_groups[0]["lr"]]))
"""


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("clip", [True, False])
def test_accumulated_micro_batches_equal_the_whole_batch(
    write_script: Callable[..., Path], run_child: Callable[..., Any], reduction: str, clip: bool
) -> None:
    def train(batch: int, config: dict[str, Any]) -> list[Any]:
        text = LEARN.replace("BATCH", str(batch)).replace("REDUCTION", reduction).replace("CLIP", str(clip))
        if reduction == "sum":
            text = text.replace("lr=0.1", "lr=0.001")
        run = run_child(write_script(text), config, knowledge={"training_loaders": ["train.py:6#0"]})
        result = json.loads(run.output)
        assert isinstance(result, list)
        return result

    whole = train(16, {})
    split = train(16, {"batch_size": 4, "grad_accumulation": 4})
    assert split[2] == pytest.approx(whole[2]), "the scheduler must move with whole steps"
    assert split[0] == pytest.approx(whole[0], rel=1e-4, abs=1e-6)
    assert split[1] == pytest.approx(whole[1], rel=1e-4, abs=1e-6)


def test_accumulation_that_the_script_defeats_is_contradicted(
    write_script: Callable[..., Path], run_child: Callable[..., Any]
) -> None:
    text = TRAIN.replace("optimizer.zero_grad()", "[setattr(p, 'grad', None) for p in model.parameters()]")
    run = run_child(write_script(text), {"batch_size": 8, "grad_accumulation": 2}, knowledge=KNOWN)
    assert run.evidence("grad_accumulation") == "contradicted"


def test_nan_is_a_failure(write_script: Callable[..., Path], run_child: Callable[..., Any]) -> None:
    text = TRAIN.replace("F.cross_entropy(model(a), b)", "(F.cross_entropy(model(a), b) * float('nan'))")
    run = run_child(write_script(text))
    assert run.of("failure")[0]["reason"] == "nan"


def test_a_script_that_catches_everything_is_still_ended(
    write_script: Callable[..., Path], run_child: Callable[..., Any]
) -> None:
    body = TRAIN.split("    for epoch in range", maxsplit=1)[0]
    loop = """
    while True:
        try:
            for a, b in train:
                optimizer.zero_grad()
                F.cross_entropy(model(a), b).backward()
                optimizer.step()
        except BaseException:
            pass
    """
    run = run_child(write_script(body + loop))
    assert run.of("window")[0]["complete"]
    assert run.returncode == 0


def test_checkpoints_are_diverted_and_old_ones_survive(
    tmp_path: Path, write_script: Callable[..., Path], run_child: Callable[..., Any]
) -> None:
    import os
    import time

    old = tmp_path / "model.pt"
    old.write_bytes(b"the user's own")
    log = tmp_path / "log.txt"
    log.write_text("first line\n")
    for path in (old, log):
        os.utime(path, (time.time() - 100, time.time() - 100))
    script = write_script(
        """
        import os, torch
        torch.save({"a": 1}, "model.pt")
        assert torch.load("model.pt") == {"a": 1}
        torch.save({"a": 2}, "new.pt.tmp")
        os.replace("new.pt.tmp", "new.pt")
        assert os.path.exists("new.pt") and torch.load("new.pt") == {"a": 2}
        with open("log.txt", "a") as f:
            f.write("second line\\n")
        assert open("log.txt").read() == "first line\\nsecond line\\n"
        os.remove("log.txt")
        print("fine")
        """
    )
    run = run_child(script)
    assert run.output.strip() == "fine"
    assert old.read_bytes() == b"the user's own"
    assert log.read_text() == "first line\n"
    assert not (tmp_path / "new.pt").exists()
    assert any("diverted" in note["text"] for note in run.of("note"))


def test_apply_mode_changes_knobs_and_nothing_else(
    write_script: Callable[..., Path], run_child: Callable[..., Any]
) -> None:
    text = TRAIN + '\n    print(train.batch_size, optimizer.param_groups[0]["fused"], type(open).__name__)\n'
    run = run_child(
        write_script(text), {"batch_size": 64, "optimizer": "fused"}, knowledge=KNOWN, mode="apply",
        argv=("--epochs", "1"),
    )  # fmt: skip
    assert run.output.strip() == "64 True builtin_function_or_method"
    assert not run.of("block")


def test_losses_and_steps_are_finite_numbers(trained: Callable[..., Any]) -> None:
    run = trained()
    assert all(math.isfinite(record["value"]) for record in run.of("loss"))
    assert run.of("first_step")[0]["seconds"] > 0
