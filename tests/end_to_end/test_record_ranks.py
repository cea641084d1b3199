"""``autotune record --ranks`` on a real script of two ranks: what it wrote is what all of them did together."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from support.command import WITH_SHORT_WINDOWS, Place
from support.rank_scripts import ddp, request_of
from support.recording import Recorded, recorded_in

from tuner.analysis.ranks import united
from tuner.child.records import Block
from tuner.model import BASELINE, Config, Evidence
from tuner.runner.replay import ReplayRunner
from tuner.runner.request import Limits
from tuner.storage.folder import RECORDS, trial_folder
from tuner.storage.records import read_records

RECORD = (
    "record", "train.py", "--ranks", "2", "--out", "grid.jsonl.gz", "--device", "cpu", "--no-probe",
    "--knobs", "num_workers,ddp_bucket_view", "--values", "num_workers=0,1", "--window", "500ms", "--warmup", "100ms",
)  # fmt: skip
SETUP = """
class Slow(torch.utils.data.Dataset):
    def __len__(self): return 64000
    def __getitem__(self, index):
        time.sleep(0.001)
        return torch.ones(8), torch.ones(1)
data = Slow()
""".strip()
STEP = "time.sleep(0.016)"
"""As long as loading a batch of 16 takes, so that a worker nearly doubles the speed."""
# Two capabilities crossed: what ranks count together is shown by test_ranks.py, recording by test_cli_record.py, and
# that a grid tells its ranks by unit/study/test_record.py.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    place = Place(tmp_path_factory.mktemp("record"), WITH_SHORT_WINDOWS)
    place.write(ddp(setup=SETUP, step=STEP), "train.py")
    done = place.run(*RECORD, timeout_s=350)
    assert done.returncode == 0, done.stdout + done.stderr
    assert place.processes() == []
    assert "in 2 ranks" in done.stdout.splitlines()[-2]
    (folder,) = place.folder.glob("autotune-*-cpu-2-ranks-grid")
    return recorded_in(folder, place.folder / "grid.jsonl.gz")


def test_every_config_is_recorded_in_both_ranks(recorded: Recorded) -> None:
    header = recorded.replay.grid.header
    assert (header.ranks, header.complete, header.configs) == (2, True, 3)
    assert set(recorded.replay.grid.configs) == {
        BASELINE, Config(num_workers=1), Config(ddp_bucket_view=True), Config(num_workers=1, ddp_bucket_view=True)
    }  # fmt: skip
    assert all(row.complete for row in recorded.replay.grid.rows), recorded.replay.grid.rows


def test_a_reading_is_of_all_ranks_together(recorded: Recorded) -> None:
    """16 samples in each rank: the grid counts 32 a step, as the trial's own records of both ranks do."""
    for row in recorded.replay.grid.rows:
        reading = row.reading
        assert reading is not None
        counted = [pair[0] / pair[1] for pair in reading.pairs] or [amount / s for amount, s in reading.blocks]
        assert sum(counted) / len(counted) == pytest.approx(32 * reading.steps_per_s, rel=0.15)
    entries = read_records(trial_folder(recorded.folder, 0) / RECORDS)
    blocks = [each.record for each in united(entries) if isinstance(each.record, Block)]
    assert {entry.rank for entry in entries} == {0, 1} and {b.samples / b.steps for b in blocks} == {32.0}


def test_the_replay_runner_serves_it(recorded: Recorded, tmp_path: Path) -> None:
    runner = ReplayRunner(recorded.replay.outcome)
    for trial in recorded.trials:
        if trial.measurement is None or not trial.config:
            continue
        request = request_of(tmp_path, "", dict(trial.config), limits=Limits())
        served = runner.run(request, threading.Event()).measurement
        assert served is not None
        assert served.rate == pytest.approx(trial.measurement.rate, rel=0.2)
        assert {report.knob: report.evidence for report in served.knobs} == dict.fromkeys(
            trial.config, Evidence.VERIFIED
        )


def test_its_space_has_what_ranks_alone_have(recorded: Recorded) -> None:
    space = recorded.replay.space
    assert space.ranks == 2 and space.cores == max(1, recorded.replay.grid.header.cores // 2)
    assert {axis.knob.name for axis in space.axes} == {"num_workers", "ddp_bucket_view"}
    assert all(space.allows(config) for config in recorded.replay.grid.configs)


@pytest.mark.slow
@pytest.mark.timed
def test_what_is_recorded_is_true(recorded: Recorded) -> None:
    assert recorded.replay.true_gain(Config(num_workers=1)) > 1.2
