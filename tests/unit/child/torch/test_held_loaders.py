"""When workers of a config's own loader are stopped: while what passes is left out, and while no lock is theirs."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.own_loaders import SAMPLES, TWO, Numbers, Script, Slow, script, state_of
from support.torch_trials import begin
from torch.utils.data import DataLoader, Sampler

from tuner.child.torch.loader_workers import LOCK_PATIENCE_S

__all__ = ["begin", "script"]

pytestmark = pytest.mark.usefixtures("torch_settings_kept", "begin")


class Pausing(Sampler[int]):  # type: ignore[misc]  # PyTorch may lack types where this is checked
    """Looks at a config's workers, half a moment after the script's own loader began to start."""

    def __init__(self) -> None:
        self.watched: list[Any] = []
        self.states: list[str] = []

    def __len__(self) -> int:
        return SAMPLES

    def __iter__(self) -> Iterator[int]:
        if self.watched:
            time.sleep(0.05)
        self.states += [state_of(worker.pid) for worker in self.watched]
        return iter(range(SAMPLES))


@pytest.mark.slow  # 4 s beside three others
@pytest.mark.parametrize("loader", [{}, {"num_workers": 1}, {"num_workers": 1, "persistent_workers": True}], ids=str)
def test_nothing_fills_a_queue_while_the_script_s_own_loader_starts(
    script: Callable[..., Script], loader: dict[str, Any]
) -> None:
    """What that takes is left out of a turn: what a config's workers made meanwhile would have cost nothing."""
    sampler = Pausing()
    ours = script(Slow(), shuffle=False, sampler=sampler, **loader)
    epoch, switcher, loaders = ours.epoch(), ours.switcher, ours.trial.adapter.watches.loaders
    next(epoch), next(epoch)
    switcher.to(TWO)
    next(epoch)
    sampler.watched = loaders.own.serving._workers
    assert len(list(epoch)) == len(ours.loader) - 3
    assert len(list(ours.epoch())) == len(ours.loader)
    assert sampler.states == ["T", "T"]
    assert "T" not in [state_of(worker.pid) for worker in sampler.watched]


@pytest.mark.parametrize("amid_an_epoch", [False, True])
def test_nothing_fills_a_queue_while_the_script_validates(
    script: Callable[..., Script], *, amid_an_epoch: bool
) -> None:
    """That is set apart, too."""
    ours = script(Slow())
    held = DataLoader(Numbers(), batch_size=SAMPLES)
    epoch, switcher, loaders = ours.epoch(), ours.switcher, ours.trial.adapter.watches.loaders
    next(epoch), next(epoch)
    switcher.to(TWO)
    for _ in range(4):
        next(epoch)
    workers = loaders.own.serving._workers
    if not amid_an_epoch:
        assert len(list(epoch)) == len(ours.loader) - 6
    ours.model.eval()
    for numbers, _ in held:
        assert [state_of(worker.pid) for worker in workers] == ["T", "T"]
        ours.model(numbers.float()[:, None])
    ours.model.train()
    following = epoch if amid_an_epoch else ours.epoch()
    next(following)
    time.sleep(0.01)
    assert "T" not in [state_of(worker.pid) for worker in workers]
    assert not switcher.doubt(TWO)


class Filing(Numbers):
    """Reads one sample at a time, whichever process asks: each has the file locked for some milliseconds."""

    def __init__(self, path: Path, *, for_good: bool = False) -> None:
        self.path, self.for_good = str(path), for_good
        path.touch()

    def __getitem__(self, index: int) -> tuple[int, int]:
        file = os.open(self.path, os.O_RDWR)
        deadline = time.monotonic() + 3
        while True:
            try:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, os.getpid() if self.for_good else 0)
                break
            except BlockingIOError:
                assert time.monotonic() < deadline, "whoever has it locked is stopped"
                time.sleep(0.002)
        time.sleep(0.005)
        if not self.for_good:
            os.close(file)
        return super().__getitem__(index)


def test_no_worker_is_stopped_while_others_may_wait_for_its_lock_on_a_file(
    script: Callable[..., Script], tmp_path: Path
) -> None:
    ours = script(Filing(tmp_path / "locked"))
    epoch, switcher = ours.epoch(), ours.switcher
    next(epoch), next(epoch)
    for _ in range(3):
        switcher.to(TWO)
        next(epoch)
        switcher.to({})
        next(epoch)
    assert not switcher.doubt(TWO)


def test_a_lock_that_a_worker_keeps_for_good_is_waited_for_once(script: Callable[..., Script], tmp_path: Path) -> None:
    """As LMDB's readers have one, each its own, for which nobody waits. One may be slow on a busy machine, too."""
    ours = script(Filing(tmp_path / "locked", for_good=True))
    epoch, switcher = ours.epoch(), ours.switcher
    next(epoch), next(epoch)
    took = []
    for _ in range(3):
        switcher.to(TWO)
        next(epoch)
        workers = ours.trial.adapter.watches.loaders.own.serving._workers
        began = time.perf_counter()
        switcher.to({})
        took.append(time.perf_counter() - began)
        assert [state_of(worker.pid) for worker in workers] == ["T", "T"]
        next(epoch)
    assert took[0] >= LOCK_PATIENCE_S > min(took[1:])
