"""Plugin: a file of tests that imports TensorFlow, Keras or transformers while it is collected fails the run.

Each process of tests collects all files: one that makes a dataset at its top had every one of them import TensorFlow
and Keras, 5 s of a core each, and most of these processes run no test that needs either.
"""

from __future__ import annotations

import sys
from collections.abc import Generator

import pytest

LATE = frozenset({"tensorflow", "keras", "transformers", "lightning", "sklearn"})
"""Imported by tests that use them, and by none before."""


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Makes an error of a module that has imported one of them."""
    before = LATE & sys.modules.keys()
    report = yield
    if imported := (LATE & sys.modules.keys()) - before:
        report.outcome = "failed"
        report.longrepr = f"imported while it was collected, before any test uses it: {', '.join(sorted(imported))}"
    return report
