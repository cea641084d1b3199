"""Configs are switched between two steps; afterwards everything is the script's own, and it went on training."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.torch_trials import begin
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from tuner.child.devices.cuda import CudaDevice
from tuner.child.torch.implementations import Implementations

__all__ = ["begin"]

pytestmark = pytest.mark.usefixtures("torch_settings_kept")
Begin = Callable[..., Any]
OPTIMIZERS: dict[str, Callable[..., Any]] = {
    "AdamW": lambda parameters: torch.optim.AdamW(parameters, lr=1e-3, amsgrad=True),
    "SGD": lambda parameters: torch.optim.SGD(parameters, lr=1e-2, momentum=0.9),
    "foreach": lambda parameters: torch.optim.Adam(parameters, lr=1e-3, foreach=True),
    "groups": lambda parameters: torch.optim.AdamW(
        [{"params": each, "lr": 1e-3, "foreach": None if place else False} for place, each in enumerate(parameters)]
    ),
}
FEW = {"AdamW", "groups"}
"""A setting of all weights, and one that groups of them differ in; the others are variants of the first."""
CONFIGS: list[dict[str, Any]] = [
    {"threads": 1}, {"precision": "bf16"}, {"precision": "tf32"}, {"channels_last": True}, {"optimizer": "foreach"},
    {"optimizer": "fused"}, {"cudnn_benchmark": True}, {"channels_last": True, "optimizer": "fused"},
    {"precision": "bf16", "channels_last": True, "optimizer": "foreach", "threads": 1},
]  # fmt: skip


class Training:
    """A small convolutional network; ``keeps``: whether gradients stay where they are between steps."""

    def __init__(self, optimizer: str = "AdamW", *, keeps: bool = False) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.Flatten(),
            nn.Linear(8 * 16, 4),
        )  # fmt: skip
        self.model.register_buffer("picture", torch.randn(2, 8, 4, 4))
        self.optimizer = OPTIMIZERS[optimizer](self.model.parameters())
        self.keeps = keeps
        self.losses: list[float] = []
        self._draws = torch.Generator().manual_seed(1)

    def steps(self, count: int) -> None:
        for _ in range(count):
            x = torch.randn(16, 1, 6, 6, generator=self._draws)
            self.optimizer.zero_grad(set_to_none=not self.keeps)
            loss = nn.functional.cross_entropy(self.model(x), (x.mean((1, 2, 3)) > 0).long())
            loss.backward()
            self.optimizer.step()
            self.losses.append(float(loss.detach()))

    def settings(self, modules: Any) -> dict[str, Any]:
        """All that a switch may change."""
        matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
        tensors = {**dict(self.model.named_parameters()), **dict(self.model.named_buffers())}
        owners = [*self.optimizer.param_groups, self.optimizer.defaults, vars(self.optimizer)]
        states = [self.optimizer.state[p] for p in self.model.parameters()]
        return {
            "strides": {name: tensor.stride() for name, tensor in tensors.items()},
            "gradients": [p.grad.stride() for p in self.model.parameters() if p.grad is not None],
            "states": [
                {name: (v.stride(), v.dtype, v.device) for name, v in state.items() if isinstance(v, torch.Tensor)}
                for state in states
            ],
            "flags": [
                {name: of[name] for name in ("fused", "foreach", "_step_supports_amp_scaling") if name in of}
                for of in owners
            ],
            "threads": torch.get_num_threads(), "benchmark": cudnn.benchmark,
            "rounding": (torch.get_float32_matmul_precision(), cudnn.allow_tf32, matmul.allow_tf32),
            "patched": (modules.precision, modules.layout.wanted),
        }  # fmt: skip


@pytest.mark.slow  # 4 s beside three others
@pytest.mark.parametrize("keeps", [pytest.param(False, marks=pytest.mark.slow), True])
@pytest.mark.parametrize(
    "optimizer", [pytest.param(name, marks=[] if name in FEW else pytest.mark.slow) for name in OPTIMIZERS]
)
def test_afterwards_everything_is_the_scripts_own(begin: Begin, optimizer: str, keeps: bool) -> None:
    trial = begin()
    trial.session.device = CudaDevice("cuda:0")  # whose roundings can be set without a card
    training = Training(optimizer, keeps=keeps)
    training.steps(3)
    switcher, modules = trial.adapter.switcher(), trial.adapter.watches.modules
    modules.device_type = "cpu"
    assert switcher.obstacle() == ""
    switcher.begin()
    written = training.settings(modules)
    for config in CONFIGS:
        assert switcher.refusal(config) == ""
        switcher.to(config)
        turned = training.settings(modules)
        training.steps(2)
        assert turned != written or config in ({"optimizer": "foreach"}, {"threads": written["threads"]})
        switcher.to({})
        assert training.settings(modules) == written, config
        training.steps(1)
    for config in (*CONFIGS, *CONFIGS[::-1]):  # from one to the next
        switcher.to(config)
        training.steps(1)
    switcher.to({})
    assert training.settings(modules) == written


@pytest.mark.parametrize("keeps", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("optimizer", ["AdamW", "SGD", "groups"])
def test_it_trains_as_if_nothing_had_been_switched(begin: Begin, optimizer: str, keeps: bool) -> None:
    """Updates that took a weight's state in another order than the weight would scramble both."""
    exact = [{}, *(config for config in CONFIGS if "precision" not in config)]
    trial = begin()
    plain = Training(optimizer, keeps=keeps)
    plain.steps(60)
    training = Training(optimizer, keeps=keeps)
    training.steps(4)
    switcher = trial.adapter.switcher()
    switcher.begin()
    for config, _ in zip(itertools.cycle(exact), range(28), strict=False):
        switcher.to(config)
        training.steps(2)
    assert training.losses == pytest.approx(plain.losses, rel=1e-3)


