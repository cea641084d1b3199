"""JSON says what it holds: one set of keys for a measurement wherever it is shown, in the unit that it names."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from support import made_up, worlds
from support.ran import Ran

from tuner.analysis.gain import BaselineTrack
from tuner.analysis.waterfall import waterfall
from tuner.cli import main
from tuner.documents import measurement_document
from tuner.export import PROFILE
from tuner.model import Measurement, Outcome, Phase, Ratio, Reference
from tuner.objective import RATE, Objective, amortised
from tuner.report.bottleneck import ProbeReport
from tuner.report.trials import TrialsReport
from tuner.report.waterfall import documents

IN_STEPS = made_up.measured(40.0, unit="steps", steps_per_s=40.0)
MEMORY = """
    from tuner.objective import Objective
    OBJECTIVE = Objective("peak memory", "bytes", False, lambda measurement: measurement.peak_host_bytes)
"""


def measurements(measurement: Measurement) -> Iterator[tuple[str, dict[str, Any]]]:
    """The same measurement in everything that holds one, place → document."""
    trial = replace(made_up.BASELINE, outcome=replace(made_up.BASELINE.outcome, measurement=measurement))  # type: ignore[type-var]
    content = PROFILE.serialize(replace(made_up.RESULT, trials=(trial,), winner=None), None)
    yield "best.json", json.loads(content or b"")["profiles"][0]["baseline"]
    yield "trials", TrialsReport([trial], RATE).documents()[0]["measurement"]
    yield "waterfall", documents(waterfall([trial], BaselineTrack([trial], RATE)))[0]
    probed = ProbeReport(made_up.BOTTLENECK, {"the real loop": measurement}, None, (), (), {}, "probe")
    yield "probe", probed.document()["runs"][0]["measurement"]


def test_trials_and_probe_show_every_field_of_a_measurement_in_best_json() -> None:
    found = dict(measurements(made_up.FASTER))
    assert found["trials"].keys() == found["probe"].keys() == found["best.json"].keys() - {"based_on"}
    assert all(found["trials"][key] == found["best.json"][key] for key in found["trials"])


def test_no_figure_of_a_measurement_is_left_out() -> None:
    raw = {"blocks", "losses", "gradient", "weights", "first_metrics", "notes"}
    shown = measurement_document(made_up.FASTER).keys()
    assert shown - {"samples_per_s"} == {field.name for field in fields(Measurement)} - raw


@pytest.mark.parametrize("place", ["best.json", "trials", "probe"])
def test_what_a_trial_by_turns_is_held_against_is_shown(place: str) -> None:
    """``trials --json`` ended with a fault of its own wherever trials had taken turns."""
    by_turns = replace(made_up.FASTER, turns=24, reference=Reference(1000.0, Ratio(1.5, 1.4, math.inf), 12, 0.3, 0.4))
    found = dict(measurements(by_turns))[place]["reference"]
    assert found.pop("gain") == {"ratio": 1.5, "low": 1.4, "high": None}
    assert found == {"rate": 1000.0, "pairs": 12, "foreign_cpus": 0.3, "own_share": 0.4}


@pytest.mark.parametrize("place", ["best.json", "trials", "waterfall", "probe"])
def test_a_rate_is_in_its_unit_and_samples_are_null_where_steps_were_counted(place: str) -> None:
    in_samples, in_steps = dict(measurements(made_up.measured(1204.0)))[place], dict(measurements(IN_STEPS))[place]
    assert (in_samples["rate"], in_samples["unit"], in_samples["samples_per_s"]) == (1204.0, "samples", 1204.0)
    assert (in_steps["rate"], in_steps["unit"], in_steps["samples_per_s"]) == (40.0, "steps", None)
    assert in_steps["low"] < in_steps["rate"] < in_steps["high"]
    assert (in_samples["steps_per_s"], in_steps["steps_per_s"]) == (1204.0 / 32, 40.0)


def test_what_is_no_finite_number_is_null() -> None:
    document = measurement_document(made_up.measured(1.0, high=math.inf, metrics={"accuracy": math.nan}))
    assert document["high"] is None and document["metrics"] == {"accuracy": None}
    json.dumps(document, allow_nan=False)


def heavy(config: Any) -> Outcome:
    """A worker doubles the memory."""
    outcome = worlds.World().outcome(config)
    if outcome.measurement is None:
        return outcome
    taken = 2**28 * (1 + int(config.get("workers", 0)))
    return replace(outcome, measurement=replace(outcome.measurement, peak_host_bytes=taken))


def study(folder: Path, objective: Objective) -> None:
    Ran(worlds.plan(folder, objective=objective, trials=4, finals_rounds=3), heavy)


@pytest.fixture
def memory(install: Callable[..., None]) -> Objective:
    """An objective that is better when it is lower, installed as ``frugal``."""
    install("made_up_objective", MEMORY, objectives="frugal = made_up_objective:OBJECTIVE")
    return Objective("peak memory", "bytes", False, lambda m: m.peak_host_bytes, source="frugal")


def listed(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    assert main(["trials", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_gains_follow_the_objective_of_the_study(
    tmp_path: Path, memory: Objective, capsys: pytest.CaptureFixture[str]
) -> None:
    study(tmp_path / "s", memory)
    trials = listed(capsys, str(tmp_path / "s"))
    searched = [t for t in trials if t["phase"] == Phase.SEARCH and t["config"].get("workers")]
    assert searched and all(t["measurement"]["rate"] > trials[0]["measurement"]["rate"] for t in searched)
    for trial in searched:
        workers = trial["config"]["workers"]
        assert trial["score"] == trial["measurement"]["peak_host_bytes"] == 2**28 * (1 + workers)
        assert trial["gain"] == pytest.approx(1 / (1 + workers)), "it takes more memory, so that it is worse"
    assert main(["trials", str(tmp_path / "s")]) == 0
    assert "peak memory" in capsys.readouterr().out.splitlines()[0]
    [turn] = listed(capsys, str(tmp_path / "s"), "--waterfall")
    assert turn["trial"] == 0, "by its memory no config is better than the script as written"


def test_gains_compare_rates_where_the_objective_is_gone_and_that_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study(tmp_path / "s", Objective("peak memory", "bytes", False, lambda m: m.peak_host_bytes, source="uninstalled"))
    assert main(["trials", str(tmp_path / "s"), "--json"]) == 0
    said = capsys.readouterr()
    assert "peak memory" in said.err and "uninstalled" in said.err
    trials = json.loads(said.out)
    assert {trial["objective"] for trial in trials} == {"rate"}
    assert all(trial["score"] == trial["measurement"]["rate"] for trial in trials)


def test_an_amortised_objective_is_loaded_again(
    tmp_path: Path, memory: Objective, capsys: pytest.CaptureFixture[str]
) -> None:
    """``--planned-samples`` charges the start: the gain of a single trial is lower than that of its rate."""
    throughput = replace(worlds.OBJECTIVE, source="throughput")
    study(tmp_path / "s", amortised(throughput, 1000))
    baseline, faster, *_ = listed(capsys, str(tmp_path / "s"))
    assert baseline["objective"] == "throughput over 1000 samples"
    of_rates = faster["measurement"]["rate"] / baseline["measurement"]["rate"]
    assert 1.0 < faster["gain"] < of_rates
    assert faster["score"] == pytest.approx(1000 / (1.0 + 1000 / faster["measurement"]["rate"]))
