"""What a rotation's records say of each config: by the turns of the script as written around its own."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from tuner.analysis.measurement import measurement_of
from tuner.analysis.resources import ResourceSample
from tuner.analysis.rotation import ENDED, TOO_FEW, rotation_of
from tuner.child.counts import EpochUse
from tuner.child.records import (
    Block,
    DisturbedTurn,
    Facts,
    FirstStep,
    LeftRotation,
    LoaderStarted,
    Phase,
    Record,
    ScriptException,
    SwitchedTo,
    Value,
    WindowEnd,
)
from tuner.child.wire import Entry
from tuner.model import Config, Rotated

BF16: Mapping[str, Value] = {"precision": "bf16"}
THREADS: Mapping[str, Value] = {"threads": 1}
BOTH: Mapping[str, Value] = {"precision": "bf16", "threads": 1}
RATES = {Config(): 100.0, Config(BF16): 170.0, Config(THREADS): 60.0, Config(BOTH): 102.0, Config(num_workers=2): 200.0}


class Recorded:
    """A rotation's records, turn by turn, on a machine whose speed is ``speed`` of the time."""

    def __init__(self, *, noise: float = 0.0, drift: float = 0.0, wait_s: float = 0.0, ready: float | None = None):
        self.entries: list[Entry] = []
        self.now, self._turn, self._chance = 10.0, 0, random.Random(3)
        self._noise, self._drift, self._wait_s, self._ready = noise, drift, wait_s, ready
        self.emit(FirstStep(2.0))
        for _ in range(4):
            self.block(100.0, Phase.WARMUP, turn=0)

    def emit(self, record: Record) -> None:
        self.entries.append(Entry(self.now, record))

    def block(self, rate: float, phase: Phase = Phase.WINDOW, *, turn: int) -> None:
        rate *= math.exp(self._drift * self.now + self._chance.gauss(0, self._noise))
        self.now += 0.25
        block = Block(phase, 10, 0.25 * rate, 0.25, self._wait_s, ready_before=self._ready, turn=turn)
        self.emit(block)

    def turn(self, config: Mapping[str, Value], *, warm_up: bool = False, blocks: int = 1, factor: float = 1.0) -> None:
        self._turn += 1
        self.now += 0.1
        self.emit(SwitchedTo(self._turn, config, warm_up))
        for _ in range(blocks):
            self.block(RATES[Config(config)] * factor, turn=self._turn)

    def rounds(self, count: int, configs: Sequence[Mapping[str, Value]]) -> Recorded:
        for config in configs:
            self.turn(config, warm_up=True, factor=0.1)
        for number in range(count):
            for config in configs[::-1] if number % 2 else configs:
                self.turn({})
                self.turn(config)
        self.turn({})
        return self

    def grouped(self, count: int, configs: Sequence[Mapping[str, Value]]) -> Recorded:
        """Rounds in which all have their turns between two of the script as written."""
        for number in range(count):
            self.turn({})
            for config in configs[::-1] if number % 2 else configs:
                self.turn(config)
        self.turn({})
        return self

    def end(self, *, complete: bool = True) -> Recorded:
        self.emit(Facts(unit="samples"))
        self.emit(WindowEnd(complete))
        return self

    def found(self, samples: Sequence[ResourceSample] = ()) -> dict[Config, Rotated]:
        return {each.config: each for each in rotation_of(self.entries, samples)}


def test_each_config_is_held_against_the_turns_around_its_own() -> None:
    found = Recorded().rounds(4, [BF16, THREADS]).end().found()
    assert list(found) == [Config(BF16), Config(THREADS)]
    for config, each in found.items():
        assert each.gain is not None and each.pairs == 4 and not each.fault
        assert each.gain.ratio == pytest.approx(RATES[config] / 100)
        assert each.gain.high - each.gain.low < 1e-6


def test_a_turn_that_held_something_else_counts_for_nobody() -> None:
    """Something was compiled anew in it, which took nine tenths of its time."""
    recorded = Recorded()
    for number in range(3):
        recorded.turn({})
        recorded.turn(BF16, factor=0.1 if number == 1 else 1.0)
        if number == 1:
            recorded.emit(DisturbedTurn(4, "1 graphs were compiled anew"))
    recorded.turn({})
    found = recorded.end().found()[Config(BF16)]
    assert found.gain is not None and found.pairs == 2
    assert found.gain.ratio == pytest.approx(1.7)


