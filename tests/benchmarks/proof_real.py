"""How often a study proves a gain, a planted one or none, with real processes on this machine, noise and all.

    python tests/benchmarks/proof_real.py --out aa.jsonl --studies 200 --budget 50
    python tests/benchmarks/proof_real.py --out five.jsonl --studies 60 --gain 5
    python tests/benchmarks/proof_real.py --out aa.jsonl --summary

Each study is a whole one: search, finals and their rules are the product's, only the windows are short. It tunes an
argument that its script ignores; with ``--gain`` one of its three values does a share of the steps without any work, so
that a step takes so many percent less time in the mean, whatever the machine's speed. In every second study another
process burns a core by spells of random length (exponential, ``--spell`` seconds on average); ``--calm`` leaves that
out. Finals beside strangers' work prove nothing, so a study waits for a calm second to begin in, ``--wait`` seconds at
most. Each study is a line of ``--out``; the same command again carries on after the last of them. Prints shares with
their 95% intervals (Wilson), and how many of the intervals that were told hold the truth.

November 2026, before trials took turns, ``--studies 110 --wait 20`` on two cores, beside people who read and now and
then tested: none of 110 "improved" (95% [0.00%, 3.37%]), of which 30 had three calm rounds or more.
By turns, 29 November 2026, on one core each, ``--studies 400 --budget 50 --wait 20`` until there were 212: one of them
"improved" (0.5% [0.1%, 2.6%]); 180 of the 184 intervals that were told hold 1 (97.8% [94.5%, 99.2%]); the logarithms of
their ratios are -0.0006 in the mean, with a standard error of 0.0023.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import math
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from json_lines import append, finished
from shares import share_text
from support import worlds

from tuner.analysis.accuracy import AccuracyLimits
from tuner.analysis.contention import Host
from tuner.child.records import Window
from tuner.devices.base import FOREIGN_SHARE
from tuner.devices.cpu import cpu_device
from tuner.devices.host import spare_cores, usable_cores
from tuner.errors import AutotuneError
from tuner.model import Config, Phase, Script
from tuner.result import StudyResult
from tuner.runner.process import ProcessRunner
from tuner.runner.request import Limits
from tuner.runner.tree import cpu_times
from tuner.search.structured import StructuredSampler
from tuner.space.choose import Spaces
from tuner.space.registry import load_objective, load_space
from tuner.study.plan import StudyPlan
from tuner.study.run import run_study

SCRIPT = """
import sys
import numpy
import tuner

free = int(FREE) if sys.argv[1] == "sweet" else 0
chance = numpy.random.default_rng(0)
inputs, targets = chance.normal(size=(4096, 192)), chance.normal(size=(4096, 16))
hidden, output = chance.normal(size=(192, 256)) / 16, chance.normal(size=(256, 16)) / 16
step, batch = 0, 64
while True:
    step += 1
    if free and step % free == 0:
        tuner.report(step=step, samples=step * batch)
        continue
    rows = chance.integers(0, len(inputs), batch)
    x, y = inputs[rows], targets[rows]
    between = numpy.tanh(x @ hidden)
    error = (between @ output - y) / batch
    back = (error @ output.T) * (1 - between**2)
    output -= 0.01 * between.T @ error
    hidden -= 0.01 * x.T @ back
    tuner.report(step=step, samples=step * batch)
"""
_HEAD = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
COMMIT = subprocess.run(_HEAD, capture_output=True, text=True, check=False).stdout.strip()
"""Of the product that is asked; "" outside a clone. Long series go on over several of them."""
ARGUMENT = "{flavour=plain|sweet|bitter}"
"""Words, since of them each is tried: numbers that lose at once aren't climbed any further."""
WINNER = Config({"flavour": "sweet"})
# Search and finals get half of the longest, in which the parent looks at foreign load twice at least, every 0.25 s.
WINDOW = Window(warmup_steps=10, warmup_s=0.1, block_s=0.05, min_blocks=8, min_s=0.6, max_s=1.2)
BURNER = """
import os, random, sys, time
parent, spell, chance = int(sys.argv[1]), float(sys.argv[2]), random.Random(int(sys.argv[3]))
busy = False
while os.getppid() == parent:
    busy = not busy
    until = time.monotonic() + chance.expovariate(1 / spell)
    while time.monotonic() < until and os.getppid() == parent:
        if busy:
            sum(range(100_000))
        else:
            time.sleep(0.05)
"""


