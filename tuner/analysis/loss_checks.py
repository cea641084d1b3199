"""Training losses in a screen: held to how far they came down as written, and to what each sample taught. Pure."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain

from tuner.analysis import stats
from tuner.analysis.checks import Check, CheckKind, Pair, confidence, held_to, is_surely_beyond, mean, unknown
from tuner.analysis.first_loss import of_batch
from tuner.analysis.learning import (
    LEARNED,
    Curve,
    Descent,
    curves_of,
    descent_of,
    has_come_down,
    has_gone_up,
    objectives_of,
    progress_of,
    sample_efficiencies,
    shows_loss,
)
from tuner.analysis.movement import fewest_looks
from tuner.analysis.stats import Noninferiority
from tuner.model import Outcome, Ratio

LOSS = "training loss"
FEWEST_POINTS = 8
"""Of curves with fewer losses nobody can tell well how far apart they are."""


def loss_checks(
    pairs: Sequence[Pair], margin: float | None, least_efficiency: float | None, descent: Descent
) -> tuple[list[Check], Ratio | None]:
    """Each training loss, what is learned from each sample, and the least of the latter with its interval.

    ``margin`` is a share of how far the losses of the same optimizer steps came down together. Without one the
    efficiency alone is held to its bound: inconclusive where no loss shows it, failed by one that isn't finite. Without
    either all is left alone.
    """
    if margin is None and least_efficiency is None:
        return [], None
    objectives = objectives_of(pairs[0].baseline)
    names = _names([site for sites in objectives.values() for site in sites])
    if margin is not None and not names:
        return [unknown(CheckKind.LOSS, LOSS, margin)], None
    told = descent is Descent.DOWN
    checks: list[Check] = []
    ratios: list[Ratio] = []
    if margin is not None:
        for sites in objectives.values():
            scale = mean(progress_of(pair.baseline, sites) for pair in pairs) if told else None
            checks += [_loss_check(pairs, names[site], site, scale, margin) for site in sites]
    for site, name in names.items() if told else ():
        own = f"{CheckKind.EFFICIENCY} of {name}" if len(names) > 1 else str(CheckKind.EFFICIENCY)
        known = _both(pairs, site)
        if len(known) < len(pairs) or not all(has_come_down([before]) for before, _ in known):
            if margin is None and least_efficiency is not None:
                checks += _unseen_efficiency(pairs, own, site, least_efficiency)
            continue
        efficiencies = sample_efficiencies(known)
        ratios.append(_efficiency_interval(efficiencies))
        if least_efficiency is not None:
            checks.append(_efficiency_check(efficiencies, own, least_efficiency))
    if margin is None and least_efficiency is not None and not checks:
        checks.append(unknown(CheckKind.EFFICIENCY, str(CheckKind.EFFICIENCY), 1 - least_efficiency))
    return checks, min(ratios, key=lambda ratio: ratio.ratio, default=None)


def sample_efficiency(pairs: Sequence[Pair], error: float) -> Ratio | None:
    """The least share of the samples as from which any loss is learned, with an interval that is wrong that often.

    None where not every loss as written came down, with each seed, or one of them isn't seen with the config, at fewer
    than ``FEWEST_POINTS``, or depends on the size of the batch, which is another one.
    """
    if not pairs or descent_of([pair.baseline for pair in pairs]) is not Descent.DOWN or of_batch(pairs):
        return None
    shown = {site for pair in pairs for site in curves_of(pair.baseline)}
    both = [_both(pairs, site) for site in sorted(shown)]
    if any(len(known) < len(pairs) for known in both):
        return None  # it could be the one that learns least
    if any(len(curve.losses) < FEWEST_POINTS for known in both for pair in known for curve in pair):
        return None
    told = [known for known in both if all(has_come_down([before]) for before, _ in known)]
    ratios = [_efficiency_interval(sample_efficiencies(known), error) for known in told]
    if not ratios:
        return None
    # Every end by itself: a loss of which little is known may have the lowest one.
    return Ratio(min(r.ratio for r in ratios), min(r.low for r in ratios), min(r.high for r in ratios))


def _unseen_efficiency(pairs: Sequence[Pair], name: str, site: str, least: float) -> list[Check]:
    """Where no loss check holds a config to it: a loss as written that the config shows no finite curve of."""
    lates = [(_late(pair.baseline, site), _late(pair.candidate, site)) for pair in pairs]
    check = unknown(CheckKind.EFFICIENCY, name, 1 - least)
    if any(after is not None and not math.isfinite(after) for _, after in lates):
        return [replace(check, verdict=Noninferiority.FAIL)]
    return [check] if any(before is not None and after is None for before, after in lates) else []


def why_untold(baselines: Sequence[Outcome], descent: Descent) -> str:
    """Why losses can't tell how a config learns, for people; "" where they can."""
    if descent is Descent.DOWN:
        return ""
    curves = [curves_of(outcome) for outcome in baselines]
    names = _names(list(curves[0]))
    if not names:
        return "no training loss was seen"
    ways = []
    for site, name in names.items():
        own = [each[site] for each in curves if site in each]
        ways.append(f"{name} went from {mean(c.first for c in own):.4g} to {mean(c.late for c in own):.4g}")
    way = "as written the " + ", the ".join(ways)
    if descent is Descent.MIXED:
        every = "" if len(baselines) == 1 else ", with each seed"
        return f"{way}: where not all losses come down by {LEARNED:.0%}{every}, as in a GAN, lower isn't better"
    if _rises(baselines):
        return f"{way}: where a loss goes up, lower isn't better"
    return f"{way}: too little, or too noisy, to tell how a config learns"


