"""Loops on PyTorch that slice their batches themselves: what is counted is what they trained on, by their own count."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from support.torch_trials import begin

from tuner.child import arguments

__all__ = ["begin"]
Begin = Callable[..., Any]
TRAIN = """
    import argparse
    import torch

    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=20)
    parser.add_argument("--compile", action="store_true")
    options = parser.parse_args()
    size = options.batch_size
    torch.manual_seed(0)
    x = torch.randn(1000, 8)
    y = x.sum(1, keepdim=True)
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    if options.compile:
        model = torch.compile(model, backend="eager")
    trained = steps = 0
    try:
        while True:
            for start in range(0, len(x), size):
                batch, targets = x[start : start + size], y[start : start + size]
                loss = torch.nn.functional.mse_loss(model(batch), targets)
                optimizer.zero_grad()
                loss.backward()
                trained, steps = trained + len(batch), steps + 1
                optimizer.step()
    except BaseException:
        print("trained on", trained, "in", steps)
        raise
"""


def _own_count(run: Any) -> float:
    return float(next(line for line in run.output.splitlines() if line.startswith("trained on")).split()[2])


def test_a_real_trial_counts_what_its_script_trained_on(
    run_child: Callable[..., Any], write_script: Callable[..., Path]
) -> None:
    """With a remainder, with a model that only this config compiles, and with a batch that is larger than the data:
    that one is no larger batch at all.
    """
    script = write_script(TRAIN)
    baseline = run_child(script, knowledge={"placeholders": ["batch_size"]})
    facts = baseline.facts
    assert (facts["unit"], facts["samples"]) == ("samples", _own_count(baseline)), baseline.output
    known = {key: facts[key] for key in ("framework", "unit", "row_places")}
    known |= {"placeholders": ["batch_size"], "as_written": {"batch_size": 20}}
    found = {}
    for size in (30, 520, 1900):
        argv = ("--batch-size", str(size), *(["--compile"] if size == 520 else []))
        run = run_child(script, {"batch_size": size}, argv=argv, knowledge=known)
        assert (run.facts["unit"], run.facts["samples"]) == ("samples", _own_count(run)), run.output
        blocks = [block for block in run.of("block") if block["phase"] == "window"]
        per_step = sum(block["samples"] for block in blocks) / sum(block["steps"] for block in blocks)
        assert per_step == pytest.approx({30: 1000 / 34, 520: 500, 1900: 1000}[size], rel=0.1)
        report = run.of("knob")[-1]
        found[size] = report["evidence"], report["observed"]
        if size == 1900:
            assert report["reason"] == "its batches hold 1000 samples, and not the 1900 that it was told"
    assert found == {30: ("verified", 30), 520: ("verified", 520), 1900: ("contradicted", 1000)}


# the same in this process, for loops of many kinds


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Loop:
    """A loop over 300 samples. ``stepped``: those that went into its steps, by its own count."""

    samples = 300
    passes_in_step = 1

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.stepped = 0
        self.model: Any = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 1))
        self.x = torch.randn(self.samples, 8)
        self.setup()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3)

    def setup(self) -> None:
        """What else is trained."""

    def loss(self, start: int, size: int) -> Any:
        """Calls its model; the loss of the samples from ``start``."""
        return self.model(self.x[start : start + size]).square().mean()

    def run(self, size: int, epochs: int = 4) -> Any:
        """Trains in batches of so many."""
        passes = trained = 0
        for _ in range(epochs):
            for start in range(0, self.samples, size):
                trained += min(size, self.samples - start)
                self.train(start, size)
                passes += 1
                if passes % self.passes_in_step == 0:
                    self.stepped = trained
                    self.optimizer.step()
                    self.optimizer.zero_grad()
        return self

    def train(self, start: int, size: int) -> None:
        """Takes the gradients of one batch."""
        self.loss(start, size).backward()


class SumsItsGradients(Loop):
    """Four batches to a step."""

    passes_in_step = 4


class SplitsItsBatch(Loop):
    """Each batch in four parts, a backward for each."""

    def train(self, start: int, size: int) -> None:
        for part in self.x[start : start + size].chunk(4):
            self.model(part).square().mean().backward()


class SequenceFirst(Loop):
    """A recurrent network whose samples lie along the second dimension."""

    def setup(self) -> None:
        self.model = torch.nn.LSTM(8, 4)
        self.x = torch.randn(7, self.samples, 8)

    def loss(self, start: int, size: int) -> Any:
        return self.model(self.x[:, start : start + size])[0].square().mean()


class AsWideAsItsBatch(SequenceFirst):
    """As many time steps as samples in a batch as written."""

    def setup(self) -> None:
        self.model = torch.nn.LSTM(8, 4)
        self.x = torch.randn(20, self.samples, 8)


class TwoViews(Loop):
    """Contrastive learning: two views of each sample in one call."""

    def loss(self, start: int, size: int) -> Any:
        batch = self.x[start : start + size]
        return self.model(torch.cat([batch, batch + 0.1])).square().mean()


class Flattened(Loop):
    """A head on every token of sequences of five."""

    def setup(self) -> None:
        self.x = torch.randn(self.samples, 5, 8)

    def loss(self, start: int, size: int) -> Any:
        return self.model(self.x[start : start + size].reshape(-1, 8)).square().mean()


class ByName(Loop):
    """A model that is given its arrays by name, after one of all positions."""

    def setup(self) -> None:
        class Model(torch.nn.Module):  # type: ignore[misc]
            def __init__(self) -> None:
                super().__init__()
                self.layer = torch.nn.Linear(8, 1)

            def forward(self, positions: Any, *, batch: dict[str, Any]) -> Any:
                return self.layer(batch["x"] + positions.sum())

        self.model = Model()

    def loss(self, start: int, size: int) -> Any:
        return self.model(torch.arange(7.0), batch={"x": self.x[start : start + size]}).mean()


class LooksAtItself(Loop):
    """Scores itself on other data before some steps, without turning gradients off."""

    def loss(self, start: int, size: int) -> Any:
        if not start:
            self.model(torch.randn(77, 8))
        return super().loss(start, size)


class Gan(Loop):
    """Two networks that train each other on one batch."""

    def setup(self) -> None:
        self.generator = torch.nn.Sequential(torch.nn.Linear(3, 8))
        self.second = torch.optim.SGD(self.generator.parameters(), lr=1e-3)

    def train(self, start: int, size: int) -> None:
        real = self.x[start : start + size]
        fake = self.generator(torch.randn(len(real), 3))
        (self.model(real).mean() - self.model(fake.detach()).mean()).backward()
        self.optimizer.step()
        self.second.zero_grad()
        self.model(fake).mean().backward()
        self.second.step()


KINDS = [Loop, SumsItsGradients, SplitsItsBatch, SequenceFirst, TwoViews, Flattened, ByName, LooksAtItself, Gan]


def _known(facts: dict[str, Any], size: int = 20) -> dict[str, Any]:
    known = {key: facts[key] for key in ("framework", "unit", "row_places")}
    return {**known, "placeholders": ["batch_size"], "as_written": {"batch_size": size}}


@pytest.mark.parametrize(
    "kind",
    [pytest.param(kind, marks=[pytest.mark.slow] if kind is Gan else []) for kind in KINDS],  # test_torch_optimizers.py
    ids=[kind.__name__ for kind in KINDS],
)
def test_what_is_counted_is_what_was_trained_on(begin: Begin, kind: type[Loop]) -> None:
    """A batch size that divides the data, ones that leave a remainder, and one that is larger than the data."""
    trial = begin(placeholders=["batch_size"], as_written={"batch_size": 20})
    loop = kind().run(20)
    written = trial.end()
    assert (written["unit"], written["samples"]) == ("samples", loop.stepped)
    found = {}
    for size in (40, 160, 1000):
        trial = begin({"batch_size": size}, **_known(written))
        loop = kind().run(size)
        facts = trial.end()
        assert facts["samples"] == loop.stepped
        found[size] = trial.evidence("batch_size")[0]
        assert facts["unit"] == "samples" or found[size] == "contradicted"
    assert found == {40: "verified", 160: "verified", 1000: "contradicted"}


def test_a_dimension_that_only_happens_to_be_as_long_is_found_out(begin: Begin) -> None:
    trial = begin(placeholders=["batch_size"], as_written={"batch_size": 20})
    loop = AsWideAsItsBatch().run(20)
    written = trial.end()
    assert (written["unit"], written["samples"]) == ("samples", loop.stepped)
    trial = begin({"batch_size": 160}, **_known(written))
    loop = AsWideAsItsBatch().run(160)
    assert trial.end()["samples"] == loop.stepped
    assert trial.evidence("batch_size")[0] == "verified"


@pytest.mark.parametrize("rows", [lambda step: 8, lambda step: 8 + step % 5], ids=["fixed", "varying"])
def test_what_is_stated_and_never_seen_is_not_counted(begin: Begin, rows: Callable[[int], int]) -> None:
    """Nodes of a graph, or a batch size that the script rounds: the steps are counted, and it says why."""

    def train() -> None:
        model = torch.nn.Linear(5, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for step in range(30):
            model(torch.randn(rows(step), 5)).square().mean().backward()
            optimizer.step()

    trial = begin(placeholders=["batch_size"], as_written={"batch_size": 12})
    train()
    facts = trial.end()
    assert facts["unit"] == "steps"
    assert [remark for remark in facts["remarks"] if "batches are said to hold 12 samples" in remark]
    trial = begin({"batch_size": 24}, placeholders=["batch_size"], as_written={"batch_size": 12}, unit="samples")
    train()
    trial.end()
    assert trial.evidence("batch_size")[0] == "contradicted"


def test_a_step_whose_model_is_not_seen_is_counted_as_a_step(begin: Begin) -> None:
    """A model that is no module: what an argument says is no proof of what it is given."""
    trial = begin(placeholders=["batch_size"], as_written={"batch_size": 12})
    weights = torch.zeros(5, 1, requires_grad=True)
    optimizer = torch.optim.SGD([weights], lr=0.01)
    for _ in range(9):
        (torch.randn(12, 5) @ weights).square().mean().backward()
        optimizer.step()
    facts = trial.end()
    assert (facts["unit"], facts["samples"]) == ("steps", 0)
    assert any("isn't seen" in remark for remark in facts["remarks"])


def test_what_seemed_to_be_samples_is_given_up(begin: Begin) -> None:
    """Sequences that are as long as the batch at first."""
    trial = begin(placeholders=["batch_size"], as_written={"batch_size": 12})
    model = torch.nn.Linear(5, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(40):
        model(torch.randn(12 + step % 7, 5)).square().mean().backward()
        optimizer.step()
    assert trial.end()["unit"] == "steps"


# who states the batch size


def _by_hand(batches: int, rows: int, micro: int = 1, second_loss: bool = False) -> None:
    """Trains on batches of so many rows that no DataLoader gives, in ``micro`` backwards a step."""
    model = torch.nn.Linear(5, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(batches):
        for _ in range(micro):
            model(torch.randn(rows, 5)).square().mean().backward()
        if second_loss:
            model(torch.randn(rows, 5)).abs().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize(("micro", "second_loss"), [(1, False), (4, False), (1, True)])
def test_a_bound_batch_size_counts_the_samples(begin: Begin, micro: int, second_loss: bool) -> None:
    """In steps, twice the batch would look half as fast. A GAN's second loss is no second batch."""
    trial = begin({"batch_size": 24}, placeholders=["batch_size"], as_written={"batch_size": 12}, unit="samples")
    _by_hand(5, 24, micro, second_loss)
    facts = trial.end()
    assert (facts["unit"], facts["samples"]) == ("samples", 5 * 24 * micro)