def test_a_turn_of_the_script_as_written_that_held_something_else_is_no_part_of_its_rate() -> None:
    recorded = Recorded()
    for number in range(4):
        recorded.turn({}, factor=0.01 if number == 1 else 1.0)
        if number == 1:
            recorded.emit(DisturbedTurn(3, "XLA compiled its step for 1 other shapes of batches"))
        recorded.turn(BF16)
    found, measured = recorded.end().found()[Config(BF16)], measurement_of(recorded.entries, ())
    assert found.gain is not None and found.gain.ratio == pytest.approx(1.7)
    assert measured is not None and measured.rate == pytest.approx(100.0)


def test_a_drift_of_the_machine_is_no_gain() -> None:
    """Half as fast every ten seconds."""
    found = Recorded(drift=-math.log(2) / 10).rounds(6, [BF16, THREADS, BOTH]).end().found()
    for config, each in found.items():
        assert each.gain is not None
        assert each.gain.ratio == pytest.approx(RATES[config] / 100, rel=0.01)


def test_a_drift_is_no_gain_where_three_share_the_turns_of_the_script_as_written() -> None:
    found = Recorded(drift=-math.log(2) / 10).grouped(3, [BF16, THREADS, BOTH]).end().found()
    for config, each in found.items():
        assert each.gain is not None and each.pairs == 3
        assert each.gain.ratio == pytest.approx(RATES[config] / 100, rel=0.01)


def left_after_one_round(noise: float = 0.03, first: float = 0.5) -> Recorded:
    """One leaves that is far behind; two go on, and the machine is as noisy as that."""
    recorded = Recorded(noise=noise)
    for config in (BF16, THREADS, BOTH):
        recorded.turn(config, warm_up=True, factor=first)
    recorded.grouped(1, [BF16, THREADS, BOTH])
    recorded.emit(LeftRotation(THREADS, "is far behind", behind=True))
    return recorded.grouped(2, [BF16, BOTH]).end()


def test_what_left_because_it_was_slow_has_a_gain_and_no_fault() -> None:
    told = left_after_one_round().found()[Config(THREADS)]
    assert told.gain is not None and told.pairs == 1 and not told.fault
    assert told.gain.low < 0.6 < told.gain.high < 0.75


def test_its_interval_is_as_wide_as_the_turns_of_all_are_noisy() -> None:
    quiet, loud = (left_after_one_round(noise).found()[Config(THREADS)].gain for noise in (0.0, 0.3))
    assert quiet is not None and loud is not None
    assert 1.05 < quiet.high / quiet.ratio < 1.2, "even where they are as one: they are few"
    assert loud.high / loud.ratio > 1.5


def test_it_is_as_fast_as_its_first_turn_at_least() -> None:
    """What came after it may have been disturbed by what nobody sees."""
    told = left_after_one_round(0.0, first=1.6).found()[Config(THREADS)].gain
    assert told is not None and told.ratio == pytest.approx(0.6)
    assert told.high == pytest.approx(0.96)


def samples_of(recorded: Recorded, only: Entry, *, always: bool = False) -> list[ResourceSample]:
    """Both cores are busy in the turn ``only``, or always."""
    samples, busy = [], 0.0
    for t in itertools.takewhile(lambda t: t < recorded.now + 0.2, (10 + 0.05 * n for n in itertools.count())):
        busy += 0.05 * (2 if always or only.t - 0.3 < t <= only.t + 0.05 else 0)
        samples.append(ResourceSample(t, busy_s=busy, cores=2))
    return samples


@pytest.mark.parametrize("always", [False, True])
def test_a_single_turn_that_others_disturbed_says_nothing_but_where_all_are(*, always: bool) -> None:
    recorded = left_after_one_round()
    turns = [e for e in recorded.entries if isinstance(e.record, Block) and e.record.turn]
    only = turns[5]  # after three first turns, one of the script as written, and one of another config
    told = recorded.found(samples_of(recorded, only, always=always))[Config(THREADS)]
    assert (told.gain is not None) is always
    assert told.fault == ("" if always else TOO_FEW)


def test_the_interval_holds_the_truth_and_narrows_with_turns() -> None:
    few, many = (Recorded(noise=0.05).rounds(count, [BF16, THREADS]).end().found() for count in (4, 30))
    for config in (Config(BF16), Config(THREADS)):
        rough, sharp = few[config].gain, many[config].gain
        assert rough is not None and sharp is not None
        assert rough.low < RATES[config] / 100 < rough.high and sharp.low < RATES[config] / 100 < sharp.high
        assert sharp.high / sharp.low < 1.1 < rough.high / rough.low


