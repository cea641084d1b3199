"""A loader whose batches differ: what the baseline shows of it, the prefetch that follows, and what that brings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support import worlds
from support.rates import measured

from search_spaces.torch import SPACE
from tuner.knowledge import count_of, read
from tuner.space.declare import Known
from tuner.space.resolve import resolve
from tuner.space.resolved import Axis

Run = Callable[..., Any]
Write = Callable[..., Path]
EVERY, SLOW_S, USUAL_S, LOOP_S = 20, 0.2, 0.002, 0.02

SCRIPT = """
    import time
    import torch

    class Rows(torch.utils.data.Dataset):
        def __len__(self):
            return 100_000

        def __getitem__(self, place):
            if place % 4 == 0:  # waits for a disk, once a batch
                time.sleep(SLOW_S if place // 4 % EVERY == 10 else USUAL_S)
            return torch.ones(4), torch.ones(1)

    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for x, y in torch.utils.data.DataLoader(Rows(), batch_size=4):
        loss = torch.nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(LOOP_S)
"""
WINDOW = {"warmup_s": 0.5, "min_s": 3.0, "max_s": 4.0, "block_s": 0.1}


def script(write: Write) -> Path:
    text = SCRIPT
    values = {"SLOW_S": SLOW_S, "USUAL_S": USUAL_S, "LOOP_S": LOOP_S, "EVERY": EVERY}
    for name, value in values.items():
        text = text.replace(name, str(value))
    return write(text)


def prefetching(ran: Any) -> Axis:
    found = measured(ran)
    assert found.data_wait_share is not None
    known = read(ran.facts)
    loop_s = count_of(known.as_written, "batch_size") * (1 - found.data_wait_share) / found.rate
    resolved = resolve(SPACE, Known(worlds.DEVICE, 2, knowledge=replace(known, loop_s=loop_s)))
    return next(axis for axis in resolved.axes if axis.knob.name == "prefetch_factor")


@pytest.mark.slow  # unit/space/test_prefetch.py
def test_the_prefetch_that_hides_slow_batches_follows_from_the_baseline(run_child: Run, write_script: Write) -> None:
    baseline = run_child(script(write_script), window=WINDOW)
    waits = baseline.facts["batch_waits"]
    assert len(waits) > 50
    assert sum(wait > SLOW_S for wait in waits) == pytest.approx(len(waits) / EVERY, abs=2)
    found = prefetching(baseline)
    depth = found.values[-1]
    assert isinstance(depth, int) and 5 <= depth <= 20, found.told
    assert f"{depth} ahead" in found.told


@pytest.mark.timed
@pytest.mark.slow
def test_what_follows_hides_slow_batches(run_child: Run, write_script: Write) -> None:
    path = script(write_script)
    baseline = run_child(path, window=WINDOW)
    depth = prefetching(baseline).values[-1]
    assert isinstance(depth, int)
    known = {"training_loaders": baseline.facts["training_loaders"], "as_written": baseline.facts["as_written"]}
    waited: dict[int, float] = {}
    for factor in (2, depth):
        ran = run_child(path, config={"num_workers": 1, "prefetch_factor": factor}, knowledge=known, window=WINDOW)
        assert ran.evidence("prefetch_factor") == "verified" and not ran.facts.get("batch_waits")
        waited[factor] = measured(ran).data_wait_share or 0.0
    assert waited[2] > 0.15 and waited[depth] < 0.8 * waited[2]