def test_a_baseline_is_counted_by_what_the_argument_says(begin: Begin) -> None:
    trial = begin(placeholders=["batch_size"], as_written={"batch_size": 12})
    _by_hand(5, 12)
    facts = trial.end()
    assert (facts["unit"], facts["samples"]) == ("samples", 60)


@pytest.mark.parametrize("knowledge", [{"unit": "steps", "placeholders": ["batch_size"]}, {}])
def test_samples_are_counted_only_where_the_baseline_was(begin: Begin, knowledge: dict[str, Any]) -> None:
    trial = begin({"batch_size": 24}, as_written={"batch_size": 12}, **knowledge)
    _by_hand(5, 24)
    facts = trial.end()
    assert (facts["unit"], facts["samples"]) == ("steps", 0)
    assert "bind it, as in -- --batch-size={batch_size}" in facts["left_out"]["batch_size"]


@pytest.mark.parametrize("flag", ["--batch_size", "--batch-size", "--bs"])
def test_a_bare_placeholder_is_what_argparse_holds(begin: Begin, flag: str) -> None:
    trial = begin(placeholders=["batch_size", "width"])
    arguments.install(trial.session)
    parser = argparse.ArgumentParser()
    parser.add_argument(flag, type=int, default=20)
    parser.add_argument("--width", default="wide")
    parser.add_argument("--token", default="secret")
    parser.parse_args([])
    _by_hand(5, 20)
    facts = trial.end()
    assert facts["arguments"] == {"batch_size": 20, "width": "wide"}
    assert (facts["unit"], facts["samples"]) == ("samples", 100)


