"""A CUDA card beside a trial: what is read, whose processes are whose, and that it is stored raw."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.steady_child import steady_child

from tuner.analysis.resources import CardReading
from tuner.devices.cpu import cpu_device
from tuner.devices.cuda_reader import CardReader, mean_shares, tell_apart
from tuner.devices.present import kind_of
from tuner.model import BASELINE, Device, Script
from tuner.runner.process import ProcessRunner
from tuner.runner.request import Limits, TrialRequest

CARD = Device("cuda", 0, "a card", "GPU-1", 2**36)


class NVMLError(Exception):
    """As NVML raises it, with its number."""

    def __init__(self, value: int) -> None:
        super().__init__(value)
        self.value = value


class Nvml(SimpleNamespace):
    """What pynvml answers for one card; ``absent`` functions are those that its driver doesn't know."""

    NVMLError = NVMLError
    NVML_CLOCK_SM, NVML_TEMPERATURE_GPU, NVML_ERROR_NOT_FOUND = 1, 0, 6

    def __init__(self, absent: tuple[str, ...] = ()) -> None:
        super().__init__()
        self.opened = 0
        self.listed: dict[int, int | None] = {}
        self.samples: list[tuple[int, int, int]] | int = []
        self.asked_since: list[int] = []
        self.reasons = 0x4
        for name in absent:
            setattr(self, name, self._unknown)

    def _unknown(self, *arguments: Any) -> Any:
        raise NVMLError(13)

    def nvmlInit(self) -> None:
        self.opened += 1

    def nvmlShutdown(self) -> None:
        self.opened -= 1

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        return uuid

    def nvmlDeviceGetClockInfo(self, handle: str, kind: int) -> int:
        return {self.NVML_CLOCK_SM: 1755}[kind]

    def nvmlDeviceGetTemperature(self, handle: str, sensor: int) -> int:
        return {self.NVML_TEMPERATURE_GPU: 61}[sensor]

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: str) -> int:
        return 7_250

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle: str) -> int:
        return self.reasons

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: str) -> int:
        return self.reasons | 0x200

    def nvmlDeviceGetMemoryInfo(self, handle: str) -> SimpleNamespace:
        return SimpleNamespace(total=2**36, used=3 * 2**30)

    def nvmlDeviceGetComputeRunningProcesses(self, handle: str) -> list[SimpleNamespace]:
        return [SimpleNamespace(pid=pid, usedGpuMemory=memory) for pid, memory in self.listed.items()]

    def nvmlDeviceGetProcessUtilization(self, handle: str, since: int) -> list[SimpleNamespace]:
        self.asked_since.append(since)
        if isinstance(self.samples, int):
            raise NVMLError(self.samples)
        return [SimpleNamespace(pid=pid, timeStamp=stamp, smUtil=share) for pid, stamp, share in self.samples]


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> Iterator[Nvml]:
    """NVML of a machine with one card: this one may have none."""
    fake = Nvml()
    monkeypatch.setitem(__import__("sys").modules, "pynvml", fake)
    yield fake
    assert fake.opened == 0


def test_a_reading_has_what_the_driver_says() -> None:
    nvml = Nvml()
    nvml.listed = {7: 2**30}
    reader = CardReader(nvml, "card")  # type: ignore[arg-type]
    nvml.listed = {7: 2**30, 40: None}
    nvml.samples = [(40, 9 * 10**15, 80), (40, 9 * 10**15 + 5, 90), (7, 9 * 10**15, 10)]
    assert reader.read({40, 41}) == CardReading(
        sm_mhz=1755.0, celsius=61.0, reasons=4, used=3 * 2**30, tells_shares=True,
        processes=((7, 2**30, 10.0, True), (40, None, 85.0, False)),
        joules=7.25,
    )  # fmt: skip


def test_a_trial_that_it_takes_turns_with_is_no_stranger() -> None:
    """Nor is what that holds of the card the trial's. It was there before the trial; process 7 before both."""
    nvml = Nvml()
    nvml.listed = {7: 2**30}
    first = CardReader(nvml, "card")  # type: ignore[arg-type]
    nvml.listed = {7: 2**30, 30: 2**31}
    reader = CardReader(nvml, "card", first.strangers)  # type: ignore[arg-type]
    nvml.listed[40] = 2**32
    nvml.samples = [(7, 9 * 10**15, 10), (30, 9 * 10**15, 50), (40, 9 * 10**15, 40)]
    reading = reader.read({40}, {30, 31})
    assert reading is not None
    assert reading.processes == ((7, 2**30, 10.0, True), (40, 2**32, 40.0, False))


