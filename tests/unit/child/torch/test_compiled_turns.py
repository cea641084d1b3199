"""Configs of a rotation that compile: made before their first turns, in force in theirs alone, and put back."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from support.compiled_training import ALL, BLOCKS, FUSED, WHOLE, Begin, Training, same, started
from support.compiling import backend
from support.torch_trials import begin
from torch import nn

from tuner.child.records import Phase

__all__ = ["backend", "begin"]

pytestmark = [
    pytest.mark.timeout(300, method="thread"),  # the other one takes the alarm
    pytest.mark.usefixtures("torch_settings_kept"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning"),
]


@pytest.mark.slow  # 4 s beside three others
@pytest.mark.usefixtures("backend")
def test_what_is_compiled_leaves_no_trace_in_the_training(begin: Begin) -> None:
    """Bit for bit, against the same script without any of it."""
    plain = Training()
    plain.steps(*[16] * 12)
    expected = plain.state()
    _, switcher, training = started(begin)
    before, gradients = training.state(), [weight.grad for weight in training.model.parameters()]
    held = training.held()
    assert switcher.obstacle() == "" and [switcher.refusal(config) for config in ALL] == [""] * len(ALL)
    switcher.begin()
    for config in ALL:
        switcher.to(config)
        assert same(training.state(), before), config
    switcher.to({})
    assert training.held() == held
    assert all(now is then for now, then in zip((w.grad for w in training.model.parameters()), gradients, strict=True))
    training.steps(*[16] * 7)
    assert same(training.state(), expected) and training.losses == plain.losses
    switcher.end()


def test_compiled_code_runs_in_its_own_turns_and_in_no_other(begin: Begin, backend: list[Any]) -> None:
    trial, switcher, training = started(begin)
    switcher.begin()
    steady = trial.adapter.activity()
    compiled = [config for config in ALL if "compile" in config]
    for config in (*ALL, {}, *ALL[::-1], {}):
        switcher.to(config)
        training.ran.clear()
        graphs = len(backend)
        training.steps(16, 16)
        assert training.ran == [config in compiled] * 2, config
        assert len(backend) == graphs, "by then it is compiled"
        assert switcher.doubt(config) == switcher.disturbed(config) == ""
        watched = trial.adapter.watches.modules.ran_compiled
        assert watched is (None if config in compiled else False)
    told = trial.log.of("config-compiled")
    assert [each["config"] for each in told] == compiled
    assert all(each["seconds"] > 0 and each["graphs"] > 0 for each in told)
    assert trial.adapter.activity() == steady, "what was compiled for a turn begins no window anew"


@pytest.mark.usefixtures("backend")
def test_it_trains_as_if_nothing_had_been_compiled(begin: Begin) -> None:
    """Without dropout: compiled code draws other numbers."""

    def without() -> nn.Module:
        return nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 1))

    plain = Training(without)
    plain.steps(*[16] * 29)
    random_numbers = torch.get_rng_state()
    _, switcher, training = started(begin, make=without)
    switcher.begin()
    for config, _ in zip(itertools.cycle([WHOLE, {}, FUSED]), range(12), strict=False):
        switcher.to(config)
        training.steps(16, 16)
    assert training.losses == pytest.approx(plain.losses, rel=1e-3)
    assert torch.equal(torch.get_rng_state(), random_numbers)


@pytest.mark.slow  # 3 s beside three others
def test_every_shape_that_was_seen_is_compiled_ahead(begin: Begin, backend: list[Any]) -> None:
    trial, switcher, training = started(begin, WHOLE)
    training.steps(9, 16)
    switcher.begin()
    steady = trial.adapter.activity()
    switcher.to(WHOLE)
    graphs = len(backend)
    training.steps(16, 9, 16)
    assert len(backend) == graphs and switcher.disturbed(WHOLE) == ""
    training.steps(5)  # a second shape of batches makes graphs that take any
    assert len(backend) == graphs and switcher.disturbed(WHOLE) == ""
    assert trial.adapter.activity() == steady


class OfMapping(nn.Module):  # type: ignore[misc]  # torch's own types are Any here
    """Takes its batch in a mapping, within a list."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 1)

    def forward(self, given: Any) -> Any:
        return self.linear(given[0]["x"])


class Wrapping(Training):
    def called(self, x: Any) -> Any:
        return self.model([{"x": x}])


def test_shapes_are_seen_in_whatever_a_batch_is_given_in(begin: Begin, backend: list[Any]) -> None:
    trial, training = begin(rotation=[WHOLE]), Wrapping(OfMapping)
    training.steps(16, 16, 16, 16, 9)
    trial.session.clock.turns, trial.session.clock.phase = None, Phase.WINDOW
    switcher = trial.adapter.switcher()
    switcher.begin()
    switcher.to(WHOLE)
    graphs = len(backend)
    training.steps(16, 9)
    assert len(backend) == graphs and switcher.disturbed(WHOLE) == "" and switcher.doubt(WHOLE) == ""


@pytest.mark.slow  # 2 s beside three others
def test_a_turn_in_which_something_is_compiled_anew_is_told(begin: Begin, backend: list[Any]) -> None:
    trial, switcher, training = started(begin, WHOLE)
    switcher.begin()
    steady = trial.adapter.activity()
    switcher.to(WHOLE)
    graphs = len(backend)
    training.steps(16, 9)
    assert len(backend) > graphs
    assert switcher.disturbed(WHOLE) == "1 graphs were compiled anew" and switcher.doubt(WHOLE) == ""
    assert trial.adapter.activity() == steady
    switcher.to({})
    assert switcher.disturbed({}) == "" and trial.adapter.activity() == steady
    switcher.to(WHOLE)
    training.steps(9)
    assert switcher.disturbed(WHOLE) == ""


@pytest.fixture
def thrice() -> Iterator[None]:
    """PyTorch gives a code up once it is compiled eight times, and here thrice. pytest's patches lose its settings."""
    with torch._dynamo.config.patch(recompile_limit=3):
        yield


@pytest.mark.slow  # 6 s beside three others
def test_each_config_has_its_own_code_and_none_takes_another_s_room(
    begin: Begin, backend: list[Any], thrice: None
) -> None:
    """There are four of them."""
    configs = [{"compile": "default", "optimizer": "fused"}, {**WHOLE, "precision": "bf16", "threads": 1}, WHOLE,
               {**BLOCKS, "threads": 1}]  # fmt: skip
    _, switcher, training = started(begin, *configs)
    training.steps(9, 16)
    switcher.begin()
    for config in (*configs, *configs):
        switcher.to(config)
        training.ran.clear()
        training.steps(16, 9)
        assert training.ran == [True, True] and switcher.doubt(config) == switcher.disturbed(config) == "", config
    assert len(backend) >= len(configs)
