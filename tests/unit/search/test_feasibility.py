"""How likely a config works, by what turns in a rotation ended in."""

from __future__ import annotations

import numpy as np
import pytest
from support import worlds

from tuner.analysis.rotation import ENDED, TOO_FEW
from tuner.model import BASELINE, Config, Outcome, OutcomeKind, Phase, Rotated, Trial
from tuner.search.feasibility import UNLIKELY, Feasibility
from tuner.search.history import History
from tuner.search.tried import Floats, Indices

SPACE = worlds.resolved("workers", "precision", "compile")
TWO, BF16 = Config(workers=2), Config(precision="bf16")


def likely(*searched: Trial, reason: str = "script-raised") -> list[float]:
    """Of two workers, whose turns ended by ``reason``, of both knobs, and of one value each that did no harm."""
    said = (Rotated(TWO, None, 1, ENDED), Rotated(BF16, None, 1, TOO_FEW))
    rotation = Trial(9, Phase.ROTATION, BASELINE, "", Outcome(OutcomeKind.INFEASIBLE, reason, rotation=said))
    baseline = Trial(0, Phase.BASELINE, BASELINE, "", worlds.measured(100.0))
    history = History(SPACE, worlds.OBJECTIVE, [baseline, rotation, *searched])
    found: Floats = Feasibility(history).of(rows(TWO, Config(workers=2, precision="bf16"), Config(workers=4), BF16))
    return [float(each) for each in found]


def rows(*configs: Config) -> Indices:
    found: Indices = np.array([SPACE.row_of(config) for config in configs])
    return found


def test_what_ended_a_rotation_is_left_until_nothing_else_is() -> None:
    """Such as a layout in which a script's ``view`` raises: the next trial but three was lost to it as well."""
    alone, company, more, other = likely()
    assert alone < UNLIKELY and company < UNLIKELY
    assert more == other == 1.0


def test_what_ended_a_rotation_and_works_by_itself_counts_as_one_that_works() -> None:
    """What switches configs was at fault."""
    assert likely(Trial(1, Phase.SEARCH, TWO, "", worlds.measured(120.0)))[0] > UNLIKELY


@pytest.mark.parametrize("reason", ["host-oom", "signal-kill"])
def test_memory_that_ended_a_rotation_is_no_fault_of_a_config(reason: str) -> None:
    """A rotation holds what several of them take."""
    assert likely(reason=reason)[0] == 1.0


def test_a_compiler_that_ended_a_rotation_is_tried() -> None:
    """It is switched between compiled functions there, which no fresh process does."""
    compiled = Config(compile="max")
    said = (Rotated(compiled, None, 1, ENDED),)
    rotation = Trial(9, Phase.ROTATION, BASELINE, "", Outcome(OutcomeKind.INFEASIBLE, "script-raised", rotation=said))
    baseline = Trial(0, Phase.BASELINE, BASELINE, "", worlds.measured(100.0))
    assert Feasibility(History(SPACE, worlds.OBJECTIVE, [baseline, rotation])).of(rows(compiled))[0] == 1.0
