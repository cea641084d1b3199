"""Plugin: ``--last-failed`` runs what has failed, or nothing.

pytest runs every test where none of those that failed is among the selected ones. That is so where processes of tests
collected different ones, whose report is no test: all of them, one after the other, would take half an hour.
"""

from __future__ import annotations

import pytest


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Raises ``UsageError`` where something has failed, and none of these tests has. Comes behind other selections."""
    if not config.getoption("lf", default=False) or config.cache is None:
        return
    failed = {str(name) for name in config.cache.get("cache/lastfailed", {})}
    if failed and not any(item.nodeid in failed for item in items):
        raise pytest.UsageError(f"what has failed is none of these tests: {', '.join(sorted(failed))}")
