"""What losses, weights and metrics tell of a config, and what a screen can't tell, on made-up curves."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import replace

import pytest
from support import recorded_losses as digits
from support import worlds

from tuner.analysis.accuracy import AccuracyLimits, is_settled, judge, untold
from tuner.analysis.checks import CheckKind, Pair
from tuner.analysis.loss_checks import LOSS, sample_efficiency
from tuner.analysis.stats import Noninferiority
from tuner.formatting import screened_text
from tuner.model import BASELINE, Outcome, WeightChange

PASS, FAIL, INCONCLUSIVE = Noninferiority.PASS, Noninferiority.FAIL, Noninferiority.INCONCLUSIVE


def run(
    *losses: list[float], sites: tuple[str, ...] = (), together: bool = False, paths: tuple[float, ...] = ()
) -> Outcome:
    """A run with these losses, each of its own optimizer unless ``together``, whose weights went along ``paths``."""
    outcome = worlds.measured(100.0)
    assert outcome.measurement is not None
    places = sites or tuple(f"train.py:{line}" for line in range(70, 70 + len(losses)))
    series = tuple(
        worlds.series(loss, place, places[0] if together else place)
        for place, loss in zip(places, losses, strict=True)
    )
    return moving(replace(outcome, measurement=replace(outcome.measurement, losses=series)), *paths)


def moving(outcome: Outcome, *paths: float, groups: tuple[str, ...] = ()) -> Outcome:
    """The run with weights that went along ``paths``; NaN for those that couldn't be read."""
    assert outcome.measurement is not None
    changes = [
        WeightChange("Adam", 0, 0.0, group) if math.isnan(path) else WeightChange("Adam", 40, path, group)
        for path, group in zip(paths, groups or [""] * len(paths), strict=True)
    ]
    return replace(outcome, measurement=replace(outcome.measurement, weights=tuple(changes)))


def curve(start: float, end: float, *, noise: float = 0.0, seed: int = 0, share: float = 1.0) -> list[float]:
    """A loss that comes down exponentially, as from a ``share`` of its samples."""
    chance = random.Random(seed)
    ways = [math.exp(-5 * share * step / 200) for step in range(200)]
    return [end + (start - end) * way + chance.gauss(0, noise) for way in ways]


def three(before: Callable[[int], Outcome], after: Callable[[int], Outcome]) -> list[Pair]:
    return [Pair(seed, before(seed), after(seed)) for seed in (1, 2, 3)]


DEFAULT = AccuracyLimits()


@pytest.mark.parametrize(
    ("start", "end", "noise"),
    [(2.303, 2.283, 0.002), (10.8, 10.7, 0.01), (10.8, 10.7, 0.1), (1.0, 1.0, 0.05)],
    ids=["warm-up", "language model at its start", "and noisy", "nothing learned"],
)
@pytest.mark.parametrize("frozen", [True, False])
def test_nothing_passes_where_little_was_learned(start: float, end: float, noise: float, frozen: bool) -> None:
    shown = three(
        lambda seed: run(curve(start, end, noise=noise, seed=seed)),
        lambda seed: run(curve(start, start if frozen else end, noise=noise, seed=seed)),
    )
    result = judge(BASELINE, shown, DEFAULT, 12_800)
    assert result.verdict is INCONCLUSIVE
    assert "too little, or too noisy, to tell" in result.reason
    assert "--screen-samples" in result.would_decide and "--max-metric-drop" in result.would_decide
    nothing = untold(BASELINE, shown[:1], DEFAULT, 12_800)
    assert nothing is not None and (nothing.verdict, nothing.seeds) == (INCONCLUSIVE, 0)
    assert "no config was run" in screened_text(nothing)


def test_the_longer_screen_that_is_named_would_show_enough() -> None:
    """At the pace of 2.303 to 2.283, five percent of the loss take nearly six times as many, and some more are kept."""
    warming = run([2.303] * 10 + [2.283] * 30)
    result = untold(BASELINE, [Pair(1, warming, warming)], DEFAULT, 10_000)
    assert result is not None and "--screen-samples 86000)" in result.would_decide


def test_where_a_loss_goes_up_no_longer_screen_is_promised() -> None:
    """That of an agent's values grows with what it earns."""
    growing = run(curve(20.36, 27.78))
    result = untold(BASELINE, [Pair(1, growing, growing)], DEFAULT, 10_000)
    assert result is not None and "where a loss goes up, lower isn't better" in result.reason
    assert "--screen-samples" not in result.would_decide and "--max-metric-drop" in result.would_decide


