"""Which configs take turns in one process, and what their ranking says. Pure.

A rotation screens: it says which configs get a trial of their own first, and which none. Against fresh processes its
ratios were off by up to ``MOST_BIAS``; nothing is called faster by it.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from tuner.analysis.bottleneck import INPUT_SHARE, bottleneck_of
from tuner.analysis.cold_start import COMPILE
from tuner.analysis.contention import Host
from tuner.analysis.rotation import ENDED, TOO_FEW
from tuner.model import Config, Measurement, OutcomeKind, Phase, Rotated, Trial, Value, baseline_of, same_value
from tuner.search.waiting import WAITING, costly_wait, host_around
from tuner.space.resolved import Axis, ResolvedSpace

FEWEST = 3
"""With fewer configs than that a trial of each tells as much in the same time."""
MOST = 12
"""Of a rotation: more would have too few turns each."""
MOST_NUMBERS = 4
"""Of numbers of workers: the largest one, and those below it by about half each."""
LONGEST_STEP_S = 0.25
"""Steps of the script as written that take longer make turns too long in which a loader shows what it can keep up."""
FEWEST_COMBINED, MOST_COMBINED = 2, 6
MOST_RUNS = 3
"""The values one by one, what helped in combinations, and one of the two again after an error in it."""
MOST_BIAS = 1.2
"""By so much a ratio of a rotation may be off from that of fresh processes, either way."""
MOST_UNMEASURED_BIAS = 1.5
"""So where a loader or a compiler is among the knobs: nobody has measured on a quiet machine how far off."""
LOSES = 0.97
"""A config whose ratio is sure to be below that, by the rotation, and by the bias besides, loses."""
LOSES_IN_COMPANY = 0.75
"""A value whose ratio by itself is so sure to be below that isn't tried with others either. One that loses less may
gain there: channels-last costs a third in float32 on some cards, and gains in bf16."""
FEWEST_STEPS = 4
"""Of a turn, where a ranking may leave configs out: with fewer it matters which ones a turn holds, and those of a loop
may differ, as a GAN's do. What as many hold is alike where stretches are (``MOST_UNEVEN``)."""
MOST_UNEVEN = 0.2
"""How far stretches of the script as written may differ in rate there (standard deviation, relative to the mean)."""
MOST_FOREIGN = 0.1
"""Of the cores, that others may take there: beside strangers' work fewer threads look faster, and aren't."""
NOT_WORSE = 0.95
"""A value whose ratio by itself is sure to be below that isn't combined with others."""

Ranking = Mapping[Config, Rotated]
Fits = Callable[[Sequence[Config]], bool]
"""Whether there is time for a rotation of these configs."""


def ranking_of(trials: Iterable[Trial]) -> Ranking:
    """Each config that has a gain from a rotation, the fastest first; of several the last one counts."""
    found = {
        each.config: each for trial in trials if trial.phase is Phase.ROTATION and trial.outcome is not None
        for each in trial.outcome.rotation if each.gain is not None
    }  # fmt: skip
    return dict(sorted(found.items(), key=lambda item: -_ratio(item[1])))


def next_rotation(
    space: ResolvedSpace,
    trials: Iterable[Trial],
    most_compiled: int | None = None,
    fits: Fits = lambda configs: True,
) -> tuple[Config, ...]:
    """The configs of the next rotation, by those that were made; empty where there is no other.

    First each value by itself, then combinations of what helped: as many as there is time for, and the fewest where
    there is none for these either. Of those that turn a compiler there are so many at most, which have their first
    turns last; None where they take no longer than others. Where an error in one config ended the process, the others
    go on once, without it. After one that took too long there is none: that was no config's fault.
    """
    trials = list(trials)
    outcomes = [t.outcome for t in trials if t.phase is Phase.ROTATION and t.outcome is not None]
    runs = [outcome.rotation for outcome in outcomes]
    values = _singles(space, trials)
    by_worth = _of_each_knob_first(space, values)
    singles = _limited(space, values, by_worth, (FEWEST, MOST), most_compiled=most_compiled, fits=fits)
    if len(singles) < FEWEST or space.pinned or len(runs) >= MOST_RUNS:
        return ()
    if any(outcome.kind is OutcomeKind.UNFINISHED for outcome in outcomes):
        return ()
    if not runs:
        return tuple(singles)
    told = {each.config: each for run in runs for each in run}
    combined = any(len(config) > 1 for config in told)
    ranking = ranking_of(trials)
    found = _combinations(space, ranking)
    bounds = (FEWEST_COMBINED, MOST_COMBINED)
    combinations = _limited(space, found, found, bounds, most_compiled=most_compiled, fits=fits)
    if _broke(runs[-1]):
        asked = combinations if combined else singles
        left = [config for config in asked if config not in told or told[config].fault == TOO_FEW]
        first = sum(map(_broke, runs)) == 1
        return tuple(left) if first and len(left) > 1 else ()
    return () if combined else tuple(combinations)


