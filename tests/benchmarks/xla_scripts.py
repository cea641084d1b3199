"""Public torch_xla scripts, unmodified, as `autotune study --device xla` runs them: its count beside the runtime's own.

    git clone --branch v2.9.0 https://github.com/pytorch/xla
    .venv-xla/bin/pip install --no-deps torchvision==0.24.*
    .venv-xla/bin/python tests/benchmarks/xla_scripts.py xla

While the script as written is measured, a thread that knows nothing of autotune's hooks reads how many graphs XLA has
executed, or, of scripts that compute operation by operation, how often an optimizer has stepped by PyTorch's own hook.
Between the beginning of the window and its end those are the steps, and the samples by the rows of the script's batch.
A line a script: both rates, and how far they lie apart. The scripts are fetched by hand; nothing is downloaded.

The scripts with a ResNet have no option for the size of images. Their made-up data, 128 images of 224 pixels, would
take a processor minutes a step: they are cut to 4 images of 64 as `SampleGenerator` is given them; the scripts stay as
they are. A decoder whose size is no option gets a smaller configuration likewise.
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
# Becomes sitecustomize: it is imported by every Python of the trial, and waits for the script to import the libraries.
COUNTER = """
import os, sys, threading, time
stepped = [0]
def count():
    hooked = False
    with open(os.path.join(os.environ["GRAPH_COUNTS"], f"{os.getpid()}.txt"), "w", buffering=1) as file:
        while True:
            library = getattr(sys.modules.get("torch_xla"), "_XLAC", None)
            data = library._xla_metric_data("ExecuteTime") if hasattr(library, "_xla_metric_data") else None
            optim = sys.modules.get("torch.optim.optimizer")
            if not hooked and hasattr(optim, "register_optimizer_step_post_hook"):
                optim.register_optimizer_step_post_hook(lambda *_: stepped.__setitem__(0, stepped[0] + 1))
                hooked = True
            file.write(f"{time.monotonic()} {data[0] if data else 0} {stepped[0]}\\n")
            time.sleep(0.02)
threading.Thread(target=count, daemon=True).start()
"""
# Behind it: what a module's names are given once it is imported.
SMALLER = """
import importlib.machinery
def images(module):
    init = module.SampleGenerator.__init__
    def smaller(self, data, sample_count):
        init(self, tuple(each[:4, :, :64, :64] if each.dim() == 4 else each[:4] for each in data), sample_count)
    module.SampleGenerator.__init__ = smaller
def decoder(module):
    names = module.DecoderOnlyConfig.__dataclass_fields__
    sizes = dict(
        hidden_size=64, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1, intermediate_size=128
    )
    module.DecoderOnlyConfig.__init__.__defaults__ = tuple(sizes.get(n, f.default) for n, f in names.items())
CHANGES = {"torch_xla.utils.utils": images} if os.environ["SMALLER"] == "images" else {"decoder_only_model": decoder}
class Finder:
    def find_spec(self, name, path=None, target=None):
        spec = importlib.machinery.PathFinder.find_spec(name, path) if name in CHANGES else None
        if spec is not None:
            load = spec.loader.exec_module
            def changed(module):
                load(module)
                CHANGES[name](module)
            spec.loader.exec_module = changed
        return spec
