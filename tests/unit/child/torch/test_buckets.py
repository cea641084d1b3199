"""Buckets of gradients: what a config asks for is held to those that the reducer of a real module has made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from support.ddp_models import SEARCHING, train, two_ranks
from support.torch_trials import begin
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tuner.child.torch import ddp

__all__ = ["begin", "two_ranks"]

Begin = Callable[..., Any]
pytestmark = pytest.mark.filterwarnings("ignore:Grad strides do not match")  # of one column, or one row


class Large(nn.Module):  # type: ignore[misc]  # torch's own types are Any here
    """Four layers with gradients of 1 MiB each, and a first one of next to nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 512)
        self.layers = nn.Sequential(*(nn.Linear(512, 512) for _ in range(4)))

    def forward(self, x: Any) -> Any:
        return self.layers(self.first(x)).tanh()


@pytest.mark.parametrize("value", [1, 2, 100])
@pytest.mark.parametrize("given", [{"bucket_cap_mb": 3}, {"bucket_cap_mb": 3, **SEARCHING}], ids=["plain", "searched"])
def test_buckets_of_the_size_that_the_config_asks_for(begin: Begin, value: int, given: dict[str, Any]) -> None:
    """What is searched for unused parameters keeps the buckets that it began with."""
    trial = begin({"ddp_bucket_mb": value})
    train(DistributedDataParallel(Large(), **given), steps=6)
    facts = trial.end()
    assert trial.evidence("ddp_bucket_mb") == ("verified", "")
    assert facts["as_written"]["ddp_bucket_mb"] == 3, "what the script gives, all the same"


@pytest.mark.parametrize(("given", "value"), [({"bucket_cap_mb": 25}, 100), ({"bucket_cap_mb": 1.5}, 2)])
def test_a_size_that_makes_the_buckets_of_the_script_is_told(begin: Begin, given: dict[str, Any], value: int) -> None:
    trial = begin({"ddp_bucket_mb": value})
    train(DistributedDataParallel(Large(), **given), steps=6)
    trial.end()
    assert trial.evidence("ddp_bucket_mb") == ("not applicable", ddp.SAME_BUCKETS)
    assert trial.adapter.watches.ddp.effect("ddp_bucket_mb").reason == ddp.SAME_BUCKETS


def test_the_first_bucket_of_a_script_that_gives_no_size_is_small(begin: Begin) -> None:
    """PyTorch's own, of 1 MiB: with the 25 that it takes for the others all of them are one."""
    trial = begin({"ddp_bucket_mb": 25})
    train(DistributedDataParallel(Large()), steps=6)
    trial.end()
    assert trial.evidence("ddp_bucket_mb") == ("verified", "")


def test_a_size_that_the_reducer_does_not_keep_to_is_told(begin: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
    """It goes on with the one bucket that it began with."""
    told = DistributedDataParallel._get_ddp_logging_data
    monkeypatch.setattr(
        DistributedDataParallel, "_get_ddp_logging_data", lambda module: {**told(module), "has_rebuilt_buckets": 0}
    )
    trial = begin({"ddp_bucket_mb": 1})
    train(DistributedDataParallel(Large(), bucket_cap_mb=3), steps=6)
    trial.end()
    evidence, why = trial.evidence("ddp_bucket_mb")
    assert evidence == "contradicted" and why.startswith("its largest bucket holds 4.0 MiB"), why


@pytest.mark.parametrize("mode", ["trial", "apply"])
def test_buckets_of_layers_that_are_frozen_once_they_are_wrapped_are_told(begin: Begin, mode: str) -> None:
    trial = begin({"ddp_bucket_mb": 1}, mode=mode)
    model = DistributedDataParallel(Large(), bucket_cap_mb=3, **SEARCHING)
    model.module.first.requires_grad_(False)
    train(model, steps=6)
    assert trial.adapter.watches.ddp.effect("ddp_bucket_mb").sites == 1
    if mode == "trial":
        trial.end()
        assert trial.evidence("ddp_bucket_mb") == ("verified", "")


def test_an_applied_run_does_not_accuse_what_cannot_be_told(begin: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
    told = DistributedDataParallel._get_ddp_logging_data
    nothing = dict.fromkeys(("bucket_sizes", "rebuilt_bucket_sizes"), "")
    monkeypatch.setattr(DistributedDataParallel, "_get_ddp_logging_data", lambda module: {**told(module), **nothing})
    trial = begin({"ddp_bucket_mb": 1}, mode="apply")
    model = DistributedDataParallel(Large(), bucket_cap_mb=3)
    train(model, steps=6)
    effect = trial.adapter.watches.ddp.effect("ddp_bucket_mb")
    assert (effect.sites, effect.reason, effect.is_unseen) == (0, ddp.NOT_SHOWN, True)


class Embedded(Large):
    """What is looked up has a sparse gradient of 2 MiB, or of next to nothing."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.table = nn.Embedding(rows, 4, sparse=True)

    def forward(self, x: Any) -> Any:
        return super().forward(self.table(x[:, 0].long()))


@pytest.mark.parametrize(
    ("value", "rows", "given"), [(1, 10, {}), (2, 131072, SEARCHING), (100, 131072, {})], ids=["1", "2", "100"]
)
def test_a_sparse_gradient_has_a_bucket_of_its_own(begin: Begin, value: int, rows: int, given: dict[str, Any]) -> None:
    trial = begin({"ddp_bucket_mb": value})
    train(DistributedDataParallel(Embedded(rows), bucket_cap_mb=3, **given), steps=6)
    trial.end()
    assert trial.evidence("ddp_bucket_mb") == ("verified", "")
    again = begin({"ddp_bucket_mb": value})
    train(DistributedDataParallel(Embedded(rows), bucket_cap_mb=value, **given), steps=6)
    again.end()
    assert again.evidence("ddp_bucket_mb") == ("not applicable", ddp.SAME_BUCKETS)


def test_options_may_be_given_by_their_places(begin: Begin) -> None:
    trial = begin({"ddp_bucket_mb": 1})
    model = DistributedDataParallel(Large(), None, None, 0, None, True, None, 5)
    train(model)
    trial.end()
    assert trial.evidence("ddp_bucket_mb") == ("verified", "")