def loads(space: ResolvedSpace, configs: Iterable[Config]) -> bool:
    """Whether any of the configs takes a loader of its own."""
    return any(not loader_knobs(space).isdisjoint(config) for config in configs)


def loader_knobs(space: ResolvedSpace) -> frozenset[str]:
    """The names of all knobs of a loader, those that the user has pinned among them."""
    return frozenset(knob.name for knob in space.space.knobs if knob.loader)


def compiled(space: ResolvedSpace, configs: Iterable[Config]) -> int:
    """How many of the configs turn a compiler."""
    return sum(_compiles(space, config) for config in configs)


def _compiles(space: ResolvedSpace, config: Config) -> bool:
    return any(axis.knob.late and axis.knob.name in config for axis in space.axes)


def _limited(
    space: ResolvedSpace,
    configs: Sequence[Config],
    by_worth: Sequence[Config],
    bounds: tuple[int, int],
    *,
    most_compiled: int | None,
    fits: Fits,
) -> list[Config]:
    """As many as there is time for, in their order, those that turn a compiler behind the others; the fewest where
    there is time for none, so that it can be told; none where these are fewer still.

    ``by_worth``: the same, those that are left out first at its end; before any other those that turn a compiler are,
    of which there are ``most_compiled`` at most, unless that is None. ``bounds``: the fewest and the most.
    """
    fewest, most = bounds
    compilers = [most] if most_compiled is None else list(range(min(most_compiled, most), -1, -1))
    chosen: list[Config] = []
    for count in range(min(most, len(configs)), fewest - 1, -1):
        for so_many in compilers:
            found = _first(space, by_worth, count, so_many)
            if len(found) >= fewest:
                chosen = sorted(found, key=lambda config: (_compiles(space, config), configs.index(config)))
                if fits(chosen):
                    return chosen
    return chosen


def _first(space: ResolvedSpace, configs: Iterable[Config], count: int, compilers: int) -> list[Config]:
    """The first ones, so many in all, and no more than that of those that turn a compiler."""
    chosen: list[Config] = []
    for config in configs:
        fits = compiled(space, chosen) < compilers or not _compiles(space, config)
        if fits and len(chosen) < count:
            chosen.append(config)
    return chosen


def _of_each_knob_first(space: ResolvedSpace, singles: Iterable[Config]) -> list[Config]:
    """A value of each knob, then a second one of each, and so on: of numbers of workers and calls the largest first."""
    values: dict[str, list[Config]] = {}
    for config in singles:
        values.setdefault(next(iter(config)), []).append(config)
    downwards = {axis.knob.name for axis in space.axes if axis.knob.waits_at_times}
    columns = (of[::-1] if knob in downwards else of for knob, of in values.items())
    return [config for row in itertools.zip_longest(*columns) for config in row if config is not None]


def _loader_knobs(space: ResolvedSpace) -> frozenset[str]:
    return frozenset(axis.knob.name for axis in space.axes if axis.knob.loader)


