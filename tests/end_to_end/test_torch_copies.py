"""Data that workers can't copy: random generators of their own, what changes while it is read or between epochs."""

from __future__ import annotations

import functools
import json
import multiprocessing as mp
import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.copied_data import Begin, Rows, left_out
from support.torch_trials import begin

__all__ = ["begin"]


class Jitter:
    """Noise from a generator of its own."""

    def __init__(self, generator: Any) -> None:
        self.generator = generator

    def __call__(self, x: Any) -> Any:
        return x + float(self.generator.random())


CHANCE = np.random.default_rng(0)
NOISE = Jitter(random.Random(0))


class Drawing(Rows):
    """Draws from a generator that stands beside it in the script."""

    def __getitem__(self, index: int) -> Any:
        x, y = super().__getitem__(index)
        return self.moved(x), y

    def moved(self, x: Any) -> Any:
        return x + float(CHANCE.random())


def shaken(items: list[Any]) -> Any:
    """A ``collate_fn`` that uses an object of the script, which draws from a generator of its own."""
    return tuple(torch.stack(column) for column in zip(*((NOISE(x), y) for x, y in items), strict=True))


class Shuffled(Rows):
    """Draws while it is made, and never again."""

    def __init__(self) -> None:
        super().__init__()
        self.rng = np.random.default_rng(0)
        self.x = self.x[self.rng.permutation(96).tolist()]


def noisy(x: Any) -> Any:
    """Draws from what PyTorch seeds in each worker."""
    return x + random.random() + float(np.random.random()) + torch.rand(1)


class Opened(Rows):
    """Opens its file with the first sample, as data that are meant for workers do."""

    def __init__(self) -> None:
        super().__init__()
        self.file: Any = None

    def __getitem__(self, index: int) -> Any:
        self.file = self.file or Path(__file__).read_text(encoding="utf-8")
        return super().__getitem__(index)


class Kept(Rows):
    """Keeps each sample that it has made once, in a list and a dictionary."""

    def __init__(self) -> None:
        super().__init__()
        self.listed: list[Any] = [None] * 96
        self.named: dict[int, Any] = {}

    def __getitem__(self, index: int) -> Any:
        self.listed[index] = self.named[index] = super().__getitem__(index)
        return self.listed[index]


class Remembered(Rows):
    """Likewise, by a decorator."""

    @functools.lru_cache(maxsize=None)  # noqa: B019, UP033  # as scripts have it
    def row(self, index: int) -> Any:
        return super().__getitem__(index)

    def __getitem__(self, index: int) -> Any:
        return self.row(index)


class Counting(Rows):
    """Makes each sample a little harder than the one before."""

    calls = 0

    def __getitem__(self, index: int) -> Any:
        self.calls += 1
        x, y = super().__getitem__(index)
        return x * (1 + self.calls / 1000), y


class Weighted(torch.utils.data.Sampler[int]):  # type: ignore[misc]  # likewise
    """Draws what was learned worst, as the training tells it."""

    def __init__(self) -> None:
        self.losses = [1.0] * 96

    def __iter__(self) -> Iterator[int]:
        return iter(random.choices(range(96), self.losses, k=96))

    def __len__(self) -> int:
        return 96

    def update(self, index: int, loss: float) -> None:
        self.losses[index] = loss


@pytest.mark.parametrize(
    ("made", "path"),
    [
        (lambda: Rows(Jitter(np.random.default_rng(0))), "dataset.transform.generator"),
        (lambda: Rows(Jitter(np.random.RandomState(0))), "dataset.transform.generator"),
        (lambda: Rows(Jitter(random.Random(0))), "dataset.transform.generator"),
        (lambda: torch.utils.data.Subset(Rows(Jitter(random.Random(0))), list(range(64))), "dataset.dataset.transform"),
    ],
)
def test_a_generator_of_its_own_isn_t_copied(begin: Begin, made: Callable[[], Any], path: str) -> None:
    found = left_out(begin, made())
    assert found.keys() == {"num_workers", "persistent_workers"}
    assert found["num_workers"].startswith(path)
    assert "which every worker would copy" in found["num_workers"]


def test_a_generator_in_a_closure_is_found(begin: Begin) -> None:
    chance = np.random.default_rng(0)
    found = left_out(begin, Rows(lambda x: x + float(chance.random())))
    assert found["num_workers"].startswith("dataset.transform.chance draws")


@pytest.mark.parametrize(
    ("made", "options", "path"),
    [(Drawing, {}, "CHANCE draws"), (Rows, {"collate_fn": shaken}, "NOISE.generator draws")],
)
def test_a_generator_that_stands_beside_the_data_is_found(
    begin: Begin, made: Callable[[], Any], options: dict[str, Any], path: str
) -> None:
    found = left_out(begin, made(), **options)
    assert found.keys() == {"num_workers", "persistent_workers"}
    assert path in found["num_workers"]


