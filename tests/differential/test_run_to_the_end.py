"""``autotune run`` to a training's real end against the plain script: the same samples, labels, steps and rates."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support import courses, whole_runs
from support.whole_runs import plainly

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
    """What the script prints under ``autotune run --strict`` with this profile."""
    as_written = {"batch_size": courses.BATCH, "num_workers": 0}
    return whole_runs.applied(script, config, arguments, as_written=as_written, **knowledge).stdout


@pytest.mark.slow  # a run's samples and losses: test_tier_one.py
@pytest.mark.parametrize("name", PROFILES)
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


@pytest.mark.slow
@pytest.mark.parametrize("bound", [True, False], ids=["by a placeholder", "by an option"])
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
