"""One live process goes through configs with loaders of their own: they are ranked as their loaders are fast."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tuner.analysis.measurement import knowledge_of
from tuner.child.records import LoaderStarted, SwitchedTo, Window
from tuner.devices.cpu import cpu_device
from tuner.model import Config, Outcome, OutcomeKind, Script
from tuner.runner.process import ProcessRunner
from tuner.runner.request import Limits, TrialRequest
from tuner.storage.records import read_records

ONE, TWO, FOUR, NONE = (Config(num_workers=number) for number in (1, 2, 4, 0))
WAITING_DATA = """
import time
import torch
from torch import nn
torch.set_num_threads(1)
torch.manual_seed(0)
class Rows:
    def __len__(self):
        return SAMPLES
    def __getitem__(self, number):
        time.sleep(0.004)  # as for a disk or a network
        row = torch.full((4,), float(number))
        return row, number
loader = torch.utils.data.DataLoader(Rows(), batch_size=8, shuffle=True, num_workers=WORKERS)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
while True:
    steps = 0
    for rows, numbers in loader:
        assert torch.equal(rows, numbers[:, None].expand(8, 4).float()) and len(set(numbers.tolist())) == 8
        optimizer.zero_grad()
        model(rows).mean().backward()
        optimizer.step()
        steps += 1
    assert steps == len(loader), steps
"""


def run(
    folder: Path,
    configs: tuple[Config, ...],
    *,
    workers: int = 0,
    samples: int = 2400,
    loading: str = "",
    text: str = WAITING_DATA,
    **window: Any,
) -> Outcome:
    """``loading``: what is done with each item beside waiting for it, in the script whose ``text`` that is."""
    script = folder / "train.py"
    text = text.replace("WORKERS", str(workers)).replace("SAMPLES", str(samples))
    script.write_text(text.replace("# as for a disk or a network", loading and f"; {loading}"))
    length = replace(Window(warmup_steps=4, warmup_s=0.3, block_s=0.4, max_s=1000.0), **window)
    request = TrialRequest(
        folder / "trial", Script(str(script), ()), cpu_device(), Config(), window=length, rotation=configs,
        limits=Limits(trial_timeout_s=90.0),
    )  # fmt: skip
    return ProcessRunner().run(request, threading.Event())


def gains(outcome: Outcome) -> dict[Config, float]:
    assert outcome.kind is OutcomeKind.COMPLETE, outcome.detail
    assert not any(each.fault for each in outcome.rotation), outcome.rotation
    return {each.config: each.gain.ratio for each in outcome.rotation if each.gain is not None}


@pytest.mark.slow  # configs of a model are: test_configs_in_one_process.py
@pytest.mark.timed
def test_the_loader_that_is_fastest_is_ranked_first(tmp_path: Path) -> None:
    """Its data wait for 32 ms a batch, whoever else is busy: so many workers, so much faster. An epoch takes 10 s."""
    found = gains(run(tmp_path, (ONE, TWO, FOUR)))
    assert sorted(found, key=lambda config: -found[config]) == [FOUR, TWO, ONE]
    assert 0.7 < found[ONE] < 1.4 and 1.4 < found[TWO] < 2.4 and 2.0 < found[FOUR] < 4.5
    records = [entry.record for entry in read_records(tmp_path / "trial/records.jsonl")]
    assert all(record.loads for record in records if isinstance(record, SwitchedTo))
    started = [record for record in records if isinstance(record, LoaderStarted)]
    assert [(each.workers, each.respawns) for each in started] == [(1, True), (2, True), (4, True)]
    epoch = knowledge_of(records).epoch
    assert epoch is not None and epoch.batches == 300 and epoch.workers == 0


@pytest.mark.timed
@pytest.mark.slow
def test_against_workers_of_the_script_s_own_others_are_ranked(tmp_path: Path) -> None:
    """What they prefetch makes no difference here, and without them it is half as fast."""
    more = Config(prefetch_factor=4)
    found = gains(run(tmp_path, (NONE, more, FOUR), workers=2))
    assert sorted(found, key=lambda config: found[config]) == [NONE, more, FOUR]
    assert found[NONE] < 0.8 and 0.6 < found[more] < 1.5 and 1.2 < found[FOUR] < 3.0


@pytest.mark.slow  # unit/child/torch/test_own_loaders.py
def test_epochs_that_begin_cost_what_they_cost(tmp_path: Path) -> None:
    """Each of them starts workers anew in a trial; in a rotation they are started once. Epochs of four batches each."""
    found = gains(run(tmp_path, (ONE, TWO), samples=32, block_s=0.2))
    records = [entry.record for entry in read_records(tmp_path / "trial/records.jsonl")]
    started = {record.workers: record.seconds for record in records if isinstance(record, LoaderStarted)}
    assert started[2] > 0.032, "its first batch takes as long as without workers"
    assert found[TWO] < 1.6, "in its turns it is twice as fast"


@pytest.mark.slow  # in one process: unit/child/torch/test_own_loaders.py
def test_what_one_config_s_workers_cannot_do_costs_no_process(tmp_path: Path) -> None:
    loading = "info = torch.utils.data.get_worker_info(); assert info is None or info.id < 1, 'one is enough'"
    outcome = run(tmp_path, (ONE, TWO), samples=240, loading=loading)
    assert outcome.kind is OutcomeKind.COMPLETE, outcome.detail
    told = {each.config: each for each in outcome.rotation}
    assert told[TWO].gain is None and "its loader failed: AssertionError: one is enough" in told[TWO].fault
    assert told[ONE].gain is not None


VALIDATING = """
held = torch.utils.data.DataLoader(torch.zeros(4, 4), batch_size=4)
while True:
    for rows, numbers in loader:
        optimizer.zero_grad()
        model(rows).mean().backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        for rows in held:
            time.sleep(0.3)  # in which a worker that goes on makes nine batches
            model(rows)
    model.train()
"""


@pytest.mark.timed
@pytest.mark.slow  # that nothing is made meanwhile: unit/child/torch/test_held_loaders.py
def test_what_is_made_while_the_script_validates_is_nobody_s_speed(tmp_path: Path) -> None:
    """One worker is no faster than none, however many batches it may have ready after each validation."""
    more = Config(num_workers=1, prefetch_factor=8)
    text = WAITING_DATA.partition("while True:")[0] + VALIDATING
    found = gains(run(tmp_path, (more, TWO, ONE), samples=64, text=text))
    assert found[more] < 1.5
