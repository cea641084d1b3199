"""The ratio of trials that took turns: what meets both sides of a pair alike is no part of it."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from statistics import median, stdev

import pytest
from support import made_up

from tuner.analysis.race import LOOKS, Race
from tuner.analysis.stats import mean_ratio_interval
from tuner.analysis.turns import (
    DISTURBED,
    FEWEST_CALM,
    TOLD_TO,
    Turn,
    gain_interval,
    noise_within,
    pairs_of_turns,
    rounds_to_tell,
)
from tuner.model import Block, Ratio, Reference


def taken(
    count: int, gain: float, *, noise: float = 0.0, seed: int = 0, machine: list[float] | None = None
) -> tuple[list[Turn], list[Turn]]:
    """Alternating turns of a quarter of a second at 100 samples/s, the trial's faster by ``gain``."""
    chance = random.Random(seed)
    own, other = [], []
    for pair in range(count):
        speed = machine[pair] if machine is not None else 1.0
        own.append(Turn(2 * pair + 1, 25.0 * gain * speed * math.exp(chance.gauss(0, noise)), 0.25))
        other.append(Turn(2 * pair + 2, 25.0 * speed * math.exp(chance.gauss(0, noise)), 0.25))
    return own, other


def test_what_the_machine_does_for_seconds_at_a_time_meets_both_alike() -> None:
    modes = [1.0] * 5 + [0.4] * 4 + [1.3] * 5
    pairs = pairs_of_turns(*taken(14, 1.05, machine=modes))
    found = gain_interval(pairs)
    assert found is not None and math.exp(found.estimate) == pytest.approx(1.05)
    assert found.high - found.low < 1e-9


def test_turns_of_one_side_that_follow_each_other_are_one() -> None:
    """Steps of one second against steps of a tenth: three turns of one for each of the other."""
    own = [Turn(1, 100.0, 1.0), Turn(5, 100.0, 1.0)]
    other = [Turn(number, 15.0, 0.3) for number in (2, 3, 4, 6, 7, 8)]
    pairs = pairs_of_turns(own, other)
    assert [mine.seconds for mine, _ in pairs] == [1.0, 1.0]
    assert [theirs.seconds for _, theirs in pairs] == pytest.approx([0.9, 0.9])
    found = gain_interval(pairs)
    assert found is not None and math.exp(found.estimate) == pytest.approx(2.0)


def test_a_stall_that_belongs_to_the_loop_stays_in_the_ratio() -> None:
    """Every seventh turn of the script as written stands still half of the time: an epoch's end. It isn't left out."""
    own, other = taken(28, 1.0)
    other = [turn._replace(amount=turn.amount / 2) if place % 7 == 3 else turn for place, turn in enumerate(other)]
    found = gain_interval(pairs_of_turns(own, other))
    assert found is not None and math.exp(found.estimate) == pytest.approx(28 / 26)


def test_pairs_that_others_disturbed_are_left_out_where_enough_remain() -> None:
    own, other = taken(10, 1.5)
    own[2] = own[2]._replace(amount=2.0, lost=0.6)
    other[7] = other[7]._replace(amount=3.0, lost=DISTURBED + 0.01)
    pairs = pairs_of_turns(own, other)
    assert [mine.number for mine, _ in pairs] == [1, 3, 7, 9, 11, 13, 17, 19]
    found = gain_interval(pairs)
    assert found is not None and math.exp(found.estimate) == pytest.approx(1.5)

    def seconds(own: list[Turn]) -> float:
        return sum(mine.seconds for mine, _ in pairs_of_turns(own, other))

    busy = [turn._replace(lost=0.5) for turn in own]
    assert seconds(busy) == pytest.approx(2.5), "a machine that is always busy is taken as it is"
    few = [turn._replace(lost=0.5) if place >= FEWEST_CALM - 1 else turn for place, turn in enumerate(own)]
    few[2] = few[2]._replace(lost=0.0)
    assert seconds(few) == pytest.approx(2.5)


def test_turns_in_which_nothing_was_counted_count_with_their_neighbours() -> None:
    """Samples that come in every second turn only are half as many."""
    own, other = taken(12, 1.0)
    own = [turn._replace(amount=0.0) if place % 2 else turn for place, turn in enumerate(own)]
    pairs = pairs_of_turns(own, other)
    assert sum(mine.seconds for mine, _ in pairs) == pytest.approx(12 * 0.25)
    found = gain_interval(pairs)
    assert found is not None and math.exp(found.estimate) == pytest.approx(0.5)