def may_leave_out(trials: Iterable[Trial], cores: int) -> bool:
    """Whether what a rotation ranked low may get no trial: its turns held many steps that are alike, and were calm.

    Else it says what to try first, and nothing more.
    """
    trials = list(trials)
    blocks = [t.measurement.blocks for t in trials if t.phase is Phase.BASELINE and t.measurement]
    many = all(statistics.median(block.steps for block in of) >= FEWEST_STEPS for of in blocks if of)
    return many and was_calm(trials, cores)


def was_calm(trials: Iterable[Trial], cores: int) -> bool:
    """Whether there was a rotation, others took hardly any of the cores in any, and stretches of the script as written
    that are as long as turns are alike.
    """
    trials = list(trials)
    found = [trial.measurement for trial in trials if trial.phase is Phase.ROTATION]
    calm = bool(found) and all(one is not None and one.foreign_cpus <= MOST_FOREIGN * cores for one in found)
    baselines = [trial.measurement for trial in trials if trial.phase is Phase.BASELINE]
    alike = [_has_even_stretches(one) for one in baselines if one is not None]
    return calm and bool(alike) and all(alike)


def _has_even_stretches(as_written: Measurement) -> bool:
    blocks = as_written.blocks
    if len(blocks) < 2:
        return False
    counted = any(block.samples for block in blocks)
    rates = [(block.samples if counted else block.steps) / block.seconds for block in blocks]
    return statistics.stdev(rates) <= MOST_UNEVEN * statistics.fmean(rates)


def loses(
    config: Mapping[str, Value],
    ranking: Ranking,
    wait: float = 0.0,
    loaders: Collection[str] = (),
    *,
    more: float = 1.0,
) -> bool:
    """Whether a rotation showed that the config clearly loses, or a value of it by itself loses by far.

    What a config gains may be ``more`` times the ratio of the rates, as where it starts sooner.
    ``wait`` is the share of its time in which the script as written waits for its data: computing that takes longer
    costs nothing as long as it lies within that. A value isn't judged by itself beside others that no rotation turned:
    what costs in small batches may gain in large ones, and fewer threads leave cores to loader workers. So it isn't
    where the config turns knobs of the loader (``loaders``) and others: one of them may pay for what another costs.
    """
    whole, hidden = Config(config), (1 - wait) / more
    if whole in ranking:
        return _is_below(ranking[whole], LOSES * hidden, loaders)
    turned = {knob for ranked in ranking for knob in ranked}
    feeding = [knob for knob in config if knob in loaders]
    if not turned.issuperset(config) or 0 < len(feeding) < len(config):
        return False
    alone = (Config({knob: value}) for knob, value in config.items())
    return any(_is_below(ranking[each], LOSES_IN_COMPANY * hidden, loaders) for each in alone if each in ranking)


def is_outranked(
    config: Config, other: Config, ranking: Ranking, loaders: Collection[str] = (), *, more: float = 1.0
) -> bool:
    """Whether a rotation ranks the config clearly below the other one, over which it may gain ``more`` times the ratio
    of their rates: see ``loses``.
    """
    best = ranking[other].gain if other in ranking else None
    beside = [knob for knob in other if knob in loaders or knob == COMPILE]
    loaders = [*loaders, *config] if beside else loaders  # the other one's ratio is as doubtful
    return best is not None and config in ranking and _is_below(ranking[config], best.low / more, loaders)


def worth_a_trial(ranking: Ranking, least: float, most: int) -> list[Config]:
    """The configs that are ranked highest, as long as they may be as fast as the first one."""
    first = next(iter(ranking.values()), None)
    if first is None or first.gain is None:
        return []
    low = first.gain.low
    fit = [each.config for each in ranking.values() if each.gain is not None and each.gain.high >= low]
    return [config for config in fit if _ratio(ranking[config]) > least][:most]


def bias_of(config: Config, loaders: Collection[str], *, calm: bool = True) -> float:
    """By so much a rotation's ratio of the config may be off, either way. ``calm``: see ``was_calm``."""
    rough = not calm or any(knob in loaders or knob == COMPILE for knob in config)
    return MOST_UNMEASURED_BIAS if rough else MOST_BIAS


