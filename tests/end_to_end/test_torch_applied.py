"""``autotune run`` with one knob alone: what a trial patches to measure can't be what the knob leans on."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.torch_trials import begin
from torch.utils.data import DataLoader, RandomSampler, TensorDataset

from tuner.child.torch.ddp import KNOBS as DDP_KNOBS
from tuner.child.torch.learning_rates import OTHER_BATCHES
from tuner.space.registry import load_space

__all__ = ["begin"]

pytestmark = pytest.mark.usefixtures("torch_settings_kept")
Begin = Callable[..., Any]
ALONE: list[Any] = [
    ("num_workers", 1), ("prefetch_factor", 4), ("persistent_workers", True), ("threads", 1), ("channels_last", True),
    ("cudnn_benchmark", True), ("batch_size", 16), ("grad_accumulation", 2), ("lr_scale", 0.5),
    ("precision", "bf16"), ("precision", "fp16"), ("optimizer", "foreach"), ("optimizer", "fused"),
    pytest.param(
        "compile", "default", marks=[pytest.mark.slow, pytest.mark.filterwarnings("ignore::DeprecationWarning")]
    ),
]  # fmt: skip


def _trained(workers: int) -> list[float]:
    """The losses of a plain loop of 24 steps."""
    torch.manual_seed(0)
    nn = torch.nn
    data = TensorDataset(torch.randn(192, 3, 6, 6), torch.arange(192).clamp(max=1))
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.Flatten(), nn.Linear(32, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    losses: list[float] = []
    while len(losses) < 24:
        for x, y in DataLoader(data, batch_size=8, shuffle=True, num_workers=workers):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            losses.append(float(loss.detach()))
    return losses


def test_each_knob_that_a_cpu_has_is_among_them() -> None:
    on_cpu = {knob.name for knob in load_space("torch").knobs if knob.devices is None or "cpu" in knob.devices}
    tried = {getattr(case, "values", case)[0] for case in ALONE}
    # Processes that begin with it, models that call it, scripts that compile, and ranks that exchange gradients by it.
    elsewhere = {
        "allocator": "test_preloaded_allocators", "attention": "test_attention", "checkpointing": "test_checkpointing",
        "compile_mode": "test_torch_own_compile",
        **dict.fromkeys(DDP_KNOBS, "test_ddp"),
    }  # fmt: skip
    assert on_cpu - tried == elsewhere.keys()


@pytest.mark.parametrize(("knob", "value"), ALONE)
def test_each_knob_works_alone(begin: Begin, capfd: pytest.CaptureFixture[str], knob: str, value: Any) -> None:
    begin({knob: value}, mode="apply", as_written={"batch_size": 8})
    losses = _trained(workers=1 if knob in ("prefetch_factor", "persistent_workers") else 0)
    assert sum(losses[-6:]) < sum(losses[:6])
    [said] = [line for line in capfd.readouterr().err.splitlines() if line.startswith("autotune: ")]
    assert said.startswith(f"autotune: after 20 steps in effect: {knob}") and "NOT" not in said


def test_a_loader_of_other_batches_than_the_profile_is_for_keeps_them(
    begin: Begin, capfd: pytest.CaptureFixture[str]
) -> None:
    """Four samples in two parts make up batches of eight. Tried before: a script that was changed to 24 had 8 again."""
    config = {"batch_size": 4, "grad_accumulation": 2, "lr_scale": 2.0}
    begin(config, mode="apply", as_written={"batch_size": 8, "grad_accumulation": 1})
    model, given = torch.nn.Linear(3, 1), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(10):
        for (rows,) in DataLoader(TensorDataset(torch.randn(72, 3)), batch_size=24, shuffle=True):
            given.append(len(rows))
            optimizer.zero_grad()
            model(rows).mean().backward()
            optimizer.step()
    assert {*given} == {24} and optimizer.param_groups[0]["lr"] == pytest.approx(0.01)
    told = "the loader has batches of 24 samples, and the config is for those of 8"
    assert f"batch_size ({told})" in capfd.readouterr().err


@pytest.mark.parametrize("mode", ["apply", "trial"])
@pytest.mark.parametrize("kind", ["growing", "made ahead", "validated", "validated shuffled"])
def test_a_rate_that_goes_with_larger_batches_ends_with_them(
    begin: Begin, capfd: pytest.CaptureFixture[str], kind: str, mode: str
) -> None:
    """Where batches grow on the way, the later ones stay as written, and with them has to the rate. What no step
    follows on validates, whether it shuffles or not.
    """
    trial = begin({"batch_size": 32, "lr_scale": 4.0}, mode=mode, as_written={"batch_size": 8})
    model, rows, seen = torch.nn.Linear(3, 1), TensorDataset(torch.randn(192, 3)), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def loader(size: int, shuffle: bool = True) -> Any:
        return DataLoader(rows, batch_size=size, shuffle=shuffle)

    sizes = [(8, True), (8, True), (8, True), (16, kind != "validated"), (8, True)]
    ahead = [loader(*size) for size in sizes] if kind == "made ahead" else []
    for number, (size, shuffle) in enumerate(sizes):
        for (inputs,) in ahead[number] if ahead else loader(size, shuffle):
            if number == 3 and kind.startswith("validated"):
                continue
            optimizer.zero_grad()
            model(inputs).mean().backward()
            optimizer.step()
            seen.append((len(inputs), round(optimizer.param_groups[0]["lr"], 6)))
    assert seen[:18] == [(32, 0.04)] * 18
    if kind.startswith("validated"):
        assert {*seen} == {(32, 0.04)}
        return
    assert {*seen[18:30]} == {(16, 0.01)} and {rate for _, rate in seen[30:]} == {0.01}
    if mode == "trial":
        trial.end()
        assert trial.evidence("lr_scale") == ("contradicted", OTHER_BATCHES)
    else:
        assert f"lr_scale: {OTHER_BATCHES}" in capfd.readouterr().err


@pytest.mark.parametrize("mode", ["apply", "trial"])
def test_a_rate_stays_where_an_epoch_goes_on_behind_a_validation(begin: Begin, mode: str) -> None:
    """Its loader is made in the same line, by a sampler as well, and the one that trains isn't begun anew."""
    trial = begin({"batch_size": 32, "lr_scale": 4.0}, mode=mode, as_written={"batch_size": 8})
    model, rows, seen = torch.nn.Linear(3, 1), TensorDataset(torch.randn(192, 3)), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    training, validating = (DataLoader(rows, batch_size=size, sampler=RandomSampler(rows)) for size in (8, 16))
    for (inputs,) in training:
        optimizer.zero_grad()
        model(inputs).mean().backward()
        optimizer.step()
        seen.append((len(inputs), round(optimizer.param_groups[0]["lr"], 6)))
        for (held_out,) in validating if len(seen) == 3 else ():
            model(held_out)
    assert seen == [(32, 0.04)] * 6
    if mode == "trial":
        trial.end()
        assert trial.evidence("lr_scale")[0] == "verified"


