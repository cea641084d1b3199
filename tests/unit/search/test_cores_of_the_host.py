"""What the search takes the machine's cores for: those of all ranks, and on the CPU those that compute as well."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support import worlds

from tuner.knowledge import Knowledge
from tuner.model import BASELINE, Config, Outcome, Phase, Ratio, Rotated, Side, Trial
from tuner.search.history import History
from tuner.search.rotation import FEWEST_STEPS, next_rotation
from tuner.space.declare import Knob, Known, SearchSpace
from tuner.space.resolve import resolve
from tuner.space.resolved import ResolvedSpace

SPACE = SearchSpace(
    "made-up",
    "none",
    (
        Knob(
            "workers", lambda known: (0, 1, 2, 4), "loader workers", ordered=True, loader=True, on_cores=True,
            switchable=True,
        ),
        Knob("layout", lambda known: [False, True], "layout", switchable=True),
        Knob("threads", lambda known: [1, 2, 4], "threads", ordered=True, switchable=True),
    ),
)  # fmt: skip
CARD = worlds.device("search-cores")
TWO, FOUR, LAYOUT = Config(workers=2), Config(workers=4), Config(layout=True)


def space(*, cores: int = 2, ranks: int = 2, card: bool = False) -> ResolvedSpace:
    """``cores`` are those of a rank."""
    known = Knowledge(as_written={**worlds.WRITTEN, "threads": 2})
    return resolve(SPACE, Known(CARD if card else worlds.DEVICE, cores, knowledge=known, ranks=ranks))


def outcome(rate: float, wait: float, busy: float, foreign: float = 0.0) -> Outcome:
    """A run of all ranks that keeps so many cores ``busy``, beside others that have ``foreign`` of them."""
    made = worlds.measured(rate, wait)
    assert made.measurement is not None
    blocks = tuple(replace(block, steps=FEWEST_STEPS) for block in made.measurement.blocks)
    measurement = replace(made.measurement, cpu_s_per_sample=busy / rate, foreign_cpus=foreign, blocks=blocks)
    return replace(made, measurement=measurement)


def searched(number: int, config: Config, of: Outcome) -> Trial:
    return Trial(number, Phase.SEARCH if config else Phase.BASELINE, config, "", of)


@pytest.mark.parametrize(("ranks", "ruled_out"), [(1, True), (2, False), (3, False)])
def test_cores_are_idle_that_no_rank_uses(ranks: int, *, ruled_out: bool) -> None:
    """With two cores for each, and 1.6 busy in all: of four 2.4 are idle while the loop waits for half of its time."""
    trials = [searched(0, BASELINE, outcome(100.0, 0.7, 1.6)), searched(1, TWO, outcome(150.0, 0.5, 1.6))]
    assert History(space(ranks=ranks), worlds.OBJECTIVE, trials).is_ruled_out(FOUR) is ruled_out


def test_what_computes_without_its_wait_shares_the_cores_of_all_ranks() -> None:
    trials = [searched(0, BASELINE, outcome(100.0, 0.7, 1.6))]
    assert History(space(cores=2, ranks=2), worlds.OBJECTIVE, trials).shared_cores == 4
    assert History(space(cores=4, ranks=1), worlds.OBJECTIVE, trials).shared_cores == 4
    assert History(space(card=True), worlds.OBJECTIVE, trials).shared_cores is None


@pytest.mark.parametrize(("foreign", "leaves_out"), [(0.1, True), (0.3, True), (0.5, False)])
def test_a_rotation_is_calm_by_what_others_had_of_all_cores(foreign: float, *, leaves_out: bool) -> None:
    """Of four cores, two for each rank: a tenth is 0.4."""
    said = tuple(Rotated(config, Ratio(gain, gain / 1.02, gain * 1.02), 3) for config, gain in ((LAYOUT, 0.5),))
    rotation = replace(outcome(100.0, 0.0, 3.5, foreign), rotation=said)
    trials = [searched(0, BASELINE, outcome(100.0, 0.0, 3.5)), Trial(1, Phase.ROTATION, BASELINE, "", rotation)]
    assert History(space(), worlds.OBJECTIVE, trials).is_ruled_out(LAYOUT) is leaves_out


@pytest.mark.parametrize(("card", "turned"), [(False, True), (True, False)])
def test_on_the_cpu_no_kept_batch_shows_that_a_wait_is_free(*, card: bool, turned: bool) -> None:
    """It came out as slow as the real loop, at another moment: nothing computes there while the loop waits."""
    kept = Trial(1, Phase.PROBE, BASELINE, side=Side.COMPUTE, outcome=outcome(1000.0, 0.0, 1.0))
    trials = [searched(0, BASELINE, outcome(1000.0, 0.5, 1.0)), kept]
    configs = next_rotation(space(cores=4, ranks=1, card=card), trials)
    assert any("workers" in config for config in configs) is turned
