"""Configs of a rotation have loaders of their own: the script gets valid batches of its own data, and whole epochs."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from support.own_loaders import BATCH, NONE, ONE, SAMPLES, TWO, Numbers, Script, Slow, script, state_of
from support.torch_trials import begin
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from tuner.child.session import Session
from tuner.child.torch import own_loaders

__all__ = ["begin", "script"]

pytestmark = pytest.mark.usefixtures("torch_settings_kept", "begin")


def in_turns(script: Script, switcher: Any, *, epochs: int, seed: int, every: float = 0.3) -> None:
    """Trains in configs that change at random, and looks at each epoch."""
    chance = random.Random(seed)
    for _ in range(epochs):
        batches = []
        for numbers in script.epoch():
            batches.append(numbers)
            if chance.random() < every:
                switcher.to(chance.choice([{}, TWO, ONE, NONE]))
        assert len(batches) == len(script.loader), "an epoch is as long as written"
        assert all(0 <= number < SAMPLES for batch in batches for number in batch)
        assert all(len(set(batch)) == len(batch) == BATCH for batch in batches), "batches are those of the sampler"


@pytest.mark.slow  # 2 s beside three others
@pytest.mark.parametrize(
    "loader",
    [
        {}, pytest.param({"num_workers": 2}, marks=pytest.mark.slow),
        pytest.param({"num_workers": 2, "persistent_workers": True}, marks=pytest.mark.slow),
        pytest.param({"num_workers": 1, "shuffle": False}, marks=pytest.mark.slow),
        pytest.param({"num_workers": 2, "prefetch_factor": 5}, marks=pytest.mark.slow),
    ],
    ids=["itself", "workers", "lasting", "in order", "nearly all asked for at once"],
)  # fmt: skip
@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_an_epoch_is_as_long_as_written_whoever_makes_its_batches(
    script: Callable[..., Script], loader: dict[str, Any], seed: int
) -> None:
    ours = script(**loader)
    for _ in ours.epoch():
        pass
    switcher = ours.switcher
    in_turns(ours, switcher, epochs=6, seed=seed)
    pids = set().union(*ours.made_by)
    assert len(pids - {os.getpid()}) >= 3, "workers of both configs made some"
    switcher.end()
    ours.made_by.clear()
    assert sorted(number for batch in ours.epoch() for number in batch) == list(range(SAMPLES)), "its own, each once"
    if not loader:
        assert set().union(*ours.made_by) == {os.getpid()}


def test_a_turn_is_served_by_its_own_workers(script: Callable[..., Script]) -> None:
    ours = script()
    epoch = ours.epoch()
    for _ in range(3):
        next(epoch)
    switcher, made = ours.switcher, {}
    for name, config in (("two", TWO), ("one", ONE), ("none", {}), ("two again", TWO)):
        switcher.to(config)
        ours.made_by.clear()
        next(epoch), next(epoch)
        made[name] = set().union(*ours.made_by)
        assert not switcher.doubt(config)
    assert made["none"] == {os.getpid()}
    assert made["two"] == made["two again"] and len(made["two"]) == 2 and len(made["one"]) == 1
    assert not made["one"] & made["two"]
    started = ours.trial.log.of("loader-started")
    assert [(each["config"], each["workers"], each["respawns"]) for each in started] == [(TWO, 2, True), (ONE, 1, True)]
    assert all(each["seconds"] > 0 for each in started)


def test_between_its_turns_a_config_holds_still(script: Callable[..., Script]) -> None:
    """Nothing fills its queue meanwhile."""
    ours = script(Slow())
    epoch, switcher, loaders = ours.epoch(), ours.switcher, ours.trial.adapter.watches.loaders
    next(epoch), next(epoch)
    switcher.to(TWO)
    next(epoch)
    workers = loaders.own.serving._workers
    before = loaders.ready_samples()
    switcher.to({})
    time.sleep(0.5)  # in which two workers would make five batches
    assert [state_of(worker.pid) for worker in workers] == ["T", "T"]
    assert loaders.ready_samples() is None, "the script as written has no queue"
    switcher.to(TWO)
    assert loaders.ready_samples() <= before + 2 * BATCH, "what was under way, and nothing else"
    time.sleep(0.1)
    assert "T" not in [state_of(worker.pid) for worker in workers]


@pytest.mark.slow  # 3 s beside three others
def test_workers_of_the_script_s_own_hold_still_while_others_have_their_turns(script: Callable[..., Script]) -> None:
    """Those too that it starts meanwhile, with its next epoch."""
    ours = script(Slow(), num_workers=1)
    epoch, switcher, loaders = ours.epoch(), ours.switcher, ours.trial.adapter.watches.loaders
    for _ in range(4):
        next(epoch)
    switcher.to(NONE)
    time.sleep(0.05)
    (worker,) = loaders.sources.primary.newest()._workers
    assert state_of(worker.pid) == "T"
    assert len(list(epoch)) == len(ours.loader) - 4
    assert not worker.is_alive(), "it ends with its epoch"
    epoch = ours.epoch()
    next(epoch)
    (worker,) = loaders.sources.primary.newest()._workers
    time.sleep(0.05)
    assert state_of(worker.pid) == "T"
    switcher.to({})
    assert len(list(epoch)) == len(ours.loader) - 1


def test_random_numbers_of_the_script_stay_what_they_are(script: Callable[..., Script]) -> None:
    """So do the epochs afterwards: the sampler's order is what it would have been."""

    def orders(*, switches: bool) -> list[list[int]]:
        torch.manual_seed(3)
        generator = torch.Generator().manual_seed(5)
        ours = script(generator=generator)
        switcher = ours.switcher
        for _ in range(2):
            for place, _ in enumerate(ours.epoch()):
                if switches and place in (2, 7):
                    states = torch.get_rng_state(), generator.get_state()
                    switcher.to(TWO if place == 2 else {})
                    assert all(map(torch.equal, states, (torch.get_rng_state(), generator.get_state())))
        switcher.end()
        return [[number for batch in ours.epoch() for number in batch] for _ in range(2)]

    assert orders(switches=True) == orders(switches=False)


