"""A measurement is disturbed when others used more of the machine than it can bear."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tuner.model import Block, Device, Measurement, Outcome, OutcomeKind
from tuner.noise import contamination

CPU = Device("cpu", 0, "a CPU", "", 2**34)
CARD = Device("cuda", 0, "a card", "GPU-1", 2**36)
MEASURED = Measurement(
    samples_per_s=100.0, low=98.0, high=102.0, steps_per_s=3.0, unit="samples", blocks=(Block(32.0, 1, 0.32, 0.0),),
    data_wait_share=0.0, peak_host_bytes=1, peak_device_bytes=0, first_step_s=1.0, compile_s=0.0, losses=(),
    steady=True, cpu_s_per_sample=0.0, foreign_cpus=0.0,
)  # fmt: skip


@pytest.mark.parametrize(
    ("device", "cores", "foreign", "disturbed"),
    [(CPU, 2, 0.2, False), (CPU, 2, 0.3, True), (CPU, 64, 6.4, False), (CPU, 64, 6.5, True), (CARD, 8, 4.0, False),
     (CARD, 8, 4.1, True)],
)  # fmt: skip
def test_what_a_machine_can_bear(device: Device, cores: int, foreign: float, disturbed: bool) -> None:
    outcome = Outcome(OutcomeKind.COMPLETE, measurement=replace(MEASURED, foreign_cpus=foreign))
    told = contamination(outcome, device, cores)
    assert bool(told) == disturbed
    assert not told or f"{foreign:.1f} of {cores} cores" in told


def test_what_was_not_measured_was_not_disturbed() -> None:
    assert contamination(Outcome(OutcomeKind.COMPLETE), CPU, 2) == ""
    loud = replace(MEASURED, foreign_cpus=9.0)
    assert contamination(Outcome(OutcomeKind.CRASHED, measurement=loud), CPU, 2) == ""
