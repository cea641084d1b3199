"""What looks as if workers would change the training, and doesn't; with what stands beside it and does."""

from __future__ import annotations

import itertools
import random
from argparse import Namespace
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from support.copied_data import Begin, Rows, left_out
from support.torch_trials import begin

from tuner.child.torch import samplers
from tuner.child.torch.copies import CopyWatch, refusals
from tuner.child.torch.datasets import shards_itself

__all__ = ["begin"]


class Ordered(torch.utils.data.Sampler[int]):  # type: ignore[misc]  # PyTorch may lack types where this is checked
    """A sampler of the script's own."""

    def __init__(self) -> None:
        self.order, self.step, self.losses = list(range(96)), 0, [1.0] * 96

    def __len__(self) -> int:
        return 96

    def __iter__(self) -> Iterator[int]:
        return iter(self.order)


class Helped(Ordered):
    """Has methods by which it makes its order, and others that tell of it."""

    def __iter__(self) -> Iterator[int]:
        self.shuffle()
        return iter(self.order)

    def shuffle(self) -> None:
        random.shuffle(self.order)

    def of_class(self, number: int, classes: int = 4) -> list[int]:
        return sorted(index for index in self.order if index % classes == number)

    def batches(self, size: int) -> int:
        return len(self.order) // size


class Resumed(Ordered):
    """Goes on where the last run ended: what the loop counts is read as it begins."""

    def __iter__(self) -> Iterator[int]:
        first = self.step
        for index in range(first, 96):
            yield index % 96

    def resume_at(self, step: int) -> None:
        self.step = step


class Returned(Resumed):
    """The same without a generator."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.step, 96))


class Growing(Ordered):
    """Reads the step again for each index."""

    def __iter__(self) -> Iterator[int]:
        for index in range(96):
            yield index % (self.step + 1)


class Lazily(Ordered):
    """The same without a generator of its own."""

    def __iter__(self) -> Iterator[int]:
        return (index % (self.step + 1) for index in range(96))


class Told(Ordered):
    """Is told of losses."""

    def __iter__(self) -> Iterator[int]:
        return iter(random.choices(self.order, self.losses, k=96))

    def learn(self, index: int, loss: float) -> None:
        self.losses[index] = loss


class Passed(Ordered):
    """Is told of them in another way."""

    def tell(self, loss: float) -> None:
        self.losses.append(loss)


class Added(Resumed):
    """Is told where it lies."""

    def add(self, steps: Any) -> None:
        self.step += steps


@pytest.mark.parametrize(
    ("made", "may_be_told"),
    [(Added, True), (Helped, False), (Resumed, False), (Returned, False), (Told, True), (Passed, True)],
)
def test_only_methods_that_change_what_a_sampler_reads_may_tell_it(
    made: Callable[[], Any], may_be_told: bool
) -> None:
    assert ("num_workers" in refusals({"dataset": Rows(), "sampler": made()})) == may_be_told


@pytest.mark.parametrize(("made", "changes"), [(Resumed, False), (Returned, False), (Growing, True), (Lazily, True)])
def test_what_a_sampler_reads_as_it_begins_may_change_afterwards(made: Callable[[], Any], changes: bool) -> None:
    sampler, watch = made(), samplers.SamplerWatch()
    loader = torch.utils.data.DataLoader(Rows(), sampler=sampler, batch_size=4)
    iterator, entry = iter(loader), Namespace(refused={})
    for _ in range(8):
        watch.ask(type(iterator)._next_index, iterator, loader, entry)  # type: ignore[arg-type]  # what it asks of one
        sampler.step += 1
    assert bool(entry.refused) == changes


class Shares(torch.utils.data.IterableDataset[Any]):  # type: ignore[misc]  # likewise
    """Gives each worker its share."""

    def __iter__(self) -> Iterator[int]:
        worker = torch.utils.data.get_worker_info()
        yield from range(96) if worker is None else range(worker.id, 96, worker.num_workers)


class Changed(torch.utils.data.IterableDataset[Any]):  # type: ignore[misc]  # likewise
    """Changes what another stream gives."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream

    def __iter__(self) -> Iterator[Any]:
        for number in self.stream:
            yield _doubled(number)


