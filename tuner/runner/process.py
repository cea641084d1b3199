"""Runs trials in processes of their own, one or several by turns: raw records, and nothing left behind."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import shutil
import sys
import threading
import time
import weakref
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tuner.analysis.measurement import NOTHING_BESIDE, Beside
from tuner.analysis.race import Race
from tuner.devices.present import kind_of
from tuner.knowledge import Knowledge
from tuner.masking import all_without_secrets, secrets_of_environment
from tuner.model import Device, Outcome, OutcomeKind
from tuner.runner.classify import KILLED, EndedBy
from tuner.runner.created_files import made_so_far, move_created_files, note_missing
from tuner.runner.fork_servers import ForkServers
from tuner.runner.launch import CHILD, launch, load_servers
from tuner.runner.log_text import one_line
from tuner.runner.machine_memory import MachineMemory
from tuner.runner.request import ByTurns, Runner, TrialRequest
from tuner.runner.tree import oom_kills
from tuner.runner.turns import Exchange, NewFiles, Standing, keep_reference, take_turns
from tuner.runner.watch import TrialWatch
from tuner.storage.folder import make_private

_STARTS = 2
"""So often the script as written is started to take turns: one that is killed before it does says nothing of it, and
one that fails may do so by chance.
"""
_OF_A_MOMENT = frozenset({OutcomeKind.USER_ERROR, OutcomeKind.CRASHED})

NO_WINDOW = "it doesn't come to its window, as it is written, in time to take turns"


class ProcessRunner(Runner):
    """Runs each trial in a process of its own, fresh or forked, under a guard. Use it from one thread at a time."""

    takes_turns = True
    rotates = True

    def __init__(self, python: str = sys.executable, child: Path = CHILD) -> None:
        self._python = python
        self._child = child
        self._memory = MachineMemory()
        self._standing: Standing | None = None
        self._why_none_stands = ""
        self._alive: list[TrialWatch] = []
        self._turns = itertools.count(1)
        self._servers = ForkServers()
        weakref.finalize(self, self._servers.close)

    def close(self) -> None:
        """As ``Runner.close``: the script as written that lives for others to take turns with, and fork servers."""
        self._end_standing()
        self._servers.close()

    def _end_standing(self) -> None:
        standing, self._standing = self._standing, None
        if standing is not None:
            standing.resources.close()

    @property
    def kept_bytes(self) -> int:
        """As ``Runner.kept_bytes``."""
        samples = self._standing.watch.samples if self._standing is not None else []
        return next((sample.pss for sample in reversed(samples) if sample.pss is not None), 0)

    @property
    def why_no_forks(self) -> str:
        """Why trials aren't forked any more, for people; "" as long as they may be."""
        return self._servers.why_not

    def run(self, request: TrialRequest, stop: threading.Event) -> Outcome:
        """As ``Runner.run``. Raises ``Interrupted`` when ``stop`` is set, and nothing else."""
        if request.fresh:
            self.close()  # what proves something has the machine to itself
        else:
            self._end_standing()
        started = time.monotonic()
        around = self._surroundings(request)
        try:
            with contextlib.ExitStack() as resources:
                watch = self._begin(request, resources, stop)
                watch.run(stop)
        except OSError as error:
            return _infrastructure(error, request.folder, time.monotonic() - started)
        return around.outcome(watch, request, time.monotonic() - started)

    def run_by_turns(self, requests: Sequence[TrialRequest], stop: threading.Event) -> ByTurns:
        """As ``Runner.run_by_turns``; raises as ``run``.

        Each starts and warms up while the others are held, and so it is in their windows, turn by turn. Not everything
        stands still meanwhile: a request to a disk or a network that is under way comes back (see ``LEAD_IN_S`` of
        ``tuner.child.clock``), and what one makes among the user's files is hidden from those that start after it only.
        """
        self._end_standing()
        started = time.monotonic()
        around, new_files = self._surroundings(requests[0]), NewFiles()
        try:
            with contextlib.ExitStack() as resources:
                load_servers(self._servers, requests, self._python, self._child, stop)
                watches = self._begin_alike(requests, resources, around, stop)
                for request in requests:
                    new_files.begin(request.folder)
                take_turns(watches, self._turns, stop)
                obstacle = new_files.obstacle()
                written = [watch for watch, of in zip(watches, requests, strict=True) if not of.config]
                references = [
                    keep_reference(of, written[0].entries, written[0].samples)
                    if of.config and written else NOTHING_BESIDE for of in requests
                ]  # fmt: skip
        except OSError as error:
            seconds = (time.monotonic() - started) / len(requests)
            return ByTurns(tuple(_infrastructure(error, request.folder, seconds) for request in requests))
        # What nobody in particular took is everybody's.
        shared_s = (time.monotonic() - started - sum(watch.seconds for watch in watches)) / len(watches)
        outcomes = (
            around.outcome(watch, request, watch.seconds + max(0.0, shared_s), reference)
            for watch, request, reference in zip(watches, requests, references, strict=True)
        )
        return ByTurns(tuple(outcomes), obstacle)

    def _begin_alike(
        self, requests: Sequence[TrialRequest], resources: contextlib.ExitStack, around: _Surroundings,
        stop: threading.Event,
    ) -> list[TrialWatch]:  # fmt: skip
        """Each trial, held at its window: all of them forked, or all fresh.

        Where a server fails after another one has begun its trial, they begin again without any.
        """
        while True:
            with contextlib.ExitStack() as begun:
                watches: list[TrialWatch] = []
                for request in requests:
                    beside = [made for earlier in requests[: len(watches)] for made in made_so_far(earlier.folder)]
                    watches.append(self._begin(request, begun, stop, beside))
                    watches[-1].run(stop)
                if not self._servers.start_unlike:
                    resources.push(begun.pop_all())
                    return watches
            self._servers.close()
            for request in requests:
                shutil.rmtree(request.folder, ignore_errors=True)

    def run_beside(self, request: TrialRequest, written: TrialRequest, stop: threading.Event, race: Race) -> ByTurns:
        """As ``Runner.run_beside``; raises as ``run``, and nothing is kept alive then."""
        started = time.monotonic()
        try:
            standing = self._standing_for(written, stop)
            if standing is None:
                return ByTurns((), f"{NO_WINDOW} ({self._why_none_stands})")
            around = self._surroundings(request)
            with contextlib.ExitStack() as resources:
                watch = self._begin(request, resources, stop, made_so_far(standing.request.folder))
                watch.run(stop)
                exchange = Exchange(watch, request, lambda: self._standing_for(written, stop, request), race)
                beside = exchange.run(self._turns, stop)
        except OSError as error:
            self._end_standing()
            return ByTurns((_infrastructure(error, request.folder, time.monotonic() - started),))
        except BaseException:
            self._end_standing()
            raise
        outcome = around.outcome(watch, request, time.monotonic() - started, beside)
        return ByTurns((outcome,), exchange.obstacle)

    def _standing_for(
        self, written: TrialRequest, stop: threading.Event, beside: TrialRequest | None = None
    ) -> Standing | None:
        """The script as written, held and waiting for its turn; None where it doesn't come to its window, for the
        reason that ``_why_none_stands`` is then.

        ``beside``: a trial that is alive already, where it has to be started again.
        """
        standing = self._standing
        if standing is not None and standing.asked == written and standing.watch.waits:
            return standing
        self._end_standing()
        for _ in range(_STARTS):
            ended = self._start_standing(written, stop, beside)
            if ended is None:
                break
            self._why_none_stands = ended.detail or ended.reason or str(ended.kind)
            if ended.reason not in {*KILLED, EndedBy.GUARD_LOST} and ended.kind not in _OF_A_MOMENT:
                break
        return self._standing

    def _start_standing(
        self, written: TrialRequest, stop: threading.Event, beside: TrialRequest | None
    ) -> Outcome | None:
        """Keeps one as ``_standing`` where it comes to its window; else what it ended as."""
        taken = [int(path.name) for path in written.folder.glob("[0-9]*") if path.name.isdecimal()]
        request = replace(written, folder=written.folder / f"{max(taken, default=-1) + 1:04d}")
        around = self._surroundings(request)
        with contextlib.ExitStack() as resources:
            hidden = made_so_far(beside.folder) if beside is not None else ()
            watch = self._begin(request, resources, stop, hidden)
            if beside is not None:
                watch.ends_by = beside.ends_by
            watch.run(stop)
            if watch.waits:
                self._standing = Standing(written, request, watch, resources.pop_all())
                return None
        return around.outcome(watch, request, watch.seconds)

    def _surroundings(self, request: TrialRequest) -> _Surroundings:
        self._memory.begin()
        return _Surroundings(request.device)

    def _begin(
        self,
        request: TrialRequest,
        resources: contextlib.ExitStack,
        stop: threading.Event,
        hidden: Sequence[str] | None = None,
    ) -> TrialWatch:
        """Launches the trial; what ends it, and clears up after it, is left to ``resources``. What the device holds by
        then, of others and of trials that it takes turns with, isn't the trial's.

        ``hidden``: what trials have created that are alive beside it; None where it takes no turns with any.
        """
        move_created_files(request.folder, has_died=True)  # of an earlier run, killed together with its runner
        if request.made:
            make_private(request.folder)
            note_missing(request.folder, request.made)
        # Called last, when nothing of the trial runs any more.
        resources.callback(move_created_files, request.folder, keeps_data=not request.plain)
        kind = kind_of(request.device)
        strangers = self._alive[0].reader.strangers if self._alive else None
        reader = resources.enter_context(kind.reader(request.device, strangers))
        used_bytes = kind.used_bytes(request.device)
        launched = launch(
            request, self._python, self._child, used_bytes, hidden=hidden, servers=self._servers, stop=stop
        )
        after_the_guard = resources.enter_context(contextlib.ExitStack())
        resources.callback(launched.close)
        watch = TrialWatch(request, launched, reader, self._memory, self._alive)
        self._alive.append(watch)
        resources.callback(self._alive.remove, watch)
        after_the_guard.callback(watch.end_orphans)
        resources.callback(watch.close)
        return watch


