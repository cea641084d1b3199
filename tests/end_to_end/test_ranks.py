"""PyTorch scripts in two ranks that exchange gradients by gloo: measured and ended together, told apart in faults."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import pytest
from support.rank_scripts import UNENDING, ddp, run_ranks

from tuner.analysis.ranks import SAME_BATCHES
from tuner.child.records import Block, Facts, WindowEnd
from tuner.child.torch.parts import KEEPS
from tuner.child.torch.ranks import EXCHANGE_NOTHING
from tuner.knowledge import Knowledge
from tuner.model import Evidence, Outcome, OutcomeKind
from tuner.runner.request import Limits
from tuner.storage.folder import RECORDS
from tuner.storage.records import read_records

SLOW = "time.sleep(0.01)"


@pytest.fixture(scope="module")
def straggling(tmp_path_factory: pytest.TempPathFactory) -> tuple[Outcome, Path]:
    """Rank 1 takes 60 ms a step for itself and has smaller batches, rank 0 takes 10 ms; both have a worker."""
    folder = tmp_path_factory.mktemp("straggling")
    setup = "if rank: BATCH = 8"
    step = "time.sleep(0.06 if rank else 0.01)"
    return run_ranks(folder, ddp(setup=setup, step=step), {"num_workers": 1}), folder


def test_the_rate_is_that_of_all_ranks_by_the_slowest(straggling: tuple[Outcome, Path]) -> None:
    outcome, _ = straggling
    assert outcome.complete and outcome.measurement is not None, outcome.detail
    found = outcome.measurement
    assert found.rate == pytest.approx(24 * found.steps_per_s, rel=0.02)
    assert found.steps_per_s < 16.7


def test_who_holds_the_others_up_is_told(straggling: tuple[Outcome, Path]) -> None:
    outcome, _ = straggling
    assert any(remark.startswith("rank 1 comes to its backward") for remark in outcome.knowledge.remarks)


def test_all_ranks_end_after_the_same_step(straggling: tuple[Outcome, Path]) -> None:
    outcome, folder = straggling
    entries = read_records(folder / "trial" / RECORDS)
    steps = {entry.rank: entry.record.steps for entry in entries if isinstance(entry.record, Facts)}
    assert set(steps) == {0, 1} and steps[0] == steps[1]
    assert all(entry.record.complete for entry in entries if isinstance(entry.record, WindowEnd))
    ends = [{e.record.at for e in entries if e.rank == rank and isinstance(e.record, Block)} for rank in (0, 1)]
    assert len(ends[0] & ends[1]) >= 6
    assert outcome.knowledge.samples == 24 * steps[0]


def test_each_rank_observes_its_knobs(straggling: tuple[Outcome, Path]) -> None:
    outcome, _ = straggling
    assert outcome.measurement is not None
    (report,) = outcome.measurement.knobs
    assert (report.knob, report.evidence) == ("num_workers", Evidence.VERIFIED)


def test_what_a_model_computes_may_be_turned(straggling: tuple[Outcome, Path]) -> None:
    assert not {"compile", "grad_accumulation", "checkpointing"} & {*straggling[0].knowledge.left_out}


def test_ranks_that_exchange_gradients_are_not_said_to_exchange_nothing(straggling: tuple[Outcome, Path]) -> None:
    assert not [remark for remark in straggling[0].knowledge.remarks if EXCHANGE_NOTHING in remark]


@pytest.mark.slow  # tests/differential/test_ddp_knobs.py shows what they train
def test_a_batch_is_computed_in_parts_in_each_rank(tmp_path: Path) -> None:
    known = Knowledge(as_written={"batch_size": 16, "grad_accumulation": 1}, framework="torch", unit="samples")
    config = {"batch_size": 8, "grad_accumulation": 2}
    outcome = run_ranks(tmp_path, ddp(step=SLOW), config, knowledge=known)
    assert outcome.complete and outcome.measurement is not None, outcome.detail
    assert {each.knob: each.evidence for each in outcome.measurement.knobs} == dict.fromkeys(config, Evidence.VERIFIED)


@pytest.mark.slow  # tests/end_to_end/test_torch_parts.py has such models in one process
def test_a_model_that_cannot_be_computed_in_parts_is_told_below_its_wrapper(tmp_path: Path) -> None:
    setup = """
