"""The best config of each tier: 1 changes nothing but speed, 2 the numerics, 3 the optimisation. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tuner.analysis.accuracy import Screened
from tuner.analysis.gain import BaselineTrack
from tuner.analysis.stats import Noninferiority
from tuner.knowledge import BATCH_KNOBS, Knowledge, changes_batch
from tuner.model import Config, Phase, TierBest, Trial, Value, Verdict, Winner, same_value

BY_TIME = "pass-by-time"
"""It learns enough from each sample for its speed, and not as much as the script as written."""
_SUMS = 2
_OPTIMISATION = 3


@dataclass(frozen=True)
class Tiers:
    """``of_knobs`` is knob → tier, and one that it lacks is of tier 1; ``knowledge`` says what the script wrote."""

    of_knobs: Mapping[str, int] = field(default_factory=dict)
    knowledge: Knowledge = field(default_factory=Knowledge)

    def of(self, config: Config) -> int:
        """3 where it changes the effective batch, else the highest of its knobs.

        Parts of the same batch change the order of sums: their two knobs count as the numerics then.
        """
        return max((self.of_knob(knob, config) for knob in config), default=1)

    def of_knob(self, knob: str, config: Config) -> int:
        """What the knob may change in that config."""
        if knob in BATCH_KNOBS:
            return _OPTIMISATION if changes_batch(config, self.knowledge) else _SUMS
        return self.of_knobs.get(knob, 1)

    def beyond_speed(self, config: Config) -> Config:
        """Those of its knobs that may change more than speed, and so how it learns."""
        return Config({knob: value for knob, value in config.items() if self.of_knob(knob, config) > 1})


def rejected_part(screened: Screened, tiers: Tiers) -> Config:
    """What of a config that a screen has rejected would be rejected with any other knobs: those that change more than
    speed. All of its knobs where a run failed, which may be the doing of each.
    """
    return (tiers.beyond_speed(screened.config) if screened.checks else None) or screened.config


def holds(config: Mapping[str, Value], part: Mapping[str, Value]) -> bool:
    """Whether the config turns all of the part, and the batch in the same way where that is of it: another number of
    parts makes another batch.
    """
    batch = BATCH_KNOBS if any(knob in part for knob in BATCH_KNOBS) else ()
    return all(same_value(config.get(knob), part.get(knob)) for knob in {*part, *batch})


def learned(config: Config, tier: int, screened: Iterable[Screened]) -> str:
    """The verdict of the config's screen, ``BY_TIME`` where it was held to its speed, or why there is none."""
    for screen in screened:
        if screen.config == config:
            return BY_TIME if screen.by_time and screen.verdict is Noninferiority.PASS else str(screen.verdict)
    return "not-needed" if tier == 1 else "not-screened"


def best_of_tiers(
    trials: Sequence[Trial],
    track: BaselineTrack,
    tiers: Tiers,
    winners: Sequence[Winner],
    screened: Sequence[Screened],
    *,
    larger: Config | None = None,
) -> tuple[TierBest, ...]:
    """The best of each tier that has any, by tier: what the finals proved, else the fastest single trial with a gain.

    ``larger``: the config that the contest of larger batches came to, if any. It stands for its tier though another one
    was read as faster: of these the best is whatever reaches a loss soonest.

    ``track`` is that of the same trials, ``winners`` what finals judged, ``screened`` what the screens showed.
    """
    proven = {winner.config for winner in winners if winner.verdict is Verdict.IMPROVED}
    speedups = {winner.config: winner.speedup for winner in winners}
    best: dict[int, tuple[bool, bool, float, Trial]] = {}
    for trial in trials:
        gain = track.gain(trial) if trial.phase is Phase.SEARCH else None
        if gain is None or gain <= 1.0 or not trial.config:
            continue
        own = (trial.config in proven, trial.config == larger, gain, trial)
        tier = tiers.of(trial.config)
        if tier not in best or own[:3] > best[tier][:3]:
            best[tier] = own
    return tuple(
        TierBest(
            tier=tier, config=trial.config, gain=gain, proven=is_proven, learned=learned(trial.config, tier, screened),
            speedup=speedups.get(trial.config),
        )
        for tier, (is_proven, _, gain, trial) in sorted(best.items(), key=lambda item: item[0])
    )  # fmt: skip
