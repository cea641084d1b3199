"""``autotune run`` as a launcher or a shell starts it: every rank gets the config, and it ends as the script would."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pytest

from tuner.devices.cpu import cpu_device
from tuner.devices.software import software
from tuner.formatting import config_text
from tuner.model import Value

BIN = Path(sys.executable).parent
TRAIN = """
    import argparse
    import os
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

    parser = argparse.ArgumentParser()
    parser.add_argument("--name")
    parser.parse_args()
    dist.init_process_group("gloo")
    data = TensorDataset(torch.randn(64, 8), torch.randn(64, 1))
    loader = DataLoader(data, batch_size=8, sampler=DistributedSampler(data))
    linear, seen = torch.nn.Linear(8, 1), set()
    linear.register_forward_hook(lambda module, inputs, output: seen.add(output.dtype))
    model = DistributedDataParallel(torch.nn.Sequential(linear))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    steps = samples = 0
    for inputs, targets in loader:
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
        steps, samples = steps + 1, samples + len(inputs)
    # Weights aren't gathered: a thread of gloo's lets go of such a tensor a little later, and where Python ends
    # meanwhile the process aborts (https://github.com/pytorch/pytorch/issues/190489), with autotune and without.
    line = f"{dist.get_rank()} {seen} {samples} {len(inputs)} {steps} {loader.num_workers} {torch.get_num_threads()}"
    os.write(1, f"{line} {model.gradient_as_bucket_view} {linear.weight.tolist()}\\n".encode())
    dist.destroy_process_group()
"""
CONFIG: dict[str, Value] = {
    "precision": "bf16", "batch_size": 4, "num_workers": 1, "threads": 1, "ddp_bucket_view": True,
}  # fmt: skip


def profile(script: Path, folder: Path) -> Path:
    """A best.json of this machine's CPU, as a study writes one."""
    device = cpu_device()
    document = {
        "device": asdict(device), "config": CONFIG, "verdict": "improved",
        "speedup": {"ratio": 1.5, "low": 1.2, "high": 1.8}, "environment": dict(software()),
        "script": {"path": str(script), "module": "", "sha256": "", "argv": ["--name", "first try"]},
        "knowledge": {"as_written": {"batch_size": 8, "num_workers": 0, "precision": "fp32"}},
    }  # fmt: skip
    path = folder / "best.json"
    path.write_text(json.dumps({"schema": 1, "profiles": [document]}))
    return path


