"""Plugin: in which order files of tests are given to the processes that run them at once.

By their names, whatever folder they lie in: those that wait for something (most of ``faults``) are spread among those
that compute, and the cores are in use all the while. Folder by folder, three files that wait were run at once.
"""

from __future__ import annotations

import pytest


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Sorts the files; the tests of each keep their order."""
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: item.path.name)
