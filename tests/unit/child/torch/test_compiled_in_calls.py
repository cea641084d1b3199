"""What a model compiles in its own calls: in a trial it counts as in ``autotune run``, which watches no such calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.compiling import backend
from support.torch_trials import begin
from torch import nn

__all__ = ["backend", "begin"]

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")


class Late(nn.Module):  # type: ignore[misc]  # torch's own types are Any here
    """Compiles with its first call: ``made`` of its layers, or of a function."""

    def __init__(self, made: Callable[[Any], Any]) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Sequential(nn.Linear(8, 8), nn.Tanh()), nn.Linear(8, 1))
        self._made, self._compiled = made, list[Any]()

    def forward(self, x: Any) -> Any:
        if not self._compiled:
            self._compiled.append(self._made(self.layers))
        return self._compiled[0](x)


def _train(model: Any, call: Callable[..., Any] | None = None) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(14):
        (call or model)(torch.randn(16, 8)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize("wanted", [None, "off", "max-autotune-no-cudagraphs"])
def test_a_part_that_a_model_compiles_in_its_first_call_counts(
    begin: Callable[..., Any], backend: list[Any], wanted: str | None
) -> None:
    trial = begin({"compile_mode": wanted} if wanted else {})
    _train(Late(torch.compile))
    facts = trial.end()
    assert bool(backend) is (wanted != "off")
    assert (facts["as_written"]["compile_mode"], facts["left_out"].get("compile_mode")) == ("default", None)
    if wanted:
        assert trial.evidence("compile_mode")[0] == "verified", trial.evidence("compile_mode")
    else:
        assert facts["left_out"]["compile"] == "the script calls torch.compile itself"


def test_a_function_that_is_compiled_in_a_call_is_no_model(begin: Callable[..., Any], backend: list[Any]) -> None:
    """PyTorch itself compiles some in the calls of layers."""
    trial = begin()
    _train(Late(lambda layers: torch.compile(lambda x: layers(x) * 2)))
    left_out = trial.end()["left_out"]
    assert "compile_mode" not in left_out
    assert "compile" not in left_out


def test_a_model_that_is_compiled_in_each_step_is_one_place(begin: Callable[..., Any], backend: list[Any]) -> None:
    trial = begin({"compile_mode": "off"})
    model = Late(lambda layers: layers)
    _train(model, lambda x: torch.compile(model)(x))  # noqa: PLW0108  # each step compiles it
    trial.end()
    assert trial.evidence("compile_mode")[0] == "verified", trial.evidence("compile_mode")
    assert trial.log.of("knob")[0]["sites_seen"] == 1
