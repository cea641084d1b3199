"""What the kernel's counters say of the cores that a trial may use."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tuner.runner.tree import cpu_times

#       user nice system idle iowait irq softirq steal guest guest_nice
STAT = """\
cpu  1000 0 0 0 0 0 0 1000 0 0
cpu0 100 10 20 9000 500 3 2 65 40 0
cpu1 200 0 0 9000 0 0 0 0 0 0
cpu10 999 0 0 9000 0 0 0 99 0 0
intr 1 2 3
"""


def test_stolen_time_is_part_of_the_busy_time_of_our_cores(tmp_path: Path) -> None:
    path = tmp_path / "stat"
    path.write_text(STAT)
    tick = 1 / os.sysconf("SC_CLK_TCK")
    assert cpu_times([0], str(path)) == pytest.approx((200 * tick, 65 * tick))
    assert cpu_times([0, 1], str(path)) == pytest.approx((400 * tick, 65 * tick))
    assert cpu_times([0], str(tmp_path / "absent")) == (0.0, 0.0)


def test_this_machine_has_been_busy() -> None:
    busy, stolen = cpu_times(os.sched_getaffinity(0))
    assert busy > stolen >= 0
