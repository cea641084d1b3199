"""What the kernel's counters say of the cores that a trial may use, and of its memory."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tuner.analysis.resources import ResourceSample, peak_host_bytes
from tuner.runner import tree
from tuner.runner.mapped_pages import SharedPages
from tuner.runner.tree import Tree, Usage, Wanted, cpu_times, own_bytes

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


def test_cores_that_a_container_numbers_anew_are_found(tmp_path: Path) -> None:
    """LXC shows a container its own cores alone, from 0 on; the kernel's masks have them by their numbers."""
    path = tmp_path / "stat"
    path.write_text(STAT)
    tick = 1 / os.sysconf("SC_CLK_TCK")
    assert cpu_times([4, 5, 6], str(path)) == pytest.approx((1498 * tick, 164 * tick))
    assert cpu_times([4, 5], str(path)) == (0.0, 0.0)


def test_this_machine_has_been_busy() -> None:
    busy, stolen = cpu_times(os.sched_getaffinity(0))
    assert busy > stolen >= 0


LENDER = """
import mmap, os, sys, time
memory = mmap.mmap(-1, 64 * 2**20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
memory.write(b"x" * len(memory))
def fork(count):
    child = os.fork()
    if not child:
        memory.seek(0)
        memory.write(b"y" * (32 * 2**20))
        others = fork(count - 1) if count > 1 else []
        print(os.getpid(), flush=True)
        time.sleep(600)
fork(int(sys.argv[1]))
time.sleep(600)
"""


