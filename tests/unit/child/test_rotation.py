"""A rotation: whose turn is next, who leaves, and what is put back. The framework's part is made up."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import pytest
from support.in_process import ENDLESS, Log, session_of

from tuner.child.clock import StepClock
from tuner.child.participants import Switcher
from tuner.child.records import Block, Phase, Value, Window
from tuner.child.rotation import Rotation
from tuner.child.rounds import ROUNDS, turns_of

A: Mapping[str, Value] = {"threads": 1}
B: Mapping[str, Value] = {"precision": "bf16"}
C: Mapping[str, Value] = {"optimizer": "fused"}
D: Mapping[str, Value] = {"channels_last": True}


class MadeUp(Switcher):
    """Does as it is told, and remembers it."""

    def __init__(self, **told: str) -> None:
        self.told = told
        self.switched: list[Mapping[str, Value]] = []
        self.put_back = 0

    def obstacle(self) -> str:
        return self.told.get("obstacle", "")

    def refusal(self, config: Mapping[str, Value]) -> str:
        return self.told.get("refusal", "") if config == B else ""

    def begin(self) -> None:
        self.switched.clear()

    def disturbed(self, config: Mapping[str, Value]) -> str:
        return self.told.get("disturbed", "") if config == B else ""

    def to(self, config: Mapping[str, Value]) -> None:
        self.switched.append(config)
        if "raises" in self.told and config == B:
            raise MemoryError(self.told["raises"])

    def doubt(self, config: Mapping[str, Value]) -> str:
        return self.told.get("doubt", "") if config == B else ""

    def put_back_weights(self) -> None:
        self.put_back += 1


def rotated(
    configs: list[Mapping[str, Value]],
    told: Mapping[str, str] | None = None,
    *,
    turns: int = 200,
    rates: Mapping[str, list[float]] | None = None,
) -> tuple[Rotation, MadeUp, Log, list[str]]:
    """After so many turns the window is long enough. ``rates``: a config's first knob, or "" → those of its turns, of
    which the last one stays; 100 where there is none. ``told``: see ``MadeUp``.
    """
    log, made_up, refused = Log(), MadeUp(**(told or {})), list[str]()
    rotation = Rotation(log, configs, made_up, refused.append)
    left = {knob: list(of) for knob, of in (rates or {}).items()}
    for turn in range(200):
        rotation.wait(enough=turn > turns, whole=True)
        if not rotation.ended:
            of = left.get(next(iter(log.of("switch")[-1]["config"]), ""), [100.0])
            rate = of.pop(0) if len(of) > 1 else of[0]
            rotation.measured(Block(Phase.WINDOW, 10, rate, 1.0, 0.0, turn=rotation.current))
    return rotation, made_up, log, refused


def measured(log: Log) -> list[Mapping[str, Value]]:
    return [record["config"] for record in log.of("switch") if not record["warm_up"]]


def test_after_a_first_turn_of_each_groups_lie_between_turns_of_the_script_as_written() -> None:
    rotation, made_up, log, _ = rotated([A, B, C, D])
    assert [record["config"] for record in log.of("switch") if record["warm_up"]] == [A, B, C, D]
    first, second, third = [{}, A, B, {}, C, D], [{}, D, C, {}, B, A], [{}, B, C, {}, D, A]
    assert measured(log) == [*first, *second, *third, {}]
    assert [record["turn"] for record in log.of("switch")] == list(range(1, turns_of(4) + 1))
    assert rotation.ended and made_up.switched[-1] == {}, "the script is as written in the end"
    assert not log.of("left")


def test_no_round_begins_once_the_window_is_long_enough() -> None:
    _, _, log, _ = rotated([A, B, C], turns=7)
    assert measured(log) == [{}, A, B, C, {}], "the round that had begun is gone through"


def test_what_is_far_behind_leaves_and_the_others_go_on() -> None:
    """A is a third slower than the fastest one, by far more than the noise; D is a little slower."""
    rotation, _, log, _ = rotated([A, B, C, D], rates={"threads": [100.0], "precision": [170.0], "optimizer": [150.0]})
    assert [(record["config"], record["behind"]) for record in log.of("left")] == [(A, True), (D, True)]
    assert measured(log) == [*[{}, A, B, {}, C, D], *[{}, C, B], *[{}, C, B], {}]
    assert rotation.current < turns_of(4)


def test_where_the_script_as_written_is_the_fastest_one_what_is_far_behind_it_leaves() -> None:
    _, _, log, _ = rotated([A, B, C], rates={"threads": [60.0], "precision": [90.0], "optimizer": [50.0]})
    assert [record["config"] for record in log.of("left")] == [A, C]


def test_on_a_noisy_machine_nobody_leaves_for_what_may_be_noise() -> None:
    """The same rates as where two leave, beside turns of the script as written that differ by a third."""
    rates = {"threads": [100.0], "precision": [170.0], "optimizer": [150.0], "": [100.0, 150.0] * 10}
    _, _, log, _ = rotated([A, B, C, D], rates=rates)
    assert not log.of("left")


def test_one_whose_first_turn_was_faster_by_far_stays() -> None:
    """Kernels were made in that one: what it is since is a disturbance, and over by the next round."""
    _, _, log, _ = rotated([A, B], rates={"threads": [160.0, 70.0, 170.0], "precision": [170.0]})
    assert not log.of("left")
    _, _, log, _ = rotated([A, B], rates={"threads": [70.0, 70.0, 170.0], "precision": [170.0]})
    assert [record["config"] for record in log.of("left")] == [A]


def test_a_round_in_which_one_turn_of_the_script_as_written_counts_ends_like_others() -> None:
    """In the others no batch was told of."""
    log = Log()
    rotation = Rotation(log, [A, B], MadeUp(), lambda why: None)
    for _ in range(50):
        rotation.wait(enough=False, whole=True)
        samples = 100.0 if log.of("switch")[-1]["config"] or rotation.current == 3 else 0.0
        rotation.measured(Block(Phase.WINDOW, 10, samples, 1.0, 0.0, turn=rotation.current))
    assert rotation.ended and not log.of("left")


def test_waiting_for_batches_that_others_make_puts_nobody_behind() -> None:
    log = Log()
    rotation = Rotation(log, [A, B], MadeUp(), lambda why: None)
    for _ in range(50):
        rotation.wait(enough=False, whole=True)
        wait_s = 2.0 if log.of("switch")[-1]["config"] == A else 0.0
        rotation.measured(Block(Phase.WINDOW, 10, 10.0, 1 + wait_s, wait_s, ready_before=4.0, turn=rotation.current))
    assert rotation.ended and not log.of("left")


@pytest.mark.parametrize(
    ("told", "reason"),
    [
        ({"refusal": "can't be switched to"}, "can't be switched to"),
        ({"doubt": "the first layer gave float32"}, "did not take effect: the first layer gave float32"),
        ({"raises": "no room"}, "can't be switched to: MemoryError: no room"),
    ],
)
def test_a_config_leaves_by_itself(told: dict[str, str], reason: str) -> None:
    rotation, _, log, refused = rotated([A, B, C], told)
    assert [(record["config"], record["reason"]) for record in log.of("left")] == [(B, reason)]
    assert B not in measured(log) and measured(log).count(A) == measured(log).count(C) == ROUNDS
    assert rotation.ended and not refused


def test_what_only_a_config_cant_do_makes_it_leave_at_its_turns_end() -> None:
    """Whoever called the model again as written has the turn end like others, and nobody else is blamed."""
    log, made_up = Log(), MadeUp(doubt="the first layer gave float32")
    rotation = Rotation(log, [A, B, C], made_up, lambda why: None)
    assert not rotation.has_config
    while not rotation.ended:
        rotation.wait(enough=False, whole=True)
        assert rotation.has_config == (not rotation.ended and bool(log.of("switch")[-1]["config"]))
        if log.of("switch")[-1]["config"] == B:
            rotation.failed("raised RuntimeError: no kernel for it")
            rotation.failed("raised it again")
            assert not log.of("left")
        rotation.measured(Block(Phase.WINDOW, 10, 100.0, 1.0, 0.0, turn=rotation.current))
    assert [(record["config"], record["reason"]) for record in log.of("left")] == [
        (B, "raised RuntimeError: no kernel for it")
    ]
    assert measured(log).count(A) == measured(log).count(C) == ROUNDS


def test_a_turn_that_held_something_else_does_not_count_and_two_are_too_many() -> None:
    """A first turn may hold whatever it likes: it isn't measured."""
    rotation, _, log, _ = rotated([A, B, C], {"disturbed": "1 graphs were compiled anew"})
    turns = [record["turn"] for record in log.of("switch") if record["config"] == B and not record["warm_up"]]
    assert [record["turn"] for record in log.of("disturbed-turn")] == turns and len(turns) == 2
    assert [(record["config"], record["behind"]) for record in log.of("left")] == [(B, False)]
    assert "in 2 of them 1 graphs were compiled anew" in log.of("left")[0]["reason"]
    assert rotation.ended and measured(log).count(A) == measured(log).count(C) == ROUNDS


