"""A model that was found to have parts begins to do something else: a mode, an attribute or an argument changes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from support.own_model import Module, Own, rows_seen
from support.torch_trials import begin
from torch import nn

from tuner.child.torch.parts import KEEPS

__all__ = ["begin", "rows_seen"]

Begin = Callable[..., Any]
SPLIT = {"batch_size": 4, "grad_accumulation": 4}
LATER_SCRIPT = """
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(160, 8), torch.randn(160, 1))
    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))
    optimizer, seen, given = torch.optim.SGD(model.parameters(), lr=0.01), set(), nn.functional.batch_norm

    def batch_norm(x, *args, **kwargs):
        if torch.is_grad_enabled():
            seen.add((len(x), model[1].training))
        return given(x, *args, **kwargs)

    nn.functional.batch_norm = batch_norm
    for epoch in range(110):
        model[1].train(epoch >= 105)
        for x, y in DataLoader(data, 16, shuffle=True):
            optimizer.zero_grad()
            nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
    print(sorted(seen), int(model[1].num_batches_tracked))
"""


@pytest.mark.slow  # 4 s beside three others
def test_batch_norm_that_is_unfrozen_late_sees_whole_batches(
    write_script: Callable[..., Path], run_child: Callable[..., Any]
) -> None:
    ran = run_child(write_script(LATER_SCRIPT), SPLIT, mode="apply")
    told = ran.output.splitlines()[-1]
    assert told == "[(4, False), (16, False), (16, True)] 50", ran.output
    assert f"whole batches from now on: {KEEPS}" in ran.output


def _mixed(x: Any) -> Any:
    return x - x.mean(0)


def _in_stages(model: Any, x: Any, stage: Any = 0) -> Any:
    """Mixes the samples of a batch from stage 1 on, however a stage is told: by an argument or an attribute."""
    return model.linear(_mixed(x) if stage or model.stage else x)


def _staged(model: Any) -> None:
    model.stage = 0


def _named(model: Any) -> None:
    model.mode = "alone"


def _by_mode(model: Any, x: Any) -> Any:
    return model.linear(_mixed(x) if model.mode == "mixed" else x)


class Mixed(Module):  # type: ignore[misc]  # PyTorch isn't typed here
    """Takes off the mean of the batch."""

    def forward(self, x: Any) -> Any:
        return _mixed(x)


def _switch(model: Any) -> None:
    model.inner = nn.Sequential(nn.Identity())


STAGE = 0
OPTIONS: dict[str, Any] = {"name": "mixing", "mixes": False}


class Settings:
    """As a namespace of a script's options."""

    mixes = False


SETTINGS = Settings()
STAGES = [0, False]
"""As a script keeps what its functions are to change."""
CONSTANTS = ModuleType("constants")
CONSTANTS.__dict__.update(__file__="/home/user/constants.py", mixes=False)


class CFG:
    """As a script keeps what it is configured by: never made an object of."""

    mixes = False


def _set_stage(number: int) -> None:
    global STAGE
    STAGE = number


def _by_global(model: Any, x: Any) -> Any:
    return model.linear(_mixed(x) if STAGE else x)


def _by_options(model: Any, x: Any) -> Any:
    return model.linear(_mixed(x) if OPTIONS["mixes"] else x)


def _within(model: Any, x: Any) -> Any:
    return _by_settings(model, x)


def _by_settings(model: Any, x: Any) -> Any:
    return model.linear(_mixed(x) if SETTINGS.mixes else x)


def _by_list(model: Any, x: Any) -> Any:
    return model.linear(_mixed(x) if STAGES[1] else x)


def _by_class(model: Any, x: Any) -> Any:
    return model.linear(_mixed(x) if CFG.mixes else x)


def _by_module(model: Any, x: Any) -> Any:
    return model.linear(_mixed(x) if CONSTANTS.mixes else x)


def _by_own_settings(model: Any, x: Any) -> Any:
    return model.linear(_mixed(x) if model.settings.mixes else x)


def _around() -> tuple[Any, Any]:
    mixes = False

    def call(model: Any, x: Any) -> Any:
        return model.linear(_mixed(x) if mixes else x)

    def switch(model: Any, n: int) -> None:
        nonlocal mixes
        mixes = n >= 40

    return call, switch


