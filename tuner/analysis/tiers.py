"""The best config of each tier: 1 changes nothing but speed, 2 the numerics, 3 the optimisation. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from tuner.analysis.accuracy import Screened
from tuner.analysis.gain import BaselineTrack
from tuner.model import Config, Phase, TierBest, Trial, Verdict, Winner


def tier_of(config: Config, tiers: Mapping[str, int]) -> int:
    """The highest tier of the config's knobs; ``tiers`` is knob → tier, and one that it lacks is of tier 1."""
    return max((tiers.get(knob, 1) for knob in config), default=1)


def learned(config: Config, tier: int, screened: Iterable[Screened]) -> str:
    """The verdict of the config's screen, or why there is none."""
    for screen in screened:
        if screen.config == config:
            return str(screen.verdict)
    return "not-needed" if tier == 1 else "not-screened"


def best_of_tiers(
    trials: Sequence[Trial],
    track: BaselineTrack,
    tiers: Mapping[str, int],
    winner: Winner | None,
    screened: Sequence[Screened],
) -> tuple[TierBest, ...]:
    """The best of each tier that has any, by tier: what the finals proved, else the fastest single trial with a gain.

    ``track`` is that of the same trials, ``screened`` what the screens showed.
    """
    proven = winner.config if winner is not None and winner.verdict is Verdict.IMPROVED else None
    best: dict[int, tuple[bool, float, Trial]] = {}
    for trial in trials:
        gain = track.gain(trial) if trial.phase is Phase.SEARCH else None
        if gain is None or gain <= 1.0 or not trial.config:
            continue
        own = (trial.config == proven, gain, trial)
        tier = tier_of(trial.config, tiers)
        if tier not in best or own[:2] > best[tier][:2]:
            best[tier] = own
    return tuple(
        TierBest(
            tier=tier, config=trial.config, gain=gain, proven=is_proven, learned=learned(trial.config, tier, screened),
            speedup=winner.speedup if winner is not None and trial.config == winner.config else None,
        )
        for tier, (is_proven, gain, trial) in sorted(best.items())
    )  # fmt: skip
