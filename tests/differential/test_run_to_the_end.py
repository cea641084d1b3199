"""``autotune run`` to a training's real end against the plain script: the same samples, labels, steps and rates."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from support import courses

from tuner.devices.cpu import cpu_device
from tuner.devices.software import software

PARTS = {"batch_size": 4, "grad_accumulation": 4}
WORKERS = {"num_workers": 2, "prefetch_factor": 4}
PROFILES: dict[str, tuple[dict[str, Any], float]] = {
    "workers": ({**WORKERS, "persistent_workers": True, "threads": 1}, 1e-6),
    "parts": (PARTS, 1e-4),
    "all that may be exported": ({**PARTS, **WORKERS, "precision": "bf16", "optimizer": "foreach"}, 0.02),
    "compiled": ({**PARTS, "compile": "default"}, 1e-4),
}
"""Configs, and how far the weights may lie apart at the end, as a share of their norm."""


def applied(script: Path, config: dict[str, Any], arguments: tuple[str, ...] = (), **knowledge: Any) -> str:
    """What the script prints under ``autotune run`` with a profile of this machine's CPU, as a study writes one."""
    document = {
        "device": asdict(cpu_device()), "config": config, "verdict": "improved",
        "speedup": {"ratio": 1.5, "low": 1.2, "high": 1.8}, "environment": dict(software()),
        "script": {"path": str(script), "module": "", "sha256": "", "argv": list(arguments)},
        "knowledge": {"framework": "torch", "as_written": {"batch_size": courses.BATCH, "num_workers": 0}, **knowledge},
    }  # fmt: skip
    best = script.parent / "best.json"
    best.write_text(json.dumps({"schema": 1, "profiles": [document]}))
    command = [
        sys.executable, "-m", "tuner", "run", str(script), "--config", str(best), "--device", "cpu", "--strict",
        "--", *arguments,
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, cwd=script.parent)
    assert done.returncode == 0, done.stderr
    return done.stdout


def plainly(script: Path, *arguments: str) -> str:
    """What it prints by itself."""
    command = [sys.executable, str(script), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True, cwd=script.parent).stdout


@pytest.mark.parametrize(
    "name", [n if n == "all that may be exported" else pytest.param(n, marks=pytest.mark.slow) for n in PROFILES]
)
def test_a_profile_changes_nothing_of_the_course(write_script: Callable[..., Path], name: str) -> None:
    config, apart = PROFILES[name]
    script = write_script(courses.FEW)
    plain, run = (courses.told(text) for text in (plainly(script), applied(script, config)))
    found = {one: courses.differences(plain[one], run[one], weights=apart) for one in plain}
    assert {one: apart for one, apart in found.items() if apart} == {}
    assert len(plain) == 4
    if "grad_accumulation" in config:
        assert all(course["given"] == [4, 16] for course in run.values()), "the batch was computed in parts"


OF_ARGUMENTS = """
    import argparse
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=16)
    BATCH = parser.parse_args().batch_size
"""


@pytest.mark.parametrize(
    "bound", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["by a placeholder", "by an option"]
)
def test_the_script_is_told_of_whole_batches(write_script: Callable[..., Path], bound: bool) -> None:
    """It may derive its rate, its epochs or its schedule from the size that an argument gives it."""
    text = courses.FEW.replace("SAMPLES, BATCH, EPOCHS = 92, 16, 3", "SAMPLES, EPOCHS = 92, 3" + OF_ARGUMENTS)
    script = write_script(text.replace("lr=0.01)", "lr=0.01 * BATCH / 16)"))
    plain = courses.told(plainly(script))
    arguments = ("--batch-size={batch_size=16|8|4}",) if bound else ()
    options = {} if bound else {"batch_size": "batch_size"}
    run = courses.told(applied(script, PARTS, arguments, options=options))
    assert {one: apart for one in plain if (apart := courses.differences(plain[one], run[one]))} == {}
    assert all(course["given"] == [4, 16] for course in run.values())