@pytest.mark.parametrize(
    ("first", "last", "option"),
    [
        (0.2, 0.9, "--max-metric-drop 'val acc=1%'"),
        (0.9, 0.2, "--max-metric-rise 'val acc=1%'"),
        (0.5, 0.5, "--max-metric-drop NAME=1%, or --max-metric-rise where lower is better"),
        (math.nan, 0.2, "--max-metric-drop NAME=1%, or --max-metric-rise where lower is better"),
    ],
)
def test_the_bound_that_would_decide_is_that_of_a_metric_of_the_script(first: float, last: float, option: str) -> None:
    """A script that reports its loss was told to bound how far it drops."""
    outcome = run()
    assert outcome.measurement is not None
    metrics = replace(outcome.measurement, metrics={"val acc": last}, first_metrics={"val acc": first})
    told = replace(outcome, measurement=metrics)
    result = untold(BASELINE, [Pair(1, told, told)], DEFAULT, 10_000)
    assert result is not None and result.would_decide == f"a metric of the script's that becomes better ({option})"


def test_noise_that_ends_above_its_start_is_no_loss_that_goes_up() -> None:
    """Of a few seeds one begins lower than it goes on, by 5% and more: a longer screen does tell."""
    seeds = range(4, 9)
    losses = {seed: curve(2.3, 2.28, noise=0.4, seed=seed) for seed in seeds}
    assert any(1.05 * sum(loss[:5]) / 5 < sum(loss[100:]) / 100 for loss in losses.values())
    shown = [Pair(seed, run(losses[seed]), run(losses[seed])) for seed in seeds]
    result = judge(BASELINE, shown, DEFAULT, 12_800)
    assert "goes up" not in result.reason and "too noisy, to tell" in result.reason
    assert "--screen-samples" in result.would_decide


def test_a_frozen_candidate_fails_where_the_baseline_learned() -> None:
    shown = three(
        lambda seed: run(curve(2.3, 0.2, noise=0.05, seed=seed)), lambda seed: run([2.3] * 200)
    )
    result = judge(BASELINE, shown, DEFAULT, 12_800)
    assert result.verdict is FAIL
    assert result.efficiency is not None and result.efficiency.high < 0.1


def test_weights_that_stand_still_fail_whatever_the_loss_does() -> None:
    """The data became easier, or a coefficient smaller: the loss comes down by itself."""
    falling = curve(2.3, 0.2)
    still = three(lambda seed: run(falling, paths=(3.0,)), lambda seed: run(falling, paths=(0.0,)))
    result = judge(BASELINE, still, DEFAULT, 1)
    assert result.verdict is FAIL and is_settled(BASELINE, still[:1])
    assert "movement of the weights 0 times as written" in screened_text(result)
    moving = three(lambda seed: run(falling, paths=(3.0,)), lambda seed: run(falling, paths=(2.0,)))
    result = judge(BASELINE, moving, DEFAULT, 1)
    assert result.verdict is PASS and "movement" not in screened_text(result)


@pytest.mark.parametrize("paths", [(), (math.nan,)], ids=["never met", "never read"])
@pytest.mark.parametrize("seeds", [1, 3], ids=["with one seed", "with all"])
def test_weights_that_are_read_as_written_only_leave_it_open(paths: tuple[float, ...], seeds: int) -> None:
    falling = curve(2.3, 0.2)
    pairs = three(lambda seed: run(falling, paths=(3.0,)), lambda seed: run(falling, paths=(2.0,)))
    assert judge(BASELINE, pairs, DEFAULT, 1).verdict is PASS
    pairs[:seeds] = [replace(pair, candidate=moving(pair.candidate, *paths)) for pair in pairs[:seeds]]
    result = judge(BASELINE, pairs, DEFAULT, 1)
    assert result.verdict is INCONCLUSIVE and is_settled(BASELINE, pairs)
    assert is_settled(BASELINE, pairs[:1]), "further seeds can't make up for one that wasn't read"
    for several in (pairs, pairs[:1]):
        text = screened_text(judge(BASELINE, several, DEFAULT, 1))
        assert "weights can't be read" in text and "--screen-samples" not in text
    nowhere = [replace(pair, baseline=pair.candidate) for pair in pairs[:seeds]]
    assert judge(BASELINE, nowhere, DEFAULT, 1).verdict is not FAIL


def test_weights_that_become_no_numbers_fail() -> None:
    falling = curve(2.3, 0.2)
    pairs = three(
        lambda seed: run(falling, paths=(3.0, 2.0)),
        lambda seed: moving(run(falling, paths=(3.0, 2.0)), 3.0, math.inf),
    )
    assert judge(BASELINE, pairs, DEFAULT, 1).verdict is FAIL


