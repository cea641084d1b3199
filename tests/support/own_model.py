"""A small model of PyTorch's that does what a test says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from torch import nn

Module: Any = nn.Module


class Own(Module):  # type: ignore[misc]  # PyTorch isn't typed here
    """Maps five features to one; ``make`` adds to it, ``call`` is what it does."""

    def __init__(self, call: Callable[..., Any], make: Callable[[Any], None] = lambda model: None) -> None:
        super().__init__()
        self.linear = nn.Linear(5, 1)
        self.call = call
        make(self)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.call(self, *args, **kwargs)


@pytest.fixture
def rows_seen(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The rows of each call of a linear layer, seen from outside: what a model notes by itself it keeps."""
    seen: list[int] = []
    given = nn.functional.linear

    def linear(x: Any, *args: Any) -> Any:
        seen.append(len(x))
        return given(x, *args)

    monkeypatch.setattr(nn.functional, "linear", linear)
    return seen
