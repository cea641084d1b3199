"""Knobs that the user bound to the script's arguments: their words are the script's, and evidence respects that."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

TRAIN = """
    import sys
    import torch
    from torch.utils.data import DataLoader, TensorDataset
    dtype, parts = getattr(torch, sys.argv[1]), int(sys.argv[2])
    model = torch.nn.Linear(8, 1).to(dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = DataLoader(TensorDataset(torch.randn(512, 8, dtype=dtype), torch.randn(512, 1, dtype=dtype)), 64 // parts)
    while True:
        for x, y in loader:
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
"""


@pytest.fixture
def evidence(run_child: Callable[..., Any], write_script: Callable[..., Path]) -> Callable[..., dict[str, Any]]:
    """The evidence of one knob, in a trial whose arguments are already filled in."""

    def run(knob: str, value: Any, *argv: str, bound: bool = True) -> dict[str, Any]:
        knowledge = {"placeholders": [knob] if bound else [], "training_loaders": ["train.py:8#0"]}
        ran = run_child(write_script(TRAIN), {knob: value}, argv=argv, knowledge=knowledge)
        assert ran.of("window")[0]["complete"], ran.output
        return next(record for record in ran.of("knob") if record["knob"] == knob)

    return run


@pytest.mark.parametrize(
    ("word", "used", "found"),
    [
        ("bfloat16", "bfloat16", "verified"),
        ("bfloat16", "float32", "unverifiable"),
        ("float32", "bfloat16", "unverifiable"),
        ("mixed", "bfloat16", "unverifiable"),
    ],
)
def test_a_scripts_own_word_for_a_format_is_held_against_what_is_seen(
    evidence: Callable[..., dict[str, Any]], word: str, used: str, found: str
) -> None:
    """A script that ignores its option on a CPU trains in float32 whatever it was told: nothing verifies that."""
    record = evidence("precision", word, used, "1")
    assert (record["evidence"], record["observed"]) == (found, used)


def test_a_batch_that_the_script_divides_is_no_contradiction(evidence: Callable[..., dict[str, Any]]) -> None:
    record = evidence("batch_size", 64, "float32", "4")
    assert record["evidence"] == "unverifiable"
    assert record["observed"] == 16


def test_a_batch_that_arrives_is_verified(evidence: Callable[..., dict[str, Any]]) -> None:
    assert evidence("batch_size", 64, "float32", "1")["evidence"] == "verified"


@pytest.mark.parametrize("value", ["off", False])
def test_not_compiling_is_an_answer(evidence: Callable[..., dict[str, Any]], value: str | bool) -> None:
    assert evidence("compile", value, "float32", "1", bound=False)["evidence"] == "verified"


@pytest.mark.parametrize(
    ("option", "value", "found"),
    [("--width", 16, "verified"), ("--width", "16", "verified"), ("--size", 16, "unverifiable")],
)
def test_an_argument_of_the_scripts_own_is_seen_in_its_parser(
    option: str, value: Any, found: str, run_child: Callable[..., Any], write_script: Callable[..., Path]
) -> None:
    parser = f"import argparse\np = argparse.ArgumentParser()\np.add_argument('{option}', type=int)\np.parse_args()\n"
    script = write_script(TRAIN)
    script.write_text(parser + script.read_text().replace("sys.argv[1]", "'float32'").replace("sys.argv[2]", "4"))
    ran = run_child(script, {"width": value}, argv=(option, "16"), knowledge={"placeholders": ["width"]})
    assert ran.of("window")[0]["complete"], ran.output
    assert ran.evidence("width") == found
