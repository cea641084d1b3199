"""The gradient of a screen's first step: a batch in parts must give what the whole one gives. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tuner.analysis.checks import Check, CheckKind, Pair, mean
from tuner.analysis.stats import Noninferiority
from tuner.model import BASELINE, Config, FirstGradient, Outcome

GRADIENT = "gradient norm of the first step"
SAMPLES = "samples of the first step"
# Small MLPs, convolutions, LSTMs and transformers, a batch of 64 in 1 against 2, 8 and 64 parts: at most 6e-6 apart
# in float32, 2.3e-3 with one side or both in bfloat16. A mean over tokens of sequences of uneven length: 4e-3 (median).
GRADIENT_TOLERANCE = 5e-4
COARSE_GRADIENT_TOLERANCE = 1e-2
_SPLITTING = frozenset({"batch_size", "grad_accumulation"})
_SAME_SUM = 1e-6


def gradient_check(config: Config, pairs: Sequence[Pair]) -> tuple[Check | None, str]:
    """Where a batch is split: the norms of the first whole step's gradient, and what else there is to say, for people.

    They must be the same on the same data, whatever of a training is chance: no seeds are averaged over. A config that
    is to keep the effective batch, and whose first step trained on other samples, has failed; where those as written
    aren't the batch either nothing is told. None where the effective batch is another one, and where norms can't be
    compared.
    """
    if not _SPLITTING & set(config):
        return None, ""
    norms: list[tuple[float, float, float, float]] = []
    for pair in pairs:
        before, after = _first_gradient(pair.baseline), _first_gradient(pair.candidate)
        batch = _effective_batch(config, pair.baseline)
        if before is None or after is None:
            one = before is not None or after is not None
            return None, f"{GRADIENT} wasn't seen of both: only the other figures can tell" if one and batch else ""
        if before.samples != after.samples:
            return _other_samples(before.samples, after.samples, batch, pair.baseline)
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


def _other_samples(
    before: float, after: float, batch: int | None, baseline: Outcome
) -> tuple[Check | None, str]:
    """What first steps on other samples say of a config that asks for this effective batch."""
    written = _effective_batch(BASELINE, baseline)
    if batch is None or batch != (before if written is None else written):
        return None, ""  # another effective batch: there is nothing to be the same
    verdict = Noninferiority.FAIL if batch == before else Noninferiority.INCONCLUSIVE
    apart = abs(after / before - 1) if before else math.nan
    why = f"its first step trained on {after:.6g} samples, as written on {before:.6g}"
    why += ": the effective batch isn't kept" if verdict is Noninferiority.FAIL else ", which isn't its effective batch"
    return Check(CheckKind.GRADIENT, SAMPLES, before, after, apart, apart, apart, 0.0, verdict), why


def _effective_batch(config: Config, baseline: Outcome) -> int | None:
    """The samples of an optimizer step that the config asks for; None where that isn't known."""
    written = baseline.knowledge.as_written
    size = config.get("batch_size", written.get("batch_size"))
    parts = config.get("grad_accumulation", written.get("grad_accumulation")) or 1
    return size * parts if type(size) is int and type(parts) is int else None


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
