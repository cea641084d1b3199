"""fp16 where each rank holds a part of the weights: what one of them sees overflow, the others don't."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.ddp_models import plain, train, two_ranks
from support.torch_trials import begin
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.nn.parallel import DistributedDataParallel

from tuner.child.torch.scaling import SHARDED

__all__ = ["begin", "two_ranks"]


def _sharded(**options: Any) -> Any:
    return FullyShardedDataParallel(plain(), device_id=torch.device("cpu"), **options)


@pytest.mark.filterwarnings("ignore:FSDP is switching to use `NO_SHARD`")
@pytest.mark.parametrize("own", [True, False])
def test_parts_of_weights_are_not_scaled_by_what_each_rank_sees(begin: Callable[..., Any], *, own: bool) -> None:
    """One rank would leave an update out that another one takes, and scale its next loss by another number."""
    trial = begin({"precision": "fp16"})
    train(_sharded(use_orig_params=own))
    trial.end()
    evidence, reason = trial.evidence("precision")
    assert (evidence, reason) == ("not applicable", SHARDED)


def test_ranks_that_hold_all_of_them_are(begin: Callable[..., Any]) -> None:
    trial = begin({"precision": "fp16"})
    train(DistributedDataParallel(plain()))
    trial.end()
    assert trial.evidence("precision")[0] == "verified"
