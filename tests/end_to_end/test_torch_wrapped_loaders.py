"""Iterators of PyTorch's that no DataLoader gives a script: its class wraps them, or another loader drives them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

LOOP = """
    import torch
    from torch.utils.data import DataLoader, TensorDataset
    from torch.utils.data.dataloader import _DatasetKind, _SingleProcessDataLoaderIter
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(512, 8), torch.randn(512, 1))

    class Handed:
        def __init__(self, batches):
            self.batches = batches

        def __iter__(self):
            return self

        def __next__(self):
            return next(self.batches)

    class Wrapping(DataLoader):
        def _get_iterator(self):
            return Handed(super()._get_iterator())

    class Endless(DataLoader):
        def __iter__(self):
            self.iterator = self._get_iterator()
            for _ in range(len(self)):
                yield next(self.iterator)

    class Driving:
        # What PyTorch's iterator asks a loader for; batches are made of items here.
        _dataset_kind, _index_sampler, _auto_collation = _DatasetKind.Iterable, range(1000), False
        _IterableDataset_len_called = generator = worker_init_fn = multiprocessing_context = prefetch_factor = None
        num_workers, timeout, pin_memory, persistent_workers, drop_last, in_order = 0, 0, False, False, False, True
        pin_memory_device = ""

        def __init__(self):
            self.dataset = self.shown = self

        def collate_fn(self, batch):
            return batch

        def _get_shared_seed(self):
            return None

        def batches(self):
            return _SingleProcessDataLoaderIter(self)

        def __iter__(self):
            return (data[first:first + 16] for first in range(0, 512, 16))

    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = MADE
    for epoch in range(1000):
        for x, y in BATCHES:
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
"""
WRAPPED = LOOP.replace("MADE", "Wrapping(data, batch_size=16, shuffle=True)").replace("BATCHES", "loader")
ENDLESS = WRAPPED.replace("Wrapping(data", "Endless(data")
DRIVEN = LOOP.replace("MADE", "Driving()").replace("BATCHES", "loader.batches()")


@pytest.mark.parametrize("text", [WRAPPED, ENDLESS, DRIVEN])
def test_batches_are_counted_and_waited_for(
    write_script: Callable[..., Path], run_child: Callable[..., Any], text: str
) -> None:
    """As in graph libraries, Ultralytics (which makes an iterator past ``__iter__``), and fastai (no DataLoader)."""
    run = run_child(write_script(text))
    facts = run.facts
    assert facts["unit"] == "samples"
    blocks = [block for block in run.of("block") if block["phase"] == "window"]
    assert blocks and all(block["samples"] == 16 * block["steps"] for block in blocks)
    assert not [remark for remark in facts["remarks"] if "wait for data" in remark]
    if text is not DRIVEN:
        assert facts["as_written"]["batch_size"] == 16 and "num_workers" not in facts["left_out"]
    else:
        assert facts["left_out"]["num_workers"] == "Driving, which is no DataLoader, makes the batches"
