"""Whether a training keeps to the course of the script as written, on made-up losses and weights."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from support import worlds

from tuner.analysis.accuracy import AccuracyLimits, judge, same_course
from tuner.analysis.checks import CheckKind, Pair
from tuner.analysis.course import APART, course_checks, is_kept
from tuner.analysis.loss_checks import FEWEST_POINTS
from tuner.analysis.stats import Noninferiority
from tuner.formatting import screened_text
from tuner.model import BASELINE, Outcome, WeightChange

PASS, FAIL, INCONCLUSIVE = Noninferiority.PASS, Noninferiority.FAIL, Noninferiority.INCONCLUSIVE
LIMITS = AccuracyLimits()
TENSORS = 12
Ways = Sequence[Sequence[float]]


def keeps_course(pairs: Sequence[Pair]) -> bool:
    return is_kept(course_checks(pairs))


def level(seed: int, apart: float = 0.0) -> list[float]:
    """A loss that hardly comes down beside what it varies by; ``apart``: how far from it another training's is."""
    chance, other = random.Random(seed), random.Random(-seed)
    return [0.69 - 0.0005 * step + chance.gauss(0, 0.1) + apart * other.gauss(0, 0.1) for step in range(100)]


def ways(seed: int, scale: Callable[[int], float] = lambda tensor: 1.0) -> Ways:
    """By how much elements of each tensor changed; ``scale``: how many times as far in a config."""
    chance = random.Random(seed)
    return [[scale(tensor) * chance.gauss(0, 0.01) for _ in range(16)] for tensor in range(TENSORS)]


def run(losses: Sequence[float] | None, *changes: Ways, groups: Sequence[str] = (), steps: int = 100) -> Outcome:
    """A run with this loss, None where none is computed, and groups of weights that changed so."""
    outcome = worlds.measured(100.0)
    assert outcome.measurement is not None
    weights = [
        WeightChange("Adam", steps, 1.0 + place, group, tuple(map(tuple, ways_of)))
        for place, (ways_of, group) in enumerate(zip(changes, groups or [""] * len(changes), strict=True))
    ]
    seen = () if losses is None else (worlds.series(losses),)
    measurement = replace(outcome.measurement, losses=seen, weights=tuple(weights))
    return replace(outcome, measurement=measurement)


def three(own: Callable[[int], Outcome], written: Callable[[int], Outcome] | None = None) -> list[Pair]:
    """Three seeds."""
    as_written = written or (lambda seed: run(level(seed), ways(seed)))
    return [Pair(seed, as_written(seed), own(seed)) for seed in (1, 2, 3)]


def test_what_only_rounds_otherwise_passes_where_the_losses_tell_nothing() -> None:
    shown = three(lambda seed: run(level(seed, 1e-4), ways(seed, lambda tensor: 1.0001)))
    result = judge(BASELINE, shown, LIMITS, 6400)
    assert result.verdict is PASS
    text = screened_text(result)
    assert "learns as well" in text and "losses of the same steps differ by 0.01" in text
    assert "of what they vary by (limit 2%); ways of the weights differ by 0.01% (limit 2%)" in text


@pytest.mark.parametrize(
    ("name", "own"),
    [
        ("learns half as fast", lambda seed: run(level(seed, 1e-4), ways(seed, lambda tensor: 0.5))),
        ("goes elsewhere", lambda seed: run(level(seed, 1e-4), ways(seed + 10))),
        ("half of it stands still", lambda seed: run(level(seed), ways(seed, lambda tensor: float(tensor % 2)))),
        ("one tensor stands still", lambda seed: run(level(seed), ways(seed, lambda tensor: float(tensor > 0)))),
        ("other losses", lambda seed: run(level(seed, 0.1), ways(seed))),
        ("with one seed", lambda seed: run(level(seed, 0.1 * (seed == 3)), ways(seed))),
        ("other batches", lambda seed: run(level(seed + 10), ways(seed))),
    ],
)
def test_what_trains_otherwise_stays_open(name: str, own: Callable[[int], Outcome]) -> None:
    shown = three(own)
    assert course_checks(shown) and not keeps_course(shown), name
    result = judge(BASELINE, shown, LIMITS, 6400)
    assert result.verdict is INCONCLUSIVE and "too little, or too noisy" in result.reason
    assert {check.kind for check in result.checks} >= {CheckKind.COURSE}


