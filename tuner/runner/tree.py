"""Observes a trial's processes: which they are, their memory, their CPU time; and ends them."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from tuner.runner.guard import CLEARING_S, clears_up, descendants, kill_each, stat_fields
from tuner.runner.mapped_pages import PAGE_BYTES, SharedPages

_TICK_S = 1.0 / os.sysconf("SC_CLK_TCK")
TERM_GRACE_S = 2.0
KILL_PATIENCE_S = 5.0
STOP_PATIENCE_S = 0.05
# Walking /proc or a big process's page tables takes CPU beside what is measured: at most 1% of the time.
_OBSERVER_SHARE = 0.01


@dataclass(frozen=True)
class Usage:
    """One raw reading of a trial's tree. ``t`` is the monotonic clock; ``pss_bytes`` None when not read.

    ``busy_s`` is of all the cores that we may use, whoever used them; ``steal_s`` is the part of it that the
    hypervisor gave to other machines. ``wanted_s``: for how long the tree's threads would have run with a core for
    each, those that have ended as far as they were read; None where the kernel doesn't tell.
    """

    t: float
    rss_bytes: int
    pss_bytes: int | None
    cpu_s: float
    busy_s: float
    steal_s: float
    processes: int
    wanted_s: float | None = None


class Tree:
    """The processes below a guard. The guard adopts orphans, so the walk by parents finds every one.

    ``forked_from``: the fork server that it was forked from, None where it started fresh. What it shares with that one
    is its own in every reading, and each of its ``ranks``' own. ``session``: the pid of the trial's first process,
    whose session it leads; 0 before that is known.
    """

    def __init__(
        self, guard: int, forked_from: int | None = None, ranks: int = 1, *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._guard, self._guards_birth = guard, _birth(guard)
        self._forked_from = forked_from
        self._ranks = ranks
        self._clock = clock
        self._pids: list[int] = []
        self._born: dict[int, str] = {}
        self._next_walk = 0.0
        self._next_pss = 0.0
        self._soonest_pss = 0.0
        self._next_wanted = 0.0
        self._session = 0
        self._leader = ""
        self._shared = SharedPages()
        self._wanted = Wanted()

    @property
    def session(self) -> int:
        """As ``Tree`` says."""
        return self._session

    @session.setter
    def session(self, pid: int) -> None:
        self._session, self._leader = pid, _birth(pid)

    @property
    def seen(self) -> frozenset[int]:
        """The tree's processes as the last walk found them."""
        return frozenset(self._pids)

    def pids(self) -> list[int]:
        """The tree as it is now, with those that a dead guard no longer leads to: seen before, or of its session."""
        found = self._of_session() if self.is_orphaned else descendants(self._guard)
        # A pid is given again to strangers; with its start time it is one process's own.
        self._born = {pid: born for pid, born in self._born.items() if pid in found or _birth(pid) == born}
        for pid in found:
            self._born[pid] = _birth(pid)
        self._pids = [pid for pid, born in self._born.items() if born]
        return self._pids

    @property
    def is_orphaned(self) -> bool:
        """Whether the guard has ended; its pid may be a stranger's then."""
        return not self._guards_birth or _birth(self._guard) != self._guards_birth

    def _of_session(self) -> list[int]:
        """Those that live of the trial's session: none where its pid has become a stranger's."""
        if not self._session or _birth(self._session) not in ("", self._leader):
            return []
        every = {int(name): stat_fields(int(name)) for name in os.listdir("/proc") if name.isdigit()}
        return [pid for pid, fields in every.items() if fields and int(fields[_SESSION]) == self._session]

    def read(self, near_bytes: float, held_s: float = 0.0) -> Usage:
        """One reading. Shared pages are told apart once a second, more often above ``near_bytes`` of RSS. ``held_s``:
        for how long the tree was held so far.

        They are sooner where the processes aren't those of before: what a program that was started shared with the
        trial says nothing of a worker that is forked in its place. Nor is the share of an early reading that of a
        fork that has mapped more of its server's files since.
        """
        now = self._clock()
        if now >= self._next_walk or not self._pids:
            before_walk = self._pids
            if self.pids() != before_walk:
                self._next_pss = self._soonest_pss
            self._next_walk = self._next_time(now, 1.0)
        rss, pss = sum(rss_bytes(pid) for pid in self._pids), None
        is_due, before, readings = now >= self._next_pss and bool(self._pids), self._clock(), self._shared.readings
        if is_due:
            pss = own_bytes(self._pids, self._forked_from, self._ranks, self._shared)
        if self._forked_from is not None:  # without what they share: what a fork takes beyond a reading is all its own
            server = _shares(self._forked_from, "status")["RssFile"]
            rss += self._ranks * max(0, server - self._shared.newest_bytes)
        if is_due:
            self._soonest_pss = self._next_time(before, 0.2, 0.05)
            is_soon = rss > near_bytes or self._shared.readings > readings
            self._next_pss = self._soonest_pss if is_soon else self._next_time(before, 1.0)
        wanted = None
        if now >= self._next_wanted:
            before = self._clock()
            wanted = self._wanted.read(self._pids, now - held_s)
            self._next_wanted = self._next_time(before, 0.0)
        cpu = sum(_cpu_seconds(pid, own=True) for pid in self._pids) + _cpu_seconds(self._guard, own=False)
        busy, steal = cpu_times(os.sched_getaffinity(0))
        return Usage(now, rss, pss, cpu, busy, steal, len(self._pids), wanted)

    def _next_time(self, started: float, period_s: float, share: float = _OBSERVER_SHARE) -> float:
        now = self._clock()
        return now + max(period_s, (now - started) / share)

    def stop(self) -> None:
        """Has every process hold still, those too that are born meanwhile; waits until they do, for a moment."""
        signal_all(self._pids, signal.SIGSTOP)  # those that are known: a walk takes its time
        deadline = self._clock() + STOP_PATIENCE_S
        while moving := [pid for pid in self.pids() if not _is_stopped(pid)]:
            signal_all(moving, signal.SIGSTOP)
            if self._clock() >= deadline:
                return  # one that waits for a disk stops as soon as it has got what it waits for

    def cont(self) -> None:
        """Lets every process go on, in the reverse order: those first that others may wait for."""
        signal_all(reversed(self._pids), signal.SIGCONT)

    def kill(self) -> None:
        """TERM to every process, a grace, then KILL until none is left or patience ends.

        What clears up after the others gets no TERM: it ends by itself, and not before it has.
        """
        signal_all((pid for pid in self.pids() if not clears_up(pid)), signal.SIGTERM)
        # A stopped process sees TERM only when it is continued.
        signal_all(self._pids, signal.SIGCONT)
        if self._gone_within(TERM_GRACE_S):
            return
        self.kill_now()

    def kill_now(self) -> None:
        """KILL to every process, again for those born meanwhile; a moment later to what clears up after the others."""
        began = self._clock()
        while self.pids() and (passed_s := self._clock() - began) < KILL_PATIENCE_S:
            kill_each(self._pids, spares=passed_s < CLEARING_S)
            time.sleep(0.02)

    def _gone_within(self, seconds: float) -> bool:
        deadline = self._clock() + seconds
        while self.pids():
            if self._clock() >= deadline:
                return False
            time.sleep(0.02)
        return True


