"""How long the workers of a DataLoader rest: they wait for something else than a core."""

from __future__ import annotations

import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

from tuner.child.torch.loader_workers import RESTS, Rest

pytestmark = pytest.mark.timed


@pytest.mark.parametrize(("does", "rests"), [("while True: pass", False), ("import time; time.sleep(60)", True)])
def test_workers_rest_where_they_neither_compute_nor_wait_for_a_core(does: str, *, rests: bool) -> None:
    """Three that compute on two cores have less than a core each, and rest for none of their time."""
    workers = [subprocess.Popen([sys.executable, "-S", "-c", does]) for _ in range(3)]
    try:
        time.sleep(0.5)  # they start
        rest, iterator = Rest(), SimpleNamespace(_workers=workers)
        rest.share(iterator)
        time.sleep(1.0)
        share = rest.share(iterator)
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
    assert (share > RESTS) is rests, share
    assert share < 0.1 or share > 0.9, share


def test_workers_that_were_just_started_are_told_by_those_before_them() -> None:
    """Where each epoch starts some, the first look at them tells nothing: they passed for ones that rest."""
    before, now = ([subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"])] for _ in range(2))
    rest = Rest()
    try:
        time.sleep(0.3)  # they start
        rest.share(SimpleNamespace(_workers=before))
        time.sleep(0.5)
        rest.share(SimpleNamespace(_workers=before))
        assert rest.share(SimpleNamespace(_workers=now)) < RESTS
    finally:
        for worker in (*before, *now):
            worker.kill()
            worker.wait()


def test_of_workers_that_nobody_can_look_at_it_is_taken_for_granted() -> None:
    assert Rest().share(object()) == 1.0
    assert Rest().share(SimpleNamespace(_workers=[SimpleNamespace(pid=None)])) == 1.0
