"""Versions of everything that a rate may depend on."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping
from pathlib import Path

from tuner.devices import present
from tuner.devices.frameworks import TENSORFLOW, version_of

_PACKAGES = (
    "torch", "torchvision", "torch_xla", "triton", "tensorflow", "keras", "jax", "optax", "flax", "lightning",
    "pytorch-lightning", "transformers", "accelerate", "timm", "numpy", "optuna",
)  # fmt: skip
HOMELESS = "/tmp"
"""Where Keras keeps its file in place of a home that it can't write to."""
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


def keras_backend(variables: Mapping[str, str] = os.environ) -> str:
    """With what Keras computes by its variable, else by its own file; "" where there is no Keras. A script may choose
    another one by itself.
    """
    if not version_of("keras"):
        return ""
    if variables.get("KERAS_BACKEND"):
        return variables["KERAS_BACKEND"]
    home = variables.get("HOME") or os.path.expanduser("~")
    usual = Path(home if os.access(home, os.W_OK) else HOMELESS, ".keras")
    place = Path(os.path.expanduser(variables.get("KERAS_HOME", usual)), "keras.json")
    try:
        settings: object = json.loads(place.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        settings = {}
    named = settings.get("backend") if isinstance(settings, dict) else None
    return named if isinstance(named, str) else TENSORFLOW
