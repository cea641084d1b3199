"""A measurement is derived from raw records: which blocks count, and what else the records say."""

from __future__ import annotations

import math
from typing import Any

import pytest
from support.entries import entries_of, records_of

from tuner.analysis.measurement import knob_reports, knowledge_of, measurement_of
from tuner.analysis.resources import CardReading, ResourceSample
from tuner.child.records import Knowledge
from tuner.model import Evidence, FirstGradient

Record = dict[str, Any]


def block(t: float, samples: float = 50.0, phase: str = "window", **fields: Any) -> Record:
    return {
        "kind": "block", "t": t, "phase": phase, "steps": 5, "samples": samples, "seconds": 0.5,
        "wait_s": 0.1, "flagged": False, **fields,
    }  # fmt: skip


def blocks(count: int, samples: float = 50.0, *, start: float = 10.0, **fields: Any) -> list[Record]:
    return [block(start + 0.5 * i, samples, **fields) for i in range(count)]


DONE: Record = {"kind": "window", "t": 99.0, "complete": True, "why": ""}


def test_the_window_is_what_counts() -> None:
    records = [*blocks(8, 10.0, start=1.0, phase="warmup"), *blocks(20), DONE]
    measurement = measurement_of(entries_of(records), [])
    assert measurement is not None
    assert measurement.rate == pytest.approx(100)
    assert measurement.low <= 100 <= measurement.high
    assert measurement.steps_per_s == pytest.approx(10)
    assert measurement.data_wait_share == pytest.approx(0.2)
    assert measurement.unit == "samples"
    assert len(measurement.blocks) == 20
    assert measurement.steady


def test_samples_that_turned_out_to_be_none_are_steps() -> None:
    """What a loop's model was given looked like its samples at first: the last word is that of the facts."""
    facts: Record = {"kind": "facts", "t": 1.0, "unit": "steps"}
    measurement = measurement_of(entries_of([*blocks(20), facts, DONE]), [])
    assert measurement is not None
    assert measurement.unit == "steps"
    assert measurement.rate == pytest.approx(10)


def test_a_wait_that_nothing_shows_is_not_told_as_none() -> None:
    unseen: Record = {"kind": "facts", "t": 1.0, "wait_is_unseen": True}
    measurement = measurement_of(entries_of([*blocks(20, wait_s=0.0), unseen, DONE]), [])
    assert measurement is not None
    assert measurement.data_wait_share is None


def test_skipped_steps_and_the_first_gradient_are_read() -> None:
    scaler = {"steps": 80, "skipped": 9, "late_steps": 60, "late_skipped": 6}
    gradient = {"norm": "inf", "samples": 64, "exact": True, "random": False, "inputs": [[1024, 3.5]]}
    records = [*blocks(20), {"kind": "facts", "t": 1.0, "gradient_scaler": scaler}, DONE]
    measurement = measurement_of(entries_of([*records, {"kind": "gradient", "t": 2.0, **gradient}]), [])
    assert measurement is not None
    assert (measurement.scaled_steps, measurement.skipped_steps, measurement.skip_share) == (60, 6, 0.1)
    assert measurement.gradient == FirstGradient(math.inf, 64.0, True, False, ((1024.0, 3.5),))
    without = measurement_of(entries_of([*blocks(20), DONE]), [])
    assert without is not None
    assert (without.skip_share, without.gradient) == (0.0, None)


def test_a_window_that_a_recompilation_ended_does_not_count() -> None:
    records = [*blocks(10, 5.0), *blocks(4, 1.0, phase="warmup"), *blocks(12), DONE]
    measurement = measurement_of(entries_of(records), [])
    assert measurement is not None
    assert measurement.rate == pytest.approx(100)


def test_validation_is_set_apart_where_it_is_the_exception() -> None:
    records = [*blocks(10), *blocks(3, 0.0, flagged=True), DONE]
    measurement = measurement_of(entries_of(records), [])
    assert measurement is not None
    assert measurement.rate == pytest.approx(100)


