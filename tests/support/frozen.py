"""Plugin: what lies in memory when the first test begins is never looked at for garbage, nor while it is collected.

All files of tests, and what these import: hundreds of thousands of objects, which the collector would go through again
and again, and each test that calls it by itself.
"""

from __future__ import annotations

import gc
from collections.abc import Generator
from typing import Any

import pytest


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, Any, Any]:
    """In each process of tests."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()
