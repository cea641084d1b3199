"""Verdicts of screens on the gradients of first steps: a batch in parts has that of the whole."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from support import worlds

from tuner.analysis.accuracy import AccuracyLimits, is_settled, judge
from tuner.analysis.checks import Pair
from tuner.analysis.first_gradient import GRADIENT, SAMPLES
from tuner.analysis.loss_checks import LOSS
from tuner.analysis.stats import Noninferiority
from tuner.formatting import screened_text
from tuner.knowledge import Knowledge
from tuner.model import Config, FirstGradient, Outcome

PASS, FAIL, INCONCLUSIVE = Noninferiority.PASS, Noninferiority.FAIL, Noninferiority.INCONCLUSIVE
LIMITS = AccuracyLimits(max_loss_increase=0.01, min_sample_efficiency=None)


def down_to(late: float, start: float) -> Outcome:
    """A run whose loss stays where it begins for a quarter of its samples, and then where it ends."""
    outcome = worlds.measured(100.0)
    assert outcome.measurement is not None
    losses = (worlds.series([*[start] * 10, *[late] * 30]),)
    return replace(outcome, measurement=replace(outcome.measurement, losses=losses))


ALIKE = down_to(1.0, 2.0)
SPLIT = Config(batch_size=16, grad_accumulation=4)
SAME = ((1024.0, 3.5), (64.0, 0.25))


def gradients(*norms: tuple[float, float], before: dict[str, Any] | None = None, **after: Any) -> list[Pair]:
    """Pairs that learn alike, with these norms of the first step's gradient."""

    def outcome(norm: float, changes: dict[str, Any]) -> Outcome:
        alike = ALIKE
        first = replace(FirstGradient(norm, 64.0, True, False, SAME), **changes)
        assert alike.measurement is not None
        return replace(alike, measurement=replace(alike.measurement, gradient=first))

    return [
        Pair(seed, outcome(whole, before or {}), outcome(parts, after))
        for seed, (whole, parts) in enumerate(norms, start=1)
    ]


def test_a_batch_in_parts_gives_the_gradient_of_the_whole() -> None:
    same = judge(SPLIT, gradients((2.0, 2.00001), (2.1, 2.1), (1.9, 1.9)), LIMITS, 256)
    assert same.verdict is PASS
    assert same.checks[-1].name == GRADIENT and same.checks[-1].worse == pytest.approx(5e-6)
    other = gradients((2.0, 2.0), (2.1, 2.11))
    assert not is_settled(SPLIT, other[:1]) and is_settled(SPLIT, other)
    failed = judge(SPLIT, other, LIMITS, 256)
    assert failed.verdict is FAIL
    text = screened_text(failed)
    assert "gradient norm of the first step 2.055 against 2.05 (0.48% apart; 0.05% is the limit)" in text


def test_numbers_that_are_coarser_may_be_further_apart() -> None:
    near, far = (2.0, 2.01), (2.0, 2.03)
    for coarse in ({"exact": False}, {"before": {"exact": False}}):
        assert judge(SPLIT, gradients(near, near, near, **coarse), LIMITS, 256).verdict is PASS
        assert judge(SPLIT, gradients(far, **coarse), LIMITS, 256).verdict is FAIL


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"random": True}, "draws random numbers"),
        ({"before": {"random": True}}, "draws random numbers"),
        ({"changed": True}, "changes its gradients itself"),
        ({"inputs": ((1024.0, 3.6), (64.0, 0.25))}, "its data were not the same"),
        ({"norm": math.inf}, "not a finite number"),
    ],
)
def test_gradients_that_chance_moves_leave_it_to_the_losses(changes: dict[str, Any], said: str) -> None:
    result = judge(SPLIT, gradients((2.0, 2.5), (2.0, 2.5), (2.0, 2.5), **changes), LIMITS, 256)
    assert result.verdict is PASS
    assert [check.name for check in result.checks] == [LOSS]
    assert said in screened_text(result)


def test_padded_batches_are_the_same_data() -> None:
    assert judge(SPLIT, gradients((2.0, 2.5), inputs=((960.0, 3.1), (64.0, 0.25))), LIMITS, 256).verdict is FAIL


def test_another_batch_may_have_another_gradient() -> None:
    apart = gradients((2.0, 2.5), (2.0, 2.5), (2.0, 2.5))
    freed = gradients((2.0, 2.5), (2.0, 2.5), (2.0, 2.5), samples=128.0)
    for config, pairs_ in (({"precision": "bf16"}, apart), ({"batch_size": 128}, freed)):
        result = judge(Config(config), pairs_, LIMITS, 256)
        assert (result.verdict, result.reason) == (PASS, "")


def test_a_batch_in_parts_that_trains_on_fewer_samples_a_step_fails() -> None:
    """Accumulation had no effect: each step takes the one part, and learns faster from as many samples."""
    dropped = gradients((2.0, 3.9), (2.0, 3.9), (2.0, 3.9), samples=16.0)
    assert is_settled(SPLIT, dropped[:1])
    failed = judge(SPLIT, dropped, LIMITS, 256)
    assert failed.verdict is FAIL
    assert failed.reason == "its first step trained on 16 samples, as written on 64: the effective batch isn't kept"
    [check] = failed.checks
    assert (check.name, check.baseline, check.candidate) == (SAMPLES, 64.0, 16.0)


@pytest.mark.parametrize("config", [Config(batch_size=16), Config(grad_accumulation=4)])
def test_what_a_config_leaves_as_written_counts_for_its_effective_batch(config: Config) -> None:
    def with_written(pair: Pair) -> Pair:
        knowledge = Knowledge(as_written={"batch_size": 16, "grad_accumulation": 4})
        return replace(pair, baseline=replace(pair.baseline, knowledge=knowledge))

    dropped = [with_written(pair) for pair in gradients((2.0, 3.9), samples=16.0)]
    assert judge(config, dropped, LIMITS, 256).verdict is FAIL


def test_where_the_samples_as_written_are_not_the_batch_nothing_is_told() -> None:
    """Two backward passes a step, in a trainer that fetches a batch ahead: each counts for a batch."""
    ahead = gradients((2.0, 2.0), (2.0, 2.0), (2.0, 2.0), before={"samples": 128.0}, samples=80.0)
    written = Knowledge(as_written={"batch_size": 64})
    ahead = [replace(pair, baseline=replace(pair.baseline, knowledge=written)) for pair in ahead]
    told = judge(SPLIT, ahead, LIMITS, 256)
    assert told.verdict is INCONCLUSIVE and "trained on 80 samples, as written on 128" in told.reason


def test_a_first_gradient_that_only_one_side_shows_is_said() -> None:
    def without(pair: Pair) -> Pair:
        assert pair.candidate.measurement is not None
        return replace(pair, candidate=replace(
            pair.candidate, measurement=replace(pair.candidate.measurement, gradient=None)
        ))  # fmt: skip

    told = judge(SPLIT, [without(pair) for pair in gradients((2.0, 2.0), (2.0, 2.0), (2.0, 2.0))], LIMITS, 256)
    assert told.verdict is PASS
    assert told.reason == "gradient norm of the first step wasn't seen of both: only the other figures can tell"
