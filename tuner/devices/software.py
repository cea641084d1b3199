"""Versions of everything that a rate may depend on."""

from __future__ import annotations

import platform

from tuner.devices import present
from tuner.devices.frameworks import version_of

_PACKAGES = (
    "torch", "torchvision", "torch_xla", "triton", "tensorflow", "keras", "jax", "optax", "flax", "lightning",
    "pytorch-lightning", "transformers", "accelerate", "timm", "numpy", "optuna",
)  # fmt: skip
_DISTRIBUTION = "autotune-study"


def software() -> dict[str, str]:
    """Name → version of Python, the system, the packages and the devices' drivers, without importing any of it."""
    versions = {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "kernel": platform.release(),
        "autotune": version_of(_DISTRIBUTION),
        **{name: version_of(name) for name in _PACKAGES},
    }
    for kind in present.KINDS:
        versions |= kind.software()
    return {name: version for name, version in versions.items() if version}
