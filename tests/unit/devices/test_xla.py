"""XLA's client for processors: there where torch_xla is, never by itself, and called what it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from tuner.cli import main
from tuner.devices import xla
from tuner.devices.present import devices, kind_of, resolve_device
from tuner.errors import DeviceError
from tuner.model import BASELINE
from tuner.runner.launch import device_environment


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(xla, "has_torch_xla", lambda: True)


@pytest.fixture
def missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(xla, "has_torch_xla", lambda: False)


def test_it_is_listed_behind_the_cpu_and_named_for_what_it_is(
    installed: None, capsys: pytest.CaptureFixture[str]
) -> None:
    cpu, device = devices()[-2:]
    assert (cpu.kind, device.kind) == ("cpu", "xla")
    assert resolve_device("auto").kind != "xla" and resolve_device("xla") == device
    assert device.name == device.uuid == f"PJRT CPU client on {cpu.name}"
    assert device.memory_bytes == cpu.memory_bytes
    assert main(["devices"]) == 0
    assert "PJRT CPU client on" in capsys.readouterr().out


def test_it_computes_on_the_host_by_its_own_client_whatever_else_is_here(installed: None) -> None:
    device = resolve_device("xla")
    kind = kind_of(device)
    assert kind.is_host and not kind.own_memory
    assert kind.memory_limits(1000, 1000) == (900, None)
    shown = device_environment(device, BASELINE)
    assert kind.compile_cache(Path("cache")) == {"XLA_PERSISTENT_CACHE_PATH": ""}, "the user's own isn't taken either"
    assert shown == {"PJRT_DEVICE": "CPU", "CPU_NUM_DEVICES": "1", "CUDA_VISIBLE_DEVICES": ""}


def test_without_the_library_it_is_refused_with_what_installs_it(missing: None) -> None:
    assert "xla" not in [device.kind for device in devices()]
    with pytest.raises(DeviceError) as caught:
        resolve_device("xla")
    assert "pip install 'torch==2.9.*' 'torch_xla==2.9.*'" in caught.value.hint
