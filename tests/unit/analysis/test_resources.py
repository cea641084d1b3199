"""What is read beside a trial, added up: the card's readings, and the memory of a tree of processes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support import made_up

from tuner.analysis.resources import (
    HELD,
    CardProcess,
    CardReading,
    ResourceSample,
    card_use,
    cpu_use,
    crowded_out,
    energy_use,
    lacked_cores,
    peak_host_bytes,
    use_since,
    why_no_card_energy,
)
from tuner.model import CardUse, Energy


def test_what_a_card_said_in_the_window_is_added_up() -> None:
    def sample(t: float, mhz: int | None, celsius: int | None, reasons: int, *rows: CardProcess) -> ResourceSample:
        return ResourceSample(t, card=CardReading(mhz, celsius, reasons, tells_shares=t < 13, processes=rows))

    resources = [
        sample(1, 300, 99, 0x40),
        sample(10, 1980, 60, 0x4, (7, 2**20, 30.0, True), (8, 2**30, 70.0, False), (9, 5, 0.0, None)),
        ResourceSample(10.5),
        sample(11, 1900, None, 0x20, (7, 2**21, None, True), (10, None, 10.0, True)),
        sample(12, None, 71, 0x0),
        sample(13, 1700, 70, 0x4, (7, 2**20, None, True)),
    ]
    card = card_use(resources, 10, 15)
    assert card == CardUse(4, 1900, 1700, 71, 0x24, 2**21, (0.3 + 0.1 + 0) / 3)
    assert card_use(resources, 14, 15) is None
    assert card_use([sample(14, None, None, 0)], 10, 15) == CardUse(1, None, None, None, 0, 0, None)


def test_the_memory_peak_counts_shared_pages_once() -> None:
    resources = [
        ResourceSample(1, rss=100, pss=50),
        ResourceSample(2, rss=400),
        ResourceSample(3, rss=300, pss=150),
    ]
    assert peak_host_bytes(resources) == 200
    assert peak_host_bytes([]) == 0


def test_workers_that_share_their_parents_memory_are_no_peak_before_that_is_read() -> None:
    def sample(rss: int, pss: int | None, processes: int) -> ResourceSample:
        return ResourceSample(0.0, rss=rss, pss=pss, processes=processes)

    forked = [sample(200, 200, 1), sample(1800, None, 9), sample(1800, None, 9), sample(1800, 250, 9)]
    assert peak_host_bytes(forked) == 250
    assert peak_host_bytes([*forked, sample(3600, None, 9)]) == 500
    assert peak_host_bytes([*forked, sample(5000, None, 17)]) == 250
    assert peak_host_bytes([sample(300, None, 1)]) == 300


def test_a_process_that_may_be_anyones_leaves_the_others_share_unknown() -> None:
    """In a container a stranger's pid is nobody's: it had 70% of the card, and the share was told as none."""
    card = CardReading(tells_shares=True, processes=((4711, 2**30, 30.0, False), (4712, 2**33, 70.0, None)))
    told = card_use([ResourceSample(float(t), card=card) for t in range(5)], 0, 9)
    assert told is not None and told.foreign_share is None


def test_energy_is_the_mean_power_of_the_window_by_its_rate() -> None:
    """50 W of the host and 200 W of the card at 100 samples/s; before the window it took something else."""
    samples = [ResourceSample(0.0, host_joules=0.0, card=CardReading(joules=5e6))]
    samples += [
        ResourceSample(t, host_joules=900 + 50 * t, card=CardReading(joules=6e6 + 200 * t) if t != 12 else None)
        for t in (10.0, 11.0, 12.0, 13.0)
    ]
    assert energy_use(samples, [(9.5, 13.5)], 100.0) == Energy(0.5, 2.0)
    assert energy_use(samples, [(9.5, 13.5)], 0.0) == Energy()
    assert energy_use(samples, [(20, 30)], 100.0) == Energy()
    assert energy_use(samples, [], 100.0) == Energy()
    assert energy_use(samples, [(10.5, 11.5)], 100.0) == Energy(), "one reading says nothing"


def test_energy_leaves_out_what_the_rate_leaves_out() -> None:
    """Between blocks that take 50 W, 10 of them main memory's, two seconds of validation take 500 W."""
    joules = {10.0: 0.0, 11.0: 50.0, 12.0: 100.0, 14.0: 1100.0, 15.0: 1150.0}
    samples = [ResourceSample(t, host_joules=taken, memory_joules=taken / 5) for t, taken in joules.items()]
    assert energy_use(samples, [(10, 11), (11, 12), (14, 15)], 100.0) == Energy(0.5, None, 0.1)
    half = energy_use(samples, [(10, 12), (13, 15)], 100.0)
    assert half.host_joules_per_sample == pytest.approx((150 + 500) / 4 / 100), "of what is between two readings a part"


def test_why_the_energy_of_a_card_that_is_counted_is_not_known() -> None:
    told = made_up.measured(100.0, card=CardUse(3, None, None, None, 0, 0, None), energy=Energy(None, 0.1))
    assert why_no_card_energy(told) == why_no_card_energy(made_up.measured(100.0)) == ""
    assert why_no_card_energy(replace(told, energy=Energy(), turns=7)) == HELD
    assert "less than 1 s apart" in why_no_card_energy(replace(told, energy=Energy()))