@contextlib.contextmanager
def foreign_load(spell_s: float, seed: int) -> Iterator[None]:
    """Another process that burns a core now and then; it ends with this one, however that ends."""
    process = subprocess.Popen([sys.executable, "-c", BURNER, str(os.getpid()), str(spell_s), str(seed)])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def wait_for_calm(at_most_s: float) -> float:
    """The seconds waited for one in which others use too little to void a round of the finals."""
    started = time.monotonic()
    most_cpus = Host(usable_cores(), FOREIGN_SHARE, spare_cores()).most_foreign_cpus
    while time.monotonic() - started < at_most_s:
        before = cpu_times(os.sched_getaffinity(0))[0]
        time.sleep(1.0)
        if cpu_times(os.sched_getaffinity(0))[0] - before <= most_cpus:
            break
    return time.monotonic() - started


def truth_of(gain: float) -> tuple[int, float]:
    """Every how many-th step takes no time, 0 for none, and what the ratio of the speeds is then."""
    every = round(1 + 100 / gain) if gain else 0
    return every, every / (every - 1) if every else 1.0


def plan(folder: Path, seed: int, every: int, budget_s: float | None) -> StudyPlan:
    """A study in which nothing can help but the planted value, with the product's own rules for its finals."""
    script = folder / "train.py"
    source = SCRIPT.replace("FREE", str(every))
    script.write_text(source)
    return worlds.plan(
        folder / "study", script=Script(str(script), (ARGUMENT,), sha256=hashlib.sha256(source.encode()).hexdigest()),
        device=cpu_device(), cores=usable_cores(), spare_cores=spare_cores(),
        spaces=Spaces((load_space("torch"),)), objective=load_objective("throughput"), selection=("flavour",),
        trials=3, finals_rounds=StudyPlan.finals_rounds, finalists=StudyPlan.finalists, window=WINDOW, seed=seed,
        budget_s=budget_s, accuracy=AccuracyLimits(max_loss_increase=None), limits=Limits(trial_timeout_s=30.0),
    )  # fmt: skip


def study(
    number: int, *, gain: float, load: bool, spell_s: float, wait_s: float, budget_s: float | None
) -> dict[str, Any]:
    """One study's line."""
    every, truth = truth_of(gain)
    waited_s = wait_for_calm(wait_s)
    line: dict[str, Any] = {
        "study": number, "load": load, "at": round(time.time()), "waited_s": round(waited_s, 1), "commit": COMMIT,
        "budget_s": budget_s, "cores": usable_cores(),
    }  # fmt: skip
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as resources:
        if load:
            resources.enter_context(foreign_load(spell_s, number))
        try:
            planned, runner, stop = plan(Path(folder), number, every, budget_s), ProcessRunner(), threading.Event()
            result = run_study(planned, runner, StructuredSampler(), lambda event: None, stop)
        except AutotuneError as error:
            line |= {"verdict": "error", "finals": "none", "error": f"{error.slug}: {error.message}"}
        else:
            line |= described(result, truth)
    return {**line, "seconds": round(time.monotonic() - started, 2)}