def test_a_question_of_the_script_counts_the_samples_too(begin: Begin) -> None:
    trial = begin({"batch_size": 6}, as_written={"batch_size": 3}, unit="samples")
    assert trial.session.suggest("batch_size", 3) == 6
    _by_hand(5, 6)
    assert trial.end()["samples"] == 30


def _hints(trial: Any, option: str = "--batch-size", default: int = 20) -> list[str]:
    """Trains on batches of 20; what the study is told of the option."""
    arguments.install(trial.session)
    parser = argparse.ArgumentParser()
    parser.add_argument(option, type=int, default=default)
    parser.parse_args([])
    _by_hand(5, 20)
    return [remark for remark in trial.end()["remarks"] if "bind it" in remark]


def test_an_option_that_states_the_batch_size_is_told_to_be_bound(begin: Begin) -> None:
    assert ["--batch-size={batch_size=20}" in hint for hint in _hints(begin())] == [True]
    trial, bound = begin(), "--mini_batch_size={batch_size=12}"
    assert [bound in hint for hint in _hints(trial, "--mini_batch_size", 12)] == [True]
    assert trial.session.facts.left_out["batch_size"].endswith(f"as in -- {bound}")


def test_nobody_is_told_to_bind_what_is_bound_or_no_use(begin: Begin) -> None:
    assert not _hints(begin(), "--test-batch-size") and not _hints(begin(), default=-1)  # "choose one"
    assert not _hints(begin(placeholders=["batch_size"]))
    assert not _hints(begin({"optimizer": "foreach"}))
    trial = begin()
    trial.session.suggest("batch_size", 20)
    assert not _hints(trial)
