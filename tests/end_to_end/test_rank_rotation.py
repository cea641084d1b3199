"""Configs take turns in the live processes of two ranks: both have the same one in each step, and the same weights."""

from __future__ import annotations

import re
import textwrap
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.rank_scripts import ddp, joining, run_ranks

from tuner.analysis.rotation import ENDED
from tuner.child.records import SwitchedTo, Window
from tuner.child.rounds import turns_of
from tuner.child.unison import RANKS_APART
from tuner.model import Config, Outcome, OutcomeKind, Rotated
from tuner.storage.folder import RECORDS
from tuner.storage.records import read_records

BF16, FUSED, FOREACH, LOADED = (
    Config(precision="bf16"), Config(optimizer="fused"), Config(optimizer="foreach"), Config(num_workers=1),
)  # fmt: skip
BOTH = Config(precision="bf16", optimizer="fused")
LAID = Config(channels_last=True)
TURNS = Window(warmup_steps=3, warmup_s=0.1, block_s=0.05, max_s=1000.0)
SETUP = """
data = TensorDataset(torch.randn(256, 1, 8, 8), torch.arange(256.0)[:, None])
nets = torch.nn
inner = nets.Sequential(nets.Conv2d(1, 8, 3, padding=1, bias=False), nets.BatchNorm2d(8), nets.ReLU(),
    nets.Conv2d(8, 8, 3), nets.Flatten(), nets.Linear(288, 1))
model = DistributedDataParallel(inner)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
in_bf16, seen = False, []
def meddle(module, given):
    global in_bf16
    in_bf16 = torch.is_autocast_enabled("cpu")
    if in_bf16:
        IN_BF16
inner.register_forward_pre_hook(meddle)
def settings():
    group = optimizer.param_groups[0]
    return in_bf16, group["fused"], group["foreach"], torch.get_num_threads()
def weights():
    return float(sum(p.detach().double().abs().sum() for p in model.parameters())).hex()
""".strip()
STEP = """
if step: print("at", step, *settings(), weights(), flush=True)
y = y / 256; time.sleep(0.03)
""".strip()
"""It sleeps for most of a step, so that no config is far behind: it would leave before its last round."""


def source(in_bf16: str = "pass", step: str = STEP, epoch: str = "") -> str:
    return ddp(setup=SETUP.replace("IN_BF16", in_bf16), step=step, epoch=epoch)


def told(folder: Path) -> list[list[str]]:
    """What each rank printed of its steps."""
    logs = [(folder / "trial" / name).read_text().splitlines() for name in ("log.txt", "log-1.txt")]
    return [[row for row in log if row.startswith("at ")] for log in logs]


def found(outcome: Outcome) -> dict[Config, Rotated]:
    return {each.config: each for each in outcome.rotation}


@pytest.fixture(scope="module")
def rotated(tmp_path_factory: pytest.TempPathFactory) -> tuple[Outcome, Path]:
    folder = tmp_path_factory.mktemp("rotated")
    head, loop = source().split("step = 0\n")
    text = f"{head}step = 0\ntry:\n{textwrap.indent(loop, '    ')}finally:\n    print('in the end', *settings())\n"
    return run_ranks(folder, text, rotation=(BF16, FUSED, FOREACH, BOTH), window=TURNS), folder


@pytest.mark.slow  # 12 s beside three others
def test_each_config_has_its_turns_in_all_ranks(rotated: tuple[Outcome, Path]) -> None:
    outcome, folder = rotated
    assert outcome.complete, outcome.detail
    assert {*found(outcome)} == {BF16, FUSED, FOREACH, BOTH}
    assert all(each.gain is not None and not each.fault for each in outcome.rotation), outcome.rotation
    switches = [entry for entry in read_records(folder / "trial" / RECORDS) if isinstance(entry.record, SwitchedTo)]
    assert 4 < len(switches) <= turns_of(4) and not any(entry.rank for entry in switches)
    assert outcome.measurement is not None and outcome.measurement.rate == pytest.approx(
        32 * outcome.measurement.steps_per_s, rel=0.02
    ), "of both ranks"


def test_all_ranks_have_the_same_config_and_the_same_weights_in_each_step(rotated: tuple[Outcome, Path]) -> None:
    one, other = told(rotated[1])
    assert len(one) > 50 and one == other
    seen = {tuple(row.split()[2:5]) for row in one}
    in_fp32 = {("False", "None", "None"), ("False", "True", "False"), ("False", "False", "True")}
    assert in_fp32 | {("True", "None", "None"), ("True", "True", "False")} <= seen


def test_in_the_end_the_script_is_as_written_in_each_rank(rotated: tuple[Outcome, Path]) -> None:
    logs = [(rotated[1] / "trial" / name).read_text() for name in ("log.txt", "log-1.txt")]
    ends = [re.findall(r"^in the end \S+ (.*)$", log, re.MULTILINE) for log in logs]
    assert ends[0] == ends[1] == ["None None 1"], ends


