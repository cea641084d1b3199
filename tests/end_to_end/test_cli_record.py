"""``autotune record`` on a real script: killed at any moment it goes on, and what it wrote is what was measured."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest
from support.command import SCRIPT, Place
from support.command import place as place

from tuner.model import Config
from tuner.runner.grid_replay import GridReplay
from tuner.storage.audit import audit
from tuner.storage.database import Repository
from tuner.storage.folder import DATABASE
from tuner.storage.grid import read_grid

RECORD = (
    "record", "train.py", "--out", "grid.jsonl.gz", "--device", "cpu", "--study", "study", "--no-probe",
    "--knobs", "num_workers,prefetch_factor", "--values", "num_workers=0,1", "--values", "prefetch_factor=2,4",
    "--window", "1s", "--warmup", "100ms", "--", "--seconds", "20",
)  # fmt: skip
COUNT = 2


@pytest.mark.timed
@pytest.mark.timeout(400)
def test_a_recording_that_is_killed_goes_on_and_repeats_nothing(place: Place) -> None:
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
    grid = read_grid(place.folder / "grid.jsonl.gz")
    assert grid.header.complete and grid.header.configs == COUNT and len(grid.configs) == COUNT + 1
    assert f"grid.jsonl.gz: {COUNT} of {COUNT} configs" in done.stdout
    _holds_what_was_measured(folder, GridReplay(grid))


def _holds_what_was_measured(folder: Path, replay: GridReplay) -> None:
    repository = Repository(f"sqlite:///{folder / DATABASE}")
    try:
        trials = repository.trials(repository.studies()[0].id)
    finally:
        repository.close()
    assert audit(folder, trials).different == []
    by_turns = 0
    for trial in trials:
        if trial.measurement is None or trial.measurement.reference is None:
            continue
        by_turns += 1
        served = replay.outcome(trial.config).measurement
        assert served is not None and served.reference is not None
        assert served.reference.gain.ratio == pytest.approx(trial.measurement.reference.gain.ratio, rel=1e-4)
        assert served.first_step_s == pytest.approx(trial.measurement.first_step_s, rel=1e-4)
        assert {report.knob for report in served.knobs} == {report.knob for report in trial.measurement.knobs}
    # On a busy machine one may be measured by itself.
    assert by_turns >= COUNT - 1
    # A worker loads while the script sleeps, in place of a step.
    assert replay.true_gain(Config(num_workers=1)) > 1.3
