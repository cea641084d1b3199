"""The waterfall: from the script as written to the fastest single trial, change by change. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tuner.analysis.comparison import with_effect
from tuner.analysis.contention import MOVED
from tuner.analysis.gain import BaselineTrack, is_left_open
from tuner.model import BASELINE, Config, Phase, Trial, WaterfallEntry, same_value

SEARCHED = (Phase.BASELINE, Phase.SEARCH)
NO_LOSS = 0.98
"""A change that loses more than this is none that others were built on."""


def waterfall(trials: Sequence[Trial], track: BaselineTrack) -> tuple[WaterfallEntry, ...]:
    """The chain of configs that leads to the fastest single trial, each with the knobs of the one before.

    The first entry is the baseline; () where that has no score. ``track`` is that of the same trials. The search builds
    each config on the best one so far: of the earlier ones, the one that differs from it least and lost nothing itself.
    """
    tried = {trial.config for trial in trials if trial.phase in SEARCHED}
    before: dict[int, Trial] = {}
    bases: list[Trial] = []
    gains: dict[int, float] = {}
    for trial in sorted(trials, key=lambda t: t.number):
        gain = track.gain(trial) if trial.phase in SEARCHED else None
        if gain is None or not (bases or trial.phase is Phase.BASELINE):
            continue
        if _has_no_effect(trial) and with_effect(trial) in tried:
            continue
        built_on = _built_on(trial, bases, gains)
        if built_on is not None:
            if gain < NO_LOSS * gains[built_on.number]:
                continue
            before[trial.number] = built_on
        gains[trial.number] = gain
        bases.append(trial)
    if not bases:
        return ()
    chain = [max(bases, key=lambda t: gains[t.number])]
    while chain[0].number in before:
        chain.insert(0, before[chain[0].number])
    return tuple(
        _change(trial, previous, gains, track)
        for trial, previous in zip(chain, [None, *chain], strict=False)
    )


def _has_no_effect(trial: Trial) -> bool:
    """Whether it changes a knob without effect: what it shows beyond the same config without that knob is chance."""
    return with_effect(trial) != trial.config


def _built_on(trial: Trial, bases: Sequence[Trial], gains: Mapping[int, float]) -> Trial | None:
    """The trial without knobs of its own that differs least; of several the simplest."""
    fewer = [other for other in bases if other.config.keys() <= trial.config.keys()]
    return min(
        fewer, key=lambda t: (len(_added(trial.config, t.config)), len(t.config), -gains[t.number]), default=None
    )


def _added(config: Config, earlier: Config) -> Config:
    return Config({knob: value for knob, value in config.items() if not same_value(value, earlier.get(knob))})


def _change(trial: Trial, previous: Trial | None, gains: Mapping[int, float], track: BaselineTrack) -> WaterfallEntry:
    measurement, score = trial.measurement, track.score(trial)
    assert measurement is not None and score is not None, "a gain comes from a measurement"
    added = _added(trial.config, previous.config if previous is not None else BASELINE)
    return WaterfallEntry(
        trial=trial.number, added=added, measurement=measurement, score=score,
        gain=gains[trial.number] / gains[previous.number] if previous is not None else 1.0,
        total=gains[trial.number], rough=track.drift(trial.number) > MOVED or is_left_open(trial),
        knobs=tuple(report for report in measurement.knobs if report.knob in added),
    )  # fmt: skip
