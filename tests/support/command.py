"""A folder with a script, where the real command is run."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

AUTOTUNE = str(Path(sys.executable).with_name("autotune"))
WITH_SHORT_WINDOWS = (sys.executable, str(Path(__file__).with_name("short_study.py")))
# Loading a batch and training on it are sleeps of one length, so that a worker doubles the speed whatever else the
# machine does. As it is, the script ends by itself before a whole window is measured, so that a trial is short.
SCRIPT = """
    import argparse
    import time

    import torch
    from torch.utils.data import DataLoader, Dataset

    class Slow(Dataset):
        def __len__(self):
            return 400

        def __getitem__(self, index):
            time.sleep(0.004)
            return torch.full((8,), index / 400), torch.ones(1)

    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=2.5)
    options = parser.parse_args()
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def train(loader):
        end = time.monotonic() + options.seconds
        while True:
            for inputs, targets in loader:
                optimizer.zero_grad()
                torch.nn.functional.mse_loss(model(inputs), targets).backward()
                optimizer.step()
                time.sleep(0.016)
                if time.monotonic() > end:
                    return

    if __name__ == "__main__":
        loader = DataLoader(Slow(), batch_size=4)
        train(loader)
        torch.save(model.state_dict(), "model.pt")
        print(f"workers={loader.num_workers} batch={loader.batch_size}")
"""


@dataclass(frozen=True)
class Place:
    """A folder with a script, where the command is run: ``autotune``, or as ``support.short_study`` runs it."""

    folder: Path
    command: tuple[str, ...] = (AUTOTUNE,)

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Starts the command; its locks are its own, so that tests may run beside somebody's study."""
        environment = {**os.environ, "XDG_CACHE_HOME": str(self.folder / ".cache")}
        return subprocess.Popen(
            [*self.command, *arguments], cwd=self.folder, env=environment, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    def run(self, *arguments: str, timeout_s: float = 240.0) -> subprocess.CompletedProcess[str]:
        """Runs the command to its end. Raises ``TimeoutExpired`` where it takes longer."""
        process = self.start(*arguments)
        try:
            output, errors = process.communicate(timeout=timeout_s)
        finally:
            process.kill()
        return subprocess.CompletedProcess(arguments, process.returncode, output, errors)

    def write(self, text: str, name: str) -> None:
        """Writes a script."""
        (self.folder / name).write_text(textwrap.dedent(text), encoding="utf-8")

    def processes(self) -> list[str]:
        """Trials that were started here and still live."""
        found = []
        for entry in Path("/proc").glob("[0-9]*/environ"):
            try:
                if str(self.folder).encode() in entry.read_bytes():
                    found.append((entry.parent / "cmdline").read_text().replace("\0", " "))
            except OSError:
                continue  # it ended meanwhile, or it's another user's
        return found


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    yield Place(tmp_path)
    assert Place(tmp_path).processes() == []
