"""What workers would copy that is no plain attribute of the data, and what a sampler is told beside its methods."""

from __future__ import annotations

import functools
import itertools
import os
import random
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from support.copied_data import Begin, Rows, left_out
from support.torch_trials import begin

__all__ = ["begin"]
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")  # archives that go with the cache that holds them


class Transformed(Rows):
    """Gives each row what a function of its index makes of it."""

    def __init__(self, change: Callable[[Any, int], Any]) -> None:
        super().__init__()
        self.change = change

    def __getitem__(self, index: int) -> Any:
        return self.change(self.x[index], index), self.y[index]


class Blended(Rows):
    """Blends each row with the one before."""

    def __init__(self) -> None:
        super().__init__()
        self.before = torch.zeros(5)

    def __getitem__(self, index: int) -> Any:
        x, self.before = (self.x[index] + self.before) / 2, self.x[index]
        return x, self.y[index]


class Marked(Rows):
    """Weighs each row by how many have been read."""

    def __init__(self, marks: Any) -> None:
        super().__init__()
        self.marks = marks

    def __getitem__(self, index: int) -> Any:
        self.marks.add(index) if isinstance(self.marks, set) else self.marks.__setitem__(index, 1)
        return self.x[index] * len(self.marks) / 96, self.y[index]


def weakening(x: Any) -> Any:
    """Counts its calls in an attribute of its own."""
    weakening.calls += 1  # type: ignore[attr-defined]  # set below
    return x / weakening.calls  # type: ignore[attr-defined]  # likewise


weakening.calls = 1  # type: ignore[attr-defined]  # as scripts have it


class Deep(torch.nn.Module):  # type: ignore[misc]  # PyTorch may lack types where this is checked
    """A model whose weights lie some modules deep."""

    def __init__(self) -> None:
        super().__init__()
        self.body = torch.nn.Sequential(torch.nn.Sequential(torch.nn.Sequential(torch.nn.Linear(5, 1))))

    def forward(self, x: Any) -> Any:
        return self.body(x)


@pytest.mark.parametrize("write", ["data", "numpy"])
def test_writes_that_pytorch_does_not_count_are_seen(begin: Begin, write: str) -> None:
    told = Rows()
    written = told.x.data if write == "data" else told.x.numpy()

    def learn() -> None:
        written[0] += 1.0

    assert left_out(begin, told, learn)["num_workers"].startswith("dataset.x changes")


def test_a_row_that_is_kept_for_the_next_one_is_seen(begin: Begin) -> None:
    assert left_out(begin, Blended())["num_workers"].startswith("dataset.before")


@pytest.mark.parametrize("marks", [set(), bytearray(96)], ids=["set", "bytes"])
def test_sets_and_bytes_that_change_are_seen(begin: Begin, marks: Any) -> None:
    assert left_out(begin, Marked(marks))["num_workers"].startswith("dataset.marks changes")


def test_a_function_that_counts_its_calls_is_seen(begin: Begin) -> None:
    assert "calls changes" in left_out(begin, Rows(weakening))["num_workers"]
    assert "calls changes" in left_out(begin, Transformed(lambda x, _: weakening(x)))["num_workers"]


class Trainer:
    """Makes the batches by one of its methods, and keeps much besides."""

    def __init__(self) -> None:
        self.step, self.losses, self.scale = 0, [0.0], 2.0
        self.model = torch.nn.Linear(5, 1)

    def collate(self, rows: list[Any]) -> Any:
        x, y = torch.utils.data.default_collate(rows)
        return self.scaled(x), y

    def scaled(self, x: Any) -> Any:
        return x * self.scale

    def learn(self) -> None:
        self.step += 1
        self.losses.append(0.0)
        with torch.no_grad():
            self.model.weight += 0.1


class Curriculum(Trainer):
    """Makes them by how far it is, which a function of the script's is told."""

    def scaled(self, x: Any) -> Any:
        return x * progress(self)


class Heir(Curriculum):
    """Has what it inherits make them."""

    def collate(self, rows: list[Any]) -> Any:
        return super().collate(rows)


class Keyed(Trainer):
    """Reads its settings by their names, of which one is that of an attribute."""

    def __getitem__(self, name: str) -> float:
        return self.scale if name == "model" else float(self.step)

    def scaled(self, x: Any) -> Any:
        return x / (1 + self["losses"])


def progress(trainer: Trainer) -> float:
    return 1 / (1 + trainer.step)


def test_of_the_object_that_makes_batches_counts_what_it_makes_them_of(begin: Begin) -> None:
    """The steps that it counts, and its model, were said to be copied by each worker."""
    trainer = Trainer()
    assert left_out(begin, Rows(), trainer.learn, collate_fn=trainer.collate) == {}


