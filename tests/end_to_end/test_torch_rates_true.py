"""Rates that are true: against what the script can keep up, with a real DataLoader and real workers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.campaign import QUEUE
from support.rates import measured, naive

Run = Callable[..., Any]
Write = Callable[..., Path]


def script(write: Write, **values: object) -> Path:
    """The script with its figures filled in; ``OPEN_S`` is what a worker takes once, before its first sample."""
    text = QUEUE
    for name, value in {"OPEN_S": 0, "LENGTH": 400_000, "PERSISTENT": False, "FIRST_S": 0, **values}.items():
        text = text.replace(name, str(value))
    return write(text)


@pytest.mark.timed
def test_a_queue_that_a_slow_start_filled_does_not_flatter(run_child: Run, write_script: Write) -> None:
    """The loader gives 50 batches/s, the loop takes 100: 100 lie ready after a first step as slow as a compilation."""
    path = script(write_script, SAMPLE_S=0.01, PREFETCH=50, COMPUTE_S=0.008, FIRST_S=2.2)
    ran = run_child(path, window={"max_s": 0.7, "min_s": 0.7})
    found = measured(ran)
    window = [b for b in ran.of("block") if b["phase"] == "window"]
    made_s = 0.01 * 4 / 2  # a batch, by two workers that only sleep
    truth = 4 / made_s
    assert window[0]["ready_before"] > window[-1]["ready_after"]
    assert naive(ran) > 1.15 * truth, "the window lies within what was ready"
    assert 0.7 * truth < found.rate < 1.05 * truth, "sleeping takes at least as long as it says"
    assert found.queue_share > 0.1
    assert found.data_wait_share is not None and found.data_wait_share > 0.1, "it will wait once the queue is empty"


@pytest.mark.timed
def test_a_full_queue_of_a_loader_that_keeps_up_changes_nothing(run_child: Run, write_script: Write) -> None:
    path = script(write_script, SAMPLE_S=0.001, PREFETCH=8, COMPUTE_S=0.02, FIRST_S=0.5)
    ran = run_child(path)
    found = measured(ran)
    assert found.queue_share < 0.03
    assert found.rate == pytest.approx(naive(ran), rel=0.03)
    assert any(block["ready_after"] for block in ran.of("block"))


BROKEN_OFF = """
    import time, torch
    from torch.utils.data import DataLoader, TensorDataset

    data = TensorDataset(torch.ones(4000, 4), torch.ones(4000, 1))
    loader = DataLoader(data, batch_size=4, num_workers=1, worker_init_fn=lambda worker: time.sleep(0.08))
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for epoch in range(10_000):
        for step, (x, y) in enumerate(loader):
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
            time.sleep(0.01)
            if step == 7:
                break
"""


@pytest.mark.timed
def test_epochs_that_are_broken_off_begin_as_often_as_they_do(run_child: Run, write_script: Write) -> None:
    """Eight batches of a thousand: their beginnings were counted as if each thousand had one."""
    ran = run_child(write_script(BROKEN_OFF), window={"min_s": 1.5, "max_s": 3.0})
    found = measured(ran)
    assert found.rate == pytest.approx(naive(ran), rel=0.1)
    assert found.data_wait_share is not None and found.data_wait_share > 0.3


BACKGROUND = """
    import queue, threading, time, torch
    from torch.utils.data import DataLoader, TensorDataset

    def collate(rows):
        time.sleep(0.008)
        return torch.utils.data.default_collate(rows)

    loader = DataLoader(TensorDataset(torch.ones(400, 4), torch.ones(400, 1)), batch_size=4, collate_fn=collate)

    def ahead(loader):
        ready = queue.Queue(4)
        def fill():
            for batch in loader:
                ready.put(batch)
            ready.put(None)
        threading.Thread(target=fill, daemon=True).start()
        return iter(ready.get, None)

    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for epoch in range(1000):
        for x, y in ahead(loader):
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
            time.sleep(0.016)
"""


def test_what_a_background_thread_waits_is_not_told_as_the_loops_wait(run_child: Run, write_script: Write) -> None:
    """The loader is hidden altogether: half of the time used to be told as waiting for it."""
    ran = run_child(write_script(BACKGROUND))
    found = measured(ran)
    assert found.data_wait_share is None
    assert found.unit == "samples"
    assert found.rate == pytest.approx(naive(ran), rel=0.01)
    assert any("another thread" in remark for remark in ran.facts["remarks"])


WITHOUT_A_LOADER = """
    import time, torch
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(100_000):
        time.sleep(0.005)  # a pipeline that nobody sees
        optimizer.zero_grad()
        model(torch.ones(4, 4)).sum().backward()
        optimizer.step()
