"""What a config's loader may read: data that stay what they are, of epochs that end as written."""

from __future__ import annotations

import io
import multiprocessing
import random
import sqlite3
from collections.abc import Callable
from typing import Any

import pytest
from support.own_loaders import BATCH, NONE, ONE, SAMPLES, TWO, Numbers, Script, script
from support.torch_trials import begin
from torch.utils.data import DataLoader

from tuner.child.torch import loader_workers
from tuner.child.torch.own_data import CHANGED

__all__ = ["begin", "script"]
pytestmark = pytest.mark.usefixtures("torch_settings_kept", "begin")


class More(Numbers):
    """The last batch of an epoch is short."""

    def __len__(self) -> int:
        return SAMPLES + 2


def sizes(ours: Script) -> list[int]:
    return [len(numbers) for numbers in ours.epoch()]


# data that change


class Growing(Numbers):
    """``begins``: the number of its first sample."""

    begins = 0

    def __getitem__(self, index: int) -> tuple[int, int]:
        number, pid = super().__getitem__(index)
        return number + self.begins, pid


def of_the_epoch(ours: Script, first: int, *, then: dict[str, Any] | None = None) -> None:
    for place, numbers in enumerate(ours.epoch()):
        assert all(first <= number < first + 1000 for number in numbers), "samples of this epoch"
        if place == 3 and then is not None:
            ours.switcher.to(then)


@pytest.mark.slow  # 5 s beside three others
@pytest.mark.parametrize("loader", [{}, {"num_workers": 1}], ids=["itself", "workers"])
def test_data_that_the_script_changes_between_epochs_end_all_turns(
    script: Callable[..., Script], loader: dict[str, Any]
) -> None:
    data = Growing()
    ours = script(data, **loader)
    of_the_epoch(ours, 0, then=TWO)
    of_the_epoch(ours, 0)
    data.begins = 1000
    of_the_epoch(ours, 1000)
    assert ours.switcher.doubt(TWO) == CHANGED
    assert CHANGED in ours.switcher.refusal(ONE)
    ours.switcher.leave(TWO)
    with pytest.raises(RuntimeError, match=CHANGED):
        ours.switcher.to(ONE)
    ours.switcher.to({})
    of_the_epoch(ours, 1000)


def test_another_dataset_with_each_epoch_ends_all_turns(script: Callable[..., Script]) -> None:
    ours = script()
    for epoch in (0, 1, 2):
        data = Growing()
        data.begins = 1000 * epoch
        ours.loader = DataLoader(data, batch_size=BATCH, shuffle=True)
        of_the_epoch(ours, data.begins, then=None if epoch else TWO)
    assert ours.switcher.doubt(TWO) == CHANGED


def test_a_loader_of_another_place_ends_the_turns_of_those_of_the_first(script: Callable[..., Script]) -> None:
    ours = script(Growing())
    of_the_epoch(ours, 0, then=TWO)
    data = Growing()
    data.begins = 1000
    ours.loader = DataLoader(data, batch_size=BATCH, shuffle=True)
    for _ in range(3):
        of_the_epoch(ours, 1000)
    assert ours.switcher.doubt(TWO) == "another loader of the script trains by now"


def test_a_change_before_the_first_turn_is_known_in_it(script: Callable[..., Script]) -> None:
    data = Growing()
    ours = script(data)
    for first in (0, 1000, 2000):
        data.begins = first
        epoch = ours.epoch()
        assert all(number >= first for number in next(epoch))
        refusal = ours.switcher.refusal(TWO)
        assert (CHANGED in refusal) is (first == 2000)  # the first epoch's beginning isn't known to be one of training
        of_the_rest = [number for numbers in epoch for number in numbers]
        assert min(of_the_rest) >= first


class Collated(Numbers):
    def collate(self, samples: list[Any]) -> Any:
        return DataLoader([0]).collate_fn(samples)


@pytest.mark.slow  # 2 s beside three others
def test_a_new_loader_of_the_same_data_is_served_on(script: Callable[..., Script]) -> None:
    data = Collated()
    ours = script(data, collate_fn=data.collate)
    for epoch in (0, 1, 2):
        ours.loader = DataLoader(data, batch_size=BATCH, shuffle=True, collate_fn=data.collate)
        ours.made_by.clear()
        of_the_epoch(ours, 0, then=None if epoch else TWO)
        assert not ours.switcher.doubt(TWO)
    assert len(set().union(*ours.made_by)) == 2