@pytest.mark.parametrize("kind", [Curriculum, Heir, Keyed])
def test_an_object_whose_methods_may_read_all_of_it_counts_as_a_whole(begin: Begin, kind: type[Trainer]) -> None:
    """What ``super()`` is given and ``self[...]`` calls stands nowhere by name: nothing was looked at."""
    trainer = kind()
    found = left_out(begin, Rows(), trainer.learn, collate_fn=trainer.collate)
    assert found["num_workers"].startswith("collate_fn.__self__.step changes")


def test_a_model_that_chooses_the_samples_is_seen_however_deep_its_weights_lie(begin: Begin) -> None:
    model = Deep()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def hardest(rows: list[Any]) -> Any:
        x, y = torch.utils.data.default_collate(rows)
        with torch.no_grad():
            chosen = model(x)[:, 0].argsort()[:2]
        return x[chosen], y[chosen]

    def learn() -> None:
        optimizer.zero_grad()
        model(torch.ones(1, 5)).sum().backward()
        optimizer.step()

    assert "changes while the data are read" in left_out(begin, Rows(), learn, collate_fn=hardest)["num_workers"]


@pytest.mark.parametrize(
    "made", [itertools.count, lambda: iter([0.5] * 999), lambda: (1 / (n + 1) for n in range(999))]
)
def test_an_iterator_is_gone_through_by_one_process(begin: Begin, made: Callable[[], Iterator[float]]) -> None:
    numbers = made()
    found = left_out(begin, Transformed(lambda x, _: x * (next(numbers) % 3)))
    assert found.keys() == {"num_workers", "persistent_workers"}
    assert found["num_workers"].startswith("dataset.change.numbers is an iterator")


def test_what_the_system_draws_is_each_worker_s_own(begin: Begin) -> None:
    chance = random.SystemRandom()
    assert left_out(begin, Rows(lambda x: x + chance.random())) == {}


@functools.lru_cache(maxsize=None)  # noqa: UP033  # as scripts have it
def opened(path: Path) -> zipfile.ZipFile:
    """The archive, opened once."""
    return zipfile.ZipFile(path)


@pytest.mark.parametrize("size", [0, 4], ids=["of the script", "few"])
def test_an_archive_that_a_cached_function_has_open_is_found(begin: Begin, tmp_path: Path, size: int) -> None:
    with zipfile.ZipFile(tmp_path / "rows.zip", "w") as file:
        for index in range(96):
            file.writestr(str(index), bytes([index]))

    if size:
        archive = functools.lru_cache(maxsize=size)(opened.__wrapped__)
        data = Transformed(lambda x, index: x + archive(tmp_path / "rows.zip").read(str(index))[0] / 96)
    else:
        data = Transformed(lambda x, index: x + opened(tmp_path / "rows.zip").read(str(index))[0] / 96)
    assert left_out(begin, data) == {}, "each worker opens its own"
    data[0]
    found = left_out(begin, data)
    assert found.keys() == {"num_workers"} and " is open" in found["num_workers"]


def test_a_descriptor_whose_place_is_moved_is_found(begin: Begin, tmp_path: Path) -> None:
    (tmp_path / "rows").write_bytes(bytes(range(96)))
    descriptor = os.open(tmp_path / "rows", os.O_RDONLY)

    def read(x: Any, index: int) -> Any:
        os.lseek(descriptor, index, os.SEEK_SET)
        return x + os.read(descriptor, 1)[0] / 96

    try:
        found = left_out(begin, Transformed(read))
        assert found.keys() == {"num_workers"} and "descriptor is open" in found["num_workers"]
        assert left_out(begin, Transformed(lambda x, index: x + os.pread(descriptor, 1, index)[0] / 96)) == {}
    finally:
        os.close(descriptor)


OPEN: Any = None  # a variable of the module, as scripts have it: set by each test


class Seeking(Rows):
    """Reads each row by a file that is no attribute of its own."""

    def __getitem__(self, index: int) -> Any:
        OPEN.seek(index)
        return self.x[index] + len(OPEN.read(1)), self.y[index]


class Scaled(list[Any]):
    scale = 1.0


class Asking(Rows):
    """Has each row changed by a function, or by what a list holds, that is no attribute of its own."""

    def __getitem__(self, index: int) -> Any:
        change = OPEN[0].random() * OPEN.scale if isinstance(OPEN, Scaled) else OPEN(index)
        return self.x[index] + change, self.y[index]


def _read_at(file: Any, index: int) -> float:
    file.seek(index)
    return len(file.read(1)) / 96


