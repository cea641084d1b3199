"""A loop that only tells where its steps end, and asks for its batch size: no framework is seen in it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from support import worlds
from support.ran import Ran, of

from tuner.events import SpaceResolved
from tuner.knowledge import BOTH, FREE, KEEP, Knowledge
from tuner.model import Config, Outcome
from tuner.space.choose import Spaces
from tuner.space.registry import AUTO, load_spaces


def asked(folder: Path, effective_batch: str, **written: int) -> Ran:
    knobs = {"batch_size": 32, **written}
    knowledge = Knowledge(as_written=knobs, suggested=tuple(knobs), unit="samples")

    def outcome(config: Config) -> Outcome:
        return replace(worlds.measured(100.0), knowledge=knowledge)

    spaces = Spaces(load_spaces(AUTO), forced=False)
    return Ran(worlds.plan(folder, trials=8, spaces=spaces, effective_batch=effective_batch), outcome)


def smaller(ran: Ran) -> list[Config]:
    return [config for config in ran.configs if config.get("batch_size") in (4, 8, 16)]


@pytest.mark.parametrize("effective_batch", [KEEP, BOTH])
def test_no_batch_is_made_up_for_by_parts_that_nobody_adds_up(tmp_path: Path, effective_batch: str) -> None:
    """A batch of 16 was tried as one with two parts in a step: nothing made the second one."""
    ran = asked(tmp_path, effective_batch)
    assert all("grad_accumulation" not in config for config in ran.configs)
    assert not smaller(ran)
    [resolved] = of(ran.events, SpaceResolved)
    assert resolved.values.get("batch_size") == ((32, 64, 128, 256, 512) if effective_batch == BOTH else None)
    assert "it would change the effective batch" in ran.result.left_out["batch_size"].reason


def test_it_is_free_where_the_effective_batch_is(tmp_path: Path) -> None:
    assert smaller(asked(tmp_path, FREE))


def test_a_script_that_asks_for_the_parts_itself_gets_them(tmp_path: Path) -> None:
    configs = asked(tmp_path, KEEP, grad_accumulation=1).configs
    assert {"batch_size": 16, "grad_accumulation": 2} in configs