def remedy(baselines: Sequence[Outcome], descent: Descent, samples: int, *, by_metric: bool) -> str:
    """What would decide an inconclusive screen over so many samples, for people; "" for nothing.

    ``by_metric``: whether a metric stands in for losses, as it can't for how soon one of them is reached.
    """
    metric = deciding_metric(baselines) if by_metric else ""
    if descent is Descent.MIXED or shows_never(baselines) or (descent is Descent.LEVEL and _rises(baselines)):
        return metric
    factor = 2.0
    if not any(map(shows_loss, baselines)):
        factor = max(factor, 1.5 * FEWEST_POINTS / min(map(fewest_looks, baselines)))
    elif descent is Descent.LEVEL:
        curves = [curve for outcome in baselines for curve in curves_of(outcome).values()]
        came = min((c.progress / abs(c.late) / LEARNED for c in curves if c.late), default=0.0)
        factor = min(max(1.5 / came, 4.0), 100.0) if came > 0 else 10.0
    return " or ".join(text for text in (longer_screen(factor * samples), metric) if text)


def deciding_metric(baselines: Sequence[Outcome]) -> str:
    """What decides whatever the losses are, for people."""
    return f"a metric of the script's that becomes better ({_bound(baselines)})"


def _bound(baselines: Sequence[Outcome]) -> str:
    """The option that bounds a metric, for people: of one that the script gives, by the way that it goes as written."""
    measured = [outcome.measurement for outcome in baselines if outcome.measurement is not None]
    for name, first in measured[0].first_metrics.items() if measured else ():
        last = measured[0].metrics.get(name, first)
        if last != first and math.isfinite(last - first):
            return f"--max-metric-{'drop' if last > first else 'rise'} {shlex.quote(f'{name}=1%')}"
    return "--max-metric-drop NAME=1%, or --max-metric-rise where lower is better"


def longer_screen(samples: float) -> str:
    """One over so many samples, about, for people."""
    return f"a longer screen (--screen-samples {_rounded(samples)})"


def shows_never(baselines: Sequence[Outcome]) -> bool:
    """Whether no loss is seen as written, and no longer screen tells by the weights what this one doesn't."""
    may_tell_by_weights = 0 < min(map(fewest_looks, baselines), default=0) < FEWEST_POINTS
    return not may_tell_by_weights and not any(map(shows_loss, baselines))