@pytest.mark.slow  # 21 s beside three others
def test_each_rank_of_a_launcher_applies_the_profile(write_script: Callable[..., Path], tmp_path: Path) -> None:
    best = profile(write_script(TRAIN), tmp_path)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--no-python"]
    done = subprocess.run(
        [*torchrun, str(BIN / "autotune"), "run", "--config", str(best), "--trust", "--device", "cpu", "--",
         "--name", "new"],
        capture_output=True, text=True, timeout=150, check=False, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    # 64 samples, a half for each rank, four a step; and both end with the same weights.
    rest, weights = "{torch.bfloat16} 32 4 8 1 1 True", done.stdout.splitlines()[0].partition("[[")[2]
    assert sorted(done.stdout.splitlines()) == [f"0 {rest} [[{weights}", f"1 {rest} [[{weights}"]
    said = [line for line in done.stderr.splitlines() if line.startswith("autotune: ")]
    assert len(said) == 4, "one rank speaks for all"
    assert said[0].startswith("autotune: its arguments were --name 'first try', now --name new: ")
    assert "proven in one process, and applied in each of 2: batch sizes" in said[1]
    assert said[2].startswith(f"autotune: applying {config_text(CONFIG)} (1.50x")
    assert said[3].startswith(f"autotune: after 8 steps in effect: {', '.join(CONFIG)}")


WRITES = """
    import os, sys
    kept = open("weights.txt", "w")  # has the lowest number that is free
    kept.write(f"{sys.stdin is None} {sys.stdout is None} {sys.stderr is None}")
    kept.flush()
"""


@pytest.mark.slow  # 10 s beside three others
@pytest.mark.parametrize(
    ("redirected", "closed"),
    [("2>&-", "False False True"), (">&-", "False True False"), ("<&- >&- 2>&-", "True True True"),
     ("2>/dev/full", "False False False")],
)  # fmt: skip
def test_a_script_runs_with_streams_that_are_closed_or_full(
    write_script: Callable[..., Path], tmp_path: Path, redirected: str, closed: str
) -> None:
    """It sees them as without autotune, and what autotune says gets into no file of its own."""
    best, folder = profile(write_script(WRITES), tmp_path), tmp_path / "temporary"
    folder.mkdir()
    done = subprocess.run(
        ["sh", "-c", f'exec "$0" run --config "$1" --trust --device cpu -- {redirected}', BIN / "autotune", best],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120, check=False, cwd=tmp_path,
        env={**os.environ, "TMPDIR": str(folder)},
    )  # fmt: skip
    assert done.returncode == 8, "it trains nothing"
    assert (tmp_path / "weights.txt").read_text() == closed
    assert done.stdout == "" and not [*folder.iterdir()]


INTERRUPTED = """
    import atexit, os, signal, sys
    signal.signal(signal.SIGINT, signal.default_int_handler)  # what begins in a shell's background ignores it
    atexit.register(lambda: print("leaves by", sys.excepthook is sys.__excepthook__))
    class Stopped(KeyboardInterrupt):
        pass
"""


@pytest.mark.parametrize(
    ("ends", "status"),
    [
        ("os.kill(os.getpid(), signal.SIGINT)", -signal.SIGINT),
        ("raise Stopped", -signal.SIGINT if sys.version_info >= (3, 14) else 1),
    ],
)
def test_ctrl_c_ends_it_as_it_ends_the_script_alone(
    write_script: Callable[..., Path], tmp_path: Path, ends: str, status: int
) -> None:
    """By the signal, behind its exit handlers: a loop of a shell's goes on after an exit status, whatever that is."""
    script = write_script(f"{INTERRUPTED}    {ends}\n")
    applied = [str(BIN / "autotune"), "run", "--config", str(profile(script, tmp_path)), "--trust", "--device", "cpu"]
    plain, done = (
        subprocess.run(words, capture_output=True, text=True, timeout=120, check=False, cwd=tmp_path)
        for words in ([sys.executable, str(script)], applied)
    )
    assert (done.returncode, done.stdout) == (plain.returncode, plain.stdout) == (status, "leaves by True\n")
    shown = [line for line in done.stderr.splitlines(keepends=True) if not line.startswith("autotune: ")]
    assert "".join(shown) == plain.stderr


HEEDS = "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL); os.execvp('sh', ['sh', *sys.argv[1:]])"
"""A shell that heeds Ctrl-C: what begins in another one's background ignores it, and so does what that starts."""


@pytest.mark.slow  # 3 s beside three others
@pytest.mark.parametrize("redirected", ["", "2>/dev/full"])
def test_so_does_ctrl_c_before_the_script_begins(tmp_path: Path, redirected: str) -> None:
    best = tmp_path / "best.json"
    os.mkfifo(best)
    command = f'exec "$0" run --config "$1" --device cpu train.py {redirected}'
    words = [sys.executable, "-c", HEEDS, "-c", command, str(BIN / "autotune"), str(best)]
    started = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
    with best.open("w"):  # once it reads there
        started.send_signal(signal.SIGINT)
        _, told = started.communicate(timeout=60)
    assert (started.returncode, told) == (-signal.SIGINT, "" if redirected else "interrupted\n")


@pytest.mark.slow  # 2 s beside three others
def test_what_is_said_gets_into_no_file_that_took_the_number_of_a_closed_stream(
    write_script: Callable[..., Path], tmp_path: Path
) -> None:
    best = profile(write_script("import os\nos.close(2)\nkept = open('weights.txt', 'w')"), tmp_path)
    done = subprocess.run(
        [str(BIN / "autotune"), "run", "--config", str(best), "--trust", "--device", "cpu"],
        capture_output=True, text=True, timeout=120, check=False, cwd=tmp_path,
    )  # fmt: skip
    assert (done.returncode, (tmp_path / "weights.txt").read_text()) == (8, "")


REFUSED = """
import ctypes, platform, struct
NUMBER = {"x86_64": 319, "aarch64": 279}[platform.machine()]  # of memfd_create
loads, compares, returns, permitted, fails = 0x20, 0x15, 0x06, 0x7FFF0000, 0x00050001
lines = ((loads, 0, 0, 0), (compares, 0, 1, NUMBER), (returns, 0, 0, fails), (returns, 0, 0, permitted))
code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in lines))
given = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(lines), ctypes.addressof(code)))
kernel = ctypes.CDLL(None, use_errno=True)
assert kernel.prctl(38, 1, 0, 0, 0) == 0 and kernel.prctl(22, 2, given, 0, 0) == 0, ctypes.get_errno()
"""
"""A filter of system calls, as sandboxes have."""


@pytest.mark.slow  # 4 s beside three others
@pytest.mark.parametrize("cause", ["import os; del os.memfd_create", REFUSED], ids=["conda's Python", "a sandbox"])
def test_it_starts_where_python_or_the_kernel_gives_no_file_in_memory(
    write_script: Callable[..., Path], tmp_path: Path, cause: str
) -> None:
    """Pythons that were built with an older C library, as conda's and uv's, lack the function."""
    best = profile(write_script("print('runs')"), tmp_path)
    command = f"{cause}\nimport sys\nfrom tuner.cli import main\nsys.exit(main(sys.argv[1:]))"
    done = subprocess.run(
        [sys.executable, "-c", command, "run", "--config", str(best), "--trust", "--device", "cpu"],
        capture_output=True, text=True, timeout=120, check=False, cwd=tmp_path,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (8, "runs\n"), done.stderr