def test_readings_are_a_second_apart_and_rarer_where_they_take_long() -> None:
    now = [0.0]
    takes_s = [0.0]

    class Slow(Nvml):
        def nvmlDeviceGetCurrentClocksEventReasons(self, handle: str) -> int:
            now[0] += takes_s[0]
            return 0

    for takes_s[0], apart_s in ((0.001, 1.0), (0.05, 5.0)):
        now[0] = 0.0
        reader = CardReader(Slow(), "card", clock=lambda: now[0])  # type: ignore[arg-type]
        assert reader.read(()) is not None
        now[0] += apart_s - 0.01
        assert reader.read(()) is None
        now[0] += 0.02
        assert reader.read(()) is not None


def test_shares_are_asked_for_since_the_last_ones() -> None:
    nvml, now = Nvml(), [0.0]
    reader = CardReader(nvml, "card", clock=lambda: now[0])  # type: ignore[arg-type]
    nvml.samples = [(40, 9 * 10**15, 80)]
    for now[0] in (0.0, 2.0):
        reader.read(())
    assert 0 < nvml.asked_since[0] < nvml.asked_since[1] == 9 * 10**15


@pytest.mark.parametrize(("error", "told"), [(Nvml.NVML_ERROR_NOT_FOUND, True), (3, False)])
def test_an_idle_card_is_told_from_one_that_can_not_tell(error: int, told: bool) -> None:
    nvml = Nvml()
    nvml.samples = error
    reading = CardReader(nvml, "card").read(())  # type: ignore[arg-type]
    assert reading is not None
    assert reading.tells_shares is told


def test_an_old_driver_is_asked_by_the_old_names_and_what_it_lacks_is_left_open() -> None:
    nvml = Nvml(absent=("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetTemperature"))
    reading = CardReader(nvml, "card").read(())  # type: ignore[arg-type]
    assert reading is not None
    assert (reading.reasons, reading.celsius, reading.sm_mhz) == (0x204, None, 1755)


@pytest.mark.parametrize(
    ("listed", "own", "before", "foreign"),
    [
        ((), (5,), (), []),
        ((5, 9), (5, 6), (), [(5, False), (9, True)]),
        ((5, 9), (5, 6), (9,), [(5, False), (9, True)]),
        # The host's pids, seen from a container: only who was there before is surely a stranger.
        ((90005, 90009), (5, 6), (90009,), [(90005, None), (90009, True)]),
    ],
)
def test_whose_processes_are_whose(
    listed: tuple[int, ...], own: tuple[int, ...], before: tuple[int, ...], foreign: list[tuple[int, bool | None]]
) -> None:
    assert tell_apart(reversed(listed), own, before) == foreign


def test_shares_that_mean_nothing_are_left_out() -> None:
    assert mean_shares([(1, 20), (1, 40), (2, 4_000_000), (3, 0)]) == {1: 30.0, 3: 0.0}


def test_nothing_is_read_where_there_is_no_card(nvml: Nvml, monkeypatch: pytest.MonkeyPatch) -> None:
    with kind_of(cpu_device()).reader(cpu_device()) as reader:
        assert reader.read(()) is None
    monkeypatch.setitem(__import__("sys").modules, "pynvml", None)
    with kind_of(CARD).reader(CARD) as reader:
        assert reader.read(()) is None


CHILD = steady_child(14)


def test_a_trial_on_a_card_stores_its_readings_raw_and_is_told_by_them(nvml: Nvml, tmp_path: Path) -> None:
    nvml.listed, nvml.reasons = {1: 2**30}, 0x24
    nvml.samples = [(1, 9 * 10**15, 30)]
    (tmp_path / "child.py").write_text(CHILD)
    limits = Limits(trial_timeout_s=30)
    request = TrialRequest(tmp_path / "trial", Script("train.py", ()), CARD, BASELINE, limits=limits)
    outcome = ProcessRunner(child=tmp_path / "child.py").run(request, threading.Event())
    assert outcome.complete and outcome.measurement is not None
    lines = (tmp_path / "trial" / "resources.jsonl").read_text().splitlines()
    stored = [sample["card"] for sample in map(json.loads, lines) if "card" in sample]
    assert 2 <= len(stored) < len(lines)
    assert all(reading["processes"] == [[1, 2**30, 30.0, True]] for reading in stored)
    card = outcome.measurement.card
    assert card is not None
    assert (card.sm_mhz, card.hottest_celsius, card.throttle_reasons) == (1755, 61, 0x24)
    assert card.foreign_bytes == 2**30
    assert card.foreign_share == pytest.approx(0.3)
