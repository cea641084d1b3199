"""What lies ready in a DataLoader's queue, by the real bookkeeping of its workers."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch.utils.data import DataLoader, TensorDataset

from tuner.child.torch.queues import ready_batches


def test_what_lies_ready_is_told_until_the_last_batches_are_asked_for() -> None:
    """Two batches of each of two workers; a later epoch's only once that many have been taken."""
    rows = TensorDataset(torch.ones(40, 1))
    loader = DataLoader(rows, batch_size=4, num_workers=2, persistent_workers=True)
    for _ in range(2):
        iterator: Any = iter(loader)
        first, later = [], []
        for _batch in iterator:
            deadline = time.monotonic() + 10
            while (found := ready_batches(iterator)) not in (4, None) and time.monotonic() < deadline:
                time.sleep(0.01)
            first.append(found)
            later.append(ready_batches(iterator, anew=True))
        assert first == [4] * 6 + [None] * 4
        assert later == [None] * 3 + [4] * 3 + [None] * 4


def test_without_workers_nothing_is_told() -> None:
    loader = DataLoader(TensorDataset(torch.ones(8, 1)), batch_size=4)
    assert ready_batches(iter(loader)) is None
