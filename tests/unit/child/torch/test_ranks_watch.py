"""Whether ranks exchange anything is read from their groups' own counts, once a block ends."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from support.in_process import InProcess

from tuner.child.torch.ranks import EXCHANGE_NOTHING, RanksWatch


@pytest.fixture
def group(tmp_path: Path) -> Iterator[None]:
    """Of one process, which counts what it exchanges as it would with others."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/joined", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("exchanges", [False, True])
def test_ranks_that_exchange_nothing_are_told(group: None, *, exchanges: bool) -> None:
    """Two real ones: tests/end_to_end/test_ranks.py."""
    session = InProcess({}, {}).session
    session.ranks = 2
    watch = RanksWatch(session, torch)
    for steps in (4, 8, 12, 16):
        session.clock.total_steps = steps
        if exchanges:
            dist.all_reduce(torch.ones(1))
        watch.block_ended()
    watch.observe()
    told = [remark for remark in session.facts.remarks if EXCHANGE_NOTHING in remark]
    assert [remark.partition(" steps")[0] for remark in told] == ([] if exchanges else [f"{EXCHANGE_NOTHING} in 12"])
