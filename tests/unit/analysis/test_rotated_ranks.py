"""What the records of several ranks say of a rotation's configs: by the slowest rank, and by errors of any."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from tuner.analysis.rotation import ENDED, rotation_of
from tuner.child.records import (
    Block,
    Failure,
    Phase,
    RankEnded,
    Record,
    ScriptException,
    SwitchedTo,
    Value,
    WindowEnd,
)
from tuner.child.unison import APART, RANKS_APART
from tuner.child.wire import Entry
from tuner.model import Config

BF16: Mapping[str, Value] = {"precision": "bf16"}
FUSED: Mapping[str, Value] = {"optimizer": "fused"}
SECONDS = {Config(): (0.2, 0.2), Config(BF16): (0.1, 0.3), Config(FUSED): (0.1, 0.1)}
"""What a turn's ten steps take by the blocks of each rank."""
MISSES = ScriptException("RuntimeError", "[gloo/transport/tcp/pair.cc] Connection closed by peer")


def _entries() -> list[Entry]:
    """Two ranks in three rounds of two configs. Only rank 0 tells of switches."""
    now, at, turn, entries = 10.0, 0, 0, list[Entry]()
    for config in [BF16, FUSED, *({}, BF16, FUSED, {}, FUSED, BF16) * 2, {}]:
        turn, now, at = turn + 1, now + 0.5, at + 10
        entries.append(Entry(now - 0.4, SwitchedTo(turn, config, turn <= 2)))
        for rank, seconds in enumerate(SECONDS[Config(config)]):
            block = Block(Phase.WINDOW, 10, 160.0, seconds, 0.0, turn=turn, at=at)
            entries.append(Entry(now, block, rank))
    return entries


def _ended(*told: tuple[int, Record]) -> list[Entry]:
    """As they end in the turn of the config that the script ends with, each with what a rank told at last."""
    entries = _entries()
    begun = Entry(entries[-1].t, SwitchedTo(99, BF16, False))
    return [*entries, begun, *(Entry(begun.t + 1, record, rank) for rank, record in told)]


def test_a_gain_is_that_of_the_slowest_rank() -> None:
    found = {each.config: each.gain.ratio for each in rotation_of(_entries(), []) if each.gain is not None}
    assert found[Config(BF16)] == pytest.approx(2 / 3) and found[Config(FUSED)] == pytest.approx(2.0)


@pytest.mark.parametrize(
    "told",
    [
        [(1, RankEnded(9)), (0, MISSES), (0, WindowEnd(False))],
        [(1, ScriptException("MemoryError")), (0, MISSES), (1, RankEnded(256))],
        [(0, RankEnded(9)), (1, MISSES), (1, WindowEnd(False))],
        [(1, RankEnded(9))],
    ],
)
def test_what_ends_a_rank_in_a_configs_turn_is_told_as_its_fault(told: list[tuple[int, Record]]) -> None:
    faults = {each.config: each.fault for each in rotation_of(_ended(*told), [])}
    assert faults == {Config(BF16): ENDED, Config(FUSED): ""}


@pytest.mark.parametrize(
    "told",
    [
        [(1, Failure(RANKS_APART, APART)), (1, WindowEnd(False)), (1, RankEnded(75 << 8)), (0, MISSES)],
        [(0, WindowEnd(True)), (1, MISSES), (1, RankEnded(256))],
        [(0, WindowEnd(False, "its time was up")), (1, WindowEnd(False)), (0, RankEnded(0)), (1, RankEnded(0))],
    ],
)
def test_what_ranks_do_of_their_own_accord_is_no_configs_fault(told: list[tuple[int, Record]]) -> None:
    assert not any(each.fault for each in rotation_of(_ended(*told), []))
