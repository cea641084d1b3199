"""Products of float32 that a processor rounds: offered, set and verified where it is seen to, and nowhere else."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support.torch_trials import begin

from tuner.child.devices import products
from tuner.child.devices.cpu import CpuDevice

__all__ = ["begin"]

pytestmark = pytest.mark.usefixtures("torch_settings_kept")
Begin = Callable[..., Any]
PROBE = "tuner.child.devices.products.rounds_to_bf16"


def _errors_of(size: int = 256) -> float:
    """The largest error of a product of random numbers, as a share of the largest result."""
    draws = torch.Generator().manual_seed(0)
    one, other = (torch.randn(size, size, generator=draws) for _ in range(2))
    exact = one.double() @ other.double()
    return float(((one @ other).double() - exact).abs().max() / exact.abs().max())


def _settings() -> tuple[object, ...]:
    backends = torch.backends
    newer = [getattr(each, "fp32_precision", None) for each in (backends.mkldnn.matmul, backends.mkldnn.conv)]
    return (torch.get_float32_matmul_precision(), *newer, backends.cudnn.allow_tf32)


def test_products_are_offered_in_bf16_where_this_very_processor_rounds_them() -> None:
    """Digits alone show nothing: another kernel of full float32 changes the last ones."""
    cpu, before = CpuDevice("cpu"), _settings()
    offered = cpu.torch_rounded in cpu.torch_precisions(torch)
    assert _settings() == before
    assert _errors_of() < 1e-5
    cpu.torch_set_rounding(torch, True)
    assert (_errors_of() > 1e-4) is offered
    cpu.torch_set_rounding(torch, False)
    assert _errors_of() < 1e-5


@pytest.mark.parametrize(
    ("computed_in", "rounds"), [(torch.float32, False), (torch.float16, False), (torch.bfloat16, True)], ids=str
)
def test_what_is_rounded_to_fewer_digits_than_tf32_has_is_seen(computed_in: object, rounds: bool) -> None:
    """float16 has as many digits as tf32."""
    there: Any = SimpleNamespace(
        no_grad=torch.no_grad, autocast=torch.autocast, full=torch.full, eye=torch.eye, float32=computed_in
    )
    assert products.rounds_to_bf16(there) is rounds


def test_the_question_takes_no_random_numbers_and_heeds_no_autocast() -> None:
    state = torch.random.get_rng_state()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert not products.rounds_to_bf16(torch)
    assert torch.equal(state, torch.random.get_rng_state())


def _train(script_sets: Callable[[], None] = lambda: None, *, convolves: bool = False) -> None:
    layers = [torch.nn.Conv2d(1, 4, 3), torch.nn.Flatten(), torch.nn.Linear(16, 1)] if convolves else []
    model = torch.nn.Sequential(*(layers or [torch.nn.Flatten(), torch.nn.Linear(16, 1)]))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    script_sets()
    for _ in range(4):
        model(torch.randn(8, 1, 4, 4)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize(
    ("obeys", "sets", "convolves", "evidence", "why"),
    [
        (True, "", False, "verified", ""),
        (True, "", True, "verified", ""),
        (False, "", False, "contradicted", "the processor takes products of float32 in full"),
        (True, "matmul", False, "contradicted", "observed fp32"),
        (True, "convolution", True, "contradicted", "observed fp32 and bf16-math"),
    ],
)
def test_it_is_verified_where_the_setting_stays_and_the_processor_obeys(
    begin: Begin, monkeypatch: pytest.MonkeyPatch, *, obeys: bool, sets: str, convolves: bool, evidence: str, why: str
) -> None:
    monkeypatch.setattr(PROBE, lambda torch: obeys)

    def set_back() -> None:
        if sets == "matmul":
            torch.set_float32_matmul_precision("highest")
        elif sets:
            torch.backends.mkldnn.conv.fp32_precision = "ieee"

    trial = begin({"precision": "bf16-math"})
    _train(set_back, convolves=convolves)
    facts = trial.end()
    assert ("bf16-math" in facts["precisions"]) is obeys
    found, reason = trial.evidence("precision")
    assert found == evidence
    assert reason.startswith(why)


def test_a_script_that_lets_products_be_rounded_is_written_so_where_they_are(
    begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    for obeys, written in ((True, "bf16-math"), (False, "fp32")):
        monkeypatch.setattr(PROBE, lambda torch, obeys=obeys: obeys)
        trial = begin()
        _train(lambda: torch.set_float32_matmul_precision("medium"))
        assert trial.end()["as_written"]["precision"] == written


def test_a_rotation_switches_to_it_and_back(begin: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PROBE, lambda torch: True)
    trial = begin()
    _train()
    before = _settings()
    switcher = trial.adapter.switcher()
    switcher.begin()
    for config in ({"precision": "bf16-math"}, {"precision": "bf16"}, {"precision": "bf16-math"}):
        assert switcher.refusal(config) == ""
        switcher.to(config)
        rounding = trial.session.device.torch_rounding(torch)
        assert tuple(rounding) == ((True, True) if config["precision"] == "bf16-math" else (False, False))
    switcher.to({})
    assert _settings() == before
