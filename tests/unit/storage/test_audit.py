"""Stored figures are held against the raw records they came from."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support import worlds
from support.ran import Ran

from tuner.analysis.measurement import Beside, measurement_of
from tuner.child.records import ChildRequest, ProbeSide, Window
from tuner.child.wire import encode_request
from tuner.model import BASELINE, TOOK_THE_STUDY_DOWN, Config, Measurement, Outcome, OutcomeKind, Phase, Trial
from tuner.storage.audit import Audit, audit
from tuner.storage.codec import encode_outcome
from tuner.storage.database import Repository, TrialRecord
from tuner.storage.folder import RECORDS, REFERENCE, REFERENCE_RESOURCES, RESOURCES, trial_numbers
from tuner.storage.records import read_records, read_resources
from tuner.storage.studies import read_study


def stored_trial(folder: Path) -> Trial:
    """A trial with raw records of twelve blocks."""
    raw = folder / "trials" / "0000"
    raw.mkdir(parents=True)
    records = [{"v": 1, "t": 0.0, "kind": "facts", "unit": "samples"}]
    records += [
        {"v": 1, "t": 1.0 + n, "kind": "block", "phase": "window", "steps": 4, "samples": 64.0 + n, "seconds": 1.0,
         "wait_s": 0.1, "flagged": False}
        for n in range(12)
    ]  # fmt: skip
    records.append({"v": 1, "t": 14.0, "kind": "window", "complete": True, "why": ""})
    (raw / "records.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    card = {"celsius": 61, "reasons": 4, "tells_shares": True, "processes": [[7, 100, 12.5, True]]}
    samples = [
        {"t": float(t), "rss": 1000, "pss": 800, "cpu_s": t * 1.5, "busy_s": t * 1.6, "steal_s": t * 0.05,
         "card": {"sm_mhz": 1700 + t, **card}}
        for t in range(14)
    ]  # fmt: skip
    (raw / "resources.jsonl").write_text("".join(json.dumps(sample) + "\n" for sample in samples))
    measurement = measurement_of(read_records(raw / "records.jsonl"), read_resources(raw / "resources.jsonl"))
    assert measurement is not None
    return Trial(0, Phase.BASELINE, BASELINE, "", Outcome(OutcomeKind.COMPLETE, measurement=measurement))


def different(folder: Path, trials: list[Trial]) -> list[str]:
    return audit(folder, trials).different


def test_figures_follow_from_the_records(tmp_path: Path) -> None:
    assert different(tmp_path, [stored_trial(tmp_path)]) == []


def test_a_changed_figure_is_found(tmp_path: Path) -> None:
    trial = stored_trial(tmp_path)
    assert trial.outcome is not None and trial.outcome.measurement is not None
    assert trial.outcome.measurement.card is not None
    cooler = replace(trial.outcome.measurement.card, hottest_celsius=40.0)
    changed = replace(trial.outcome.measurement, rate=1e6, stolen_cpus=0.0, card=cooler)
    lines = different(tmp_path, [replace(trial, outcome=replace(trial.outcome, measurement=changed))])
    assert [line.split()[2] for line in lines] == ["rate", "stolen_cpus", "card"]
    assert "rate is 1000000.0" in lines[0]


def test_the_last_digits_are_the_machines(tmp_path: Path) -> None:
    """Another machine's logarithms round otherwise, as seen of a study that was carried to one."""
    trial = stored_trial(tmp_path)
    assert trial.outcome is not None and trial.outcome.measurement is not None
    measurement = trial.outcome.measurement
    block = replace(measurement.blocks[0], wait_s=math.nextafter(measurement.blocks[0].wait_s, 1))
    near = replace(
        measurement, low=math.nextafter(measurement.low, 0), metrics={"accuracy": math.nan},
        blocks=(block, *measurement.blocks[1:]),
    )  # fmt: skip
    assert [line.split(" is ")[0] for line in different(tmp_path, [with_figures(trial, near)])] == ["trial 0: metrics"]
    further = replace(near, metrics={}, high=measurement.high * (1 + 1e-8))
    assert [line.split(" is ")[0] for line in different(tmp_path, [with_figures(trial, further)])] == ["trial 0: high"]


def with_figures(trial: Trial, measurement: Measurement) -> Trial:
    assert trial.outcome is not None
    return replace(trial, outcome=replace(trial.outcome, measurement=measurement))


def test_a_memory_that_an_earlier_version_took_for_none_is_no_difference(tmp_path: Path) -> None:
    trial = stored_trial(tmp_path)
    assert trial.outcome is not None and trial.outcome.measurement is not None
    for peak, found in ((0, 0), (7, 1)):
        changed = replace(trial.outcome.measurement, peak_device_bytes=peak)
        stored = replace(trial, outcome=replace(trial.outcome, measurement=changed))
        assert len(different(tmp_path, [stored])) == found