def test_groups_of_weights_are_told_by_their_shapes_and_not_by_when_they_were_met() -> None:
    falling = curve(2.3, 0.2)

    def verdict(after: tuple[float, ...], groups: tuple[str, ...], before: tuple[str, ...] = ("g", "d")) -> object:
        pairs = three(
            lambda seed: moving(run(falling), 300.0, 0.3, groups=before),
            lambda seed: moving(run(falling), *after, groups=groups),
        )
        return judge(BASELINE, pairs, DEFAULT, 1).verdict

    assert verdict((0.3, 300.0), ("d", "g")) is PASS, "the other one was met first"
    assert verdict((300.0, 0.3), ("d", "g")) is FAIL, "the first one stands still, whichever moved more"
    assert verdict((300.0, 0.3), ("g", "d")) is PASS
    assert verdict((300.0, 0.3), ("g", "other")) is PASS, "what is left is told by its turn"
    assert verdict((300.0, 0.0), ("g", "other")) is FAIL
    assert verdict((300.0, 0.3), ("", "")) is PASS, "as in an earlier study"
    assert verdict((300.0, 0.0), ("same", "same"), ("same", "same")) is FAIL
    assert verdict((0.3, 300.0), ("same", "same"), ("same", "same")) is PASS, "of the same shapes, in another order"
    assert verdict((0.0, 300.0), ("same", "same"), ("same", "same")) is FAIL
    assert verdict((300.0, 300.0), ("same", "same"), ("same", "same")) is PASS
    assert verdict((300.0,), ("same",), ("same", "same")) is FAIL, "one was never met"


def test_one_of_two_optimizers_that_stands_still_fails() -> None:
    gan = three(
        lambda seed: run(curve(1.4, 0.3), curve(0.7, 3.0), paths=(3.0, 2.0)),
        lambda seed: run(curve(1.4, 0.3), curve(0.7, 3.0), paths=(3.0, 0.001)),
    )
    assert judge(BASELINE, gan, DEFAULT, 1).verdict is FAIL
    unread = [replace(pair, candidate=moving(pair.candidate, 3.0, math.nan)) for pair in gan]
    assert judge(BASELINE, unread, DEFAULT, 1).verdict is INCONCLUSIVE
    never = [replace(pair, candidate=run(curve(1.4, 0.3), curve(0.7, 3.0), paths=(3.0,))) for pair in gan]
    assert judge(BASELINE, never, DEFAULT, 1).verdict is FAIL, "the second one never took a step"


def test_where_one_of_two_losses_does_not_come_down_lower_is_not_better() -> None:
    """A discriminator whose generator never learns has an easy time."""
    gan = three(
        lambda seed: run(curve(1.4, 0.5, noise=0.02, seed=seed), curve(0.7, 2.0, noise=0.02, seed=seed)),
        lambda seed: run(curve(1.4, 0.1, noise=0.02, seed=seed), curve(0.7, 4.0, noise=0.02, seed=seed)),
    )
    result = judge(BASELINE, gan, DEFAULT, 1)
    assert result.verdict is INCONCLUSIVE
    assert "the training loss at train.py:71 went from 0.7" in result.reason
    assert "as in a GAN" in result.reason
    assert result.would_decide.startswith("a metric"), "no longer screen would help"


def test_a_policy_loss_tells_nothing() -> None:
    policy = three(
        lambda seed: run([random.Random(seed + step).gauss(0, 0.1) for step in range(200)]),
        lambda seed: run([random.Random(seed + step).gauss(0, 0.1) for step in range(200)]),
    )
    assert judge(BASELINE, policy, DEFAULT, 1).verdict is INCONCLUSIVE


def test_each_loss_of_a_step_counts() -> None:
    """Both come down as written; with the config the second one doesn't."""
    before, stuck = (curve(2.0, 0.5), curve(1.0, 0.2)), (curve(2.0, 0.5), curve(1.0, 0.9))
    shown = three(lambda seed: run(*before), lambda seed: run(*stuck))
    result = judge(BASELINE, shown, DEFAULT, 1)
    assert result.verdict is FAIL
    assert [(c.name, c.verdict) for c in result.checks if c.kind is CheckKind.LOSS] == [
        ("training loss at train.py:70", PASS), ("training loss at train.py:71", FAIL)
    ]  # fmt: skip


def test_losses_of_one_step_are_brought_down_together() -> None:
    """A penalty that stays as it is doesn't make a GAN of a script; one that grows with the config is seen."""
    penalty = [0.3] * 200
    written = run(curve(2.0, 0.5), penalty, together=True)
    alike = three(lambda seed: written, lambda seed: written)
    assert judge(BASELINE, alike, DEFAULT, 1).verdict is PASS
    grown = three(lambda seed: written, lambda seed: run(curve(2.0, 0.5), curve(0.3, 0.6), together=True))
    assert judge(BASELINE, grown, DEFAULT, 1).verdict is FAIL