@pytest.mark.slow  # 5 s beside three others
def test_a_loop_that_breaks_off_goes_on_with_its_next_epoch(script: Callable[..., Script]) -> None:
    ours = script(num_workers=2)
    switcher = ours.switcher
    for turn in range(6):
        for place, _ in enumerate(ours.epoch()):
            if place == 2:
                switcher.to([TWO, {}, NONE][turn % 3])
            if place == 5:
                break
    assert len(list(ours.epoch())) == len(ours.loader)


def amid_a_turn(script: Callable[..., Script], config: dict[str, Any]) -> tuple[Script, Iterator[list[int]], Any]:
    """A script with a worker of its own, its epoch of which the last of four batches was in the config's turn, and who
    switches.
    """
    ours = script(num_workers=1)
    epoch, switcher = ours.epoch(), ours.switcher
    for _ in range(3):
        next(epoch)
    switcher.to(config)
    next(epoch)
    return ours, epoch, switcher


def test_what_a_config_leaves_amid_its_turn_the_script_goes_on_with(script: Callable[..., Script]) -> None:
    """As one does that spoilt the weights: the workers of the script's own were stopped."""
    ours, epoch, switcher = amid_a_turn(script, NONE)
    switcher.leave(NONE)
    assert len(list(epoch)) == len(ours.loader) - 4


def test_a_loop_over_the_same_loader_within_the_loop_is_served_as_well(script: Callable[..., Script]) -> None:
    ours, epoch, switcher = amid_a_turn(script, TWO)
    assert len([numbers for numbers, _ in ours.loader]) == len(ours.loader)
    switcher.to({})
    assert len(list(epoch)) == len(ours.loader) - 4


@pytest.mark.slow  # 3 s beside three others
@pytest.mark.parametrize("epochs", [1, 3])
def test_a_worker_that_dies_costs_its_config_only(script: Callable[..., Script], epochs: int) -> None:
    """The script doesn't hear of it: PyTorch would have any line of it raise that."""
    ours = script()
    epoch, switcher, loaders = ours.epoch(), ours.switcher, ours.trial.adapter.watches.loaders
    next(epoch), next(epoch)
    switcher.to(TWO)
    next(epoch)
    for worker in loaders.own.serving._workers:
        os.kill(worker.pid, signal.SIGKILL)
        worker.join()
    rest = sum(1 for _ in epoch)
    assert "RuntimeError: DataLoader worker" in switcher.doubt(TWO)
    assert rest == len(ours.loader) - 3
    switcher.to(TWO)
    for _ in range(epochs):
        assert len(list(ours.epoch())) == len(ours.loader)
    switcher.leave(TWO)
    switcher.to(ONE)
    assert len(list(ours.epoch())) == len(ours.loader) and not switcher.doubt(ONE)


def test_a_worker_that_dies_between_two_turns_is_seen(script: Callable[..., Script]) -> None:
    ours = script()
    epoch, switcher, loaders = ours.epoch(), ours.switcher, ours.trial.adapter.watches.loaders
    next(epoch), next(epoch)
    switcher.to(TWO)
    next(epoch)
    worker = loaders.own.serving._workers[0]
    switcher.to({})
    os.kill(worker.pid, signal.SIGKILL)
    worker.join()
    assert next(epoch)
    assert switcher.doubt(TWO) == "1 of its 2 workers live"


