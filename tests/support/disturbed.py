"""Plugin: a test that measures time is run again where a hypervisor took the machine away from it meanwhile.

Such a failure says nothing, as a trial beside strangers' work is no evidence. A test that fails on a machine which it
has for itself has failed.
"""

from __future__ import annotations

import os
import time

import pytest

from tuner.runner.tree import cpu_times

STOLEN = 0.05
"""A share of the cores' time above which a test was disturbed."""
AGAIN = 3
"""So many times it is run again, at most."""
_began = (0.0, 0.0)


def _now() -> tuple[float, float]:
    """The clock, and the seconds that a hypervisor has taken from all cores."""
    return time.monotonic(), cpu_times(os.sched_getaffinity(0))[1]


def was_disturbed() -> bool:
    """Whether that is so of the test that has just failed."""
    elapsed_s, stolen_s = (now - then for now, then in zip(_now(), _began, strict=True))
    return stolen_s > STOLEN * elapsed_s * len(os.sched_getaffinity(0))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Begins to count, before the test's fixtures are made; each time that it is run."""
    global _began
    _began = _now()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Marks the tests for pytest-rerunfailures, where that is installed."""
    if config.pluginmanager.hasplugin("rerunfailures"):
        for item in items:
            if item.get_closest_marker("timed"):
                item.add_marker(pytest.mark.flaky(reruns=AGAIN, reruns_delay=5, condition=was_disturbed))
