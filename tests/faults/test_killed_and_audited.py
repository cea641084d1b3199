"""What a trial still says once it is being ended counts for nothing, neither then nor when its figures are checked."""

from __future__ import annotations

import textwrap
import threading
from pathlib import Path

import pytest

from tuner.devices.cpu import cpu_device
from tuner.model import Config, OutcomeKind, Phase, Script, Trial
from tuner.runner.process import ProcessRunner
from tuner.runner.request import Limits, TrialRequest
from tuner.storage.audit import audit
from tuner.storage.codec import encode_outcome
from tuner.storage.folder import OUTCOME, trial_folder

LATE = """
import json, os, signal, sys, time
descriptor = int(os.environ["AUTOTUNE_RECORDS_FD"])
def emit(kind, **fields):
    os.write(descriptor, (json.dumps({"v": 1, "t": time.monotonic(), "kind": kind, **fields}) + "\\n").encode())
def late(number, frame):
    emit("block", phase="window", steps=5, samples=5000, seconds=0.1, wait_s=0.01, flagged=False)
    emit("facts", unit="samples", steps=3)
    emit("exit", code=1)
    os._exit(1)
signal.signal(signal.SIGTERM, late)
emit("hello", pid=os.getpid(), python="3", executable="python3")
emit("first_step", seconds=0.1)
for _ in range(12):
    emit("block", phase="window", steps=5, samples=50, seconds=0.1, wait_s=0.01, flagged=False)
emit("window", complete=False, why="the time is up")
time.sleep(60)
"""


@pytest.mark.slow  # 5 s beside three others
def test_an_honest_trial_that_was_ended_is_found_to_be_one(tmp_path: Path) -> None:
    child = tmp_path / "child.py"
    child.write_text(textwrap.dedent(LATE))
    folder, config = trial_folder(tmp_path, 0), Config(a=1)
    request = TrialRequest(
        folder, Script("train.py", ()), cpu_device(), config, limits=Limits(trial_timeout_s=5.0)
    )
    outcome = ProcessRunner(child=child).run(request, threading.Event())
    assert outcome.kind is OutcomeKind.COMPLETE and outcome.detail == "the time is up"
    assert outcome.measurement is not None and len(outcome.measurement.blocks) == 12
    (folder / OUTCOME).write_text(encode_outcome(outcome))
    assert audit(tmp_path, [Trial(0, Phase.SEARCH, config, outcome=outcome)]).different == []
