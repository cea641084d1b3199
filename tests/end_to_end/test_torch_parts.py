"""A batch that is computed in parts trains what the script trains: to the real end, whatever it counts or schedules."""

from __future__ import annotations

import math
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy
import pytest
import torch
from support import courses
from support.own_model import Module, Own, rows_seen
from support.torch_trials import begin
from torch import nn
from torch.utils.checkpoint import checkpoint

from tuner.child.torch.parts import CHANGES, HOOKED, KEEPS, NOT_ALONE
from tuner.child.torch.rows import LOSS_INSIDE, OTHER_ROWS

__all__ = ["begin", "rows_seen"]

Begin = Callable[..., Any]
SPLIT = {"batch_size": 4, "grad_accumulation": 4}


def test_every_course_ends_as_the_plain_script_does(
    write_script: Callable[..., Path], run_child: Callable[..., Any]
) -> None:
    script = write_script(courses.SCRIPT)
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True, timeout=120)
    plain = courses.told(done.stdout)
    ran = run_child(script, SPLIT, mode="apply")
    split = courses.told(ran.output)
    assert ran.returncode == 0, ran.output
    assert len(plain) == len(split) == 14
    assert {name: apart for name in plain if (apart := courses.differences(plain[name], split[name]))} == {}
    for name, course in split.items():
        # The last batch of an epoch has 12 samples; the first two calls are whole.
        assert course["given"] == [4, 16], name
    # What the schedules end at, by their definition.
    assert plain["cosine per batch"]["rate"] == pytest.approx(0.0, abs=1e-9)
    assert plain["step per epoch"]["rate"] == pytest.approx(0.01 * 0.7**3)
    assert (plain["stops by a count"]["steps"], len(plain["stops by a count"]["pairs"])) == (11, 11 * 16 - 4)
    assert (plain["drops the last"]["steps"], plain["averaged model"]["averages"]) == (15, 18)


# models of which a part can't be computed by itself, or not without a change


def _remember(model: Any, x: Any) -> Any:
    model.penalty = model.linear(x).square().mean()
    return model.linear(x)


def _count(model: Any, x: Any) -> Any:
    model.calls += 1
    return model.linear(x) * (1 + model.calls / 100)


def _normed(model: Any) -> None:
    model.norm = nn.BatchNorm1d(5, track_running_stats=False)


def _recurrent(model: Any) -> None:
    model.memory = nn.LSTM(5, 5)


def _hook(model: Any) -> None:
    model.linear.register_forward_hook(lambda module, args, output: output * 2)


def _tracking(model: Any) -> None:
    model.register_buffer("mean", torch.zeros(5))


def _track(model: Any, x: Any) -> Any:
    model.mean.mul_(0.9).add_(x.detach().mean(0), alpha=0.1)
    return model.linear(x - model.mean)


def _attend(model: Any, x: Any) -> Any:
    return model.linear(torch.softmax(x @ x.T, dim=1) @ x)


def _balance(model: Any, x: Any) -> Any:
    """As a router does, whose loss the script adds."""
    model.aux.loss = model.linear(x).square().mean()
    return model.linear(x)


AROUND: list[Any] = []


def _note_around(model: Any, x: Any) -> Any:
    AROUND.append(model.linear(x).square().mean())
    return model.linear(x)


def _note_by_name(model: Any, x: Any) -> Any:
    return _note_around(model, x)


def _aux(model: Any) -> None:
    model.aux = SimpleNamespace(loss=None)


def _nested(model: Any) -> None:
    model.held = {"losses": []}


def _append(model: Any, x: Any) -> Any:
    model.held["losses"].append(model.linear(x).mean())
    return model.linear(x)


def _counting() -> Any:
    calls = 0

    def count(model: Any, x: Any) -> Any:
        nonlocal calls
        calls += 1
        return model.linear(x) * (1 + calls / 100)

    return Own(count)


def _hidden(model: Any) -> None:
    model.hidden = [nn.BatchNorm1d(5)]


WHOLE: dict[str, tuple[Any, str]] = {
    "attention over the batch": (lambda: Own(_attend), NOT_ALONE),
    "batch statistics": (lambda: Own(lambda m, x: m.linear(m.norm(x)), _normed), NOT_ALONE),
    "time comes first": (lambda: Own(lambda m, x: m.linear(m.memory(x)[0]), _recurrent), NOT_ALONE),
    "keeps a penalty": (lambda: Own(_remember), KEEPS),
    "counts its calls": (lambda: Own(_count, lambda m: setattr(m, "calls", 0)), KEEPS),
    "tracks a mean": (lambda: Own(_track, _tracking), KEEPS),
    "balances in an object": (lambda: Own(_balance, _aux), KEEPS),
    "notes in a global": (lambda: Own(_note_by_name), KEEPS),
    "notes in a list of a dictionary": (lambda: Own(_append, _nested), KEEPS),
    "counts in a variable around it": (_counting, KEEPS),
    "a module in a list": (lambda: Own(lambda m, x: m.linear(m.hidden[0](x)), _hidden), KEEPS),
    "a hook": (lambda: Own(lambda m, x: m.linear(x), _hook), HOOKED),
    "one figure": (lambda: Own(lambda m, x: m.linear(x).mean()), LOSS_INSIDE),
    "changes its input": (lambda: Own(lambda m, x: m.linear(x.div_(2.0))), CHANGES),
    "no rows": (lambda: Own(lambda m, x: m.linear(x).T), OTHER_ROWS),
}


