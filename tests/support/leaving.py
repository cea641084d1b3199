"""Plugin: a process of tests that run at once leaves when its tests are through, and takes no library apart.

That took the four of them 15 s of a core, at the end of the phase, when nothing else runs. Exit handlers of whatever
was imported meanwhile have run by then, and all fixtures have ended before.
"""

from __future__ import annotations

import atexit
import os

import pytest


def pytest_configure(config: pytest.Config) -> None:
    """What is registered first is called last."""
    if hasattr(config, "workerinput"):
        atexit.register(os._exit, 0)