def test_each_config_takes_effect(begin: Begin) -> None:
    trial = begin()
    training = Training()
    training.steps(3)
    switcher, watches = trial.adapter.switcher(), trial.adapter.watches
    switcher.begin()
    switcher.to({"precision": "bf16", "channels_last": True, "optimizer": "fused", "threads": 1})
    layers, layouts = list[Any](), list[bool]()

    def see(layer: nn.Module, given: Any, output: torch.Tensor) -> None:
        layers.append(output.dtype)
        layouts.append(given[0].is_contiguous(memory_format=torch.channels_last))

    handle = training.model[3].register_forward_hook(see)
    training.steps(1)
    assert layers == [torch.bfloat16] and layouts == [True] and torch.get_num_threads() == 1
    assert all(group["fused"] for group in training.optimizer.param_groups)
    switcher.to({})
    training.steps(1)
    handle.remove()
    assert layers[-1] is torch.float32 and not layouts[-1]
    assert watches.modules.precision is None


def test_weights_that_were_spoilt_are_put_back(begin: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
    trial = begin(rotation=[{"channels_last": True, "optimizer": "fused"}])
    training = Training()
    training.steps(3)
    monkeypatch.setattr(trial.session.rotation, "diverged", lambda: True)  # as in a turn: the loss ends no trial
    switcher = trial.adapter.switcher()
    switcher.begin()
    kept = {name: value.clone() for name, value in training.model.state_dict().items()}
    state = training.optimizer.state[training.model[0].weight]
    remembered = {name: value.clone() for name, value in state.items()}
    switcher.to({"channels_last": True, "optimizer": "fused"})
    training.steps(1)
    with torch.no_grad():
        training.model[0].weight.mul_(float("nan"))
    training.steps(1)
    assert not torch.isfinite(training.model[5].weight).all()
    switcher.put_back_weights()
    switcher.to({})
    assert all(torch.equal(value, kept[name]) for name, value in training.model.state_dict().items())
    assert all(torch.equal(value, remembered[name]) for name, value in state.items())
    training.steps(2)
    assert all(map(torch.isfinite, map(torch.tensor, training.losses[-2:])))


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({"precision": "fp16"}, "fp16"), ({"num_workers": 2}, "num_workers can't be turned"),
        ({"channels_last": False}, "layout"), ({"threads": 1, "compile": "default"}, "compile"),
    ],
)  # fmt: skip
def test_what_needs_a_start_is_refused(begin: Begin, config: dict[str, Any], why: str) -> None:
    trial = begin()
    training = Training()
    training.steps(2)
    assert why in trial.adapter.switcher().refusal(config)


def test_an_optimizer_without_implementations_is_refused(begin: Begin) -> None:
    trial = begin()
    model = nn.Linear(4, 2)
    optimizer = torch.optim.LBFGS(model.parameters())

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(torch.ones(3, 4)).sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    assert "no optimizer has a fused" in trial.adapter.switcher().refusal({"optimizer": "fused"})


def test_an_update_that_evaluates_again_and_again_is_left_alone(begin: Begin) -> None:
    """Each evaluation counts as a step: a switch would come within an update, whose directions lie flat in memory."""
    trial = begin()
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.Flatten(), nn.Linear(4 * 16, 2))
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1)
    x = torch.randn(4, 2, 6, 6)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        return loss

    optimizer.step(closure)
    assert "within a closure" in trial.adapter.switcher().obstacle()