class Wanted:
    """How long threads would have run with a core for each, whoever used the cores: one that ran for r seconds of an
    interval, and slept for s, would have run for r of each r + s, whatever it was ready to run beside that and had no
    core. What computes all the time wants one of its own, what sleeps next to nothing.
    """

    def __init__(self) -> None:
        self._seconds = 0.0
        self._at = 0.0
        self._told: dict[str, tuple[int, int]] = {}
        """Of each thread that was there in the last reading, for how long it had run and waited by then."""

    def read(self, pids: Iterable[int], now: float) -> float | None:
        """Seconds of all threads of these processes so far, those that have ended as far as they were read; None where
        the kernel tells nothing. ``now``: by a clock that stands still while they are held.
        """
        told = dict(each for pid in pids for each in _times_of(pid))
        for thread, (ran, waited) in told.items():
            ran_before, waited_before = self._told.get(thread, (0, 0))
            if self._at and thread in self._told and ran >= ran_before:  # less: another one has its number
                self._seconds += _wanted((ran - ran_before) / 1e9, (waited - waited_before) / 1e9, now - self._at)
            else:  # a process may be found some readings after its birth
                lived_s = max(now - self._at, (ran + waited) / 1e9) if self._at else 0.0
                self._seconds += _wanted(ran / 1e9, waited / 1e9, lived_s)
        self._told, self._at = told, now
        return self._seconds if told else None


