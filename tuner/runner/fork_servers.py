"""Which trials are forked, and from which server: those of one study's script, in its own environment.

Whatever a fork can't give as a fresh process would starts fresh: see ``may_fork``. So does everything once a server has
said that it can't be forked, or two have failed.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tuner.child import wire
from tuner.devices.present import kind_of
from tuner.knowledge import Knowledge
from tuner.model import Config
from tuner.runner import rank_starter
from tuner.runner.fork_server import ForkedGuard, ForkedRank, ForkServer, ServerFault, ServerRefusal, Start
from tuner.runner.leading_imports import Import, imports_only_what_is_known, leading_imports
from tuner.runner.request import TrialRequest

SERVERS = 3
"""The layout of memory and the seed of ``hash`` are a server's: its trials share them. So trials take turns with it."""
AT_ONCE = 2
"""So many are loaded at once, where there are as many cores: the script as written lives off one through the search,
while trials come and go off another. One by one they take twice as long.
"""
WORTH_ANOTHER = 8
"""So many trials of each server, and another one is started beside them: that takes as long as a fresh start."""
FAULTS = 2
"""After so many, no server is used any more."""
AT_THE_START = frozenset({"threads", "allocator"})
"""Knobs that a process has to begin with."""
_OF_THE_WIRE = (wire.REQUEST_ENV, wire.RECORDS_ENV, wire.TURNS_ENV)
_OF_THE_TRIAL = ("MLFLOW_TRACKING_URI",)
"""Other variables that differ from trial to trial, and that nothing reads which a server imports."""
FRAMEWORKS: Mapping[str, frozenset[str]] = {
    "torch": frozenset({"torch"}), "keras": frozenset({"keras", "tensorflow"}), "jax": frozenset({"jax"}),
}  # fmt: skip
"""What trains, by ``Knowledge.framework`` → the packages of which the script has to import one at its top."""
_WITH_OPTIMIZERS: Import = (1, "torch._dynamo", ())
"""PyTorch 2.1 and newer import that when an optimizer is made: it takes half as long as the import of PyTorch."""
_MAY_CHANGE_IT = ("environ", "putenv", "dotenv", "dynamo", "inductor", "sys.modules")
"""Words of a source that may change what that import finds, or look whether it was done."""


@dataclass(frozen=True)
class Launch:
    """How a trial would be started fresh; each of its ranks, where it has several: in which environment but for what
    the ranks differ in.
    """

    request: TrialRequest
    command: Sequence[str]
    environment: Mapping[str, str]


def may_fork(request: TrialRequest) -> bool:
    """Whether the trial may start from a fork server: from one for itself alone where it is to be ``fresh``.

    Not before the baseline has shown what trains; nor with threads, which libraries read at their import, or an
    allocator, which a process has from its beginning; nor where a driver is met that nobody has tried it with, or
    several ranks elsewhere than on the host; nor modules, whose packages run code of the user's own first. A screen
    may: none of what a server imports draws a number that a seed decides.
    """
    return (
        not request.plain and (request.ranks == 1 or kind_of(request.device).is_host)
        and request.knowledge.framework in FRAMEWORKS
        and not AT_THE_START & set(request.config) and kind_of(request.device).may_fork(request.knowledge.framework)
        and bool(request.script.path) and not request.script.module
    )  # fmt: skip


@dataclass(frozen=True)
class _Basis:
    """What is the same for all trials of a server: a trial with another one starts fresh."""

    command: tuple[str, ...]
    script: str
    imports: tuple[Import, ...]
    folder: str
    cores: frozenset[int]
    environment: tuple[tuple[str, str], ...]
    apart: tuple[str, ...]


class Fork:
    """A server that is ready to start one trial, once. ``spared_s``: what that spares the trial's start, by the server
    that took least to be ready: all import the same. ``server``: its pid.
    """

    def __init__(self, servers: ForkServers, server: ForkServer) -> None:
        self._servers = servers
        self._server = server
        self.server = server.pid
        self.spared_s = servers.loaded_s

    def start(
        self, request: Path, environment: Mapping[str, str], log: int, given: Mapping[str, int],
        ranks: Sequence[ForkedRank] = (),
    ) -> ForkedGuard | None:  # fmt: skip
        """The trial's guard; None where the server failed: the trial has to start fresh.

        Descriptors and ranks: as in ``Start``.
        """
        variables = {name: environment.get(name) for name in _OF_THE_TRIAL}
        try:
            return self._server.start(Start(request, variables, log, given, ranks))
        except (ServerFault, OSError) as error:
            self._servers.lose(self._server, error)
            return None


