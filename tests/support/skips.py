"""Plugin: missing hardware is the only reason to skip a test; any other skip fails the run.

A test that needs an accelerator carries its mark, and is skipped here where there is none. XLA devices count as one:
torch_xla needs a PyTorch of its own, and `make test-xla` makes an environment with both, as `make test-jax` does with
optax and Flax. Everything else that a test needs is part of the test environment: who lacks it runs fewer tests than
they believe, so it is said as a failure. A skip is turned into a failure where it happens, in xdist's workers too.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Generator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tuner.devices.cuda import CudaKind
from tuner.devices.frameworks import Framework, is_installed, lack_for_cuda


@cache
def has_cuda() -> bool:
    """Whether PyTorch can use a CUDA device; where it isn't installed (`make test-jax`), whether there is one."""
    if not is_installed("torch"):
        return bool(CudaKind().find())
    import torch

    return bool(torch.cuda.is_available())


@cache
def has_tpu() -> bool:
    """Whether this machine has a TPU: its driver's device files."""
    return any(Path("/dev").glob("accel[0-9]*"))


def has_jax() -> bool:
    """Whether this environment has what is trained with on JAX: optax and Flax."""
    return all(importlib.util.find_spec(name) is not None for name in ("jax", "optax", "flax"))


def has_grain() -> bool:
    """Whether Grain is here beside JAX."""
    return all(importlib.util.find_spec(name) is not None for name in ("jax", "grain"))


def has_ml_collections() -> bool:
    """Whether ml_collections is here beside JAX."""
    return all(importlib.util.find_spec(name) is not None for name in ("jax", "ml_collections"))


@cache
def has_jax_cuda() -> bool:
    """Whether JAX can use a CUDA device: by its plugin's files, as JAX itself would take the card's memory."""
    return has_jax() and has_cuda() and lack_for_cuda(Framework("jax", "")) is None


def has_xla() -> bool:
    """Whether this environment has PyTorch's XLA devices."""
    return importlib.util.find_spec("torch_xla") is not None


def has_parsers() -> bool:
    """Whether the parsers of command lines are here that `make test` hasn't."""
    return all(importlib.util.find_spec(name) is not None for name in ("jax", "tyro", "hydra"))


HARDWARE: Mapping[str, Callable[[], bool]] = {
    "cuda": has_cuda, "tpu": has_tpu, "xla": has_xla, "jax": has_jax, "grain": has_grain, "jax_cuda": has_jax_cuda,
    "ml_collections": has_ml_collections, "parsers": has_parsers,
}  # fmt: skip


LIBRARIES = {
    "jax": "optax or Flax isn't installed (make test-jax)", "grain": "Grain isn't installed (make test-jax)",
    "ml_collections": "ml_collections isn't installed (make test-jax)",
    "parsers": "tyro or Hydra isn't installed (make test-jax)",
}  # fmt: skip
"""A mark of what is no hardware → why a test is skipped."""


def missing_hardware(item: pytest.Item) -> str:
    """The mark of the hardware that the test needs and this machine lacks, or an empty string."""
    return next((mark for mark, has in HARDWARE.items() if item.get_closest_marker(mark) and not has()), "")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skips a test whose hardware is missing, before its fixtures are made."""
    if missing := missing_hardware(item):
        pytest.skip(LIBRARIES.get(missing, f"there is no {missing.upper()} device"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Makes a failure of a skip for any other reason than missing hardware. An expected failure is no skip."""
    report = yield
    if report.skipped and not hasattr(report, "wasxfail") and not missing_hardware(item):
        _fail(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Makes an error of a module that skips itself, as by ``importorskip``."""
    report = yield
    if report.skipped:
        _fail(report)
    return report


def _fail(report: Any) -> None:
    reason = report.longrepr[-1] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    report.outcome = "failed"
    report.longrepr = f"skipped, though no hardware is missing: {reason}"