def _rises(baselines: Sequence[Outcome]) -> bool:
    """Whether some loss goes up, over all seeds and beyond its noise: longer screens wouldn't tell either."""
    seen = [curves_of(outcome) for outcome in baselines]
    return any(has_gone_up([curves[site] for curves in seen if site in curves]) for site in {*chain(*seen)})


def _rounded(number: float) -> int:
    """Two significant digits."""
    return int(float(f"{number:.1e}"))


def _loss_check(pairs: Sequence[Pair], name: str, site: str, scale: float | None, margin: float) -> Check:
    """``scale`` is how far the loss came down as written, None where that isn't far enough to tell by."""
    values = [(_late(pair.baseline, site), _late(pair.candidate, site)) for pair in pairs]
    worse = [
        math.nan if before is None or after is None else (after - before) / scale if scale is not None else 0.0
        for before, after in values
    ]
    check = held_to(CheckKind.LOSS, name, values, worse, margin)
    firsts = [curve.first for pair in pairs if (curve := curves_of(pair.baseline).get(site)) is not None]
    if scale is None and check.verdict is not Noninferiority.FAIL:
        check = replace(check, worse=math.nan, low=math.nan, high=math.nan, verdict=Noninferiority.INCONCLUSIVE)
    return replace(check, start=mean(firsts) if firsts else None)


def _efficiency_check(efficiencies: Sequence[float], name: str, least: float) -> Check:
    """So large a share of the samples at least has to teach what all of them teach as written."""
    worse = [-math.log(efficiency) for efficiency in efficiencies]
    low, high = stats.one_sided_bounds(worse, confidence())
    verdict = stats.non_inferior(worse, -math.log(least), confidence())
    typical, best, worst = (math.exp(-log) for log in (mean(worse), low, min(high, 700.0)))
    is_sure = is_surely_beyond(worse, -math.log(least))
    return Check(
        CheckKind.EFFICIENCY, name, 1.0, typical, 1 - typical, 1 - best, 1 - worst, 1 - least, verdict, is_sure=is_sure
    )


def _efficiency_interval(efficiencies: Sequence[float], error: float = 0.05) -> Ratio:
    """The geometric mean, and an interval that is wrong no oftener than that over both looks at a screen (Pocock)."""
    as_written = [1.0] * len(efficiencies)
    interval = stats.mean_ratio_interval(as_written, efficiencies, 1 - stats.pocock_level(error, 2))
    return Ratio(interval.estimate, interval.low, interval.high)


def _names(sites: Sequence[str]) -> dict[str, str]:
    """Site → what its loss is called: the only one needs no place, and others the innermost that tells them apart."""
    if len(sites) == 1:
        return {sites[0]: LOSS}
    inner = [site.partition("<")[0] for site in sites]
    places = [own if inner.count(own) == 1 else site for own, site in zip(inner, sites, strict=True)]
    return {
        site: f"{LOSS} at {place}" if ":" in place else f"{LOSS} {place}".strip()
        for site, place in zip(sites, places, strict=True)
    }


def _both(pairs: Sequence[Pair], site: str) -> list[tuple[Curve, Curve]]:
    """The loss at the site as written and with the config, of the seeds in which both were seen."""
    both = [(curves_of(pair.baseline).get(site), curves_of(pair.candidate).get(site)) for pair in pairs]
    return [(before, after) for before, after in both if before is not None and after is not None]


def _late(outcome: Outcome, site: str) -> float | None:
    """The loss over the second half of the samples; NaN where it wasn't finite all along, None where it wasn't seen."""
    curve = curves_of(outcome).get(site)
    if curve is not None:
        return curve.late
    series = outcome.measurement.losses if outcome.measurement is not None else ()
    losses = [loss for one in series if one.site == site for _, loss in one.points]
    return None if all(map(math.isfinite, losses)) else math.nan