def described(result: StudyResult, truth: float) -> dict[str, Any]:
    """What came of a study: ``finals`` is none (no candidate), no proof (too few calm rounds) or held. ``truth``: the
    planted value's ratio; that of every other one is 1.
    """
    measured = [t.outcome.measurement for t in result.trials if t.outcome is not None and t.outcome.measurement]
    runs = [t for t in result.trials if t.phase is Phase.FINALS]
    line: dict[str, Any] = {
        "verdict": "keep-baseline", "finals": "none", "trials": len(result.trials),
        "candidates": len({t.config["flavour"] for t in runs if t.config}),
        "rounds": sum(not t.config for t in runs),
        "foreign_cpus": round(statistics.fmean(m.foreign_cpus for m in measured), 3),
    }  # fmt: skip
    winner = result.winner
    if winner is not None:
        speedup = winner.speedup
        line |= {
            "verdict": str(winner.verdict), "finals": "no proof" if winner.label else "held", "calm": winner.runs,
            "ratio": speedup.ratio, "low": speedup.low, "high": speedup.high, "label": winner.label,
            "truth": truth if winner.config == WINNER else 1.0, "turns": bool(winner.winner.turns),
        }  # fmt: skip
    return line


def summary(lines: list[dict[str, Any]]) -> str:
    """Shares of "improved", of all studies and of those whose finals could have said so."""
    text = []
    for name, kinds in (("all", (False, True)), ("without load", (False,)), ("with load", (True,))):
        studies = [line for line in lines if line["load"] in kinds]
        if not studies:
            continue
        held = [line for line in studies if line["finals"] == "held"]
        voided = [line for line in studies if line["finals"] == "no proof"]
        faults = sum(line["verdict"] == "error" for line in studies)
        improved = sum(line["verdict"] == "improved" for line in studies)
        right = [line for line in held if line["low"] <= line["truth"] <= line["high"]]
        widths = [(line["high"] - line["low"]) / 2 / line["ratio"] for line in held]
        foreign = statistics.fmean(line.get("foreign_cpus", 0.0) for line in studies)
        text += [
            f"{name}: improved {share_text(improved, len(studies))}",
            f"  finals with three calm rounds or more: {share_text(len(held), len(studies))};"
            f" improved of these {share_text(improved, len(held))}",
            f"  intervals that hold the truth: {share_text(len(right), len(held))}; half-width in the median"
            f" {statistics.median(widths) if widths else math.nan:.1%}; by turns {sum(line['turns'] for line in held)}",
            f"  finals without proof: {len(voided)}, in which an interval above 1 was not believed:"
            f" {share_text(sum(line['low'] > 1 for line in voided), len(voided))}",
            f"  no candidate: {sum(line['finals'] == 'none' for line in studies) - faults}, errors: {faults};"
            f" foreign CPUs {foreign:.2f}, {statistics.fmean(line['seconds'] for line in studies):.1f} s a study",
        ]
    return "\n".join(text)


def main() -> None:
    """Runs the studies that are missing and prints the shares."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--studies", type=int, default=400)
    parser.add_argument("--minutes", type=float, default=110.0)
    parser.add_argument("--gain", type=float, default=0.0, help="percent that one value is faster by")
    parser.add_argument("--calm", action="store_true", help="no load beside any study")
    parser.add_argument("--spell", type=float, default=3.0)
    parser.add_argument("--wait", type=float, default=60.0)
    parser.add_argument("--budget", type=float, help="seconds for each study (default: none)")
    parser.add_argument("--summary", action="store_true", help="runs nothing")
    options = parser.parse_args()
    lines = finished(options.out)
    until = time.monotonic() + options.minutes * 60
    while not options.summary and len(lines) < options.studies and time.monotonic() < until:
        number = len(lines)
        load = number % 2 == 1 and not options.calm
        wanted = {"gain": options.gain, "load": load, "spell_s": options.spell, "wait_s": options.wait}
        lines.append(study(number, **wanted, budget_s=options.budget))
        append(options.out, lines[-1])
        print(lines[-1], flush=True)
    print(summary(lines))


if __name__ == "__main__":
    main()