def test_nobody_is_judged_by_a_turn_that_does_not_count() -> None:
    """B was compiled anew in its first measured turn, which took ten times as long."""

    class Once(MadeUp):
        def disturbed(self, config: Mapping[str, Value]) -> str:
            return self.told.pop("disturbed", "") if config == B else ""

    log, turns = Log(), list[int]()
    rotation = Rotation(log, [A, B], Once(disturbed="1 graphs were compiled anew"), lambda why: None)
    for _ in range(100):
        rotation.wait(enough=False, whole=True)
        if not rotation.ended:
            switch = log.of("switch")[-1]
            turns += [rotation.current] if switch["config"] == B and not switch["warm_up"] else []
            rate = 10.0 if turns == [rotation.current] else 100.0
            rotation.measured(Block(Phase.WINDOW, 10, rate, 1.0, 0.0, turn=rotation.current))
    assert not log.of("left") and len(turns) == ROUNDS


def test_a_turn_of_the_script_as_written_counts_no_more_than_a_config_s_where_it_held_something_else() -> None:
    """By its turns all configs are judged: one that compiled for 5 s made each of them 100 times as fast."""

    class Once(MadeUp):
        def disturbed(self, config: Mapping[str, Value]) -> str:
            return self.told.pop("disturbed", "") if not config else ""

    log = Log()
    rotation = Rotation(log, [A, B], Once(disturbed="1 graphs were compiled anew"), lambda why: None)
    for _ in range(100):
        rotation.wait(enough=False, whole=True)
        if not rotation.ended:
            is_first = not log.of("switch")[-1]["config"] and not log.of("disturbed-turn")
            rotation.measured(Block(Phase.WINDOW, 10, 1.0 if is_first else 100.0, 1.0, 0.0, turn=rotation.current))
    [disturbed] = log.of("disturbed-turn")
    assert next(switch for switch in log.of("switch") if not switch["config"])["turn"] == disturbed["turn"]
    assert not log.of("left") and measured(log).count(A) == measured(log).count(B) == ROUNDS