def test_validation_is_set_apart_where_epochs_are_shorter_than_a_block() -> None:
    """Each epoch is a block, and its validation another one: it counted, and that it does was told nowhere."""
    apart: Record = {"samples": 0.0, "steps": 0, "flagged": True}
    records = [each for start in range(20) for each in (block(10.0 + start), block(10.5 + start, **apart))]
    measurement = measurement_of(entries_of([*records, DONE]), [])
    assert measurement is not None
    assert measurement.rate == pytest.approx(100)
    assert measurement.validation_share == pytest.approx(0.5)


def test_validation_counts_where_every_step_has_it() -> None:
    records = [*blocks(2), *blocks(10, 25.0, flagged=True), DONE]
    measurement = measurement_of(entries_of(records), [])
    assert measurement is not None
    assert len(measurement.blocks) == 12


def test_a_script_that_ended_early_is_measured_by_its_warm_up_and_not_called_steady() -> None:
    records = [block(1.0, 1.0, "warmup"), *blocks(9, phase="warmup")]
    measurement = measurement_of(entries_of(records), [])
    assert measurement is not None
    assert measurement.rate == pytest.approx(100)
    assert len(measurement.blocks) == 8
    assert not measurement.steady


MIB = 2**20
US, OTHERS, UNTOLD = False, True, None


def _readings(*each: list[tuple[int | None, bool | None]]) -> list[ResourceSample]:
    """What NVML said of the card once a second: MiB of each process, and whether it is another's."""
    return [
        ResourceSample(
            t=float(t),
            card=CardReading(
                processes=tuple(
                    (pid, None if mib is None else mib * MIB, None, who) for pid, (mib, who) in enumerate(processes)
                )
            ),
        )
        for t, processes in enumerate(each)
    ]


@pytest.mark.parametrize(
    ("pool", "readings", "mib"),
    [
        (4000, _readings([], [(4450, US)], [(4520, US)]), 3520),
        (4000, _readings([(900, OTHERS), (4520, US)]), 3520),
        (4000, _readings([(900, OTHERS), (4520, UNTOLD)]), 3520),
        (4000, _readings([(900, OTHERS)], [(None, US)]), 3000),
        (4000, [], 3000),
        (0, _readings([(460, US)], [(2700, US)], [(4560, US)]), 3460),
        (0, _readings([(4560, US)]), 4560),
        (0, _readings([(3300, US)]), 3300),
        (None, _readings([(78000, US)]), 3000),
    ],
    ids=[
        "a pool of known size", "beside another's process", "in a container", "bytes that aren't told", "no readings",
        "a pool that grows", "that had grown by the first reading", "that has hardly more than its peak",
        "a pool of unknown size that takes all",
    ],
)  # fmt: skip
def test_what_is_held_beside_a_frameworks_pool_is_read_from_the_driver(
    pool: int | None, readings: list[ResourceSample], mib: int
) -> None:
    """TensorFlow and JAX know what they use of their pool; context and libraries hold half a GiB beside it."""
    size = None if pool is None else pool * MIB
    memory: Record = {"kind": "memory", "t": 1.0, "reserved": 3000 * MIB, "allocated": 3000 * MIB, "pool": size}
    measurement = measurement_of(entries_of([*blocks(10), memory, DONE]), readings)
    assert measurement is not None and measurement.peak_device_bytes == mib * MIB


def test_what_pytorch_tells_itself_is_not_counted_twice() -> None:
    memory: Record = {"kind": "memory", "t": 1.0, "reserved": 3000 * MIB, "allocated": 1, "overhead": 500 * MIB}
    measurement = measurement_of(entries_of([*blocks(10), memory, DONE]), _readings([(3600, US)]))
    assert measurement is not None and measurement.peak_device_bytes == 3500 * MIB


@pytest.mark.parametrize(
    ("readings", "overhead"),
    [([(9000, OTHERS), (3600, US)], 600), ([(9000, OTHERS)], 9500), ([(9000, OTHERS), (2900, US)], 9500)],
    ids=["the driver tells", "it doesn't list ours", "the peak lay between two readings"],
)
def test_what_others_take_of_a_card_meanwhile_is_no_memory_of_the_trials(
    readings: list[tuple[int | None, bool | None]], overhead: int
) -> None:
    """PyTorch goes by the card's free memory: another process that starts beside it makes that less."""
    memory: Record = {"kind": "memory", "t": 1.0, "reserved": 3000 * MIB, "allocated": 1, "overhead": 9500 * MIB}
    measurement = measurement_of(entries_of([*blocks(10), memory, DONE]), _readings(readings))
    assert measurement is not None and measurement.peak_device_bytes == (3000 + overhead) * MIB


