"""Scripts that train in several ranks by gloo on the CPU, and what a trial of one ends as.

The ranks of a trial are forked off one server, as a study's are once its baseline has run: PyTorch is imported once,
and not in each rank of each trial. Those that start fresh are in tests/differential/test_forked_ranks.py.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from support.forked import KNOWN
from tuner.child.records import Window
from tuner.devices.cpu import cpu_device
from tuner.model import Config, Outcome, Script
from tuner.runner.process import ProcessRunner
from tuner.runner.request import Limits, TrialRequest

ROOT = Path(__file__).resolve().parents[2]
QUICK = Window(
    warmup_steps=3, warmup_s=0.1, block_s=0.05, min_blocks=6, min_s=0.3, max_s=3.0, target_half_width=1e9
)
UNENDING = dataclasses.replace(QUICK, min_s=120.0, max_s=120.0)
"""Of a trial that something else ends."""

DDP = """
import os, sys, time, torch, torch._dynamo
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

torch.manual_seed(0)
dist.init_process_group("gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()
assert int(os.environ["LOCAL_RANK"]) == rank
BATCH, ROWS = 16, 64000
data = TensorDataset(torch.randn(ROWS, 8), torch.randn(ROWS, 1))
model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
#SETUP
sampler = DistributedSampler(data, ranks, rank)
loader = DataLoader(data, batch_size=BATCH, sampler=sampler)
step = 0
for epoch in range(EPOCHS):
    sampler.set_epoch(epoch)
    for x, y in loader:
        #STEP
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        step += 1
    #EPOCH
#END
dist.destroy_process_group()
"""


UNEVEN = """
import torch.utils.data
class DistributedSampler(torch.utils.data.SequentialSampler):
    def __init__(self, data, ranks, rank): super().__init__(range(BATCH * (10 if rank else 15)))
    def set_epoch(self, epoch): pass
def joined(loader):
    with model.join():
        yield from loader
"""
IMPATIENT = """
for name, module in [*sys.modules.items()]:
    if name.endswith("child.rank_clock"): module.PATIENCE_S = 2.0
"""


def ddp(*, setup: str = "", step: str = "", epoch: str = "", end: str = "", epochs: int = 1000) -> str:
    """The script with these lines at its places."""
    text = DDP.replace("range(EPOCHS)", f"range({epochs})")
    for name, lines, indent in (("SETUP", setup, 0), ("STEP", step, 8), ("EPOCH", epoch, 4), ("END", end, 0)):
        text = text.replace(f"#{name}", f"\n{' ' * indent}".join(lines.splitlines()) or "pass")
    return text


def joining() -> str:
    """Rank 1 has 10 batches an epoch and rank 0 has 15: the last 5 steps of that are rank 0's alone, but for join."""
    return ddp(setup=UNEVEN + IMPATIENT, step="time.sleep(0.01)").replace("in loader:", "in joined(loader):")


def request_of(folder: Path, source: str, config: dict[str, Any] | None = None, **given: Any) -> TrialRequest:
    """A trial of the script in two ranks."""
    script = folder / "train.py"
    script.write_text(source)
    request = TrialRequest(
        folder / "trial", Script(str(script), ()), cpu_device(), Config(config or {}), KNOWN, QUICK,
        Limits(trial_timeout_s=60), fresh=False, ranks=2,
    )  # fmt: skip
    return dataclasses.replace(request, **given)


@contextlib.contextmanager
def runner_of_ranks() -> Iterator[ProcessRunner]:
    """A runner that forks all trials of a script, run by themselves, off one server."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tuner.runner.fork_servers.SERVERS", 1)
        patch.delenv("PYTEST_CURRENT_TEST", raising=False)  # forks find what their server found
        runner = ProcessRunner()
        try:
            yield runner
        finally:
            runner.close()


def run_ranks(folder: Path, source: str, config: dict[str, Any] | None = None, **given: Any) -> Outcome:
    """What the trial ends as."""
    with runner_of_ranks() as runner:
        return runner.run(request_of(folder, source, config, **given), threading.Event())


FORKING = """
import json, os, sys
import torch, torch._dynamo
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from support.torch_trials import Trial

folder, cases = sys.argv[1], json.loads(sys.argv[2])
whole = torch.compile

def as_it_is(function, mode="", **how):
    return whole(function, backend="aot_eager", **how)

torch.compile = as_it_is  # a compiler of C++ would take most of the time

#TRAIN

def run(number, rank):
    config, knowledge = cases[number]
    trial = Trial(config, knowledge)
    joined = f"file://{folder}/joined-{number}"
    dist.init_process_group("gloo", init_method=joined, rank=rank, world_size=2)
    told = train(rank)
    trial.end()
    told |= {"evidence": {r["knob"]: r["evidence"] for r in trial.log.of("knob")}}
    with open(f"{folder}/told-{number}-{rank}.json", "w") as stream:
        json.dump(told, stream)
    dist.destroy_process_group()

def forked(number, rank):
    if pid := os.fork():
        return pid
    try:
        run(number, rank)
    except BaseException:
        import traceback
        traceback.print_exc()
        os._exit(1)
    os._exit(0)

for number in range(len(cases)):
    ranks = [forked(number, rank) for rank in (0, 1)]
    ended = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in ranks]
    assert ended == [0, 0], cases[number]
"""


def _kill_group(leader: int) -> None:
    """With what it has forked off; nothing where all of them have ended."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)


def trained_by(
    folder: Path, train: str, cases: Sequence[tuple[dict[str, Any], dict[str, Any]]]
) -> list[list[dict[str, Any]]]:
    """What the function ``train(rank)`` told in each of two ranks, with each case's config and knowledge, and each
    knob's evidence. PyTorch is imported once for all cases, the ranks of each of which are forked off.
    """
    program = folder / "ranks.py"
    program.write_text(FORKING.replace("#TRAIN", train))
    paths = os.pathsep.join(map(str, (ROOT, ROOT / "tests")))
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": paths}
    command = [sys.executable, str(program), str(folder), json.dumps(cases)]
    with (log := folder / "ranks.txt").open("w") as stream, subprocess.Popen(
        command, env=environment, stdout=stream, stderr=stream, start_new_session=True
    ) as ranks:
        try:
            ended = ranks.wait(timeout=240)
        finally:
            _kill_group(ranks.pid)
    assert ended == 0, log.read_text()
    return [
        [json.loads((folder / f"told-{number}-{rank}.json").read_text()) for rank in (0, 1)]
        for number in range(len(cases))
    ]