def test_another_loss_that_is_not_finite_fails() -> None:
    wrong = three(
        lambda seed: run(curve(2.0, 0.5), curve(1.0, 0.2)), lambda seed: run(curve(2.0, 0.5), [math.nan] * 200)
    )
    assert judge(BASELINE, wrong, DEFAULT, 1).verdict is FAIL


def test_one_place_that_two_call_is_two_losses() -> None:
    sites = ("train.py:12<train.py:40", "train.py:12<train.py:44")
    shown = three(
        lambda seed: run(curve(2.0, 0.5), curve(1.0, 0.2), sites=sites),
        lambda seed: run(curve(2.0, 0.5), curve(1.0, 0.2), sites=sites),
    )
    result = judge(BASELINE, shown, DEFAULT, 1)
    assert [c.name for c in result.checks if c.kind is CheckKind.LOSS] == [f"{LOSS} at {site}" for site in sites]


@pytest.mark.parametrize(("share", "verdict"), [(1.0, PASS), (0.98, PASS), (0.8, FAIL), (0.5, FAIL), (0.0, FAIL)])
def test_what_is_learned_from_each_sample_is_held_to_its_limit(share: float, verdict: Noninferiority) -> None:
    """The loss alone, held to one percent of its way, would let a candidate by that learns from 80% of the samples."""
    shown = three(
        lambda seed: run(curve(2.3, 0.01, noise=0.003, seed=seed)),
        lambda seed: run(curve(2.3, 0.01, noise=0.003, seed=seed + 9, share=share)),
    )
    result = judge(BASELINE, shown, AccuracyLimits(max_loss_increase=0.2), 1)
    assert result.verdict is verdict
    assert result.efficiency is not None and result.efficiency.ratio == pytest.approx(max(share, 0.02), abs=0.03)
    alone = judge(BASELINE, shown, AccuracyLimits(max_loss_increase=0.2, min_sample_efficiency=None), 1)
    assert alone.verdict is (FAIL if share < 0.5 else PASS)


@pytest.mark.parametrize("share", [1.0, 0.98, 0.8, 0.0])
def test_what_is_learned_of_digits_is_told_by_real_curves(share: float) -> None:
    """bf16, channels_last and fused updates pass; as from 80% of the samples they lose 0.4% of the way down only."""
    samples, losses = digits.recorded()
    for first in (0, 6):
        shown = []
        for seed in range(first, first + 6):
            faster = losses[digits.FASTER][seed]
            after = digits.as_from(faster, share) if share else digits.never(faster)
            before = losses[digits.AS_WRITTEN][seed]
            shown.append(Pair(seed, digits.outcome(samples, before), digits.outcome(samples, after)))
        result = judge(BASELINE, shown, DEFAULT, 30_000)
        assert result.verdict is (PASS if share > 0.9 else FAIL), screened_text(result)
        by_loss = next(check for check in result.checks if check.kind is CheckKind.LOSS)
        assert by_loss.verdict is (FAIL if not share else PASS)


def test_the_sample_efficiency_is_not_known_where_one_of_two_losses_is_not_seen() -> None:
    """It could be the one that learns least."""
    first, second = curve(4.0, 1.0), curve(3.0, 1.0)
    pairs = three(lambda seed: run(first, second), lambda seed: run(first))
    both = [replace(pair, candidate=pair.baseline) for pair in pairs]
    assert sample_efficiency(both, 0.05) is not None
    assert sample_efficiency(pairs, 0.05) is None


def test_a_metric_decides_where_losses_do_not_tell() -> None:
    limits = AccuracyLimits(max_metric_drop={"reward": 0.02})

    def rewarded(first: float | None, before: float, after: float) -> list[Pair]:
        firsts = {} if first is None else {"reward": first}
        level = run([1.0] * 200)
        return [Pair(seed, level, level, {"reward": before}, {"reward": after}, firsts) for seed in (1, 2, 3)]

    assert judge(BASELINE, rewarded(10.0, 90.0, 90.0), limits, 1).verdict is PASS
    assert untold(BASELINE, rewarded(10.0, 90.0, 90.0)[:1], limits, 1) is None
    assert judge(BASELINE, rewarded(10.0, 90.0, 70.0), limits, 1).verdict is FAIL
    for first in (None, 89.0, 100.0):
        told = judge(BASELINE, rewarded(first, 90.0, 90.0), limits, 1)
        assert told.verdict is INCONCLUSIVE and "reward became no better as written" in told.reason
        assert untold(BASELINE, rewarded(first, 90.0, 90.0)[:1], limits, 1) is not None
