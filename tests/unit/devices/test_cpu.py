"""The processor as a device: for how many devices JAX takes it."""

from __future__ import annotations

import pytest

from tuner.devices.cpu import CpuKind, host_devices

FLAG = "--xla_force_host_platform_device_count="


@pytest.mark.parametrize(
    ("variables", "devices"),
    [
        ({}, 1),
        ({"XLA_FLAGS": f"--xla_dump_to=x {FLAG}8"}, 8),
        ({"XLA_FLAGS": f"{FLAG}8 {FLAG}2"}, 2),
        ({"XLA_FLAGS": f"{FLAG}8", "JAX_NUM_CPU_DEVICES": "4"}, 4),
        ({"XLA_FLAGS": "--xla_dump_to=x", "JAX_NUM_CPU_DEVICES": "many"}, 1),
    ],
)
def test_the_environment_tells_for_how_many_devices_jax_takes_the_processor(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], devices: int
) -> None:
    """What a figure was measured with says so, where there are several."""
    assert host_devices(variables) == devices
    for name in ("XLA_FLAGS", "JAX_NUM_CPU_DEVICES"):
        monkeypatch.delenv(name, raising=False)
        if name in variables:
            monkeypatch.setenv(name, variables[name])
    assert CpuKind().software() == ({"host devices": str(devices)} if devices > 1 else {})
