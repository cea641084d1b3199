"""Data that change in the default of an argument, which no variable holds, or in a queue that keeps its length."""

from __future__ import annotations

import random
from collections import deque
from typing import Any

import pytest
import torch
from support.copied_data import Begin, Rows, left_out
from support.torch_trials import begin

__all__ = ["begin"]

pytestmark = pytest.mark.usefixtures("torch_settings_kept")


def shifted(x: Any, *, seen: list[int] = [0]) -> Any:  # noqa: B006  # shared by all calls, as scripts have it
    seen[0] += 1
    return x * (seen[0] % 2)


def drawn(x: Any, chance: random.Random = random.Random(0)) -> Any:  # noqa: B008  # likewise
    return x * chance.random()


def kept(x: Any, known: dict[float, Any] = {}) -> Any:  # noqa: B006  # likewise
    return known.setdefault(float(x[0]), x.relu())


def doubled(x: Any, by: Any = torch.full((5,), 2.0)) -> Any:  # noqa: B008  # likewise
    return x * by


class Called(Rows):
    """Whose own code names the function."""

    def __getitem__(self, index: int) -> Any:
        return shifted(self.x[index]), self.y[index]


class Drawn(Rows):
    def __getitem__(self, index: int) -> Any:
        return drawn(self.x[index]), self.y[index]


class ByMethod(Rows):
    """With a default of the method itself."""

    def __getitem__(self, index: int, seen: list[int] = [0]) -> Any:  # noqa: B006  # likewise
        seen[0] += 1
        return self.x[index] * (seen[0] % 2), self.y[index]


class Recent(Rows):
    """Adds what it gave last."""

    def __init__(self) -> None:
        super().__init__()
        self.last = deque([torch.zeros(5)], maxlen=1)

    def __getitem__(self, index: int) -> Any:
        x = self.x[index] + self.last[0]
        self.last.append(self.x[index])
        return x, self.y[index]


class Kept(Rows):
    def __getitem__(self, index: int) -> Any:
        return doubled(kept(self.x[index])), self.y[index]


@pytest.mark.parametrize(
    ("made", "what"),
    [(Called, "seen[0] changes"), (ByMethod, "seen[0] changes"), (Drawn, "chance draws"), (Recent, "last changes")],
)
def test_what_is_read_and_changed_there_speaks_against_workers(begin: Begin, made: type[Rows], what: str) -> None:
    assert what in left_out(begin, made())["num_workers"]


def test_what_is_only_kept_there_does_not(begin: Begin) -> None:
    assert "num_workers" not in left_out(begin, Kept())
