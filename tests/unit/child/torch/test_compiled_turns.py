"""Configs of a rotation that compile: made before their first turns, in force in theirs alone, and put back."""

from __future__ import annotations

import copy
import itertools
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from support.compiling import backend
from support.torch_trials import begin
from torch import nn

from tuner.child.records import Phase
from tuner.child.torch import compiled_turns, deadline
from tuner.child.torch.compiled_turns import CompilationError
from tuner.child.torch.compiling import gradients_of, runs_compiled

__all__ = ["backend", "begin"]

pytestmark = [
    pytest.mark.timeout(300, method="thread"),  # the other one takes the alarm
    pytest.mark.usefixtures("torch_settings_kept"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning"),
]
Begin = Callable[..., Any]
WHOLE: dict[str, Any] = {"compile": "default"}
BLOCKS: dict[str, Any] = {"compile": "regional"}
IN_BF16: dict[str, Any] = {"compile": "default", "precision": "bf16"}
FUSED: dict[str, Any] = {"optimizer": "fused"}
ALL = (WHOLE, BLOCKS, IN_BF16, FUSED)


class Block(nn.Module):  # type: ignore[misc]  # torch's own types are Any here
    """A residual block with all that a step may change beside weights: running means, random numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.branch = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Dropout(0.2))

    def forward(self, x: Any) -> Any:
        return x + self.branch(x)


class Training:
    """Trains, and notes of each call of its model whether compiled code ran in it."""

    def __init__(self, make: Callable[[], nn.Module] | None = None) -> None:
        torch.manual_seed(0)
        whole = nn.Sequential(nn.Linear(8, 8), Block(), Block(), nn.Linear(8, 1))
        self.model: Any = make() if make is not None else whole
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-2, momentum=0.9)
        self.losses: list[float] = []
        self.ran: list[bool | None] = []
        self._data = torch.Generator().manual_seed(1)

    def steps(self, *sizes: int) -> None:
        for size in sizes:
            x = torch.randn(size, 8, generator=self._data)
            given = self.model(x)
            self.ran.append(runs_compiled(torch, gradients_of(torch, x), given))
            loss = given.float().square().mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.losses.append(float(loss.detach()))

    def state(self) -> list[Any]:
        """All that a training goes on from."""
        moments = [value for state in self.optimizer.state.values() for value in state.values()]
        gradients = [weight.grad for weight in self.model.parameters()]
        held = (*self.model.state_dict().values(), *moments, *gradients, torch.get_rng_state())
        return [each.clone() for each in held]

    def held(self) -> list[dict[str, Any]]:
        """What lies in the modules' own attributes."""
        return [{name: id(value) for name, value in vars(each).items()} for each in self.model.modules()]


def same(one: list[Any], other: list[Any]) -> bool:
    return len(one) == len(other) and all(map(torch.equal, one, other))


def started(
    begin: Begin, *configs: dict[str, Any], make: Callable[[], nn.Module] | None = None
) -> tuple[Any, Any, Training]:
    """A rotation in which no turn begins by itself: the trial, what switches, and what trains."""
    trial, training = begin(rotation=configs or ALL), Training(make)
    training.steps(*[16] * 5)
    clock = trial.session.clock
    clock.turns, clock.phase = None, Phase.WINDOW
    return trial, trial.adapter.switcher(), training


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


def test_each_config_has_its_own_code_and_none_takes_another_s_room(begin: Begin, backend: list[Any]) -> None:
    """PyTorch compiles one code eight times and then gives it up; here are ten configs."""
    configs = [{"compile": "default", "threads": 1 + number % 2, "optimizer": name}
               for number, name in itertools.product(range(2), ("fused", "foreach"))]  # fmt: skip
    configs += [{**WHOLE, "precision": "bf16"}, {**WHOLE, "precision": "bf16", "threads": 1}, WHOLE, BLOCKS,
                {**BLOCKS, "precision": "bf16"}, {**BLOCKS, "threads": 1}]  # fmt: skip
    _, switcher, training = started(begin, *configs)
    training.steps(9, 16)
    switcher.begin()
    for config in (*configs, *configs):
        switcher.to(config)
        training.ran.clear()
        training.steps(16, 9)
        assert training.ran == [True, True] and switcher.doubt(config) == switcher.disturbed(config) == "", config
    assert len(backend) >= len(configs)


# What can't be compiled


def failing(function: Any, **how: Any) -> Any:
    def run(*args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("no kernel for it\n\nSet TORCHDYNAMO_VERBOSE=1 for more" + " of it" * 99)

    return run


def endless(function: Any, **how: Any) -> Any:
    def run(*args: Any, **kwargs: Any) -> Any:
        while True:
            try:
                time.sleep(0.01)
            except deadline.TooLongError:
                if swallowed:
                    raise
                swallowed.append(True)

    swallowed: list[bool] = []
    return run


@pytest.mark.parametrize(("compile", "error"), [(failing, "no kernel"), (endless, "takes longer than 1 s")])
def test_what_fails_or_takes_too_long_costs_that_config_only(
    begin: Begin, monkeypatch: pytest.MonkeyPatch, compile: Any, error: str
) -> None:
    plain = Training()
    plain.steps(*[16] * 8)
    expected = plain.state()
    _, switcher, training = started(begin)
    monkeypatch.setattr(compiled_turns, "LONGEST_S", 1.0)
    monkeypatch.setattr(deadline, "AGAIN_S", 0.1)
    held = training.held()
    switcher.begin()
    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(torch, "compile", compile)
        for config in (WHOLE, BLOCKS):
            with pytest.raises(CompilationError, match=error) as told:
                switcher.to(config)
            assert len(str(told.value).splitlines()) == 1 and len(str(told.value)) <= 200
            switcher.leave(config)
    switcher.to({})
    assert training.held() == held
    assert signal.getsignal(signal.SIGALRM) is signal.SIG_DFL and signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    training.steps(16, 16, 16)
    assert same(training.state(), expected)


class Counting(nn.Module):  # type: ignore[misc]  # likewise
    """Keeps what a rehearsal couldn't put back."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.calls = nn.Linear(8, 1), 0

    def forward(self, x: Any) -> Any:
        self.calls += 1
        return self.linear(x)


class Scaling(nn.Module):  # type: ignore[misc]  # likewise
    """Its weights change with each call."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 1)

    def forward(self, x: Any) -> Any:
        with torch.no_grad():
            self.linear.weight.clamp_(-1, 1)
        return self.linear(x)


def hooked() -> nn.Module:
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 1))
    model[0].register_forward_hook(lambda module, given, result: None)
    return model


