"""Watches one trial's process until it has ended: its records, its memory, its limits."""

from __future__ import annotations

import contextlib
import math
import os
import selectors
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tuner.analysis.measurement import NOTHING_BESIDE, Beside, TimedBlock, knowledge_of, last_of, measurement_of
from tuner.analysis.resources import ResourceSample, crowded_out
from tuner.analysis.rotation import rotation_of
from tuner.child.records import Block, Exit, Phase, ScriptException, TurnEnd, WindowEnd
from tuner.child.wire import Entry
from tuner.devices.base import DeviceReader
from tuner.devices.energy import host_meter
from tuner.devices.host import spare_cores, usable_cores
from tuner.devices.present import kind_of
from tuner.formatting import above_text, bytes_text
from tuner.model import Outcome
from tuner.runner.classify import HOST_OOM, EndedBy, Traces, classify, classify_plain
from tuner.runner.held import Held, HeldTrial
from tuner.runner.journal import Journal
from tuner.runner.launch import Launched
from tuner.runner.line_reached import line_reached
from tuner.runner.log_text import last_line, traceback_in
from tuner.runner.machine_memory import FLOOR, MachineMemory
from tuner.runner.own_limit import limit_exceeded
from tuner.runner.plain.sitecustomize import WITHHELD
from tuner.runner.ranks import deciding, standing
from tuner.runner.request import Interrupted, TrialRequest
from tuner.runner.silence import Course, Idleness, Stage, stall
from tuner.runner.tree import Tree, Usage
from tuner.storage.folder import LOG, RESOURCES
from tuner.storage.records import sample_line

SAMPLE_S = 0.25
LEAVE_S = 10.0
LATE_S = 1.0
"""Trials that take turns are ended between two of them when the study's time is up; others so much later."""
_LOG_TAIL_BYTES = 64 * 1024
_OUT_OF_TIME = EndedBy.OUT_OF_TIME, "its part of the study's time was over"
"""The study itself may go on: with what takes less, or with a proof, for which time is kept."""
_SILENT = frozenset({EndedBy.DEADLINE, EndedBy.NO_PROGRESS, EndedBy.CROWDED_OUT})
"""Ends of which it is of use to know how far each of several ranks had come."""


@dataclass
class _Progress:
    """What deadlines count from: moments of the trial's own clock, and seconds in which nothing was computed."""

    started: float
    course: Course
    through: float | None = None
    idle_s: float | None = None

    def see(self, entry: Entry, now: float) -> None:
        """Of several ranks the first one leads; each that fails ends the trial."""
        record, leads = entry.record, not entry.rank
        if leads:
            self.course.see(record, now)
        through = isinstance(record, Exit) and (leads or record.code != 0)
        through |= leads and isinstance(record, WindowEnd) and record.complete
        if self.through is None and through:
            self.through = now