def test_an_obstacle_is_told_and_nothing_switched() -> None:
    rotation, made_up, log, refused = rotated([A, B], {"obstacle": "it is compiled"})
    assert rotation.ended and refused == ["it is compiled"]
    assert not made_up.switched and not log.of("switch")


def test_without_a_switcher_there_is_none() -> None:
    refused: list[str] = []
    rotation = Rotation(Log(), [A, B], None, refused.append)
    rotation.wait(enough=False, whole=False)
    assert rotation.ended and len(refused) == 1


def test_a_loss_that_is_not_finite_is_the_config_s_that_made_it_so() -> None:
    """It shows in its own turn, or in the next one of the script as written; the weights are put back once."""
    log, made_up = Log(), MadeUp()
    rotation = Rotation(log, [A, B], made_up, lambda why: None)
    assert not rotation.diverged(), "before the first turn it is the script's own"
    for _ in range(3):
        rotation.wait(enough=False, whole=True)  # A, B, as written
    assert rotation.diverged() and rotation.diverged()
    assert [record["config"] for record in log.of("left")] == [B]
    rotation.wait(enough=False, whole=True)
    assert made_up.put_back == 1
    assert rotation.diverged()
    assert [record["config"] for record in log.of("left")] == [B, A]
    rotation.wait(enough=False, whole=True)
    assert made_up.put_back == 2 and made_up.switched[-1] == {}
    assert not rotation.diverged(), "nobody is left to be blamed"


def test_of_two_first_turns_nobody_is_blamed_for_the_other_s_last_step() -> None:
    log, made_up = Log(), MadeUp()
    rotation = Rotation(log, [A, B], made_up, lambda why: None)
    for _ in range(2):
        rotation.wait(enough=False, whole=True)  # A, B
    assert rotation.diverged() and not log.of("left")
    for _ in range(2):
        rotation.wait(enough=False, whole=True)  # as written, A
    assert made_up.put_back == 1
    assert rotation.diverged()
    assert [record["config"] for record in log.of("left")] == [A]


def diverging(guilty: Mapping[str, Value], turns: range) -> tuple[Rotation, Log]:
    """A rotation of A, B and C, in which the last step of the guilty one's turns spoils the weights, in these turns."""
    log, made_up, spoilt = Log(), MadeUp(), False
    rotation = Rotation(log, [A, B, C], made_up, lambda why: None)
    for _ in range(50):
        before = made_up.put_back
        rotation.wait(enough=False, whole=True)
        spoilt = spoilt and made_up.put_back == before
        if rotation.ended:
            break
        if spoilt:
            assert rotation.diverged(), "no fault of the script's own"
        if log.of("switch")[-1]["config"] == guilty and rotation.current in turns:
            spoilt = True
    return rotation, log