def test_turns_that_are_short_stand_for_themselves() -> None:
    """Validation takes most of every sixth turn: it counts a tenth of the others, as fast as these."""
    own, other = taken(24, 1.2, noise=0.02)
    own = [
        turn._replace(amount=turn.amount / 10, seconds=turn.seconds / 10) if place % 6 == 3 else turn
        for place, turn in enumerate(own)
    ]
    pairs = pairs_of_turns(own, other)
    assert len(pairs) == 24
    found = gain_interval(pairs)
    assert found is not None and found.low < math.log(1.2) < found.high and found.high - found.low < 0.04


def test_steps_that_are_slow_now_and_then_leave_the_interval_wide_enough() -> None:
    """Each turn is one step. One in ten takes five times as long, at random: what turns say of the mean is little."""
    held = 0
    for seed in range(200):
        chance = random.Random(seed)
        slow = [1 + 4 * (chance.random() < 0.1) for _ in range(24)]
        own = [Turn(2 * place + 1, 32.0, 0.25 * times) for place, times in enumerate(slow)]
        other = [Turn(2 * place + 2, 32.0, 0.25 * math.exp(chance.gauss(0, 0.05))) for place in range(24)]
        found = gain_interval(pairs_of_turns(own, other))
        assert found is not None
        held += found.low <= -math.log(1.4) <= found.high
    assert held >= 175, "by the logarithms of single turns it was 140"


def test_a_side_that_counted_nothing_at_all_makes_no_pair() -> None:
    own, other = taken(6, 1.0)
    assert pairs_of_turns([turn._replace(amount=0.0) for turn in own], other) == []
    assert gain_interval(pairs_of_turns(own, [])) is None
    assert gain_interval(pairs_of_turns(own[1:2], other[1:2])) is None


def test_the_interval_covers_the_truth() -> None:
    held = 0
    for seed in range(400):
        found = gain_interval(pairs_of_turns(*taken(14, 1.1, noise=0.1, seed=seed)))
        assert found is not None
        held += found.low <= math.log(1.1) <= found.high
    assert 0.91 <= held / 400 <= 0.995


def looked_at(race: Race, gain: float, noise: float, seed: int) -> int | None:
    """After how many pairs the trial was over; None where it never was."""
    own, other = taken(max(LOOKS), gain, noise=noise, seed=seed)
    for count in range(1, max(LOOKS) + 1):
        if race.is_settled(pairs_of_turns(own[:count], other[:count]), whole=True):
            return count
    return None


@pytest.mark.slow  # 7 s beside three others
def test_a_clear_loser_leaves_at_once_and_one_as_fast_as_the_best_stays() -> None:
    ended = [looked_at(Race(2.0), 0.9, 0.08, seed) for seed in range(50)]
    assert sum(count is not None and count <= LOOKS[1] for count in ended) >= 40
    assert None not in ended
    # With so much noise nothing is precise enough after twenty pairs: only a mistake ends a trial.
    mistaken = sum(looked_at(Race(2.0), 2.0, 0.15, seed) is not None for seed in range(400))
    assert mistaken <= 0.04 * 400


def test_a_precise_gain_ends_a_trial_once_its_window_is_whole() -> None:
    pairs = pairs_of_turns(*taken(LOOKS[0], 1.2, noise=0.001))
    assert Race(1.1).is_settled(pairs, whole=True) and not Race(1.1).is_settled(pairs, whole=False)
    assert Race(None).is_settled(pairs, whole=True)
    assert not Race(1.1).is_settled(pairs[:-1], whole=True), "it is looked at now and then, not after each pair"


def test_what_may_be_the_best_and_is_rough_still_stays_open() -> None:
    pairs, sharp = (pairs_of_turns(*taken(12, 1.9, noise=noise)) for noise in (0.2, 0.02))
    assert Race(1.95).is_open(pairs) and not Race(8.0).is_open(pairs)
    assert Race(None).is_open(pairs), "faster than the script as written"
    assert not Race(1.95).is_open(sharp)
    assert Race(1.95).is_open([]), "nothing is known yet"


def test_what_may_be_the_best_and_is_known_to_no_sixth_says_little() -> None:
    vague, rough = (pairs_of_turns(*taken(12, 1.9, noise=noise)) for noise in (0.4, 0.06))
    assert Race(1.95).says_little(vague) and not Race(80.0).says_little(vague)
    assert Race(1.95).is_open(rough) and not Race(1.95).says_little(rough)
    assert not Race(1.95).says_little([]), "turns that are disturbed don't become more of them by waiting"


