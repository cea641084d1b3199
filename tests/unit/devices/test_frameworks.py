"""What frameworks lack for a kind of device, on made-up environments: each with the command that mends it."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from tuner.devices import cuda, frameworks
from tuner.devices.abilities import abilities, missing
from tuner.devices.cuda import CudaKind
from tuner.devices.frameworks import Framework, Lack, lack_for_cuda, lack_for_tpu
from tuner.devices.software import software
from tuner.devices.xla import XlaKind

WITHOUT = "'is_cuda_build', False"
WITH = "'is_cuda_build', True"


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """An environment with these distributions (name → version) and no others, and these packages' files."""
    own = [place for place in sys.path if "site-packages" not in place]
    monkeypatch.setattr(sys, "path", [str(tmp_path), *own])
    for name in ("torch", "tensorflow", "jax", "torch_xla"):
        monkeypatch.delitem(sys.modules, name, raising=False)

    def put(distributions: dict[str, str], files: dict[str, str]) -> None:
        for name, version in distributions.items():
            folder = tmp_path / f"{name.replace('-', '_')}-{version}.dist-info"
            folder.mkdir()
            (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        for name, text in files.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text)
        importlib.invalidate_caches()

    return put


def torch(cuda_version: str) -> dict[str, str]:
    return {"torch/__init__.py": "raise ImportError", "torch/version.py": f"cuda: Optional[str] = {cuda_version}\n"}


def tensorflow(told: str) -> dict[str, str]:
    text = f"build_info = collections.OrderedDict([({told}), ('is_rocm_build', False)])\n"
    return {"tensorflow/__init__.py": "", "tensorflow/python/platform/build_info.py": text}


@pytest.mark.parametrize(
    ("distributions", "files", "command"),
    [
        ({"torch": "2.13.0"}, torch("'12.8'"), None),
        ({"torch": "2.13.0"}, {"torch/__init__.py": ""}, None),
        ({"torch": "2.13.0+cpu"}, torch("None"), "pip install --force-reinstall torch==2.13.0"),
        (
            {"torch": "2.13.0+cpu", "torchvision": "0.28.0+cpu"}, torch("None"),
            "pip install --force-reinstall torch==2.13.0 torchvision==0.28.0",
        ),
        ({"tensorflow": "2.21.0", "nvidia-cudnn-cu12": "9.1"}, tensorflow(WITH), None),
        ({"tensorflow": "2.21.0"}, tensorflow(WITH), "pip install 'tensorflow[and-cuda]==2.21.0'"),
        (
            {"tensorflow-cpu": "2.21.0"}, tensorflow(WITHOUT),
            "pip uninstall -y tensorflow-cpu && pip install 'tensorflow[and-cuda]==2.21.0'",
        ),
        ({"jax": "0.10.2", "jax-cuda13-plugin": "0.10.2"}, {"jax/__init__.py": ""}, None),
        ({"jax": "0.10.2"}, {"jax/__init__.py": ""}, "pip install 'jax[cuda12]==0.10.2'"),
        (
            {"jax": "0.10.2", "jaxlib": "0.10.2", "jax-cuda13-plugin": "0.10.1"}, {"jax/__init__.py": ""},
            "pip install 'jax[cuda13]==0.10.2'",
        ),
        (
            {"jax": "0.10.2", "jaxlib": "0.10.2.dev1", "jax-cuda12-plugin": "0.10.1", "jax-cuda13-plugin": "0.10.2"},
            {"jax/__init__.py": ""}, None,
        ),
    ],
)
def test_what_keeps_a_framework_from_a_card(
    environment: Callable[..., None], distributions: dict[str, str], files: dict[str, str], command: str | None
) -> None:
    environment(distributions, files)
    [framework] = frameworks.installed()
    lack = lack_for_cuda(framework, libraries=())
    assert (lack.command if lack is not None else None) == command


def test_libraries_of_the_system_will_do(environment: Callable[..., None], tmp_path: Path) -> None:
    environment({"tensorflow": "2.21.0"}, tensorflow(WITH))
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "libcudnn.so.9").touch()
    assert lack_for_cuda(Framework("tensorflow", "2.21.0"), [str(tmp_path / "lib")]) is None


@pytest.mark.parametrize(
    ("distributions", "files", "command"),
    [
        ({"torch": "2.9.0"}, torch("None"), "pip install 'torch==2.9.*' 'torch_xla[tpu]==2.9.*'"),
        (
            {"torch": "2.9.0", "torch_xla": "2.9.0"}, {**torch("None"), "torch_xla/__init__.py": ""},
            "pip install 'torch==2.9.*' 'torch_xla[tpu]==2.9.*'",
        ),
        (
            {"torch": "2.9.0", "torch_xla": "2.9.0", "libtpu": "0.0.21"},
            {**torch("None"), "torch_xla/__init__.py": ""}, None,
        ),
        ({"jax": "0.10.2"}, {"jax/__init__.py": ""}, "pip install 'jax[tpu]==0.10.2'"),
        ({"jax": "0.10.2", "libtpu": "0.0.40"}, {"jax/__init__.py": ""}, None),
        ({"tensorflow": "2.21.0"}, tensorflow(WITH), "pip install tensorflow-tpu"),
        ({"tensorflow-tpu": "2.21.0"}, tensorflow(WITHOUT), None),
    ],
)
def test_what_keeps_a_framework_from_a_tpu(
    environment: Callable[..., None], distributions: dict[str, str], files: dict[str, str], command: str | None
) -> None:
    environment(distributions, files)
    [framework] = frameworks.installed()
    lack = lack_for_tpu(framework)
    assert (lack.command if lack is not None else None) == command


