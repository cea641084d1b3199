"""Scripts that compile their model themselves, in real children with PyTorch's own compiler: another mode, or none."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.children import ONE_THREAD

SCRIPT = """
    import json, torch
    from torch.utils.data import DataLoader, TensorDataset
    torch.manual_seed(0)

    class Model(torch.nn.Module):  # of a class of torch.nn itself model.compile() compiles nothing
        def __init__(self):
            super().__init__()
            self.one, self.two = torch.nn.Linear(8, 8), torch.nn.Linear(8, 1)
        def forward(self, x):
            return self.two(torch.tanh(self.one(x)))

    model = Model()
    COMPILED
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    data = TensorDataset(torch.randn(512, 8), torch.randn(512, 1))
    losses = []
    for epoch in range(EPOCHS):
        for x, y in DataLoader(data, batch_size=16):
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    print(json.dumps([losses, sorted(model.state_dict())]))
"""
COMPILED = "model = torch.compile(model)"
IN_PLACE = "model.compile(mode='max-autotune-no-cudagraphs')"
Run = Callable[..., Any]
Write = Callable[..., Path]


def _script(compiled: str, *, epochs: int = 1000) -> str:
    return SCRIPT.replace("COMPILED", compiled).replace("EPOCHS", str(epochs))


MODES = {COMPILED: "default", IN_PLACE: "max-autotune-no-cudagraphs"}


def _its_mode_is_told(ran: Any, compiled: str) -> None:
    """Whichever mode is in effect."""
    assert ran.facts["as_written"]["compile_mode"] == MODES[compiled]
    assert "compile_mode" not in ran.facts["left_out"]
    assert ran.facts["left_out"]["compile"] == "the script calls torch.compile itself"


@pytest.mark.slow  # with another mode in effect: below
@pytest.mark.parametrize("compiled", MODES)
def test_its_mode_is_a_fact_of_the_script(run_child: Run, write_script: Write, compiled: str) -> None:
    _its_mode_is_told(run_child(write_script(_script(compiled))), compiled)


@pytest.mark.slow  # the training that it makes, below; unit/child/torch/test_own_compile.py
@pytest.mark.parametrize(
    ("compiled", "mode"),
    [
        (COMPILED, "off"),
        (IN_PLACE, "default"),
        pytest.param(COMPILED, "default", marks=pytest.mark.slow),
        pytest.param(IN_PLACE, "off", marks=pytest.mark.slow),
        pytest.param(IN_PLACE, "max-autotune-no-cudagraphs", marks=pytest.mark.slow),
    ],
)
def test_it_takes_effect_in_a_trial(run_child: Run, write_script: Write, compiled: str, mode: str) -> None:
    ran = run_child(write_script(_script(compiled)), {"compile_mode": mode})
    assert ran.of("window")[0]["complete"], ran.output[-2000:]
    assert ran.evidence("compile_mode") == "verified", ran.of("knob")
    assert bool(ran.of("compile")) is (mode != "off")
    _its_mode_is_told(ran, compiled)


@pytest.mark.parametrize("mode", ["off", pytest.param("default", marks=pytest.mark.slow)])
def test_a_run_says_that_it_is_in_effect(run_child: Run, write_script: Write, mode: str) -> None:
    script = write_script(_script(COMPILED, epochs=2))
    ran = run_child(script, {"compile_mode": mode}, mode="apply")
    assert ran.returncode == 0, ran.output[-2000:]
    assert "autotune: after 20 steps in effect: compile_mode\n" in ran.output


def test_a_run_says_where_a_script_compiles_no_more(run_child: Run, write_script: Write) -> None:
    ran = run_child(write_script(_script("", epochs=2)), {"compile_mode": "default"}, mode="apply")
    assert "NOT in effect: compile_mode (the script doesn't compile its model itself)" in ran.output


@pytest.mark.slow  # that it is in effect: above; what is compiled, and what isn't: unit/child/torch/test_own_compile.py
@pytest.mark.parametrize("mode", ["off", "default"])
def test_its_training_is_that_of_the_same_script_with_that_mode_written(
    run_child: Run, write_script: Write, mode: str
) -> None:
    """Bit for bit: one that compiles nothing, and one as it is. The names of weights are those of what is compiled."""
    path = write_script(_script(COMPILED, epochs=2))
    turned = run_child(path, {"compile_mode": mode}, mode="apply")
    losses, names = json.loads(turned.output.splitlines()[-1])
    written = write_script(_script(COMPILED if mode == "default" else "", epochs=2), name="plain.py")
    plain = subprocess.run(
        [sys.executable, str(written)], env={**ONE_THREAD, **os.environ}, capture_output=True, text=True, check=True
    )
    assert losses == json.loads(plain.stdout)[0]
    assert all(name.startswith("_orig_mod.") for name in names)
