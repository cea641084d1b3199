"""One live process goes through several configs: they are ranked, and what one of them breaks is told of that one."""

from __future__ import annotations

import os
import signal
import textwrap
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.processor import WIDE

from tuner.analysis.rotation import ENDED
from tuner.child.records import Hello, SwitchedTo, Window
from tuner.child.rounds import turns_of, turns_of_round
from tuner.devices.cpu import cpu_device
from tuner.model import Config, Outcome, OutcomeKind, Rotated, Script
from tuner.runner.process import ProcessRunner
from tuner.runner.request import Limits, TrialRequest
from tuner.storage.records import read_records, read_resources

ROOT = Path(__file__).resolve().parents[2]
DIGITS = ROOT / "studies/digits/train.py"
THREADS, BF16, FUSED = Config(threads=1), Config(precision="bf16"), Config(optimizer="fused")
CHANNELS_LAST = Config(channels_last=True)
ALL_THREE = Config(precision="bf16", channels_last=True, optimizer="fused")
LOOP = """
import torch
from torch import nn
torch.set_num_threads(1)
torch.manual_seed(0)
data = torch.utils.data.TensorDataset(torch.randn(512, 1, 8, 8), torch.randint(0, 4, (512,)))
loader = torch.utils.data.DataLoader(data, batch_size=32, shuffle=True)
model = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3), nn.Flatten(), nn.Linear(576, 4))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
steps = 0
PREPARE
while True:
    for x, y in loader:
        steps += 1
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""
ALIKE = "import time; time.sleep(0.05)"
"""What a config does beside computing, so that none is far behind: it would leave before its last round."""
IN_BF16 = """
turns, was_in_turn = 0, False
def meddle(module, given):
    global turns, was_in_turn
    in_turn = torch.is_autocast_enabled("cpu")
    turns, was_in_turn = turns + (in_turn and not was_in_turn), in_turn
    if in_turn:
        BODY
    else:
        OTHERS
model.register_forward_pre_hook(meddle)
"""


def run(folder: Path, script: Path, configs: tuple[Config, ...], **window: Any) -> Outcome:
    length = replace(Window(warmup_steps=4, warmup_s=0.3, block_s=0.05, max_s=2.0), **window)
    request = TrialRequest(
        folder / "trial", Script(str(script), ()), cpu_device(), Config(), window=length, rotation=configs,
        limits=Limits(trial_timeout_s=40.0),
    )  # fmt: skip
    return ProcessRunner().run(request, threading.Event())


def written(folder: Path, in_bf16: str = ALIKE, in_others: str = ALIKE) -> Path:
    """The loop, with what its model does in bf16, and in other configs."""
    path = folder / "train.py"
    bodies = IN_BF16.replace("BODY", textwrap.indent(in_bf16, " " * 8).strip()).replace("OTHERS", in_others)
    path.write_text(LOOP.replace("PREPARE", bodies))
    return path


def found(outcome: Outcome) -> dict[Config, Rotated]:
    return {each.config: each for each in outcome.rotation}


@pytest.mark.slow  # that turns are compared: below, and test_keras_configs_in_one_process.py; pairs: unit/analysis
@pytest.mark.timed
def test_the_best_of_the_digits_configs_is_ranked_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With one thread: on a machine whose other core is busy two wait for each other."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    configs = (CHANNELS_LAST, BF16, FUSED, ALL_THREE)
    outcome = run(tmp_path, DIGITS, configs, warmup_s=1.0, block_s=0.2, max_s=7.0)
    assert outcome.kind is OutcomeKind.COMPLETE, outcome.detail
    ranked = found(outcome)
    assert set(ranked) == {*configs} and not any(each.fault for each in ranked.values())
    gains = {config: each.gain.ratio for config, each in ranked.items() if each.gain is not None}
    entries = read_records(tmp_path / "trial/records.jsonl")
    turns = sum(isinstance(entry.record, SwitchedTo) for entry in entries)
    if WIDE:
        assert max(gains, key=lambda config: gains[config]) == ALL_THREE and gains[ALL_THREE] > 1.3
        assert ranked[ALL_THREE].pairs >= 2, "of turns that others disturbed none counts"
        assert 4 + 1 + 4 + 2 < turns <= turns_of(4)
    else:  # what has bf16 leaves early
        assert 0 < turns <= turns_of(4)
        assert max(gains[BF16], gains[ALL_THREE]) < 0.7 < min(gains[CHANNELS_LAST], gains[FUSED])
    assert outcome.measurement is not None and outcome.measurement.rate > 0
    assert not outcome.measurement.knobs, "no config was asked for"
    assert read_resources(tmp_path / "trial/resources.jsonl")


@pytest.mark.slow  # unit/child/torch/test_switch.py
def test_afterwards_the_script_has_its_own_settings(tmp_path: Path) -> None:
    """What it finds as it ends is what it had before the first switch."""
    head, loop = LOOP.split("while True:")
    state = "(torch.get_num_threads(), [p.stride() for p in model.parameters()], optimizer.param_groups[0]['fused'])"
    indented = textwrap.indent("while True:" + loop.rstrip(), "    ")
    path = tmp_path / "train.py"
    path.write_text(
        f"{head.replace('PREPARE', f'before = {state}')}try:\n{indented}\n"
        f"finally:\n    print('the same:', before == {state}, flush=True)\n"
    )
    outcome = run(tmp_path, path, (Config(threads=2), BF16, ALL_THREE))
    assert outcome.kind is OutcomeKind.COMPLETE, outcome.detail
    assert "the same: True" in (tmp_path / "trial/log.txt").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("what", ["RuntimeError('no kernel for it')", "MemoryError()"])
def test_an_error_of_one_config_names_it_and_leaves_the_others_their_evidence(tmp_path: Path, what: str) -> None:
    """It fails in its third turn, the last one of the second round: the others have had two measured ones by then.

    It does so in the backward, which can't be run again.
    """
    script = written(
        tmp_path,
        f"{ALIKE}\nif turns > 2:\n    def fail(gradient): raise {what}\n"
        "    given[0].requires_grad_().register_hook(fail)",
    )
    outcome = run(tmp_path, script, (BF16, CHANNELS_LAST, FUSED), max_s=1000.0)
    assert outcome.kind is OutcomeKind.INFEASIBLE, "no error of the script as written"
    ranked = found(outcome)
    assert ranked[BF16].gain is None and ranked[BF16].fault == ENDED
    assert ranked[CHANNELS_LAST].gain is not None and ranked[FUSED].gain is not None


def only_bf16_fails(tmp_path: Path, body: str, fault: str) -> Outcome:
    """Three configs on a model with that ``body``: the one in bf16 has that fault, and costs the other two nothing."""
    outcome = run(tmp_path, written(tmp_path, body), (CHANNELS_LAST, BF16, FUSED), max_s=1000.0)
    assert outcome.kind is OutcomeKind.COMPLETE, outcome.detail
    ranked = found(outcome)
    assert ranked[BF16].gain is None and fault in ranked[BF16].fault
    assert ranked[CHANNELS_LAST].gain is not None and ranked[FUSED].gain is not None
    return outcome


def test_a_model_that_fails_in_one_config_only_costs_no_process(tmp_path: Path) -> None:
    """A format that a layer has no kernel for: an LSTM's bf16, on some processors."""
    body = f"{ALIKE}\nraise RuntimeError('could not create a primitive, see the information')"
    only_bf16_fails(tmp_path, body, "could not create a primitive")