sys.meta_path.insert(0, Finder())
"""


@dataclass(frozen=True)
class Public:
    """A script below the clone, its arguments, the samples of one step, as its arguments or its source have them.

    ``smaller``: what is made smaller for a processor. ``eager``: it computes operation by operation. ``checks_every``:
    once in so many steps it executes a graph of its own beside them, such as whether its loss is a number.
    """

    path: str
    arguments: Sequence[str]
    samples: int
    smaller: str = ""
    eager: bool = False
    checks_every: int = 0


DECODER = (
    "--hidden-size", "64", "--num-layers", "1", "--num-attention-heads", "2", "--num-key-value-heads", "1",
    "--intermediate-size", "128", "--num-steps", "100000",
)  # fmt: skip
SCRIPTS = (
    Public("test/test_train_mp_mnist.py", ("--fake_data", "--batch_size=64"), 64),
    Public("test/test_train_mp_mnist_zero1.py", ("--fake_data", "--batch_size=64"), 64),
    Public("test/test_train_mp_mnist_fsdp_with_ckpt.py", ("--fake_data", "--batch_size=64"), 64),
    Public("test/test_train_mp_imagenet.py", ("--fake_data", "--model=resnet18", "--batch_size=4"), 4, "images"),
    Public("examples/train_decoder_only_base.py", DECODER, 16, checks_every=10),
    Public("examples/train_resnet_base.py", (), 4, "images"),
    Public("examples/train_resnet_amp.py", (), 4, "images"),
    Public("examples/data_parallel/train_resnet_xla_ddp.py", (), 4, "images"),
    Public("examples/data_parallel/train_resnet_ddp.py", (), 4, "images"),
    Public("examples/data_parallel/train_resnet_spmd_data_parallel.py", (), 4, "images"),
    Public("examples/debug/train_resnet_benchmark.py", (), 4, "images"),
    Public("examples/eager/train_decoder_only_eager.py", (), 16, "decoder", eager=True),
    Public("examples/eager/train_decoder_only_eager_with_compile.py", (), 16, "decoder", checks_every=10),
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
            return f"{name:64} {self.why}"
        apart = abs(self.autotune / self.runtime - 1)
        return f"{name:64} {self.autotune:12.2f} {self.runtime:12.2f} {apart:8.1%}"


def study(clone: Path, public: Public, folder: Path) -> Found:
    """Runs the script as written under a study of its own, whose figures and records stay in ``folder``."""
    counts, site = folder / "counts", folder / "site"
    counts.mkdir()
    site.mkdir()
    (site / "sitecustomize.py").write_text(COUNTER + (SMALLER if public.smaller else ""))
    script = clone / public.path
    path = os.pathsep.join(filter(None, [str(site), os.environ.get("PYTHONPATH")]))
    environment = {
        **os.environ, "PYTHONPATH": path, "GRAPH_COUNTS": str(counts), "XDG_CACHE_HOME": str(folder / "cache"),
        "SMALLER": public.smaller,
    }  # fmt: skip
    command: list[str | Path] = [
        BIN / "autotune", "study", script, "--device", "xla", "--study", folder / "study", "--trials", "1",
        "--budget", "600s", "--trial-timeout", "540s", "--", *public.arguments,
    ]  # fmt: skip
    (folder / "home").mkdir()
    ran = subprocess.run(command, cwd=folder / "home", env=environment, capture_output=True, text=True, check=False)
    (folder / "printed.txt").write_text(ran.stdout + ran.stderr)
    trial = folder / "study" / "trials" / "0000"
    try:
        return _compare(trial / "records.jsonl", counts, public)
    except (OSError, ValueError, ArithmeticError, IndexError) as error:
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
    graphs = max(_steps(path, begins, ends, public.eager) for path in counts.iterdir())
    steps = graphs * public.checks_every / (public.checks_every + 1) if public.checks_every else graphs
    return Found(samples / seconds, steps * public.samples / (ends - begins))


def _steps(path: Path, begins: float, ends: float, eager: bool) -> int:
    """Graphs that a process executed between two moments, or steps that its optimizers made."""
    read = [line.split() for line in path.read_text().splitlines()]
    within = [int(each[1 + eager]) for each in read if len(each) == 3 and begins <= float(each[0]) <= ends]
    return within[-1] - within[0] if within else 0


def main() -> int:
    """Prints the table, and as JSON below it; 1 where a script gave no figure or the counts lie 5% apart."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("clone", type=Path, help="a clone of pytorch/xla")
    parser.add_argument("--only", default="", help="scripts whose path holds this")
    parser.add_argument("--keep", type=Path, help="leave each study, and what it printed, in a folder below this one")
    arguments = parser.parse_args()
    results = {}
    print(f"{'script':64} {'autotune':>12} {'runtime':>12} {'apart':>8}   samples/s")
    for public in SCRIPTS:
        if arguments.only not in public.path:
            continue
        folder = Path(tempfile.mkdtemp(prefix=f"{Path(public.path).stem}-", dir=arguments.keep))
        try:
            found = results[public.path] = study(arguments.clone.absolute(), public, folder)
            print(found.line(public.path), flush=True)
        finally:
            if arguments.keep is None:
                shutil.rmtree(folder, ignore_errors=True)
    print(json.dumps({name: vars(found) for name, found in results.items()}))
    good = [not found.why and abs(found.autotune / found.runtime - 1) <= 0.05 for found in results.values()]
    return 0 if good and all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