@pytest.mark.parametrize("written", [None, True])
@pytest.mark.parametrize("chosen", ["foreach", "fused"])
def test_steps_are_counted_where_the_update_looks_for_them(chosen: str, written: bool | None) -> None:
    """On a card: a fused update on the device, others on the host, also those of weights that join in later."""
    with FakeTensorMode():
        weights = [torch.zeros(3, device="cuda") for _ in range(2)]
        optimizer = torch.optim.Adam(weights, foreach=False)
        optimizer.param_groups[0].update(foreach=None, fused=written)
        place = "cuda" if written else "cpu"
        optimizer.state[weights[0]] = {"step": torch.zeros((), device=place)}
        offered = Implementations(torch, lambda: [optimizer])
        offered.keep()
        offered.choose(chosen)
        meanwhile = "cuda" if chosen == "fused" else "cpu"
        assert optimizer.state[weights[0]]["step"].device.type == meanwhile
        optimizer.state[weights[1]] = {"step": torch.zeros((), device=meanwhile)}
        offered.restore()
        assert [optimizer.state[weight]["step"].device.type for weight in weights] == [place, place]


@pytest.mark.slow  # 4 s beside three others
def test_scripts_in_which_nothing_can_be_switched_are_told(begin: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
    trial = begin()
    switcher, watches = trial.adapter.switcher(), trial.adapter.watches
    assert "no module and optimizer" in switcher.obstacle()
    training = Training()
    training.steps(2)
    assert switcher.obstacle() == ""
    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(watches.steps, "scaled_by_script", True)
        assert "gradients" in switcher.obstacle()
    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(watches.modules.own_compile, "called", True)
        assert "compiled" in switcher.obstacle()
    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(trial.session.facts, "trainer", "lightning")
        assert "lightning" in switcher.obstacle()
    with monkeypatch.context() as meanwhile:
        meanwhile.setattr("tuner.child.torch.switch.MOST_KEPT_BYTES", 1000)
        assert "too much to be kept" in switcher.obstacle()
    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(trial.session, "_own_steps", 3)
        assert "reports its steps itself" in switcher.obstacle()
    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(torch.cuda, "CUDAGraph", type("CUDAGraph", (), {}))
        assert switcher.obstacle() == ""
        captured = torch.cuda.CUDAGraph()
        assert "CUDA graphs" in switcher.obstacle() and captured is not None
    wrapped = nn.DataParallel(training.model)
    wrapped(torch.randn(4, 1, 6, 6)).sum().backward()
    assert "in parallel" in switcher.obstacle()


def test_what_the_script_sets_itself_is_refused(begin: Begin) -> None:
    """Its own trial would find it set back."""
    trial = begin()
    Training().steps(2)
    assert trial.adapter.switcher().refusal({"threads": 1}) == ""
    torch.set_num_threads(2)
    assert "the script sets threads itself" in trial.adapter.switcher().refusal({"threads": 1})
    torch.backends.cudnn.benchmark = not torch.backends.cudnn.benchmark
    assert "cudnn_benchmark" in trial.adapter.switcher().refusal({"cudnn_benchmark": True})


@pytest.mark.parametrize("then", [{}, {"precision": "bf16"}])
def test_an_optimizer_that_is_loaded_meanwhile_is_the_scripts_own_then(begin: Begin, then: dict[str, Any]) -> None:
    """What it saved while a config had its turn says what that config asks for."""
    trial = begin()
    training = Training()
    training.steps(2)
    switcher = trial.adapter.switcher()
    switcher.begin()
    switcher.to({"optimizer": "fused"})
    training.steps(1)
    saved = training.optimizer.state_dict()
    training.optimizer.load_state_dict(saved)
    assert switcher.doubt({"optimizer": "fused"}) == ""
    switcher.to(then)
    assert [group["fused"] for group in training.optimizer.param_groups] == [None]
    training.optimizer.load_state_dict(saved)
    assert [group["fused"] for group in training.optimizer.param_groups] == [True]
    switcher.to(then)
    assert [group["fused"] for group in training.optimizer.param_groups] == [None]
    training.steps(1)


def test_a_group_that_joins_in_meanwhile_is_told(begin: Begin) -> None:
    trial = begin()
    training = Training()
    training.steps(2)
    switcher = trial.adapter.switcher()
    switcher.begin()
    switcher.to({"optimizer": "fused"})
    training.steps(1)
    training.optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(2))], "fused": None})
    assert "was made or loaded meanwhile" in switcher.doubt({"optimizer": "fused"})
    switcher.to({})