class Failing(Numbers):
    def __getitem__(self, index: int) -> tuple[int, int]:
        if multiprocessing.current_process().name != "MainProcess":
            raise ValueError("no file is open here")
        return super().__getitem__(index)


def test_data_that_workers_cannot_read_cost_that_config_only(script: Callable[..., Script]) -> None:
    ours = script(Failing())
    epoch, switcher = ours.epoch(), ours.switcher
    next(epoch), next(epoch)
    switcher.to(TWO)
    assert sum(1 for _ in epoch) == len(ours.loader) - 2
    assert switcher.doubt(TWO) == "its loader failed: ValueError: no file is open here"


class Stream(IterableDataset[Any]):  # type: ignore[misc]  # PyTorch may lack types where this is checked
    def __iter__(self) -> Iterator[tuple[int, int]]:
        info = torch.utils.data.get_worker_info()
        assert info is None
        return iter([(number, 0) for number in range(SAMPLES)])


class Locked(Numbers):
    def __init__(self) -> None:
        self.lock = multiprocessing.Lock()


class Drawing(Numbers):
    def __init__(self) -> None:
        self.chance = random.Random(1)

    def __getitem__(self, index: int) -> tuple[int, int]:
        return index, self.chance.randrange(3)


class OwnLoader(DataLoader[Any]):  # type: ignore[misc]  # as above
    """May do anything."""


@pytest.mark.parametrize(
    ("data", "loader", "why"),
    [
        (Stream(), {"shuffle": False}, "a stream"),
        (Locked(), {}, "dataset.lock is shared by processes"),
        (Drawing(), {}, "draws random numbers of its own"),
        (Numbers(), {"num_workers": 2, "in_order": False}, "in no order"),
    ],
)
def test_what_another_loader_would_change_is_refused(
    script: Callable[..., Script], data: Any, loader: dict[str, Any], why: str
) -> None:
    ours = script(data, **loader)
    epoch = ours.epoch()
    next(epoch)
    assert why in ours.switcher.refusal(TWO)
    assert not ours.switcher.refusal({"threads": 1}), "others go on"


def test_what_is_no_loader_of_pytorch_s_is_refused(script: Callable[..., Script]) -> None:
    ours = script()
    assert "no DataLoader is seen to train" in ours.switcher.refusal(TWO)
    ours.loader = OwnLoader(Numbers(), batch_size=BATCH)
    epoch = ours.epoch()
    next(epoch)
    assert "OwnLoader is no plain DataLoader" in ours.switcher.refusal(TWO)


def test_several_loaders_that_train_are_refused(script: Callable[..., Script]) -> None:
    ours = script()
    other = DataLoader(TensorDataset(torch.zeros(SAMPLES, 1)), batch_size=BATCH)
    for (numbers, _), (more,) in zip(ours.loader, other, strict=True):
        ours.model(numbers.float()[:, None] + more).mean().backward()
        ours.optimizer.step()
        said = ours.switcher.refusal(TWO)
    assert "several loaders" in said


def test_there_are_only_so_many_workers_at_once(
    script: Callable[..., Script], monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = script()
    epoch, switcher = ours.epoch(), ours.switcher
    next(epoch), next(epoch)
    switcher.to(TWO)
    next(epoch)
    monkeypatch.setattr(own_loaders, "MOST_WORKERS", 2)
    with pytest.raises(MemoryError, match="too many at once"):
        switcher.to(ONE)
    switcher.to({})
    switcher.leave(TWO)
    switcher.to(ONE)
    next(epoch)
    switcher.leave(ONE)
    monkeypatch.setattr(own_loaders, "shared_memory", lambda: 2 * 4 * 2 * BATCH * 8 - 1)
    with pytest.raises(MemoryError, match="into the shared memory"):
        switcher.to(ONE)  # four batches of two numbers a sample, in half of what is left
    switcher.to({})
    monkeypatch.setattr(own_loaders, "machine_memory", lambda: (100 << 20, 4 << 30))
    with pytest.raises(MemoryError, match="don't fit"):
        switcher.to({"num_workers": 1})
    switcher.to({})
    assert next(epoch)


@pytest.mark.parametrize("ranks", [1, 2])
def test_each_rank_leaves_room_for_the_workers_of_the_others(
    script: Callable[..., Script], monkeypatch: pytest.MonkeyPatch, ranks: int
) -> None:
    """All of them make theirs at the same time: none is seen in the memory that is left."""
    ours = script()
    epoch, switcher = ours.epoch(), ours.switcher
    next(epoch), next(epoch)
    monkeypatch.setattr(Session, "ranks", ranks)
    monkeypatch.setattr(own_loaders, "machine_memory", lambda: (220 << 20, 1 << 30))
    with pytest.raises(MemoryError, match="don't fit") if ranks > 1 else nullcontext():
        switcher.to({"num_workers": 1})
    switcher.to({})
    assert next(epoch)
