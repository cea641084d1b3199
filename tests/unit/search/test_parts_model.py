"""The model of a loop's two parts: what its loader hides, what idle cores leave, and where it has nothing to tell."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
from support import worlds

from tuner.model import BASELINE, Config, Outcome, Phase, Trial
from tuner.search.gain_model import GainModel
from tuner.search.history import History
from tuner.search.parts_model import PartsModel
from tuner.search.tried import Indices
from tuner.search.waiting import without_wait

SPACE = worlds.resolved("workers", "precision", "layout")
HELD_UP = {
    BASELINE: worlds.measured(100.0, 0.05), Config(precision="bf16"): worlds.measured(105.0, 0.5),
    Config(layout=True): worlds.measured(104.0, 0.3), Config(workers=4): worlds.measured(104.0, 0.01),
    Config(workers=4, layout=True): worlds.measured(140.0, 0.05),
}  # fmt: skip
"""What computes faster waits for its loader in return; more workers alone bring nothing, but keep up with it."""
BOTH = Config(precision="bf16", workers=4)


def history_of(outcomes: Mapping[Config, Outcome]) -> History:
    return History(
        SPACE, worlds.OBJECTIVE,
        [
            Trial(number, Phase.SEARCH if config else Phase.BASELINE, config, "", outcome)
            for number, (config, outcome) in enumerate(outcomes.items())
        ],
    )  # fmt: skip


def models(outcomes: Mapping[Config, Outcome], cores: int | None = None) -> tuple[GainModel, PartsModel]:
    tried = history_of(outcomes).tried
    gains = GainModel(SPACE.axes, tried)
    return gains, PartsModel(gains, tried, cores)


def rows(*configs: Config) -> Indices:
    return np.array([list(SPACE.indices_of(config).values()) for config in configs], dtype=np.int64)


def busy(outcome: Outcome, cores: float) -> Outcome:
    """The same with so many cores at work."""
    assert outcome.measurement is not None
    seconds = cores / outcome.measurement.rate
    return replace(outcome, measurement=replace(outcome.measurement, cpu_s_per_sample=seconds))


def test_what_computes_faster_is_expected_to_show_with_a_loader_that_keeps_up() -> None:
    gains, parts = models(HELD_UP)
    whole, told = gains.predict(rows(BOTH))[0][0], parts.predict(rows(BOTH))[0][0]
    assert told > whole + 0.05
    assert parts.without_wait(rows(Config(precision="bf16")))[0][0] == pytest.approx(np.log(1.05 / 0.5), abs=0.2)
    bf16 = rows(Config(precision="bf16"))
    held_up = parts.predict(bf16)[0][0]
    assert held_up < 0.2, "by itself it is as fast as its batches are made"
    assert parts.means(bf16)[0] == pytest.approx(held_up, abs=0.05)


def test_cores_that_are_busy_while_a_loop_waits_leave_nothing_to_hope_for() -> None:
    outcomes = {config: busy(outcome, 2.0) for config, outcome in HELD_UP.items()}
    gains, parts = models(outcomes, cores=2)
    assert not parts.tells
    wanted = rows(BOTH, BASELINE)
    assert np.array_equal(parts.predict(wanted), gains.predict(wanted))
    half = {config: busy(outcome, 1.6) for config, outcome in HELD_UP.items()}
    bf16 = history_of(half).trials[1]
    assert without_wait(bf16, 0.5, 2) == pytest.approx(np.log(2 / 1.6))
    assert without_wait(bf16, 0.5, None) == pytest.approx(np.log(2))
    assert bf16.outcome is not None and bf16.measurement is not None
    with_others = replace(bf16.measurement, foreign_cpus=0.2)
    beside = replace(bf16.outcome, measurement=with_others)
    assert without_wait(replace(bf16, outcome=beside), 0.5, 2) == pytest.approx(np.log(2 / 1.8)), "others have them"
    assert without_wait(replace(bf16, outcome=beside), 0.5, 2, 1) == pytest.approx(np.log(2 / 1.6)), "a third core"
    for cores, at_work in ((1.7, 1.7), (1.5, 1.6), (2.5, 1.8)):
        told = replace(bf16.outcome, measurement=replace(with_others, wanted_cpus=cores))
        found = without_wait(replace(bf16, outcome=told), 0.5, 2)
        assert found == pytest.approx(np.log(2 / at_work)), "what it wants of the cores that others have isn't idle"


def test_what_is_no_rate_has_no_parts() -> None:
    tried = history_of(HELD_UP).tried
    gains = GainModel(SPACE.axes, tried)
    assert PartsModel(gains, tried, None).tells and not PartsModel(gains, tried, None, are_told=False).tells


def test_of_a_loop_whose_wait_nothing_shows_it_is_known_less_how_it_would_compute() -> None:
    outcome = HELD_UP[Config(layout=True)]
    assert outcome.measurement is not None
    unseen = replace(outcome, measurement=replace(outcome.measurement, data_wait_share=None))
    told = [
        models({**HELD_UP, Config(layout=True): each})[1].without_wait(rows(Config(layout=True)))[1][0]
        for each in (worlds.measured(104.0, 0.0), unseen)
    ]
    assert told[1] > 1.5 * told[0]


def test_where_no_loop_waits_both_parts_are_the_whole() -> None:
    outcomes = {BASELINE: worlds.measured(100.0, 0.05), Config(precision="bf16"): worlds.measured(150.0, 0.1)}
    gains, parts = models(outcomes)
    assert np.array_equal(parts.predict(rows(BOTH)), gains.predict(rows(BOTH)))
    assert np.array_equal(
        parts.draw(rows(BOTH), 4, np.random.default_rng(0)), gains.draw(rows(BOTH), 4, np.random.default_rng(0))
    )


def test_what_is_foreseen_of_the_slower_part_is_the_mean_and_the_deviation_of_what_is_drawn() -> None:
    _, parts = models(HELD_UP)
    wanted = rows(BOTH, Config(workers=2, layout=True), Config(precision="fp16"))
    mean, deviation = parts.predict(wanted)
    drawn = parts.draw(wanted, 20_000, np.random.default_rng(1))
    assert drawn.mean(axis=0) == pytest.approx(mean, abs=0.01)
    assert drawn.std(axis=0) == pytest.approx(deviation, rel=0.05)
