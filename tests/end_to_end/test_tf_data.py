"""tf.data: datasets that train, made again with another config; each check of these modules is one test."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

import pytest

from tuner.child.patches import unpatch_all

pytestmark = pytest.mark.filterwarnings("ignore")
SUPPORT = Path(__file__).parents[1] / "support"
MODULES = ("tf_batch_checks", "tf_plan_checks", "tf_vector_checks", "tf_order_checks", "tf_keras_data_checks",
           "tf_function_checks", "tf_ready_checks")  # fmt: skip
CHECKS = [
    pytest.param(module, node.name, id=node.name)
    for module in MODULES
    for node in ast.parse((SUPPORT / f"{module}.py").read_text(encoding="utf-8")).body
    if isinstance(node, ast.FunctionDef) and node.name.startswith("check_")
]


@pytest.mark.parametrize(("module", "check"), CHECKS)
def test_tf_data(module: str, check: str) -> None:
    """TensorFlow is imported here, and not by every process that collects this file."""
    trials, checks = (importlib.import_module(f"support.{name}") for name in ("tf_data_trials", module))
    trials.Trial()  # what a check makes before its own trial is recorded as well
    try:
        getattr(checks, check)()
    finally:
        unpatch_all()