class TrialWatch:
    """Watches one trial until it has ended, by itself or by us. Sleeps in the selector between samples.

    A trial that takes turns is watched for one at a time, and held in between: its processes are stopped then, and no
    time goes by for it. ``waits``: whether it waits for its next turn; ``has_enough``, ``is_whole``: see ``TurnEnd``.
    ``blocks`` are those of its turns (rank 0's), without validation, and ``entries`` all that it sent. ``alive``: the
    trials that are alive at present, itself among them.
    """

    def __init__(
        self, request: TrialRequest, launched: Launched, reader: DeviceReader, memory: MachineMemory,
        alive: Sequence[TrialWatch] = (),
    ) -> None:  # fmt: skip
        self._request = request
        self._memory = memory
        self._launched = launched
        self._tree = Tree(launched.guard, launched.forked_from, request.ranks)
        self.reader = reader
        self._alive = alive
        self._journal = Journal(request.folder)
        self._samples: list[ResourceSample] = []
        self._samples_file = (request.folder / RESOURCES).open("w", encoding="ascii")
        self._progress = _Progress(launched.started, Course(time.monotonic()))
        # What an accelerator computes for long leaves the host idle as well.
        self._idleness = Idleness() if kind_of(request.device).is_host else None
        self._statuses = b""
        self._guard_gone = False
        self._held = Held(host_meter())
        self._ran_until = launched.started
        self._run_began = launched.started
        self.ends_by = request.ends_by
        self.waits = False
        self.has_enough = False
        self.is_whole = False
        self.blocks: list[TimedBlock] = []
        self._turnless = HeldTrial(launched.guard, self._tree.kill_now)
        self.status: int | None = None
        self.ended_by: EndedBy | None = None
        self.ended_detail = ""

    def close(self) -> None:
        """Closes the trial's files; the guard is closed by its owner."""
        self._turnless.close()
        self._journal.close()
        with contextlib.suppress(OSError):
            self._samples_file.close()

    def end_orphans(self) -> None:
        """Ends what the guard has left, once that has ended: nothing, unless it was killed itself."""
        if self._tree.is_orphaned:
            self._tree.kill_now()

    @property
    def entries(self) -> list[Entry]:
        """The records so far."""
        return self._journal.entries

    @property
    def pids(self) -> frozenset[int]:
        """Its processes, as they were last found."""
        return self._tree.seen

    def _siblings(self) -> list[int]:
        """The processes of the trials that are alive beside it."""
        return [pid for other in self._alive if other is not self for pid in other.pids]

    @property
    def samples(self) -> list[ResourceSample]:
        """What was read of its processes so far."""
        return self._samples

    @property
    def seconds(self) -> float:
        """From the trial's beginning to its end, or until it was held, without all that it was held."""
        return self._ran_until - self._progress.started

    def _now(self) -> float:
        """The trial's own clock: the monotonic one without what it was held."""
        return time.monotonic() - self._held.seconds

    def _hold(self) -> None:
        """Stops every process of the trial, which waits for its next turn."""
        self._tree.stop()
        self._sample()
        self._held.begin()
        self._turnless.hold()

    def _release(self) -> None:
        self._held.end()
        self._turnless.release()
        self.waits = False

    def go_on(self, turn: int) -> None:
        """Gives it its next turn, by number; ``END``: there are no more."""
        self._release()
        self._sample()  # what others have in a turn is the difference between its two ends
        self._launched.give_turn(turn)  # read once it is continued, at the same time as its loader's processes
        self._tree.cont()

    def run(self, stop: threading.Event) -> None:
        """Returns when the child has ended, or waits for its next turn and is held.

        Raises ``Interrupted``, and ``OSError`` on a full disk.
        """
        self._run_began = self._now()
        try:
            self._run(stop)
        finally:
            self._ran_until = self._now()
        if self.waits:
            self._hold()

    def _run(self, stop: threading.Event) -> None:
        next_sample = time.monotonic() + (SAMPLE_S if self._samples else 0.0)
        with selectors.DefaultSelector() as selector:
            selector.register(self._launched.records, selectors.EVENT_READ)
            selector.register(self._launched.statuses, selectors.EVENT_READ)
            while self.status is None and not self._guard_gone:
                for key, _ in selector.select(max(0.0, next_sample - time.monotonic())):
                    if not self._receive(key.fd):
                        selector.unregister(key.fd)
                if stop.is_set():
                    self._tree.kill()
                    raise Interrupted
                if self.waits:
                    return
                now = time.monotonic()
                if now >= next_sample:
                    # Late samples are skipped, not made up for: a machine under load gets no extra.
                    next_sample = now + SAMPLE_S
                    if self._end_if_due(self._sample(), self._now()):
                        return
        if self.status is None:
            self.ended_by, self.ended_detail = EndedBy.GUARD_LOST, "the process that guards the trial was killed"
        self._drain()
        self._tree.kill()

    def _receive(self, descriptor: int) -> bool:
        """Takes what has arrived; False at end of file."""
        data = os.read(descriptor, 1 << 16)
        if descriptor == self._launched.statuses:
            self._read_guard(data)
            return bool(data)
        for entry in self._journal.feed(data):
            self._progress.see(entry, self._now())
            self._see_turn(entry)
        return bool(data)

    def _see_turn(self, entry: Entry) -> None:
        record = entry.record
        if isinstance(record, TurnEnd):
            self.waits, self.has_enough, self.is_whole = True, record.enough, record.whole
        elif isinstance(record, Block) and not entry.rank:
            if record.phase is Phase.WARMUP:
                self.blocks.clear()  # it begins its window anew
            elif record.turn and not record.flagged:
                self.blocks.append((entry.t, record))

    def _read_guard(self, data: bytes) -> None:
        self._guard_gone = not data
        *lines, self._statuses = (self._statuses + data).split(b"\n")
        for line in lines:
            word, _, number = line.partition(b" ")
            if word == b"pid":
                self._tree.session = int(number)
            elif word == b"exit":
                self.status = int(number)

    def _drain(self) -> None:
        """Reads the records that were under way when the child ended; others may hold the pipe open still."""
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self._launched.records, 1 << 16):
                self._journal.feed(data)

    def _sample(self) -> Usage:
        cap = self._request.limits.max_host_bytes
        usage = self._tree.read(0.8 * cap if cap else math.inf, self._held.seconds)
        host_joules, memory_joules = self._held.counted()
        sample = ResourceSample(
            t=round(usage.t, 4),
            rss=usage.rss_bytes,
            pss=usage.pss_bytes,
            cpu_s=round(usage.cpu_s, 3),
            busy_s=round(usage.busy_s - self._held.busy_s, 3),
            steal_s=round(usage.steal_s - self._held.steal_s, 3),
            processes=usage.processes,
            card=self.reader.read(self.pids, self._siblings()),
            held_s=round(self._held.seconds, 4),
            cores=len(os.sched_getaffinity(0)),
            host_joules=host_joules,
            memory_joules=memory_joules,
            wanted_s=None if usage.wanted_s is None else round(usage.wanted_s, 3),
        )
        self._samples.append(sample)
        self._samples_file.write(sample_line(sample))
        self._samples_file.flush()
        if self._idleness is not None:
            self._progress.idle_s = self._idleness.see(usage)
        return usage

    def _end_if_due(self, usage: Usage, now: float) -> bool:
        """Kills the tree when a limit is reached, and remembers which."""
        began = self._run_began if self._request.standing else self._progress.started
        due = _due(self._request, self._progress, usage, self._memory.left(), now, lasted_s=now - began)
        if time.monotonic() > self.ends_by + LATE_S and self._progress.through is None:
            due = _OUT_OF_TIME
        if due is None:
            return False
        by, detail = due
        late_start = by is EndedBy.DEADLINE and self._progress.course.stage is Stage.START_UP
        if (late_start or by is EndedBy.NO_PROGRESS) and not self._request.plain:
            detail += line_reached(self._journal.entries, self.pids, self._request.folder / LOG)
        lacked = crowded_out(self._samples, self._progress.course.last, usable_cores(), spare_cores())
        if by is EndedBy.NO_PROGRESS and lacked:
            by, detail = EndedBy.CROWDED_OUT, f"{detail}; others had {lacked:.1f} cores that it wanted meanwhile"
        self._end((by, detail + standing(self._launched.steps_of_ranks()) if by in _SILENT else detail))
        return True

    def end_late(self) -> None:
        """Ends a trial that waits for a turn, since the study has no more time for it."""
        self._release()
        self._end(_OUT_OF_TIME)

    def _end(self, due: tuple[EndedBy, str]) -> None:
        self._drain()
        self._journal.end()
        self.ended_by, self.ended_detail = due
        self._tree.kill()
        self._drain()

    def outcome(
        self, seconds: float, *, oom_killed: bool, device_clean: bool, beside: Beside = NOTHING_BESIDE
    ) -> Outcome:
        """What the trial ended as, from everything it left. ``seconds``: what it took."""
        if self._request.plain:
            return self._plain_outcome(seconds, oom_killed=oom_killed)
        measurement = measurement_of(self._journal.entries, self._samples, beside)
        decided = deciding(self._journal.entries, self.status, self._printed)
        records = decided.records
        traces = Traces(
            records=records,
            baseline=not self._request.config and not self._request.rotation,
            status=decided.status,
            ended_by=self.ended_by if decided.rank is None else None,
            ended_detail=self.ended_detail,
            log=self._printed(decided.log),
            oom_killed=oom_killed,
            others_took=self._others_took(),
            measurable=measurement is not None,
        )
        kind, reason, detail = decided.judged(classify(traces))
        if self.ended_by is EndedBy.MACHINE_FULL and reason == HOST_OOM:
            detail = f"{detail}; {self._memory.shares()}"
        raised = last_of(records, ScriptException) or ScriptException("")
        knowledge = replace(
            knowledge_of(records), device_clean=device_clean, silences=self._progress.course.silences
        )  # fmt: skip
        rotation = rotation_of(self._journal.entries, self._samples)
        return Outcome(
            kind, reason, detail, raised.traceback, measurement, knowledge, seconds, raised.with_ours, rotation,
            rank=decided.rank, over_limit=limit_exceeded(reason, self.ended_by, raised.text, self._request.limits),
        )  # fmt: skip

    def _printed(self, log: str) -> str:
        return _tail(self._request.folder / log)

    def _others_took(self) -> str:
        return self._memory.taken_by_others(baseline=not self._request.config)

    def _plain_outcome(self, seconds: float, *, oom_killed: bool) -> Outcome:
        """What the script came to under plain Python, which sends no records."""
        decided = deciding(self._journal.entries, self.status, self._printed)
        log, withheld = self._printed(decided.log), self._printed(WITHHELD)
        others = self._others_took()
        traces = Traces(
            [], True, decided.status, self.ended_by, self.ended_detail, log, oom_killed=oom_killed, others_took=others
        )
        kind, reason, detail = decided.judged(classify_plain(traces, last_line(withheld)))
        return Outcome(kind, reason, detail or self.ended_detail, traceback_in(log), seconds=seconds, rank=decided.rank)