@pytest.mark.parametrize("guilty", [A, B, C])
@pytest.mark.parametrize("turns", [range(1, 50), range(4, 50), range(9, 50)], ids=["any", "measured", "second-round"])
def test_nobody_is_blamed_for_the_last_step_of_the_one_before(guilty: Mapping[str, Value], turns: range) -> None:
    """Only the script as written tells two apart whose turns follow each other: it has its turn between them then."""
    rotation, log = diverging(guilty, turns)
    assert [record["config"] for record in log.of("left")] == [guilty]
    assert rotation.ended and measured(log).count(C if guilty != C else B) == ROUNDS


def test_a_loss_that_was_not_finite_once_is_nobody_s_fault() -> None:
    _, log = diverging(A, range(5, 7))
    assert not log.of("left")
    assert measured(log)[:5] == [{}, A, B, {}, C] and measured(log)[-6:] == [{}, B, {}, C, {}, A, {}][1:]


def test_a_fork_goes_on_as_it_is() -> None:
    rotation = Rotation(Log(), [A], made_up := MadeUp(), lambda why: None)
    rotation.wait(enough=False, whole=True)
    pid = os.fork()
    if not pid:
        os._exit(rotation.wait(enough=False, whole=True) != 0.0 or len(made_up.switched) != 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_where_the_window_begins_anew_the_rounds_do_too() -> None:
    """What was measured before counts no more: another graph was compiled, say."""
    log, now, activity = Log(), [0.0], [0]
    window = Window(warmup_steps=2, warmup_s=0.1, block_s=0.25, min_blocks=3, min_s=0.5, max_s=60.0)
    clock = StepClock(log, window, clock=lambda: now[0], activity=lambda: activity[0])
    clock.turns = rotation = Rotation(log, [A, B, C], MadeUp(), lambda why: None)
    for _ in range(2000):
        now[0] += 0.02
        activity[0] = int(rotation.current > 8)  # in the second round
        clock.add_samples(8, 0.0)
        if clock.step():
            break
    assert clock.complete and rotation.ended
    begins = max(number for number, record in enumerate(log.records) if record.get("phase") == "warmup")
    counted = {block["turn"] for block in log.records[begins + 1 :] if block["kind"] == "block" and block["turn"]}
    configs = [switch["config"] for switch in log.of("switch") if switch["turn"] in counted]
    assert all(configs.count(each) >= ROUNDS for each in (A, B, C))


def test_what_settles_after_a_switch_is_not_measured() -> None:
    """Steps of 20 ms, and of 200 ms right after each switch."""
    log, now = Log(), [0.0]
    window = Window(warmup_steps=2, warmup_s=0.1, block_s=0.25, min_blocks=3, min_s=0.5, max_s=4.0)
    clock = StepClock(log, window, clock=lambda: now[0])
    clock.turns = rotation = Rotation(log, [A, B], MadeUp(), lambda why: None)
    turn = 0
    for _ in range(1000):
        now[0] += 0.02 if turn == rotation.current else 0.2
        turn = rotation.current
        clock.add_samples(8, 0.0)
        if clock.step():
            break
    blocks: list[dict[str, Any]] = [block for block in log.of("block") if block["turn"]]
    assert clock.complete and {block["turn"] for block in blocks} == set(range(1, rotation.current + 1))
    assert all(block["seconds"] == pytest.approx(0.02 * block["steps"]) for block in blocks)
    assert all(block["samples"] == 8 * block["steps"] for block in blocks)
    assert sum(block["seconds"] for block in blocks) == pytest.approx(4.0, abs=1.5)


@pytest.mark.parametrize(("rotation", "spared"), [([], 50.0), ([A], 0.0)])
def test_what_switching_takes_is_time_of_the_trial_s_own(rotation: list[Mapping[str, Value]], spared: float) -> None:
    """Others have theirs in other processes; a loader that is made and what is compiled count here."""
    request = {"config": {}, "knowledge": {}, "window": ENDLESS, "device": "cpu", "folder": "", "rotation": rotation}
    session = session_of({**request, "deadline_s": 100.0}, Log())
    session.claim("none")
    session.rotation = Rotation(Log(), rotation, MadeUp(), lambda why: None) if rotation else None
    before = session.left_s
    session.clock.on_held(50.0)
    assert session.left_s - before == pytest.approx(spared, abs=1.0)
