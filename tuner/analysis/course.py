"""Whether a config's training takes the course of the script as written, step by step. Pure.

What only rounds otherwise gives nearly the same losses on the same batches, and moves the weights the same way. That
tells how it learns also where the losses themselves don't: they have hardly come down, or lower isn't better, as in a
GAN. What learns otherwise doesn't: one hundredth more of a learning rate leaves weights about as far apart as is
allowed here, and weights that stand still are all of their way apart. Where the script never computes a loss, as with
JAX's ``grad``, the weights tell it alone: other batches move them elsewhere as well.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tuner.analysis.checks import Check, CheckKind, Pair
from tuner.analysis.learning import Curve, curves_of, shows_loss
from tuner.analysis.loss_checks import FEWEST_POINTS
from tuner.analysis.movement import LEAST_MOVEMENT, Group, fewest_looks, is_read, matched, paths_of
from tuner.analysis.stats import Floats, Noninferiority
from tuner.model import Outcome

LOSSES, WEIGHTS = "losses of the same steps", "ways of the weights"
APART = 0.02
"""Of how losses vary from step to step, and of the way that a tensor of weights goes as written: no more are apart."""
TENSORS = 2 / 3
"""Of the watched tensors have to keep to it. Of some the gradient is nothing but rounding, and so is their way: a bias
before a normalisation, or of the keys of an attention."""
LEAST_ALONE = 0.25
"""Of its way as written each tensor goes at least, where no loss tells of the others. One whose gradient is nothing but
rounding goes about as far each time (0.53 to 1.29 times in 24 biases before a normalisation, AdamW, fused or in two
threads, 80 steps), or further where more is rounded."""


def course_checks(pairs: Sequence[Pair]) -> tuple[Check, ...]:
    """How far apart the losses of the same steps are, as a share of what they vary by, and the ways of the weights, as
    a share of these: each the largest of all pairs and losses or groups of weights, and of a group what two thirds of
    its tensors keep to.

    Both pass, or are inconclusive. None at all where the runs can't be compared so: no way was seen as written, or a
    loss with the config not at the same samples. The ways alone, of runs over the same samples, where no loss was seen
    as written in any pair: of fewer than ``FEWEST_POINTS`` steps, or calls of several, they say nothing, since Adam's
    first ones go about as far whatever the gradient is. A config may take several in a call.
    """
    is_alone = not any(shows_loss(pair.baseline) for pair in pairs)
    weights = _largest([_weights_apart(pair, LEAST_ALONE if is_alone else LEAST_MOVEMENT) for pair in pairs])
    if weights is not None and is_alone:
        return (_check(WEIGHTS, weights),) if all(fewest_looks(p.baseline) >= FEWEST_POINTS for p in pairs) else ()
    losses = _largest([_losses_apart(pair) for pair in pairs])
    if losses is None or weights is None:
        return ()
    return _check(LOSSES, losses), _check(WEIGHTS, weights)


def is_kept(checks: Sequence[Check]) -> bool:
    """Whether all of these passes, of which there are some."""
    return bool(checks) and all(check.verdict is Noninferiority.PASS for check in checks)


def _check(name: str, apart: float) -> Check:
    verdict = Noninferiority.PASS if apart <= APART else Noninferiority.INCONCLUSIVE
    return Check(CheckKind.COURSE, name, 0.0, apart, apart, apart, apart, APART, verdict)


def _losses_apart(pair: Pair) -> float | None:
    """The largest of all losses as written, which all have to be seen with the config."""
    written, own = curves_of(pair.baseline), curves_of(pair.candidate)
    if not all(site in own for site in written):
        return None
    return _largest([_apart(curve, own[site]) for site, curve in written.items()])


def _apart(written: Curve, own: Curve) -> float | None:
    """The root mean square of the differences over that of what the loss varies by from step to step, or the medians of
    both where these are further apart: one step beyond all others says nothing. None at other samples.
    """
    same = len(written.losses) == len(own.losses) and bool((written.samples == own.samples).all())
    if not same or len(written.losses) < FEWEST_POINTS:
        return None
    varies, differs = np.diff(written.losses) / math.sqrt(2), own.losses - written.losses
    in_the_mean = _share(math.sqrt(float((differs**2).mean())), math.sqrt(float((varies**2).mean())))
    return max(in_the_mean, _share(float(np.median(np.abs(differs))), float(np.median(np.abs(varies)))))


def _weights_apart(pair: Pair, least: float) -> float | None:
    """The largest of all groups of weights as written, which all have to be read, and with the config as well;
    ``least``: see ``_ways_apart``.
    """
    written, own = paths_of(pair.baseline), paths_of(pair.candidate)
    if not all(is_read(path) for path in (*written.values(), *own.values())):
        return None
    ways, others, counterparts = _ways(pair.baseline), _ways(pair.candidate), matched(written, own)
    own_ways = {group: others.get(counterparts.get(group, group), ()) for group in written}
    return _largest([_ways_apart(ways[group], own_ways[group], least) for group in written])


def _ways(outcome: Outcome) -> dict[Group, tuple[Floats, ...]]:
    changes = outcome.measurement.weights if outcome.measurement is not None else ()
    return {
        group: tuple(np.array(tensor) for tensor in change.changes)
        for group, change in zip(paths_of(outcome), changes, strict=True)
    }


def _ways_apart(written: Sequence[Floats], own: Sequence[Floats], least: float) -> float | None:
    """What ``TENSORS`` of those that move as written keep to; infinite where one of them goes less than the ``least``
    share of its way with the config.

    None where they can't be compared, or none moves.
    """
    if [way.shape for way in written] != [way.shape for way in own]:
        return None
    shares = []
    for before, after in zip(written, own, strict=True):
        way = float(np.linalg.norm(before))
        if way > 0:
            is_short = float(np.linalg.norm(after)) < least * way
            shares.append(math.inf if is_short else float(np.linalg.norm(after - before)) / way)
    if not shares or not all(map(math.isfinite, shares)):
        return math.inf if shares else None
    return sorted(shares)[math.ceil(TENSORS * len(shares)) - 1]


def _largest(shares: Sequence[float | None]) -> float | None:
    """None where one of them isn't known, or there is none."""
    known = [share for share in shares if share is not None]
    return max(known, default=None) if len(known) == len(shares) else None


def _share(part: float, whole: float) -> float:
    if part == 0.0:
        return 0.0
    return part / whole if whole > 0 else math.inf
