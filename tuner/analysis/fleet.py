"""Profiles of several devices side by side: what each costs, who is ahead, and what can't be compared.

Pure: whoever calls it has read the profiles, and knows the prices.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import combinations

from tuner.analysis.circumstances import Change, Circumstances, ProvenPart, apart
from tuner.knowledge import FREE, KEEP
from tuner.model import BASELINE, Config, Device, Energy, Ratio

SAMPLES = "samples"
FINALS, SINGLE_TRIAL = "finals", "single trial"
"""What a measurement is based on."""
_S_PER_HOUR = 3600.0
_PRICED_SAMPLES = 1e6
NO_OBSTACLES = frozenset({ProvenPart.SOFTWARE})
"""What differs from device to device, and belongs to what is compared."""
FEWEST_RUNS = 4
"""Of either device for a rank. Where devices are alike, all runs of one lie beyond all of the other's by chance in 1 of
3 comparisons with two of each, in 1 of 10 with three, in 1 of 35 with four: 2 of the (2n choose n) orders of 2n runs.
"""


@dataclass(frozen=True)
class LoopFigures:
    """What a profile says of a training loop: as the script was written, or as the winner.

    ``rate`` is in ``unit`` per second. Of the ``finals``, which ``based_on`` says, ``low`` and ``high`` are the slowest
    and the fastest run; of a single trial its interval, which says nothing of another run. ``energy`` is that of the
    window, None where they aren't known.
    """

    rate: float
    low: float
    high: float
    unit: str
    based_on: str
    peak_host_bytes: int
    peak_device_bytes: int | None = None
    energy: Energy = field(default_factory=Energy)

    @property
    def proven(self) -> bool:
        """Whether several fresh runs gave it."""
        return self.based_on == FINALS

    @property
    def meters_memory(self) -> bool | None:
        """Whether main memory is in the host's joules; None where that isn't known, or none of them."""
        memory = self.energy.memory_joules_per_sample
        return None if memory is None or self.energy.host_joules_per_sample is None else memory > 0

    @property
    def range(self) -> Ratio:
        """The rate with the ends of its interval."""
        return Ratio(self.rate, self.low, self.high)


@dataclass(frozen=True)
class OnDevice:
    """A profile as it is compared, ``place`` being its file.

    ``shown`` is what the device is called for people, and in a table of prices. ``objective`` is what its gains are by,
    and ``free`` whether the search might change the samples per step: "" and None where an earlier version didn't say.
    ``config`` is the winner's, empty without one. ``edited`` is None where
    that can't be told. ``energy_unknown`` says of ``HOST`` and ``DEVICE`` why no joules of theirs are known, None
    where an earlier version didn't say. ``ranks``: so many processes trained together, whose rates are added up.
    ``devices``: so many of one process. ``disturbed`` says for people what disturbed the finals' rounds where too few
    were calm, so that the figures are those of all and prove nothing; "" where enough were. ``cannot_tell`` says so why
    it isn't known that nothing is faster; "" where it is, something is, or an earlier version didn't say. ``larger`` is
    a proven larger effective batch beside ``config`` (tier 3), empty without one, and ``sooner`` how many times sooner
    it reaches a loss.
    """

    place: str
    device: Device
    circumstances: Circumstances
    objective: str
    free: bool | None
    edited: bool | None
    config: Config
    speedup: Ratio | None
    runs: int
    written: LoopFigures | None
    winner: LoopFigures | None
    energy_unknown: Mapping[str, str] | None = None
    shown: str = ""
    ranks: int = 1
    devices: int = 1
    disturbed: str = ""
    cannot_tell: str = ""
    larger: Config = BASELINE
    sooner: Ratio | None = None

    @property
    def applied(self) -> LoopFigures | None:
        """What ``autotune run`` has there: the winner's, or those of the script as written."""
        return self.winner if self.config else self.written


class Doubt(StrEnum):
    """Why a profile's own figures can't be held against others'."""

    NOTHING_MEASURED = "nothing measured"
    NOT_PROVEN = "not proven"
    FEW_RUNS = "few runs"
    DISTURBED = "disturbed"
    EDITED = "edited"


def doubt_of(profile: OnDevice) -> Doubt | None:
    """Why no rank follows from the profile's figures; None where one may."""
    if profile.applied is None:
        return Doubt.NOTHING_MEASURED
    if profile.edited:
        return Doubt.EDITED
    if not profile.applied.proven:
        return Doubt.NOT_PROVEN
    if profile.runs < FEWEST_RUNS:
        return Doubt.FEW_RUNS
    return Doubt.DISTURBED if profile.disturbed else None


