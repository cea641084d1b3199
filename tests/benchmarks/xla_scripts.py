"""Public torch_xla scripts, unmodified, as `autotune study --device xla` runs them: its count beside the runtime's own.

    git clone --branch v2.9.0 https://github.com/pytorch/xla
    .venv-xla/bin/pip install --no-deps torchvision==0.24.*
    .venv-xla/bin/python tests/benchmarks/xla_scripts.py xla

While the script as written is measured, a thread that knows nothing of autotune's hooks reads how many graphs XLA has
executed. Between the beginning of the window and its end those are the steps, and the samples by the script's own batch
size. A line a script: both rates, and how far they lie apart. The scripts are fetched by hand; nothing is downloaded.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tuner.child import wire
from tuner.child.records import Block, Phase

BIN = Path(sys.executable).parent
# Becomes sitecustomize: it is imported by every Python of the trial, and waits for the script to import the library.
COUNTER = """
import os, sys, threading, time
def count():
    with open(os.path.join(os.environ["GRAPH_COUNTS"], f"{os.getpid()}.txt"), "w", buffering=1) as file:
        while True:
            library = getattr(sys.modules.get("torch_xla"), "_XLAC", None)
            data = library._xla_metric_data("ExecuteTime") if hasattr(library, "_xla_metric_data") else None
            file.write(f"{time.monotonic()} {data[0] if data else 0}\\n")
            time.sleep(0.02)
threading.Thread(target=count, daemon=True).start()
"""


@dataclass(frozen=True)
class Public:
    """A script below the clone, its arguments, the samples of one step, as its arguments or its source have them."""

    path: str
    arguments: Sequence[str]
    samples: int


DECODER = (
    "--hidden-size", "64", "--num-layers", "1", "--num-attention-heads", "2", "--num-key-value-heads", "1",
    "--intermediate-size", "128", "--num-steps", "100000",
)  # fmt: skip
SCRIPTS = (
    Public("test/test_train_mp_mnist.py", ("--fake_data", "--batch_size=64"), 64),
    Public("test/test_train_mp_mnist_zero1.py", ("--fake_data", "--batch_size=64"), 64),
    Public("test/test_train_mp_mnist_fsdp_with_ckpt.py", ("--fake_data", "--batch_size=64"), 64),
    Public("test/test_train_mp_imagenet.py", ("--fake_data", "--model=resnet18", "--batch_size=4"), 4),
    Public("examples/train_decoder_only_base.py", DECODER, 16),
)


@dataclass(frozen=True)
class Found:
    """The two rates in samples a second, or why there are none."""

    autotune: float = 0.0
    runtime: float = 0.0
    why: str = ""

    def line(self, name: str) -> str:
        """For people."""
        if self.why:
            return f"{name:45} {self.why}"
        apart = abs(self.autotune / self.runtime - 1)
        return f"{name:45} {self.autotune:12.2f} {self.runtime:12.2f} {apart:8.1%}"


def study(clone: Path, public: Public, folder: Path) -> Found:
    """Runs the script as written under a study of its own, whose figures and records stay in ``folder``."""
    counts, site = folder / "counts", folder / "site"
    counts.mkdir()
    site.mkdir()
    (site / "sitecustomize.py").write_text(COUNTER)
    script = clone / public.path
    environment = {
        **os.environ, "PYTHONPATH": str(site), "GRAPH_COUNTS": str(counts), "XDG_CACHE_HOME": str(folder / "cache"),
    }  # fmt: skip
    command: list[str | Path] = [
        BIN / "autotune", "study", script, "--device", "xla", "--study", folder / "study", "--trials", "1",
        "--budget", "300s", "--trial-timeout", "280s", "--", *public.arguments,
    ]  # fmt: skip
    (folder / "home").mkdir()
    ran = subprocess.run(command, cwd=folder / "home", env=environment, capture_output=True, text=True, check=False)
    trial = folder / "study" / "trials" / "0000"
    try:
        return _compare(trial / "records.jsonl", counts, public)
    except (OSError, ValueError, IndexError) as error:
        return Found(why=f"{type(error).__name__}: {error}; status {ran.returncode}: {ran.stderr.strip()[-200:]}")


def _compare(records: Path, counts: Path, public: Public) -> Found:
    with records.open("rb") as stream:
        entries = [entry for entry in wire.decode(stream) if isinstance(entry.record, Block)]
    blocks = [(entry.t, entry.record) for entry in entries if isinstance(entry.record, Block)]
    window = [(t, block) for t, block in blocks if block.phase is Phase.WINDOW and not block.flagged]
    seconds, samples = sum(block.seconds for _, block in window), sum(block.samples for _, block in window)
    # The runtime counts a graph some milliseconds after it is through: to the nearest step, both ends are read later.
    late = min(0.5, seconds / sum(block.steps for _, block in window) / 2)
    begins, ends = window[0][0] - window[0][1].seconds + late, window[-1][0] + late
    steps = max(_graphs(path, begins, ends) for path in counts.iterdir())
    return Found(samples / seconds, steps * public.samples / (ends - begins))


def _graphs(path: Path, begins: float, ends: float) -> int:
    """Graphs that a process executed between two moments."""
    read = [line.split() for line in path.read_text().splitlines()]
    within = [int(graphs) for at, graphs in (pair for pair in read if len(pair) == 2) if begins <= float(at) <= ends]
    return within[-1] - within[0] if within else 0


def main() -> int:
    """Prints the table, and as JSON below it; 1 where a script gave no figure or the counts lie 5% apart."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("clone", type=Path, help="a clone of pytorch/xla")
    parser.add_argument("--only", default="", help="scripts whose path holds this")
    arguments = parser.parse_args()
    results = {}
    print(f"{'script':45} {'autotune':>12} {'runtime':>12} {'apart':>8}   samples/s")
    for public in SCRIPTS:
        if arguments.only not in public.path:
            continue
        folder = Path(tempfile.mkdtemp(prefix="xla-scripts-"))
        try:
            found = results[public.path] = study(arguments.clone.absolute(), public, folder)
            print(found.line(public.path), flush=True)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    print(json.dumps({name: vars(found) for name, found in results.items()}))
    good = [not found.why and abs(found.autotune / found.runtime - 1) <= 0.05 for found in results.values()]
    return 0 if good and all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
