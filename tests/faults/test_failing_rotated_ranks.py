"""A rank is killed while ranks are probed, or their configs take turns: no process is left, one reason is told."""

from __future__ import annotations

import re
import threading
from pathlib import Path
from typing import Any

import pytest
from support.rank_scripts import UNENDING, ddp, request_of, run_ranks, runner_of_ranks

from tuner.analysis.rotation import ENDED
from tuner.child.records import ProbeSide, Window
from tuner.model import Config, OutcomeKind
from tuner.runner.request import Limits

FUSED, FOREACH, BF16 = Config(optimizer="fused"), Config(optimizer="foreach"), Config(precision="bf16")
TURNS = Window(warmup_steps=3, warmup_s=0.1, block_s=0.05, max_s=1000.0)
STEP = "if step == 0: print('pid', os.getpid(), flush=True)\ntime.sleep(0.03)"
"""It sleeps for most of a step, so that no config is far behind: it would leave before its last round."""
DATA = """
class Own(torch.utils.data.Dataset):
    def __len__(self): return ROWS
    def __getitem__(self, index):
        global asked
        asked += 1
        if rank == 1 and asked > LAST: os.kill(os.getpid(), 9)
        time.sleep(0.0005)
        return torch.zeros(8), torch.zeros(1)
asked, LAST, data = 0, 640.0 if os.path.exists(KILL) else float("inf"), Own()
print('pid', os.getpid(), flush=True)
""".strip()
IN_BF16 = """
optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
turns, was_in_turn = 0, False
def meddle(module, given):
    global turns, was_in_turn
    in_turn = torch.is_autocast_enabled("cpu")
    turns, was_in_turn = turns + (in_turn and not was_in_turn), in_turn
    if turns > 2 and rank == FAILING: WHAT
model.module.register_forward_pre_hook(meddle)
""".strip()


def _failing(rank: int, what: str) -> str:
    """Where this rank does that in its third turn of bf16, the last one of the second round."""
    return IN_BF16.replace("FAILING", str(rank)).replace("WHAT", what)


def _no_process_is_left(folder: Path) -> bool:
    logs = [(folder / "trial" / name).read_text() for name in ("log.txt", "log-1.txt")]
    pids = [int(re.findall(r"^pid (\d+)$", log, re.MULTILINE)[0]) for log in logs]
    return not [pid for pid in pids if Path(f"/proc/{pid}").exists()]


@pytest.mark.slow  # outside a rotation: test_failing_ranks.py; without ranks: test_loaders_by_turns.py
@pytest.mark.parametrize("killed", [0, 1])
def test_a_rank_that_is_killed_in_a_configs_turn_ends_the_rotation(tmp_path: Path, killed: int) -> None:
    source = ddp(setup=_failing(killed, "os.kill(os.getpid(), 9)"), step=STEP)
    outcome = run_ranks(tmp_path, source, rotation=(BF16, FUSED, FOREACH), window=TURNS)
    assert (outcome.kind, outcome.reason) == (OutcomeKind.CRASHED, "signal-kill"), outcome
    assert outcome.detail.startswith(f"rank {killed}: died of SIGKILL")
    ranked = {each.config: each for each in outcome.rotation}
    assert ranked[BF16].fault == ENDED
    assert ranked[FUSED].gain is not None and ranked[FOREACH].gain is not None
    assert outcome.seconds < 40 and _no_process_is_left(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_hangs_in_a_configs_turn_ends_the_rotation(tmp_path: Path, rank: int) -> None:
    source = ddp(setup=_failing(rank, "time.sleep(600)"), step=STEP)
    limits = Limits(trial_timeout_s=240.0, no_progress_s=5.0)
    outcome = run_ranks(tmp_path, source, rotation=(BF16, FUSED, FOREACH), window=TURNS, limits=limits)
    assert outcome.kind is OutcomeKind.NO_PROGRESS and "ranks may wait for each other" in outcome.detail, outcome
    ranked = {each.config: each for each in outcome.rotation}
    assert ranked[BF16].fault == ENDED and ranked[FUSED].gain is not None
    assert outcome.seconds < 90 and _no_process_is_left(tmp_path)


@pytest.mark.slow  # in a rotation: above
@pytest.mark.parametrize("side", [pytest.param(ProbeSide.COMPUTE, marks=pytest.mark.slow), ProbeSide.LOADER])
def test_a_rank_that_is_killed_while_one_side_runs_ends_the_probe(tmp_path: Path, side: ProbeSide) -> None:
    kill = f"{STEP}\nif rank == 1 and step == LAST / 16: os.kill(os.getpid(), 9)"
    source = ddp(setup=DATA.replace("KILL", repr(str(tmp_path / "kill"))), step=kill)
    with runner_of_ranks() as runner:
        known = runner.run(request_of(tmp_path, source), threading.Event()).knowledge
        (tmp_path / "trial").rename(tmp_path / "written")
        (tmp_path / "kill").touch()
        given: dict[str, Any] = {"knowledge": known, "probe": side, "window": UNENDING}
        outcome = runner.run(request_of(tmp_path, source, **given), threading.Event())
    assert (outcome.kind, outcome.reason) == (OutcomeKind.CRASHED, "signal-kill"), outcome
    assert outcome.detail.startswith("rank 1: died of SIGKILL")
    assert outcome.seconds < 40 and _no_process_is_left(tmp_path)
