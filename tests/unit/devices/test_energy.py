"""The host's energy on made-up powercap trees: what is counted, once and all of it, and why it isn't."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from tuner.devices.energy import HostMeter, host_meter, why_no_host_energy

MOST = 262_143_328_850
ALL = (8, 8)


def zone(folder: Path, name: str, microjoules: int | None, most: int | None = MOST) -> Path:
    """A zone as the kernel shows it; without a counter where nobody but root may read it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "name").write_text(f"{name}\n")
    if microjoules is not None:
        (folder / "energy_uj").write_text(f"{microjoules}\n")
    if most is not None:
        (folder / "max_energy_range_uj").write_text(f"{most}\n")
    return folder / "energy_uj"


def server(root: Path) -> dict[str, Path]:
    """Two packages with their memory, and what would count a part of them again. The class has links to all zones."""
    counters = {
        "package 0": zone(root / "intel-rapl:0", "package-0", 1_000_000),
        "memory 0": zone(root / "intel-rapl:0" / "intel-rapl:0:1", "dram", 2_000_000),
        "cores 0": zone(root / "intel-rapl:0" / "intel-rapl:0:0", "core", 0),
        "package 1": zone(root / "intel-rapl:1", "package-1", 3_000_000),
        "machine": zone(root / "intel-rapl:2", "psys", 0),
        "again": zone(root / "intel-rapl-mmio:0", "package-0", 0),
    }
    (root / "intel-rapl:0:1").symlink_to(root / "intel-rapl:0" / "intel-rapl:0:1")
    (root / "intel-rapl").mkdir()
    return counters


def advance(counters: Mapping[str, Path], joules: float) -> None:
    for counter in counters.values():
        counter.write_text(f"{(int(counter.read_text()) + round(joules * 1e6)) % (MOST + 1)}\n")


def test_packages_and_their_memory_count_once(tmp_path: Path) -> None:
    counters = server(tmp_path)
    meter = HostMeter(tmp_path)
    assert meter.read() == 0.0
    advance(counters, 10.0)
    assert meter.read() == pytest.approx(30.0), "two packages and one memory"
    advance(counters, 2.5)
    assert meter.read() == pytest.approx(37.5), "since it was made"
    assert meter.memory_joules == pytest.approx(12.5)


def test_a_counter_that_begins_again_is_followed(tmp_path: Path) -> None:
    counter = zone(tmp_path / "intel-rapl:0", "package-0", MOST - 4_999_999)
    meter = HostMeter(tmp_path)
    for turn in range(1, 4):
        counter.write_text("5000000\n")
        assert meter.read() == pytest.approx(10.0 * turn + (MOST - 9_999_999) / 1e6 * (turn - 1))
        counter.write_text(f"{MOST - 4_999_999}\n")
        meter.read()


def test_a_counter_whose_end_nobody_says_is_not_guessed(tmp_path: Path) -> None:
    counter = zone(tmp_path / "intel-rapl:0", "package-0", 9_000_000, most=None)
    meter = HostMeter(tmp_path)
    counter.write_text("9500000\n")
    assert meter.read() == pytest.approx(0.5)
    counter.write_text("5\n")
    assert meter.read() is None
    counter.write_text("9\n")
    assert meter.read() is None, "what went by is gone for good"


def test_a_part_does_not_pass_for_the_whole(tmp_path: Path) -> None:
    counters = server(tmp_path)
    meter = HostMeter(tmp_path)
    counters["memory 0"].unlink()
    assert meter.read() is None
    counters["memory 0"].write_text("4000000\n")
    assert meter.read() is None


@pytest.mark.parametrize(
    ("names", "cores", "why"),
    [
        ((), ALL, "shows no counters of its energy"),
        (("psys",), ALL, "shows no counters of its energy"),
        (("package-0",), ALL, ""),
        (("package-0",), (2, 8), "those of all 8 cores, and 2 may be used here"),
    ],
)
def test_why_it_is_not_known(tmp_path: Path, names: tuple[str, ...], cores: tuple[int, int], why: str) -> None:
    for number, name in enumerate(names):
        zone(tmp_path / f"intel-rapl:{number}", name, 1)
    told = why_no_host_energy(tmp_path, cores)
    assert (why in told) and bool(told) is bool(why)
    assert (host_meter(tmp_path, cores) is None) is bool(why)


def test_counters_for_root_alone_are_told_with_what_opens_them(tmp_path: Path) -> None:
    zone(tmp_path / "intel-rapl:0", "package-0", None)
    assert why_no_host_energy(tmp_path, ALL).endswith("sudo chmod -R a+r /sys/class/powercap/intel-rapl*")
    assert host_meter(tmp_path, ALL) is None
