"""``autotune record`` on a real script: killed at any moment it goes on, and what it wrote is what was measured."""

from __future__ import annotations

import signal
import time

import pytest
from support.command import SCRIPT, WITH_SHORT_WINDOWS, Place
from support.recording import Recorded, recorded_in

from tuner.model import Config
from tuner.storage.audit import audit

RECORD = (
    "record", "train.py", "--out", "grid.jsonl.gz", "--device", "cpu", "--study", "study", "--no-probe",
    "--knobs", "num_workers,prefetch_factor", "--values", "num_workers=0,1", "--values", "prefetch_factor=2,4",
    "--window", "1s", "--warmup", "100ms", "--", "--seconds", "20",
)  # fmt: skip
COUNT = 2
pytestmark = pytest.mark.timeout(400)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    place = Place(tmp_path_factory.mktemp("record"), WITH_SHORT_WINDOWS)
    place.write(SCRIPT, "train.py")
    first = place.start(*RECORD)
    folder = place.folder / "study"
    deadline = time.monotonic() + 120
    while not (folder / "trials" / "0001" / "outcome.json").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    first.send_signal(signal.SIGKILL)
    first.wait(30)
    first.communicate()
    finished = {path: path.read_bytes() for path in (folder / "trials").glob("*/outcome.json")}
    assert finished and not (place.folder / "grid.jsonl.gz").exists()
    done = place.run(*RECORD, timeout_s=200)
    assert done.returncode == 0, done.stderr
    assert {path: path.read_bytes() for path in finished} == finished, "none was run again"
    found = recorded_in(folder, place.folder / "grid.jsonl.gz")
    grid = found.replay.grid
    assert grid.header.complete and grid.header.configs == COUNT and len(grid.configs) == COUNT + 1
    assert f"grid.jsonl.gz: {COUNT} of {COUNT} configs" in done.stdout
    assert place.processes() == []
    return found


@pytest.mark.slow  # of a study: faults/test_study_faults.py
def test_a_recording_that_is_killed_goes_on_and_repeats_nothing(recorded: Recorded) -> None:
    assert audit(recorded.folder, recorded.trials).different == []
    for trial in recorded.by_turns:
        assert trial.measurement is not None and trial.measurement.reference is not None
        served = recorded.replay.outcome(trial.config).measurement
        assert served is not None and served.reference is not None
        assert served.reference.gain.ratio == pytest.approx(trial.measurement.reference.gain.ratio, rel=1e-4)
        assert served.first_step_s == pytest.approx(trial.measurement.first_step_s, rel=1e-4)
        assert {report.knob for report in served.knobs} == {report.knob for report in trial.measurement.knobs}


@pytest.mark.slow
@pytest.mark.timed
def test_what_is_recorded_is_true(recorded: Recorded) -> None:
    """A worker loads while the script sleeps, in place of a step."""
    assert len(recorded.by_turns) >= COUNT - 1
    assert recorded.replay.true_gain(Config(num_workers=1)) > 1.3