def test_what_is_refused_later_reaches_a_config_that_has_its_turns(script: Callable[..., Script]) -> None:
    ours = script()
    of_the_epoch(ours, 0, then=TWO)
    assert not ours.switcher.doubt(TWO)
    ours.trial.adapter.watches.loaders.sources.primary.refused["num_workers"] = "it changes while it is read"
    assert ours.switcher.doubt(TWO) == "it changes while it is read"


# files that are open


class Lazy(Numbers):
    """Opens its source with its first sample."""

    def __init__(self, opened: Callable[[], object]) -> None:
        self.opened = opened
        self.source: object = None

    def __getitem__(self, index: int) -> tuple[int, int]:
        self.source = self.source or self.opened()
        return super().__getitem__(index)


@pytest.mark.parametrize(
    ("opened", "loader", "refused"),
    [
        (lambda: io.FileIO(__file__), {}, True), (lambda: sqlite3.connect(":memory:"), {}, True),
        (lambda: io.BytesIO(b"in memory"), {}, False),
        (lambda: io.FileIO(__file__), {"num_workers": 1}, False),  # it is open in the worker only
    ],
    ids=["file", "database", "in memory", "in a worker"],
)  # fmt: skip
def test_what_is_open_in_the_training_process_is_shared_with_no_worker(
    script: Callable[..., Script], opened: Callable[[], object], loader: dict[str, Any], *, refused: bool
) -> None:
    data = Lazy(opened)
    ours = script(data, **loader)
    epoch = ours.epoch()
    next(epoch), next(epoch)
    assert ("dataset.source is open" in ours.switcher.refusal(TWO)) is refused
    if refused:
        with pytest.raises(RuntimeError, match=r"dataset\.source is open"):
            ours.switcher.to(TWO)
        ours.switcher.to({})
    if isinstance(data.source, (io.IOBase, sqlite3.Connection)):
        data.source.close()


# where epochs end


