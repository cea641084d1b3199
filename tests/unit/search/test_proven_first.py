"""Which trial is proven first: by its own reading, by those of its like, and by what a rotation read of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
from support import worlds

from tuner.analysis.tiers import Tiers
from tuner.model import Config, Phase, Ratio, Reference, Rotated, Trial
from tuner.search.history import History
from tuner.search.proven_first import candidates_of
from tuner.search.ranked import ranked_readings
from tuner.search.rotation import MOST_BIAS, MOST_UNMEASURED_BIAS
from tuner.space.resolved import ResolvedSpace

SPACE = worlds.resolved("precision", "layout", "compile")
LAYOUT, BF16 = Config(layout=True), Config(precision="bf16")
Told = Mapping[Config, tuple[float, float]]
"""Config → its gain, and by what factor its interval's ends are off it."""


def rotation(gains: Told, foreign_cpus: float = 0.0) -> Trial:
    made = worlds.measured(100.0)
    assert made.measurement is not None
    measurement = replace(made.measurement, foreign_cpus=foreign_cpus)
    rotated = tuple(Rotated(config, Ratio(own, own / off, own * off), 5) for config, (own, off) in gains.items())
    return Trial(1, Phase.ROTATION, Config(), "", replace(made, measurement=measurement, rotation=rotated))


def by_turns(number: int, config: Config, own: float, off: float) -> Trial:
    made = worlds.measured(100.0 * own)
    assert made.measurement is not None
    reference = Reference(100.0, Ratio(own, own / off, own * off), 10)
    return Trial(
        number, Phase.SEARCH, config, "", replace(made, measurement=replace(made.measurement, reference=reference))
    )


def history_of(*trials: Trial) -> History:
    return History(SPACE, worlds.OBJECTIVE, [Trial(0, Phase.BASELINE, Config(), "", worlds.measured(100.0)), *trials])


def first_of(history: History) -> list[Config]:
    return [trial.config for trial in candidates_of(history, history.trials, Tiers({}, SPACE.knowledge))]


def test_a_rough_trial_does_not_outweigh_what_a_rotation_read() -> None:
    """As it was in a study of studies/digits that proved nothing: 1.04x and 1.08x, each read to about 50%."""
    rough = [by_turns(2, LAYOUT, 1.04, 1.42), by_turns(3, BF16, 1.08, 1.55)]
    assert first_of(history_of(*rough)) == [BF16, LAYOUT]
    assert first_of(history_of(rotation({LAYOUT: (1.23, 1.2), BF16: (1.06, 1.12)}), *rough)) == [LAYOUT, BF16]


def test_finals_that_have_begun_keep_a_candidate_that_nobody_expects_anything_of() -> None:
    history = history_of(by_turns(2, LAYOUT, 0.97, 1.5), by_turns(3, BF16, 1.2, 1.02))
    found = candidates_of(history, history.trials, Tiers({}, SPACE.knowledge), going_on=(2,))
    assert [trial.config for trial in found] == [LAYOUT, BF16]


def test_a_sharp_trial_outweighs_what_a_rotation_read() -> None:
    sharp = [by_turns(2, LAYOUT, 1.04, 1.02), by_turns(3, BF16, 1.12, 1.02)]
    assert first_of(history_of(rotation({LAYOUT: (1.23, 1.2), BF16: (1.06, 1.12)}), *sharp)) == [BF16, LAYOUT]


def test_what_is_expected_to_be_faster_is_a_candidate_though_its_trial_read_slower() -> None:
    slower = [by_turns(2, LAYOUT, 0.97, 1.5), by_turns(3, BF16, 0.97, 1.03)]
    assert first_of(history_of(*slower)) == []
    assert first_of(history_of(rotation({LAYOUT: (1.3, 1.05), BF16: (0.98, 1.05)}), *slower)) == [LAYOUT]
    assert first_of(history_of(rotation({LAYOUT: (1.02, 1.05)}), *slower)) == [], "not for what nobody would miss"