@pytest.mark.parametrize(("rounds", "place"), [(3, 4), (3, 5), (7, 4), (7, 5)])
def test_turns_that_others_disturbed_are_left_out(rounds: int, place: int) -> None:
    """A turn of the config, or one of the script as written."""
    recorded = Recorded().rounds(rounds, [BF16]).end()
    blocks = [entry for entry in recorded.entries if isinstance(entry.record, Block) and entry.record.turn]
    disturbed = blocks[place]
    spoilt = [
        Entry(e.t, Block(Phase.WINDOW, 10, 1.0, 0.25, 0.0, turn=disturbed.record.turn)) if e is disturbed else e
        for e in recorded.entries if isinstance(disturbed.record, Block)
    ]  # fmt: skip
    (found,) = rotation_of(spoilt, samples_of(recorded, disturbed))
    assert found.gain is not None and found.gain.ratio == pytest.approx(1.7)
    assert 2 <= found.pairs <= rounds
    (without,) = rotation_of(spoilt, ())
    assert without.gain is not None and without.gain.ratio != pytest.approx(1.7), "nothing tells of the disturbance"


def test_a_pair_without_one_of_its_turns_counts_as_much_as_the_others() -> None:
    """In the second round the machine is half as fast, and its first turn of the script as written is disturbed."""
    configs, recorded = [BF16, THREADS, BOTH], Recorded()
    for factor in (1.0, 0.5, 1.0):
        for config in ({}, *configs, {}):
            recorded.turn(config, factor=factor)
    recorded.end()
    disturbed = [e for e in recorded.entries if isinstance(e.record, Block) and e.record.turn][5]
    found = recorded.found(samples_of(recorded, disturbed))
    for config in configs:
        gain = found[Config(config)].gain
        assert gain is not None and gain.ratio == pytest.approx(RATES[Config(config)] / 100)


def test_waiting_for_batches_that_others_make_counts_for_nobody() -> None:
    waits = Recorded(wait_s=0.1, ready=4.0).rounds(3, [BF16]).end()
    assert waits.found()[Config(BF16)].gain is not None
    made_within = Recorded(wait_s=0.1).rounds(3, [BF16]).end().found()[Config(BF16)]
    assert waits.found()[Config(BF16)].gain == made_within.gain
    assert waits.found()[Config(BF16)].without_wait and not made_within.without_wait


def test_a_config_that_left_has_no_gain_and_says_why() -> None:
    recorded = Recorded().rounds(2, [BF16, THREADS])
    recorded.emit(LeftRotation(THREADS, "made the training loss not finite"))
    recorded.emit(LeftRotation(BOTH, "can't be switched to"))
    found = recorded.rounds(2, [BF16]).end().found()
    assert found[Config(BF16)].gain is not None
    assert found[Config(THREADS)] == Rotated(Config(THREADS), None, 2, "made the training loss not finite")
    assert found[Config(BOTH)] == Rotated(Config(BOTH), None, 0, "can't be switched to")


def test_the_config_in_whose_turn_the_process_ended_is_named_and_the_others_keep_theirs() -> None:
    recorded = Recorded().rounds(3, [BF16, THREADS])
    recorded.turn(THREADS, blocks=0)
    found = recorded.found()
    assert found[Config(THREADS)].gain is None and found[Config(THREADS)].fault == ENDED
    gain = found[Config(BF16)].gain
    assert gain is not None and gain.ratio == pytest.approx(1.7)


def test_a_script_that_comes_to_its_own_end_blames_nobody() -> None:
    recorded = Recorded().rounds(3, [BF16, THREADS])
    recorded.turn(THREADS)
    found = recorded.end(complete=False).found()
    assert not any(each.fault for each in found.values())
    recorded.emit(ScriptException("RuntimeError"))
    assert recorded.found()[Config(THREADS)].fault == ENDED


@pytest.mark.parametrize(
    ("text", "blocks", "either"),
    [
        ("loss is NaN", 0, True), ("loss is NaN", 1, False), ("no kernel for it", 0, False), ("not finite", 0, True),
        ("gradients hold infs", 0, True), ("run it with ONEDNN_VERBOSE=all for diagnostic information", 0, False),
    ],
)  # fmt: skip
def test_one_that_ended_before_anything_was_measured_names_its_culprit(text: str, blocks: int, *, either: bool) -> None:
    """What the last step of the one before does to the weights shows in the first step of the next one."""
    recorded = Recorded()
    recorded.turn(BOTH, warm_up=True)
    recorded.turn(BF16, warm_up=True)
    recorded.turn(THREADS, warm_up=True, blocks=blocks)
    recorded.emit(ScriptException("RuntimeError", text))
    found = recorded.found()
    assert found[Config(BOTH)] == Rotated(Config(BOTH), None, 0, TOO_FEW)
    assert found[Config(BF16)].fault == (ENDED if either else TOO_FEW)
    assert found[Config(THREADS)].fault == ENDED


