"""Configs of a rotation that can't be compiled: what fails or takes too long, and what is left alone."""

from __future__ import annotations

import copy
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from support.compiled_training import BLOCKS, FUSED, WHOLE, Begin, Training, same, started
from support.compiling import backend
from support.torch_trials import begin
from torch import nn

from tuner.child.torch import compiled_turns, deadline
from tuner.child.torch.compiled_turns import CompilationError
from tuner.child.torch.draws import Draws

__all__ = ["backend", "begin"]

pytestmark = [
    pytest.mark.timeout(300, method="thread"),  # the other one takes the alarm
    pytest.mark.usefixtures("torch_settings_kept"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning"),
]


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


def endlessly_compiled(function: Any, **how: Any) -> Any:
    """By PyTorch itself, with a backend that comes to no end."""
    return compiled(function, backend=lambda graph, inputs: endless(graph)())


compiled = torch.compile


@pytest.mark.slow  # 5 s beside three others
@pytest.mark.parametrize(
    ("compile", "error"),
    [(failing, "no kernel"), (endless, "takes longer than 1 s"), (endlessly_compiled, "takes longer than 1 s")],
)
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


def test_what_is_put_back_is_so_whenever_the_alarm_rings(begin: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
    """It rings again and again, also while the buffers and random numbers that a call has changed are put back."""

    def late(function: Any, **how: Any) -> Any:
        def run(*args: Any, **kwargs: Any) -> Any:
            function(*args, **kwargs)
            while True:
                time.sleep(0.01)

        return run

    def ringing(drawn: Draws) -> None:
        if callable(signal.getsignal(signal.SIGALRM)):
            signal.raise_signal(signal.SIGALRM)
        put_back(drawn)

    plain, put_back = Training(), Draws.put_back
    plain.steps(*[16] * 8)
    expected = plain.state()
    _, switcher, training = started(begin, WHOLE)
    monkeypatch.setattr(compiled_turns, "LONGEST_S", 1.0)
    monkeypatch.setattr(Draws, "put_back", ringing)
    switcher.begin()
    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(torch, "compile", late)
        with pytest.raises(CompilationError, match="takes longer than 1 s"):
            switcher.to(WHOLE)
    switcher.to({})
    training.steps(16, 16, 16)
    assert same(training.state(), expected)


class AsData(nn.Module):  # type: ignore[misc]  # torch's own types are Any here
    """A running mean that is changed past PyTorch's versions, in what isn't compiled."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 1)
        self.register_buffer("mean", torch.zeros(8))

    @torch.compiler.disable  # type: ignore[untyped-decorator]  # likewise
    def forward(self, x: Any) -> Any:
        self.mean.data.mul_(0.9).add_(x.detach().mean(0), alpha=0.1)
        return self.linear(x - self.mean)


@pytest.mark.usefixtures("backend")
def test_a_buffer_that_is_changed_as_data_is_put_back(begin: Begin) -> None:
    plain = Training(AsData)
    plain.steps(*[16] * 5)
    expected = plain.state()
    _, switcher, training = started(begin, WHOLE, make=AsData)
    assert switcher.refusal(WHOLE) == ""
    switcher.begin()
    switcher.to(WHOLE)
    switcher.to({})
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


class ScalingAsData(Scaling):
    """They change past PyTorch's versions."""

    def forward(self, x: Any) -> Any:
        self.linear.weight.data.mul_(0.99)
        return self.linear(x)


class InPlace(Scaling):
    """Changes what it is given, which may be the script's data."""

    def forward(self, x: Any) -> Any:
        return self.linear(x.mul_(0.5))


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
        (hooked_weights, "hooks"), (ScalingAsData, "changes its weights"), (InPlace, "in place"),
    ],
)  # fmt: skip
@pytest.mark.usefixtures("backend")
def test_a_model_that_a_call_leaves_a_trace_in_is_refused(begin: Begin, make: Any, why: str) -> None:
    _, switcher, _ = started(begin, WHOLE, make=make)
    assert why in switcher.refusal(WHOLE) and switcher.refusal(FUSED) == ""


class WithHead(nn.Module):  # type: ignore[misc]  # likewise
    """Has a part that it doesn't call yet, of a kind whose numbers can't be read."""

    def __init__(self, head: nn.Module) -> None:
        super().__init__()
        self.linear, self.head = nn.Linear(8, 1), head

    def forward(self, x: Any) -> Any:
        return self.linear(x)


def nowhere() -> nn.Module:
    """As a model holds what it hasn't loaded."""
    return nn.Linear(8, 1, device="meta")


def lazy() -> nn.Module:
    """As a lazy layer holds it before its first call."""
    head = nn.Module()
    head.weight = nn.UninitializedParameter()
    return head


@pytest.mark.parametrize(
    ("head", "why"), [(lambda: nn.LazyLinear(1), "hooks"), (lazy, "uninitialized"), (nowhere, "meta")]
)
@pytest.mark.usefixtures("backend")
def test_weights_that_cannot_be_looked_at_leave_the_script_alone(begin: Begin, head: Any, why: str) -> None:
    plain = Training(lambda: WithHead(head()))
    plain.steps(*[16] * 5)
    _, switcher, training = started(begin, WHOLE, make=lambda: WithHead(head()))
    assert training.losses == plain.losses
    assert why in switcher.refusal(WHOLE)


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


def test_an_alarm_that_the_script_sets_later_is_its_own(begin: Begin) -> None:
    def rings(number: int, frame: object) -> None:
        """The script's."""

    _, switcher, _ = started(begin, WHOLE)
    assert switcher.refusal(WHOLE) == ""
    switcher.begin()
    before = signal.signal(signal.SIGALRM, rings)
    try:
        with pytest.raises(CompilationError, match="alarm"):
            switcher.to(WHOLE)
        assert signal.getsignal(signal.SIGALRM) is rings
    finally:
        signal.signal(signal.SIGALRM, before)


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