def test_what_turns_say_of_a_rounds_noise_and_how_many_rounds_that_takes() -> None:
    """Of 12 pairs of quarter seconds, each off by 20%; a window of three seconds holds just as many.

    It is rather too much: an interval also pays for not knowing how neighbouring turns hang together.
    """
    errors, found = [], []
    for seed in range(300):
        pairs = pairs_of_turns(*taken(12, 1.0, noise=0.2 / math.sqrt(2), seed=seed))
        gain = gain_interval(pairs)
        assert gain is not None
        errors.append(gain.estimate)
        reference = Reference(100.0, Ratio(*(math.exp(end) for end in (gain.estimate, gain.low, gain.high))), 12)
        measured = replace(made_up.FASTER, blocks=(Block(75, 2, 1.5, 0.0),) * 2, reference=reference)
        noise = noise_within(measured, 3.0)
        assert noise is not None and noise_within(measured, 0.75) == pytest.approx(2 * noise)
        found.append(noise)
    assert stdev(errors) == pytest.approx(0.2 / math.sqrt(12), rel=0.15)
    assert 1.0 < median(found) / stdev(errors) < 1.5
    assert noise_within(replace(made_up.FASTER, reference=None), 3.0) is None
    assert noise_within(replace(made_up.FASTER, reference=replace(reference, pairs=1)), 3.0) is None


def test_a_loop_that_goes_by_fits_and_starts_is_told_by_pairs_that_hold_both() -> None:
    """In one turn of five a buffer is filled, and the loop lives on it in the others: three times as fast in the mean.

    The logarithm of next to nothing would make the interval endless.
    """
    chance, held, wide = random.Random(5), 0, list[float]()
    for _ in range(200):
        own, other, phase = list[Turn](), list[Turn](), chance.randrange(5)
        for number in range(25):
            fills = (number + phase) % 5 == 0
            own.append(Turn(2 * number + 1, 1.0 if fills else 93.5 * math.exp(chance.gauss(0, 0.05)), 0.25))
            other.append(Turn(2 * number + 2, 25 * math.exp(chance.gauss(0, 0.05)), 0.25))
        found = gain_interval(pairs_of_turns(own, other))
        assert found is not None
        wide.append((found.high - found.low) / 2)
        held += found.low <= math.log(3) <= found.high
    assert median(wide) < 0.4, "it was 0.85"
    assert held >= 190


def test_a_turn_that_fills_is_not_left_out_without_the_turns_that_live_on_it() -> None:
    """What fills a buffer reads files, and may look as if others disturbed it; the loop is three times as fast."""
    own, other = list[Turn](), list[Turn]()
    for number in range(40):
        fills = number % 5 == 0
        lost = 2 * DISTURBED if fills and number % 3 == 0 else 0.0
        own.append(Turn(2 * number + 1, 1.0 if fills else 93.5, 0.25, lost))
        other.append(Turn(2 * number + 2, 25.0, 0.25))
    found = gain_interval(pairs_of_turns(own, other))
    assert found is not None and math.exp(found.estimate) == pytest.approx(3.0, rel=0.03)


@pytest.mark.slow  # 4 s beside three others
@pytest.mark.parametrize(("rivals", "noises"), [(1, (0.04, 0.06, 0.09)), (2, (0.04, 0.06)), (3, (0.04, 0.06))])
def test_as_many_rounds_as_tell_a_ratio_to_five_percent_in_four_of_five_studies(
    rivals: int, noises: tuple[float, ...]
) -> None:
    chance = random.Random(1)

    def share_told(rounds: int) -> float:
        halves = []
        for _ in range(1000):
            gains = [math.exp(chance.gauss(0, noise)) for _ in range(rounds)]
            halves.append(mean_ratio_interval([1.0] * rounds, gains, 1 - 0.05 / rivals).relative_half_width)
        return sum(half <= TOLD_TO for half in halves) / len(halves)

    for noise in noises:
        rounds = rounds_to_tell(noise, 3, 27, rivals)
        assert rounds is not None
        assert share_told(rounds) > 0.77 > share_told(rounds - 2), (noise, rounds)
    assert rounds_to_tell(0.001, 5, 27) == 5
    assert rounds_to_tell(0.06, 5, 5) is None and rounds_to_tell(1.0, 5, 27) is None
