"""Where steps end on an XLA device, on a stand-in for torch_xla: the real one is tried by `make test-xla`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from support.torch_trials import Trial, begin

__all__ = ["begin"]


class Runtime:
    """``_XLAC``: whether it is eager, what it has compiled, which values were read."""

    def __init__(self) -> None:
        self.eager = False
        self.compiled = 0
        self.counters: dict[str, int] = {}

    def _get_use_eager_mode(self) -> bool:
        return self.eager

    def _xla_runtime_is_initialized(self) -> bool:
        return True

    def _xla_wait_device_ops(self, devices: list[str]) -> None:
        assert devices == []

    def _xla_metric_data(self, name: str) -> tuple[int, float, tuple[Any, ...]] | None:
        return (self.compiled, 2e9, ()) if name == "CompileTime" and self.compiled else None

    def _xla_counter_value(self, name: str) -> int | None:
        return self.counters.get(name)

    def _xla_counter_names(self) -> list[str]:
        return list(self.counters)


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A made-up torch_xla of a script that has used its device."""
    package: Any = ModuleType("torch_xla")
    package._XLAC = Runtime()
    package.sync = lambda wait=False: None
    inner, model, pjrt = (SimpleNamespace() for _ in range(3))
    inner.sync = package.sync
    def mark_step() -> None:
        package.sync()

    model.mark_step = mark_step
    pjrt.spawn = lambda fn, nprocs=None, start_method="spawn", args=(): (nprocs, args)
    modules = {
        "torch_xla": package, "torch_xla.torch_xla": inner, "torch_xla.core.xla_model": model,
        "torch_xla._internal.pjrt": pjrt,
    }  # fmt: skip
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    package.model, package.pjrt, package.inner = model, pjrt, inner
    return package


@pytest.fixture
def trial(begin: Callable[..., Trial], library: Any) -> Any:
    """One with the library imported, and an optimizer whose weights seem to lie on such a device."""
    import torch

    trial: Any = begin()
    trial.adapter.watches.xla.install(library)
    trial.adapter.watches.steps.devices.add("xla")
    weight = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([weight], lr=0.1)

    def update() -> None:
        weight.sum().backward()
        optimizer.step()

    trial.update = update
    return trial


@pytest.mark.parametrize("way", ["sync", "mark_step", "inner"])
def test_a_step_ends_at_the_sync_however_it_is_called(trial: Any, library: Any, way: str) -> None:
    sync = {"sync": library.sync, "mark_step": library.model.mark_step, "inner": library.inner.sync}[way]
    trial.update()
    assert trial.session.clock.total_steps == 0
    sync()
    assert trial.session.clock.total_steps == 1, "mark_step calls sync, and is one"
    sync()
    assert trial.session.clock.total_steps == 1
    trial.update()
    trial.update()
    sync()
    assert trial.session.clock.total_steps == 3


def test_in_eager_mode_it_ends_with_the_update(trial: Any, library: Any) -> None:
    library._XLAC.eager = True
    trial.update()
    assert trial.session.clock.total_steps == 1


def test_a_script_that_never_syncs_is_counted_and_told(trial: Any) -> None:
    for _ in range(100):
        trial.update()
    assert trial.session.clock.total_steps == 100 - 64
    assert any("never calls torch_xla.sync" in remark for remark in trial.end()["remarks"])


def test_what_the_runtime_counted_is_told(trial: Any, library: Any) -> None:
    trial.update()
    library.sync()
    library._XLAC.compiled = 3
    library._XLAC.counters = {"aten::_local_scalar_dense": 9, "aten::nonzero": 2}
    assert trial.adapter.activity() == 3
    facts = trial.end()
    assert trial.log.of("compile")[-1]["graphs"] == 3 and trial.log.of("compile")[-1]["seconds"] == 2.0
    assert any("9 values were read on the host in 1 steps" in remark for remark in facts["remarks"])
    assert any("XLA doesn't have aten::nonzero" in remark for remark in facts["remarks"])


def test_the_wait_for_data_leaves_out_what_the_device_computed_in(
    trial: Any, library: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr("time.perf_counter", lambda: now[0])
    xla = trial.adapter.watches.xla
    trial.update()
    library.sync()
    trial.session.clock.synchronize = lambda: None  # no block but those below
    xla.idle_of(0.0, 100.0)

    def idle(steps: int, lasted_s: float, backlog_s: float, waited_s: float) -> float:
        for _ in range(steps):
            trial.update()
            library.sync()
        now[0] += lasted_s
        return float(xla.idle_of(waited_s, now[0] - backlog_s))

    assert idle(10, lasted_s=1.0, backlog_s=0.02, waited_s=0.7) == pytest.approx(0.7), "it idled for 0.8 s at most"
    assert idle(10, lasted_s=1.0, backlog_s=0.06, waited_s=0.7) == pytest.approx(0.4)
    assert idle(10, lasted_s=1.0, backlog_s=0.5, waited_s=0.4) == 0.0, "it was busy all the time"


def test_a_process_for_each_chip_is_the_scripts_own(
    begin: Callable[..., Trial], library: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial: Any = begin()
    trial.adapter.watches.xla.install(library)
    assert library.pjrt.spawn(print)[0] is None, "on another device it is the script's own affair"
    from tuner.child import devices

    monkeypatch.setattr(trial.session, "device", devices.named("xla"))
    monkeypatch.setattr(trial.session, "measuring", False)
    trial.adapter.watches.xla.install(library)
    assert library.pjrt.spawn(print)[0] is None, "under autotune run it trains on all chips"
    monkeypatch.setattr(trial.session, "measuring", True)
    trial.adapter.watches.xla.install(library)
    assert library.pjrt.spawn(print, None, "spawn", (1,)) == (1, (1,))
    assert library.pjrt.spawn(print, args=(2,)) == (1, (2,))
    assert "the script asks for a process on each chip: it is studied with one" in trial.session.facts.remarks
