"""Knobs that the user bound to the script's arguments: their words are the script's, and evidence respects that."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import click
import pytest
import torch
from support.torch_trials import begin
from torch.utils.data import DataLoader, TensorDataset

from tuner.child import arguments
from tuner.child.adapter import instrument
from tuner.child.adapters import ADAPTERS

__all__ = ["begin"]
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


Records = dict[str, dict[str, Any]]


@pytest.fixture
def records(run_child: Callable[..., Any], write_script: Callable[..., Path]) -> Callable[..., Records]:
    """What is said of each knob, in a trial whose arguments are already filled in: those of the bound knobs."""

    def run(config: dict[str, Any], *argv: str, bound: Sequence[str], head: str = "") -> Records:
        knowledge = {"placeholders": list(bound), "training_loaders": ["train.py:8#0"]}
        script = write_script(TRAIN)
        script.write_text(head + script.read_text())
        ran = run_child(script, config, argv=argv, knowledge=knowledge)
        assert ran.of("window")[0]["complete"], ran.output
        return {record["knob"]: record for record in ran.of("knob")}

    return run


@pytest.mark.slow  # 10 s beside three others
@pytest.mark.parametrize(
    ("word", "used", "format_evidence", "parts", "off"),
    [
        ("bfloat16", "bfloat16", "verified", 1, "off"),
        ("bfloat16", "float32", "unverifiable", 4, False),
        pytest.param("float32", "bfloat16", "unverifiable", 1, "off", marks=pytest.mark.slow),
        pytest.param("mixed", "bfloat16", "unverifiable", 4, False, marks=pytest.mark.slow),
    ],
)
def test_a_scripts_own_words_are_held_against_what_is_seen(
    records: Callable[..., Records], *, word: str, used: str, format_evidence: str, parts: int, off: str | bool
) -> None:
    """A script that ignores its option on a CPU trains in float32 whatever it was told: nothing verifies that. A batch
    that the script divides is no contradiction, and not to compile is an answer, also without an argument.
    """
    config = {"precision": word, "batch_size": 64, "compile": off}
    found = records(config, used, str(parts), bound=("precision", "batch_size"))
    assert (found["precision"]["evidence"], found["precision"]["observed"]) == (format_evidence, used)
    batch_evidence = "verified" if parts == 1 else "unverifiable"
    assert (found["batch_size"]["evidence"], found["batch_size"]["observed"]) == (batch_evidence, 64 // parts)
    assert found["compile"]["evidence"] == "verified"


def test_an_argument_of_the_scripts_own_is_seen_in_its_parser(records: Callable[..., Records]) -> None:
    """Under its own name only, whether the knob's value is a number or a text."""
    head = """
import argparse, sys
import torch
parser = argparse.ArgumentParser()
for option in ("--width", "--height", "--size"):
    parser.add_argument(option, type=int)
parser.parse_args()
sys.argv[1:] = ["float32", "4"]
"""
    config = {"width": 16, "height": "16", "depth": 16}
    found = records(config, "--width", "16", "--height", "16", "--size", "16", bound=tuple(config), head=head)
    assert {knob: found[knob]["evidence"] for knob in config} == {
        "width": "verified", "height": "verified", "depth": "unverifiable",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("argument", "told"),
    [
        ("--batch_size=20", "--batch_size={batch_size=20}"), ("--eval-batch=20", ""), ("--batch_size=auto", ""),
        ("--fast --batch-size 20", "--batch-size {batch_size=20}"), ("--batch-size --fast", ""),
    ],
)  # fmt: skip
def test_an_argument_that_a_script_reads_by_itself_is_told_to_be_bound(
    begin: Callable[..., Any], argument: str, told: str
) -> None:
    trial = begin()
    trial.session.request = dataclasses.replace(trial.session.request, argv=tuple(argument.split()))
    rows, model = torch.randn(400, 8), torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for start in range(0, 400, 20):
        optimizer.zero_grad()
        model(rows[start : start + 20]).square().mean().backward()
        optimizer.step()
    hints = [remark for remark in trial.end()["remarks"] if "bind it" in remark]
    assert [told in hint for hint in hints] == [True] * bool(told)


def test_an_option_of_clicks_is_told_to_be_bound(begin: Callable[..., Any]) -> None:
    """It isn't among the arguments where its default is taken."""
    trial = begin()
    arguments.install(trial.session)
    [adapter] = [made for make in ADAPTERS if "click.core" in (made := make(trial.session)).libraries]
    instrument(trial.session, adapter, click.core)

    @click.command()
    @click.option("-b", "--batch-size", default=20)
    def train(batch_size: int) -> None:
        model = torch.nn.Linear(8, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for rows in torch.randn(400, 8).split(batch_size):
            model(rows).square().mean().backward()
            optimizer.step()
        [hint] = [remark for remark in trial.end()["remarks"] if "bind it" in remark]
        assert "--batch-size={batch_size=20}" in hint

    train([], standalone_mode=False)


def test_an_option_for_one_of_several_loaders_leaves_their_batches_alone(begin: Callable[..., Any]) -> None:
    """Given a larger number the script would train on another share of each, and only one of them is counted."""
    trial = begin()
    arguments.install(trial.session)
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=4)
    size = parser.parse_args([]).batch_size
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loaders = (DataLoader(TensorDataset(torch.rand(100 * each, 8)), each) for each in (28, size))
    for (many,), (few,) in zip(*loaders, strict=True):
        optimizer.zero_grad()
        model(torch.cat([many, few])).square().mean().backward()
        optimizer.step()
    facts = trial.end()
    assert facts["as_written"]["batch_size"] == 4 and facts["options"] == {"batch_size": "batch_size"}
    assert facts["left_out"]["batch_size"] == "loaders with batches of 4 and 28 feed the training together"