@pytest.mark.parametrize("mode", ["r", "rb"])
def test_a_variable_that_is_an_open_file_is_found(
    begin: Begin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    """Its attributes, of which it has none, stood for it: workers were offered that read at each other's places."""
    (tmp_path / "rows").write_bytes(bytes(range(96)))
    with (tmp_path / "rows").open(mode) as file:
        monkeypatch.setattr(f"{__name__}.OPEN", file)
        found = left_out(begin, Seeking())
        assert found.keys() == {"num_workers"} and found["num_workers"].startswith("OPEN is open")
        monkeypatch.setattr(f"{__name__}.OPEN", functools.partial(_read_at, file))
        assert " is open" in left_out(begin, Asking())["num_workers"]


def test_what_a_list_with_attributes_holds_in_a_variable_is_found(
    begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{__name__}.OPEN", Scaled([random.Random(1)]))
    assert "draws random numbers" in left_out(begin, Asking())["num_workers"]


class Shares(torch.utils.data.IterableDataset[Any]):  # type: ignore[misc]  # likewise
    """Gives each worker its share, as a method of its own says."""

    def share(self) -> range:
        worker = torch.utils.data.get_worker_info()
        return range(96) if worker is None else range(worker.id, 96, worker.num_workers)

    def __iter__(self) -> Iterator[Any]:
        return ((torch.full((5,), number / 96), torch.zeros(1)) for number in self.share())


class Asks(torch.utils.data.IterableDataset[Any]):  # type: ignore[misc]  # likewise
    """Asks for both by their names in strings, since there are none without workers."""

    def __iter__(self) -> Iterator[Any]:
        worker = torch.utils.data.get_worker_info()
        share = range(getattr(worker, "id", 0), 96, getattr(worker, "num_workers", 1))
        return ((torch.full((5,), number / 96), torch.zeros(1)) for number in share)


class Told(Shares):
    """Is told of how many by the script, and with more of them gives what others give as well."""

    def __init__(self) -> None:
        self.num_workers = 1

    def share(self) -> range:
        worker = torch.utils.data.get_worker_info()
        return range(worker.id if worker else 0, 96, self.num_workers)


class Asked(Told):
    """Keeps what it asked for."""

    def share(self) -> range:
        worker = torch.utils.data.get_worker_info()
        self.num_workers = worker.num_workers if worker else 1
        return range(worker.id if worker else 0, 96, self.num_workers)


class Seeds(torch.utils.data.IterableDataset[Any]):  # type: ignore[misc]  # likewise
    """Gives each worker as many samples, of its own seed: with more of them an epoch is longer."""

    def __iter__(self) -> Iterator[Any]:
        worker = torch.utils.data.get_worker_info()
        chance = random.Random(worker.id if worker else 0)
        return ((torch.full((5,), chance.random()), torch.zeros(1)) for _ in range(96))


@pytest.mark.parametrize(
    ("made", "shares"), [(Shares, True), (Asks, True), (Told, False), (Asked, True), (Seeds, False)]
)
def test_a_stream_is_shared_out_where_the_number_of_workers_counts(
    begin: Begin, made: Callable[[], Any], shares: bool
) -> None:
    assert ("every worker would repeat" in left_out(begin, made()).get("num_workers", "")) is not shares


class Hardest:
    """Batches of what is hardest as each of them is asked for; the loop writes how hard it was."""

    def __init__(self, hard: Any) -> None:
        self.hard = hard
        self.given, self.pool = 0, [0]

    def __len__(self) -> int:
        return 24

    def __iter__(self) -> Iterator[list[int]]:
        for _ in range(24):
            self.given += 1
            self.pool += [self.given] if self.given % 7 == 0 else []
            yield torch.multinomial(self.hard, 4).tolist()


class Configured(Hardest):
    """Keeps what its script writes, and gives its batches without it."""

    def __init__(self, hard: Any) -> None:
        self.hard = hard

    def __iter__(self) -> Iterator[list[int]]:
        return iter(torch.arange(96).split(4))


@pytest.mark.parametrize("workers", [0, 1])
def test_a_sampler_whose_weights_the_loop_writes_is_not_asked_ahead(begin: Begin, workers: int) -> None:
    assert _sampled(begin, workers, writes=True) == {"num_workers", "prefetch_factor"}


def test_what_a_sampler_changes_by_itself_is_no_matter(begin: Begin) -> None:
    assert _sampled(begin, 0, writes=False) == set()


def test_what_a_sampler_has_and_does_not_read_is_no_matter(begin: Begin) -> None:
    """As the options of the script, in which it counts its steps."""
    assert _sampled(begin, 0, Configured, writes=True) == set()


def _sampled(begin: Begin, workers: int, kind: type[Hardest] = Hardest, *, writes: bool) -> set[str]:
    """The knobs that a script leaves out for its batch sampler."""
    hard, trial = torch.ones(96), begin()
    loader = torch.utils.data.DataLoader(Rows(), batch_sampler=kind(hard), num_workers=workers)
    model = torch.nn.Linear(5, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for x, y in loader:
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
        if writes:
            hard[0] += 1.0
    told = trial.end()["left_out"]
    return {knob for knob in ("num_workers", "prefetch_factor") if "hard changes" in told.get(knob, "")}