@pytest.mark.parametrize(("made", "path"), [(Kept, "dataset.listed"), (Remembered, "dataset.row")])
def test_data_that_keep_what_is_read_are_told(begin: Begin, made: Callable[[], Any], path: str) -> None:
    """The rate of a first epoch is none of later ones, which find everything there."""
    found = left_out(begin, made())
    assert found.keys() == {"remarks"} and found["remarks"].startswith(f"{path} keeps what is read: ")


@pytest.mark.parametrize("made", [Rows, lambda: Rows(noisy), Shuffled, Opened])
def test_what_each_worker_may_copy_is_left_to_workers(begin: Begin, made: Callable[[], Any]) -> None:
    assert left_out(begin, made()) == {}


def test_a_script_that_seeds_its_workers_knows_what_it_does(begin: Begin) -> None:
    dataset = Rows(Jitter(np.random.default_rng(0)))
    assert left_out(begin, dataset, worker_init_fn=lambda worker: None) == {}


def test_data_that_change_while_they_are_read_stay_in_the_training_process(begin: Begin) -> None:
    counted = left_out(begin, Counting())["num_workers"]
    assert counted.startswith("dataset.calls changes while the data are read")
    told = Rows()

    def learn() -> None:
        told.x[0] += 1.0  # the training writes into its own data

    assert left_out(begin, told, learn)["num_workers"].startswith("dataset.x changes")


@pytest.mark.parametrize("made", [lambda: mp.Array("d", [1.0] * 96), lambda: mp.Array("d", [1.0] * 96, lock=False)])
def test_what_the_training_shares_with_its_data_is_not_read_ahead(begin: Begin, made: Callable[[], Any]) -> None:
    """A curriculum by ``multiprocessing.Value``: workers that read ahead of the loop would go by an earlier one."""
    level, levels = mp.Value("d", 1.0), made()

    def easier() -> None:
        level.value *= 0.9
        levels[:] = [value / 2 for value in levels]

    assert "level changes" in left_out(begin, Rows(lambda x: x * level.value), easier)["num_workers"]
    assert "levels changes" in left_out(begin, Rows(lambda x: x * levels[0]), easier)["num_workers"]
    assert left_out(begin, Rows(lambda x: x * level.value * levels[0])) == {}


def test_a_large_shared_array_is_looked_at_as_a_small_one(begin: Begin) -> None:
    """The look at it failed without a word, as for pictures that all processes keep in one."""
    kept = mp.Array("f", 1 << 19)
    shared = torch.frombuffer(kept.get_obj(), dtype=torch.float32)
    assert "kept changes" in left_out(begin, Rows(lambda x: x + 0 * kept[0]), lambda: shared.add_(1))["num_workers"]
    assert left_out(begin, Rows(lambda x: x + 0 * kept[0])) == {}


def test_what_a_trainer_counts_is_nothing_that_a_batch_is_made_of(begin: Begin) -> None:
    """As in accelerate's own examples: how they pad depends on the trainer's precision."""
    import accelerate

    accelerator = accelerate.Accelerator(cpu=True)

    def collate(rows: list[Any]) -> Any:
        return torch.utils.data.default_collate(rows) if accelerator.mixed_precision == "no" else rows

    def learn() -> None:
        accelerator.step += 1

    assert left_out(begin, Rows(), learn, collate_fn=collate) == {}


def test_what_a_script_changes_between_epochs_is_no_change_by_reading(begin: Begin) -> None:
    dataset, read = Rows(), 0

    def learn() -> None:
        nonlocal read
        read += 1
        if read == 24:
            dataset.x[0] += 1.0

    assert left_out(begin, dataset, learn) == {}


def test_a_sampler_that_learns_isn_t_asked_ahead(begin: Begin) -> None:
    found = left_out(begin, Rows(), sampler=Weighted())
    assert found["num_workers"].startswith("Weighted.update may tell it of the training")
    assert found["prefetch_factor"] == found["num_workers"]
    plain = torch.utils.data.RandomSampler(Rows())
    assert left_out(begin, Rows(), sampler=plain) == {}


LASTING = """
    import sys, json, torch
    class Growing(torch.utils.data.Dataset):
        def __init__(self):
            self.size, self.table = 4, torch.zeros(8)
        def __len__(self):
            return 32
        def __getitem__(self, index):
            return torch.full((2,), float(self.size)), self.table[0], torch.utils.data.get_worker_info().seed
    data = Growing()
    train = torch.utils.data.DataLoader(data, batch_size=8, shuffle=True, num_workers=2)
    seen = []
    for epoch in range(6):
        if epoch in (2, 3):
            data.size += 1
        if epoch == 4:
            data.table += 7
        seeds = set()
        for x, y, seed in train:
            seeds.update(seed.tolist())
        seen.append([float(x.max()), float(y.max()), sorted(seeds)])
    print("seen", json.dumps(seen), train.persistent_workers)
"""


