"""tf.data: datasets that train, made again with another config; each check of these modules is one test."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
MODULES = ("tf_batch_checks", "tf_plan_checks", "tf_vector_checks", "tf_order_checks", "tf_keras_data_checks",
           "tf_function_checks", "tf_ready_checks")  # fmt: skip
CHECKS = [
    node.name
    for module in MODULES
    for node in ast.parse((TESTS / "support" / f"{module}.py").read_text(encoding="utf-8")).body
    if isinstance(node, ast.FunctionDef) and node.name.startswith("check_")
]


@pytest.fixture(scope="module")
def told() -> dict[str, str]:
    """What became of each check; all of them run in one process."""
    done = subprocess.run(
        [sys.executable, "-m", "support.tf_data_trials", *MODULES],
        cwd=TESTS, capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    lines = done.stdout.splitlines()
    assert done.returncode == 0 and lines, done.stderr[-4000:]
    return json.loads(lines[-1])  # type: ignore[no-any-return]


@pytest.mark.parametrize("check", CHECKS)
def test_tf_data(check: str, told: dict[str, str]) -> None:
    assert told[check] == ""


def test_every_check_has_run(told: dict[str, str]) -> None:
    assert sorted(told) == sorted(CHECKS)
