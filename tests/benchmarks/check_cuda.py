"""Everything that only a CUDA card can show, in ten minutes, on a machine with a card and PyTorch and no network.

    python tests/benchmarks/check_cuda.py --out check-cuda.json [--wheels FOLDER] [--minutes 10]

Makes a virtual environment that sees the machine's own packages, and adds to it what they lack, from ``--wheels``; what
is missing there is named, with the command that fetches it elsewhere. Runs every test marked ``cuda``, then two studies
of which the answer should be "improved": one bound by computing in float32, one by its loader. Writes one file, in any
case, with what came of it in a line (each study's verdict among it), the machine, each test's outcome, and each study's
profile and measurements. Exits with 0 where every test passed and both studies gave a verdict, whichever that is, with
1 where one didn't, with 2 where nothing could be run.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
import tomllib
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent.parent
TESTS_SHARE = 0.3
"""Of the time, for the tests; the studies share the rest. On an H200 with 16 cores they took 75 s, and 100 s alone."""
AT_ONCE = 6
"""Tests that go by nothing that others of them change: most of what each takes is its processes' start."""
TRAIN = """
import torch
from torch.utils.data import DataLoader, Dataset

class Data(Dataset):
    def __len__(self): return 100_000
    def __getitem__(self, index):
        x = torch.randn(WIDTH, generator=torch.Generator().manual_seed(index))
        for _ in range(PREPARATIONS):
            x = (x * 1.001).sin()
        return x, x[:8].sum()

torch.manual_seed(0)
model = torch.nn.Sequential(
    torch.nn.Linear(WIDTH, HIDDEN), torch.nn.ReLU(), torch.nn.Linear(HIDDEN, HIDDEN), torch.nn.ReLU(),
    torch.nn.Linear(HIDDEN, 1),
).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
for epoch in range(1000):
    for x, y in DataLoader(Data(), batch_size=BATCH, shuffle=True, num_workers=WORKERS):
        loss = torch.nn.functional.mse_loss(model(x.cuda()).squeeze(1), y.cuda())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""
STUDIES = {
    "compute-bound": (
        {"WIDTH": "64", "HIDDEN": "8192", "PREPARATIONS": "0", "BATCH": "2048", "WORKERS": "4"},
        ("precision", "optimizer"),
    ),
    "loader-bound": (
        {"WIDTH": "256", "HIDDEN": "64", "PREPARATIONS": "200", "BATCH": "64", "WORKERS": "0"},
        ("num_workers", "prefetch_factor", "pin_memory"),
    ),
}  # fmt: skip
"""Name → what its script is made with, and the knobs that are tuned."""


def main() -> int:
    """Runs the check, writes the result, and returns the exit status."""
    arguments = _arguments()
    result: dict[str, Any] = {"verdict": "it was interrupted"}
    try:
        status, result["verdict"] = _check(arguments, result)
    finally:
        arguments.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
        print(f"{result['verdict']}: {arguments.out}")
    return status


def _check(arguments: argparse.Namespace, result: dict[str, Any]) -> tuple[int, str]:
    """Fills ``result`` as far as it comes; gives the exit status and the line that says what came of it."""
    ends = time.monotonic() + 60 * arguments.minutes
    result["machine"] = machine = _machine(Path(sys.executable))
    if "error" in machine:
        return 2, f"nothing was checked, since {sys.executable} can't import PyTorch ({machine['error']})"
    if not machine["cards"]:
        return 2, f"nothing was checked, since PyTorch {machine['torch']} sees no CUDA card here"
    with tempfile.TemporaryDirectory() as folder:
        python, problem = _environment(Path(folder), arguments.wheels)
        if problem:
            result["environment"] = problem
            return 2, "nothing was checked, since packages are missing"
        machine["devices"] = _listed([str(python), "-m", "tuner", "devices", "--json"], ROOT)
        result["tests"] = _tests(python, Path(folder), TESTS_SHARE * 60 * arguments.minutes)
        result["studies"] = {}
        for left, (name, (planted, knobs)) in zip(range(len(STUDIES), 0, -1), STUDIES.items(), strict=True):
            seconds = max(60.0, (ends - time.monotonic()) / left)
            result["studies"][name] = _study(python, Path(folder) / name, planted, knobs, seconds)
    return came_to(result)


def came_to(result: dict[str, Any]) -> tuple[int, str]:
    """The exit status, and the line that says what came of the tests and of each study."""
    told, failed = [], result["tests"]["failed"]
    if failed:
        told.append(f"{failed} of {max(1, len(result['tests']['outcomes']))} tests")
    for name, study in result["studies"].items():
        profile = study["profile"]
        speedup = profile and profile["speedup"]
        told.append(f"{name}: {profile['verdict'] if profile else 'no verdict'}")
        told[-1] += f" {speedup['ratio']:.2f}x [{speedup['low']:.2f}, {speedup['high']:.2f}]" if speedup else ""
    passed = not failed and all(study["profile"] for study in result["studies"].values())
    return (0 if passed else 1), f"{'passed' if passed else 'FAILED'} ({'; '.join(told)})"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("check-cuda.json"), help="the result file")
    parser.add_argument("--wheels", type=Path, help="a folder with the wheels that this machine lacks")
    parser.add_argument("--minutes", type=float, default=10.0, help="what it may take in all")
    return parser.parse_args()


def requirements() -> list[str]:
    """What is installed where the machine lacks it: all, beside PyTorch, that the tests marked "cuda" may import."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    of_tests = project["project"]["optional-dependencies"]["test"]
    needed = ("pytest>", "pytest-timeout", "pytest-xdist")
    return [
        *project["build-system"]["requires"], *project["project"]["dependencies"],
        *(each for each in of_tests if each.startswith(needed)),
    ]  # fmt: skip