"""


def test_without_a_loader_no_wait_is_claimed(run_child: Run, write_script: Write) -> None:
    ran = run_child(write_script(WITHOUT_A_LOADER))
    assert measured(ran).data_wait_share is None
    assert ran.facts["wait_is_unseen"]


@pytest.mark.timed
@pytest.mark.parametrize("persistent", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_workers_that_start_anew_are_spread_over_epochs(run_child: Run, write_script: Write, persistent: bool) -> None:
    """An epoch of 200 batches that take 10 ms each begins with workers that take 0.5 s: the window lies within it."""
    path = script(
        write_script, LENGTH=800, SAMPLE_S=0, PREFETCH=2, COMPUTE_S=0.01, OPEN_S=0.5, PERSISTENT=persistent
    )
    ran = run_child(path, window={"max_s": 0.8})
    found, window = measured(ran), [b for b in ran.of("block") if b["phase"] == "window"]
    assert not any(block["starts"] for block in window), "no epoch begins in the window"
    epoch = ran.facts["epoch"]
    assert (epoch["batches"], epoch["samples"], epoch.get("respawns", False)) == (200, 800.0, not persistent)
    assert 0.45 < epoch["first_s"] < 1.5
    # What lay ready is taken off where a disturbed window lived on it: two batches of each worker, of some 80.
    within = naive(ran) * (1 - found.queue_share)
    whole = 800 / (800 / within + epoch["first_s"])
    assert found.rate == pytest.approx(within if persistent else whole, rel=0.02)
    assert found.rate < 0.95 * within or persistent


VALIDATING = """
    import time, torch
    from torch.utils.data import DataLoader, TensorDataset
    loader = DataLoader(TensorDataset(torch.ones(80, 4), torch.ones(80, 1)), batch_size=4, shuffle=True)
    validation = DataLoader(TensorDataset(torch.ones(40, 4), torch.ones(40, 1)), batch_size=4)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for epoch in range(1000):
        model.train()
        for x, y in loader:
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
            time.sleep(0.015)
        model.eval()
        with torch.no_grad():
            for x, y in validation:
                model(x)
                time.sleep(0.010)
"""


@pytest.mark.timed
def test_what_validation_costs_is_told(run_child: Run, write_script: Write) -> None:
    """Training takes 0.3 s of an epoch, and validation 0.1 s."""
    ran = run_child(write_script(VALIDATING), window={"min_s": 1.0})
    found = measured(ran)
    assert found.validation_share == pytest.approx(0.25, abs=0.06)
    assert found.rate == pytest.approx(naive(ran), rel=0.02), "it is no part of the rate"
    assert found.rate < 4 / 0.015


SEQUENCES = """
    import sys, torch
    from torch.utils.data import DataLoader
    longest, masked = int(sys.argv[1]), sys.argv[2] == "mask"

    def collate(lengths):
        lengths = [min(length, longest) for length in lengths]
        ids = torch.zeros(len(lengths), max(lengths), dtype=torch.long)
        mask = torch.zeros_like(ids)
        for row, length in enumerate(lengths):
            ids[row, :length] = torch.arange(1, length + 1)
            mask[row, :length] = 1
        return {"input_ids": ids, "attention_mask": mask} if masked else {"input_ids": ids}

    data = [8, 64] * 400
    loader = DataLoader(data, batch_size=4, collate_fn=collate)
    model = torch.nn.Embedding(65, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for epoch in range(1000):
        for batch in loader:
            optimizer.zero_grad()
            model(batch["input_ids"]).sum().backward()
            optimizer.step()
"""


@pytest.mark.parametrize("kind", ["mask", pytest.param("padding", marks=pytest.mark.slow)])
def test_shorter_sequences_are_no_gain(run_child: Run, write_script: Write, kind: str) -> None:
    """Cut to half their tokens: the rate counts them as half."""
    path = write_script(SEQUENCES)
    whole = run_child(path, argv=("64", kind))
    assert whole.facts["tokens_per_sample"] == 36.0
    cut = run_child(path, argv=("28", kind), knowledge={"tokens_per_sample": 36.0})
    assert cut.facts["tokens_per_sample"] == 18.0
    assert measured(whole).rate == pytest.approx(naive(whole), rel=0.02)
    assert measured(cut).rate == pytest.approx(naive(cut) / 2, rel=0.02)
    told = measured(cut).tokens_per_s
    assert told is not None and told == pytest.approx(18 * naive(cut), rel=0.02)
    assert measured(whole).tokens_per_s is None, "every batch has as many"