@pytest.mark.slow
def test_they_train_as_if_nothing_had_been_switched(tmp_path: Path) -> None:
    """Up to rounding, by what computes the same sums: from the same seed, on the same batches."""
    plain, switched = tmp_path / "plain", tmp_path / "switched"
    trials: list[tuple[Path, dict[str, Any]]] = [
        (plain, {"window": replace(TURNS, max_s=6.0, min_s=6.0)}), (switched, {"rotation": (FUSED, FOREACH, LAID)}),
    ]  # fmt: skip
    for folder, given in trials:
        folder.mkdir()
        outcome = run_ranks(folder, source(), **{"window": TURNS, **given})
        assert outcome.complete, outcome.detail
    assert "keeps the layout" in found(outcome)[LAID].fault
    pairs = [(one.split(), other.split()) for one, other in zip(told(plain)[0], told(switched)[0], strict=False)]
    assert len(pairs) > 40 and len({tuple(other[2:5]) for _, other in pairs}) == 3, "some of it in each turn"
    for one, other in pairs:
        assert float.fromhex(one[-1]) == pytest.approx(float.fromhex(other[-1]), rel=1e-5)


@pytest.mark.slow  # unit/child/torch/test_own_loaders.py
def test_another_loader_gives_each_rank_its_own_share(tmp_path: Path) -> None:
    """Each epoch has eight steps in each rank, on rows that the other one doesn't have: every other one."""
    step = f"seen.append(y.flatten().long().tolist())\n{STEP}"
    epoch = "print('epoch', len(seen), sorted({row % 2 for row in sum(seen, [])}), flush=True); seen.clear()"
    text = source(step=step, epoch=epoch).replace("(data, ranks, rank)", "(data, ranks, rank, shuffle=False)")
    outcome = run_ranks(tmp_path, text, rotation=(LOADED, FUSED), window=TURNS)
    assert outcome.complete and found(outcome)[LOADED].gain is not None, (outcome.detail, outcome.rotation)
    one, other = told(tmp_path)
    assert one == other
    logs = [(tmp_path / "trial" / name).read_text() for name in ("log.txt", "log-1.txt")]
    epochs = [re.findall(r"^epoch (.*)$", log, re.MULTILINE) for log in logs]
    assert len(epochs[0]) == len(epochs[1]) > 5
    assert ({*epochs[0]}, {*epochs[1]}) == ({"8 [0]"}, {"8 [1]"})


@pytest.mark.slow  # faults/test_failing_rotated_ranks.py
@pytest.mark.parametrize("what", ["raise MemoryError()", "given[0].requires_grad_().register_hook(lambda g: 1 / 0)"])
def test_an_error_of_a_config_in_one_rank_names_the_config_and_ends_all(tmp_path: Path, what: str) -> None:
    """In the second round's last turn, in rank 1 alone: the other one waits for it in their exchange by then."""
    counts = "turns[0] += not was_in[0]; was_in[0] = True"
    body = f"{counts}\n        if rank and turns[0] > 2: {what}\n    else: was_in[0] = False"
    text = source(body).replace("in_bf16, seen", "turns, was_in = [0], [False]\nin_bf16, seen")
    outcome = run_ranks(tmp_path, text, rotation=(BF16, FOREACH, FUSED), window=TURNS)
    assert outcome.kind is OutcomeKind.INFEASIBLE and outcome.detail.startswith("rank 1: "), outcome
    ranked = found(outcome)
    assert ranked[BF16].gain is None and ranked[BF16].fault == ENDED
    assert ranked[FOREACH].gain is not None and ranked[FUSED].gain is not None
    assert outcome.seconds < 40


@pytest.mark.slow  # of one process: test_configs_in_one_process.py
def test_a_loss_that_becomes_no_number_in_one_rank_costs_no_process(tmp_path: Path) -> None:
    body = "return given[0] * (float('nan') if rank else 1.0)"
    outcome = run_ranks(tmp_path, source(body), rotation=(FOREACH, BF16, FUSED), window=TURNS)
    assert outcome.complete, outcome.detail
    ranked = found(outcome)
    assert ranked[BF16].gain is None and "not finite" in ranked[BF16].fault
    assert ranked[FOREACH].gain is not None and ranked[FUSED].gain is not None
    one, other = told(tmp_path)
    assert one == other and "nan" in {row.split()[-1] for row in one} and "nan" not in one[-1], "they were put back"


@pytest.mark.slow
def test_ranks_that_do_not_take_the_same_steps_are_not_switched(tmp_path: Path) -> None:
    outcome = run_ranks(tmp_path, joining(), rotation=(BF16, FUSED), window=TURNS)
    assert outcome.reason == RANKS_APART and not any(each.fault == ENDED for each in outcome.rotation), outcome
