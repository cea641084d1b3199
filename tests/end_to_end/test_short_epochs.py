"""A validation behind each epoch is set apart, also where a larger batch makes an epoch of one step or two."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.timeout(300)

WHOLE = {"min_s": 60, "max_s": 60, "warmup_s": 0, "warmup_steps": 1, "block_s": 0.01}
EPOCHS, VALIDATION_S = 4, 0.3

PYTORCH = f"""
    import sys, time, torch
    from torch.utils.data import DataLoader, TensorDataset
    torch.manual_seed(0)
    x = torch.randn(128, 8)
    loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=16)
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for epoch in range({EPOCHS}):
        model.train()
        for inputs, targets in loader:
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(inputs), targets).backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            model(x)
            time.sleep({VALIDATION_S})
"""
KERAS = f"""
    import keras, numpy, time
    x = numpy.random.default_rng(0).random((128, 8), dtype="float32")
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    class Wait(keras.callbacks.Callback):
        def on_test_begin(self, logs=None):
            time.sleep({VALIDATION_S})
    model.fit(x, x.sum(1), batch_size=16, epochs={EPOCHS}, validation_data=(x, x.sum(1)), callbacks=[Wait()], verbose=0)
"""


@pytest.mark.slow  # 23 s beside three others
@pytest.mark.parametrize(
    ("script", "batch_size"),
    [pytest.param(PYTORCH, 128, id="128-PyTorch"), pytest.param(PYTORCH, 64, id="64-PyTorch", marks=pytest.mark.slow),
     pytest.param(KERAS, 64, id="64-Keras", marks=pytest.mark.slow),
     pytest.param(KERAS, 128, id="128-Keras", marks=pytest.mark.slow)],
)  # fmt: skip
def test_a_validation_is_no_part_of_the_steps(
    script: str, batch_size: int, write_script: Callable[..., Path], run_child: Callable[..., Any]
) -> None:
    path = write_script(script)
    written = run_child(path, window=WHOLE)
    assert written.returncode == 0, written.output
    assert written.facts["set_apart"] == "all"
    ran = run_child(path, {"batch_size": batch_size}, window=WHOLE, knowledge=written.facts)
    assert ran.returncode == 0, ran.output
    assert ran.facts["steps"] == EPOCHS * 128 // batch_size
    assert any(block["steps"] for block in ran.of("block"))
    apart = [block for block in ran.of("block") if block["flagged"]]
    assert sum(block["seconds"] >= VALIDATION_S for block in apart) == EPOCHS, "and so none is among the steps"