@pytest.mark.parametrize("count", [1, 3])
def test_pages_that_a_server_shares_are_the_trees_alone(count: int) -> None:
    """Forks of a process with 64 MiB of its own, of which each writes to half: 64 MiB for the first, 32 for others."""
    with subprocess.Popen([sys.executable, "-c", LENDER, str(count)], stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        pids = [int(server.stdout.readline()) for _ in range(count)]
        try:
            shares, used = own_bytes(pids), own_bytes(pids, server.pid)
        finally:
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
            server.kill()
    expected = (64 + 32 * (count - 1)) * 2**20
    assert expected <= used < expected + (20 + 6 * count) * 2**20
    assert shares < used


RANK_LENDER = """
import mmap, os, sys, time
memory = mmap.mmap(-1, 64 * 2**20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
memory.write(b"x" * len(memory))
def forked(mib, workers):
    reader, writer = os.pipe()
    if os.fork():
        return os.read(reader, 1)
    memory.seek(0)
    memory.write(b"y" * (mib * 2**20))
    for _ in range(workers):
        forked(16, 0)
    print(os.getpid(), flush=True)
    os.write(writer, b".")
    time.sleep(600)
for _ in range(2):
    forked(32, int(sys.argv[1]))
time.sleep(600)
"""


@pytest.mark.parametrize("workers", [0, 2])
def test_pages_that_ranks_share_are_each_ranks_own(workers: int) -> None:
    """Each would have loaded its 64 MiB itself; a worker, a fork of its rank, has written to 16 MiB of those."""
    count = 2 * (1 + workers)
    with subprocess.Popen([sys.executable, "-c", RANK_LENDER, str(workers)], stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        pids = [int(server.stdout.readline()) for _ in range(count)]
        try:
            of_one, used = own_bytes(pids, server.pid), own_bytes(pids, server.pid, 2)
        finally:
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
            server.kill()
    expected = 2 * (64 + 16 * workers) * 2**20
    assert expected <= used < expected + (20 + 6 * count) * 2**20
    assert of_one < expected


FILE_LENDER = """
import mmap, os, subprocess, sys, time
touch = (
    "import mmap, sys, time; file = open(sys.argv[1], 'rb'); "
    "mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ); sum(mapped[::4096]); "
)
exec(touch)
if not os.fork():
    source = touch + "print('ready', flush=True); time.sleep(60)"
    worker = subprocess.Popen([sys.executable, "-c", source, sys.argv[1]], stdout=subprocess.PIPE)
    worker.stdout.readline()
    print(os.getpid(), worker.pid, flush=True)
    time.sleep(60)
time.sleep(60)
"""


def test_files_of_a_program_that_a_fork_started_count_once(tmp_path: Path) -> None:
    """It has mapped them itself: what the server has mapped is the tree's as well, and no more for it."""
    size = 128 * 2**20
    path = tmp_path / "library"
    path.write_bytes(bytes(size))
    with subprocess.Popen([sys.executable, "-c", FILE_LENDER, path], stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        pids = [int(pid) for pid in server.stdout.readline().split()]
        try:
            used, of_fork, of_worker = own_bytes(pids, server.pid), own_bytes(pids[:1], server.pid), own_bytes(pids[1:])
        finally:
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
            server.kill()
    assert size <= of_fork <= used < size + 40 * 2**20
    assert size <= of_worker <= used


def test_files_that_a_server_and_its_fork_have_both_touched_count_once(tmp_path: Path) -> None:
    """The fork of ``FILE_LENDER`` touches all of them again, and half of another file that is its own.

    Then it lets go of the first, as where memory is short, and touches another file: that is its own as well.
    """
    size = 128 * 2**20
    paths = [tmp_path / name for name in ("library", "own", "data")]
    for path, length in zip(paths, (size, size // 2, 2 * size), strict=True):
        path.write_bytes(bytes(length))
    source = FILE_LENDER.partition("    source")[0] + (
        "    sum(mapped[::4096]); kept = []\n"
        "    for path in sys.argv[2:]:\n        file = open(path, 'rb')\n"
        "        kept += [mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)]; sum(kept[-1][::4096])\n"
        "        print(os.getpid(), flush=True); sys.stdin.readline(); mapped.madvise(mmap.MADV_DONTNEED)\n"
        "time.sleep(60)\n"
    )
    command = [sys.executable, "-c", source, *map(str, paths)]
    pages, used, read, fork = SharedPages(), list[int](), list[Usage](), 0
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as server:
        assert server.stdin is not None and server.stdout is not None
        try:
            for _ in paths[1:]:
                fork = int(server.stdout.readline())
                used.append(own_bytes([fork], server.pid, shared=pages))
                read.append(Tree(server.pid, server.pid).read(math.inf))
                server.stdin.write(b"\n")
        finally:
            server.kill()
            if fork:
                os.kill(fork, signal.SIGKILL)
    for share, told in zip((1.5, 3.5), used, strict=True):
        assert share * size <= told < share * size + 40 * 2**20
    # What a fork takes until the next reading of shared pages is scaled by the ratio of these two.
    assert [usage.rss_bytes for usage in read] == pytest.approx(used, rel=0.02)


REPLACED = """
import os, subprocess, sys, time
memory = bytearray(os.urandom(64 * 2**20))
program = subprocess.Popen(["sleep", "60"])
print(program.pid, flush=True)
sys.stdin.readline()
program.kill()
program.wait()
if not os.fork():
    print(os.getpid(), flush=True)
time.sleep(60)
"""


def test_a_worker_forked_in_a_programs_place_shares_more_than_that_did(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two processes before and after: 64 MiB and a small program, then 64 MiB that both share. PSS is dear to read."""
    seconds = [0.0]

    def dear(*asked: Any) -> int:
        seconds[0] += 0.1
        return own_bytes(*asked)

    monkeypatch.setattr(tree, "own_bytes", dear)
    guard = subprocess.Popen(
        [sys.executable, "-c", f"import subprocess, sys; subprocess.run([sys.executable, '-c', {REPLACED!r}])"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    readings: list[Usage] = []
    with guard:
        assert guard.stdout is not None and guard.stdin is not None
        processes = Tree(guard.pid, clock=lambda: seconds[0])
        try:
            for _ in range(2):
                guard.stdout.readline()
                readings += [processes.read(2**40) for _ in range(2)]
                guard.stdin.write(b"go on\n")
                guard.stdin.flush()
                seconds[0] += 3.0
        finally:
            os.killpg(guard.pid, signal.SIGKILL)
    assert [reading.processes for reading in readings] == [2] * 4
    assert readings[2].rss_bytes > readings[0].rss_bytes + 60 * 2**20
    samples = [
        ResourceSample(t=reading.t, rss=reading.rss_bytes, pss=reading.pss_bytes, processes=reading.processes)
        for reading in readings
    ]
    assert peak_host_bytes(samples) < 100 * 2**20


def test_a_stranger_with_the_guards_pid_leads_to_no_process_of_the_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fork server's guard that was killed is reaped at once, and what another one with its pid has is left alone."""
    born = {os.getpid(): "100"}
    monkeypatch.setattr(tree, "_birth", lambda pid: born.get(pid, ""))
    watched = Tree(os.getpid())
    with subprocess.Popen(["sleep", "600"]) as started:
        try:
            born[started.pid] = "101"
            assert watched.pids() == [started.pid] and not watched.is_orphaned
            born[os.getpid()], born[started.pid] = "200", "201"
            assert watched.is_orphaned and watched.pids() == []
        finally:
            started.kill()


WORKING = """
import sys, time
computes, until = sys.argv[1] == "computes", time.monotonic() + 2
print("go", flush=True)
while time.monotonic() < until:
    if not computes:
        time.sleep(0.01)
"""


@pytest.mark.timed
@pytest.mark.parametrize(("kind", "low", "high"), [("computes", 0.5, 1.1), ("sleeps", 0.0, 0.4)])
def test_what_computes_beside_others_wants_a_core_and_what_sleeps_wants_none(
    kind: str, low: float, high: float
) -> None:
    """Both beside a process that never leaves the same core."""
    command = ["taskset", "-c", str(min(os.sched_getaffinity(0))), sys.executable, "-c", WORKING]
    with (
        subprocess.Popen([*command, "computes"], stdout=subprocess.PIPE) as other,
        subprocess.Popen([*command, kind], stdout=subprocess.PIPE) as watched,
    ):
        try:
            assert watched.stdout is not None and watched.stdout.readline()
            wanted, told = Wanted(), list[tuple[float, float | None]]()
            for _ in range(4):
                now = time.monotonic()
                told.append((now, wanted.read([watched.pid], now)))
                time.sleep(0.2)
        finally:
            other.kill()
            watched.kill()
    (began, before), (ended, after) = told[0], told[-1]
    if before is None or after is None:
        pytest.skip("this kernel doesn't tell for how long threads wait for a core")
    assert low < (after - before) / (ended - began) <= high


def test_threads_want_the_share_for_which_they_ran_of_the_time_in_which_they_had_a_core_or_slept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nanoseconds for which each ran and waited; the second one ends, and another thread gets its number."""
    readings = {
        10.0: {"7": (10**9, 0), "8": (5 * 10**8, 0)},
        11.0: {"7": (10**9 + 10**8, 8 * 10**8), "8": (5 * 10**8, 10**9)},
        12.0: {"7": (10**9 + 10**8, 8 * 10**8)},
        13.0: {"7": (10**9 + 10**8, 8 * 10**8), "8": (10**8, 0)},
    }
    wanted = Wanted()
    told = []
    for now, times in readings.items():
        monkeypatch.setattr(tree, "_times_of", lambda pid, times=times: list(times.items()))
        told.append(wanted.read([1], now))
    assert told == pytest.approx([1.5, 1.5 + 0.5 + 1.0, 3.0, 3.1]), "half of 0.2 s, and all of a second in the queue"
    monkeypatch.setattr(tree, "_times_of", lambda pid: [])
    assert wanted.read([1], 14.0) is None


@pytest.mark.parametrize(
    ("ran_s", "waited_s", "wants_s"),
    [
        (0.1, 0.9, 1.0),  # it computed for all of its second, and had a tenth of a core
        (0.1, 0.1, 0.125),  # it slept for most of it
        (0.5, 1.5, 2.0),  # of a process that was found a second after its birth
    ],
)
def test_a_thread_that_is_new_wants_what_it_waited_for_too(
    monkeypatch: pytest.MonkeyPatch, ran_s: float, waited_s: float, wants_s: float
) -> None:
    """Workers that end with each epoch are hardly read twice: what they waited for was left out."""
    wanted = Wanted()
    for now, times in ((10.0, {"7": (10**9, 0)}), (11.0, {"9": (int(ran_s * 1e9), int(waited_s * 1e9))})):
        monkeypatch.setattr(tree, "_times_of", lambda pid, times=times: list(times.items()))
        told = wanted.read([1], now)
    assert told == pytest.approx(1.0 + wants_s, rel=0.02)
