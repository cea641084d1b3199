"""A measurement is disturbed when others used more of the machine than it can bear."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from support.worlds import MEASURED

from tuner.analysis.contention import (
    Host,
    contaminated_by,
    contamination,
    disturbance,
    is_calmer,
    own_cpus,
    throttle_text,
)
from tuner.devices.base import FOREIGN_SHARE, FOREIGN_SHARE_BESIDE_A_DEVICE
from tuner.model import CardUse, Outcome, OutcomeKind, Ratio, Reference

CPU = Host(2, FOREIGN_SHARE)
CARD = Host(8, FOREIGN_SHARE_BESIDE_A_DEVICE, feeds=True)
EIGHT = Host(8, FOREIGN_SHARE)


@pytest.mark.parametrize(
    ("host", "foreign", "disturbed"),
    [(CPU, 0.2, False), (CPU, 0.3, True), (replace(CPU, cores=64), 2.5, False), (replace(CPU, cores=64), 2.6, True),
     (replace(CPU, spare_cores=3), 3.2, False), (replace(CPU, spare_cores=3), 3.3, True), (CARD, 4.0, False),
     (CARD, 4.1, True)],
)  # fmt: skip
def test_what_a_machine_can_bear(host: Host, foreign: float, disturbed: bool) -> None:
    outcome = Outcome(OutcomeKind.COMPLETE, measurement=replace(MEASURED, foreign_cpus=foreign))
    told = contamination(outcome, host)
    assert bool(told) == disturbed
    assert not told or f"{foreign:.1f} of {host.cores + host.spare_cores} cores" in told


@pytest.mark.parametrize(
    ("host", "most"),
    [
        (CPU, 0.5), (replace(CPU, spare_cores=3), 3.5), (replace(CPU, cores=8), 2.0), (replace(CPU, cores=64), 2.5),
        (replace(CARD, cores=16, feeds=False), 2.5), (replace(CARD, cores=2, feeds=False), 1.0),
    ],
)  # fmt: skip
def test_a_round_of_the_finals_can_be_too_busy_on_any_host(host: Host, most: float) -> None:
    assert host.most_foreign_cpus == pytest.approx(most)
    busy = "other processes kept the machine busy"
    assert contaminated_by(replace(MEASURED, foreign_cpus=most), host, 1.0) == ()
    assert contaminated_by(replace(MEASURED, foreign_cpus=most + 0.1), host, 1.0) == (busy,)
    assert contaminated_by(replace(MEASURED, foreign_cpus=most + 0.1), None, 1.0) == ()


@pytest.mark.parametrize(
    ("own", "beside", "busy"),
    [(0.0, 1.2, True), (1.2, 0.0, True), (0.6, 0.6, True), (0.0, 0.9, False), (0.9, 0.0, False), (0.6, None, True)],
)
def test_by_turns_a_run_was_as_busy_as_what_it_is_held_against(own: float, beside: float | None, *, busy: bool) -> None:
    """Rounds are left out by what others took of both sides alike: by that of one they would favour it."""
    reference = Reference(100.0, Ratio(1.0, 0.9, 1.1), 12, foreign_cpus=beside)
    run = replace(MEASURED, foreign_cpus=own, turns=12, reference=reference)
    assert bool(contaminated_by(run, CPU, 1.0)) is busy
    outcome = Outcome(OutcomeKind.COMPLETE, measurement=run)
    mean = own if beside is None else (own + beside) / 2
    assert contamination(outcome, CPU).endswith(f"{mean:.1f} of 2 cores")
    assert disturbance(outcome, CPU)[1] == pytest.approx(mean / CPU.allowed_foreign_cpus())


@pytest.mark.parametrize(("own", "beside", "busy"), [(0.0, 0.9, True), (0.9, 0.0, False), (2.0, 0.2, True)])
def test_the_side_with_the_longer_turns_counts_for_more_of_them(own: float, beside: float, *, busy: bool) -> None:
    """What others take varies less in these: counted alike, rounds are kept that favour the shorter turns."""
    reference = Reference(100.0, Ratio(1.0, 0.9, 1.1), 12, beside, own_share=0.25)
    run = replace(MEASURED, foreign_cpus=own, turns=12, reference=reference)
    assert bool(contaminated_by(run, CPU, 1.0)) is busy


@pytest.mark.parametrize(("own", "foreign", "busy"), [(3.0, 8.0, False), (6.0, 8.0, True), (1.0, 12.0, True)])
def test_beside_an_accelerator_cores_that_stay_idle_are_nobodys(own: float, foreign: float, busy: bool) -> None:
    feeding = Host(16, FOREIGN_SHARE_BESIDE_A_DEVICE, feeds=True)
    assert feeding.is_too_busy(foreign, own) == busy
    run = Outcome(OutcomeKind.COMPLETE, measurement=replace(MEASURED, foreign_cpus=foreign))
    assert bool(contamination(run, feeding)) is (foreign > 8.0), "whatever it used itself"


def test_what_runs_of_a_config_use_themselves_is_the_median() -> None:
    runs = [replace(MEASURED, rate=rate, cpu_s_per_sample=0.03) for rate in (90.0, 100.0, 500.0)]
    assert own_cpus(runs) == pytest.approx(3.0)


def test_what_was_not_measured_was_not_disturbed() -> None:
    assert contamination(Outcome(OutcomeKind.COMPLETE), CPU) == ""
    loud = replace(MEASURED, foreign_cpus=9.0)
    assert contamination(Outcome(OutcomeKind.CRASHED, measurement=loud), CPU) == ""


CALM_CARD = CardUse(9, 1755.0, 1740.0, 61.0, 0x4, 0, 0.0)


def outcome(**changes: Any) -> Outcome:
    return Outcome(OutcomeKind.COMPLETE, measurement=replace(MEASURED, **changes))


@pytest.mark.parametrize(
    ("foreign", "stolen", "told"),
    [
        (1.2, 0.0, "other processes used 1.2 of 2 cores"),
        (1.2, 0.5, "other processes used 0.7 and the hypervisor took 0.5 of 2 cores"),
        (1.2, 1.2, "the hypervisor took 1.2 of 2 cores"),
    ],
)
def test_who_took_the_cores_is_told(foreign: float, stolen: float, told: str) -> None:
    assert contamination(outcome(foreign_cpus=foreign, stolen_cpus=stolen), CPU) == told


def test_a_single_core_is_told_as_one() -> None:
    assert contamination(outcome(foreign_cpus=0.9), replace(CPU, cores=1)) == "other processes used 0.9 of 1 core"


@pytest.mark.parametrize(
    ("card", "told"),
    [
        (None, ""),
        (CALM_CARD, ""),
        (replace(CALM_CARD, throttle_reasons=0x1 | 0x2 | 0x4 | 0x10 | 0x100), ""),
        (replace(CALM_CARD, throttle_reasons=0x8), "the card was slowed down: hardware slowdown"),
        (replace(CALM_CARD, throttle_reasons=0x24), "the card was slowed down: heat"),
        (replace(CALM_CARD, throttle_reasons=0x40), "the card was slowed down: heat (hardware)"),
        (replace(CALM_CARD, throttle_reasons=0x80), "the card was slowed down: power brake"),
        (replace(CALM_CARD, foreign_bytes=2**34, foreign_share=None), ""),
        (replace(CALM_CARD, foreign_share=0.1), ""),
        (replace(CALM_CARD, foreign_share=0.34), "other processes used 34% of the card"),
    ],
)
def test_a_card_that_was_slowed_down_or_shared_disturbs(card: CardUse | None, told: str) -> None:
    assert contamination(outcome(card=card), CARD) == told


def test_both_are_told() -> None:
    told = contamination(outcome(foreign_cpus=6.0, card=replace(CALM_CARD, throttle_reasons=0x20)), CARD)
    assert told == "other processes used 6.0 of 8 cores; the card was slowed down: heat"


def test_the_calmest_run_comes_first() -> None:
    hot, shared = replace(CALM_CARD, throttle_reasons=0x20), replace(CALM_CARD, foreign_share=0.9)
    runs = [
        Outcome(OutcomeKind.CRASHED), outcome(card=hot, foreign_cpus=1.0), outcome(card=hot), outcome(card=shared),
        outcome(card=CALM_CARD, foreign_cpus=5.0), outcome(card=CALM_CARD),
    ]  # fmt: skip
    assert sorted(runs, key=lambda run: disturbance(run, CARD)) == runs[::-1]


def test_what_a_card_can_bear_makes_no_run_less_calm() -> None:
    """Of two runs beside a card whose share is within what is allowed its cores tell."""
    shares = [replace(CALM_CARD, foreign_share=share) for share in (0.0, 0.02, 0.3)]
    busy, calm, shared = (
        replace(MEASURED, foreign_cpus=cpus, card=card) for cpus, card in zip((7.0, 0.1, 0.1), shares, strict=True)
    )
    assert is_calmer(calm, busy) and not is_calmer(busy, calm)
    assert is_calmer(busy, shared) and is_calmer(calm, shared)


def test_what_is_no_evidence_says_why() -> None:
    hot = replace(CALM_CARD, throttle_reasons=0x44, foreign_share=0.3)
    shared = replace(MEASURED, card=replace(CALM_CARD, foreign_share=0.2), foreign_cpus=2.0)
    assert contaminated_by(shared, EIGHT, 1.0) == ()
    assert contaminated_by(replace(MEASURED, card=hot, foreign_cpus=2.1), EIGHT, 1.0) == (
        "other processes kept the machine busy",
        "the card was slowed down: heat (hardware)",
        "other processes kept the card busy",
    )


def test_reasons_have_names() -> None:
    assert throttle_text(0) == ""
    assert throttle_text(0x25) == "idle, power cap, heat"