@pytest.mark.parametrize(("version", "own"), [("2.9.1+cpu", False), ("2.13.0+cpu", True)])
def test_torch_xla_is_not_to_be_put_beside_another_pytorch(
    environment: Callable[..., None], version: str, own: bool
) -> None:
    """Its command would replace the one that is here, which trains on all other devices."""
    environment({"torch": version}, torch("None"))
    said = f", and needs an environment of its own, since it doesn't go with PyTorch {version}"
    for lack in (lack_for_tpu(frameworks.installed()[0]), XlaKind().why_absent()):
        assert lack is not None and lack.command.startswith("pip install 'torch==2.9.*' 'torch_xla")
        assert lack.why.endswith(said) if own else lack.why.endswith(("missing", "environment"))


def test_the_version_of_tensorflow_is_known_under_whichever_name_it_came(environment: Callable[..., None]) -> None:
    """A study on tensorflow-cpu noted no version, so that another one was no change."""
    environment({"tensorflow-cpu": "2.21.0"}, tensorflow(WITHOUT))
    assert software()["tensorflow"] == "2.21.0"


def test_a_folder_of_that_name_is_no_framework(environment: Callable[..., None]) -> None:
    environment({}, {"jax/notes.txt": ""})
    assert frameworks.installed() == []


def test_without_a_framework_that_is_what_is_missing(
    environment: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    environment({}, {})
    monkeypatch.setitem(sys.modules, "pynvml", None)
    found = abilities()
    assert [ability.frameworks for ability in found] == [()]
    lacks = {each.kind: each.lack for each in missing(found)}
    assert set(lacks) == {"every", "cuda", "tpu", "xla"}
    assert lacks["every"].command == "pip install torch"


class NVMLError(Exception):
    """As NVML raises it."""


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """NVML of a machine with one card: this one may have none."""
    nvml = SimpleNamespace(
        NVMLError=NVMLError, nvmlInit=lambda: None, nvmlShutdown=lambda: None, nvmlDeviceGetCount=lambda: 1,
        nvmlDeviceGetHandleByIndex=lambda index: "GPU-1", nvmlDeviceGetHandleByUUID=lambda uuid: uuid,
        nvmlDeviceGetUUID=lambda handle: handle, nvmlDeviceGetName=lambda handle: "NVIDIA H200",
        nvmlDeviceGetMemoryInfo=lambda handle: SimpleNamespace(total=2**37, used=2**30),
        nvmlDeviceGetTotalEnergyConsumption=lambda handle: 5_000_000,
    )  # fmt: skip
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return nvml


def test_a_card_that_the_installed_framework_cannot_use_is_told_with_what_mends_it(
    environment: Callable[..., None], card: SimpleNamespace
) -> None:
    environment({"torch": "2.13.0+cpu"}, torch("None"))
    gpu, cpu = abilities()
    assert (gpu.frameworks, cpu.frameworks) == ((), (Framework("torch", "2.13.0+cpu"),))
    assert "device" not in gpu.energy_unknown and "device" not in cpu.energy_unknown
    lacks = {each.kind: each.lack for each in missing([gpu, cpu])}
    assert lacks["cuda"] == Lack(
        "torch 2.13.0+cpu is built without CUDA", "pip install --force-reinstall torch==2.13.0"
    )


def test_a_card_whose_energy_nobody_counts_says_so(card: SimpleNamespace) -> None:
    [device] = CudaKind().find()
    assert CudaKind().why_no_energy(device) == ""
    del card.nvmlDeviceGetTotalEnergyConsumption
    assert "NVML doesn't count" in str(CudaKind().why_no_energy(device))
    card.nvmlDeviceGetUUID = lambda handle: "MIG-1"
    [part] = CudaKind().find()
    assert "divided" in str(CudaKind().why_no_energy(part))


@pytest.mark.parametrize(
    ("vendor", "kind", "told"),
    [
        ("0x10de", "0x030200", "an NVIDIA card is on the PCI bus, and NVML finds no driver: sudo ubuntu-drivers"),
        ("0x10de", "0x040300", "no NVIDIA card is on the PCI bus"),
        ("0x1234", "0x030200", "no NVIDIA card is on the PCI bus"),
    ],
)
def test_a_card_without_a_driver_is_seen_on_the_bus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, vendor: str, kind: str, told: str
) -> None:
    monkeypatch.setattr(cuda, "BUS", tmp_path)
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    slot = tmp_path / "0000:00:01.0"
    slot.mkdir()
    (slot / "vendor").write_text(f"{vendor}\n")
    (slot / "class").write_text(f"{kind}\n")
    lack = CudaKind().why_absent()
    assert lack is not None and lack.text.startswith(told)
