"""The best of each tier, and how far it is proven."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from support import worlds

from tuner.analysis import stats
from tuner.analysis.accuracy import Screened
from tuner.analysis.gain import BaselineTrack
from tuner.analysis.tiers import Tiers, best_of_tiers, holds
from tuner.knowledge import Knowledge
from tuner.model import Config, Phase, Ratio, Trial, Value, Verdict, Winner

TIERS = Tiers(
    {"workers": 1, "precision": 2, "batch_size": 3, "grad_accumulation": 3, "lr_scale": 3, "width": 3},
    Knowledge(as_written={"batch_size": 64, "grad_accumulation": 1}),
)
BF16: Config = Config(workers=2, precision="bf16")
FP16: Config = Config(workers=2, precision="fp16")


def trial(number: int, config: Mapping[str, Value], rate: float, phase: Phase = Phase.SEARCH) -> Trial:
    return Trial(number, phase, Config(config), "", worlds.measured(rate))


TRIALS = [
    trial(0, {}, 100.0, Phase.BASELINE),
    trial(1, {"workers": 2}, 120.0), trial(2, {"workers": 4}, 110.0), trial(3, BF16, 150.0), trial(4, FP16, 160.0),
    trial(5, {"batch_size": 128}, 90.0),
    Trial(6, Phase.SEARCH, Config(batch_size=512), "", worlds.infeasible("oom")),
]  # fmt: skip
SCREENED = (
    Screened(FP16, stats.Noninferiority.FAIL, (), 3, 100),
    Screened(BF16, stats.Noninferiority.PASS, (), 3, 100),
)


def won(config: Config, verdict: Verdict) -> Winner:
    measurement = worlds.measured(1.0).measurement
    assert measurement is not None
    return Winner(verdict, config, Ratio(1.4, 1.2, 1.6), measurement, measurement, 3)


def test_the_fastest_trial_stands_for_a_tier_with_what_its_screen_said() -> None:
    one, two = best_of_tiers(TRIALS, BaselineTrack(TRIALS, worlds.OBJECTIVE), TIERS, (), SCREENED)
    assert (one.tier, one.config, one.learned) == (1, Config(workers=2), "not-needed")
    assert (two.tier, two.config, two.learned) == (2, FP16, "fail")
    assert [one.gain, two.gain] == pytest.approx([1.2, 1.6])
    assert not (one.proven or two.proven or one.speedup or two.speedup)


@pytest.mark.parametrize("verdict", Verdict)
def test_what_finals_proved_stands_for_its_tier(verdict: Verdict) -> None:
    winner = won(BF16, verdict)
    one, two = best_of_tiers(TRIALS, BaselineTrack(TRIALS, worlds.OBJECTIVE), TIERS, [winner], SCREENED)
    improved = verdict is Verdict.IMPROVED
    assert two.config == (BF16 if improved else FP16), "without a proof the fastest trial says more"
    assert two.proven == improved
    assert two.speedup == (winner.speedup if improved else None)
    assert two.learned == ("pass" if improved else "fail")
    assert one.speedup is None


def test_a_candidate_without_proof_is_told_with_its_finals() -> None:
    winner = won(FP16, Verdict.KEEP_BASELINE)
    *_, best = best_of_tiers(TRIALS, BaselineTrack(TRIALS, worlds.OBJECTIVE), TIERS, [winner], ())
    assert (best.config, best.speedup, best.proven, best.learned) == (FP16, winner.speedup, False, "not-screened")


def test_nothing_faster_is_no_best() -> None:
    trials = [TRIALS[0], *TRIALS[5:]]
    assert best_of_tiers(trials, BaselineTrack(trials, worlds.OBJECTIVE), TIERS, (), ()) == ()


@pytest.mark.parametrize(
    ("config", "tier"),
    [
        ({}, 1), ({"workers": 2}, 1), (BF16, 2), ({"batch_size": 16, "grad_accumulation": 4}, 2),
        ({"batch_size": 16, "grad_accumulation": 4, "workers": 2}, 2), ({"width": 8}, 3), ({"lr_scale": 2.0}, 3),
        ({"batch_size": 16, "grad_accumulation": 4, "width": 8}, 3), ({"batch_size": 128, "workers": 2}, 3),
        ({"grad_accumulation": 2}, 3), ({"batch_size": 16}, 3),
    ],
)  # fmt: skip
def test_another_effective_batch_is_of_tier_3_and_parts_of_the_same_one_change_sums(
    config: Mapping[str, Value], tier: int
) -> None:
    assert TIERS.of(Config(config)) == tier


LARGER = [
    *TRIALS, trial(7, {"batch_size": 128, "lr_scale": 2.0}, 250.0),
    trial(8, {"batch_size": 256, "lr_scale": 4.0}, 260.0),
]  # fmt: skip


@pytest.mark.parametrize("verdict", [None, *Verdict])
def test_of_larger_batches_that_stands_for_its_tier_which_reaches_a_loss_soonest(verdict: Verdict | None) -> None:
    """Not the one that was read as fastest: a summary named both, and a reader couldn't tell which is meant."""
    named, fastest = LARGER[-2].config, LARGER[-1].config
    winners = [won(named, verdict)] if verdict is not None else []
    track = BaselineTrack(LARGER, worlds.OBJECTIVE)
    *_, best = best_of_tiers(LARGER, track, TIERS, winners, (), larger=named)
    assert (best.tier, best.config) == (3, named) and best.gain == pytest.approx(2.5)
    *_, best = best_of_tiers(LARGER, track, TIERS, [won(fastest, Verdict.IMPROVED)], (), larger=named)
    assert best.config == fastest, "what is proven stands above it"
    *_, best = best_of_tiers(LARGER, track, TIERS, (), ())
    assert best.config == fastest


@pytest.mark.parametrize(
    ("config", "part", "held"),
    [
        ({"precision": "bf16", "workers": 4}, {"precision": "bf16"}, True),
        ({"precision": "fp16"}, {"precision": "bf16"}, False),
        ({"batch_size": 16, "workers": 4}, {"batch_size": 16}, True),
        ({"batch_size": 16, "grad_accumulation": 4}, {"batch_size": 16}, False),
        ({"batch_size": 16, "grad_accumulation": 4}, {"batch_size": 16, "grad_accumulation": 4}, True),
        ({"batch_size": 16, "precision": "bf16"}, {"precision": "bf16"}, True),
    ],
)
def test_a_config_holds_what_was_rejected_with_the_same_batch_only(
    config: Mapping[str, Value], part: Mapping[str, Value], held: bool
) -> None:
    assert holds(config, part) is held
