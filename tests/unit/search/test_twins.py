"""Near-twins are recognised by trials that differ in nothing else, and by the same rotation."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from support import worlds

from tuner.analysis.tiers import Tiers
from tuner.model import Config, Phase, Ratio, Rotated, Trial
from tuner.search.history import History
from tuner.search.twins import tells_no_more

SPACE = worlds.resolved()
TIERS = Tiers({"precision": 2, "workers": 1, "prefetch": 1, "compile": 1})


def history_of(
    rates: Mapping[Config, float], waits: Mapping[Config, float] | None = None, rough: float = 1.0
) -> History:
    trials = []
    for number, (config, rate) in enumerate(rates.items()):
        outcome = worlds.measured(rate, (waits or {}).get(config, 0.0))
        assert outcome.measurement is not None
        low, high = outcome.measurement.low / rough, outcome.measurement.high * rough
        outcome = replace(outcome, measurement=replace(outcome.measurement, low=low, high=high))
        trials.append(Trial(number, Phase.SEARCH if config else Phase.BASELINE, config, "", outcome))
    return History(SPACE, worlds.OBJECTIVE, trials)


W2, W2_FAR, BF16 = Config(workers=2), Config(workers=2, prefetch=4), Config(precision="bf16")
BOTH, BOTH_FAR = Config(workers=2, precision="bf16"), Config(workers=2, precision="bf16", prefetch=4)
RATES = {Config(): 100.0, W2: 150.0, W2_FAR: 151.0, BOTH: 220.0}


def test_what_makes_no_difference_once_makes_none_in_other_company() -> None:
    twins = history_of(RATES).twins
    assert twins.are_twins(W2_FAR, W2) and twins.are_twins(BOTH_FAR, BOTH)
    assert not twins.are_twins(BOTH, W2) and not twins.are_twins(Config(), W2)
    assert not twins.are_twins(Config(workers=4), W2), "nobody has seen that"


def test_what_makes_a_difference_anywhere_is_no_twin() -> None:
    twins = history_of({**RATES, BOTH_FAR: 260.0}).twins
    assert not twins.are_twins(W2_FAR, W2) and not twins.are_twins(BOTH_FAR, BOTH)


def test_what_small_gains_add_up_to_is_no_twin() -> None:
    """Each of three values brings 1.9%, which is alike; together they bring 5.8%, and one that costs takes it back."""
    each = [Config(precision="bf16"), Config(layout=True), Config(compile="max")]
    small = {Config(): 100.0, **dict.fromkeys(each, 101.9), Config(workers=1): 98.2}
    twins = history_of(small).twins
    assert all(twins.are_twins(one, Config()) for one in small)
    together = Config(precision="bf16", layout=True, compile="max")
    assert not twins.are_twins(together, Config()) and not twins.are_twins(Config(), together)
    assert not twins.are_twins(Config(layout=True, compile="max"), Config())
    assert twins.are_twins(Config(layout=True, workers=1), Config())
    assert twins.are_twins(Config(precision="bf16"), Config(compile="max")), "what one costs the other brings"


def test_what_a_value_brings_is_the_same_whichever_of_two_trials_came_first() -> None:
    """Bf16, and the layout, each bring 1.9% twice; beside two workers the trial with them came before the one without.
    """
    rates = {Config(): 100.0}
    for value, workers in (({"precision": "bf16"}, 2), ({"layout": True}, 4)):
        rates |= {Config(value): 101.9, Config(value, workers=workers): 152.85, Config(workers=workers): 150.0}
    twins = history_of(rates).twins
    assert twins.are_twins(Config(layout=True), Config())
    assert not twins.are_twins(Config(precision="bf16", layout=True), Config())


def test_what_a_loop_that_computes_shows_says_nothing_of_one_that_waits() -> None:
    twins = history_of(RATES, {BOTH: 0.5}).twins
    assert twins.are_twins(W2_FAR, W2) and not twins.are_twins(BOTH_FAR, BOTH)
    alike = {Config(): 100.0, W2: 100.5, BF16: 160.0}
    assert history_of(alike).twins.are_twins(BOTH, BF16)
    assert not history_of(alike, {W2: 0.5}).twins.are_twins(BOTH, BF16), "that one waited, and the other did not"


def test_rough_trials_that_look_alike_are_no_evidence() -> None:
    assert not history_of(RATES, rough=1.15).twins.are_twins(BOTH_FAR, BOTH)


LAYOUT, BF16_LAYOUT = Config(layout=True), Config(precision="bf16", layout=True)


def rotated(gains: Mapping[Config, float], error: float = 1.05, **rates: float) -> History:
    """After a rotation, and trials of these of the three configs with these rates."""
    ranked = tuple(Rotated(config, Ratio(gain, gain / error, gain * error), 5) for config, gain in gains.items())
    configs = {"bf16": BF16, "layout": LAYOUT, "both": BF16_LAYOUT}
    trials = [
        Trial(0, Phase.BASELINE, Config(), "", worlds.measured(100.0)),
        Trial(1, Phase.ROTATION, Config(), "", replace(worlds.measured(100.0), rotation=ranked)),
    ]
    for of, rate in rates.items():
        trials.append(Trial(len(trials), Phase.SEARCH, configs[of], "", worlds.measured(rate)))
    return History(SPACE, worlds.OBJECTIVE, trials)


def test_a_rotation_tells_twins() -> None:
    twins = rotated({BF16: 1.7, BF16_LAYOUT: 1.71, LAYOUT: 1.05}).twins
    assert twins.are_twins(BF16_LAYOUT, BF16) and not twins.are_twins(LAYOUT, BF16)


def test_a_rotation_tells_nothing_of_configs_that_share_no_value_nor_of_what_it_hardly_knows() -> None:
    assert not rotated({BF16: 1.30, LAYOUT: 1.31}).twins.are_twins(LAYOUT, BF16)
    assert not rotated({BF16: 1.7, BF16_LAYOUT: 1.71}, error=1.5).twins.are_twins(BF16_LAYOUT, BF16)
    assert not rotated({BF16: 1.7, BF16_LAYOUT: 1.71}, error=math.inf).twins.are_twins(BF16_LAYOUT, BF16)


def test_the_own_trials_of_two_configs_outrank_a_rotation() -> None:
    apart = rotated({BF16: 1.30, LAYOUT: 1.31}, bf16=140.0, layout=115.0)
    assert not apart.twins.are_twins(LAYOUT, BF16)
    assert not tells_no_more(LAYOUT, [BF16], apart.twins, TIERS), "it isn't passed over for the finals"
    ranked = {BF16: 1.7, BF16_LAYOUT: 1.71}
    assert rotated(ranked, bf16=140.0, both=140.5).twins.are_twins(BF16_LAYOUT, BF16)
    assert not rotated(ranked, bf16=140.0, both=160.0).twins.are_twins(BF16_LAYOUT, BF16)


def test_a_candidate_gives_way_to_a_better_twin_that_changes_no_more_than_it_does() -> None:
    rates = {Config(): 100.0, W2: 150.0, BOTH: 151.0, Config(workers=4): 150.5}
    twins = history_of(rates).twins
    assert tells_no_more(Config(workers=4), [W2], twins, TIERS)
    assert tells_no_more(BOTH, [W2], twins, TIERS), "the numerics are changed for nothing"
    assert not tells_no_more(W2, [BOTH], twins, TIERS), "which may fail a screen that W2 needs not"
    assert not tells_no_more(W2, [Config()], twins, TIERS)
