"""The trials of a study: as a table with its footnotes, and as JSON."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tuner.analysis.bottleneck import bottleneck_of
from tuner.analysis.comparison import round_of
from tuner.analysis.contention import MOVED, Host, throttle_text
from tuner.analysis.gain import BaselineTrack, is_drawn, is_left_open, is_rough, score_of
from tuner.analysis.gain import gain as gain_of
from tuner.analysis.learning import least_efficiency
from tuner.analysis.turns import FEW_TURNS
from tuner.documents import measurement_document, plain
from tuner.formatting import (
    AS_WRITTEN,
    bottleneck_text,
    bytes_text,
    gain_text,
    number_text,
    remarks_of,
    result_text,
    rotated_text,
    run_text,
    seconds_text,
    share_text,
    shift_text,
)
from tuner.model import CardUse, Measurement, Phase, Trial
from tuner.objective import Objective
from tuner.report.table import Table

DRAWN_TEXT = "~ where turns scatter: the gain is drawn towards 1, and is not the quotient of the two rates"
_BY_RUNS_BESIDE = (Phase.FINALS, Phase.SCREEN)
"""Phases whose gains are to a run of the same round, or on the same seed, and not to the baseline at that time."""
_ALWAYS = 6
"""So many columns stand in every table; those behind only where a trial has something to say there."""


@dataclass(frozen=True)
class TrialsReport:
    """Trials, with their gains by an objective: the study's own, unless that can't be loaded any more.

    ``host``: the machine around them, None where nobody noted it; what holds the loop up is told by it.
    """

    trials: Sequence[Trial]
    objective: Objective
    host: Host | None = None

    def gain(self, trial: Trial) -> float | None:
        """The trial's ratio to the baseline at that time, above 1 for better: in the finals that of its round, by which
        they are decided; in a screen that of the same seed, which trains as long.
        """
        if trial.phase not in _BY_RUNS_BESIDE:
            return self._track.gain(trial)
        if not trial.config:
            return 1.0 if self.score(trial) is not None else None
        if trial.phase is Phase.SCREEN:
            own, written = self.score(trial), self.score(self._as_written_beside(trial))
            return gain_of(own, written, self.objective) if own is not None and written is not None else None
        same_round = (t for t in self.trials if t.phase is Phase.FINALS and _round(t) == _round(trial))
        found = round_of(next((t for t in same_round if not t.config), None), trial, self.objective)
        return gain_of(found.scores[1], found.scores[0], self.objective) if found is not None else None

    def score(self, trial: Trial | None) -> float | None:
        """The objective's figure; None where the trial has none."""
        return score_of(trial.outcome, self.objective) if trial is not None else None

    def sample_efficiency(self, trial: Trial) -> float | None:
        """As from which share of the samples a run of a screen learned, against the script as written on its seed."""
        if trial.phase is not Phase.SCREEN or not trial.config or trial.outcome is None:
            return None
        written = self._as_written_beside(trial)
        if written is None or written.outcome is None:
            return None
        return least_efficiency(written.outcome, trial.outcome)

    def _as_written_beside(self, screen: Trial) -> Trial | None:
        """The run of the script as written on the seed and the samples of a run of a screen; None before it ended."""
        key = (screen.phase, screen.seed, screen.samples)
        alike = (t for t in self.trials if (t.phase, t.seed, t.samples) == key and not t.config)
        return next((trial for trial in alike if trial.outcome is not None), None)

    def table(self) -> Table:
        """A row a trial; a ~ marks an approximate gain: the baseline drifted around the trial, its turns scatter, or
        its rate, or that of the script as written on its seed, is left open.

        The objective has its column where it isn't the rate itself. So have the load of others, and what the driver
        said of a card, where there was any.
        """
        columns = ["trial", "phase", "config", "result", "gain", "time", self.objective.name, "other load", "card"]
        rows = [self._row(trial) for trial in self.trials]
        shown = [i for i in range(len(columns)) if i < _ALWAYS or any(row[i] for row in rows)]
        return Table(
            [columns[i] for i in shown], [[row[i] for i in shown] for row in rows],
            frozenset({"trial", "gain", "time", self.objective.name}),
        )  # fmt: skip

    def footnotes(self) -> list[str]:
        """What there is to say below the table, a line each."""
        bottleneck = bottleneck_of(self.trials, self.host)
        lines = [bottleneck_text(bottleneck)] if bottleneck is not None else []
        lines += [shift_text(shift) for shift in self._track.shifts(MOVED)]
        lines += [DRAWN_TEXT] * any(self.gain(trial) is not None and is_drawn(trial) for trial in self.trials)
        lines += [f"{AS_WRITTEN}: {remark}" for remark in remarks_of(self.trials)]
        for trial in self.trials:
            lines += _ranked(trial)
            outcome = trial.outcome
            if outcome is not None and outcome.detail and (not outcome.complete or outcome.detail == FEW_TURNS):
                lines.append(f"trial {trial.number}: {outcome.detail}")
        return lines

    def documents(self) -> list[dict[str, Any]]:
        """The trials for programs, without raw blocks: those are in the trials' own folders."""
        return [self._document(trial) for trial in self.trials]

    @property
    def _track(self) -> BaselineTrack:
        return BaselineTrack(self.trials, self.objective)

    def _row(self, trial: Trial) -> list[str]:
        gain, score, measurement = self.gain(trial), self.score(trial), trial.measurement
        is_rate = score is None or (measurement is not None and score == measurement.rate)
        return [
            str(trial.number), str(trial.phase), run_text(trial), result_text(trial),
            gain_text(gain, rough=self._is_rough(trial)) if gain is not None else "",
            seconds_text(trial.outcome.seconds) if trial.outcome is not None else "",
            "" if is_rate or score is None else f"{number_text(score)} {self.objective.unit}",
            load_text(measurement) if measurement is not None else "",
            card_text(measurement.card) if measurement is not None and measurement.card is not None else "",
        ]  # fmt: skip

    def _is_rough(self, trial: Trial) -> bool:
        if not trial.config and trial.phase is Phase.SCREEN:
            return False  # what it is held against is itself
        written = self._as_written_beside(trial) if trial.phase is Phase.SCREEN else None
        drifted = trial.phase not in _BY_RUNS_BESIDE and self._track.drift(trial.number) > MOVED
        return drifted or is_left_open(trial) or is_rough(written)

    def _document(self, trial: Trial) -> dict[str, Any]:
        outcome, measurement = trial.outcome, trial.measurement
        return {
            "number": trial.number, "phase": str(trial.phase), "config": dict(trial.config), "why": trial.why,
            "round": trial.round, "seed": trial.seed, "group": list(trial.group), "samples": trial.samples,
            "side": str(trial.side) if trial.side is not None else None, "objective": self.objective.name,
            "score": plain(self.score(trial)), "gain": self.gain(trial),
            "sample_efficiency": self.sample_efficiency(trial),
            "drift": self._track.drift(trial.number), "outcome": str(outcome.kind) if outcome else None,
            "reason": outcome.reason if outcome else "", "detail": outcome.detail if outcome else "",
            "seconds": outcome.seconds if outcome else None,
            "remarks": list(outcome.knowledge.remarks) if outcome else [],
            "measurement": measurement_document(measurement) if measurement is not None else None,
            "rotation": [plain(asdict(each)) for each in outcome.rotation] if outcome else [],
        }  # fmt: skip


