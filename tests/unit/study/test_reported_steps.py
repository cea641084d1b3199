"""A loop that only tells where its steps end, and asks for its batch size: no framework is seen in it."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest
from support import worlds
from support.overhead import Overhead, studied
from support.ran import Ran, of

from tuner.events import SpaceResolved
from tuner.knowledge import BOTH, FREE, KEEP, Knowledge
from tuner.model import Config, Outcome
from tuner.progress.plain import space_lines
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
    told = "searching larger effective batches (in brackets: as written):"
    assert space_lines(resolved)[0] == (told if effective_batch == BOTH else "nothing to search")


def test_it_is_free_where_the_effective_batch_is(tmp_path: Path) -> None:
    assert smaller(asked(tmp_path, FREE))


def test_a_script_that_asks_for_the_parts_itself_gets_them(tmp_path: Path) -> None:
    configs = asked(tmp_path, KEEP, grad_accumulation=1).configs
    assert {"batch_size": 16, "grad_accumulation": 2} in configs


class Reporting(Overhead):
    """One in which no framework is seen to train, and no loss."""

    def outcome(self, config: Config, chance: random.Random, samples: float) -> Outcome:
        outcome = super().outcome(config, chance, samples)
        assert outcome.measurement is not None
        return replace(outcome, measurement=replace(outcome.measurement, losses=()))


@pytest.mark.parametrize("budget_s", [60.0, 100.0, None])
def test_a_larger_batch_whose_loss_nobody_sees_is_promised_no_proof_by_more_time(
    tmp_path: Path, budget_s: float | None
) -> None:
    """The same command with a larger --budget was said to go on, and came to a screen that can't tell."""
    known = Knowledge(as_written={"batch_size": 32}, suggested=("batch_size",), unit="samples")
    spaces = Spaces(load_spaces(AUTO), forced=False)
    ran = studied(
        tmp_path, Reporting(step_s=0.1, knowledge=known), spaces=spaces, selection=(), budget_s=budget_s, trials=8
    )
    larger = ran.result.larger
    assert larger is not None and larger.gain > 1.5 and not larger.proven
    assert larger.why == "its screen can't tell how it learns"
