"""Which attributes the data count up as they are read, and which only look so."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from support.copied_data import Rows

from tuner.child.torch.copies import refusals


class Opened(Rows):
    """Opens its file with the first sample, as data that are meant for workers do."""

    def __init__(self) -> None:
        super().__init__()
        self.file: Any = None

    def __getitem__(self, index: int) -> Any:
        self.file = self.file or Path(__file__).read_text(encoding="utf-8")
        return super().__getitem__(index)


class Counting(Rows):
    """Makes each sample a little harder than the one before."""

    calls = 0

    def __getitem__(self, index: int) -> Any:
        self.calls += 1
        x, y = super().__getitem__(index)
        return x * (1 + self.calls / 1000), y


class Hits(Rows):
    """Counts what nobody reads as the data are read; and what is computed once."""

    def __init__(self) -> None:
        super().__init__()
        self.hits, self.width, self.height = 0, 2, 3
        self.size: Any = None

    def __getitem__(self, index: int) -> Any:
        self.hits += 1
        if self.size is None:
            self.size = self.width * self.height
        return super().__getitem__(index)

    def rate(self) -> float:
        return self.hits / 96


class Packed(Rows):
    """Counts from nothing with each iteration."""

    def __iter__(self) -> Iterator[Any]:
        self.used = 0
        for index in range(96):
            self.used += index
            if self.used < 1000:
                yield self[index]


class InGenerator(Rows):
    epoch = 0

    def __iter__(self) -> Iterator[Any]:
        def read() -> Iterator[Any]:
            self.epoch += 1
            yield from random.Random(self.epoch).sample(range(96), 96)

        return read()


class InMethod(Rows):
    epoch = 0

    def __iter__(self) -> Iterator[Any]:
        yield from self.order()

    def order(self) -> list[int]:
        epoch = self.epoch
        self.epoch = epoch + 1
        return random.Random(epoch).sample(range(96), 96)


class InBase(Rows):
    epoch = 0

    def __iter__(self) -> Iterator[Any]:
        return iter(random.Random(self.epoch).sample(range(96), 96))


class ForTheTraining(Rows):
    """Counts its epochs, which the loop around it may read: ``while data.epoch < 10``."""

    epoch = 0

    def __iter__(self) -> Iterator[Any]:
        self.epoch += 1
        return iter(range(96))


class Below(InBase):
    def __iter__(self) -> Iterator[Any]:
        self.epoch = self.epoch + 1
        return super().__iter__()


class ByItself(Rows):
    """Is its own iterator, and counts what it has given."""

    given = 0

    def __iter__(self) -> ByItself:
        return self

    def __next__(self) -> Any:
        self.given += 1
        if self.given > 96:
            raise StopIteration
        return self[self.given - 1]


class BegunAnew(ByItself):
    def __iter__(self) -> ByItself:
        self.given = 0
        return self


class Told(Rows):
    """Counts what a function, or its transform, reads."""

    calls = 0

    def __getitem__(self, index: int) -> Any:
        self.calls += 1
        x, y = super().__getitem__(index)
        return x * strength(self), y


def strength(rows: Told) -> float:
    return 1 + rows.calls / 1000


class Progress:
    """What data and transform have in common."""

    seen = 0


class Harder:
    def __init__(self, progress: Progress) -> None:
        self.progress = progress

    def __call__(self, x: Any) -> Any:
        return x * (1 + self.progress.seen / 1000)


class Shared(Rows):
    def __init__(self) -> None:
        self.progress = Progress()
        super().__init__(Harder(self.progress))

    def __getitem__(self, index: int) -> Any:
        self.progress.seen += 1
        return super().__getitem__(index)


class Growing:
    """Counts by itself, and over a local."""

    calls = 0

    def __call__(self, x: Any) -> Any:
        calls = self.calls
        calls += 1
        self.calls = calls
        return x * (1 + calls / 1000)


class ManyAtOnce(Rows):
    calls = 0

    def __getitems__(self, indices: list[int]) -> list[Any]:
        self.calls += 1
        return [self[(index + self.calls) % 96] for index in indices]


class Resized(Rows):
    """Another size with every tenth batch, as it puts them together: training with several scales."""

    batches = 0

    def together(self, items: list[Any]) -> Any:
        self.batches += 1
        return torch.stack([x[: 2 + self.batches // 10 % 3] for x, _ in items])


def test_what_is_counted_as_batches_are_put_together_is_seen() -> None:
    dataset = Resized()
    found = refusals({"dataset": dataset, "collate_fn": dataset.together, "num_workers": 2})
    assert found["persistent_workers"].startswith("Resized.batches is counted up")
    assert "num_workers" not in found, "which the script has already"


@pytest.mark.parametrize(
    ("made", "counted"),
    [
        (ByItself, "ByItself.given"), (BegunAnew, ""), (Told, "Told.calls"), (Shared, "Shared.seen"),
        (lambda: Rows(Growing()), "Growing.calls"), (ManyAtOnce, "ManyAtOnce.calls"),
        (Hits, ""), (Packed, ""), (Opened, ""), (InBase, ""), (Counting, "Counting.calls"),
        (InGenerator, "InGenerator.epoch"), (InMethod, "InMethod.epoch"), (Below, "Below.epoch"),
        (ForTheTraining, "ForTheTraining.epoch"),
    ],
)  # fmt: skip
def test_what_counts_is_what_is_read_again(made: Callable[[], Any], counted: str) -> None:
    """Wherever it is counted: not statistics, what is computed once, or what each iteration begins anew."""
    found = refusals({"dataset": made()})
    assert found.keys() == ({"num_workers", "persistent_workers"} if counted else set())
    assert not counted or found["num_workers"].startswith(f"{counted} is counted up")
