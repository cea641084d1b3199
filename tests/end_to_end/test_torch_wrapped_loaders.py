"""Iterators of PyTorch's that no DataLoader gives a script: its class wraps them, or another loader drives them."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from support.torch_trials import begin
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter, _SingleProcessDataLoaderIter

from tuner.child.turns import Turns

__all__ = ["begin"]

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


class Driving:
    """Drives PyTorch's iterator by itself, and is no DataLoader."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


def test_what_workers_of_such_a_loader_have_made_is_seen(begin: Callable[..., Any]) -> None:
    """A window that is shorter than their queue would tell what was made before it."""
    trial = begin()
    data = DataLoader(TensorDataset(torch.randn(512, 8)), batch_size=16, num_workers=1)
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batches = _MultiProcessingDataLoaderIter(Driving(data))
    for (x,) in islice(batches, 4):
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()
    loaders = trial.adapter.watches.loaders
    assert loaders.prefetch_capacity == 2
    assert loaders.ready_samples() is not None


def test_such_a_loader_that_is_made_anew_with_each_epoch_stays_the_same(begin: Callable[..., Any]) -> None:
    """Each was another one, and what it gave counted for nothing."""
    trial = begin()
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = DataLoader(TensorDataset(torch.randn(64, 8)), batch_size=16)
    for _epoch in range(3):
        for (x,) in _SingleProcessDataLoaderIter(Driving(data)):
            optimizer.zero_grad()
            model(x).sum().backward()
            optimizer.step()
    facts = trial.end()
    assert (trial.steps, trial.samples) == (12, 3 * 64)
    assert len(facts["training_loaders"]) == 1


def of_this_worker(rows: Any) -> Any:
    worker = torch.utils.data.get_worker_info()
    return rows[:: 1 if worker is None else worker.num_workers]


class Shared(torch.utils.data.IterableDataset):  # type: ignore[misc]
    """Shares its rows out in a step of its own, as WebDataset's pipelines do."""

    def __init__(self) -> None:
        self.steps = [of_this_worker]

    def __iter__(self) -> Any:
        return iter(self.steps[0](torch.rand(4096, 8)))


@pytest.mark.parametrize("workers", [0, 1])
def test_a_queue_is_turned_where_it_is_not_seen_how_the_scripts_workers_share(
    begin: Callable[..., Any], workers: int
) -> None:
    """It was said that each of them repeats the data, and what lies ready was left as written as well."""
    trial = begin()
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for x in islice(DataLoader(Shared(), batch_size=16, num_workers=workers), 6):
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()
    left_out = trial.end()["left_out"]
    assert ("prefetch_factor" in left_out) is (workers == 0)
    assert ("repeat" in left_out["num_workers"]) is (workers == 0)
    assert "isn't seen to ask which worker" in left_out["persistent_workers"]


@pytest.mark.parametrize("mode", ["trial", "apply"])
def test_loaders_do_without_workers_where_the_scripts_option_takes_them(begin: Callable[..., Any], mode: str) -> None:
    """As timm's, which share its ``--workers`` and keep them: PyTorch refuses to keep none."""
    trial = begin({"num_workers": 0}, mode=mode, training_loaders=["elsewhere#0"])
    trial.session.knobs.delegate("num_workers")
    data = TensorDataset(torch.randn(32, 8))
    held_out = DataLoader(data, batch_size=16, num_workers=0, persistent_workers=True, prefetch_factor=4)
    assert len(list(held_out)) == 2


OVER_EPOCHS = """
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    class Repeated:
        def __init__(self, sampler):
            self.sampler = sampler
        def __iter__(self):
            while True:
                yield from iter(self.sampler)

    class OverEpochs(DataLoader):  # as YOLO's and timm's
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            object.__setattr__(self, "batch_sampler", Repeated(self.batch_sampler))
            self.iterator = super().__iter__()
        def __len__(self):
            return len(self.batch_sampler.sampler)
        def __iter__(self):
            for _ in range(len(self)):
                yield next(self.iterator)

    model = torch.nn.Linear(5, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = KIND(TensorDataset(torch.randn(64, 5), torch.randn(64, 1)), batch_size=8, num_workers=1)
    for epoch in range(10_000):
        for x, y in loader:
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
"""


