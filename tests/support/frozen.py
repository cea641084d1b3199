"""Plugin: what lies in memory when the first test begins is never looked at for garbage.

All files of tests, and what these import: hundreds of thousands of objects, which the collector would go through again
and again, and each test that calls it by itself.
"""

from __future__ import annotations

import gc


def pytest_collection_finish() -> None:
    """In each process of tests."""
    gc.freeze()