@pytest.mark.slow
def test_a_model_that_fails_as_written_too_is_no_configs_fault(tmp_path: Path) -> None:
    body = "if turns: raise RuntimeError('what the script does itself')"
    outcome = run(tmp_path, written(tmp_path, body, body), (CHANNELS_LAST, BF16, FUSED), max_s=1000.0)
    assert outcome.kind is not OutcomeKind.COMPLETE and "what the script does itself" in str(outcome.detail)


@pytest.mark.slow
def test_a_loss_that_becomes_no_number_costs_no_process(tmp_path: Path) -> None:
    outcome = only_bf16_fails(tmp_path, f"{ALIKE}\nreturn given[0] * float('nan')", "not finite")
    assert outcome.measurement is not None
    (series,) = outcome.measurement.losses
    assert series.points[-1][1] < 10, "it trains on from the weights that were kept"


@pytest.mark.slow  # faults/test_loaders_by_turns.py
def test_one_that_is_killed_leaves_what_it_measured(tmp_path: Path) -> None:
    """In the second round's last turn."""
    configs, records = (CHANNELS_LAST, BF16, FUSED, THREADS, ALL_THREE), tmp_path / "trial/records.jsonl"
    last = len(configs) + 1 + 2 * turns_of_round(len(configs))

    def kill() -> None:
        while True:
            time.sleep(0.1)
            entries = read_records(records) if records.exists() else []
            turns = [entry.record.turn for entry in entries if isinstance(entry.record, SwitchedTo)]
            if turns and turns[-1] >= last:
                os.kill(next(e.record.pid for e in entries if isinstance(e.record, Hello)), signal.SIGKILL)
                return

    killer = threading.Thread(target=kill, daemon=True)
    killer.start()
    outcome = run(tmp_path, written(tmp_path), configs, max_s=1000.0)
    killer.join(10)
    assert not outcome.complete
    ranked = found(outcome)
    assert sum(each.gain is not None for each in ranked.values()) >= 2
    assert sum(each.fault == ENDED for each in ranked.values()) <= 1


@pytest.mark.slow  # unit/child/torch/test_switch.py
def test_a_script_that_scales_its_gradients_has_none(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        LOOP.replace("PREPARE", "scaler = torch.amp.GradScaler('cpu')")
        .replace("loss.backward()", "scaler.scale(loss).backward()")
        .replace("optimizer.step()", "scaler.step(optimizer); scaler.update()")
    )  # fmt: skip
    outcome = run(tmp_path, script, (THREADS, BF16))
    assert outcome.kind is OutcomeKind.INFEASIBLE and outcome.reason == "unsupported"
    assert "no rotation: it scales its gradients itself" in outcome.detail
    assert not outcome.rotation


def test_steps_that_the_script_reports_make_none(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import time, tuner\nfor step in range(10000):\n    time.sleep(0.005)\n"
        "    tuner.report(step=step + 1, samples=8 * step)\n"
    )
    outcome = run(tmp_path, script, (THREADS, BF16), max_s=1.0)
    assert outcome.complete and not outcome.rotation
