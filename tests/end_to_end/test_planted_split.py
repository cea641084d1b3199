"""A planted truth: a batch that is faster in parts, under a cosine schedule; found, proven, and run to its end.

    pytest -m slow tests/end_to_end/test_planted_split.py
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from support import courses
from support.campaign import SPLIT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]



def test_a_batch_that_is_faster_in_parts_is_found_and_ends_where_the_script_does(
    write_script: Callable[..., Path], tmp_path: Path
) -> None:
    script, folder = write_script(SPLIT), tmp_path / "study"
    tuner = [sys.executable, "-m", "tuner"]
    study = [
        *tuner, "study", str(script), "--device", "cpu", "--study", str(folder), "--budget", "8m", "--trials", "6",
        "--knobs", "batch_size,num_workers",
    ]  # fmt: skip
    done = subprocess.run(study, capture_output=True, text=True, timeout=800, check=False)
    assert done.returncode == 0, done.stderr
    profile = json.loads((folder / "best.json").read_text())["profiles"][0]
    assert profile["verdict"] == "improved", done.stdout
    # Eight parts of four: 4 ms a step instead of 32, and to both a few for all else.
    assert profile["config"]["batch_size"] * profile["config"]["grad_accumulation"] == 32
    assert profile["config"]["batch_size"] <= 8
    assert profile["speedup"]["low"] > 1.5
    plain = subprocess.run([sys.executable, str(script), "8"], capture_output=True, text=True, check=True, timeout=120)
    run = subprocess.run(
        [*tuner, "run", str(script), "--config", str(folder), "--device", "cpu", "--", "8"],
        capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip
    before, after = courses.told(plain.stdout)["cosine"], courses.told(run.stdout)["cosine"]
    assert courses.differences(before, after) == []
    assert (after["steps"], after["averages"], after["rate"]) == (80, 80, pytest.approx(0.0, abs=1e-9))
    assert after["given"][0] <= 8 < before["given"][-1]
