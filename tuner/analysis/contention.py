"""When a measurement says more of the machine's other work, or of its heat, than of the config. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tuner.model import CardUse, Measurement, Outcome

FOREIGN_CARD_SHARE = 0.1
"""Of the time of a card's multiprocessors."""
CONTAMINATING = 2.5
"""So many times what is allowed, and a run in the finals proves nothing: load of that size turns conclusions around."""
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

    ``spare_cores`` are those that a quota keeps from us: whoever uses them takes nothing from us.
    """

    cores: int
    foreign_share: float
    spare_cores: int = 0

    def allowed_foreign_cpus(self, times: float = 1.0) -> float:
        """Cores that other processes may use beside a measurement, or so many ``times`` what is allowed."""
        return self.spare_cores + times * self.cores * self.foreign_share


def contamination(outcome: Outcome, host: Host) -> str:
    """What disturbed the measurement, in a few words; "" where nothing much did."""
    measurement = outcome.measurement
    if measurement is None or not outcome.complete:
        return ""
    parts = []
    if measurement.foreign_cpus > host.allowed_foreign_cpus():
        parts.append(f"{foreign_text(measurement)} of {host.cores + host.spare_cores} cores")
    return "; ".join([*parts, *_troubles(measurement.card, FOREIGN_CARD_SHARE)])


def disturbance(outcome: Outcome, host: Host) -> tuple[bool, float]:
    """Orders runs of one config, the calmest first: whether the card was slowed down, then how busy others were."""
    measurement = outcome.measurement
    if measurement is None or not outcome.complete:
        return True, math.inf
    card = measurement.card
    busy = measurement.foreign_cpus / host.allowed_foreign_cpus()
    on_card = (card.foreign_share or 0.0) / FOREIGN_CARD_SHARE if card is not None else 0.0
    return card is not None and bool(card.throttle_reasons & SLOWED), max(busy, on_card)


def contaminated_by(measurement: Measurement, most_foreign_cpus: float) -> tuple[str, ...]:
    """What contaminated a run of the finals so much that it is no evidence, a line each; empty where nothing did.

    ``most_foreign_cpus`` are the cores that others may use (``Host.allowed_foreign_cpus``).
    """
    machine = ["other processes kept the machine busy"] if measurement.foreign_cpus > most_foreign_cpus else []
    card = measurement.card
    if card is not None and card.throttle_reasons & SLOWED:
        machine.append(_slowed_text(card))
    if card is not None and (card.foreign_share or 0.0) > CONTAMINATING * FOREIGN_CARD_SHARE:
        machine.append("other processes kept the card busy")
    return tuple(machine)


def foreign_text(measurement: Measurement) -> str:
    """Who took how many cores."""
    stolen = measurement.stolen_cpus
    others = f"other processes used {measurement.foreign_cpus - stolen:.1f}"
    if f"{stolen:.1f}" == "0.0":
        return others
    took = f"the hypervisor took {stolen:.1f}"
    return took if f"{measurement.foreign_cpus - stolen:.1f}" == "0.0" else f"{others} and {took}"


def throttle_text(reasons: int) -> str:
    """What limited a card's clocks, in words."""
    return ", ".join(name for bit, name in THROTTLE_REASONS.items() if reasons & bit)


def _troubles(card: CardUse | None, most_share: float) -> list[str]:
    if card is None:
        return []
    slowed = [_slowed_text(card)] if card.throttle_reasons & SLOWED else []
    if (card.foreign_share or 0.0) > most_share:
        slowed.append(f"other processes used {card.foreign_share:.0%} of the card")
    return slowed


def _slowed_text(card: CardUse) -> str:
    return f"the card was slowed down: {throttle_text(card.throttle_reasons & SLOWED)}"