def _weights_of(model: Any, batches: int = 12, samples: int = 16) -> list[float]:
    """What it learns. The first of the batches' features says how many samples there are."""
    torch.manual_seed(3)
    model.load_state_dict({name: torch.randn(p.shape) * 0.1 for name, p in model.state_dict().items()})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(batches):
        x = torch.randn(samples, 5)
        optimizer.zero_grad()
        loss = model(x).square().mean()
        aux = getattr(getattr(model, "aux", None), "loss", None)
        (loss + getattr(model, "penalty", 0.0) + (0.0 if aux is None else aux)).backward()
        optimizer.step()
    return [value for p in model.parameters() for value in p.flatten().tolist()]


@pytest.mark.parametrize("name", WHOLE)
def test_a_model_that_has_no_parts_is_called_with_the_whole(begin: Begin, name: str) -> None:
    """It trains as written, to the bit, and the config is contradicted with the reason."""
    make, reason = WHOLE[name]
    plain = _weights_of(make())
    trial = begin(SPLIT)
    learned = _weights_of(make())
    trial.end()
    assert learned == plain
    assert trial.evidence("grad_accumulation") == ("contradicted", reason)


@pytest.mark.parametrize("name", [name for name, (_, reason) in WHOLE.items() if reason != NOT_ALONE])
def test_what_shows_as_written_is_left_out_beforehand(begin: Begin, name: str) -> None:
    make, reason = WHOLE[name]
    trial = begin()
    _weights_of(make())
    assert trial.end()["left_out"]["grad_accumulation"] == reason


def _by_name(model: Any, *, rows: Any, scale: Any, names: Any) -> Any:
    return {"out": model.linear(rows["x"]) * scale, "none": None, "pair": (rows["x"], names[0])}


PARTS: dict[str, tuple[Any, Callable[..., Any]]] = {
    "plain": (lambda: Own(lambda m, x: m.linear(x)), lambda model, x: model(x)),
    "by name": (
        lambda: Own(_by_name),
        lambda model, x: model(rows={"x": x}, scale=torch.tensor([2.0]), names=["one", "two"])["out"],
    ),
    "several rows a sample": (
        lambda: Own(lambda m, x: m.linear(x)), lambda model, x: model(x.repeat_interleave(3, dim=0)),
    ),
    "two calls a step": (lambda: Own(lambda m, x: m.linear(x)), lambda model, x: model(x) + model(-x)),
}


