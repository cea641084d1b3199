"""A device kind is one file and one entry in the list: a made-up one works everywhere without a change to tuner/."""

from __future__ import annotations

import ast
import json
import re
import threading
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar

import pytest
from support import worlds

from tuner.analysis.resources import CardReading
from tuner.cli import main
from tuner.devices import present
from tuner.devices.base import FOREIGN_SHARE_BESIDE_A_DEVICE, DeviceKind, DeviceReader
from tuner.devices.frameworks import Lack
from tuner.devices.present import devices, kind_of, resolve_device, spellings
from tuner.devices.software import software
from tuner.errors import DeviceBusyError, DeviceError
from tuner.model import BASELINE, Device, Script
from tuner.runner.launch import child_environment, child_request, device_environment
from tuner.runner.process import ProcessRunner
from tuner.runner.request import Limits, TrialRequest
from tuner.storage.lock import DeviceLock
from tuner.study.identity import identity_of

TUNER = Path(__file__).parents[3] / "tuner"


class AbacusReader:
    """Gives the same reading each time."""

    strangers: frozenset[int] = frozenset()

    def read(self, own: Collection[int], siblings: Collection[int] = ()) -> CardReading:
        return CardReading(sm_mhz=7.0, processes=tuple((pid, None, None, False) for pid in sorted(own)))


class AbacusKind(DeviceKind):
    """Two abacuses, as the one file of a new kind would declare them."""

    name = "abacus"
    numbered = True
    own_memory = True
    used: ClassVar[int] = 5 * 2**30

    def find(self) -> list[Device]:
        return [Device(self.name, n, f"Abacus {n}", f"ABA-{n}", 8 * 2**30, f"{self.name}:{n}") for n in range(2)]

    def why_absent(self) -> Lack | None:
        return Lack("the shelf has two")

    def software(self) -> Mapping[str, str]:
        return {"beads": "3.1"}

    def environment(self, device: Device, *, alone: bool) -> Mapping[str, str]:
        return {"ABACUS": device.uuid} if alone else {}

    def label_in_child(self, device: Device) -> str:
        return "abacus:0"

    def lock_key(self, device: Device) -> str:
        return f"{self.name}-{device.uuid}"

    def used_bytes(self, device: Device) -> int:
        return self.used

    @contextmanager
    def reader(self, device: Device, strangers: frozenset[int] | None = None) -> Iterator[DeviceReader]:
        yield AbacusReader()


@pytest.fixture(autouse=True)
def listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(present, "KINDS", (AbacusKind(), *(k for k in present.KINDS if k.name == "cpu")))


def test_it_is_found_by_its_name_and_number() -> None:
    assert [device.label for device in devices()] == ["abacus:0", "abacus:1", "cpu"]
    assert resolve_device("auto") == resolve_device("abacus") == resolve_device("abacus:0")
    assert resolve_device("abacus:1").uuid == "ABA-1"
    assert spellings() == "abacus, abacus:1 or cpu"
    with pytest.raises(DeviceError) as caught:
        resolve_device("abacus:2")
    assert caught.value.hint == "the shelf has two; devices here: abacus:0, abacus:1, cpu"


def test_the_commands_know_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["devices"]) == 0
    assert re.search(r"^abacus:1 +Abacus 1 +8\.0 GiB +ABA-1 +torch ", capsys.readouterr().out, re.MULTILINE)
    assert main(["devices", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [device["device"] for device in told["devices"]] == ["abacus:0", "abacus:1", "cpu"]
    assert told["devices"][1]["energy_unknown"]["device"] == "nothing counts the energy of abacus"
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("")
    assert main(["study", "train.py", "--device", "abacus:1", "--dry-run", "--max-memory", "2GiB"]) == 0
    out = capsys.readouterr().out
    assert "abacus:1 (Abacus 1)" in out and "device memory   at most 2.0 GiB" in out


def test_it_is_held_by_one_study() -> None:
    first, second = resolve_device("abacus:0"), resolve_device("abacus:1")
    with DeviceLock(first, "a"), DeviceLock(second, "b"), DeviceLock(resolve_device("cpu"), "c"):
        pass
    with DeviceLock(first, "a"), pytest.raises(DeviceBusyError), DeviceLock(first, "d"):
        pass


def test_it_belongs_to_a_studys_identity_and_tolerates_what_an_accelerator_does(tmp_path: Path) -> None:
    plan = worlds.plan(tmp_path, device=resolve_device("abacus:1"), cores=8)
    identity = identity_of(plan)
    assert (identity["device.kind"], identity["device.name"]) == ("abacus", "Abacus 1")
    assert "device.cores" not in identity
    assert plan.host.allowed_foreign_cpus() == 8 * FOREIGN_SHARE_BESIDE_A_DEVICE
    assert software()["beads"] == "3.1"


def test_a_trial_sees_it_alone_and_is_read_beside_it(tmp_path: Path) -> None:
    device = resolve_device("abacus:1")
    assert device_environment(device, BASELINE, alone=False) == {}
    limits = Limits(trial_timeout_s=30)
    request = TrialRequest(tmp_path / "trial", Script("train.py", ()), device, BASELINE, limits=limits)
    assert child_environment(request, tmp_path / "request.json", 9)["ABACUS"] == "ABA-1"
    assert child_request(request, parent_pid=1, started=0.0).device == "abacus:0"
    child = tmp_path / "child.py"
    child.write_text("import os, time; print(os.environ['ABACUS'], flush=True); time.sleep(0.6)")
    ProcessRunner(child=child).run(request, threading.Event())
    assert (request.folder / "log.txt").read_text() == "ABA-1\n"
    assert json.loads((request.folder / "request.json").read_text())["used_device_bytes"] == AbacusKind.used
    samples = [json.loads(line) for line in (request.folder / "resources.jsonl").read_text().splitlines()]
    assert samples and all(sample["card"]["sm_mhz"] == 7.0 for sample in samples)
    assert not kind_of(device).wait_until_clean(device, 2**30, timeout_s=0.1)


def test_no_kind_is_asked_for_by_name_outside_of_its_file() -> None:
    """Only the child, which has files of its own for each kind, and the kinds themselves name one."""
    places = [path for path in TUNER.rglob("*.py") if path.relative_to(TUNER).parts[0] not in ("devices", "child")]
    assert len(places) > 50
    named = [
        f"{path.relative_to(TUNER)}:{line}"
        for path in places
        for line in lines_that_name_a_kind(path.read_text(encoding="utf-8"))
    ]
    assert named == []


def lines_that_name_a_kind(source: str) -> list[int]:
    """Of texts that are a kind's name, parts of formatted texts left out: /proc/stat has lines named cpu0."""
    nodes = list(ast.walk(ast.parse(source)))
    parts = {id(part) for node in nodes if isinstance(node, ast.JoinedStr) for part in node.values}
    texts = [node for node in nodes if isinstance(node, ast.Constant) and id(node) not in parts]
    return [text.lineno for text in texts if text.value in ("cpu", "cuda", "tpu", "xla")]


def test_a_line_that_names_a_kind_is_found() -> None:
    assert lines_that_name_a_kind("def f(d):\n    return {} if d.kind == 'cuda' else {f'cpu{d}'}") == [2]
