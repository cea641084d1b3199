"""Runs a study in a process of its own, so that tests can kill it. Prints nothing but its last line.

    python study_driver.py FOLDER {replay,real} [SCRIPT] [--die-before-store N] [--trials N] [--file-limit BYTES]
        [--all-phases] [--notes FILE]
"""

from __future__ import annotations

import argparse
import hashlib
import os
import resource
import signal
import threading
import time
from dataclasses import replace
from pathlib import Path

from support import worlds
from tuner.analysis.accuracy import AccuracyLimits
from tuner.child.records import Window
from tuner.devices.cpu import cpu_device
from tuner.errors import AutotuneError
from tuner.events import Event, Noted
from tuner.model import Config, Outcome, Script, Trial
from tuner.runner.process import ProcessRunner
from tuner.runner.replay import ReplayRunner
from tuner.runner.request import Limits, Runner
from tuner.search.additive import AdditiveSampler
from tuner.search.chain import Chain
from tuner.search.structured import StructuredSampler
from tuner.search.tpe import TpeSampler
from tuner.space.choose import Spaces
from tuner.space.registry import load_space
from tuner.storage.database import Repository
from tuner.study.run import run_study

QUICK = Window(warmup_steps=3, warmup_s=0.1, block_s=0.05, min_blocks=6, min_s=0.3, max_s=1.0, target_half_width=0.1)
SCREEN_SAMPLES = 4096


def main() -> None:
    """Runs the study that the command line describes."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("kind", choices=("replay", "real"))
    parser.add_argument("script", nargs="?", default="train.py")
    parser.add_argument("--die-before-store", type=int, default=0)
    parser.add_argument("--file-limit", type=int, default=0)
    parser.add_argument("--trials", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--knobs", default="num_workers,threads")
    parser.add_argument("--max-host-bytes", type=int, default=None)
    parser.add_argument("--all-phases", action="store_true", help="a probe, and screens over a few samples")
    parser.add_argument("--notes", type=Path, default=None, help="a file that the study's notes are added to")
    options = parser.parse_args()
    if options.file_limit:
        resource.setrlimit(resource.RLIMIT_FSIZE, (options.file_limit, resource.RLIM_INFINITY))
    if options.die_before_store:
        die_before_store(options.die_before_store)
    plan = worlds.plan(options.folder, trials=options.trials, finals_rounds=options.rounds)
    runner: Runner = ReplayRunner(slow_replay)
    if options.kind == "real":
        content = Path(options.script).read_bytes()
        plan = replace(
            plan, script=Script(options.script, (), sha256=hashlib.sha256(content).hexdigest()), device=cpu_device(),
            spaces=Spaces((load_space("torch"),)), selection=tuple(options.knobs.split(",")), cores=2, window=QUICK,
            limits=Limits(trial_timeout_s=60, max_host_bytes=options.max_host_bytes),
        )  # fmt: skip
        runner = ProcessRunner()
    if options.all_phases:
        plan = replace(plan, probe=True, accuracy=AccuracyLimits(samples=SCREEN_SAMPLES), most_rounds=options.rounds)

    def tell(event: Event) -> None:
        if options.notes is not None and isinstance(event, Noted):
            with options.notes.open("a", encoding="utf-8") as notes:
                notes.write(f"{event.text}\n")

    try:
        sampler = Chain(StructuredSampler(), AdditiveSampler(0), TpeSampler(0))
        result = run_study(plan, runner, sampler, tell, threading.Event())
    except AutotuneError as error:
        print(f"{error.slug}: {error.message} | {error.hint}")
        raise SystemExit(error.exit_code) from None
    print(f"done: {len(result.trials)} trials, {result.why}")


def slow_replay(config: Config) -> Outcome:
    """Slow enough to be killed in the middle of."""
    time.sleep(0.05)
    return worlds.World().outcome(config)


def die_before_store(number: int) -> None:
    """Kills this process where an outcome lies on disk and the database doesn't know of it yet."""
    stored = Repository.finish_trial
    calls = 0

    def finish_trial(
        self: Repository, study_id: int, trial: int, outcome: Outcome, finished: float | None = None
    ) -> bool:
        nonlocal calls
        calls += 1
        if calls == number:
            os.kill(os.getpid(), signal.SIGKILL)
        return stored(self, study_id, trial, outcome, finished)

    Repository.finish_trial = finish_trial  # type: ignore[assignment,method-assign]


def stored_trials(folder: Path) -> tuple[Trial, ...]:
    """What the database of a study holds; nothing where it was killed before it had written its study."""
    repository = Repository(f"sqlite:///{folder / 'study.db'}")
    try:
        return tuple(trial for study in repository.studies() for trial in repository.trials(study.id))
    finally:
        repository.close()


if __name__ == "__main__":
    main()
