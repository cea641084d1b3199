"""A real study in a process of its own, its processes by role, and what it stored: for tests that kill any of it."""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from support import study_driver
from support.forked import pid_of
from tuner.runner.guard import stat_fields

DRIVER = Path(study_driver.__file__)
MARK = "AUTOTUNE_TEST_STUDY"
"""In the environment of every process of a study: what names its folder."""
# Two knobs are sure to gain, so that every phase has something to do; its loader has a worker.
SCRIPT = """
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
images = torch.randn(1024, 1, 8, 8)
dataset = TensorDataset(images, images[:, :, :2, :2].sum((1, 2, 3)).unsqueeze(1))
loader = DataLoader(dataset, batch_size=32, shuffle=True, num_workers=1, persistent_workers=True)
model = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(512, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
while True:
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        if not optimizer.param_groups[0].get("fused"):
            time.sleep(0.004)
        if next(model.parameters()).is_contiguous():
            time.sleep(0.004)
        optimizer.step()
"""
KNOBS = "precision,channels_last,optimizer,threads,num_workers"
OPTIONS = ("--trials", "7", "--rounds", "3", "--knobs", KNOBS, "--all-phases")


@dataclass(frozen=True)
class Process:
    """One process as /proc tells of it. ``born``: in ticks since boot; with the pid it names one process only."""

    pid: int
    parent: int
    state: str
    born: str
    command: str

    @property
    def is_guard(self) -> bool:
        """Whether it is the guard of a trial, started fresh or forked."""
        return "/tuner/runner/guard.py" in self.command


@dataclass
class KilledStudy:
    """A study in ``folder / "study"``, started and resumed by the same command. ``process``: the one that runs now."""

    folder: Path
    starts: int = 0
    process: subprocess.Popen[bytes] = field(init=False)

    def __post_init__(self) -> None:
        (self.folder / "tmp").mkdir(parents=True)
        (self.folder / "train.py").write_text(SCRIPT, encoding="utf-8")

    @property
    def study(self) -> Path:
        """The study's own folder."""
        return self.folder / "study"

    def start(self) -> None:
        """Starts the study, or resumes it."""
        self.starts += 1
        environment = {
            **os.environ, MARK: str(self.folder), "OMP_NUM_THREADS": "1", "TMPDIR": str(self.folder / "tmp"),
            "XDG_CACHE_HOME": str(self.folder / "cache"), "PYTHONPATH": ":".join(map(str, DRIVER.parents[:3])),
        }  # fmt: skip
        command = [sys.executable, str(DRIVER), str(self.study), "real", str(self.folder / "train.py"), *OPTIONS]
        with (self.folder / "output.txt").open("ab") as output:
            self.process = subprocess.Popen(
                [*command, "--notes", str(self.folder / "notes.txt")], stdin=subprocess.DEVNULL, stdout=output,
                stderr=output, env=environment, cwd=DRIVER.parents[2], start_new_session=True,
            )  # fmt: skip

    def end(self) -> None:
        """Kills whatever there is of it: a test that has failed leaves nothing to the next one."""
        self.process.kill()
        self.process.wait()
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def output(self) -> str:
        """The end of what every start of it printed, and its notes."""
        names = ("output.txt", "notes.txt")
        return "\n".join((self.folder / name).read_text()[-2000:] for name in names if (self.folder / name).exists())

    def processes(self) -> dict[int, Process]:
        """All that run of the study or are stopped, by pid; zombies, whose environment nobody can read, aren't told."""
        marked = f"{MARK}={self.folder}\0".encode()
        found = {}
        for name in filter(str.isdecimal, os.listdir("/proc")):
            try:
                if marked not in Path("/proc", name, "environ").read_bytes():
                    continue
                command = Path("/proc", name, "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue  # it ended while we looked
            fields = stat_fields(int(name))
            if fields is not None and fields[0] not in "ZX":
                found[int(name)] = Process(int(name), int(fields[1]), fields[0], fields[19], command)
        return found

    def roles(self) -> dict[str, list[Process]]:
        """What may be killed, by role: what lives of it at this moment.

        ``standing``: the script as written that lives beside trials; ``child``: the process of a trial, or of what
        hasn't told yet which it is.
        """
        processes = self.processes()
        standing = {pid_of(folder) for folder in (self.study / "standing").glob("[0-9]*")}
        found: dict[str, list[Process]] = {}
        for one in processes.values():
            role = self._role(one, processes, standing)
            if role:
                found.setdefault(role, []).append(one)
        return found

    def _role(self, one: Process, processes: dict[int, Process], standing: set[int | None]) -> str:
        if one.pid == self.process.pid:
            return "study"
        if one.is_guard:
            below = {other.pid for other in processes.values() if other.parent == one.pid}
            return "guard of the standing" if below & standing else "guard"
        parent = processes.get(one.parent)
        if parent is None:
            return ""  # what a killed guard has left
        if parent.pid == self.process.pid:
            return "server"
        if parent.is_guard:
            return "standing" if one.pid in standing else "child"
        grandparent = processes.get(parent.parent)
        if grandparent is None or not grandparent.is_guard:
            return ""
        return "worker of the standing" if parent.pid in standing else "worker"

    def rows(self) -> list[tuple[int, str, str, str, int | None]]:
        """Of each trial that the database knows: its number, phase, state, outcome as it is stored, and round."""
        try:
            with sqlite3.connect(f"file:{self.study / 'study.db'}?mode=ro", uri=True, timeout=30.0) as connection:
                return connection.execute(
                    "SELECT number, phase, state, coalesce(outcome, ''), round FROM trial ORDER BY number"
                ).fetchall()
        except sqlite3.OperationalError:
            return []  # it isn't there yet, or holds no tables


def gone(processes: dict[int, Process]) -> bool:
    """Whether all of them have ended; a zombie counts as one of the study's, unless only the system is left to reap it.
    """
    for one in processes.values():
        fields = stat_fields(one.pid)
        if fields is not None and fields[19] == one.born and not (fields[0] in "ZX" and fields[1] == "1"):
            return False
    return True