def test_a_gradient_that_is_nothing_but_rounding_says_nothing() -> None:
    """A bias before a normalisation: its way is another in each run, and moves no loss."""
    noise = iter(range(100, 200))

    def own(seed: int) -> Outcome:
        chance = random.Random(next(noise))
        return run(level(seed), [[chance.gauss(0, 0.01) for _ in way] if t % 3 == 0 else way
                                 for t, way in enumerate(ways(seed))])  # fmt: skip

    assert keeps_course(three(own))


def test_the_limit_is_that_of_each() -> None:
    def scaled(share: float) -> list[Pair]:
        return three(lambda seed: run(level(seed), ways(seed, lambda tensor: 1 + share)))

    assert keeps_course(scaled(0.9 * APART)) and not keeps_course(scaled(1.1 * APART))


def test_one_loss_beyond_all_others_hides_no_difference() -> None:
    """A reward of a million once: beside what the losses vary by then, nothing seems apart."""
    written = three(lambda seed: run([*level(seed, 0.5)[:50], 1e6, *level(seed, 0.5)[50:]], ways(seed)),
                    lambda seed: run([*level(seed)[:50], 1e6, *level(seed)[50:]], ways(seed)))  # fmt: skip
    assert not keeps_course(written)


@pytest.mark.parametrize(
    ("name", "own"),
    [
        ("at other samples", lambda seed: run(level(seed)[::2], ways(seed))),
        ("no weights", lambda seed: run(level(seed))),
        ("weights of other shapes", lambda seed: run(level(seed), [way[:8] for way in ways(seed)])),
        ("weights that weren't told", lambda seed: run(level(seed), [])),
    ],
)
def test_what_cannot_be_compared_has_no_course(name: str, own: Callable[[int], Outcome]) -> None:
    assert course_checks(three(own)) == (), name
    assert judge(BASELINE, three(own), LIMITS, 6400).verdict is INCONCLUSIVE


def test_losses_that_are_no_numbers_fail() -> None:
    shown = three(lambda seed: run([*level(seed)[:50], math.nan, *level(seed)[51:]], ways(seed)))
    assert course_checks(shown) == () and judge(BASELINE, shown, LIMITS, 6400).verdict is FAIL


def without_loss(scale: float, *, written: int = 100, own: int = 100) -> list[Pair]:
    """Three seeds of a script that never computes a loss. ``written`` and ``own``: in how many steps, or calls of
    several, the weights were seen to move.
    """
    return three(
        lambda seed: run(None, ways(seed, lambda tensor: scale), steps=own),
        lambda seed: run(None, ways(seed), steps=written),
    )


def test_where_no_loss_is_computed_the_weights_alone_tell() -> None:
    as_written = without_loss(1.0)[0].baseline
    assert same_course([Pair(1, as_written, as_written)], LIMITS)
    kept = judge(BASELINE, without_loss(1.0001), LIMITS, 6400)
    text = screened_text(kept)
    assert kept.verdict is PASS and "learns as well" in text and "ways of the weights differ by 0.01%" in text
    left = judge(BASELINE, without_loss(1.1), LIMITS, 6400)
    assert left.verdict is INCONCLUSIVE and "no training loss was seen" in left.reason
    assert "screen-samples" not in left.would_decide and "--max-metric-drop" in left.would_decide
    assert judge(BASELINE, without_loss(0.0), LIMITS, 6400).verdict is INCONCLUSIVE
    assert judge(BASELINE, without_loss(1.0, own=6), LIMITS, 6400).verdict is PASS, "several in a call"


def test_where_no_loss_tells_it_no_tensor_goes_a_quarter_as_far() -> None:
    """As of gradients of which half precision leaves some: two thirds of the tensors hardly show it."""

    def own(seed: int) -> Ways:
        return ways(seed, lambda tensor: 0.2 if tensor % 3 == 0 else 1.0001)

    alone = three(lambda seed: run(None, own(seed)), lambda seed: run(None, ways(seed)))
    assert course_checks(alone) != () and not keeps_course(alone)
    assert keeps_course(three(lambda seed: run(level(seed), own(seed)))), "the losses tell of those"