def differences(one: OnDevice, other: OnDevice) -> list[Change]:
    """How what was measured on the other device differs from what was on the first one; not the devices themselves."""
    found = apart(one.circumstances, other.circumstances)
    if one.objective != other.objective:
        found.append(Change(ProvenPart.OBJECTIVE, one.objective, other.objective))
    if bool(one.free) != bool(other.free):
        found.append(Change(ProvenPart.EFFECTIVE_BATCH, _batch(one), _batch(other)))
    before, now = one.applied, other.applied
    if before is not None and now is not None and before.unit != now.unit:
        found.append(Change(ProvenPart.UNIT, before.unit, now.unit))
    return found


def _batch(profile: OnDevice) -> str:
    return FREE if profile.free else KEEP


def alike(profiles: Sequence[OnDevice]) -> list[list[int]]:
    """The profiles, by their numbers from 0, in groups that measured the same thing: each like every other of its own.

    One without figures is like those of any unit; it stands in the first group that it fits, and is ranked in none.
    """
    groups: list[list[int]] = []
    for number, profile in enumerate(profiles):
        for group in groups:
            if not any(obstacles(differences(profiles[other], profile)) for other in group):
                group.append(number)
                break
        else:
            groups.append([number])
    return groups


def shown_for(profiles: Sequence[OnDevice], group: Sequence[int]) -> int:
    """The one that others are told to differ from where they differ from the group: its first one with figures."""
    return next((number for number in group if profiles[number].applied is not None), group[0])


def obstacles(found: Collection[Change]) -> list[Change]:
    """Those of the differences that make it another training, or another figure."""
    return [change for change in found if change.part not in NO_OBSTACLES]


def price_per_million(figures: LoopFigures, per_hour: float) -> Ratio | None:
    """What a million samples cost at so much an hour, with the interval that the rate's gives; None without samples."""
    if figures.unit != SAMPLES or figures.rate <= 0:
        return None
    cost = per_hour / _S_PER_HOUR * _PRICED_SAMPLES
    most = cost / figures.low if figures.low > 0 else math.inf
    return Ratio(cost / figures.rate, cost / figures.high, most)


@dataclass(frozen=True)
class Order:
    """Who is ahead by a figure: ``ahead`` are pairs of numbers, the better one first, whose intervals lie apart;
    ``undecided`` pairs are those whose intervals overlap.
    """

    ahead: tuple[tuple[int, int], ...]
    undecided: tuple[tuple[int, int], ...]


def order_of(ranges: Mapping[int, Ratio], *, more_is_better: bool) -> Order:
    """The order that follows from intervals and nothing beyond it: of each two one is ahead, or nobody knows."""
    ahead, undecided = [], []
    for one, other in combinations(ranges, 2):
        higher, lower = (one, other) if ranges[one].ratio >= ranges[other].ratio else (other, one)
        if ranges[higher].low > ranges[lower].high:
            ahead.append((higher, lower) if more_is_better else (lower, higher))
        else:
            undecided.append((one, other))
    return Order(tuple(ahead), tuple(undecided))


def _rates(profiles: Sequence[OnDevice], group: Sequence[int]) -> dict[int, Ratio]:
    """The rates, as applied, of those in the group that a rank may follow from."""
    found = {number: profiles[number].applied for number in group if doubt_of(profiles[number]) is None}
    return {number: figures.range for number, figures in found.items() if figures is not None}


def _prices(profiles: Sequence[OnDevice], group: Sequence[int], per_hour: Mapping[int, float]) -> dict[int, Ratio]:
    """What a million samples cost as applied on those in the group whose price is known and whose rate is proven."""
    priced = {}
    for number in _rates(profiles, group):
        figures = profiles[number].applied
        price = price_per_million(figures, per_hour[number]) if figures is not None and number in per_hour else None
        if price is not None:
            priced[number] = price
    return priced


@dataclass(frozen=True)
class Comparison:
    """Profiles side by side, by their numbers from 0. ``per_hour`` are the prices of those that have one; ``groups``
    those that measured the same thing, and ``rates`` and ``prices`` who is ahead within each of them, as applied.
    """

    profiles: tuple[OnDevice, ...]
    per_hour: Mapping[int, float]
    groups: tuple[tuple[int, ...], ...]
    rates: tuple[Order, ...]
    prices: tuple[Order, ...]


def compare(profiles: Sequence[OnDevice], per_hour: Mapping[int, float]) -> Comparison:
    """Lays profiles side by side; devices are ranked within a group, and only where their intervals lie apart."""
    groups = alike(profiles)
    return Comparison(
        profiles=tuple(profiles),
        per_hour=dict(per_hour),
        groups=tuple(tuple(group) for group in groups),
        rates=tuple(order_of(_rates(profiles, group), more_is_better=True) for group in groups),
        prices=tuple(order_of(_prices(profiles, group, per_hour), more_is_better=False) for group in groups),
    )
