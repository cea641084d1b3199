"""What the parent reads beside a trial, and the figures of its memory, its cores and its card that follow. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from tuner.model import CardUse, Energy, Measurement

CardProcess = tuple[int, int | None, float | None, bool | None]
"""A process on a card: its pid, its bytes there, the percent of the multiprocessors' time that it had since the last
reading, whether it is another's than the trial's. None where that can't be told."""


@dataclass(frozen=True)
class CardReading:
    """One raw reading of a CUDA card; None where the card, its driver or the binding can't tell.

    ``reasons`` are NVML's bits of what limits the clocks, ``used`` bytes. ``tells_shares``: whether the processes'
    shares of the multiprocessors can be told. ``joules`` are those of the card since its driver was loaded.
    """

    sm_mhz: float | None = None
    celsius: float | None = None
    reasons: int | None = None
    used: int | None = None
    tells_shares: bool = False
    processes: tuple[CardProcess, ...] = ()
    joules: float | None = None


@dataclass(frozen=True)
class ResourceSample:
    """One raw reading of a trial's processes. ``t`` is the monotonic clock; ``pss`` is None where it wasn't read.

    ``rss`` and ``pss`` are bytes. ``cpu_s`` is the trial's own CPU time; ``busy_s`` that of all the cores that we may
    use, whoever used them; ``steal_s`` the part of it that the hypervisor gave to other machines. ``held_s``: for how
    long the trial was held, so that others had their turns; of those seconds nothing is counted, nor of their joules.
    ``cores``: that we may use. ``host_joules``: of the whole processor since some moment, None where not known;
    ``memory_joules``: the part of them that main memory took, 0 where nothing counts that. ``wanted_s``: for how long
    the trial's threads would have run with a core for each, None where that wasn't read.
    """

    t: float
    rss: int = 0
    pss: int | None = None
    cpu_s: float = 0.0
    busy_s: float = 0.0
    steal_s: float = 0.0
    processes: int = 0
    card: CardReading | None = None
    held_s: float = 0.0
    cores: int = 1
    host_joules: float | None = None
    memory_joules: float | None = None
    wanted_s: float | None = None


@dataclass(frozen=True)
class CpuUse:
    """Cores that a trial used in a span of time, those that others had, and of these the stolen ones; and those that it
    would have used with one for each of its threads, None where nothing tells.
    """

    own: float = 0.0
    foreign: float = 0.0
    stolen: float = 0.0
    wanted: float | None = None


def peak_host_bytes(samples: Sequence[ResourceSample]) -> int:
    """The largest memory of the tree, shared pages counted once.

    Those are told apart only in some samples; in the others RSS is scaled by the ratio last seen of as many
    processes, or first seen later: workers that were forked meanwhile share what one process had for itself. Samples
    of which nothing is known say nothing.
    """
    ratios = _shared_ratios(samples)
    backwards = _shared_ratios(list(reversed(samples)))
    peak = 0.0
    for sample, before, after in zip(samples, ratios, reversed(backwards), strict=True):
        ratio = before if before is not None else after
        if ratio is None:
            ratio = 0.0 if any(known is not None for known in ratios) else 1.0
        peak = max(peak, sample.rss * ratio)
    return int(peak)


def _shared_ratios(samples: Iterable[ResourceSample]) -> list[float | None]:
    """For each sample the last ratio of PSS to RSS that was read of as many processes; None before the first."""
    seen: dict[int, float] = {}
    ratios: list[float | None] = []
    for sample in samples:
        if sample.pss is not None and sample.rss > 0:
            seen[sample.processes] = min(1.0, sample.pss / sample.rss)
        ratios.append(seen.get(sample.processes))
    return ratios


def cpu_use(samples: Iterable[ResourceSample], began: float, ended: float) -> CpuUse:
    """The use of the cores between two moments of the monotonic clock."""
    inside = [sample for sample in samples if began <= sample.t <= ended]
    elapsed = inside[-1].t - inside[0].t - (inside[-1].held_s - inside[0].held_s) if inside else 0.0
    if elapsed <= 0:
        return CpuUse()
    first, last = inside[0], inside[-1]
    own = max(0.0, last.cpu_s - first.cpu_s)
    foreign = max(0.0, max(0.0, last.busy_s - first.busy_s) - own)
    stolen = min(foreign, max(0.0, last.steal_s - first.steal_s))
    wanted = _wanted(inside)
    if wanted is not None and own > 0:
        # A thread that ran on a core which was taken is counted as if it slept meanwhile.
        wanted += stolen / elapsed * own / max(own, own + foreign - stolen)
    return CpuUse(own / elapsed, foreign / elapsed, stolen / elapsed, wanted)