def test_energy_leaves_out_what_the_trial_was_held() -> None:
    """Its host's joules are stored without those; a card's counter went on, and says nothing."""
    samples = [
        ResourceSample(t, held_s=held_s, host_joules=50 * (t - held_s), card=CardReading(joules=200 * t))
        for t, held_s in ((10.0, 0.0), (10.5, 0.0), (11.0, 0.5), (11.5, 0.5), (12.5, 1.0))
    ]
    assert energy_use(samples, [(10, 10.5), (11, 11.5), (12, 12.5)], 100.0) == Energy(0.5, None)


def test_energy_is_not_told_of_readings_that_are_too_close_or_go_back() -> None:
    near = [ResourceSample(t, host_joules=50 * t) for t in (10.0, 10.9)]
    assert energy_use(near, [(9, 13)], 100.0) == Energy()
    back = [ResourceSample(t, host_joules=-50 * t) for t in (10.0, 12.0)]
    assert energy_use(back, [(9, 13)], 100.0) == Energy()
    gone = [ResourceSample(10.0, host_joules=1.0), ResourceSample(12.0), ResourceSample(14.0)]
    assert energy_use(gone, [(9, 15)], 100.0) == Energy()


@pytest.mark.parametrize(
    ("busy_s", "wanted_s", "spare", "lacked"),
    [
        (19.0, 19.0, 0, 1.7),  # it computed in two threads, and had 0.2 of two cores
        (19.0, 3.0, 0, 0.1),  # it slept for most of the time
        (12.0, 19.0, 0, 1.0),  # others had one
        (19.0, 19.0, 1, 0.7),  # one of those that they had is none of ours
        (19.0, None, 0, 1.7),  # as far as is known
    ],
)
def test_what_a_trial_lacked_is_what_others_had_of_what_it_wanted(
    busy_s: float, wanted_s: float | None, spare: int, lacked: float
) -> None:
    """Within the last ten seconds of its own clock, which stood still for five before."""
    told = None if wanted_s is None else 50.0
    samples = [
        ResourceSample(0.0, cpu_s=0.0, busy_s=0.0, wanted_s=told),
        ResourceSample(25.0, cpu_s=40.0, busy_s=50.0, wanted_s=told, held_s=5.0, cores=2),
        ResourceSample(
            35.0, cpu_s=42.0, busy_s=50.0 + busy_s, held_s=5.0, cores=2,
            wanted_s=None if wanted_s is None else 50.0 + wanted_s,
        ),
    ]  # fmt: skip
    assert lacked_cores(use_since(samples, 20.0), spare) == pytest.approx(lacked)
    assert lacked_cores(use_since(samples, 31.0), spare) == 0.0, "one reading tells nothing"


def test_what_a_hypervisor_took_of_running_threads_was_wanted() -> None:
    """Such a kernel counts a thread as neither running nor waiting while its core is taken, as if it slept."""
    samples = [
        ResourceSample(0.0, cores=2, wanted_s=0.0),
        ResourceSample(10.0, cpu_s=10.0, busy_s=20.0, steal_s=10.0, cores=2, wanted_s=10.0),
    ]
    assert cpu_use(samples, 0.0, 10.0).wanted == pytest.approx(2.0), "two threads that computed all the time"
    assert lacked_cores(use_since(samples, 0.0)) == pytest.approx(1.0)


def test_what_a_hypervisor_took_is_shared_out_by_who_ran_beside() -> None:
    samples = [
        ResourceSample(0.0, cores=2, wanted_s=0.0),
        ResourceSample(10.0, cpu_s=1.0, busy_s=20.0, steal_s=10.0, cores=2, wanted_s=1.0),
    ]
    assert cpu_use(samples, 0.0, 10.0).wanted == pytest.approx(0.1 + 0.1), "others ran nine times as long"
    idle = [ResourceSample(0.0, wanted_s=0.0), ResourceSample(10.0, wanted_s=0.0)]
    assert cpu_use(idle, 0.0, 10.0).wanted == 0.0


@pytest.mark.parametrize(
    ("cores", "ran", "wanted", "is_crowded"),
    [
        (2, 0.2, 1.0, True),
        (2, 0.6, 1.0, False),  # it had more than half of what it wanted
        (64, 0.2, 1.0, True),  # one thread on a machine that is full: a quarter of its cores isn't the measure
        (64, 0.6, 1.0, False),
        (64, 50.0, 64.0, False),
        (64, 40.0, 64.0, True),
        (2, 0.005, 0.02, False),  # a thread that polls beside one that hangs: it lacks next to nothing
        (64, 0.005, 0.02, False),
        (64, 60.0, None, False),
        (64, 40.0, None, True),
    ],
)
def test_what_a_trial_wants_says_how_many_cores_are_many(
    cores: int, ran: float, wanted: float | None, is_crowded: bool
) -> None:
    samples = [
        ResourceSample(0.0, cores=cores, wanted_s=None if wanted is None else 0.0),
        ResourceSample(
            10.0, cpu_s=10 * ran, busy_s=10.0 * cores, cores=cores, wanted_s=None if wanted is None else 10 * wanted
        ),
    ]
    lacked = (cores if wanted is None else wanted) - ran
    assert crowded_out(samples, 0.0, cores) == (pytest.approx(lacked) if is_crowded else 0.0)