@pytest.mark.parametrize("records", [[], blocks(2), blocks(3, phase="warmup")])
def test_too_little_is_no_measurement(records: list[Record]) -> None:
    assert measurement_of(entries_of(records), []) is None


def test_a_script_without_a_loader_is_measured_in_steps() -> None:
    measurement = measurement_of(entries_of([*blocks(10, 0.0), DONE]), [])
    assert measurement is not None
    assert measurement.unit == "steps"
    assert measurement.rate == pytest.approx(10)


def test_the_unit_that_the_child_names_is_taken() -> None:
    measurement = measurement_of(entries_of([*blocks(10), {"kind": "facts", "t": 1.0, "unit": "tokens"}, DONE]), [])
    assert measurement is not None
    assert measurement.unit == "tokens"


def test_other_records_are_carried_over() -> None:
    records: list[Record] = [
        {"kind": "first_step", "t": 1.0, "seconds": 3.5},
        {"kind": "compile", "t": 1.0, "graphs": 1, "seconds": 20.0, "breaks": 0},
        {"kind": "compile", "t": 2.0, "graphs": 1, "seconds": 5.0, "breaks": 0},
        {"kind": "memory", "t": 2.0, "reserved": 1000, "allocated": 800, "overhead": 500, "total": 9000},
        {"kind": "memory", "t": 3.0, "reserved": 1200, "allocated": 900, "overhead": 500, "total": 9000},
        {"kind": "loss", "t": 3.0, "samples": 64, "value": 2.5},
        {"kind": "loss", "t": 3.0, "samples": 128, "value": "nan"},
        {"kind": "metric", "t": 3.0, "name": "accuracy", "value": 0.1},
        {"kind": "metric", "t": 4.0, "name": "accuracy", "value": 0.2},
        {"kind": "note", "t": 4.0, "text": "torch.save is diverted"},
        *blocks(10),
        DONE,
    ]
    measurement = measurement_of(entries_of(records), [])
    assert measurement is not None
    assert measurement.first_step_s == 3.5
    assert measurement.compile_s == 25.0
    assert measurement.peak_device_bytes == 1700
    untold = measurement_of(entries_of([record for record in records if record["kind"] != "memory"]), [])
    assert untold is not None and untold.peak_device_bytes is None, "not 0: nobody told"
    [loss] = measurement.losses
    assert (loss.site, loss.points[0]) == ("", (64, 2.5))
    assert math.isnan(loss.points[1][1])
    assert measurement.first_metrics == {"accuracy": 0.1}
    assert measurement.metrics == {"accuracy": 0.2}
    assert measurement.notes == ("torch.save is diverted",)


@pytest.mark.parametrize(("per_step", "at"), [(32.0, [32.0, 64.0, 96.0]), (1.0, [1.0, 2.0, 3.0])])
def test_the_first_loss_lies_at_the_samples_of_one_step(per_step: float, at: list[float]) -> None:
    """What shows the samples of a step by two of them (JAX's) hasn't counted any by the end of the first one."""
    records: list[Record] = [{"kind": "loss", "t": 5.0, "samples": 1.0, "value": 3.0}]
    for n in (2, 3):
        records.append({**block(10.0 + n, per_step), "steps": 1})
        records.append({"kind": "loss", "t": 10.0 + n, "samples": n * per_step, "value": 2.0})
    measurement = measurement_of(entries_of([*records, *blocks(3), DONE]), [])
    assert measurement is not None
    assert [samples for samples, _ in measurement.losses[0].points] == at