class _Surroundings:
    """What was there before a trial was started, of the device and of the machine."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._kills = oom_kills()
        self.device_bytes = kind_of(device).used_bytes(device)

    def outcome(
        self, watch: TrialWatch, request: TrialRequest, seconds: float, beside: Beside = NOTHING_BESIDE
    ) -> Outcome:
        """What a trial ended as, of which nothing runs any more."""
        clean = kind_of(self._device).wait_until_clean(self._device, self.device_bytes)
        oom_killed = oom_kills() > self._kills
        outcome = watch.outcome(seconds, oom_killed=oom_killed, device_clean=clean, beside=beside)
        return _without_secrets(outcome, request)


def _without_secrets(outcome: Outcome, request: TrialRequest) -> Outcome:
    """What is stored, shown and reported of a trial comes from here; its raw files are the user's alone.

    Of the knowledge only what people read is looked at: the rest are names that the next trial has to find again.
    """
    given = (*request.script.argv, *secrets_of_environment(os.environ))
    known = outcome.knowledge
    remarks, left_out = all_without_secrets((known.remarks, dict(known.left_out)), given)
    told = all_without_secrets(replace(outcome, knowledge=Knowledge()), given)
    return replace(told, knowledge=replace(known, remarks=remarks, left_out=left_out))


def _infrastructure(error: OSError, folder: Path, seconds: float) -> Outcome:
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    reason = "disk-full" if full else "unwritable"
    where = error.filename or folder
    detail = one_line(f"can't keep the trial's files: {error.strerror or error} ({where})")
    return Outcome(OutcomeKind.INFRASTRUCTURE, reason, detail, seconds=seconds)