@pytest.mark.slow  # 2 s beside three others
@pytest.mark.parametrize(
    "loader",
    [{}, pytest.param({"num_workers": 2}, marks=pytest.mark.slow),
     pytest.param({"num_workers": 2, "prefetch_factor": 4, "persistent_workers": True}, marks=pytest.mark.slow),
     # Of whole batches: test_own_loaders.py
     pytest.param({"num_workers": 2, "prefetch_factor": 5}, marks=pytest.mark.slow)],
    ids=["itself", "workers", "lasting", "nearly all asked for at once"],
)  # fmt: skip
@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (2, 3))])
def test_an_epoch_s_short_batch_is_its_last(script: Callable[..., Script], loader: dict[str, Any], seed: int) -> None:
    """Whoever's turn it is, and whoever's it was before."""
    ours = script(More(), **loader)
    whole = [BATCH] * (SAMPLES // BATCH)
    assert sizes(ours) == [*whole, 2]
    chance = random.Random(seed)
    counted = ours.trial.adapter.watches.loaders.sources.primary
    for _ in range(5):
        found = []
        before = counted.samples
        for numbers in ours.epoch():
            found.append(len(numbers))
            if chance.random() < 0.3:
                ours.switcher.to(chance.choice([{}, TWO, ONE, NONE]))
        assert found == [*whole, 2]
        assert counted.samples - before == SAMPLES + 2
    ours.switcher.end()
    assert sorted(number for batch in ours.epoch() for number in batch) == list(range(SAMPLES + 2))


def test_workers_that_last_give_whole_epochs_after_one_that_broke_off(script: Callable[..., Script]) -> None:
    ours = script(More(), num_workers=2, prefetch_factor=4, persistent_workers=True)
    assert len(sizes(ours)) == 12
    for config in (TWO, NONE):
        for place, _ in enumerate(ours.epoch()):
            if place == 1:
                ours.switcher.to(config)
            if place == 9:
                break
        ours.switcher.to({})
        before = ours.trial.adapter.watches.loaders.sources.primary.samples
        assert sorted(number for batch in ours.epoch() for number in batch) == list(range(SAMPLES + 2))
        assert ours.trial.adapter.watches.loaders.sources.primary.samples - before == SAMPLES + 2


class Batches:
    """A batch sampler of the script's own."""

    def __iter__(self) -> Any:
        return iter([[0, 1, 2], [3, 4], [5, 6, 7], [8]])

    def __len__(self) -> int:
        return 4


def test_batches_of_unknown_lengths_are_refused(script: Callable[..., Script]) -> None:
    ours = script(batch_size=1, shuffle=False, batch_sampler=Batches())
    epoch = ours.epoch()
    next(epoch)
    assert "PyTorch's own BatchSampler" in ours.switcher.refusal(TWO)


# memory

CONTAINERS = {
    "version 2": {
        "/proc/self/cgroup": "0::/pod/box\n", "/sys/fs/cgroup/pod/box/memory.max": "max\n",
        "/sys/fs/cgroup/pod/memory.max": "1000000000\n", "/sys/fs/cgroup/pod/memory.current": "400000000\n",
        "/sys/fs/cgroup/pod/memory.stat": "anon 300000000\ninactive_file 60000000\nactive_file 40000000\n",
    },
    "version 1": {
        "/proc/self/cgroup": "4:memory:/box\n2:cpu,cpuacct:/box\n0::/\n",
        "/sys/fs/cgroup/memory/box/memory.limit_in_bytes": "1000000000\n",
        "/sys/fs/cgroup/memory/box/memory.usage_in_bytes": "400000000\n",
        "/sys/fs/cgroup/memory/box/memory.stat": "total_inactive_file 60000000\ntotal_active_file 40000000\n",
        "/sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
    },
}  # fmt: skip


@pytest.mark.parametrize("container", [*CONTAINERS])
@pytest.mark.parametrize("free_kib", [4_000_000, 100_000], ids=["room beside it", "little beside it"])
def test_memory_is_what_the_container_has(monkeypatch: pytest.MonkeyPatch, container: str, free_kib: int) -> None:
    machine = f"MemTotal:  8000000 kB\nMemAvailable: {free_kib} kB\n"
    files = {**CONTAINERS[container], "/proc/meminfo": machine}
    monkeypatch.setattr(loader_workers, "read_text", lambda path: files.get(path, ""))
    assert loader_workers.machine_memory() == (min(700_000_000, free_kib * 1024), 1_000_000_000)
    files["/proc/self/cgroup"] = ""
    assert loader_workers.machine_memory() == (free_kib * 1024, 8_000_000 * 1024)


# what methods name of globals

LOCK = multiprocessing.Lock()
CONTEXT = multiprocessing.get_context("fork")
SOURCE = io.BytesIO(b"")


def locked(number: int) -> int:
    with LOCK:
        return number


class Locking(Numbers):
    """Through a function of the script's."""

    def __getitem__(self, index: int) -> tuple[int, int]:
        return super().__getitem__(locked(index))


class Reading(Numbers):
    def __getitem__(self, index: int) -> tuple[int, int]:
        return super().__getitem__(index + len(SOURCE.read()))


class Harmless(Numbers):
    def __getitem__(self, index: int) -> tuple[int, int]:
        assert CONTEXT.get_start_method() == "fork"
        return super().__getitem__(index)


def collated(samples: list[Any]) -> Any:
    return DataLoader([0]).collate_fn([*map(tuple, samples)][: locked(len(samples))])


@pytest.mark.parametrize(("data", "more"), [(Locking(), {}), (Numbers(), {"collate_fn": collated})])
def test_a_lock_that_only_a_global_holds_is_seen(
    script: Callable[..., Script], data: Any, more: dict[str, Any]
) -> None:
    """A worker that is stopped while it has it would keep the training process waiting for good."""
    ours = script(data, **more)
    next(epoch := ours.epoch()), next(epoch)
    assert "a Lock that its data use is shared by processes" in ours.switcher.refusal(TWO)
    with pytest.raises(RuntimeError, match="shared by processes"):
        ours.switcher.to(TWO)
    ours.switcher.to({})


@pytest.mark.parametrize(
    ("opened", "loader", "refused"),
    [(True, {}, True), (False, {}, False), (True, {"num_workers": 2}, False)],
    ids=["a file", "in memory", "several workers as written"],
)  # fmt: skip
def test_a_file_that_only_a_global_holds_is_seen(
    script: Callable[..., Script], monkeypatch: pytest.MonkeyPatch, loader: dict[str, Any], *, opened: bool,
    refused: bool,
) -> None:
    with io.FileIO(__file__) as file:
        file.seek(0, io.SEEK_END)
        monkeypatch.setitem(globals(), "SOURCE", file if opened else SOURCE)
        ours = script(Reading(), **loader)
        next(epoch := ours.epoch()), next(epoch)
        assert ("SOURCE is open" in ours.switcher.refusal(TWO)) is refused


def test_what_is_no_lock_is_none(script: Callable[..., Script]) -> None:
    ours = script(Harmless())
    next(epoch := ours.epoch()), next(epoch)
    assert not ours.switcher.refusal(TWO)