@pytest.mark.parametrize("known", [["train.py:7#0"], []])
def test_batches_that_validate_are_no_reason_why_those_of_training_stay(
    begin: Begin, capfd: pytest.CaptureFixture[str], known: list[str]
) -> None:
    """They are of another size in most scripts. What was trained on in the study may be made elsewhere by now."""
    config = {"batch_size": 16, "lr_scale": 2.0}
    begin(config, mode="apply", as_written={"batch_size": 8}, training_loaders=known)
    model, given = torch.nn.Linear(3, 1), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    rows = TensorDataset(torch.randn(640, 3))
    for (inputs,) in DataLoader(rows, batch_size=100):
        model(inputs)
    for (inputs,) in DataLoader(rows, batch_size=8, shuffle=True):
        given.append(len(inputs))
        optimizer.zero_grad()
        model(inputs).mean().backward()
        optimizer.step()
    said = capfd.readouterr().err
    assert {*given} == {8 if known else 16} and "batches of 100" not in said
    assert "in effect: batch_size" in said
    assert ("batch_size (the DataLoader that trained in the study isn't made any more)" in said) is bool(known)


def test_where_no_loader_is_known_to_train_it_is_not_said_that_none_was_made(
    begin: Begin, capfd: pytest.CaptureFixture[str]
) -> None:
    """A profile that knows none: of one that doesn't shuffle nothing shows that it trains."""
    begin({"num_workers": 1}, mode="apply", as_written={"num_workers": 0})
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for (inputs,) in DataLoader(TensorDataset(torch.randn(168, 3)), batch_size=8):
        optimizer.zero_grad()
        model(inputs).mean().backward()
        optimizer.step()
    said = capfd.readouterr().err
    assert "NOT in effect: num_workers (no DataLoader that is known to train, as one that shuffles, takes it)" in said


@pytest.mark.parametrize("obeys", [True, False])
def test_products_in_bf16_are_in_effect_where_the_processor_takes_them_so(
    begin: Begin, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *, obeys: bool
) -> None:
    """A profile may come from another processor: oneDNN takes the setting on any, and does nothing with it on some."""
    monkeypatch.setattr("tuner.child.devices.products.rounds_to_bf16", lambda torch: obeys)
    begin({"precision": "bf16-math"}, mode="apply", as_written={"batch_size": 8})
    _trained(workers=0)
    said = capfd.readouterr().err
    assert ("NOT in effect: precision" not in said) is obeys
    assert ("in full, although PyTorch lets it round them" in said) is not obeys


@pytest.mark.slow
def test_fp16_alone_trains_to_the_end(write_script: Callable[..., Path], run_child: Callable[..., Any]) -> None:
    """A profile of nothing else ended in the first step, with an assertion of the scaler's."""
    script = write_script(FP16)
    plain, scaled = (run_child(script, config, mode="apply") for config in ({}, {"precision": "fp16"}))
    assert (plain.returncode, scaled.returncode) == (0, 0), scaled.output
    assert "in effect: precision" in scaled.output
    before, after = (float(run.output.split("loss ")[1]) for run in (plain, scaled))
    assert after == pytest.approx(before, rel=0.05)


FP16 = textwrap.dedent("""
    import torch
    torch.manual_seed(0)
    x = torch.randn(256, 8)
    y = x @ torch.randn(8, 1) + torch.randn(256, 1)
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    for epoch in range(20):
        for rows in torch.arange(256).split(32):
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(model(x[rows]), y[rows])
            loss.backward()
            optimizer.step()
    print("loss", float(torch.nn.functional.mse_loss(model(x), y).detach()))
""")
