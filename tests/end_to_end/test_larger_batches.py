"""A script whose every step costs as much beside its samples is told of larger batches, by the command line itself."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from support.command import WITH_SHORT_WINDOWS, Place

from tuner.cli import main
from tuner.devices.cpu import cpu_device
from tuner.devices.software import software

SCRIPT = """
    import sys
    import time
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 10**6
    torch.manual_seed(0)
    torch.set_num_threads(1)
    x = torch.randn(4096, 16)
    loader = DataLoader(TensorDataset(x, x[:, :4].sum(1, keepdim=True)), batch_size=32, shuffle=True)
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    sizes, steps = set(), 0
    while steps < STEPS:
        for inputs, targets in loader:
            time.sleep(0.015)
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(inputs), targets).backward()
            optimizer.step()
            sizes.add(len(inputs))
            steps += 1
            if steps == STEPS:
                break
    print("batches of", max(sizes), "at", optimizer.param_groups[0]["lr"])
"""
BUDGET_S = 150
LARGER = {"batch_size": 128, "lr_scale": 4.0}
WRITTEN = {"batch_size": 32, "grad_accumulation": 1, "lr_scale": 1.0}


def study(place: Place, *arguments: str) -> tuple[dict[str, Any], str]:
    """The profile of a study, and what it printed."""
    given = ("study", "train.py", "--device", "cpu", "--study", "out", *arguments)
    answer = place.run(*given, timeout_s=3 * BUDGET_S)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    [profile] = json.loads((place.folder / "out" / "best.json").read_bytes())["profiles"]
    return profile, answer.stdout


@pytest.mark.slow  # unit/study/test_tier_3.py
@pytest.mark.timed
@pytest.mark.timeout(5 * BUDGET_S)
def test_a_fixed_cost_of_each_step_is_answered_with_larger_batches_by_default(tmp_path: Path) -> None:
    """Sleep is the truth: no other knob shortens it. On a busy machine finals prove nothing, and the gain is named."""
    place = Place(tmp_path, WITH_SHORT_WINDOWS)
    place.write(SCRIPT, "train.py")
    bounds = ("--trials", "4", "--screen-samples", "6144", "--budget", f"{BUDGET_S}s")
    profile, printed = study(place, "--knobs", "batch_size", *bounds)
    larger = profile["tier3"]
    assert larger is not None, printed
    assert larger["config"]["batch_size"] >= 64
    assert larger["config"]["lr_scale"] == larger["config"]["batch_size"] / 32
    assert "batch_size" not in profile["config"], "what run applies keeps the effective batch"
    assert "larger batches (tier 3, changes the optimisation)" in printed
    applied = ("run", "--config", "out", "--device", "cpu", "--tier", "3", "train.py", "--", "40")
    answer = place.run(*applied)
    if larger["verdict"] == "improved":
        assert larger["time_to_loss"]["low"] > 1.0 and larger["speedup"]["ratio"] > 1.3
        assert "apply tier 3" in printed
        size = larger["config"]["batch_size"]
        assert f"batches of {size} at {0.01 * size / 32}" in answer.stdout
    else:
        assert "not proven: " in printed and "x the speed" in printed, printed
        assert answer.returncode != 0 and "holds no proof of a larger effective batch" in answer.stderr


def best_json(script: Path, folder: Path, **fields: Any) -> Path:
    """One of this machine's CPU, with nothing that keeps the effective batch."""
    document = {
        "device": asdict(cpu_device()), "config": {}, "verdict": "keep-baseline", "speedup": None,
        "environment": dict(software()), "script": {"path": str(script), "module": "", "sha256": "", "argv": []},
        "knowledge": {
            "as_written": WRITTEN, "framework": "torch", "effective_batch": "both", "loss_reduction": "mean",
            "training_loaders": [],
        },
        **fields,
    }  # fmt: skip
    path = folder / "best.json"
    path.write_text(json.dumps({"schema": 1, "profiles": [document]}))
    return path


def command(*options: str) -> list[str]:
    return ["run", "--config", "best.json", "--device", "cpu", *options, "train.py", "--", "20"]


@pytest.mark.slow  # a profile's first config: test_cli_study.py
def test_run_applies_the_larger_batch_with_its_rate_where_it_is_asked_for(tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.write(SCRIPT, "train.py")
    ratio = {"ratio": 2.5, "low": 2.1, "high": 2.9}
    best_json(place.folder / "train.py", place.folder, tier3={
        "config": LARGER, "verdict": "improved", "time_to_loss": ratio, "speedup": ratio,
    })  # fmt: skip
    third = place.run(*command("--tier", "3"))
    assert third.returncode == 0, third.stderr
    assert third.stdout == "batches of 128 at 0.04\n"
    told = "applying batch_size=128 lr_scale=4.0 (tier 3, a larger effective batch, a loss 2.50x as fast when it was"
    assert told in third.stderr
    plain = place.run(*command())
    assert plain.stdout == "batches of 32 at 0.01\n"
    assert "nothing that keeps the effective batch was proven faster (--tier 3 applies" in plain.stderr


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({}, "holds no larger effective batch (tier 3) for cpu"),
        ({"tier3": None}, "holds no larger effective batch (tier 3) for cpu"),
        (
            {"tier3": {"config": LARGER, "verdict": "keep-baseline", "time_to_loss": None}},
            "holds no proof of a larger effective batch (tier 3) for cpu: the best was batch_size=128 lr_scale=4.0",
        ),
        ({"tier3": {"config": {}, "verdict": "improved"}}, "tier3: its config is empty"),
        ({"tier3": {"config": {"batch_size": "$(ls)"}, "verdict": "improved"}}, "batch_size takes a whole number"),
        ({"tier3": [1]}, "tier3 is [1], not an object"),
    ],
)  # fmt: skip
def test_what_holds_none_is_refused_with_a_hint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], fields: dict[str, Any],
    says: str,
) -> None:  # fmt: skip
    """Before this process would become the script."""
    Place(tmp_path).write(SCRIPT, "train.py")
    best_json(tmp_path / "train.py", tmp_path, **fields)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tuner.cli.run.exec_applied", lambda *given, **more: pytest.fail("it is run"))
    assert main(command("--tier", "3")) != 0
    said = capsys.readouterr()
    assert said.out == ""
    error, hint = said.err.splitlines()[:2]
    assert error.startswith("error: ") and error.endswith(" [profile]") and says in error
    assert hint.startswith("hint: ")
