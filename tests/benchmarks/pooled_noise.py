"""What it would bring to pool the noise of finals with what a study knows, and what it would cost: simulated finals.

    python tests/benchmarks/pooled_noise.py [--finals 20000] [--gain 0.05] [--rounds 5]

Of three candidates one is faster by ``--gain``, or none. A round's logarithms are off by what the machine does to the
turns of a process (3% of the baseline's and of each candidate's; the first candidate's may be noisier) and by what its
start makes of it (``layout``). Ten trials of the search tell of the turns: each the variance by twelve pairs of them,
scaled to that of a round where ``layout`` is 1.5%, as ``APART`` of ``tuner/study/budget.py`` does. Ways: each
candidate's own variance, with n - 1 degrees of freedom, as it is; the mean of all three's; moderated by them, and by
the search's (Smyth, Linear models and empirical Bayes methods, Stat. Appl. Genet. Mol. Biol. 3, 2004): prior variance
and its degrees of freedom are estimated from the variances. Prints how often anything is proven that isn't faster,
which may be 0.9% (half of 0.05 * 0.75 * 0.5, all candidates together), and how often the gain is.

November 2026, with the options as they are, falsely proven and the gain proven: own 0.8% to 1.0% and 4% to 12% on all
machines; the mean of all 1.1% to 2.5% and 7% to 31%; moderated by all 2.1% to 2.9% and 13% to 38%; by the search 0.8%
and 31% where the layout is what the scale is for, 6.7% where it is 4%, 3.1% and 7.3% where one candidate is two and
three times as noisy. So finals keep to each candidate's own.
"""

from __future__ import annotations

import argparse
import math

import numpy as np
from numpy.typing import NDArray

from tuner.analysis.schedule import FIRST_LOOK
from tuner.analysis.stats import student_t_quantile

Floats = NDArray[np.float64]
TURNS, LAYOUT, TRIALS, PAIRS, CANDIDATES = 0.03, 0.015, 10, 12, 3
MOST_DEGREES = 400.0
WAYS = ("own", "mean of all", "moderated by all", "moderated by the search")


def trigamma(value: Floats) -> Floats:
    """The second derivative of the logarithm of the gamma function, by recurrence and its asymptotic series."""
    total, at = np.zeros_like(value), value.copy()
    for _ in range(8):
        total, at = total + 1 / at**2, at + 1
    return np.asarray(total + 1 / at + 1 / (2 * at**2) + 1 / (6 * at**3) - 1 / (30 * at**5))


def digamma(value: float) -> float:
    """The derivative of that logarithm."""
    total, at = 0.0, value
    while at < 8:
        total, at = total - 1 / at, at + 1
    return total + math.log(at) - 1 / (2 * at) - 1 / (12 * at**2) + 1 / (120 * at**4)


def prior(variances: Floats, degrees: float) -> tuple[Floats, Floats]:
    """The prior variance and its degrees of freedom, of each row of variances with so many (Smyth, section 6.2)."""
    logs = np.log(variances) - digamma(degrees / 2) + math.log(degrees / 2)
    spread = logs.var(axis=1, ddof=1) - trigamma(np.array([degrees / 2]))[0]
    at = np.geomspace(0.05, MOST_DEGREES / 2, 800)
    half = np.interp(np.maximum(spread, 0.0), trigamma(at)[::-1], at[::-1])
    digammas = np.array([digamma(each) for each in at])
    return np.exp(logs.mean(axis=1) + np.interp(half, at, digammas) - np.log(half)), 2 * half


def proven(means: Floats, variances: Floats, degrees: Floats, rounds: int) -> NDArray[np.bool_]:
    """Which candidates a t test at the first look's level proves."""
    level = 1 - 0.05 * 0.75 * FIRST_LOOK / CANDIDATES / 2
    kept = np.round(np.minimum(degrees, MOST_DEGREES), 1)
    quantiles = {each: student_t_quantile(level, float(each)) for each in np.unique(kept)}
    needed = np.vectorize(quantiles.__getitem__)(kept)
    return np.asarray(means > needed * np.sqrt(variances / rounds))


def ways(chance: np.random.Generator, given: argparse.Namespace, layout: float, noisier: float, gain: float) -> Floats:
    """How often each way proves anything of those that aren't faster, then how often the gain; a row each."""
    count, rounds = given.finals, given.rounds
    turns = np.array([TURNS * noisier, TURNS, TURNS])
    sides = np.sqrt(turns**2 + layout**2)[:, None] * chance.normal(size=(count, CANDIDATES, rounds))
    logs = sides - math.hypot(TURNS, layout) * chance.normal(size=(count, 1, rounds))
    logs[:, CANDIDATES - 1] += gain
    means, own, degrees = logs.mean(axis=2), logs.var(axis=2, ddof=1), rounds - 1.0
    told = 2 * (TURNS**2 + LAYOUT**2) * chance.chisquare(PAIRS - 1, size=(count, TRIALS)) / (PAIRS - 1)
    found = []
    for way in WAYS:
        variances, of = own, np.full_like(own, degrees)
        if way == "mean of all":
            variances, of = np.repeat(own.mean(axis=1)[:, None], CANDIDATES, axis=1), of * CANDIDATES
        elif way != "own":
            by_all = way == "moderated by all"
            before, known = prior(own, degrees) if by_all else prior(told, PAIRS - 1.0)
            total = known[:, None] + degrees
            variances, of = (known[:, None] * before[:, None] + degrees * own) / total, total
        hits = proven(means, variances, of, rounds)
        slow = hits[:, : CANDIDATES - 1] if gain else hits
        found.append([slow.any(axis=1).mean(), hits[:, CANDIDATES - 1].mean()])
    return np.array(found)


def main() -> None:
    """Prints a line for each machine and way."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--finals", type=int, default=20000)
    parser.add_argument("--gain", type=float, default=0.05)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    chance = np.random.default_rng(1)
    for layout, noisier in ((0.015, 1.0), (0.0, 1.0), (0.04, 1.0), (0.015, 2.0), (0.015, 3.0)):
        none, some = (ways(chance, given, layout, noisier, gain) for gain in (0.0, math.log1p(given.gain)))
        for way, false, true in zip(WAYS, none[:, 0], some[:, 1], strict=True):
            machine = f"layout {layout:.1%}, first candidate {noisier:g} times as noisy"
            print(f"{machine}; {way}: {false:.2%} falsely proven, the gain in {true:.1%}", flush=True)


if __name__ == "__main__":
    main()