def _wanted(samples: Iterable[ResourceSample]) -> float | None:
    """Cores that the trial would have used with one for each of its threads; None where too few readings tell."""
    known = [(sample.t - sample.held_s, sample.wanted_s) for sample in samples if sample.wanted_s is not None]
    elapsed = known[-1][0] - known[0][0] if known else 0.0
    return max(0.0, known[-1][1] - known[0][1]) / elapsed if elapsed > 0 else None


CROWDED_OUT = "crowded-out"
"""Reason of an outcome: it stood still, maybe for want of the cores that others had. No fault of its config's."""
_CROWDED, _CROWDED_OF_WANTED, _FEWEST_LACKED = 0.25, 0.5, 0.25
"""With as large a share of the cores in others' hands a run of the finals is no evidence, either. One thread on a
machine with many cores never wants so many; one that polls beside what hangs wants next to none.
"""


def lacked_cores(use: CpuUse, spare_cores: int = 0) -> float:
    """Cores that others had and the trial's threads wanted; all that others had beyond ``spare_cores`` where nothing
    tells what it wanted.
    """
    had = max(0.0, use.foreign - spare_cores)
    return had if use.wanted is None else min(had, max(0.0, use.wanted - use.own))


def crowded_out(samples: Sequence[ResourceSample], since: float, cores: int, spare_cores: int = 0) -> float:
    """As ``lacked_cores`` since that moment of the trial's own clock, on a machine with so many ``cores``, where that
    is so much that what stands still may do so for it: a quarter of the cores, or half of those that it wanted, where
    these are fewer, and a quarter of one at least; else 0.
    """
    use = use_since(samples, since)
    lacked, least = lacked_cores(use, spare_cores), _CROWDED * cores
    if use.wanted is not None:
        least = min(least, _CROWDED_OF_WANTED * use.wanted)
    return lacked if lacked >= max(least, _FEWEST_LACKED) else 0.0


def use_since(samples: Sequence[ResourceSample], since: float) -> CpuUse:
    """The use of the cores since that moment of the trial's own clock, which stands still while it is held."""
    inside = [sample for sample in samples if sample.t - sample.held_s >= since]
    return cpu_use(inside, inside[0].t, inside[-1].t) if inside else CpuUse()


READING_S = 0.02
"""Of the cores' time around a turn that isn't the trial's, nor anybody else's: the study stops its processes and reads
of them, and what was busy is told in hundredths of a second."""


def lost_share(samples: Sequence[ResourceSample], began: float, ended: float) -> float:
    """The share of the cores' time that others had between the readings around a span; 0 where there are none.

    Of all their time, busy or not: a turn in which the trial itself waits isn't disturbed for that. Without what the
    readings take themselves.
    """
    before = [sample for sample in samples if sample.t <= began]
    after = [sample for sample in samples if sample.t >= ended]
    if not before or not after:
        return 0.0
    first, last = before[-1], after[0]
    elapsed = last.t - first.t - (last.held_s - first.held_s)
    foreign_s = last.busy_s - first.busy_s - max(0.0, last.cpu_s - first.cpu_s)
    return max(0.0, foreign_s - READING_S) / (elapsed * last.cores) if elapsed > 0 else 0.0


HOST, DEVICE = "host", "device"
"""Whose energy is counted."""
LEAST_METERED_S = 1.0
"""The shortest time whose energy is told: counters of cards move ten times a second."""
HELD = "its counter goes on while a trial is held for the turns of others, and says nothing of the trial then"
_ROUNDED_J = 0.01
"""By so much a counter may seem to go back."""
Span = tuple[float, float]
"""Two moments of the monotonic clock."""


