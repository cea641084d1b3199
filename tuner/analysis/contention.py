"""What else went on while a trial was measured: other processes on the cores or the card, a card slowed by heat. Pure.

CPU use is in cores (2.0 is two busy cores), a card's in shares of its multiprocessors' time.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable
from dataclasses import dataclass, replace

from tuner.model import CardUse, Measurement, Outcome

FOREIGN_CARD_SHARE = 0.1
"""The share of a card's multiprocessors' time that other processes may take beside a measurement."""
CONTAMINATING = 2.5
"""With so many times what is allowed a run of the finals is no evidence: such load turns conclusions around."""
MOST_FOREIGN_CPUS = 2.5
"""And with more than so many cores, or half of all, however many there are."""
IDLE_SHARE = 0.25
"""Where the cores only feed an accelerator others may take more in the finals, as long as such a share stays idle."""
MOVED = 1.1
"""A baseline that moved by more than this ratio between two anchors says that the machine changed in between."""

THROTTLE_REASONS = {
    0x1: "idle", 0x2: "clocks set by a user", 0x4: "power cap", 0x8: "hardware slowdown", 0x10: "sync boost",
    0x20: "heat", 0x40: "heat (hardware)", 0x80: "power brake", 0x100: "display clocks",
}  # fmt: skip
"""NVML's bits for what limits a card's clocks (its documentation, "clocks event reasons")."""
SLOWED = 0x8 | 0x20 | 0x40 | 0x80
"""Those that tell of the card's surroundings. Under load the power cap is where a healthy card runs."""


@dataclass(frozen=True)
class Host:
    """The cores around a measurement: those that we may use, and the share of them that others may take.

    ``spare_cores`` are those that a quota keeps from us: whoever uses them takes nothing from us. ``feeds``: whether
    the cores only feed an accelerator.
    """

    cores: int
    foreign_share: float
    spare_cores: int = 0
    feeds: bool = False

    def allowed_foreign_cpus(self) -> float:
        """Cores that other processes may use beside a measurement."""
        return self.spare_cores + self.cores * self.foreign_share

    @property
    def most_foreign_cpus(self) -> float:
        """Cores with which a run of the finals is evidence still."""
        share = CONTAMINATING * self.foreign_share * self.cores
        return self.spare_cores + min(share, self.cores / 2, MOST_FOREIGN_CPUS)

    def is_too_busy(self, foreign_cpus: float, own_cpus: float) -> bool:
        """Whether others took so many cores that a run of the finals is no evidence.

        ``own_cpus`` is what such a run uses itself, as a rule: a run that happens to be fast uses more, and mustn't be
        left out for it.
        """
        if foreign_cpus <= self.most_foreign_cpus:
            return False
        idle = self.cores + self.spare_cores - own_cpus - foreign_cpus
        return not self.feeds or idle < IDLE_SHARE * self.cores


def contamination(outcome: Outcome, host: Host) -> str:
    """What disturbed a complete outcome's measurement, for people; "" where it stayed within what is allowed."""
    measurement = outcome.measurement
    return contamination_of(measurement, host) if measurement is not None and outcome.complete else ""


def contamination_of(measurement: Measurement, host: Host) -> str:
    """As ``contamination``."""
    measurement, causes = _on_both_sides(measurement), []
    most = host.allowed_foreign_cpus() if host.feeds else min(host.allowed_foreign_cpus(), host.most_foreign_cpus)
    if measurement.foreign_cpus > most:
        cores = host.cores + host.spare_cores
        causes.append(f"{foreign_text(measurement)} of {cores} core{'s' if cores > 1 else ''}")
    return "; ".join([*causes, *_card_causes(measurement.card)])


def disturbance(outcome: Outcome, host: Host) -> tuple[bool, float]:
    """A key that sorts runs of one config, the least disturbed first and those without a measurement last.

    Whether the card was slowed down, then what others took as a multiple of what is allowed.
    """
    measurement = outcome.measurement
    if measurement is None or not outcome.complete:
        return True, math.inf
    card = measurement.card
    busy = _on_both_sides(measurement).foreign_cpus / host.allowed_foreign_cpus()
    on_card = (card.foreign_share or 0.0) / FOREIGN_CARD_SHARE if card is not None else 0.0
    return card is not None and bool(card.throttle_reasons & SLOWED), max(busy, on_card)