def test_cpu_use_is_read_inside_the_window_only() -> None:
    def sample(t: float, cpu_s: float, busy_s: float, steal_s: float) -> ResourceSample:
        return ResourceSample(t, rss=100, cpu_s=cpu_s, busy_s=busy_s, steal_s=steal_s)

    records = [*blocks(10, start=10.5), DONE]
    resources = [sample(1, 0, 0, 0), sample(10, 50, 500, 30), sample(15, 60, 515, 32), sample(16, 99, 999, 99)]
    measurement = measurement_of(entries_of(records), resources)
    assert measurement is not None
    assert measurement.cpu_s_per_sample == pytest.approx(2.0 / 100)
    assert measurement.foreign_cpus == pytest.approx(1.0)
    assert measurement.stolen_cpus == pytest.approx(0.4)


@pytest.mark.parametrize(("first", "last", "wanted"), [(7.0, 12.0, 5 / 4), (None, 12.0, 2 / 3), (None, None, None)])
def test_how_many_cores_a_trial_wanted_is_read_inside_the_window_where_it_is_told(
    first: float | None, last: float | None, wanted: float | None
) -> None:
    """Of the five seconds between the first and the last reading it was held for one."""
    told = [(1, 0.0, 0.0), (10, first, 0.0), (12, 10.0 if last else None, 1.0), (15, last, 1.0), (16, 99.0, 1.0)]
    resources = [ResourceSample(t, rss=100, wanted_s=seconds, held_s=held_s) for t, seconds, held_s in told]
    measurement = measurement_of(entries_of([*blocks(10, start=10.5), DONE]), resources)
    assert measurement is not None
    assert measurement.wanted_cpus == (None if wanted is None else pytest.approx(wanted))


def test_time_in_which_a_trial_was_held_is_no_part_of_its_use_of_the_cores() -> None:
    """Of five seconds it was held for three, of which its samples have nothing but that."""
    records = [*blocks(10, start=10.5), DONE]
    resources = [
        ResourceSample(10, rss=100, cpu_s=50, busy_s=500, held_s=0.5),
        ResourceSample(15, rss=100, cpu_s=54, busy_s=506, held_s=3.5),
    ]
    measurement = measurement_of(entries_of(records), resources)
    assert measurement is not None
    assert measurement.cpu_s_per_sample == pytest.approx(2.0 / 100)
    assert measurement.foreign_cpus == pytest.approx(1.0)


def test_the_last_report_of_a_knob_counts() -> None:
    def knob(name: str, evidence: str, **fields: Any) -> Record:
        return {
            "kind": "knob", "t": 1.0, "knob": name, "requested": 8, "sites_seen": 1, "sites_changed": 1,
            "evidence": evidence, **fields,
        }  # fmt: skip

    records = [
        knob("workers", "unverifiable"),
        knob("precision", "not applicable", reason="no matrix product"),
        knob("workers", "verified", observed=8),
    ]
    workers, precision = knob_reports(records_of(records))
    assert (workers.evidence, workers.observed) == (Evidence.VERIFIED, 8)
    assert precision.reason == "no matrix product"


def test_facts_are_merged_later_over_earlier() -> None:
    records: list[Record] = [
        {"v": 1, "t": 1.0, "kind": "framework", "name": "torch", "version": "2.13", "device": "cpu"},
        {"v": 1, "t": 1.0, "kind": "facts", "as_written": {"batch_size": 64}, "steps": 1},
        {"v": 1, "t": 1.5, "kind": "facts", "framework": "keras", "framework_version": "3.15"},
        {"v": 1, "t": 2.0, "kind": "facts", "steps": 90},
    ]
    knowledge = knowledge_of(records_of(records))
    assert knowledge == Knowledge(
        framework="keras", framework_version="3.15", as_written={"batch_size": 64}, steps=90
    ), "torch was only imported"
    assert type(knowledge) is Knowledge


def test_figures_that_can_not_be_are_left_out() -> None:
    odd = [block(1.0, seconds=bad) for bad in ("nan", "inf", -1, 0, None, "fast")] + [block(1.0, "nan")]  # type: ignore[arg-type]
    measurement = measurement_of(entries_of([*odd, *blocks(10), DONE], sound=False), [])
    assert measurement is not None
    assert len(measurement.blocks) == 10
