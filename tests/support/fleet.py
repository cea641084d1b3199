"""A made-up best.json of several devices. No figure in it was measured."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from support import made_up
from tuner.export.profile import merged, profile_of
from tuner.model import Device, Energy, Measurement, Winner
from tuner.objective import Objective
from tuner.result import StudyResult

PLACE = "best.json"
THROUGHPUT = Objective("throughput", "samples/s", True, lambda measurement: measurement.rate)
SOFTWARE = dict(made_up.STUDY.software)
NO_RAPL = {"host": "this machine shows no counters of its energy (RAPL), as most virtual machines"}
CPU = Device("cpu", 0, "Imaginary CPU", "Imaginary CPU", 16 * 2**30)
CARD = Device("cuda", 0, "Imaginary GPU", "GPU-0", 80 * 2**30, "cuda:0")
CARD_WINNER = made_up.measured(
    61_000.0, low=59_800.0, high=62_100.0, peak_device_bytes=3 * 2**30, energy=Energy(0.0009, 0.0104, 0.0002)
)  # fmt: skip
CARD_WRITTEN = made_up.measured(
    40_000.0, low=39_000.0, high=41_000.0, peak_device_bytes=2 * 2**30, energy=Energy(0.0013, 0.0141, 0.0002)
)  # fmt: skip


WINNER = replace(made_up.WINNER, runs=5)
"""With as many runs as a rank takes."""


def of(device: Device, *, study: dict[str, Any] | None = None, **changes: Any) -> StudyResult:
    """The made-up study on a device, with other facts of the study and fields of the result."""
    facts = replace(made_up.STUDY, device=device, **(study or {}))
    found = {"winner": WINNER, **changes}
    return replace(made_up.RESULT, study=facts, objective=THROUGHPUT, **found)


def winner(written: Measurement, faster: Measurement) -> Winner:
    """The made-up winner with other figures."""
    return replace(WINNER, baseline=written, winner=faster)


ON_CPU = of(CPU, study={"cores": 4, "energy_unknown": NO_RAPL})
ON_CARD = of(
    CARD, study={"cores": 16, "software": {**SOFTWARE, "driver": "570.86", "torch": "2.13.0+cu128"}},
    winner=winner(CARD_WRITTEN, CARD_WINNER),
)  # fmt: skip


def content(*results: StudyResult) -> bytes:
    """The file to which each of these studies added its profile."""
    file: bytes | None = None
    for result in results:
        file = merged(file, profile_of(result), PLACE)
    return file or b""
