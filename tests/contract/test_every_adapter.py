"""Every adapter, on every kind of device that it trains on here, in a trial of a script that says itself what is so.

- What was given to the device and isn't computed yet isn't counted as done: no block is shorter than what its steps
  take where each is waited for.
- In the steady state nothing is traced or compiled, whichever knobs are turned.
- The memory that is told is what the process itself finds in use.
"""

from __future__ import annotations

import re
import threading
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent

import pytest
from support.contracts import ADAPTERS, Contract

from tuner.analysis.measurement import knob_reports
from tuner.child.records import Block, Evidence, Window
from tuner.child.wire import Entry
from tuner.devices.present import resolve_device
from tuner.model import Config, Outcome, Script
from tuner.runner.process import ProcessRunner
from tuner.runner.request import Limits, TrialRequest
from tuner.storage.folder import LOG, RECORDS
from tuner.storage.records import read_records

EACH_STEP = Window(warmup_steps=3, warmup_s=0.0, block_s=0.0, min_blocks=12, min_s=1.0, max_s=1.0)
LEAST_SHARE = 0.3
"""Of the time that a step's work takes by itself; a step that is only handed over takes a hundredth of it."""


@dataclass(frozen=True)
class Ran:
    """A trial. ``alone_s``: what a step's work takes where it is waited for. ``graphs``, ``bytes``: with each step, as
    the script counts them.
    """

    config: Config
    outcome: Outcome
    entries: list[Entry]
    alone_s: float
    graphs: list[int]
    bytes: list[int]


@pytest.fixture(scope="module", params=ADAPTERS)
def ran(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """A trial of the adapter's script, with its knobs turned."""
    of: Contract = request.param
    folder: Path = tmp_path_factory.mktemp("contract")
    script = folder / "train.py"
    script.write_text(dedent(of.script))
    trial = TrialRequest(
        folder / "trial", Script(str(script), ()), resolve_device(of.device), Config(of.config), window=EACH_STEP,
        limits=Limits(trial_timeout_s=240.0),
    )  # fmt: skip
    outcome = ProcessRunner().run(trial, threading.Event())
    log = (trial.folder / LOG).read_text()
    assert outcome.complete, (outcome, log[-2000:])
    (alone,) = re.findall(r"^ALONE (\S+)$", log, re.MULTILINE)
    steps = re.findall(r"^STEP (\d+) (\d+)$", log, re.MULTILINE)
    counted, found = [int(graphs) for graphs, _ in steps], [int(used) for _, used in steps]
    return Ran(trial.config, outcome, read_records(trial.folder / RECORDS), float(alone), counted, found)


def test_nothing_counts_as_done_that_is_only_given_to_the_device(ran: Ran) -> None:
    """On a processor torch_xla, JAX, and TensorFlow's loops run behind the script; PyTorch works at once."""
    blocks = [entry.record for entry in ran.entries if isinstance(entry.record, Block) and entry.record.steps]
    shortest = min(block.seconds / block.steps for block in blocks)
    assert shortest > LEAST_SHARE * ran.alone_s, (shortest, ran.alone_s)


def test_in_the_steady_state_no_knob_adds_a_graph(ran: Ran) -> None:
    seen = {report.knob: report.evidence for report in knob_reports(entry.record for entry in ran.entries)}
    assert seen == dict.fromkeys(ran.config, Evidence.VERIFIED)
    assert len(ran.graphs) > 5 and 0 < ran.graphs[len(ran.graphs) // 2] == ran.graphs[-1], ran.graphs


def test_the_memory_that_is_told_is_what_the_process_finds(ran: Ran) -> None:
    assert ran.outcome.measurement is not None
    assert ran.outcome.measurement.peak_host_bytes == pytest.approx(max(ran.bytes), rel=0.05)