BESIDE = (
    LASTING.replace("import sys,", "import types,")
    .replace("self.size, self.table = 4, ", "self.table = ")
    .replace("self.size", "args.size")
    .replace("data.size", "args.size")
    .replace("data = Growing()", "data, args = Growing(), types.SimpleNamespace(size=4, steps=0)")
    .replace("seeds.update", "args.steps += 1; seeds.update")
)
"""Where the size is an option of the script's, among others that change with each step."""


@pytest.mark.parametrize(
    "text", [pytest.param(LASTING, marks=pytest.mark.slow), BESIDE], ids=["of the data", "beside them"]
)
def test_lasting_workers_see_what_the_script_changes_between_epochs(
    write_script: Callable[..., Path], run_child: Callable[..., Any], text: str
) -> None:
    """Progressive resizing, a curriculum, another epoch's draws: workers that live on would never hear of it."""
    run = run_child(write_script(text), {"persistent_workers": True}, mode="apply")
    assert run.returncode == 8, run.output  # it trains nothing
    told = re.search(r"seen (.*) True", run.output)
    assert told, run.output
    seen = json.loads(told[1])
    assert [epoch[:2] for epoch in seen] == [[4, 0], [4, 0], [5, 0], [6, 0], [6, 7], [6, 7]]
    workers = [epoch[2] for epoch in seen]
    assert workers[0] == workers[1] and workers[4] == workers[5], "as long as nothing changes they live on"
    assert workers[1] != workers[2]


def test_deterministic_algorithms_keep_cudnn_from_choosing(begin: Begin) -> None:
    torch.backends.cudnn.deterministic = True
    try:
        trial = begin()
        model = torch.nn.Linear(5, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for x, y in torch.utils.data.DataLoader(Rows(), batch_size=4):
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
        assert trial.end()["left_out"]["cudnn_benchmark"] == "the script asks for deterministic algorithms"
    finally:
        torch.backends.cudnn.deterministic = False


COUNTING = """
    import random, torch
    from torch.utils.data import DataLoader, IterableDataset, get_worker_info

    class Stream(IterableDataset):
        epoch = 0

        def __iter__(self):
            numbers = list(range(64))
            random.Random(self.epoch).shuffle(numbers)
            COUNTS
            worker = get_worker_info()
            own = numbers[worker.id::worker.num_workers] if worker else numbers
            yield from (torch.full((4,), float(n)) for n in own)

    class Around(IterableDataset):
        def __init__(self, stream):
            self.stream = stream

        def __iter__(self):
            get_worker_info()
            return iter(self.stream)

    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    loader = DataLoader(Around(Stream()), batch_size=8, num_workers=WORKERS)
    for epoch in range(3):
        for number, batch in enumerate(loader):
            print("begins with", batch[0, 0].item(), flush=True) if number == 0 else None
            optimizer.zero_grad()
            model(batch).mean().backward()
            optimizer.step()
"""


@pytest.mark.parametrize(
    "counts",
    [
        "self.epoch += 1",
        pytest.param("self.epoch = self.epoch + 1", marks=pytest.mark.slow),
        pytest.param("pass", marks=pytest.mark.slow),
    ],
)
def test_data_that_count_their_epochs_are_read_where_they_count(
    run_child: Callable[..., Any], write_script: Callable[..., Path], counts: str
) -> None:
    """Each worker would count a copy of its own, and every epoch would be the first one."""
    text, counted = COUNTING.replace("COUNTS", counts), counts != "pass"
    script = write_script(text.replace("WORKERS", "0"))
    facts = run_child(script, window={"max_s": 0.1}).facts
    known = {"training_loaders": facts["training_loaders"]}
    assert ("counted up" in facts["left_out"].get("persistent_workers", "")) is counted
    ran = run_child(script, {"num_workers": 1}, mode="apply", knowledge=known)
    assert len({*re.findall("begins with .*", ran.output)}) == (3 if counted else 1), ran.output
    assert ("in effect: num_workers (Stream.epoch is counted up" in ran.output) is counted
    script = write_script(text.replace("WORKERS", "1"))
    lasting = {"num_workers": 1, "persistent_workers": True}
    ran = run_child(script, lasting, mode="apply", knowledge=known)
    assert len({*re.findall("begins with .*", ran.output)}) == 1, "as under plain Python"
