"""TPU chips on a made-up PCI bus, and libtpu's lock, held by another process: nothing here was tried on a TPU."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from tuner.devices import tpu
from tuner.devices.present import resolve_device
from tuner.devices.tpu import TpuKind
from tuner.errors import DeviceError
from tuner.model import BASELINE, Device, Script
from tuner.runner.launch import child_environment
from tuner.runner.request import Limits, TrialRequest

HOLDS = "import fcntl, sys; f = open(sys.argv[1], 'r+'); fcntl.lockf(f, fcntl.LOCK_EX); print(flush=True); input()"


@pytest.fixture
def bus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Puts devices on the bus, by vendor and device id; ``installed`` are the libraries that are."""
    monkeypatch.setattr(tpu, "BUS", tmp_path)
    monkeypatch.delenv("TPU_ACCELERATOR_TYPE", raising=False)

    def put(*found: tuple[str, str], installed: tuple[str, ...] = ()) -> None:
        for number, (vendor, device) in enumerate(found):
            slot = tmp_path / f"0000:00:{number:02}.0"
            slot.mkdir()
            (slot / "vendor").write_text(f"{vendor}\n")
            (slot / "device").write_text(f"{device}\n")
        specs = {name: ModuleSpec(name, None, origin=f"{name}/__init__.py") for name in installed}
        monkeypatch.setattr("importlib.util.find_spec", specs.get)

    return put


@pytest.mark.parametrize("library", ["torch_xla", "jax", "tensorflow"])
def test_chips_are_found_with_any_framework_that_can_use_them(bus: Callable[..., None], library: str) -> None:
    bus(("0x8086", "0x1237"), ("0x1ae0", "0x0063"), ("0x1ae0", "0x0063"), installed=(library,))
    [device] = TpuKind().find()
    assert (device.kind, device.name, device.label) == ("tpu", "TPU v5e", "tpu")


def test_the_name_that_the_machine_gives_goes_before(
    bus: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    bus(("0x1ae0", "0x005e"), installed=("jax",))
    monkeypatch.setenv("TPU_ACCELERATOR_TYPE", "v4-8")
    assert TpuKind().find()[0].name == "v4-8"


@pytest.mark.parametrize("found", [(), (("0x1ae0", "0x001f"),), (("0x10de", "0x0063"),)])
def test_what_is_no_chip_is_none(bus: Callable[..., None], found: tuple[tuple[str, str], ...]) -> None:
    """A virtual network card of Google's; a card of another vendor with a chip's number."""
    bus(*found, installed=("torch_xla",))
    assert TpuKind().find() == []
    with pytest.raises(DeviceError) as caught:
        resolve_device("tpu")
    assert "no TPU is on the PCI bus" in caught.value.hint and "--device xla" in caught.value.hint


def test_chips_without_a_framework_are_refused_with_what_is_missing(bus: Callable[..., None]) -> None:
    bus(("0x1ae0", "0x006f"))
    with pytest.raises(DeviceError, match="there is no tpu") as caught:
        resolve_device("tpu")
    assert "neither torch_xla, JAX nor TensorFlow" in caught.value.hint


def test_what_is_compiled_lies_in_the_studys_folder(tmp_path: Path) -> None:
    device = Device("tpu", 0, "TPU v5e", "TPU v5e", 0)
    limits = Limits(trial_timeout_s=30)
    request = TrialRequest(tmp_path / "trial", Script("train.py", ()), device, BASELINE, limits=limits)
    assert "XLA_PERSISTENT_CACHE_PATH" not in child_environment(request, tmp_path / "request.json", 9)
    cached = replace(request, compile_cache=tmp_path / "cache")
    shown = child_environment(cached, tmp_path / "request.json", 9)
    assert shown["XLA_PERSISTENT_CACHE_PATH"] == str(tmp_path / "cache" / "xla")


def test_a_trial_has_one_chip_and_a_rank_what_its_launcher_gives(bus: Callable[..., None]) -> None:
    bus(("0x1ae0", "0x0063"), installed=("jax",))
    device = TpuKind().find()[0]
    shown = TpuKind().environment(device, alone=True)
    assert (shown["PJRT_DEVICE"], shown["TPU_VISIBLE_CHIPS"]) == ("TPU", "0")
    assert TpuKind().environment(device, alone=False) == {}


def test_the_next_trial_waits_until_the_runtime_has_let_go(
    bus: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bus(("0x1ae0", "0x0063"), installed=("jax",))
    kind, lock = TpuKind(), tmp_path / "libtpu_lockfile"
    device = kind.find()[0]
    monkeypatch.setattr(tpu, "LOCK", lock)
    assert kind.wait_until_clean(device, None, timeout_s=0.0), "there is no file yet"
    lock.touch()
    assert kind.wait_until_clean(device, None, timeout_s=0.0), "nobody holds it"
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDS, str(lock)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert holder.stdout is not None
    holder.stdout.readline()
    assert not kind.wait_until_clean(device, None, timeout_s=0.1)
    holder.communicate(b"\n")
    assert kind.wait_until_clean(device, None, timeout_s=0.0)
