"""What instrumentation costs on a 10 ms step: interleaved fresh processes, ratios, medians.

    python tests/benchmarks/overhead.py [--pairs 15]

Each pair runs the same script under plain Python, measured by us ("trial"), and with a config applied by us that
changes nothing that costs time ("apply"), in random order. The script times its own steps; the ratio of a pair is
instrumented ÷ plain of the median step. Printed: the median of the ratios with its 95% interval (sign test).
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

CHILD = Path(__file__).parents[2] / "tuner" / "child" / "__main__.py"
SCRIPT = """
import statistics, time, torch
from torch.utils.data import DataLoader, TensorDataset
torch.set_num_threads(1)
torch.manual_seed(0)
data = TensorDataset(torch.randn(8192, 256), torch.randint(0, 10, (8192,)))
loader = DataLoader(data, batch_size=64, shuffle=True)
layers = [torch.nn.Linear(256, 512), torch.nn.ReLU()]
for _ in range(6):
    layers += [torch.nn.Linear(512, 512), torch.nn.ReLU()]
model = torch.nn.Sequential(*layers, torch.nn.Linear(512, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
times = []
for epoch in range(4):
    last = time.perf_counter()
    for x, y in loader:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        now = time.perf_counter()
        times.append(now - last)
        last = now
print(statistics.median(times[20:]))
"""


def run(script: Path, mode: str) -> float:
    """The script's own median step in seconds."""
    if mode == "plain":
        command, environment = [sys.executable, str(script)], dict(os.environ)
    else:
        request = {
            "v": 1, "mode": mode, "script": str(script), "argv": [], "device": "cpu", "folder": str(script.parent),
            "config": {"threads": 1} if mode == "apply" else {},
            "window": {
                "warmup_steps": 10, "warmup_s": 1, "block_s": 0.25, "min_blocks": 9999, "min_s": 9999, "max_s": 9999,
                "target_half_width": 0.0,
            },
        }  # fmt: skip
        path = script.parent / "request.json"
        path.write_text(json.dumps(request))
        sink = os.open(os.devnull, os.O_WRONLY)
        environment = {**os.environ, "AUTOTUNE_REQUEST": str(path), "AUTOTUNE_RECORDS_FD": str(sink)}
        command = [sys.executable, str(CHILD)]
        process = subprocess.run(
            command, env=environment, pass_fds=[sink], capture_output=True, text=True, check=True, cwd=script.parent
        )
        os.close(sink)
        return float(process.stdout.split()[-1])
    process = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return float(process.stdout.split()[-1])


def interval_of_median(values: list[float]) -> tuple[float, float]:
    """Distribution-free 95% interval of the median, from order statistics (Conover, 1999, §3.2)."""
    ordered = sorted(values)
    n = len(ordered)
    rank = max(0, round(n / 2 - 0.98 * n**0.5) - 1)
    return ordered[rank], ordered[n - 1 - rank]


def main() -> None:
    """Runs the pairs and prints a line a mode."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=15)
    pairs = parser.parse_args().pairs
    ratios: dict[str, list[float]] = {"trial": [], "apply": []}
    steps: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "train.py"
        script.write_text(SCRIPT)
        for _ in range(pairs):
            order = ["plain", "trial", "apply"]
            random.shuffle(order)
            found = {mode: run(script, mode) for mode in order}
            steps.append(found["plain"])
            for mode, values in ratios.items():
                values.append(found[mode] / found["plain"])
    print(f"plain step: median {statistics.median(steps) * 1e3:.2f} ms over {pairs} runs")
    for mode, values in ratios.items():
        low, high = interval_of_median(values)
        print(f"{mode}: {statistics.median(values):.4f} times plain, 95% {low:.4f} to {high:.4f}")


if __name__ == "__main__":
    main()