def _environment(folder: Path, wheels: Path | None) -> tuple[Path, str]:
    """Python of an environment with this project in it, and what went wrong, which was printed: empty if nothing."""
    subprocess.run([sys.executable, "-m", "venv", str(folder / "venv")], check=True)
    python = folder / "venv" / "bin" / "python"
    inside = next((folder / "venv" / "lib").glob("python*")) / "site-packages"
    # Whether this Python is the machine's or an environment's own: its packages are seen, and not touched.
    (inside / "machine.pth").write_text("\n".join(path for path in sys.path if path.endswith("-packages")) + "\n")
    source = ["--no-index", *(["--find-links", str(wheels)] if wheels else [])]
    install = [str(python), "-m", "pip", "install", "-q", *source]
    for packages in (requirements(), ["--no-deps", "--no-build-isolation", "-e", str(ROOT)]):
        done = subprocess.run([*install, *packages], capture_output=True, text=True, check=False)
        if done.returncode:
            problem = "\n".join([done.stderr.strip(), *_advice(python)])
            print(problem, file=sys.stderr)
            return python, problem
    return python, ""


def _advice(python: Path) -> list[str]:
    """How to get the wheels that this machine lacks."""
    code = (
        "import sys\n"
        "from importlib.metadata import PackageNotFoundError, version\n"
        "from pip._vendor.packaging.requirements import Requirement\n"
        "for text in sys.argv[1:]:\n"
        "    needed = Requirement(text)\n"
        "    try:\n"
        "        if version(needed.name) in needed.specifier: continue\n"
        "    except PackageNotFoundError: pass\n"
        "    print(text)\n"
    )
    command = [str(python), "-c", code, *requirements()]
    lacking = subprocess.run(command, capture_output=True, text=True, check=False).stdout.split("\n")
    needed = " ".join(f"'{each}'" for each in lacking if each) or "what the message above names"
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    return [
        "", "this machine lacks packages; where there is a network:",
        f"  python -m pip download --only-binary :all: --python-version {version} -d wheels {needed}",
        "then here, with that folder beside: make check-cuda WHEELS=wheels",
    ]  # fmt: skip


def _machine(python: Path) -> dict[str, Any]:
    """Versions, and the cards that PyTorch sees; ``error`` where there is no PyTorch."""
    code = (
        "import json, platform, torch\n"
        "cards = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]\n"
        "print(json.dumps({'cards': cards, 'torch': torch.__version__, 'cuda': torch.version.cuda,"
        " 'python': platform.python_version(), 'platform': platform.platform()}))"
    )
    done = subprocess.run([str(python), "-c", code], capture_output=True, text=True, check=False)
    if done.returncode:
        return {"cards": [], "error": (done.stderr.strip().splitlines() or ["no word"])[-1]}
    machine: dict[str, Any] = json.loads(done.stdout)
    return machine


