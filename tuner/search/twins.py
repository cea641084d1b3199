"""Near-twins: configs that differ only in what was seen to make no difference. Pure.

One of two such configs says all that both could: the other one isn't tried, screened or proven before anything else.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping

import numpy as np

from tuner.analysis.bottleneck import INPUT_SHARE
from tuner.analysis.tiers import Tiers
from tuner.model import Config, Ratio, Value, same_value
from tuner.search.rotation import MOST_BIAS, Ranking
from tuner.search.tried import Tried
from tuner.space.resolved import ResolvedSpace

ALIKE = 0.02
"""Logarithms of gains that differ by no more are alike."""
TOO_ROUGH = 0.06
"""Two gains whose difference is less certain than this standard deviation say nothing of what makes none."""
SURE = 1.64
"""Two rough gains differ where they do by so many standard deviations."""
_Change = tuple[int, int, int, bool]


class Twins:
    """What the trials say of which values act alike.

    A change of one knob's value makes no difference where two trials that differ in nothing else are alike, and none
    that waits for its data as they do, or computes as they do, says otherwise. A rotation, whose ratios are rough, says
    it of one value more or less only, and only where it knows both well. What several changes bring adds up. Configs
    whose own trials differ are none.
    """

    def __init__(self, space: ResolvedSpace, tried: Tried, ranking: Ranking) -> None:
        self._space = space
        self._ranking = ranking
        self._own = {
            trial.config: (float(gain), float(noise))
            for trial, gain, noise in zip(tried.trials, tried.gains, tried.noise, strict=True)
        }
        waits = tried.waits >= INPUT_SHARE
        self._waits = {trial.config: bool(wait) for trial, wait in zip(tried.trials, waits, strict=True)}
        self._idle = self._without_difference(tried)

    def are_twins(self, config: Mapping[str, Value], other: Mapping[str, Value]) -> bool:
        """Whether a config tells nothing that the other one, which was tried, hasn't told."""
        one, two = self._space.canonical(config), self._space.canonical(other)
        if one == two:
            return True
        if self._differ(one, two):
            return False
        if one in self._ranking and two in self._ranking and self._is_one_change(one, two):
            return _are_alike_by_rotation(self._ranking[one].gain, self._ranking[two].gain)
        ours, theirs = self._space.row_of(one), self._space.row_of(two)
        waits = self._waits.get(two, self._waits.get(one))
        if ours is None or theirs is None or waits is None:
            return False
        gained = 0.0
        for place, (own, before) in enumerate(zip(ours, theirs, strict=True)):
            if own == before:
                continue
            upwards = self._idle.get((place, min(own, before), max(own, before), waits))
            if upwards is None:
                return False
            gained += upwards if own > before else -upwards
        return abs(gained) <= ALIKE

    def _differ(self, one: Config, other: Config) -> bool:
        """Whether both have a trial, and these differ by more than they are rough."""
        if one not in self._own or other not in self._own:
            return False
        (own, noise), (others, other_noise) = self._own[one], self._own[other]
        rough = math.hypot(noise, other_noise)
        return abs(own - others) > (ALIKE if rough <= TOO_ROUGH else SURE * rough)

    def _is_one_change(self, one: Config, other: Config) -> bool:
        """Whether one of them is the other with a value of one more knob."""
        fewer, more = sorted((dict(one), dict(other)), key=len)
        return len(more) == len(fewer) + 1 and all(same_value(more.get(knob), value) for knob, value in fewer.items())

    def _without_difference(self, tried: Tried) -> Mapping[_Change, float]:
        """The places of an axis and of two of its values, the earlier one first, and whether the loop waits: changes
        that were seen to do nothing → the mean of what the later value brought beyond the earlier, as a logarithm.
        """
        differ = tried.indices[:, None, :] != tried.indices[None, :, :]
        ones, twos = np.nonzero(np.triu(differ.sum(axis=2) == 1))
        if not len(ones):
            return {}
        places = differ[ones, twos].argmax(axis=1)
        own, other = tried.indices[ones, places], tried.indices[twos, places]
        gained = (tried.gains[ones] - tried.gains[twos]) * np.where(own > other, 1, -1)
        rough = np.hypot(tried.noise[ones], tried.noise[twos]) > TOO_ROUGH
        waits = tried.waits >= INPUT_SHARE
        tells = (waits[ones] == waits[twos]) & ~((np.abs(gained) <= ALIKE) & rough)
        columns = (places, np.minimum(own, other), np.maximum(own, other), waits[ones], gained)
        seen: dict[_Change, list[float]] = defaultdict(list)
        for *change, brought in zip(*(column[tells].tolist() for column in columns), strict=True):
            seen[tuple(change)].append(brought)
        return {
            change: statistics.fmean(gains) for change, gains in seen.items() if all(abs(own) <= ALIKE for own in gains)
        }  # fmt: skip


def tells_no_more(config: Config, better: Iterable[Config], twins: Twins, tiers: Tiers) -> bool:
    """Whether a config is a near-twin of one of the better ones that changes no more than it does, by their tiers."""
    own = tiers.of(config)
    return any(tiers.of(one) <= own and twins.are_twins(config, one) for one in better)


def _are_alike_by_rotation(one: Ratio | None, other: Ratio | None) -> bool:
    """Whether two ratios are, each known to what a rotation may be off by in any case."""
    if one is None or other is None:
        return False
    is_known = all(each.low > 0 and each.high / each.low < MOST_BIAS**2 * 1.01 for each in (one, other))
    return is_known and abs(math.log(one.ratio / other.ratio)) <= ALIKE