inner = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 1))
model = DistributedDataParallel(inner)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
""".strip()
    known = run_ranks(tmp_path, ddp(setup=setup, step=SLOW)).knowledge
    assert known.batch_norm and known.left_out["grad_accumulation"] == KEEPS


@pytest.mark.slow
def test_an_exception_in_one_rank_is_the_trials(tmp_path: Path) -> None:
    step = f"if rank == 1 and step == 20: raise ValueError('bad row')\n{SLOW}"
    outcome = run_ranks(tmp_path, ddp(step=step), window=UNENDING)
    assert (outcome.kind, outcome.detail) == (OutcomeKind.USER_ERROR, "rank 1: ValueError: bad row")
    assert "bad row" in outcome.traceback_text and "train.py" in outcome.traceback_text


@pytest.mark.slow
def test_an_exception_before_the_first_block_is_the_scripts_own_though_it_leaves_its_group(tmp_path: Path) -> None:
    step = f"if step == 1:\n    dist.destroy_process_group()\n    raise ValueError('bad row')\n{SLOW}"
    outcome = run_ranks(tmp_path, ddp(step=step), window=UNENDING)
    assert outcome.kind is OutcomeKind.USER_ERROR and outcome.detail.endswith("ValueError: bad row"), outcome.detail


@pytest.mark.slow  # faults/test_failing_ranks.py
def test_a_killed_rank_decides_and_not_the_one_that_misses_it(tmp_path: Path) -> None:
    step = f"if rank == 1 and step == 20: os.kill(os.getpid(), 9)\n{SLOW}"
    outcome = run_ranks(tmp_path, ddp(step=step), window=UNENDING)
    assert (outcome.kind, outcome.reason) == (OutcomeKind.CRASHED, "signal-kill")
    assert outcome.detail.startswith("rank 1: died of SIGKILL")


@pytest.mark.slow  # faults/test_failing_ranks.py
@pytest.mark.parametrize("ranks", [2, 4])
def test_data_that_end_sooner_in_one_rank_are_told(tmp_path: Path, ranks: int) -> None:
    source = ddp(step="if rank == 1 and step == 20: break\n" + SLOW, epochs=1)
    outcome = run_ranks(tmp_path, source, window=UNENDING, ranks=ranks)
    assert outcome.kind is OutcomeKind.USER_ERROR
    assert re.match(r"rank [023]: RuntimeError.*\(rank 1 had ended by then\)", outcome.detail), outcome.detail


@pytest.mark.slow  # faults/test_failing_ranks.py
@pytest.mark.parametrize("waits", [0, 1])
def test_a_hang_in_a_collective_ends_and_leaves_no_process(tmp_path: Path, waits: int) -> None:
    """Gloo waits half an hour for a rank that doesn't come."""
    step = f"if step == 0: print('pid', os.getpid())\nif rank == {1 - waits} and step == 20: time.sleep(600)\n{SLOW}"
    limits = Limits(trial_timeout_s=240.0, no_progress_s=5.0)
    outcome = run_ranks(tmp_path, ddp(step=step), window=UNENDING, limits=limits)
    assert outcome.kind in (OutcomeKind.NO_PROGRESS, OutcomeKind.TIMED_OUT), outcome
    assert "steps by then: 20 in rank 0, 20 in rank 1" in outcome.detail, outcome.detail
    logs = [(tmp_path / "trial" / name).read_text() for name in ("log.txt", "log-1.txt")]
    pids = [int(re.findall(r"^pid (\d+)$", log, re.MULTILINE)[0]) for log in logs]
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]


@pytest.mark.slow
def test_four_ranks_are_measured_by_the_slowest(tmp_path: Path) -> None:
    outcome = run_ranks(tmp_path, ddp(step="time.sleep(0.06 if rank == 2 else 0.02)"), ranks=4)
    assert outcome.complete and outcome.measurement is not None, outcome.detail
    assert outcome.measurement.rate == pytest.approx(4 * 16 * outcome.measurement.steps_per_s, rel=0.02)
    assert outcome.measurement.steps_per_s < 17
    assert any(remark.startswith("rank 2 comes to its backward") for remark in outcome.knowledge.remarks)


@pytest.mark.slow
def test_ranks_that_train_apart_are_refused(tmp_path: Path) -> None:
    source = """
    import time, torch
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(100000):
        model(torch.ones(8, 4)).sum().backward()
        optimizer.step()
        time.sleep(0.005)
    """
    outcome = run_ranks(tmp_path, textwrap.dedent(source))
    assert outcome.reason == "no-group" and "it makes no process group" in outcome.detail


@pytest.mark.slow  # unit/child/torch/test_ranks_watch.py
def test_ranks_that_exchange_nothing_are_told(tmp_path: Path) -> None:
    """They have joined a group, for what is no training: some scripts wrap their model on a card only."""
    apart = ddp(step=SLOW).replace("DistributedDataParallel(torch.nn.Sequential", "(torch.nn.Sequential")
    outcome = run_ranks(tmp_path, apart)
    assert outcome.complete, outcome.detail
    assert [remark for remark in outcome.knowledge.remarks if EXCHANGE_NOTHING in remark]


@pytest.mark.slow  # unit/analysis/test_united_ranks.py
def test_ranks_that_get_the_same_batches_are_told(straggling: tuple[Outcome, Path], tmp_path: Path) -> None:
    """A script that leaves the sampler out trains all ranks on the same, or has each take its part of a batch."""
    shared = ddp(step=SLOW).replace("batch_size=BATCH, sampler=sampler", "batch_size=BATCH")
    outcome = run_ranks(tmp_path, shared)
    assert outcome.complete, outcome.detail
    assert SAME_BATCHES.format(2) in outcome.knowledge.remarks
    assert SAME_BATCHES.format(2) not in straggling[0].knowledge.remarks


@pytest.mark.slow
def test_what_one_rank_writes_the_others_read(tmp_path: Path) -> None:
    """Rank 0 saves over a checkpoint of the user's after each epoch and validates; rank 1 loads what it saved."""
    (tmp_path / "best.pt").write_bytes(b"the user's")
    epoch = f"""
if rank == 0:
    torch.save({{"epoch": epoch}}, {str(tmp_path / "best.pt")!r})
    torch.save({{"epoch": epoch}}, {str(tmp_path / "new.pt")!r})
    model.eval()
    with torch.no_grad(): model.module(x)
    time.sleep(0.2)
    model.train()
dist.barrier()
for name in ("best.pt", "new.pt"):
    assert torch.load(os.path.join({str(tmp_path)!r}, name))["epoch"] == epoch
dist.barrier()""".strip()
    setup = "data = torch.utils.data.Subset(data, range(1600))"
    outcome = run_ranks(tmp_path, ddp(setup=setup, step=SLOW, epoch=epoch))
    assert outcome.complete, outcome.detail
    assert (tmp_path / "best.pt").read_bytes() == b"the user's"
    assert not (tmp_path / "new.pt").exists()