def is_calmer(measurement: Measurement, other: Measurement) -> bool:
    """Whether others disturbed one of two runs of the script as written less: its card, or else its cores.

    A share of the card that is allowed is as good as none: it differs from run to run.
    """
    return _taken(measurement) < _taken(other)


def _taken(measurement: Measurement) -> tuple[bool, float, float]:
    card = measurement.card
    share = (card.foreign_share or 0.0) if card is not None else 0.0
    is_slowed = card is not None and bool(card.throttle_reasons & SLOWED)
    return is_slowed, share if share > FOREIGN_CARD_SHARE else 0.0, _on_both_sides(measurement).foreign_cpus


def _on_both_sides(measurement: Measurement) -> Measurement:
    """By turns with what others had of its turns and of those that it is held against, second by second.

    By its own alone runs were left out, or run again, that others had made slow, and not those whose other side they
    had: equal configs came out faster by 2.2% (tests/benchmarks/false_improved_by_turns.py). So they did by 1.0% where
    both sides counted alike, and turns were a third as long as those of the script as written: those vary less.
    """
    reference = measurement.reference
    if reference is None or reference.foreign_cpus is None:
        return measurement
    share = 0.5 if reference.own_share is None else reference.own_share
    mean = share * measurement.foreign_cpus + (1 - share) * reference.foreign_cpus
    return replace(measurement, foreign_cpus=mean, stolen_cpus=min(measurement.stolen_cpus, mean))


def busy_cores(measurement: Measurement, spare_cores: int = 0) -> float:
    """Cores that would have been busy with the trial alone: those that it wanted, where that is known, else those that
    others had count as well, beyond ``spare_cores`` that a quota keeps from it. Never more than were busy with both.

    What waits for a disk or a network lacks no core, whoever uses them, and what computes lacks those that others have.
    The trial's own use of them doesn't tell one from the other: on two cores that others left 0.2 of, two threads used
    0.1 of them that slept for a millisecond after each 0.1 ms, and two that computed 0.2; these wanted 2.0.
    """
    own = measurement.cpu_s_per_sample * measurement.rate
    both = own + max(0.0, measurement.foreign_cpus - spare_cores)
    return both if measurement.wanted_cpus is None else min(both, max(own, measurement.wanted_cpus))


def own_cpus(runs: Iterable[Measurement]) -> float:
    """The cores that runs of one config use themselves, in the median."""
    return statistics.median(run.cpu_s_per_sample * run.rate for run in runs)


def contaminated_by(measurement: Measurement, host: Host | None, own_cpus: float) -> tuple[str, ...]:
    """Why a run of the finals is no evidence, a cause each, for people; () where it is evidence.

    ``own_cpus``: see ``Host.is_too_busy``. Without a ``host`` its cores aren't looked at. Of a card others may take
    ``CONTAMINATING`` times the allowed share.
    """
    busy = host is not None and host.is_too_busy(_on_both_sides(measurement).foreign_cpus, own_cpus)
    causes = ["other processes kept the machine busy"] if busy else []
    card = measurement.card
    if card is not None and card.throttle_reasons & SLOWED:
        causes.append(_slowed_text(card))
    if card is not None and (card.foreign_share or 0.0) > CONTAMINATING * FOREIGN_CARD_SHARE:
        causes.append("other processes kept the card busy")
    return tuple(causes)


def foreign_text(measurement: Measurement) -> str:
    """Who took how many cores, for people: other processes, the hypervisor, or both."""
    stolen = measurement.stolen_cpus
    others = f"other processes used {measurement.foreign_cpus - stolen:.1f}"
    if f"{stolen:.1f}" == "0.0":
        return others
    took = f"the hypervisor took {stolen:.1f}"
    return took if f"{measurement.foreign_cpus - stolen:.1f}" == "0.0" else f"{others} and {took}"


def throttle_text(reasons: int) -> str:
    """What limited a card's clocks, for people. ``reasons`` are NVML's bits."""
    return ", ".join(name for bit, name in THROTTLE_REASONS.items() if reasons & bit)


def _card_causes(card: CardUse | None) -> list[str]:
    if card is None:
        return []
    causes = [_slowed_text(card)] if card.throttle_reasons & SLOWED else []
    if (card.foreign_share or 0.0) > FOREIGN_CARD_SHARE:
        causes.append(f"other processes used {card.foreign_share:.0%} of the card")
    return causes


def _slowed_text(card: CardUse) -> str:
    return f"the card was slowed down: {throttle_text(card.throttle_reasons & SLOWED)}"