def test_what_was_measured_before_the_window_began_anew_does_not_count() -> None:
    recorded = Recorded().rounds(2, [BF16])
    recorded.block(1.0, Phase.WARMUP, turn=0)
    assert recorded.rounds(3, [BF16]).end().found()[Config(BF16)].pairs == 3


def test_the_trials_own_figures_are_those_of_the_script_as_written() -> None:
    recorded = Recorded().rounds(5, [BF16, THREADS]).end()
    measurement = measurement_of(recorded.entries, ())
    assert measurement is not None and measurement.rate == pytest.approx(100.0)
    assert len(measurement.blocks) == 11


def test_a_trial_without_one_has_none() -> None:
    recorded = Recorded()
    for _ in range(6):
        recorded.block(100.0, turn=0)
    assert rotation_of(recorded.end().entries, ()) == ()
    assert measurement_of(recorded.entries, ()) is not None


WORKERS: Mapping[str, Value] = {"num_workers": 2}


def with_loaders(epoch: EpochUse | None, *started: LoaderStarted) -> dict[Config, Rotated]:
    """Of a rotation with loaders of their own. A turn takes 0.25 s, of which 50 ms are waited, for 10 steps."""
    recorded = Recorded(wait_s=0.05, ready=0.0)
    recorded.rounds(3, [WORKERS, BF16])
    for place, entry in enumerate(recorded.entries):
        if isinstance(entry.record, SwitchedTo):
            recorded.entries[place] = replace(entry, record=replace(entry.record, loads=True))
    for each in started:
        recorded.emit(each)
    recorded.emit(Facts(unit="samples", epoch=epoch))
    return recorded.end().found()


def test_what_the_epochs_of_a_loader_of_its_own_begin_with_counts_against_a_config() -> None:
    """400 samples an epoch, which 200 samples/s take two seconds; a start takes half a second, and spares two waits of
    5 ms.
    """
    epoch = EpochUse(batches=40, samples=400.0)
    found = with_loaders(epoch, LoaderStarted(WORKERS, 0.51, 2))
    told = found[Config(WORKERS)].gain
    assert told is not None and told.ratio == pytest.approx(2.0 / (2.5 / 2.0))
    other = found[Config(BF16)].gain
    assert other is not None and other.ratio == pytest.approx(1.7)
    assert not any(each.without_wait for each in found.values()), "a loader of its own feeds whom it keeps waiting"


def test_epochs_that_the_script_breaks_off_begin_more_often() -> None:
    """After 20 of 40 batches: 200 samples, which take a second."""
    told = with_loaders(EpochUse(40, 400.0, taken=20.0), LoaderStarted(WORKERS, 0.51, 2))[Config(WORKERS)].gain
    assert told is not None and told.ratio == pytest.approx(2.0 / (1.5 / 1.0))


@pytest.mark.parametrize(
    ("epoch", "started"),
    [
        (None, LoaderStarted(WORKERS, 0.51, 2)),
        (EpochUse(40, 400.0), LoaderStarted(WORKERS, 0.51, 2, respawns=False)),
        (EpochUse(40, 400.0), LoaderStarted(WORKERS, 0.005, 0, respawns=False)),
    ],
    ids=["no epoch is known", "workers that last", "none"],
)
def test_what_does_not_begin_anew_counts_against_nobody(epoch: EpochUse | None, started: LoaderStarted) -> None:
    told = with_loaders(epoch, started)[Config(WORKERS)].gain
    assert told is not None and told.ratio == pytest.approx(2.0)


def test_epochs_of_the_script_as_written_begin_as_they_do_for_all_that_use_its_loader() -> None:
    """It starts four workers each time: in 0.52 s, of an epoch of four seconds, or 2.35 with bf16."""
    epoch = EpochUse(40, 400.0, workers=4, first_s=0.52, respawns=True)
    found = with_loaders(epoch, LoaderStarted(WORKERS, 0.51, 2))
    own, shared = found[Config(WORKERS)].gain, found[Config(BF16)].gain
    assert own is not None and own.ratio == pytest.approx(2.0 * (4.5 / 4) / (2.5 / 2))
    assert shared is not None and shared.ratio == pytest.approx(1.7 * (4.5 / 4) / (1 + 0.5 * 170 / 400))
