"""Which batches that aren't the config's train on, and which only validate."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tuner.child.torch.phases import Phases


class Rows(torch.utils.data.Dataset):  # type: ignore[misc]
    """Each item is its number."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, number: int) -> int:
        return number


def loader_of(size: int, *changed: str) -> Any:
    return SimpleNamespace(stack="train.py:3", written={"batch_size": size, "shuffle": False}, changed=set(changed))


@pytest.mark.parametrize(("through", "told"), [(True, []), (False, ["other"])])
def test_a_validation_whose_workers_stay_is_over_with_its_last_batch(*, through: bool, told: list[str]) -> None:
    """Its loader holds on to its iterator for the next one."""
    phases = Phases(SimpleNamespace(knobs=SimpleNamespace(wants=lambda knob: True)))  # type: ignore[arg-type]
    heard: list[str] = []
    phases.on_other = lambda: heard.append("other")
    loader = torch.utils.data.DataLoader(Rows(), batch_size=2, num_workers=1, persistent_workers=True)
    iterator = iter(loader)
    phases.begins(loader_of(8, "batch_size"), object())
    phases.begins(loader_of(4), iterator)
    for _ in iterator if through else [next(iterator)]:
        pass
    weight = torch.nn.Parameter(torch.zeros(1))
    torch.optim.SGD([weight]).step()
    assert heard == told
    phases.on_other = lambda: None