def _listed(command: list[str], folder: Path) -> Any:
    """What a verb prints as JSON; its message where it fails."""
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    return json.loads(done.stdout) if done.returncode == 0 else done.stderr


def tests_commands(python: Path, folder: Path) -> dict[Path, list[str]]:
    """What runs every test marked "cuda", by the report that it writes: most of them at once, then each alone.

    Other files aren't read: they import what this machine may lack.
    """
    tests = sorted((ROOT / "tests").rglob("test_*.py"))
    marked = [str(path) for path in tests if "mark.cuda" in path.read_text("utf-8")]
    # A file that can't be read fails, and takes no other file's tests with it. pytest-benchmark warns beside xdist.
    command = [str(python), "-m", "pytest", "-q", "-p", "no:benchmark", "--continue-on-collection-errors"]
    parts = {"at-once": ["-m", "cuda and not timed", "-n", str(AT_ONCE)], "alone": ["-m", "cuda and timed"]}
    reports = {folder / f"tests-{name}.xml": options for name, options in parts.items()}
    return {report: [*command, *options, f"--junitxml={report}", *marked] for report, options in reports.items()}


def _tests(python: Path, folder: Path, seconds: float) -> dict[str, Any]:
    """Outcome of each test marked "cuda"; ``failed`` counts those that didn't pass, a run that never ends as one."""
    ends, outcomes, tails, failed = time.monotonic() + seconds, dict[str, str](), list[str](), 0
    for report, command in tests_commands(python, folder).items():
        left_s = max(1.0, ends - time.monotonic())
        try:
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=left_s, check=False)
            tail = done.stdout[-4000:]
        except subprocess.TimeoutExpired as late:
            tail = f"didn't end within {left_s:.0f} s: {str(late.stdout or '')[-4000:]}"
        print(tail)
        found = _outcomes(report)
        wrong = sum(outcome != "passed" for outcome in found.values()) or int(not found)
        outcomes, failed, tails = {**outcomes, **found}, failed + wrong, [*tails, *([tail] if wrong else [])]
    return {"failed": failed, "outcomes": outcomes, "output": "\n".join(tails)}


def _outcomes(report: Path) -> dict[str, str]:
    """Of each test in the report "passed", or what else it came to; empty where none was written."""
    if not report.exists():
        return {}
    outcomes = {}
    for case in ET.parse(report).getroot().iter("testcase"):
        problems = [child for child in case if child.tag in ("failure", "error", "skipped")]
        name = f"{case.get('classname')}::{case.get('name')}"
        outcomes[name] = f"{problems[0].tag}: {str(problems[0].get('message'))[:500]}" if problems else "passed"
    return outcomes


def _study(
    python: Path, folder: Path, planted: dict[str, str], knobs: tuple[str, ...], seconds: float
) -> dict[str, Any]:
    """A study of the script: its profile, None where it has none, its trials, and what it printed."""
    folder.mkdir()
    text = TRAIN
    for name, value in planted.items():
        text = text.replace(name, value)
    (folder / "train.py").write_text(text, encoding="utf-8")
    tune = [str(python), "-m", "tuner"]
    command = [
        *tune, "study", "train.py", "--device", "cuda", "--study", "study", "--budget", f"{seconds * 0.9:.0f}s",
        "--knobs", ",".join(knobs),
    ]  # fmt: skip
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=seconds, check=False)
        output = done.stdout + done.stderr
    except subprocess.TimeoutExpired as late:
        output = f"didn't end within {seconds:.0f} s: {late.stdout!r}"
    print(output[-3000:])
    best = folder / "study" / "best.json"
    return {
        "profile": json.loads(best.read_text("utf-8"))["profiles"][0] if best.exists() else None,
        "trials": _listed([*tune, "trials", "study", "--json"], folder),
        "output": output,
    }


if __name__ == "__main__":
    sys.exit(main())