class ForkServers:
    """The servers of one study, started one by one as they are needed, or all at once for trials that are to have one
    each. ``why_not``: why none is used, once that is so.
    """

    def __init__(self) -> None:
        self.alive: list[ForkServer] = []
        self.why_not = ""
        self.loaded_s = math.inf
        self._faults = 0
        self._basis: _Basis | None = None
        self._round: list[Config] = []
        self._rounds = 0
        self._next: list[ForkServer] = []

    def ready(self, trial: Launch, stop: threading.Event | None = None) -> Fork | None:
        """A server for this trial, started where there is none; None where the trial starts fresh.

        One that isn't ready by the trial's own end is a fault. Raises ``Interrupted`` when ``stop`` is set.
        """
        if self.why_not or not may_fork(trial.request):
            return None
        basis = _basis(trial)
        if basis is None or self._basis not in (None, basis):
            return None
        free = [server for server in self.alive if server.is_free]
        if trial.request.fresh:
            own = self._next.pop(0) if self._next else None
            return Fork(self, own) if own in free else None
        if len(self.alive) < SERVERS and all(server.trials >= WORTH_ANOTHER for server in free):
            count = 1 if self.alive else min(AT_ONCE, SERVERS, len(basis.cores))
            before = len(self.alive)
            loaded = self._load(basis, count, stop, trial.request.ends_by)
            return Fork(self, self.alive[before]) if loaded else None
        return Fork(self, min(free, key=lambda server: server.trials)) if free else None

    def load_for_each(self, trials: Sequence[Launch], stop: threading.Event) -> None:
        """Has a server for each of the trials, which start in this order, also where they are to be ``fresh``.

        They are those of the trials before, each config off another one than any time before, as long as there are
        such: what a server's layout of memory does to a rate then meets all configs alike. Else new ones are loaded,
        all at once, and every other ends. Where one of the trials can't be forked none is: they are to start alike.
        Raises ``Interrupted`` when ``stop`` is set.
        """
        bases = [_basis(trial) if may_fork(trial.request) else None for trial in trials]
        configs = [trial.request.config for trial in trials]
        if self.why_not or bases[0] is None or any(basis != (self._basis or bases[0]) for basis in bases):
            self.close()
        elif self._may_go_round(configs):
            self._rounds += 1
            self._next = [self.alive[(self._round.index(one) + self._rounds) % len(configs)] for one in configs]
        else:
            self.close()
            if self._load(bases[0], len(trials), stop):
                self._round, self._next = configs, [*self.alive]

    def _may_go_round(self, configs: Sequence[Config]) -> bool:
        """Whether each of the servers has begun one trial each time, and there is one for each config that never
        began it.
        """
        same = len({*configs}) == len(configs) == len(self.alive) and {*configs} == {*self._round}
        begun = all(server.is_free and server.trials == self._rounds + 1 for server in self.alive)
        return same and begun and self._rounds + 1 < len(configs)

    @property
    def start_unlike(self) -> bool:
        """Whether only some of the trials for which there were servers have started off them: others had failed."""
        started = sum(server.trials == self._rounds + 1 for server in self.alive)
        return 0 < started < len(self._round)

    def _load(
        self, basis: _Basis, count: int, stop: threading.Event | None = None, ends_by: float = math.inf
    ) -> bool:
        """Starts so many servers more, and waits until they are ready. Whether they are."""
        self._basis = basis
        with contextlib.ExitStack() as started:
            servers = []
            try:
                for _ in range(count):
                    environment = dict(basis.environment)
                    server = ForkServer(basis.command, environment, basis.script, basis.imports, basis.apart)
                    started.callback(server.close)
                    servers.append(server)
                for server in servers:
                    server.wait_until_ready(stop, ends_by)
            except (ServerFault, OSError) as error:
                self._count(error)
                return False
            started.pop_all()
        self.alive += servers
        self.loaded_s = min(self.loaded_s, *(server.loaded_s for server in servers))
        return True

    def lose(self, server: ForkServer, error: Exception) -> None:
        """A server has failed, and ends; another one may take its place."""
        self.alive.remove(server)
        server.close()
        self._count(error)

    def _count(self, error: Exception) -> None:
        self._faults += 1
        if isinstance(error, ServerRefusal) or self._faults >= FAULTS:
            self.why_not = self.why_not or str(error)

    def close(self) -> None:
        """Ends every server; trials that run go on."""
        self._round, self._rounds, self._next = [], 0, []
        while self.alive:
            self.alive.pop().close()


def _imports_with_optimizers(known: Knowledge, source: str, folder: Path) -> bool:
    """Whether the script makes optimizers of PyTorch's, and nothing that it runs could tell when that was imported.

    A package that nobody tried may set a variable that is read then, such as ``TORCH_COMPILE_DISABLE``. ``folder``: the
    script's own, which the paths of its modules go by.
    """
    version = [int(part) for part in re.findall(r"\d+", known.framework_version)[:2]]
    if known.framework != "torch" or not known.optimizers or version < [2, 1]:
        return False
    try:
        sources = [source, *((folder / path).read_text(encoding="utf-8") for path in known.module_hashes)]
    except (OSError, ValueError):
        return False
    own = {part for path in known.module_hashes for part in Path(path).with_suffix("").parts}
    if not all(imports_only_what_is_known(text, own) for text in sources):
        return False
    return not any(word in text for text in sources for word in _MAY_CHANGE_IT)


def _basis(trial: Launch) -> _Basis | None:
    """What a server for the trial would hold; None where that isn't worth a server, or the script can't be read."""
    request = trial.request
    script = os.path.abspath(request.script.path)
    try:
        source = Path(script).read_text(encoding="utf-8")
    except (OSError, ValueError):
        return None
    imports = leading_imports(source)
    if not any(name.partition(".")[0] in FRAMEWORKS[request.knowledge.framework] for _, name, _ in imports):
        return None
    if _imports_with_optimizers(request.knowledge, source, Path(script).parent):
        imports += (_WITH_OPTIMIZERS,)
    shared = tuple((name, value) for name, value in trial.environment.items() if name not in _OF_THE_WIRE)
    comparable = tuple((name, "" if name in _OF_THE_TRIAL else value) for name, value in shared)
    cores = frozenset(os.sched_getaffinity(0))  # by which a library may choose its threads when it is loaded
    apart = rank_starter.OWN if request.ranks > 1 else ()
    return _Basis(tuple(trial.command), script, imports, os.getcwd(), cores, comparable, apart)