def _wanted(ran_s: float, waited_s: float, seconds: float) -> float:
    """Seconds of an interval for which a thread would have run with a core of its own."""
    awake = seconds - waited_s
    return max(ran_s, min(seconds, seconds * ran_s / awake)) if awake > 0 else max(ran_s, seconds)


def _times_of(pid: int) -> Iterator[tuple[str, tuple[int, int]]]:
    """Each thread of the process: the nanoseconds for which it ran, and for which it was ready to and had no core.
    Nothing where the kernel doesn't count them (it says 0 of what has run).
    """
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return
    for thread in threads:
        try:
            with open(f"/proc/{pid}/task/{thread}/schedstat", "rb") as file:
                ran, waited, *_ = map(int, file.read().split())
        except (OSError, ValueError):
            continue
        if ran:
            yield thread, (ran, waited)


def _is_stopped(pid: int) -> bool:
    """Whether the process holds still, is gone or a zombie."""
    fields = stat_fields(pid)
    return fields is None or fields[0] in "TtZX"


def _birth(pid: int) -> str:
    """The process's start time in ticks since boot; "" when it is gone or a zombie."""
    fields = stat_fields(pid)
    return "" if fields is None or fields[0] in "ZX" else fields[19]


def signal_all(pids: Iterable[int], number: signal.Signals) -> None:
    """Sends the signal to those that still live."""
    for pid in pids:
        try:
            os.kill(pid, number)
        except OSError:
            pass  # it ended by itself meanwhile


def rss_bytes(pid: int) -> int:
    """Resident pages; a page that several processes share counts for each."""
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:
            return int(file.read().split()[1]) * PAGE_BYTES
    except (OSError, IndexError, ValueError):
        return 0


def own_bytes(
    pids: Iterable[int], forked_from: int | None = None, ranks: int = 1, shared: SharedPages | None = None
) -> int:
    """Resident pages of a tree, one that its processes share counted once, as if nothing else ran on the machine.

    The kernel divides a page by the number of its sharers, and others may share what the tree uses: the script as
    written that a trial takes turns with has mapped the same libraries. No fewer pages are its own than its largest
    process has. RSS where the kernel doesn't tell.

    A tree that was forked lacks what the server has of their common memory, where it has several processes; and pages
    of files that the server has touched aren't mapped in a fork that hasn't. All of these are added, but not to what
    the tree has started as a program of its own: that has mapped its files itself. Pages of files that both the server
    and its fork have touched, 30 to 180 MiB, count once where the kernel tells which they are, else twice. ``shared``:
    what is known of them from the readings before.

    Several ``ranks``, each a fork of the same server, would have loaded the memory that they share with it once each:
    the server has it once, and no more is counted than all of them have mapped.
    """
    shares = {pid: _shares(pid) for pid in pids}
    server, shared = dict.fromkeys(_KINDS, 0), shared or SharedPages()
    begun: str | None = None
    if forked_from is not None:
        server = _shares(forked_from, *(_TELL if len(shares) > 1 else _TELL[1:]))
        begun = _stack_of(forked_from)
    anonymous = max(
        sum(share["Pss_Anon"] for share in shares.values()) + max(0, server["Pss_Anon"] - server["Private_Dirty"]),
        max((share["RssAnon"] for share in shares.values()), default=0),
    )
    if forked_from is not None and ranks > 1:
        anonymous += (ranks - 1) * max(0, server["RssAnon"] - server["Private_Dirty"])
        anonymous = min(anonymous, sum(share["RssAnon"] for share in shares.values()))
    mapped = [share["RssFile"] for share in shares.values()]
    if forked_from is not None and begun is not None:
        forks = {pid: share["RssFile"] for pid, share in shares.items() if _stack_of(pid) == begun}
        if forks:  # the one that has most: to read the pages of each of many workers would take too long
            pid, own = max(forks.items(), key=lambda fork: fork[1])
            mapped.append(own + max(0, server["RssFile"] - shared.read(pid, forked_from, own)))
    files = max(sum(share["Pss_File"] for share in shares.values()) + server["Pss_File"], max(mapped, default=0))
    return anonymous + files + sum(share["Pss_Shmem"] for share in shares.values())


