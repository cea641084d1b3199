"""What the verbs that list and probe print, by the command line itself on made-up machines, compared with the files
beside. What differs from machine to machine is made alike before.
"""

from __future__ import annotations

import json
import re
import textwrap
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support import fleet, made_up, worlds
from support.golden_files import check

from tuner.child.records import ProbeSide
from tuner.cli import devices, main, probe, record
from tuner.cli.study import write_files
from tuner.devices.abilities import Ability, Missing
from tuner.devices.frameworks import Framework, Lack
from tuner.export import EXPORTERS
from tuner.knowledge import Knowledge
from tuner.model import Config, Evidence, KnobReport, Measurement, Outcome, Value
from tuner.runner.replay import ReplayRunner
from tuner.search.structured import StructuredSampler
from tuner.study.run import run_study

SPACE = """
    from tuner.space import Knob, SearchSpace
    SPACE = SearchSpace("made-up", "none", (
        Knob("num_workers", lambda known: [0, 1, 2], "loader workers", ordered=True, loader=True),
        Knob("batch_size", lambda known: [32, 64], "batch", tier=3, ordered=True),
        Knob("compile", lambda known: ["default"], "compiler"),
    ))
"""
SIDES = {None: (100.0, 0.6), ProbeSide.COMPUTE: (250.0, 0.0), ProbeSide.LOADER: (160.0, 1.0)}
"""Samples per second of the real loop and of each side by itself, and the share of waiting in it."""


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Runs the command line and gives what it printed."""

    def run(*arguments: str) -> str:
        assert main(arguments) == 0
        return capsys.readouterr().out

    return run


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def studied(folder: str, stop: threading.Event, **changes: Any) -> None:
    """A study on a made-up machine, as the verb leaves it."""
    plan = worlds.plan(Path(folder), trials=10, **changes)
    world = worlds.World()

    def outcome_of(config: Config) -> Outcome:
        if len(world.runs) == 3 and folder == "stopped":
            stop.set()
        return world.outcome(config)

    result = run_study(plan, ReplayRunner(outcome_of), StructuredSampler(), lambda event: None, stop)
    write_files(result, EXPORTERS)


def test_the_studies(here: Path, said: Callable[..., str]) -> None:
    for folder in ("finished", "stopped"):
        studied(folder, threading.Event(), device=worlds.device(folder))
    (here / "torn").mkdir()
    (here / "torn" / "study.db").write_text("not a database, but long enough to be read as one" * 20)
    documents = json.loads(said("studies", "--json"))
    assert len(documents) == 3
    for document in documents:
        if "created" in document:
            assert document["created"] > 1.7e9
            document["created"] = 0.0
        if document.get("speedup"):
            document["speedup"] = round(document["speedup"], 6)
    check("studies.json", json.dumps(documents, indent=2).replace(str(here), "HERE") + "\n")
    check("studies.txt", _trimmed(said("studies").replace(str(here), "HERE")))


def test_the_waterfall(here: Path, said: Callable[..., str]) -> None:
    world = worlds.World(feed=300.0, compute=900.0)

    def outcome_of(config: Config) -> Outcome:
        outcome = world.outcome(config)
        if outcome.measurement is None:
            return outcome
        told = [KnobReport(k, v, 1, 1, _evidence(k)) for k, v in config.items() if k != "layout"]
        return replace(outcome, measurement=replace(outcome.measurement, knobs=(*outcome.measurement.knobs, *told)))

    plan = worlds.plan(Path("made-up"), trials=20)
    run_study(plan, ReplayRunner(outcome_of), StructuredSampler(), lambda event: None, threading.Event())
    check("waterfall.txt", _trimmed(said("trials", "made-up", "--waterfall", "--svg", "waterfall.svg")))
    check("waterfall.svg", Path("waterfall.svg").read_text(encoding="utf-8"))
    turns = json.loads(said("trials", "made-up", "--waterfall", "--json"))
    rounded = [{k: round(v, 6) if isinstance(v, float) else v for k, v in turn.items()} for turn in turns]
    check("waterfall.json", json.dumps(rounded, indent=2) + "\n")


def test_the_devices(said: Callable[..., str]) -> None:
    """The processor, which every machine has."""
    document = json.loads(said("devices", "--json"))
    [cpu] = [device for device in document["devices"] if device["kind"] == "cpu"]
    assert cpu["name"] == cpu["uuid"] and cpu["memory_bytes"] > 2**28
    assert cpu["frameworks"]["torch"].startswith("2.")
    alike = {"name": "NAME", "uuid": "NAME", "memory_bytes": 0, "frameworks": {"torch": "2.0"}, "energy_unknown": {}}
    check("devices.json", json.dumps({**cpu, **alike}, indent=2) + "\n")
    assert all({"kind", "why", "command"} == set(each) for each in document["missing"])


@pytest.fixture
def made_up_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """A card that no framework here can use, beside a processor."""
    torch, jax = Framework("torch", "2.13.0+cpu"), Framework("jax", "0.10.2")
    host = {"host": "this machine shows no counters of its energy (RAPL), as most virtual machines"}
    found = [
        Ability(fleet.CARD, (), {**host, "device": "NVML doesn't count that of this card"}),
        Ability(fleet.CPU, (torch, jax), host),
    ]
    lacks = [
        Missing("cuda", Lack("torch 2.13.0+cpu is built without CUDA", "pip install --force-reinstall torch==2.13.0")),
        Missing("cuda", Lack("jax 0.10.2 has no plugin for CUDA", "pip install 'jax[cuda12]==0.10.2'")),
        Missing("tpu", Lack("no TPU is on the PCI bus")),
    ]
    monkeypatch.setattr(devices, "abilities", lambda: found)
    monkeypatch.setattr(devices, "missing", lambda given: lacks if given is found else [])


def test_devices_and_what_is_missing(said: Callable[..., str], made_up_devices: None) -> None:
    check("devices.txt", _trimmed(said("devices")))
    check("devices_missing.json", said("devices", "--json"))


def test_devices_side_by_side(here: Path, said: Callable[..., str]) -> None:
    (here / "best.json").write_bytes(fleet.content(fleet.ON_CPU, fleet.ON_CARD))
    (here / "prices.toml").write_text('[prices]\n"Imaginary CPU, 4 cores" = 0.2\n"Imaginary GPU" = 3.2\n')
    check("compare.txt", _trimmed(said("compare", "best.json", "--prices", "prices.toml")))
    check("compare.json", said("compare", "best.json", "--prices", "prices.toml", "--json"))


def test_what_cannot_be_compared(here: Path, said: Callable[..., str]) -> None:
    """Of other studies, of an earlier version, unproven, edited; a price that was mistyped, and none."""
    other = replace(made_up.SCRIPT, argv=("--epochs", "9"), sha256="cd" * 32)
    elsewhere = fleet.of(replace(fleet.CARD, uuid="GPU-7"), study={"script": other}, winner=made_up.KEEP)
    unproven = fleet.of(replace(fleet.CPU, name="Another CPU", uuid="Another CPU"), study={"cores": 8}, winner=None)
    Path("a").mkdir()
    Path("a/best.json").write_bytes(fleet.content(fleet.ON_CPU, elsewhere, unproven))
    [entry] = json.loads(fleet.content(fleet.ON_CARD))["profiles"]
    del entry["energy_unknown"], entry["baseline"]["energy"], entry["winner"]["energy"]
    Path("b.json").write_text(json.dumps({"schema": 1, "profiles": [{**entry, "runs": 99}]}))
    Path("study.toml").write_text('[study]\nscript = "train.py"\n[prices]\n"Imaginery GPU" = 3.2\n')
    check("compare_unlike.txt", _trimmed(said("compare", "a", "b.json")))


class Sides(ReplayRunner):
    """A machine on which each side of the loop has a rate of its own."""

    def __init__(self) -> None:
        super().__init__(self._measured)

    def _measured(self, config: Config) -> Outcome:
        rate, wait = SIDES[self.requests[-1].probe]
        outcome = worlds.measured(rate, wait)
        written = {"num_workers": 0, "batch_size": 64}
        knowledge = Knowledge(
            as_written=written, left_out={"compile": "the script calls torch.compile itself"},
            training_loaders=("train.py:7#0",),
            remarks=("the training step was traced anew 19 times in 20 steps",),
        )  # fmt: skip
        size = int(config.get("batch_size", 64))
        measurement = replace(_of(outcome), steps_per_s=rate / 64 * (64 / size) ** 0.25)
        return replace(outcome, knowledge=knowledge, measurement=measurement)


def _of(outcome: Outcome) -> Measurement:
    assert outcome.measurement is not None
    return outcome.measurement


def test_a_probe(
    here: Path,
    said: Callable[..., str],
    install: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    install("made_up_space", SPACE, search_spaces="made-up = made_up_space:SPACE")
    monkeypatch.setattr(probe, "ProcessRunner", Sides)
    (here / "train.py").write_text("")
    command = ("probe", "train.py", "--device", "cpu", "--space", "made-up", "--study", "s", "--max-memory", "1GiB")
    check("probe.txt", said(*command))
    document = json.loads(said(*command, "--json"))
    document["overhead_share"] = round(document["overhead_share"], 6)
    check("probe.json", json.dumps(document, indent=2) + "\n")


def _evidence(knob: str) -> Evidence:
    return Evidence.UNVERIFIABLE if knob == "precision" else Evidence.VERIFIED


def _trimmed(text: str) -> str:
    return "".join(f"{line.rstrip()}\n" for line in text.splitlines())


def test_the_recording(here: Path, said: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "space.py").write_text(textwrap.dedent(SPACE))
    (here / "train.py").write_text("")
    rates = {0: 100.0, 1: 130.0, 2: 180.0}

    def outcome_of(config: Config) -> Outcome:
        if config.get("batch_size") == 64 and config.get("num_workers") == 2:
            return worlds.infeasible("host-oom")
        outcome = worlds.measured(rates[int(config.get("num_workers", 0))], 0.3)
        as_written: dict[str, Value] = {"num_workers": 0, "batch_size": 32, "compile": "off"}
        return replace(outcome, knowledge=Knowledge(as_written=as_written, framework="none", effective_batch="free"))

    monkeypatch.setattr(record, "ProcessRunner", lambda: ReplayRunner(outcome_of))
    text = said(
        "record", "train.py", "--out", "grid.jsonl.gz", "--space", "space.py", "--trust", "--device", "cpu",
        "--no-probe", "--knobs", "-compile", "--configs", "4",
    )  # fmt: skip
    check("record.txt", re.sub(r"\d+ (B|KiB), recorded", "N B, recorded", text))