@pytest.mark.slow  # 7 s beside three others
@pytest.mark.parametrize(("kind", "respawns"), [("DataLoader", True), ("OverEpochs", False)])
def test_workers_that_a_loader_keeps_over_its_epochs_start_once(
    run_child: Callable[..., Any], write_script: Callable[..., Path], kind: str, respawns: bool
) -> None:
    """What they took to start was charged to each epoch."""
    epoch = run_child(write_script(OVER_EPOCHS.replace("KIND", kind))).facts["epoch"]
    assert (epoch["batches"], epoch["workers"], epoch.get("respawns", False)) == (8, 1, respawns)


LIBRARY = """
from torch.utils.data import DataLoader

class ByChance:
    def __init__(self, rows):
        self.rows = rows
    def __len__(self):
        return 4
    def __iter__(self):
        for start in range(4):
            yield list(range(start, self.rows, 4 + start))

def private(loader):
    return DataLoader(loader.dataset, batch_sampler=ByChance(len(loader.dataset)), collate_fn=loader.collate_fn)
"""
PRIVATE = """
    import sys, torch
    from torch.utils.data import DataLoader, TensorDataset
    sys.path.insert(0, LIBRARY)
    import library
    model = torch.nn.Linear(5, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = library.private(DataLoader(TensorDataset(torch.randn(64, 5), torch.randn(64, 1)), batch_size=8))
    for epoch in range(10_000):
        for x, y in loader:
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
"""


def test_a_batch_that_a_library_draws_by_chance_keeps_its_size(
    run_child: Callable[..., Any], write_script: Callable[..., Path], tmp_path: Path
) -> None:
    """Opacus' loader was taken for the script's own: another size of that changes how private the training is."""
    (installed := tmp_path / "python" / "site-packages").mkdir(parents=True)
    (installed / "library.py").write_text(LIBRARY)
    ran = run_child(write_script(PRIVATE.replace("LIBRARY", repr(str(installed)))))
    assert len(ran.facts["training_loaders"]) == 1
    assert "ByChance" in ran.facts["left_out"]["batch_size"]


def test_turns_are_told_how_many_samples_workers_make_at_once(begin: Callable[..., Any]) -> None:
    """Its workers are no processes here: forked off the tests' own, with its threads, they may come to a halt."""
    trial = begin()
    data = DataLoader(TensorDataset(torch.randn(512, 8)), batch_size=16)
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for (x,) in islice(data, 4):
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()
    trial.adapter.watches.loaders.sources.primary.live["num_workers"] = 2
    trial.session.clock.turns = turns = Turns(trial.log, -1)
    trial.adapter.on_block()
    assert turns.at_work == 2 * 16


class Computing:
    """Its items keep a core busy."""

    def __len__(self) -> int:
        return 512

    def __getitem__(self, index: int) -> torch.Tensor:
        until = time.monotonic() + 0.02
        while time.monotonic() < until:
            pass
        return torch.full((8,), float(index))


@pytest.mark.slow  # 2 s beside three others
def test_of_workers_that_compute_turns_are_told_none(begin: Callable[..., Any]) -> None:
    """They stand still while the trial is held."""
    trial = begin()
    batches = iter(DataLoader(Computing(), batch_size=16, num_workers=2, prefetch_factor=16))
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for x in islice(batches, 4):
        model(x).sum().backward()
        optimizer.step()
    trial.session.clock.turns = turns = Turns(trial.log, -1)
    told = []
    for _ in range(2):
        trial.adapter.on_block()
        told.append(turns.at_work)
        time.sleep(0.3)  # each has a dozen batches of a third of a second to make
    assert told == [2 * 16, 0], "of the first look nothing is known"
