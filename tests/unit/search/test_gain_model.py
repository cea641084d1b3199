"""The model of gains finds effects that were planted, and knows what it doesn't know."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

import numpy as np
from support import worlds

from tuner.model import Config, Phase, Trial, Value
from tuner.search.gain_model import GainModel, expected_excess
from tuner.search.history import History
from tuner.search.tried import Indices

SPACE = worlds.resolved("workers", "precision", "batch_size", "layout", "compile")
EFFECTS: dict[tuple[str, Value], float] = {
    ("workers", 1): 0.1, ("workers", 2): 0.2, ("workers", 4): 0.4, ("precision", "bf16"): 0.5, ("layout", True): -0.3,
}  # fmt: skip


def history_of(gains: Iterable[tuple[Config, float]], error: float | None = None) -> History:
    """A trial a gain, a logarithm; ``error``: half of the 95% intervals of the rates, as a share."""
    trials = [Trial(0, Phase.BASELINE, Config(), "", worlds.measured(100.0))]
    for number, (config, log_gain) in enumerate(gains, 1):
        outcome = worlds.measured(100.0 * math.exp(log_gain))
        assert outcome.measurement is not None
        if error is not None:
            low, high = (outcome.measurement.rate * (1 + sign * error) for sign in (-1, 1))
            outcome = replace(outcome, measurement=replace(outcome.measurement, low=low, high=high))
        trials.append(Trial(number, Phase.SEARCH, config, "", outcome))
    return History(SPACE, worlds.OBJECTIVE, trials)


def planted(config: Config) -> tuple[Config, float]:
    return config, sum(EFFECTS.get(each, 0.0) for each in config.items())


def rows(*configs: Config) -> Indices:
    return np.array([list(SPACE.indices_of(config).values()) for config in configs], dtype=np.int64)


def test_effects_add_up_to_configs_that_nobody_tried() -> None:
    alone = [Config({knob: value}) for knob, value in EFFECTS]
    model = GainModel(SPACE.axes, history_of(map(planted, alone)).tried)
    mean, deviation = model.predict(rows(Config(workers=4, precision="bf16"), Config(workers=4, layout=True)))
    assert mean[0] > 0.6 and abs(mean[1] - 0.1) < 0.15
    assert (deviation < 0.25).all()


def test_the_script_as_written_gains_exactly_nothing_and_what_was_never_turned_is_unknown() -> None:
    model = GainModel(SPACE.axes, history_of([planted(Config(precision="bf16"))]).tried)
    mean, deviation = model.predict(rows(Config(), Config(precision="bf16"), Config(compile="max")))
    assert mean[0] == 0.0 and deviation[0] < 1e-5
    assert abs(mean[1] - 0.5) < 0.05
    assert mean[2] == 0.0 and deviation[2] > 0.1


def test_a_lucky_reading_counts_less_than_what_its_like_say_and_a_gain_of_its_own_is_kept() -> None:
    """Read to 10%, as trials on a noisy machine are."""
    bf16, both = Config(precision="bf16"), Config(precision="bf16", layout=True)
    alike = [(Config(workers=2), 0.0), (bf16, 0.5), (Config(layout=True), 0.0), (both, 0.5), (Config(workers=4), 0.0)]
    lucky = history_of([*alike, (Config(precision="bf16", workers=2), 0.65)], error=0.1)
    expected = lucky.expected(lucky.trials[-1]) or 0.0
    assert 0.5 < math.log(expected) < 0.62, "two workers brought nothing elsewhere"
    assert lucky.expected(lucky.trials[0]) == 1.0
    own = history_of([*alike[:3], (both, 1.5)], error=0.1)
    assert own.by_expectation(own.trials)[0].config == both
    assert math.log(own.expected(own.trials[-1]) or 0.0) > 1.1, "what noise can't be is believed of one trial"


def test_what_the_model_does_not_know_is_expected_to_gain_what_it_read() -> None:
    nothing = History(worlds.resolved("batch_size"), worlds.OBJECTIVE, [])
    assert nothing.model is None and nothing.by_expectation(nothing.trials) == []
    history = history_of([(Config(workers=2), 0.3)])
    elsewhere = Trial(9, Phase.SEARCH, Config(workers=3), "", worlds.measured(150.0))
    assert history.expected(elsewhere) == 1.5


def test_neighbours_along_an_ordered_knob_act_alike_and_other_values_do_not() -> None:
    model = GainModel(SPACE.axes, history_of([(Config(workers=2), 0.5), (Config(precision="bf16"), 0.5)]).tried)
    mean, deviation = model.predict(rows(Config(workers=4), Config(workers=8), Config(precision="fp16")))
    assert mean[0] > 0.4 and mean[1] > 0.4 and mean[2] == 0.0
    assert deviation[0] < deviation[1], "the further from what was tried, the less is known"


def test_a_climb_that_gained_is_likely_to_gain_on_and_one_that_lost_to_lose_on() -> None:
    for gained in (0.5, -0.5):
        model = GainModel(SPACE.axes, history_of([(Config(workers=2), gained)]).tried)
        (mean, further, beyond), _ = model.predict(rows(Config(workers=2), Config(workers=4), Config(workers=8)))
        assert (further - mean) / gained > 0.1
        assert 0.0 < (beyond - further) / gained < (further - mean) / gained, "the further away the less is known"


def test_how_much_one_knob_brings_says_nothing_of_how_much_another_may() -> None:
    """On the grid ``overhead`` a batch gained 8.8x, and all that was unknown was tried at once on top of it."""
    gains = [(Config(batch_size=size), gained) for size, gained in ((128, 0.7), (256, 1.3), (512, 1.8))]
    none, large = (GainModel(SPACE.axes, history_of(told).tried) for told in ([], gains))
    unknown = rows(Config(precision="bf16"))
    assert large.predict(unknown)[1][0] == none.predict(unknown)[1][0]


def test_pairs_count_once_data_support_them() -> None:
    alone = [(Config(precision="bf16"), 0.3), (Config(layout=True), 0.0), (Config(compile="max"), 0.2)]
    both, other = Config(precision="bf16", layout=True), Config(precision="bf16", layout=True, compile="max")
    before = GainModel(SPACE.axes, history_of(alone).tried).predict(rows(both))[0][0]
    told = [*alone, (both, 0.6), (other, 0.8), (Config(layout=True, compile="max"), 0.2)]
    after = GainModel(SPACE.axes, history_of(told).tried).predict(rows(both))[0][0]
    assert before < 0.4 and after > 0.5


def test_effects_are_beyond_what_pinned_knobs_gain() -> None:
    space = worlds.resolved(precision="bf16")
    rates = {Config(precision="bf16"): 200.0, Config(precision="bf16", layout=True): 230.0}
    trials = [Trial(n, Phase.SEARCH, config, "", worlds.measured(rates[config])) for n, config in enumerate(rates, 1)]
    baseline = Trial(0, Phase.BASELINE, Config(), "", worlds.measured(100.0))
    model = GainModel(space.axes, History(space, worlds.OBJECTIVE, [baseline, *trials]).tried)
    configs = [list(space.indices_of(config).values()) for config in (*rates, Config(precision="bf16", workers=4))]
    mean, _ = model.predict(np.array(configs, dtype=np.int64))
    assert mean[0] == mean[2] == np.float64(math.log(2.0))
    assert abs(mean[1] - math.log(2.3)) < 0.02
    assert np.allclose(model.draw(np.array(configs), 500, np.random.default_rng(0))[:, 0], math.log(2.0))


def test_draws_are_those_of_the_prediction() -> None:
    model = GainModel(SPACE.axes, history_of([planted(Config(precision="bf16"))]).tried)
    configs = rows(Config(precision="bf16"), Config(compile="max"), Config(compile="max", workers=1))
    mean, deviation = model.predict(configs)
    drawn = model.draw(configs, 4000, np.random.default_rng(1))
    assert np.allclose(drawn.mean(axis=0), mean, atol=0.03)
    assert np.allclose(drawn.std(axis=0), deviation, rtol=0.1, atol=0.005)
    assert np.corrcoef(drawn[:, 1], drawn[:, 2])[0, 1] > 0.5, "the same compiler is in both"


def test_the_expected_excess_is_that_of_a_normal_variable() -> None:
    draws = np.random.default_rng(2).normal(0.1, 0.2, 200_000)
    (expected,) = expected_excess(np.array([0.1]), np.array([0.2]), 0.25)
    assert abs(expected - np.maximum(draws - 0.25, 0).mean()) < 0.001
    assert expected_excess(np.array([0.5]), np.array([1e-6]), 0.2)[0] == np.float64(0.3)
