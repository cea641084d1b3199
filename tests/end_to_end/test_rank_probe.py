"""The sides of a loop that several ranks train in together, each run by itself in all of them."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from support.rank_scripts import ddp, request_of, run_ranks, runner_of_ranks

from tuner.child.records import Block, Facts, Phase, ProbeSide, WindowEnd
from tuner.child.torch.ranks import EXCHANGE_NOTHING
from tuner.model import Outcome
from tuner.storage.folder import RECORDS
from tuner.storage.records import read_records

SAMPLE_S = 0.002
DATA = f"""
class Own(torch.utils.data.Dataset):
    def __len__(self): return 320
    def __getitem__(self, index):
        time.sleep({SAMPLE_S} if rank else {SAMPLE_S / 4})
        return torch.full((8,), index / 320), torch.ones(1)
data = Own()
""".strip()
"""Rank 1 takes four times as long for each of its samples."""
STEP = "print('batch', float(x.sum()).hex(), float(sum(p.detach().sum() for p in model.parameters())).hex())"
SIDES = (None, ProbeSide.COMPUTE, ProbeSide.LOADER)


@pytest.fixture(scope="module")
def probed(tmp_path_factory: pytest.TempPathFactory) -> dict[ProbeSide | None, tuple[Outcome, Path]]:
    """The loop as written (None) and each side of it, with what its trial left."""
    folder, known = tmp_path_factory.mktemp("probed"), None
    found: dict[ProbeSide | None, tuple[Outcome, Path]] = {}
    with runner_of_ranks() as runner:
        for side in SIDES:
            given: dict[str, Any] = {"knowledge": known, "probe": side} if known is not None else {}
            outcome = runner.run(request_of(folder, ddp(setup=DATA, step=STEP), **given), threading.Event())
            found[side] = outcome, (folder / "trial").rename(folder / str(side))
            known = known or outcome.knowledge
    return found


def _steps(folder: Path) -> dict[int, int]:
    entries = read_records(folder / RECORDS)
    assert all(entry.record.complete for entry in entries if isinstance(entry.record, WindowEnd))
    return {entry.rank: entry.record.steps for entry in entries if isinstance(entry.record, Facts)}


@pytest.mark.slow  # 12 s beside three others
def test_each_side_ends_in_unison(probed: dict[ProbeSide | None, tuple[Outcome, Path]]) -> None:
    for side, (outcome, folder) in probed.items():
        assert outcome.complete, (side, outcome.detail)
        steps = _steps(folder)
        assert set(steps) == {0, 1} and steps[0] == steps[1], side


def test_the_loaders_of_all_ranks_are_as_fast_as_the_slowest(
    probed: dict[ProbeSide | None, tuple[Outcome, Path]],
) -> None:
    """Beside others a sleep is longer than it says: by how much it was in the slowest rank, that rank tells."""
    outcome, folder = probed[ProbeSide.LOADER]
    slowest = [
        entry.record for entry in read_records(folder / RECORDS)
        if entry.rank == 1 and isinstance(entry.record, Block) and entry.record.phase is Phase.WINDOW
    ]  # fmt: skip
    its_rate = sum(block.samples for block in slowest) / sum(block.seconds for block in slowest)
    assert outcome.measurement is not None and 0.7 * 2 * its_rate < outcome.measurement.rate < 2 / SAMPLE_S
    assert not [each for each in outcome.knowledge.remarks if EXCHANGE_NOTHING in each]


def test_each_rank_computes_on_a_batch_of_its_own_and_exchanges_what_it_gives(
    probed: dict[ProbeSide | None, tuple[Outcome, Path]],
) -> None:
    real, (outcome, folder) = probed[None][0].measurement, probed[ProbeSide.COMPUTE]
    assert real is not None and outcome.measurement is not None
    assert outcome.measurement.rate > 3 * real.rate
    told = [[row.split()[1:] for row in (folder / name).read_text().splitlines()] for name in ("log.txt", "log-1.txt")]
    batches = [{batch for batch, _ in of} for of in told]
    assert len(batches[0]) == len(batches[1]) == 1 and batches[0] != batches[1]
    weights = [[weights for _, weights in of] for of in told]
    assert weights[0] == weights[1] and len({*weights[0]}) > 10, "each step takes the mean of both gradients"


ELSEWHERE = """
def batches(loader):
    while True:
        yield data[rank : rank + BATCH]
if rank:
    DataLoader = lambda *given, **named: batches(None)
""".strip()


@pytest.mark.slow
def test_a_rank_that_another_source_feeds_ends_the_probe(tmp_path: Path) -> None:
    """It would come to the end of an epoch by itself, and wait for the others there."""
    source = ddp(setup=ELSEWHERE, step="time.sleep(0.01)")
    known = run_ranks(tmp_path, source).knowledge
    (tmp_path / "trial").rename(tmp_path / "written")
    outcome = run_ranks(tmp_path, source, knowledge=known, probe=ProbeSide.COMPUTE)
    assert outcome.reason == "unsupported" and outcome.detail.startswith("rank 1: no side of this rank"), outcome.detail