def _stack_of(pid: int) -> str | None:
    """Where its stack begins: a fork's is its parent's, and a program that is started gets another one."""
    fields = stat_fields(pid)
    return fields[_START_OF_STACK] if fields is not None else None


_TELL = ("smaps_rollup", "status")
_KINDS = ("Pss_Anon", "Pss_File", "Pss_Shmem", "Private_Dirty", "RssAnon", "RssFile")
_SESSION = 3
_START_OF_STACK = 25
"""In ``stat_fields``; 0 for each process where the kernel tells nobody."""


def _shares(pid: int, *names: str) -> dict[str, int]:
    """Of one process: its shares of pages of each kind, and those that it has mapped; all RSS where nothing tells.

    ``names``: the files that are read, both by default. What of these tells nothing is 0.
    """
    told: dict[str, int] = {}
    for name in names or _TELL:
        try:
            with open(f"/proc/{pid}/{name}", encoding="ascii", errors="replace") as file:
                rows = [line.split() for line in file]
        except OSError:
            continue
        told |= {row[0].rstrip(":"): int(row[1]) * 1024 for row in rows if len(row) == 3 and row[2] == "kB"}
    if not names and not set(_KINDS) <= set(told):
        return dict.fromkeys(_KINDS, 0) | {"Pss_Anon": told.get("Pss", rss_bytes(pid))}
    return dict.fromkeys(_KINDS, 0) | told


def cpu_times(cores: Iterable[int], stat: str = "/proc/stat") -> tuple[float, float]:
    """CPU seconds since boot in which these cores were busy, whoever used them, and of those the stolen ones.

    A container may be shown its own cores alone, numbered anew: as many as these are these.
    """
    ours = {f"cpu{core}".encode() for core in cores}
    each: dict[bytes, tuple[int, int]] = {}
    try:
        with open(stat, "rb") as file:
            for line in file:
                fields = line.split()
                if not fields[0].startswith(b"cpu"):
                    break
                # user nice system irq softirq steal, not idle and iowait; guest time is part of user's.
                if fields[0] != b"cpu":
                    each[fields[0]] = sum(int(fields[i]) for i in (1, 2, 3, 6, 7, 8)), int(fields[8])
    except OSError:
        return 0.0, 0.0
    found = [times for core, times in each.items() if core in ours or len(each) == len(ours)]
    return sum(busy for busy, _ in found) * _TICK_S, sum(stolen for _, stolen in found) * _TICK_S


def oom_kills() -> int:
    """How many processes the kernel has killed for memory since boot, on this machine."""
    try:
        with open("/proc/vmstat", "rb") as file:
            for line in file:
                if line.startswith(b"oom_kill "):
                    return int(line.split()[1])
    except OSError:
        pass
    return 0


def _cpu_seconds(pid: int, *, own: bool) -> float:
    """CPU time of a process and of its reaped children; without ``own`` only of those (the guard's part)."""
    fields = stat_fields(pid)
    if fields is None or len(fields) < 15:
        return 0.0
    return sum(int(fields[i]) for i in ((11, 12, 13, 14) if own else (13, 14))) * _TICK_S
