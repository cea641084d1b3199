"""The host's energy beside a trial: stored raw, without what others took while it was held, and derived again."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.steady_child import steady_child

from tuner.devices.cpu import cpu_device
from tuner.devices.energy import HostMeter
from tuner.model import BASELINE, Outcome, Phase, Script, Trial
from tuner.runner import watch
from tuner.runner.held import Held
from tuner.runner.process import ProcessRunner
from tuner.runner.request import Limits, TrialRequest
from tuner.storage.audit import audit
from tuner.storage.folder import trial_folder

WATTS = 50.0
CHILD = steady_child(20)


class Powered:
    """A powercap tree whose package takes ``WATTS``, for as long as the thread runs."""

    def __init__(self, root: Path) -> None:
        folder = root / "intel-rapl:0"
        folder.mkdir(parents=True)
        (folder / "name").write_text("package-0\n")
        (folder / "max_energy_range_uj").write_text("65532610987\n")
        self.counter, self.began = folder / "energy_uj", time.monotonic()
        self.counter.write_text("0\n")

    def set(self, joules: float) -> None:
        """Replaced whole: a reader may look at any moment."""
        new = self.counter.with_name("new")
        new.write_text(f"{round(joules * 1e6)}\n")
        new.replace(self.counter)

    def run(self, stop: threading.Event) -> None:
        while not stop.wait(0.01):
            self.set(WATTS * (time.monotonic() - self.began))


@pytest.fixture
def powered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Powered]:
    machine, stop = Powered(tmp_path / "powercap"), threading.Event()
    monkeypatch.setattr(watch, "host_meter", lambda: HostMeter(tmp_path / "powercap"))
    thread = threading.Thread(target=machine.run, args=(stop,))
    thread.start()
    yield machine
    stop.set()
    thread.join()


def test_what_is_held_takes_none() -> None:
    read = iter([1.0, 4.0, 9.0, 11.0])

    class Meter(HostMeter):
        """A quarter of it is main memory's."""

        def __init__(self) -> None:
            pass

        def read(self) -> float | None:
            joules = next(read)
            self.memory_joules = joules / 4
            return joules

    held = Held(Meter())
    assert held.counted() == (1.0, 0.25)
    held.begin()
    held.end()
    assert held.counted() == (6.0, 1.5), "what went by between 4 and 9 J was others'"
    assert Held(None).counted() == (None, None)


def run(folder: Path) -> Outcome:
    (folder / "child.py").write_text(CHILD)
    request = TrialRequest(
        trial_folder(folder, 0), Script("train.py", ()), cpu_device(), BASELINE, limits=Limits(trial_timeout_s=30)
    )
    return ProcessRunner(child=folder / "child.py").run(request, threading.Event())


@pytest.mark.slow  # 2 s beside three others
def test_a_trial_keeps_what_the_host_took_and_the_check_finds_the_same(powered: Powered, tmp_path: Path) -> None:
    outcome = run(tmp_path)
    assert outcome.complete and outcome.measurement is not None
    lines = (trial_folder(tmp_path, 0) / "resources.jsonl").read_text().splitlines()
    assert all(sample["host_joules"] >= 0 for sample in map(json.loads, lines))
    energy = outcome.measurement.energy
    assert energy.host_joules_per_sample == pytest.approx(WATTS / outcome.measurement.rate, rel=0.2)
    assert energy.device_joules_per_sample is None
    assert energy.memory_joules_per_sample == 0.0, "the package alone has a counter"
    [trial] = [Trial(0, Phase.BASELINE, BASELINE, outcome=outcome)]
    assert audit(tmp_path, [trial]).different == []


@pytest.mark.slow  # 2 s beside three others
def test_without_counters_nothing_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "host_meter", lambda: None)
    outcome = run(tmp_path)
    assert outcome.measurement is not None
    assert outcome.measurement.energy.host_joules_per_sample is None
    assert "host_joules" not in (trial_folder(tmp_path, 0) / "resources.jsonl").read_text()
