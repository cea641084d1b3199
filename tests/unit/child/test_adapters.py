"""A framework is added by a class and a line in the list: shown with one that nobody has, and tuner/ stays as it is."""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType

import pytest
from support.in_process import Log, session_of

from tuner.child import hooks
from tuner.child.adapter import Adapter, Library
from tuner.child.adapters import ADAPTERS
from tuner.child.files import Overlay
from tuner.child.patches import patch, unpatch_all
from tuner.child.session import Session
from tuner.child.sources import DataSource, TrainingSources

LIBRARY = """
__version__ = "2.3.1+cpu"
momentum = 0.5
seed = None

def fetch(size):
    return [0.0] * size

def step(batch):
    return sum(batch)

def save(path):
    return path
"""
WINDOW = {"warmup_steps": 1, "warmup_s": 0.0, "block_s": 0.0, "min_blocks": 10**9, "min_s": 1e9, "max_s": 1e9}


class TinyAdapter(Adapter):
    """Of the library ``tinyflow``, whose one knob is its momentum."""

    framework = "tinyflow"
    module: ModuleType

    def __init__(self, session: Session) -> None:
        self.session = session
        known = session.request.knowledge.training_loaders
        self.sources: TrainingSources[DataSource] = TrainingSources(session.clock, known, lambda: True)
        self.source = self.sources.add(DataSource("fetch#0", "fetch"))
        self.blocks = 0

    @property
    def libraries(self) -> Mapping[str, Library]:
        return {
            "tinyflow": Library(self.install, is_framework=True, oldest=(2, 0), seed=_seed, divert=_divert),
            "tinyflow_extras": Library(lambda module: self.session.note("extras are here")),
        }

    def install(self, module: ModuleType) -> None:
        self.module = module
        if self.session.knobs.wants("momentum"):
            module.momentum = self.session.knobs.requested["momentum"]  # type: ignore[attr-defined]  # the made-up one
        patch(module, "fetch", self._fetch)
        patch(module, "step", self._step)

    def _fetch(self, original: Callable[[int], list[float]]) -> Callable[[int], list[float]]:
        def fetch(size: int) -> list[float]:
            self.sources.fetch_begins(self.source)
            batch = original(size)
            self.sources.fetched(self.source, len(batch), 0.0)
            return batch

        return fetch

    def _step(self, original: Callable[[list[float]], float]) -> Callable[[list[float]], float]:
        def step(batch: list[float]) -> float:
            loss = original(batch)
            self.sources.gradient_ran()
            self.session.step(self.framework)
            return loss

        return step

    def on_block(self) -> None:
        self.blocks += 1

    def observe(self) -> None:
        facts = self.session.facts
        facts.framework, facts.unit = self.framework, "samples"
        facts.training_loaders = [source.key for source in self.sources.training()]
        facts.as_written.update(batch_size=self.source.usual_size, momentum=0.5)
        if "momentum" in self.session.request.config:
            self.session.knobs.compare("momentum", self.module.momentum)


def _seed(shift: int, module: ModuleType) -> None:
    module.seed = shift  # type: ignore[attr-defined]  # the made-up one


def _divert(overlay: Overlay, module: ModuleType) -> None:
    patch(module, "save", lambda original: lambda path: original(overlay.for_writing(path)))


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The library, not yet imported; whatever its import does is undone."""
    (tmp_path / "tinyflow.py").write_text(LIBRARY)
    (tmp_path / "tinyflow_extras.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(hooks, "ADAPTERS", [*ADAPTERS, TinyAdapter])
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    yield tmp_path
    unpatch_all()
    for name in ("tinyflow", "tinyflow_extras"):
        sys.modules.pop(name, None)


def _begin(config: Mapping[str, object], *, divert_to: Path | None = None, **request: object) -> tuple[Session, Log]:
    log = Log()
    session = session_of({"config": dict(config), "window": WINDOW, "folder": str(divert_to or ""), **request}, log)
    hooks.install(session, None if divert_to is None else Overlay(session))
    return session, log


def test_its_steps_are_counted_and_its_knob_is_reported(library: Path) -> None:
    (library / "out.pt").write_text("the user's")
    time.sleep(0.02)  # file systems stamp to a few milliseconds
    session, log = _begin({"momentum": 0.75}, divert_to=library / "trial", seed=7)
    tinyflow = importlib.import_module("tinyflow")
    importlib.import_module("tinyflow_extras")
    assert (tinyflow.momentum, tinyflow.seed) == (0.75, 7)
    assert tinyflow.save(str(library / "out.pt")).startswith(str(library / "trial"))
    for _ in range(5):
        tinyflow.step(tinyflow.fetch(16))
    session.finish(complete=False)
    assert session.trained_by == "tinyflow"
    assert [r["name"] for r in log.of("framework")] == ["tinyflow"]
    assert (session.clock.total_steps, session.clock.total_samples) == (5, 80)
    (report,) = log.of("knob")
    assert (report["knob"], report["evidence"], report["observed"]) == ("momentum", "verified", 0.75)
    (facts,) = log.of("facts")
    assert (facts["framework"], facts["training_loaders"], facts["steps"]) == ("tinyflow", ["fetch#0"], 5)
    assert facts["as_written"] == {"batch_size": 16, "momentum": 0.5}
    assert "extras are here" in [r["text"] for r in log.of("note")]


def test_a_knob_that_the_script_sets_back_is_contradicted_and_one_of_an_argument_is_not(library: Path) -> None:
    for knowledge, evidence in (({}, "contradicted"), ({"placeholders": ["momentum"]}, "unverifiable")):
        sys.modules.pop("tinyflow", None)
        session, log = _begin({"momentum": 0.75}, knowledge=knowledge)
        tinyflow = importlib.import_module("tinyflow")
        vars(tinyflow)["momentum"] = 0.25
        tinyflow.step(tinyflow.fetch(4))
        session.finish(complete=False)
        assert [r["evidence"] for r in log.of("knob")] == [evidence]
        sys.meta_path.pop(0)


def test_it_stands_aside_where_another_framework_trains(library: Path) -> None:
    session, log = _begin({"momentum": 0.75}, knowledge={"framework": "torch"})
    tinyflow = importlib.import_module("tinyflow")
    tinyflow.step(tinyflow.fetch(4))
    session.finish(complete=False)
    assert tinyflow.momentum == 0.5
    assert session.clock.total_steps == 0
    assert log.of("knob") == []


def test_a_version_that_was_never_tried_is_left_alone_and_told_of(library: Path) -> None:
    (library / "tinyflow.py").write_text(LIBRARY.replace("2.3.1+cpu", "1.9"))
    session, log = _begin({"momentum": 0.75})
    tinyflow = importlib.import_module("tinyflow")
    assert tinyflow.step(tinyflow.fetch(4)) == 0.0
    assert tinyflow.momentum == 0.5
    assert session.clock.total_steps == 0
    assert [r["text"] for r in log.of("note")] == [
        "tinyflow could not be instrumented: RuntimeError: tinyflow 1.9 is older than 2.0"
    ]