CALL, SWITCH = _around()
LATER: dict[str, tuple[Any, Any, Any]] = {
    "a global": (lambda: Own(_by_global), lambda m, n: _set_stage(int(n >= 40)), lambda m, x, n: m(x)),
    "an entry of a global": (
        lambda: Own(_by_options), lambda m, n: OPTIONS.update(mixes=n >= 40), lambda m, x, n: m(x),
    ),
    "an attribute of a global": (
        lambda: Own(_within), lambda m, n: setattr(SETTINGS, "mixes", n >= 40), lambda m, x, n: m(x),
    ),
    "an entry of a list": (lambda: Own(_by_list), lambda m, n: STAGES.__setitem__(1, n >= 40), lambda m, x, n: m(x)),
    "an attribute of a class": (
        lambda: Own(_by_class), lambda m, n: setattr(CFG, "mixes", n >= 40), lambda m, x, n: m(x),
    ),
    "a name in a module": (
        lambda: Own(_by_module), lambda m, n: setattr(CONSTANTS, "mixes", n >= 40), lambda m, x, n: m(x),
    ),
    "an attribute of an object in it": (
        lambda: Own(_by_own_settings, lambda model: setattr(model, "settings", Settings())),
        lambda m, n: setattr(m.settings, "mixes", n >= 40), lambda m, x, n: m(x),
    ),
    "a variable around it": (lambda: Own(CALL), SWITCH, lambda m, x, n: m(x)),
    "an attribute": (
        lambda: Own(_in_stages, _staged), lambda m, n: setattr(m, "stage", int(n >= 40)), lambda m, x, n: m(x),
    ),
    "an argument": (lambda: Own(_in_stages, _staged), lambda m, n: None, lambda m, x, n: m(x, int(n >= 40))),
    "an argument by name": (
        lambda: Own(_in_stages, _staged), lambda m, n: None, lambda m, x, n: m(x, stage=float(n >= 40)),
    ),
    "a word": (
        lambda: Own(_by_mode, _named), lambda m, n: setattr(m, "mode", "mixed" if n >= 40 else "alone"),
        lambda m, x, n: m(x),
    ),
    "another module": (
        lambda: Own(lambda m, x: m.linear(m.inner(x)), _switch),
        lambda m, n: setattr(m.inner, "0", Mixed()) if n == 40 else None, lambda m, x, n: m(x),
    ),
    "a number that counts up beside it": (
        lambda: Own(_by_mode, _named),
        lambda m, n: m.__dict__.update(mode="mixed" if n >= 40 else "alone", count=n),
        lambda m, x, n: m(x),
    ),
    "a hook": (
        lambda: Own(lambda m, x: m.linear(x)),
        lambda m, n: m.linear.register_forward_pre_hook(lambda module, args: _mixed(args[0])) if n == 40 else None,
        lambda m, x, n: m(x),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LATER)
def test_a_model_that_changes_is_asked_again(begin: Begin, name: str) -> None:
    make, before, call = LATER[name]

    def learn() -> list[float]:
        _set_stage(0)
        OPTIONS["mixes"] = SETTINGS.mixes = STAGES[1] = CFG.mixes = False
        model = make()
        torch.manual_seed(3)
        model.load_state_dict({name: torch.randn(p.shape) * 0.1 for name, p in model.state_dict().items()})
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        for n in range(60):
            before(model, n)
            optimizer.zero_grad()
            call(model, torch.randn(16, 5), n).square().mean().backward()
            optimizer.step()
        return [value for p in model.parameters() for value in p.flatten().tolist()]

    plain = learn()
    trial = begin(SPLIT)
    assert learn() == pytest.approx(plain, rel=1e-4, abs=1e-6)
    trial.end()


@pytest.mark.slow  # 4 s beside three others
def test_a_number_that_changes_with_each_step_is_asked_about_ever_more_rarely(
    begin: Begin, rows_seen: list[int]
) -> None:
    """It costs a few steps, and no evidence."""
    trial = begin(SPLIT)
    model = Own(lambda m, x, step: m.linear(x) * (1 + m.warmth), lambda m: setattr(m, "warmth", 0.0))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for n in range(600):
        model.warmth = 1 / (n + 1)
        optimizer.zero_grad()
        model(torch.randn(16, 5), n).square().mean().backward()
        optimizer.step()
    trial.end()
    assert trial.evidence("grad_accumulation") == ("verified", "")
    # A question takes three calls with the whole batch and one in four parts, and a step with the whole before it.
    questions = (len(rows_seen) - 4 * 600) / (3 + 4 - 3)
    assert 16 < questions < 100