def by_turns(folder: Path) -> Measurement:
    """A trial whose blocks are turns, with the script as written between them, and others on a third of two cores."""
    raw = folder / "trials" / "0000"
    raw.mkdir(parents=True)
    for name, first in (("records", 1), ("reference", 2)):
        blocks = [
            {"v": 1, "t": n + 0.5, "kind": "block", "phase": "window", "steps": 4, "samples": 64.0 + n, "seconds": 0.5,
             "wait_s": 0.0, "flagged": False, "turn": n}
            for n in range(first, 24, 2)
        ]  # fmt: skip
        end = {"v": 1, "t": 25.0, "kind": "window", "complete": True, "why": ""}
        (raw / f"{name}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in [*blocks, end]))
        samples = [{"t": t / 2, "cpu_s": t / 4, "busy_s": t / 4 + t / 3, "cores": 2} for t in range(52)]
        resources = "resources.jsonl" if name == "records" else "reference-resources.jsonl"
        (raw / resources).write_text("".join(json.dumps(sample) + "\n" for sample in samples))
    beside = Beside(read_records(raw / REFERENCE), read_resources(raw / REFERENCE_RESOURCES))
    found = measurement_of(read_records(raw / RECORDS), read_resources(raw / RESOURCES), beside)
    assert found is not None
    return found


def test_what_others_had_of_the_other_side_is_checked_where_it_was_stored(tmp_path: Path) -> None:
    measured = by_turns(tmp_path)
    assert measured.reference is not None and measured.reference.foreign_cpus
    trial = Trial(0, Phase.SEARCH, Config(threads=1), "", Outcome(OutcomeKind.COMPLETE, measurement=measured))
    for foreign, found in ((measured.reference.foreign_cpus, 0), (None, 0), (0.0, 1)):  # earlier versions knew none
        stored = replace(measured, reference=replace(measured.reference, foreign_cpus=foreign))
        assert len(different(tmp_path, [with_figures(trial, stored)])) == found
    for share, found in ((None, 0), (0.9, 1)):
        stored = replace(measured, reference=replace(measured.reference, own_share=share))
        assert len(different(tmp_path, [with_figures(trial, stored)])) == found
    other = replace(measured, reference=replace(measured.reference, foreign_cpus=None, rate=1.0))
    assert len(different(tmp_path, [with_figures(trial, other)])) == 1


def test_changed_and_missing_records_are_found(tmp_path: Path) -> None:
    trial = stored_trial(tmp_path)
    records = tmp_path / "trials" / "0000" / "records.jsonl"
    records.write_text(records.read_text().replace('"samples": 70.0', '"samples": 700.0'))
    assert any("rate" in line for line in different(tmp_path, [trial]))
    records.unlink()
    assert "records" in different(tmp_path, [trial])[0]


def with_files(folder: Path, trial: Trial, **asked: Any) -> Trial:
    """The trial, with the request and the outcome that its folder holds in truth."""
    raw = folder / "trials" / "0000"
    values = {"config": dict(trial.config), "seed": trial.seed, **asked}
    (raw / "request.json").write_text(encode_request(replace(ChildRequest(), **values)))
    assert trial.outcome is not None
    (raw / "outcome.json").write_text(encode_outcome(trial.outcome))
    return trial


def test_an_honest_trial_is_checked_to_the_last(tmp_path: Path) -> None:
    trial = with_files(tmp_path, replace(stored_trial(tmp_path), config=Config(a=1, b="x"), seed=3))
    assert audit(tmp_path, [trial]) == Audit()


@pytest.mark.parametrize(
    "changed",
    [
        Outcome(OutcomeKind.INFEASIBLE, "script-raised"), Outcome(OutcomeKind.CRASHED, "signal-kill"),
        Outcome(OutcomeKind.TIMED_OUT, "deadline"), Outcome(OutcomeKind.INFEASIBLE, "host-oom"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("written_too", [False, True])
def test_a_run_that_was_turned_into_a_failure_is_found(tmp_path: Path, changed: Outcome, written_too: bool) -> None:
    trial = with_files(tmp_path, stored_trial(tmp_path))
    turned = replace(trial, outcome=changed)
    if written_too:
        with_files(tmp_path, turned)
    lines = different(tmp_path, [turned])
    assert any("its records are those of a complete one" in line for line in lines)
    assert any("outcome.json says" in line for line in lines) is not written_too


def test_a_failure_that_was_turned_into_a_success_is_found(tmp_path: Path) -> None:
    trial = with_files(tmp_path, stored_trial(tmp_path))
    records = tmp_path / "trials" / "0000" / "records.jsonl"
    failure = {"v": 1, "t": 3.0, "kind": "failure", "reason": "nan", "detail": "loss"}
    records.write_text(records.read_text() + json.dumps(failure) + "\n")
    assert different(tmp_path, [trial]) == ["trial 0: it is complete, its records tell of nan"]
    assert trial.outcome is not None
    failed = replace(trial, outcome=replace(trial.outcome, kind=OutcomeKind.INFEASIBLE, reason="nan"))
    assert different(tmp_path, [with_files(tmp_path, failed)]) == []


def test_what_was_over_a_limit_is_infeasible_with_a_figure(tmp_path: Path) -> None:
    trial = stored_trial(tmp_path)
    assert trial.outcome is not None
    over = replace(trial, outcome=replace(trial.outcome, kind=OutcomeKind.INFEASIBLE, reason="host-oom"))
    assert different(tmp_path, [with_files(tmp_path, over)]) == []


@pytest.mark.parametrize(
    ("asked", "name"),
    [({"config": {"a": 2}}, "config"), ({"config": {}}, "config"), ({"config": {"a": True}}, "config"),
     ({"seed": 4}, "seed"), ({"probe": ProbeSide.LOADER}, "side"),
     ({"window": replace(Window(), until_samples=64)}, "samples")],
)  # fmt: skip
def test_a_run_of_something_else_is_found(tmp_path: Path, asked: dict[str, Any], name: str) -> None:
    trial = replace(stored_trial(tmp_path), config=Config(a=1), seed=3, samples=128 if name == "samples" else None)
    [line] = different(tmp_path, [with_files(tmp_path, trial, **asked)])
    assert line.startswith(f"trial 0: its {name} is ")


def test_what_is_gone_is_said_to_be_unchecked(tmp_path: Path) -> None:
    failed = Trial(5, Phase.FINALS, Config(a=1), outcome=Outcome(OutcomeKind.CRASHED, "x"), round=1)
    found = audit(tmp_path, [failed])
    assert found.different == []
    assert [*found.unchecked.values()] == [[5]] * 3
    old = audit(tmp_path, [stored_trial(tmp_path)])
    assert old.different == [] and len(old.unchecked) == 2, "its figures follow; what it was asked isn't known"


def test_figures_that_were_taken_out_are_found(tmp_path: Path) -> None:
    """A run of the finals without figures would leave its round out of the proof."""
    trial = stored_trial(tmp_path)
    assert trial.outcome is not None
    without = with_files(tmp_path, replace(trial, outcome=replace(trial.outcome, measurement=None)))
    assert different(tmp_path, [without]) == ["trial 0: it has no figures, its records give some"]
    (tmp_path / "trials" / "0000" / "records.jsonl").write_text('{"v": 1, "t": 0.0, "kind": "facts"}\n')
    assert different(tmp_path, [without]) == ["trial 0: it is complete, its records give no figures"]


def test_what_took_the_study_down_may_have_been_through(tmp_path: Path) -> None:
    crashed = Outcome(OutcomeKind.CRASHED, TOOK_THE_STUDY_DOWN, "the study died with it 3 times")
    trial = replace(stored_trial(tmp_path), outcome=crashed)
    (tmp_path / "trials" / "0000" / "request.json").write_text(encode_request(ChildRequest()))
    assert different(tmp_path, [trial]) == []


def test_trials_that_were_taken_out_are_found(tmp_path: Path) -> None:
    trial = with_files(tmp_path, stored_trial(tmp_path))
    assert audit(tmp_path, [trial], [0, 1]).different == [], "one waits to be run again"
    gone = "the database doesn't have it any more"
    assert audit(tmp_path, [trial], [0, 2]).different == [f"trial 1: {gone}"]
    for name in ("0003", "0000.disturbed", "probe"):
        (tmp_path / "trials" / name).mkdir()
    begun = trial_numbers(tmp_path)
    assert audit(tmp_path, [trial], [0, 2], begun).different == [f"trial 1: {gone}", f"trial 3: {gone}"]


def test_a_trial_that_begins_while_a_study_is_checked_was_not_taken_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its folder is younger than what was read of the database."""
    Ran(worlds.plan(tmp_path, trials=1), worlds.World().outcome)
    records = Repository.records

    def read(repository: Repository, study_id: int) -> tuple[TrialRecord, ...]:
        known = records(repository, study_id)
        (tmp_path / "trials" / f"{len(known):04d}").mkdir(parents=True)
        return known

    monkeypatch.setattr(Repository, "records", read)
    stored = read_study(tmp_path)
    found = audit(stored.folder, (), stored.numbers, stored.begun)
    assert found.different == []