def hooked_weights() -> nn.Module:
    model = nn.Linear(8, 1)
    model.weight.register_hook(lambda gradient: gradient)
    return model


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (Counting, "keeps something from one call"), (Scaling, "changes its weights"), (hooked, "hooks"),
        (hooked_weights, "hooks"),
    ],
)  # fmt: skip
@pytest.mark.usefixtures("backend")
def test_a_model_that_a_call_leaves_a_trace_in_is_refused(begin: Begin, make: Any, why: str) -> None:
    _, switcher, _ = started(begin, WHOLE, make=make)
    assert why in switcher.refusal(WHOLE) and switcher.refusal(FUSED) == ""


@pytest.mark.parametrize(
    ("mode", "why"),
    [("reduce-overhead", "CUDA graphs"), ("max-autotune-no-cudagraphs", "for minutes"), ("off", "nothing is compiled")],
)
def test_modes_that_need_a_start_are_refused(begin: Begin, mode: str, why: str) -> None:
    _, switcher, _ = started(begin, WHOLE)
    assert why in switcher.refusal({"compile": mode})


@pytest.fixture
def alarm() -> Iterator[None]:
    before = signal.signal(signal.SIGALRM, lambda number, frame: None)
    yield
    signal.signal(signal.SIGALRM, before)


@pytest.mark.usefixtures("alarm")
def test_a_script_with_an_alarm_of_its_own_keeps_it(begin: Begin) -> None:
    _, switcher, _ = started(begin, WHOLE)
    assert "alarm" in switcher.refusal(WHOLE)


class Breaking(nn.Module):  # type: ignore[misc]  # likewise
    """One that PyTorch makes no graph of."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 1)

    @torch.compiler.disable  # type: ignore[untyped-decorator]  # likewise
    def forward(self, x: Any) -> Any:
        return self.linear(x)


@pytest.mark.usefixtures("backend")
def test_what_runs_as_written_all_the_same_is_told(begin: Begin) -> None:
    _, switcher, training = started(begin, WHOLE, make=Breaking)
    switcher.begin()
    switcher.to(WHOLE)
    training.steps(16, 16)
    assert switcher.doubt(WHOLE) == "the model runs without what was compiled"


@pytest.mark.usefixtures("backend")
def test_a_model_in_another_mode_is_not_compiled_in_that(begin: Begin) -> None:
    _, switcher, training = started(begin, WHOLE)
    switcher.begin()
    training.model.eval()
    with pytest.raises(CompilationError, match="another mode"):
        switcher.to(WHOLE)
    switcher.to({})


@pytest.mark.usefixtures("backend")
def test_what_the_script_copies_in_its_turn_is_not_compiled(begin: Begin) -> None:
    """A copy that it keeps, or saves, is a plain model."""
    _, switcher, training = started(begin, BLOCKS)
    switcher.begin()
    switcher.to(BLOCKS)
    copied: Any = copy.deepcopy(training.model)
    assert all("_compiled_call_impl" not in vars(each) for each in copied.modules())
    switcher.to({})


def test_without_a_compiler_no_calls_are_kept(begin: Begin) -> None:
    trial = begin(rotation=[FUSED])
    assert trial.adapter.watches.modules.kept_calls is None