class Mixed(Changed):
    """Shuffles it, some at a time."""

    def __init__(self, stream: Any, size: int = 8) -> None:
        super().__init__(stream)
        self.size, self.chance = size, random

    def __iter__(self) -> Iterator[Any]:
        held: list[Any] = []
        for number in self.stream:
            held.append(number)
            if len(held) == self.size:
                random.shuffle(held)
                yield from held
                held = []


class Longer(Changed):
    """Gives more than that: each worker would give it again."""

    def __init__(self, stream: Any) -> None:
        super().__init__(stream)
        self.more = [1, 2, 3]

    def __iter__(self) -> Iterator[Any]:
        yield from itertools.chain(self.stream, self.more)


class Counted(Changed):
    """The same, of its own."""

    def __iter__(self) -> Iterator[Any]:
        yield from self.stream
        yield from range(96)


def _doubled(number: int) -> int:
    return 2 * number


@pytest.mark.parametrize(
    ("made", "shares"),
    [
        (lambda: Changed(Shares()), True), (lambda: Mixed(Changed(Shares())), True),
        (lambda: Changed(range(96)), False), (lambda: Longer(Shares()), False), (lambda: Counted(Shares()), False),
    ],
    ids=["changed", "mixed", "of no stream", "longer", "of its own"],
)  # fmt: skip
def test_a_stream_of_a_stream_that_shares_itself_out_does_so_too(made: Callable[[], Any], shares: bool) -> None:
    assert shards_itself(made()) == shares


class Optioned(Rows):
    """Reads one of its script's options."""

    def __init__(self, options: Any) -> None:
        super().__init__()
        self.options = options

    def __getitem__(self, index: int) -> Any:
        return self.x[index] * self.options.scale, self.y[index]


class Chosen(torch.utils.data.Subset[Any]):  # type: ignore[misc]  # likewise
    """Names nothing of itself: PyTorch's code reads it."""

    def __init__(self) -> None:
        super().__init__(Rows(), list(range(96)))


def test_what_a_library_reads_of_data_is_not_known(begin: Begin) -> None:
    chosen = Chosen()
    assert "dataset.indices" in left_out(begin, chosen, lambda: chosen.indices.append(0)).get("num_workers", "")


class Dumped(Optioned):
    """Reads all of them."""

    def __getitem__(self, index: int) -> Any:
        return self.x[index] * sum(vars(self.options).values()), self.y[index]


@pytest.mark.parametrize(
    ("kind", "counted", "refused"), [(Optioned, "step", False), (Optioned, "scale", True), (Dumped, "step", True)]
)
def test_an_option_that_reading_does_not_name_may_change(
    begin: Begin, kind: Callable[[Any], Any], counted: str, refused: bool
) -> None:
    options = Namespace(scale=1.0, step=0)

    def count() -> None:
        vars(options)[counted] += 1 / 1024

    assert ("num_workers" in left_out(begin, kind(options), count)) == refused


@pytest.mark.parametrize(("counted", "lasts"), [("step", True), ("scale", False)])
def test_workers_last_where_only_such_an_option_changes(counted: str, lasts: bool) -> None:
    """Each epoch's were ended."""
    options, watch = Namespace(scale=1, step=0), CopyWatch()
    loader = torch.utils.data.DataLoader(Optioned(options), batch_size=48, num_workers=1, persistent_workers=True)
    watch.renew(loader)
    assert len(list(loader)) == 2
    workers = loader._iterator
    vars(options)[counted] += 1
    watch.renew(loader)
    assert (loader._iterator is workers) == lasts
    if lasts:
        workers._shutdown_workers()
