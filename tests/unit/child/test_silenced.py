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
from tuner.child.formats import silenced
from tuner.child.patches import unpatch_all
from tuner.child.session import StopTrial
from tuner.runner.plain import sitecustomize


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


def _instrumented(folder: Path, module: Any, **request: Any) -> InProcess:
    """A trial in which the module has been imported."""
    trial = InProcess({}, {}, folder=str(folder), **request)
    [adapter] = [made for make in ADAPTERS if module.__name__ in (made := make(trial.session)).libraries]
    instrument(trial.session, adapter, module)
    return trial


class Run:
    """As Neptune's classes take a mode."""

    def __init__(self, project: str = "", *, mode: str | None = None) -> None:
        self.mode = mode


def begin(project: str = "", workspace: str = "", mode: str | None = None) -> str | None:
    """As SwanLab's function does."""
    return mode


@pytest.mark.parametrize(
    ("module", "names", "off"),
    [
        ("neptune.metadata_containers", ["Run", "Project", "Model", "ModelVersion"], "debug"),
        ("neptune_scale.api.run", ["Run"], "disabled"), ("swanlab", ["init"], "disabled"),
    ],
)  # fmt: skip
def test_others_keep_nothing_either_whatever_mode_they_are_given(
    tmp_path: Path, module: str, names: list[str], off: str
) -> None:
    """They reached their servers: each takes the argument before the variable."""
    made: Any = ModuleType(module)
    for name in names:
        setattr(made, name, begin if module == "swanlab" else type(name, (Run,), {"__init__": Run.__init__}))
    _instrumented(tmp_path, made)
    for name in names:
        call = getattr(made, name)
        if module == "swanlab":
            assert (call("digits", mode="cloud"), call("digits", "me", "cloud"), call()) == (off, off, off)
        else:
            assert call("digits", mode="async").mode == call().mode == off
            assert call("digits", mode="read-only").mode == "read-only", "it sends nothing, and the script needs it"


def test_a_login_that_asks_a_server_is_none(tmp_path: Path) -> None:
    made: Any = ModuleType("swanlab")
    made.init, made.login = begin, lambda api_key: pytest.fail("it reached its server")
    _instrumented(tmp_path, made)
    assert made.login(api_key="k") is None


@pytest.mark.parametrize(("mode", "own"), [("trial", True), ("apply", False)])
def test_mlflows_runs_go_to_the_trials_folder_wherever_the_script_sends_them(
    tmp_path: Path, mode: str, own: bool
) -> None:
    made: Any = ModuleType("mlflow.tracking._tracking_service.utils")
    sent: list[str] = []
    made.set_tracking_uri, made.get_tracking_uri = sent.append, lambda: sent[-1]
    made._resolve_tracking_uri = lambda uri=None: uri or made.get_tracking_uri()
    made._get_store = lambda store_uri=None, artifact_uri=None: store_uri
    _instrumented(tmp_path, made, mode=mode)
    server = "http://tracking.example"
    made.set_tracking_uri(server)
    kept = f"file://{tmp_path}/mlruns" if own else server
    assert sent == ([] if own else [server])
    assert made.get_tracking_uri() == made._resolve_tracking_uri(server) == made._get_store(server) == kept


def test_a_search_of_mlflows_that_finds_nothing_is_told(tmp_path: Path) -> None:
    """A script took its learning rate from the best run of its store, or else another one: trials took that, unsaid."""

    class Store:
        def __init__(self) -> None:
            self.runs: list[str] = []

        def search_runs(self, experiments: list[str]) -> list[str]:
            return self.runs

    made: Any = ModuleType("mlflow.tracking._tracking_service.utils")
    store = Store()
    made._get_store = lambda store_uri=None, artifact_uri=None: store
    trial = _instrumented(tmp_path, made)
    store.runs.append("of this trial")
    assert made._get_store().search_runs(["0"]) == ["of this trial"] and not trial.session.facts.remarks
    store.runs.clear()
    assert made._get_store().search_runs(["0"]) == made._get_store().search_runs(experiments=["0"]) == []
    [remark] = trial.session.facts.remarks
    assert "search_runs" in remark and "finds nothing" in remark


def test_clearml_stays_offline(tmp_path: Path) -> None:
    told: list[bool] = []
    made: Any = ModuleType("clearml")
    offline = classmethod(lambda cls, offline_mode=False: told.append(offline_mode))
    made.Task = type("Task", (), {"set_offline": offline})
    _instrumented(tmp_path, made)
    made.Task.set_offline(offline_mode=False)
    assert told == [True]
    checks: Any = ModuleType("clearml.utilities.check_updates")
    checks.CheckPackageUpdates = type("CheckPackageUpdates", (), {"check_new_package_available": offline})
    _instrumented(tmp_path, checks)
    assert checks.CheckPackageUpdates.check_new_package_available(only_once=True) is None and told == [True]


def test_plain_python_is_kept_from_the_same_ones() -> None:
    for name in ("OFF", "READS", "LOGINS", "CLEARML", "MLFLOW"):
        assert getattr(sitecustomize, name) == getattr(silenced, name)


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
