"""How likely memory suffices: by what trials took, knob by knob, and by those that ran out of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import pytest
from support import worlds

from tuner.analysis.memory_forecast import MemoryLimits
from tuner.model import BASELINE, Config, Outcome, OutcomeKind, Phase, Trial
from tuner.search.feasibility import UNLIKELY, Feasibility
from tuner.search.history import History

MIB = 2**20
LIMIT = 1000 * MIB
SPACE = worlds.resolved()
LARGE, WORKERS = Config(batch_size=512), Config(workers=4)


def took(mib: float) -> Outcome:
    outcome = worlds.measured(100.0)
    assert outcome.measurement is not None
    peak = int(mib * MIB)
    return replace(outcome, measurement=replace(outcome.measurement, peak_host_bytes=peak, peak_device_bytes=peak // 4))


OF_THE_HOST = MemoryLimits(None, LIMIT)


def likely(outcomes: Mapping[Config, Outcome], *configs: Config, limits: MemoryLimits = OF_THE_HOST) -> list[float]:
    trials = [
        Trial(number, Phase.SEARCH if config else Phase.BASELINE, config, "", outcome)
        for number, (config, outcome) in enumerate(outcomes.items())
    ]
    history = History(SPACE, worlds.OBJECTIVE, trials, limits)
    rows = np.array([list(SPACE.indices_of(config).values()) for config in configs], dtype=np.int64)
    return [float(each) for each in Feasibility(history).of(rows)]


KNOWN = {
    BASELINE: took(400), WORKERS: took(700), Config(precision="bf16"): took(390), Config(layout=True): took(410),
    LARGE: took(900),
}  # fmt: skip


def test_what_two_knobs_took_alone_is_expected_of_both_together() -> None:
    """900 and 300 more are beyond 1000, with no trial that failed yet; what takes less isn't touched."""
    both, small, faster = likely(KNOWN, Config({**LARGE, **WORKERS}), WORKERS, Config(batch_size=512, layout=True))
    assert both < UNLIKELY, both
    assert small > 0.99 and faster > 0.7, (small, faster)


def test_a_trial_that_ran_out_tells_of_those_like_it_and_not_of_those_that_take_less() -> None:
    known = {**KNOWN, LARGE: took(700), Config(batch_size=512, workers=2): worlds.infeasible("host-oom")}
    like, less = likely(known, Config(batch_size=512, workers=2, precision="bf16"), Config(batch_size=512, layout=True))
    assert like < 0.5, like
    assert less > 0.8, less


def beyond(mib: float, *, steady: bool) -> Outcome:
    """What took so much of the host, which is beyond the limit."""
    outcome = took(mib)
    assert outcome.measurement is not None
    measured = replace(outcome.measurement, steady=steady)
    return replace(outcome, kind=OutcomeKind.INFEASIBLE, reason="host-oom", measurement=measured)


def test_a_peak_that_was_read_beyond_the_limit_is_what_was_read() -> None:
    """A large batch takes 1020 of 1000, and something else spares 50 of it. What was ended early wanted more."""
    large, spared = Config(batch_size=512), Config(batch_size=512, layout=True)
    known = {BASELINE: took(700), Config(layout=True): took(650)}
    (read,) = likely({**known, large: beyond(1020, steady=True)}, spared)
    (ended,) = likely({**known, large: beyond(1020, steady=False)}, spared)
    assert read > UNLIKELY > ended, (read, ended)


@pytest.mark.parametrize("of", [lambda n: MemoryLimits(n, None), lambda n: MemoryLimits(None, 4 * n)])
def test_either_memory_has_a_limit_of_its_own(of: Callable[[int], MemoryLimits]) -> None:
    """The device takes a quarter of what the host does here."""
    both = Config({**LARGE, **WORKERS})
    assert likely(KNOWN, both, limits=of(LIMIT // 4))[0] < UNLIKELY
    assert likely(KNOWN, both, limits=of(4 * LIMIT))[0] > 0.99


def test_without_a_limit_memory_says_nothing() -> None:
    assert likely(KNOWN, Config({**LARGE, **WORKERS}), limits=MemoryLimits(None, None)) == [1.0]


def test_what_a_format_spares_of_a_small_batch_it_spares_of_a_larger_one_in_proportion() -> None:
    """Of the device, where activations are nearly all: half of each sample's, by a trial of one batch."""
    def peak(batch: int, of_a_sample: float) -> Outcome:
        return took(4 * (100 + batch * of_a_sample))  # a quarter of it is the device's

    known = {
        BASELINE: peak(64, 1.5), Config(batch_size=128): peak(128, 1.5), Config(precision="bf16"): peak(64, 0.75),
        Config(batch_size=512): worlds.infeasible("device-oom"),
    }  # fmt: skip
    limits = MemoryLimits(600 * MIB, None)
    large = (Config(batch_size=512, precision="bf16"), Config(batch_size=512, layout=True))
    fits, same = likely(known, *large, limits=limits)
    assert fits > UNLIKELY > same, (fits, same)
