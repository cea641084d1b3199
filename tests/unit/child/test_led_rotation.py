"""A rotation in several ranks, each in a thread of its own: what one can't do none does, and rank 0 tells of it."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping

import pytest
from support.in_process import Log
from support.shared_by import shared_by

from tuner.child.participants import Switcher
from tuner.child.rank_rotation import FollowedRotation, LedRotation
from tuner.child.records import Value
from tuner.child.unison import Decision, Unison, bytes_for, steps_of

A: Mapping[str, Value] = {"threads": 1}
B: Mapping[str, Value] = {"precision": "bf16"}
RANKS, LAST_TURN = 3, 60
InTurn = Callable[[int, FollowedRotation], object]


class MadeUp(Switcher):
    """Notes what it is asked; ``fails``: does so in the method of that name, of B where a config is given."""

    def __init__(self, fails: str = "", says: str = "", reason: str = "") -> None:
        self.noted: list[tuple[str, Mapping[str, Value]]] = []
        self._fails, self._says, self._reason = fails, says, reason

    def _note(self, name: str, config: Mapping[str, Value] = B) -> str:
        self.noted.append((name, config))
        if config == B and self._fails == name:
            raise MemoryError("no room")
        return self._reason if config == B and self._says == name else ""

    def obstacle(self) -> str:
        return self._note("obstacle")

    def refusal(self, config: Mapping[str, Value]) -> str:
        return self._note("refusal", config)

    def begin(self) -> None:
        self._note("begin")

    def to(self, config: Mapping[str, Value]) -> None:
        self._note("to", config)

    def doubt(self, config: Mapping[str, Value]) -> str:
        return self._note("doubt", config)

    def put_back_weights(self) -> None:
        self._note("put back")

    def leave(self, config: Mapping[str, Value]) -> None:
        self._note("leave", config)

    def end(self) -> None:
        self._note("end")


@pytest.fixture
def shared() -> Iterator[int]:
    with shared_by(RANKS) as descriptor:
        yield descriptor


class Ranks:
    """Three of them. ``in_turn``: is called in each but rank 0 after each turn, with its number and the rotation."""

    def __init__(self, shared: int, *switchers: MadeUp, in_turn: InTurn = lambda rank, of: None) -> None:
        self.log, self.refused, self.not_finite = Log(), list[str](), list[str]()
        self.switchers = switchers
        leader = Unison(shared, 0, RANKS)
        rotation = LedRotation(
            self.log, [A, B], switchers[0], self.refused.append, unison=leader,
            not_finite=lambda: self.not_finite.append("nan"),
        )  # fmt: skip
        others = [threading.Thread(target=self._follow, args=(shared, rank, in_turn), daemon=True) for rank in (1, 2)]
        for each in others:
            each.start()
        turn = 0
        while not rotation.ended and turn < LAST_TURN:
            turn += 1
            leader.cut_after(1)
            leader.stepped(turn, float(turn), 0)
            rotation.wait(enough=False, whole=True)
            leader.decide(Decision(rotation.current, rotation.ended or turn == LAST_TURN, leads_in=False))
        for each in others:
            each.join(20)
        assert not any(each.is_alive() for each in others)
        self.rotation = rotation

    def _follow(self, shared: int, rank: int, in_turn: InTurn) -> None:
        unison = Unison(shared, rank, RANKS)
        rotation = FollowedRotation([A, B], self.switchers[rank])
        turn = 0
        while not rotation.ended:
            turn += 1
            while steps_of(os.pread(shared, bytes_for(RANKS), 0), RANKS)[0] < turn:
                time.sleep(0.0005)  # so that the cut lies ahead of this one
            unison.stepped(turn, float(turn), 0)
            assert unison.is_cut
            in_turn(rank, rotation)
            decision = unison.follow(rotation.answer)
            rotation.current, rotation.ended, unison.is_cut = decision.turn, decision.ended, False


def test_all_ranks_are_switched_alike_and_rank_0_tells_of_it(shared: int) -> None:
    ranks = Ranks(shared, MadeUp(), MadeUp(), MadeUp())
    noted = [each.noted for each in ranks.switchers]
    assert noted[0] == noted[1] == noted[2]
    assert [name for name, _ in noted[0]][-1] == "end" and ("to", B) in noted[0]
    assert ranks.rotation.ended and not ranks.refused and not ranks.log.of("left")


@pytest.mark.parametrize("says", ["refusal", "doubt"])
def test_what_rank_0_says_itself_is_asked_of_all_ranks_nevertheless(shared: int, says: str) -> None:
    """What is asked next would take the place of what they haven't come to yet."""
    ranks = Ranks(shared, MadeUp(says=says, reason="not here"), MadeUp(), MadeUp())
    noted = [each.noted for each in ranks.switchers]
    assert (says, B) in noted[0]
    assert noted[0] == noted[1] == noted[2]


def test_what_obstructs_one_rank_obstructs_all(shared: int) -> None:
    ranks = Ranks(shared, MadeUp(), MadeUp(), MadeUp(says="obstacle", reason="it is compiled"))
    assert ranks.refused == ["rank 2: it is compiled"] and ranks.rotation.ended
    assert not [each for of in ranks.switchers for each in of.noted if each[0] == "to"]


@pytest.mark.parametrize(
    ("failing", "reason"),
    [
        (MadeUp(fails="to"), "can't be switched to: RuntimeError: rank 1: MemoryError: no room"),
        (MadeUp(says="refusal", reason="can't be switched to: no kernel"), "rank 1: can't be switched to: no kernel"),
        (MadeUp(says="doubt", reason="2 threads are set"), "did not take effect: rank 1: 2 threads are set"),
    ],
)  # fmt: skip
def test_a_config_that_one_rank_cannot_have_leaves_all(shared: int, failing: MadeUp, reason: str) -> None:
    ranks = Ranks(shared, MadeUp(), failing, MadeUp())
    assert [(left["config"], left["reason"]) for left in ranks.log.of("left")] == [(B, reason)]
    assert all(("leave", B) in each.noted and each.noted[-1][0] == "end" for each in ranks.switchers)
    switched = [[each for each in of.noted if each[0] == "to"] for of in ranks.switchers]
    assert switched[0] == switched[1] == switched[2] and ("to", A) in switched[0]


def test_a_loss_of_one_rank_that_is_not_finite_costs_its_config_its_turns_in_all(shared: int) -> None:
    def diverge(rank: int, rotation: FollowedRotation) -> None:
        if rank == 1 and rotation.has_config and rotation._now == B:
            assert rotation.diverged()

    ranks = Ranks(shared, MadeUp(), MadeUp(), MadeUp(), in_turn=diverge)
    # Whose doing it is shows where the script as written has its turns around each.
    assert [left["config"] for left in ranks.log.of("left")] == [B]
    assert all(("put back", B) in each.noted for each in ranks.switchers) and not ranks.not_finite


def test_a_loss_of_the_script_as_written_that_is_not_finite_is_no_configs_doing(shared: int) -> None:
    def diverge(rank: int, rotation: FollowedRotation) -> None:
        if rotation.current == 3:  # after two first turns
            rotation.diverged()

    ranks = Ranks(shared, MadeUp(), MadeUp(), MadeUp(), in_turn=diverge)
    assert ranks.not_finite or [left["config"] for left in ranks.log.of("left")]
