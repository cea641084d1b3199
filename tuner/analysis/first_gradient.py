"""The gradient of a screen's first step: a batch in parts must give what the whole one gives. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tuner.analysis.checks import Check, CheckKind, Pair, mean
from tuner.analysis.stats import Noninferiority
from tuner.model import Config, FirstGradient, Outcome

GRADIENT = "gradient norm of the first step"
# Small MLPs, convolutions, LSTMs and transformers, a batch of 64 in 1 against 2, 8 and 64 parts: at most 6e-6 apart
# in float32, 2.3e-3 with one side or both in bfloat16. A mean over tokens of sequences of uneven length: 4e-3 (median).
GRADIENT_TOLERANCE = 5e-4
COARSE_GRADIENT_TOLERANCE = 1e-2
_SPLITTING = frozenset({"batch_size", "grad_accumulation"})
_SAME_SUM = 1e-6


def gradient_check(config: Config, pairs: Sequence[Pair]) -> tuple[Check | None, str]:
    """Where a batch is split: the norms of the first whole step's gradient, or why they can't be compared.

    They must be the same on the same data, whatever of a training is chance: no seeds are averaged over.
    """
    if not _SPLITTING & set(config):
        return None, ""
    norms: list[tuple[float, float, float, float]] = []
    for pair in pairs:
        before, after = _first_gradient(pair.baseline), _first_gradient(pair.candidate)
        if before is None or after is None or before.samples != after.samples:
            return None, ""  # no loader, or another effective batch: there is nothing to be the same
        obstacle = _incomparable(before, after)
        tolerance = GRADIENT_TOLERANCE if before.exact and after.exact else COARSE_GRADIENT_TOLERANCE
        apart = abs(after.norm - before.norm) / before.norm if before.norm > 0 else math.nan
        if obstacle and not apart <= tolerance:
            shown = f"{after.norm:.4g} against {before.norm:.4g}"
            return None, f"{GRADIENT} {shown} can't be compared, since {obstacle}: only the other figures can tell"
        norms.append((before.norm, after.norm, apart, tolerance))
    before_norms, after_norms, differences, tolerances = zip(*norms, strict=True)
    largest = max(differences)
    verdict = Noninferiority.PASS if largest <= min(tolerances) else Noninferiority.FAIL
    return Check(
        CheckKind.GRADIENT, GRADIENT, mean(before_norms), mean(after_norms), largest, largest, largest,
        min(tolerances), verdict,
    ), ""  # fmt: skip


def _first_gradient(outcome: Outcome) -> FirstGradient | None:
    return outcome.measurement.gradient if outcome.measurement is not None else None


def _incomparable(before: FirstGradient, after: FirstGradient) -> str:
    """Why two first gradients may differ where nothing is wrong; "" where they may not."""
    if not (math.isfinite(before.norm) and math.isfinite(after.norm) and before.norm > 0):
        return "it is not a finite number above 0"
    if before.random or after.random:
        return "the training step draws random numbers, as dropout does"
    if before.changed or after.changed:
        return "the script changes its gradients itself before the step"
    for (elements, total), (as_many, again) in zip(before.inputs, after.inputs, strict=False):
        # Batches that are padded to their longest item have other sums in parts, and the same data.
        if elements == as_many and not math.isclose(total, again, rel_tol=_SAME_SUM, abs_tol=_SAME_SUM * elements):
            return "its data were not the same, as with random augmentation"
    return ""