def _is_below(rotated: Rotated, bound: float, loaders: Collection[str]) -> bool:
    bias = bias_of(rotated.config, loaders)
    return rotated.gain is not None and rotated.gain.high < bound and rotated.gain.ratio < bound / bias


def _ratio(rotated: Rotated) -> float:
    return rotated.gain.ratio if rotated.gain is not None else 0.0


def _broke(run: Sequence[Rotated]) -> bool:
    return any(each.fault == ENDED for each in run)


def _singles(space: ResolvedSpace, trials: Sequence[Trial]) -> list[Config]:
    """Each value that can be switched to, by itself: not of knobs that something of the script's own sets.

    An option of its own for its loader makes no difference, since configs get loaders beside the one that it made.
    """
    known, feeds, stay = space.knowledge, _feeds(trials, host_around(space)), _loader_knobs(space)
    options = (name for name in known.options if name not in stay)
    unwanted = {*known.placeholders, *known.suggested, *options}
    if space.ranks > 1:  # nobody has tried what compiles by turns, where several wait for each other
        unwanted |= {axis.knob.name for axis in space.axes if axis.knob.late or _is_fixed(axis, space)}
    configs = [
        space.canonical({axis.knob.name: value})
        for axis in space.axes
        if axis.knob.switchable and axis.knob.name not in unwanted and (feeds or not axis.knob.loader)
        for value in _values(axis, space.cores)
    ]  # fmt: skip
    return [config for config in dict.fromkeys(configs) if len(config) == 1 and space.allows(config)]


def _is_fixed(axis: Axis, space: ResolvedSpace) -> bool:
    fixed = axis.knob.fixed_in_ranks
    return fixed is not None and fixed(space.knowledge)


def _feeds(trials: Sequence[Trial], host: Host | None) -> bool:
    """Whether another loader may bring anything to the script as written, and shows in turns that aren't too long."""
    baseline, bottleneck = baseline_of(trials), bottleneck_of(trials, host)
    measured = baseline.measurement if baseline is not None else None
    if baseline is None or measured is None or measured.steps_per_s * LONGEST_STEP_S < 1:
        return False
    saved = bottleneck.saved_share if bottleneck is not None else 0.0
    return costly_wait(baseline, bottleneck) >= WAITING or saved >= INPUT_SHARE


def _values(axis: Axis, cores: int) -> list[Value]:
    """Those worth a turn: of numbers of workers, or of calls, only a few, none above the cores."""
    values = [value for place, value in enumerate(axis.values) if place != axis.as_written]
    if not axis.knob.waits_at_times:
        return values
    chosen: list[int] = []
    for number in sorted((v for v in values if type(v) is int and v <= cores), reverse=True):
        if len(chosen) < MOST_NUMBERS and (not chosen or number <= 0.7 * chosen[-1]):
            chosen.append(number)
    return [*(value for value in values if type(value) is not int), *chosen[::-1]]


def _combinations(space: ResolvedSpace, ranking: Ranking) -> list[Config]:
    """Values of several knobs that did no clear harm alone, those first whose gains multiply to most."""
    alone: dict[str, dict[Value, float]] = {}
    for config, rotated in ranking.items():
        if len(config) == 1 and not _is_below(rotated, NOT_WORSE, _loader_knobs(space)):
            ((knob, value),) = config.items()
            alone.setdefault(knob, {})[value] = _ratio(rotated)
    choices = [[None, *((knob, value) for value in list(values)[:2])] for knob, values in alone.items()]
    expected: dict[Config, float] = {}
    for chosen in itertools.product(*choices):
        turned = dict(each for each in chosen if each is not None)
        config = space.canonical(turned)
        if len(turned) > 1 and _is_same(config, turned) and space.allows(config):
            expected[config] = math.prod(alone[knob][value] for knob, value in turned.items())
    return sorted(expected, key=lambda config: -expected[config])


def _is_same(config: Mapping[str, Value], turned: Mapping[str, Value]) -> bool:
    return len(config) == len(turned) and all(same_value(config.get(knob), value) for knob, value in turned.items())