def test_of_few_steps_the_weights_alone_tell_nothing() -> None:
    assert course_checks(without_loss(1.0, written=FEWEST_POINTS)) != ()
    assert course_checks(without_loss(1.0, written=FEWEST_POINTS - 1)) == ()
    few = judge(BASELINE, without_loss(1.0, written=3), LIMITS, 6400)
    assert few.verdict is INCONCLUSIVE and "--screen-samples 26000" in few.would_decide, "a longer one has more"
    uneven = [*without_loss(1.0, written=FEWEST_POINTS)[1:], *without_loss(1.0, written=FEWEST_POINTS - 1)[:1]]
    few = judge(BASELINE, uneven, LIMITS, 6400)
    assert few.verdict is INCONCLUSIVE and "--screen-samples 13000" in few.would_decide, "of one seed alone, too"


def test_a_loss_that_is_seen_in_one_pair_is_asked_for_in_each() -> None:
    with_loss = three(lambda seed: run(level(seed), ways(seed)))
    assert course_checks([*without_loss(1.0)[:2], with_loss[2]]) == ()
    once = three(lambda seed: run([0.7], ways(seed)), lambda seed: run([0.7], ways(seed)))
    assert course_checks(once) == (), "too seldom to compare, and a longer screen shows more"
    assert "screen-samples" in judge(BASELINE, once, LIMITS, 6400).would_decide


def test_a_larger_effective_batch_keeps_no_course() -> None:
    """Small steps of plain SGD lead along the same way in half as many that are twice as long."""
    alone = AccuracyLimits(max_loss_increase=None, min_sample_efficiency=0.5, efficiency_alone=True)
    limits = replace(alone, same_steps=False)
    assert not same_course(without_loss(1.0), limits)
    assert judge(BASELINE, without_loss(1.0), limits, 6400).verdict is INCONCLUSIVE


def test_where_the_efficiency_alone_is_bounded_what_keeps_the_course_passes() -> None:
    """``--max-loss-increase off --min-sample-efficiency 90%``, of a config that takes the same steps."""
    limits = AccuracyLimits(max_loss_increase=None, min_sample_efficiency=0.9, efficiency_alone=True)
    kept = three(lambda seed: run(level(seed, 1e-4), ways(seed, lambda tensor: 1.0001)))
    assert judge(BASELINE, kept, limits, 6400).verdict is PASS
    assert judge(BASELINE, without_loss(1.0001), limits, 6400).verdict is PASS


def test_groups_are_matched_by_their_shapes_in_whichever_order_they_are_met() -> None:
    def written(seed: int) -> Outcome:
        return run(level(seed), ways(seed), ways(seed + 5), groups=("generator", "critic"))

    def own(seed: int) -> Outcome:
        return run(level(seed), ways(seed + 5), ways(seed), groups=("critic", "generator"))

    assert keeps_course(three(own, written))
    assert not keeps_course(three(lambda seed: run(level(seed), ways(seed), groups=("generator",)), written))


def test_of_what_a_script_as_written_does_itself_it_is_known_whether_it_can_be_told() -> None:
    seen, unseen = run(level(1), ways(1)), run(level(1))
    assert same_course([Pair(1, seen, seen)], LIMITS) and not same_course([Pair(1, unseen, unseen)], LIMITS)
    assert not same_course([Pair(1, seen, seen)], AccuracyLimits(max_loss_increase=None)), "no loss is compared"


def test_a_metric_that_did_not_move_is_no_obstacle() -> None:
    limits = AccuracyLimits(max_metric_drop={"accuracy": 0.01})
    accuracy = {"accuracy": 0.7}

    def own(apart: float) -> list[Pair]:
        shown = three(lambda seed: run(level(seed, apart), ways(seed)))
        return [replace(pair, baseline_metrics=accuracy, candidate_metrics=accuracy) for pair in shown]

    assert judge(BASELINE, own(1e-4), limits, 6400).verdict is PASS
    assert judge(BASELINE, own(0.5), limits, 6400).verdict is INCONCLUSIVE


def test_what_no_share_tells_of_is_told_in_words() -> None:
    still = three(lambda seed: run(level(seed), ways(seed, lambda tensor: float(tensor > 0))))
    flat = three(lambda seed: run(level(seed), ways(seed)), lambda seed: run([0.69] * 100, ways(seed)))
    for shown, told in (still, "some weights stand still that move as written"), (flat, "as written they don't vary"):
        text = screened_text(judge(BASELINE, shown, LIMITS, 6400))
        assert told in text and "inf" not in text