def energy_use(samples: Iterable[ResourceSample], spans: Sequence[Span], samples_per_s: float) -> Energy:
    """What a sample took: the mean power in these spans, which are those of the blocks that count, by the rate.

    What went on between them (validation, checkpoints, the turns of others) takes no part, as in the rate. A card's
    counter goes on while the trial is held, and says nothing of it then.
    """
    inside = [sample for sample in samples if spans and spans[0][0] <= sample.t <= spans[-1][1]]
    if not inside or samples_per_s <= 0:
        return Energy()
    was_held = inside[-1].held_s > inside[0].held_s
    host = _watts([(sample.t, sample.held_s, sample.host_joules) for sample in inside], spans)
    memory = _watts([(sample.t, sample.held_s, sample.memory_joules) for sample in inside], spans)
    card = _watts(
        [(sample.t, 0.0, sample.card.joules) for sample in inside if sample.card is not None and not was_held], spans
    )
    return Energy(*(watts / samples_per_s if watts is not None else None for watts in (host, card, memory)))


def why_no_card_energy(measurement: Measurement) -> str:
    """Why the energy of a card that is counted isn't known of these figures, for people; "" where it is, or no card."""
    if measurement.card is None or measurement.energy.device_joules_per_sample is not None:
        return ""
    return HELD if measurement.turns else f"its readings in the window lie less than {LEAST_METERED_S:.0f} s apart"


def _watts(readings: Iterable[tuple[float, float, float | None]], spans: Sequence[Span]) -> float | None:
    """The mean power in the spans, by moments, the seconds held until then, and joules; None of too short a time.

    Between two readings power is taken to be even, of which as much counts as they share with the spans.
    """
    known = [(t, held_s, joules) for t, held_s, joules in readings if joules is not None]
    seconds = taken = 0.0
    for (began, held_before, before), (ended, held_after, after) in pairwise(known):
        own_s = ended - began - (held_after - held_before)
        if after < before - _ROUNDED_J:
            return None
        inside_s = sum(max(0.0, min(ended, end) - max(began, start)) for start, end in spans)
        share = min(1.0, inside_s / own_s) if own_s > 0 else 0.0
        seconds, taken = seconds + share * own_s, taken + share * (after - before)
    return max(0.0, taken) / seconds if seconds >= LEAST_METERED_S else None


def held_bytes(samples: Iterable[ResourceSample]) -> list[int]:
    """What the trial's own processes hold of the card, in each reading that finds them there.

    In a container a newcomer whose pid can't be told is taken for one of them.
    """
    readings = (sample.card for sample in samples if sample.card is not None)
    own = (sum(held or 0 for _, held, _, others in reading.processes if not others) for reading in readings)
    return [held for held in own if held]


def has_strangers(samples: Iterable[ResourceSample]) -> bool:
    """Whether some process on the card is surely none of the trial's, and held memory there."""
    readings = (sample.card for sample in samples if sample.card is not None)
    return any(others and held for reading in readings for _, held, _, others in reading.processes)


def card_use(samples: Iterable[ResourceSample], began: float, ended: float) -> CardUse | None:
    """What the readings of the card between two moments add up to; None where there is none.

    Others' share isn't known where some process on the card may or may not be the trial's, as in a container.
    """
    readings = [s.card for s in samples if began <= s.t <= ended and s.card is not None]
    if not readings:
        return None
    clocks = [reading.sm_mhz for reading in readings if reading.sm_mhz is not None]
    reasons = 0
    for reading in readings:
        reasons |= reading.reasons or 0
    foreign = [[process for process in reading.processes if process[3]] for reading in readings]
    shares = [
        sum(share or 0 for _, _, share, _ in processes) / 100
        for reading, processes in zip(readings, foreign, strict=True)
        if reading.tells_shares
    ]
    untold = any(who is None and share != 0 for reading in readings for _, _, share, who in reading.processes)
    return CardUse(
        readings=len(readings),
        sm_mhz=statistics.median(clocks) if clocks else None,
        lowest_sm_mhz=min(clocks, default=None),
        hottest_celsius=max((r.celsius for r in readings if r.celsius is not None), default=None),
        throttle_reasons=reasons,
        foreign_bytes=max(sum(held or 0 for _, held, _, _ in processes) for processes in foreign),
        foreign_share=statistics.fmean(shares) if shares and not untold else None,
    )