@pytest.mark.parametrize(
    ("config", "loaders", "foreign_cpus", "bias"),
    [
        (LAYOUT, [], 0.0, MOST_BIAS),
        (LAYOUT, ["layout"], 0.0, MOST_UNMEASURED_BIAS),
        (Config(compile="max"), [], 0.0, MOST_UNMEASURED_BIAS),
        (LAYOUT, [], 3.0, MOST_UNMEASURED_BIAS),
    ],
)
def test_a_reading_of_a_rotation_is_as_rough_as_its_turns_and_its_bias(
    config: Config, loaders: list[str], foreign_cpus: float, bias: float
) -> None:
    history = history_of(rotation({config: (1.2, 1.1)}, foreign_cpus))
    found = ranked_readings(SPACE, history.ranking, loaders, calm=not foreign_cpus)
    assert found.indices.tolist() == [list(SPACE.indices_of(config).values())]
    assert found.gains.tolist() == pytest.approx([math.log(1.2)])
    assert found.noise.tolist() == pytest.approx([math.hypot(math.log(1.1) / 1.96, math.log(bias) / 2)])


def test_readings_that_share_a_value_say_no_more_than_one_would() -> None:
    """One process read them all: what is off in it is off in each."""
    both, other = Config(layout=True, precision="bf16"), Config(compile="max")
    ranking = history_of(rotation(dict.fromkeys((LAYOUT, BF16, both, other), (1.2, 1.0001)))).ranking
    found = ranked_readings(SPACE, ranking, [], calm=True)
    one = math.log(MOST_BIAS) / 2
    expected = [one * math.sqrt(2), one * math.sqrt(2), one * math.sqrt(3), math.log(MOST_UNMEASURED_BIAS) / 2]
    assert found.noise.tolist() == pytest.approx(expected, rel=0.01)


def test_ratios_without_the_wait_for_data_are_no_readings() -> None:
    """Such a loop computes twice as fast in a rotation, and is no faster where its loader is as slow as before."""
    trial = by_turns(2, BF16, 1.05, 1.02)
    told = rotation({BF16: (2.0, 1.02)})
    assert told.outcome is not None
    hidden = replace(told.outcome, rotation=tuple(replace(each, without_wait=True) for each in told.outcome.rotation))
    alone, beside = history_of(trial), history_of(replace(told, outcome=hidden), trial)
    assert beside.expected(trial) == alone.expected(trial) and len(beside.ranking) == 1
    assert (history_of(told, trial).expected(trial) or 0.0) > (alone.expected(trial) or 0.0)


def test_what_is_off_the_axes_or_has_no_bounds_is_no_reading() -> None:
    space: ResolvedSpace = worlds.resolved("precision")
    ranking = history_of(rotation({LAYOUT: (1.2, 1.1), BF16: (1.2, math.inf)})).ranking
    assert len(ranked_readings(space, ranking, [], calm=True)) == 0
    assert ranked_readings(space, ranking, [], calm=True).indices.shape == (0, 1)


def test_others_that_took_cores_make_a_rotation_count_less() -> None:
    told = {LAYOUT: (1.3, 1.05)}
    calm, busy = (history_of(rotation(told, foreign), by_turns(2, LAYOUT, 1.0, 1.2)) for foreign in (0.0, 3.0))
    assert (calm.expected(calm.trials[-1]) or 0.0) > (busy.expected(busy.trials[-1]) or 0.0) > 1.0


def test_readings_of_a_rotation_lead_the_model_to_combinations_that_nobody_tried() -> None:
    alone = history_of(by_turns(2, LAYOUT, 1.1, 1.05))
    ranked = history_of(rotation({BF16: (1.4, 1.05)}), by_turns(2, LAYOUT, 1.1, 1.05))
    both = np.array([list(SPACE.indices_of(Config(layout=True, precision="bf16")).values())], dtype=np.int64)
    assert alone.model is not None and ranked.model is not None
    assert ranked.model.predict(both)[0][0] > alone.model.predict(both)[0][0] + 0.15