@pytest.mark.parametrize("size", [8, 24])
def test_that_a_profile_takes_the_place_of_another_batch_is_said(
    begin: Callable[..., Any], capfd: pytest.CaptureFixture[str], size: int
) -> None:
    """Whoever passes a larger batch than was studied trained on the old one, and read that it was in effect."""
    known = {"as_written": {"batch_size": 8, "grad_accumulation": 1}, "options": {"batch_size": "batch_size"}}
    trial = begin({"batch_size": 4, "grad_accumulation": 2}, mode="apply", **known)
    arguments.install(trial.session)
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=8)
    for _ in range(2):
        assert parser.parse_args(["--batch-size", str(size)]).batch_size == 8
    told = "autotune: batch_size: the script was told 24, and is given 8, by a profile that was proven with 8\n"
    assert capfd.readouterr().err == (told if size == 24 else "")


LIKE_OPTIONS = """
    import argparse
    import torch
    from torch.utils.data import DataLoader, TensorDataset
    parser = argparse.ArgumentParser()
    for name in ("train.batch_size", "predict.batch_size"):
        parser.add_argument(f"--{name}", type=int, default=16)
    size = vars(parser.parse_args())["train.batch_size"]
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = DataLoader(TensorDataset(torch.randn(512, 8)), size)
    while True:
        for (x,) in loader:
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
"""


def test_of_several_options_that_hold_the_size_none_is_taken_for_the_trainings(
    run_child: Callable[..., Any], write_script: Callable[..., Path]
) -> None:
    """The last one was set. Where that isn't the training's, no trial had another batch."""
    script = write_script(LIKE_OPTIONS)
    facts = run_child(script).facts
    assert (facts["as_written"]["batch_size"], facts["options"]) == (16, {}), facts
    knowledge = {key: facts[key] for key in ("as_written", "options", "training_loaders")}
    ran = run_child(script, {"batch_size": 8}, knowledge=knowledge)
    assert ran.evidence("batch_size") == "verified", ran.of("knob")


class Own:
    """Batches of the script's own."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __iter__(self) -> Iterator[list[int]]:
        return iter(torch.arange(64).split(self.size))

    def __len__(self) -> int:
        return 64 // self.size


@pytest.mark.parametrize(
    ("names", "taken"),
    [
        (("train.batch_size", "predict.batch_size"), "train.batch_size"),
        (("train-batch-size", "batch-size"), "train_batch_size"),
        (("batch-size", "eval-batch-size"), "batch_size"),
        (("hidden", "batch"), "batch"),
        (("batch-size", "mini-batch-size"), ""),
        (("predict.batch_size", "batch_size"), "batch_size"),
    ],
)
def test_of_options_that_hold_the_same_number_the_training_s_is_taken_where_no_loader_can_be_given_it(
    begin: Callable[..., Any], names: Sequence[str], taken: str
) -> None:
    """The last one was, whatever it was called: no trial had another batch, and each of them was said to fail."""
    trial = begin()
    arguments.install(trial.session)
    parser = argparse.ArgumentParser()
    for name in names:
        parser.add_argument(f"--{name}", type=int, default=16)
    parser.parse_args([])
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for (batch,) in DataLoader(TensorDataset(torch.rand(64, 8)), batch_sampler=Own(16)):
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
    trial.adapter.watches.loaders.sources.primary.written["batch_size"] = 16  # as where its own sampler told it
    facts = trial.end()
    assert facts["options"] == ({"batch_size": taken} if taken else {})
    reason = facts["left_out"].get("batch_size", "")
    both = "--batch-size and --mini-batch-size both hold 16: bind one of them"
    assert reason == "" if taken else reason.endswith(both)


@pytest.mark.parametrize("name", ["gradient-accumulate-every", "grad-accum-every", "gradient-accumulation-iters"])
def test_an_option_for_the_backwards_of_a_step_is_known_by_the_names_that_it_has(
    begin: Callable[..., Any], name: str
) -> None:
    """What the script accumulates itself nothing else can turn: its batch stayed four small ones."""
    trial = begin()
    arguments.install(trial.session)
    parser = argparse.ArgumentParser()
    parser.add_argument(f"--{name}", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=16)
    told = vars(parser.parse_args([]))
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = DataLoader(TensorDataset(torch.rand(512, 8)), told["batch_size"])
    for number, (batch,) in enumerate(loader, 1):
        (model(batch).square().mean() / 4).backward()
        if number % 4 == 0:
            optimizer.step()
            optimizer.zero_grad()
    facts = trial.end()
    assert facts["options"] == {"batch_size": "batch_size", "grad_accumulation": name.replace("-", "_")}
    assert "grad_accumulation" not in facts["left_out"]
