"""Workers that outlive an epoch: an iteration that begins within another one is one of its own, as it was written."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

TRAIN = """
    import os
    import torch
    from torch.utils.data import DataLoader

    class Rows(torch.utils.data.Dataset):
        def __len__(self):
            return 24

        def __getitem__(self, index):
            return torch.full((2,), float(index)), os.getpid()

    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-5)
    seen, workers = [], set()

    def train(batch):
        optimizer.zero_grad()
        model(batch[0]).mean().backward()
        optimizer.step()
        note(*batch)

    def note(x, worker):
        seen.append(x[:, 0].int().tolist())
        workers.add(int(worker[0]))

    def two_at_once(loader):
        for epoch in range(2):
            for one, other in zip(loader, loader):
                train(one)
                train(other)

    def evaluates_within_an_epoch(loader):
        for epoch in range(2):
            for number, batch in enumerate(loader):
                train(batch)
                if number in (2, 5):
                    for evaluated in loader:
                        note(*evaluated)

    def evaluates_a_little_at_the_end(loader):
        for epoch in range(2):
            for number, batch in enumerate(loader):
                train(batch)
                if number == 5:
                    note(*next(iter(loader)))

    def one_epoch_after_the_other(loader):
        for epoch in range(3):
            for batch in loader:
                train(batch)

    def for_ever(loader):
        batches = iter(loader)
        for step in range(18):
            try:
                batch = next(batches)
            except StopIteration:
                batches = iter(loader)
                batch = next(batches)
            train(batch)

    def leaves_epochs_early(loader):
        for epoch in range(3):
            for number, batch in enumerate(loader):
                train(batch)
                if number == 2:
                    break

    loops = [two_at_once, evaluates_within_an_epoch, evaluates_a_little_at_the_end, one_epoch_after_the_other, for_ever,
             leaves_epochs_early]
    for loop in loops:
        torch.manual_seed(0)
        seen.clear()
        workers.clear()
        loop(DataLoader(Rows(), batch_size=4, shuffle=True, num_workers=1))
        print("loop", loop.__name__, seen, "workers", len(workers))
"""
LAST = {"one_epoch_after_the_other", "for_ever", "leaves_epochs_early"}
ENDLESS = {"max_s": 99.0, "min_s": 99.0, "warmup_s": 99.0}


@pytest.mark.slow  # 6 s beside three others
@pytest.mark.parametrize("mode", ["trial", pytest.param("apply", marks=pytest.mark.slow)])
def test_lasting_workers_give_what_new_ones_would(
    write_script: Callable[..., Path], run_child: Callable[..., Any], mode: str
) -> None:
    script = write_script(TRAIN)
    plain = _told(run_child(script, mode="apply"))
    lasting = _told(run_child(script, {"persistent_workers": True}, mode=mode, window=ENDLESS))
    assert {name: seen for name, (seen, _) in lasting.items()} == {name: seen for name, (seen, _) in plain.items()}
    assert {name for name, (_, workers) in lasting.items() if workers == 1} == LAST, "nothing is in the way"


def _told(run: Any) -> dict[str, tuple[str, int]]:
    """Loop → the batches that it saw, and how many workers made them."""
    found = re.findall(r"^loop (\w+) (.*) workers (\d+)$", run.output, re.M)
    assert len(found) == 6, run.output
    return {name: (seen, int(workers)) for name, seen, workers in found}
