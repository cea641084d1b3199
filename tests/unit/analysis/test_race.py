"""When a trial is over by what other trials of its study say of the scatter of turns, and how often wrongly."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support import made_up, turning

from tuner.analysis.race import LOOKS, Race
from tuner.analysis.turns import MOST_ALIKE, Scatter, Turn, calm_pairs, gain_interval, scatter_of
from tuner.model import Config, Measurement, Ratio, Reference

SCATTER = 0.11
KNOWN = Scatter(SCATTER**2, MOST_ALIKE)
TURN_S = 0.25

Pairs = list[tuple[Turn, Turn]]


def taken(ratio: float, seed: int, *, scatter: float = SCATTER, rough: bool = False) -> Pairs:
    """Pairs of turns on a machine whose modes last seconds. ``rough``: that of trials differs by a factor of two, and
    others take half of the cores in a twentieth of the turns, which is seen.
    """
    chance = random.Random(seed)
    own_scatter = scatter / math.sqrt(2) * (math.exp(chance.gauss(0, 0.35)) if rough else 1.0)
    now, level, until, pairs = 0.0, 0.0, 0.0, list[tuple[Turn, Turn]]()
    for number in range(LOOKS[-1]):
        sides: list[Turn] = []
        for rate in (1000.0 * ratio, 1000.0):
            if now >= until:
                level, until = chance.gauss(0, 0.12), now + chance.expovariate(1 / 5.0)
            now += TURN_S
            lost = 0.5 if rough and chance.random() < 0.05 else 0.0
            speed = math.exp(level + chance.gauss(0, own_scatter)) * (1 - lost)
            sides.append(Turn(2 * number + len(sides) + 1, rate * speed * TURN_S, TURN_S, lost))
        pairs.append((sides[0], sides[1]))
    return pairs


def over_after(race: Race, pairs: Pairs) -> int | None:
    """After how many pairs the race was over, None where it wasn't."""
    counts = (count for count in LOOKS if race.is_settled(calm_pairs(pairs[:count]), whole=True))
    return next(counts, None)


def test_a_loser_leaves_at_the_first_look_where_others_told_how_turns_scatter() -> None:
    """By its own four pairs alone it would have to be far slower."""
    known = [over_after(Race(1.0, KNOWN), taken(0.65, seed)) for seed in range(60)]
    alone = [over_after(Race(1.0), taken(0.65, seed)) for seed in range(60)]
    assert known.count(LOOKS[0]) >= 40 and alone.count(LOOKS[0]) <= 20
    assert None not in known


@pytest.mark.slow  # 5 s beside three others
@pytest.mark.parametrize("rough", [False, True])
def test_one_that_is_as_fast_as_the_best_is_hardly_ever_taken_for_a_loser(*, rough: bool) -> None:
    """All looks together, in modes that last seconds: in 2% at most, and in 4.2% of 400 by chance."""
    wrong = 0
    for seed in range(400):
        pairs = taken(1.3, seed, rough=rough)
        count = over_after(Race(1.3, KNOWN), pairs)
        found = gain_interval(calm_pairs(pairs[:count]), 0.9, KNOWN) if count is not None else None
        wrong += found is not None and found.high < math.log(1.3)
    assert wrong <= 0.042 * 400


@pytest.mark.slow  # 4 s beside three others
def test_one_that_scatters_more_than_all_before_is_hardly_ever_taken_for_a_loser() -> None:
    """Quiet trials say nothing of it: in 5% it was one by what these had shown, and in 2% at most as it is."""
    wrong = 0
    for seed in range(600):
        chance = random.Random(seed)
        own = [Turn(2 * n + 1, 250 * math.exp(chance.gauss(0, 0.15)), TURN_S) for n in range(LOOKS[-1])]
        pairs = [(turn, Turn(turn.number + 1, 250.0, TURN_S)) for turn in own]
        count = over_after(Race(1.0, Scatter(0.03**2, MOST_ALIKE)), pairs)
        found = gain_interval(pairs[:count], 0.9) if count is not None else None
        wrong += found is not None and found.high < 0
    assert wrong <= 0.03 * 600


def test_what_trains_slowly_at_first_is_no_loser() -> None:
    """Its rate comes up with its fourth turn: the mean of four says otherwise, and the last one doesn't."""
    rates = [0.5, 0.5, 0.55, 1.2]
    pairs = [
        (Turn(2 * n + 1, 250 * rate, TURN_S), Turn(2 * n + 2, 250.0, TURN_S)) for n, rate in enumerate(rates)
    ]
    sharp = Scatter(0.01**2, 100.0)
    assert not Race(1.0, sharp).is_settled(pairs, whole=True)
    assert Race(1.0, sharp).is_settled([*pairs[:3], pairs[0]], whole=True)


def told(low: float, high: float, pairs: int = 12) -> Measurement:
    return replace(made_up.FASTER, reference=Reference(100.0, Ratio(math.sqrt(low * high), low, high), pairs))


def test_scatter_is_the_median_of_what_trials_by_turns_showed() -> None:
    assert scatter_of([]) is None and scatter_of([replace(made_up.FASTER, reference=None)]) is None
    assert scatter_of([told(0.0, math.inf), told(1.0, 1.0, pairs=1)]) is None
    narrow, wide, hopeless = told(0.95, 1.05), told(0.9, 1.1), told(0.01, 100.0)
    one, three = scatter_of([wide]), scatter_of([hopeless, narrow, wide])
    assert one is not None and three is not None
    assert three.variance == one.variance, "one that goes by fits and starts says nothing of the others"
    assert one.degrees == 2.0 and three.degrees == MOST_ALIKE, "a single one may be even by chance"


def test_scatter_that_was_read_is_hardly_less_than_the_true_one() -> None:
    measured = []
    for seed in range(60):
        found = gain_interval(taken(1.0, seed)[:12])
        assert found is not None
        measured.append(told(math.exp(found.low), math.exp(found.high)))
    known = scatter_of(measured)
    assert known is not None and 0.9 * SCATTER < math.sqrt(known.variance) < 1.5 * SCATTER


def test_what_is_known_of_the_scatter_narrows_few_pairs_and_hardly_many() -> None:
    for count, least, most in ((4, 0.2, 0.7), (LOOKS[-1], 0.75, 1.05)):
        shares = []
        for seed in range(40):
            pairs = taken(1.0, seed)[:count]
            alone, known = gain_interval(pairs), gain_interval(pairs, scatter=KNOWN)
            assert alone is not None and known is not None and known.estimate == alone.estimate
            shares.append((known.high - known.low) / (alone.high - alone.low))
        assert least < sorted(shares)[20] < most


def test_a_study_tells_each_trial_how_turns_scattered_in_those_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    races: list[Race] = []
    run_beside = turning.Turning.run_beside

    def noted(runner: turning.Turning, request: Any, written: Any, stop: Any, race: Race) -> Any:
        races.append(race)
        return run_beside(runner, request, written, stop, race)

    monkeypatch.setattr(turning.Turning, "run_beside", noted)
    gains = {"bf16": 1.2, "fp16": 1.1}
    turning.studied(
        tmp_path, lambda config: gains.get(str(Config(config).get("precision")), 1.0), seconds_of=lambda request: 1.0,
        trials=6,
    )
    assert len(races) > 2 and races[0].scatter is None
    assert [race.scatter.degrees for race in races[1:3] if race.scatter is not None] == [2.0, MOST_ALIKE]
