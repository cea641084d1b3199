"""Runs trials in processes of their own, one or several by turns: raw records, and nothing left behind."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tuner.child.turns import END
from tuner.devices.present import kind_of
from tuner.knowledge import Knowledge
from tuner.masking import all_without_secrets, secrets_of_environment
from tuner.model import Outcome, OutcomeKind
from tuner.runner.classify import one_line
from tuner.runner.created_files import made_so_far, move_created_files
from tuner.runner.launch import CHILD, launch
from tuner.runner.machine_memory import MachineMemory
from tuner.runner.request import TrialRequest
from tuner.runner.tree import oom_kills
from tuner.runner.watch import TrialWatch


class ProcessRunner:
    """Runs each trial in a fresh process, under a guard that dies last. Use it from one thread at a time."""

    def __init__(self, python: str = sys.executable, child: Path = CHILD) -> None:
        self._python = python
        self._child = child
        self._memory = MachineMemory()

    def run(self, request: TrialRequest, stop: threading.Event) -> Outcome:
        """Runs the trial to its outcome. Raises ``Interrupted`` when ``stop`` is set, and nothing else."""
        return self._run([request], stop, by_turns=False)[0]

    def run_by_turns(self, requests: Sequence[TrialRequest], stop: threading.Event) -> list[Outcome]:
        """Runs trials of one device beside each other to their outcomes, in their order; raises as ``run``.

        Each starts and warms up while the others are held, and so it is in their windows, turn by turn. Not everything
        stands still meanwhile: a request to a disk or a network that is under way comes back, which is worth most to a
        loop that waits for such a loader. And what one makes among the user's files is hidden from those that start
        after it only. What is proven by turns has to rule out both.
        """
        return self._run(requests, stop, by_turns=True)

    def _run(self, requests: Sequence[TrialRequest], stop: threading.Event, *, by_turns: bool) -> list[Outcome]:
        started = time.monotonic()
        device = requests[0].device
        kind = kind_of(device)
        device_bytes = kind.used_bytes(device)
        kills = oom_kills()
        self._memory.begin()
        watches: list[TrialWatch] = []
        try:
            for request in requests:
                move_created_files(request.folder)  # of an earlier run, which was killed together with its runner
            with contextlib.ExitStack() as resources:
                for number, request in enumerate(requests):
                    beside = [made for earlier in requests[:number] for made in made_so_far(earlier.folder)]
                    watches.append(self._begin(request, resources, device_bytes, beside if by_turns else None))
                    watches[-1].run(stop)
                _take_turns(watches, stop)
        except OSError as error:
            seconds = (time.monotonic() - started) / len(requests)
            return [_infrastructure(error, request.folder, seconds) for request in requests]
        clean = kind.wait_until_clean(device, device_bytes)
        oom_killed = oom_kills() > kills
        lasted = [watch.seconds for watch in watches] if by_turns else [time.monotonic() - started]
        outcomes = [
            watch.outcome(seconds, oom_killed=oom_killed, device_clean=clean)
            for watch, seconds in zip(watches, lasted, strict=True)
        ]
        return [_without_secrets(*pair) for pair in zip(outcomes, requests, strict=True)]

    def _begin(
        self,
        request: TrialRequest,
        resources: contextlib.ExitStack,
        device_bytes: int | None,
        hidden: Sequence[str] | None,
    ) -> TrialWatch:
        """Launches the trial; what ends it, and clears up after it, is left to ``resources``.

        ``hidden``: what trials have created that are alive beside it; None where it takes no turns with any.
        """
        # Called last, when nothing of the trial runs any more.
        resources.callback(move_created_files, request.folder, keeps_data=not request.plain)
        reader = resources.enter_context(kind_of(request.device).reader(request.device))
        began = time.monotonic()
        launched = launch(request, self._python, self._child, device_bytes, hidden=hidden)
        resources.callback(launched.close)
        watch = TrialWatch(request, launched, reader, self._memory, began)
        resources.callback(watch.close)
        return watch


def _take_turns(watches: Sequence[TrialWatch], stop: threading.Event) -> None:
    """Gives turns to those that wait, until every window is as long as asked for.

    The next one goes to whoever has had least time: steps, and so turns, may be longer in one than in another, and what
    the machine does for seconds at a time is to meet all alike.
    """
    turn = 0
    while waiting := [watch for watch in watches if watch.waits]:
        turn += 1
        is_over = all(watch.has_enough for watch in waiting)
        for watch in waiting if is_over else [min(waiting, key=lambda watch: watch.turns_s)]:
            watch.go_on(END if is_over else turn)
            watch.run(stop)


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