def _ranked(trial: Trial) -> list[str]:
    """What a rotation said of each config, the fastest first."""
    rotation = trial.outcome.rotation if trial.outcome is not None else ()
    if not rotation:
        return []
    ranked = sorted(rotation, key=lambda each: -each.gain.ratio if each.gain is not None else math.inf)
    head = f"trial {trial.number}, by turns in one process, which ranks configs and proves nothing:"
    return [head, *(f"  {rotated_text(each)}" for each in ranked)]


def load_text(measurement: Measurement) -> str:
    """How many cores were lost to others; "" for less than a twentieth of one."""
    if measurement.foreign_cpus < 0.05:
        return ""
    stolen = f" ({measurement.stolen_cpus:.1f} stolen)" if measurement.stolen_cpus >= 0.05 else ""
    return f"{measurement.foreign_cpus:.1f} CPUs{stolen}"


def card_text(card: CardUse) -> str:
    """A card's clock, temperature, what throttled it, and who else was on it."""
    parts = [f"{card.sm_mhz:.0f} MHz"] if card.sm_mhz is not None else []
    if parts and card.lowest_sm_mhz != card.sm_mhz:
        parts[0] += f" (min {card.lowest_sm_mhz:.0f})"
    if card.hottest_celsius is not None:
        parts.append(f"{card.hottest_celsius:.0f} °C")
    if card.throttle_reasons:
        parts.append(throttle_text(card.throttle_reasons))
    if card.foreign_share:
        parts.append(f"{share_text(card.foreign_share)} used by other processes")
    elif card.foreign_bytes:
        parts.append(f"{bytes_text(card.foreign_bytes)} held by other processes")
    return ", ".join(parts)


def _round(trial: Trial) -> tuple[tuple[int, ...], int | None]:
    """Which finals a run belongs to, and which round of them."""
    return trial.group, trial.round