def _due(
    request: TrialRequest, progress: _Progress, usage: Usage, left: float, now: float, *, lasted_s: float
) -> tuple[EndedBy, str] | None:
    """Which limit has been reached, if any, and a line about it. ``left``: the share of the machine's memory."""
    limits, course = request.limits, progress.course
    cap = limits.max_host_bytes
    if progress.through is not None:
        if now - progress.through > LEAVE_S:
            return EndedBy.STAYED, f"the script was through, but its process stayed for {LEAVE_S:.0f} s"
        return None
    # RSS counts shared pages repeatedly: only a reading that tells them apart may end a trial.
    if cap and usage.pss_bytes is not None and usage.pss_bytes > cap:
        return EndedBy.HOST_OOM, f"its processes took {above_text(usage.pss_bytes, cap)}"
    # Beyond the cap as well: the kernel may choose the whole container, and so the study, to end.
    if left < FLOOR:
        taken = usage.pss_bytes if usage.pss_bytes is not None else usage.rss_bytes
        line = f"less than {FLOOR:.0%} of the machine's memory was left when its processes took {bytes_text(taken)}"
        return EndedBy.MACHINE_FULL, line
    if lasted_s > limits.trial_timeout_s:
        return EndedBy.DEADLINE, f"not through after {limits.trial_timeout_s:.0f} s{course.where()}"
    stalled = stall(course, limits, request.knowledge.silences, now, progress.idle_s)
    return (EndedBy.NO_PROGRESS, stalled) if stalled else None


def _tail(path: Path) -> str:
    """The end of the log, where the cause stands."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _LOG_TAIL_BYTES))
            return file.read().decode("utf-8", "replace")
    except OSError:
        return ""