@pytest.mark.parametrize("name", PARTS)
@pytest.mark.parametrize("samples", [16, 14], ids=["whole batches", "smaller ones"])
def test_a_model_in_parts_learns_the_same(begin: Begin, rows_seen: list[int], name: str, samples: int) -> None:
    make, call = PARTS[name]

    def learn() -> list[float]:
        model = make()
        torch.manual_seed(3)
        model.load_state_dict({name: torch.randn(p.shape) * 0.1 for name, p in model.state_dict().items()})
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        for _ in range(12):
            optimizer.zero_grad()
            call(model, torch.randn(samples, 5)).square().mean().backward()
            optimizer.step()
        return [value for p in model.parameters() for value in p.flatten().tolist()]

    plain = learn()
    rows_seen.clear()
    trial = begin(SPLIT)
    assert learn() == pytest.approx(plain, rel=1e-4, abs=1e-6)
    trial.end()
    assert trial.evidence("grad_accumulation") == ("verified", "")
    rows = samples * (3 if "several" in name else 1)
    seen = set(rows_seen)
    assert min(seen) < max(seen) == rows, "the first calls are whole, the others in parts"
    assert max(seen - {rows}) == (4 if rows <= 16 else -(-rows // 4))


def test_random_numbers_of_the_script_stay_where_they_are(begin: Begin) -> None:
    """What is drawn to ask a module is put back: after a call stands what the parts alone have drawn."""
    trial = begin(SPLIT)
    model = nn.Sequential(nn.Linear(5, 8), nn.Dropout(0.5), nn.Linear(8, 1))
    x = torch.randn(16, 5)
    for _ in range(2):
        model(x).mean().backward()
    before, others = torch.get_rng_state(), (random.getstate(), str(numpy.random.get_state()))
    model(x).mean().backward()
    assert (random.getstate(), str(numpy.random.get_state())) == others
    after = torch.get_rng_state()
    torch.set_rng_state(before)
    for start in range(0, 16, 4):
        torch.nn.functional.dropout(model[0].forward(x[start : start + 4]), 0.5)
    assert torch.equal(torch.get_rng_state(), after)
    trial.end()
    assert trial.evidence("grad_accumulation") == ("verified", "")


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_weights_learn_under_autocast(begin: Begin, precision: str) -> None:
    """A copy of a weight that was made without gradients must not be kept for the training."""
    plain = _weights_of(PARTS["plain"][0](), batches=20)
    trial = begin({**SPLIT, "precision": precision})
    learned = _weights_of(PARTS["plain"][0](), batches=20)
    trial.end()
    assert trial.evidence("grad_accumulation") == ("verified", "")
    assert math.dist(learned, plain) <= 0.02 * math.hypot(*plain)


class Around(Module):  # type: ignore[misc]  # PyTorch isn't typed here
    """A plain call whose model keeps no activations: the backward computes them again."""

    def __init__(self, inside: bool) -> None:
        super().__init__()
        self.own = Own(lambda model, x: checkpoint(model.linear, x, use_reentrant=False) if inside else model.linear(x))
        self.inside = inside

    def __call__(self, x: Any) -> Any:
        return self.own(x) if self.inside else checkpoint(self.own, x, use_reentrant=False)


@pytest.mark.parametrize("inside", [True, False], ids=["in the model", "around the model"])
def test_a_backward_that_computes_again_computes_the_same(begin: Begin, inside: bool) -> None:
    plain = _weights_of(Around(inside))
    trial = begin(SPLIT)
    assert _weights_of(Around(inside)) == pytest.approx(plain, rel=1e-4, abs=1e-6)
    trial.end()
    assert trial.evidence("grad_accumulation") == ("verified", "")


def test_an_evaluation_is_left_whole(begin: Begin, rows_seen: list[int]) -> None:
    trial, model = begin(SPLIT), Own(lambda m, x: m.linear(x))
    _weights_of(model)
    assert set(rows_seen) == {4, 16}
    rows_seen.clear()
    with torch.no_grad():
        model.eval()(torch.randn(16, 5))
    trial.end()
    assert rows_seen == [16]


ROUTED = """
    import torch
    from types import SimpleNamespace
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset
    torch.manual_seed(0)

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear, self.gate, self.aux = nn.Linear(8, 1), nn.Linear(8, 4), SimpleNamespace(loss=None)
        def forward(self, x):
            chosen = self.gate(x).softmax(-1)
            self.aux.loss = chosen.sum(0).square().sum()
            return self.linear(x) * chosen.amax(-1, keepdim=True)

    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for epoch in range(100000):
        for x, y in DataLoader(TensorDataset(torch.randn(160, 8), torch.randn(160, 1)), 16):
            optimizer.zero_grad()
            (nn.functional.mse_loss(model(x), y) + 0.01 * model.aux.loss).backward()
            optimizer.step()
"""


@pytest.mark.parametrize("seed", [None, pytest.param(1, marks=pytest.mark.slow)], ids=["trial", "screen"])
def test_a_loss_that_a_router_leaves_in_an_object_is_that_of_the_whole_batch(
    write_script: Callable[..., Path], run_child: Callable[..., Any], seed: int | None
) -> None:
    ran = run_child(write_script(ROUTED), SPLIT, seed=seed)
    record = next(r for r in ran.of("knob") if r["knob"] == "grad_accumulation")
    assert (record["evidence"], record["reason"]) == ("contradicted", KEEPS)


def test_a_loss_that_leaves_out_targets_is_taken_over_the_whole_batch(begin: Begin) -> None:
    """Parts hold different numbers of them: a mean of their means would be another loss."""

    def learn() -> list[float]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Embedding(9, 6), nn.Linear(6, 9))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        for _ in range(8):
            tokens = torch.randint(0, 9, (16, 7))
            kept = torch.arange(7) < torch.arange(16)[:, None] % 7 + 1
            optimizer.zero_grad()
            out = model(tokens).flatten(0, 1)
            nn.functional.cross_entropy(out, tokens.where(kept, -100).flatten(), ignore_index=-100).backward()
            optimizer.step()
        return [value for p in model.parameters() for value in p.flatten().tolist()]

    plain = learn()
    trial = begin(SPLIT)
    assert learn() == pytest.approx(plain, rel=1e-5, abs=1e-6)
    trial.end()
    assert trial.evidence("grad_accumulation") == ("verified", "")
