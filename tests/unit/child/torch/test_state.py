"""What a module holds is read without leaving anything behind in it."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import torch

from tuner.child.torch.state import same_state, state_of


class Entries(defaultdict[str, Any]):
    """Attributes are entries, made when they are asked for."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self[name]


class Log:
    """As ``Entries``, and no mapping."""

    def __init__(self) -> None:
        self.entries: dict[str, list[float]] = {}

    def __getattr__(self, name: str) -> list[float]:
        if name.startswith("__"):
            raise AttributeError(name)
        return self.entries.setdefault(name, [])


def test_nothing_is_made_by_asking() -> None:
    model: Any = torch.nn.Linear(2, 1)
    model.given, model.log = Entries(list), Log()
    before = state_of(model)
    assert same_state(before, state_of(model))
    assert model.given == {} and model.log.entries == {}
    model.given["loss"].append(1.0)
    assert not same_state(before, state_of(model))
