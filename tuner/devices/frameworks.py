"""The frameworks of this environment, and what each lacks for a kind of device.

By their files alone: to import one takes seconds, and may occupy a device.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from tuner.devices.host import read_text

TORCH, TENSORFLOW, JAX = "torch", "tensorflow", "jax"
NAMES = (TORCH, TENSORFLOW, JAX)
"""Those that compute; Keras, Lightning and others compute by one of them."""
_DISTRIBUTIONS = {TENSORFLOW: ("tensorflow", "tensorflow-cpu", "tensorflow-tpu", "tf-nightly")}
"""Distributions of one package under other names."""
_BESIDE_TORCH = ("torchvision", "torchaudio")
"""Built for one build of PyTorch: whoever changes that changes them."""
TORCH_XLA = "pip install 'torch==2.9.*' 'torch_xla==2.9.*'"
TORCH_XLA_ON_TPU = "pip install 'torch==2.9.*' 'torch_xla[tpu]==2.9.*'"
_OF_TORCH_XLA = "2.9."
"""How the version of the PyTorch begins that they go with."""
_CUDNN = "libcudnn.so*"
_LIBRARIES = (
    "/usr/local/cuda/lib64", "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib",
)  # fmt: skip


@dataclass(frozen=True)
class Lack:
    """Something that is missing, for people, and the command that mends it; "" where there is no one command."""

    why: str
    command: str = ""

    @property
    def text(self) -> str:
        """Both in one line."""
        return f"{self.why}: {self.command}" if self.command else self.why


@dataclass(frozen=True)
class Framework:
    """A framework as it is installed; its version is "" where nobody says it."""

    name: str
    version: str

    @property
    def text(self) -> str:
        """Its name and version."""
        return f"{self.name} {self.version}".rstrip()

    @property
    def pin(self) -> str:
        """What keeps its version in a requirement, whatever its build."""
        return f"=={self.version.partition('+')[0]}" if self.version else ""


def is_installed(package: str) -> bool:
    """Whether a package can be imported, which isn't done here. A folder of that name on the path is none: Python takes
    one without code of its own for a package, too.
    """
    spec = importlib.util.find_spec(package)
    return spec is not None and spec.origin is not None


def installed() -> list[Framework]:
    """The frameworks that can be imported here."""
    return [Framework(name, version_of(name)) for name in NAMES if is_installed(name)]


def version_of(package: str) -> str:
    """The version of a package, under whichever name it is distributed; "" where it isn't installed."""
    for name in _DISTRIBUTIONS.get(package, (package,)):
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return ""


def lack_for_cuda(framework: Framework, libraries: Iterable[str] = _LIBRARIES) -> Lack | None:
    """What the framework lacks for NVIDIA's cards; None where nothing is known to be missing."""
    if framework.name == TORCH:
        return _torch_without_cuda(framework)
    if framework.name == TENSORFLOW:
        return _tensorflow_without_cuda(framework, libraries)
    return _jax_without_cuda(framework)


def _jax_without_cuda(framework: Framework) -> Lack | None:
    """JAX uses a plugin of jaxlib's own version, and computes on the processor beside any other."""
    plugins = {number: version_of(f"jax-cuda{number}-plugin") for number in (12, 13)}
    found = {number: version for number, version in plugins.items() if version}
    if not found:
        return Lack(f"{framework.text} has no plugin for CUDA", f"pip install 'jax[cuda12]{framework.pin}'")
    jaxlib = version_of("jaxlib")
    if not jaxlib or any(_release(version) == _release(jaxlib) for version in found.values()):
        return None
    number, version = next(iter(found.items()))
    return Lack(
        f"{framework.text} leaves its plugin for CUDA unused: that is {version}, and jaxlib is {jaxlib}",
        f"pip install 'jax[cuda{number}]{framework.pin}'",
    )


def _release(version: str) -> str:
    """Its numbers alone."""
    return re.sub(r"[^\d.].*", "", version).rstrip(".")


def beside_this_torch() -> str:
    """What is to be said behind "torch_xla is missing": its command would put another PyTorch in place of this one."""
    version = version_of(TORCH)
    if not version or version.startswith(_OF_TORCH_XLA):
        return ""
    return f", and needs an environment of its own, since it doesn't go with PyTorch {version}"


def lack_for_tpu(framework: Framework) -> Lack | None:
    """What the framework lacks for TPUs; None where nothing is known to be missing."""
    if framework.name == TORCH and not is_installed("torch_xla"):
        missing = f"torch_xla, by which PyTorch computes on TPUs, is missing{beside_this_torch()}"
        return Lack(missing, TORCH_XLA_ON_TPU)
    if framework.name == TENSORFLOW:
        is_for_tpus = version_of("tensorflow-tpu") or version_of("libtpu")
        return None if is_for_tpus else Lack(f"{framework.text} isn't built for TPUs", "pip install tensorflow-tpu")
    if version_of("libtpu"):
        return None
    command = TORCH_XLA_ON_TPU if framework.name == TORCH else f"pip install 'jax[tpu]{framework.pin}'"
    return Lack(f"{framework.text} finds no libtpu", command)


def _torch_without_cuda(framework: Framework) -> Lack | None:
    """``torch/version.py`` says what it was built for; the version's end doesn't always."""
    built_for = re.search(r"^cuda\b[^=\n]*= *(.+)$", _file_of(TORCH, "version.py"), re.MULTILINE)
    if built_for is None or built_for[1].strip() != "None":
        return None
    beside = [Framework(name, version_of(name)) for name in _BESIDE_TORCH]
    packages = " ".join(f"{each.name}{each.pin}" for each in (framework, *beside) if each.version)
    return Lack(f"{framework.text} is built without CUDA", f"pip install --force-reinstall {packages or TORCH}")


def _tensorflow_without_cuda(framework: Framework, libraries: Iterable[str]) -> Lack | None:
    told = _file_of(TENSORFLOW, "python/platform/build_info.py")
    wanted = f"pip install 'tensorflow[and-cuda]{framework.pin}'"
    if re.search(r"'is_cuda_build', False", told):
        others = [name for name in _DISTRIBUTIONS[TENSORFLOW][1:] if _has(name)]
        away = f"pip uninstall -y {' '.join(others)} && " if others else ""
        return Lack(f"{framework.text} is built without CUDA", away + wanted)
    has_cudnn = any(_has(f"nvidia-cudnn-cu{number}") for number in (12, 13))
    if told and not has_cudnn and not any(any(Path(folder).glob(_CUDNN)) for folder in libraries):
        return Lack(f"{framework.text} finds no cuDNN here", wanted)
    return None


def _has(distribution: str) -> bool:
    try:
        metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return False
    return True


def _file_of(package: str, name: str) -> str:
    """The text of one of the package's files; "" where it can't be read."""
    spec = importlib.util.find_spec(package)
    return read_text(Path(spec.origin).parent / name) if spec is not None and spec.origin else ""
