"""Trackers that heed an argument more than the variable by which a trial switches them off."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from support.in_process import InProcess

from tuner.child.adapter import instrument
from tuner.child.adapters import ADAPTERS
from tuner.child.patches import unpatch_all
from tuner.child.session import StopTrial


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    yield
    unpatch_all()


@pytest.mark.parametrize(("mode", "given"), [("trial", "disabled"), ("apply", "online")])
def test_a_mode_that_the_script_asks_for_counts_under_run_only(tmp_path: Path, mode: str, given: str) -> None:
    """As wandb has it: its argument goes before ``WANDB_MODE``."""
    asked: list[dict[str, Any]] = []
    wandb: Any = ModuleType("wandb")
    wandb.init = lambda project, **kwargs: asked.append({"project": project, **kwargs})
    session = InProcess({}, {}, mode=mode, folder=str(tmp_path)).session
    [adapter] = [made for make in ADAPTERS if "wandb" in (made := make(session)).libraries]
    instrument(session, adapter, wandb)
    wandb.init("digits", mode="online")
    assert asked == [{"project": "digits", "mode": given}]


def test_a_folder_of_runs_that_has_its_name_is_let_be(tmp_path: Path) -> None:
    """Python imports it as a package with nothing in it, for who asks whether wandb is there."""
    session = InProcess({}, {}, folder=str(tmp_path)).session
    [adapter] = [made for make in ADAPTERS if "wandb" in (made := make(session)).libraries]
    instrument(session, adapter, ModuleType("wandb"))


def test_a_sweep_ends_a_trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its trainings were started, with settings that a server gave, and sent; without the server it waited for ever."""
    monkeypatch.setattr("tuner.child.session._watchdog", lambda: None)  # it would end this process
    wandb: Any = ModuleType("wandb")
    wandb.init = wandb.sweep = wandb.agent = lambda *args, **kwargs: pytest.fail("it reached its server")
    trial = InProcess({}, {}, folder=str(tmp_path))
    [adapter] = [made for make in ADAPTERS if "wandb" in (made := make(trial.session)).libraries]
    instrument(trial.session, adapter, wandb)
    with pytest.raises(StopTrial):
        wandb.agent("me/digits/x1", print)
    [failure] = trial.log.of("failure")
    assert failure["reason"] == "unsupported" and "wandb.agent" in failure["detail"]
    with pytest.raises(StopTrial):
        wandb.sweep({"method": "random"})
