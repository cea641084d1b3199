"""Peak memory is forecast from smaller batches, and a config that would break a limit isn't run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from support import worlds

from tuner.analysis.memory_forecast import Forecast, Forecasts, MemoryLimits
from tuner.model import Config, Phase, Trial, Value
from tuner.search.history import History
from tuner.search.structured import StructuredSampler

MIB = 2**20


def trial(number: int, config: Mapping[str, Value], device_mib: float) -> Trial:
    outcome = worlds.measured(100.0 + 50 * number)
    assert outcome.measurement is not None
    measurement = replace(
        outcome.measurement, peak_device_bytes=int(device_mib * MIB), peak_host_bytes=int(2 * device_mib * MIB)
    )
    phase = Phase.SEARCH if config else Phase.BASELINE
    return Trial(number, phase, Config(config), "", replace(outcome, measurement=measurement))


def test_two_batches_forecast_a_third() -> None:
    trials = [trial(0, {}, 100 + 64), trial(1, {"batch_size": 128}, 100 + 128)]
    expected = Forecasts(worlds.resolved(), trials).of({"batch_size": 512})
    assert expected is not None
    assert expected.device_bytes == pytest.approx(612 * MIB, rel=1e-6)
    assert expected.host_bytes == pytest.approx(1224 * MIB, rel=1e-6)


def test_other_configs_and_larger_batches_say_nothing() -> None:
    space = worlds.resolved()
    other = trial(1, {"batch_size": 128, "precision": "bf16"}, 150)
    trials = [trial(0, {}, 164), other, trial(2, {"batch_size": 256}, 9)]
    assert Forecasts(space, trials).of({"batch_size": 128}) is None
    assert Forecasts(space, trials[:1]).of({"workers": 2}) is None
    assert Forecasts(space, [trials[0], trials[2]]).of({"batch_size": 256}) is None, "what it took itself is known"


def test_memory_that_nobody_told_of_is_not_forecast_to_be_none() -> None:
    trials = [trial(0, {}, 164), trial(1, {"batch_size": 128}, 228)]
    outcome = trials[1].outcome
    assert outcome is not None and outcome.measurement is not None
    untold = replace(outcome, measurement=replace(outcome.measurement, peak_device_bytes=None))
    expected = Forecasts(worlds.resolved(), [trials[0], replace(trials[1], outcome=untold)]).of({"batch_size": 512})
    assert expected is not None and expected.device_bytes is None and expected.host_bytes > 0


def test_memory_does_not_shrink_with_the_batch() -> None:
    trials = [trial(0, {}, 200), trial(1, {"batch_size": 128}, 199)]
    expected = Forecasts(worlds.resolved(), trials).of({"batch_size": 512})
    assert expected is not None
    assert expected.device_bytes == pytest.approx(199.5 * MIB, rel=1e-3)


def test_limits_are_of_device_and_host() -> None:
    assert Forecast(10, 20).exceeds(MemoryLimits(9, None))
    assert Forecast(10, 20).exceeds(MemoryLimits(None, 19))
    assert not Forecast(10, 20).exceeds(MemoryLimits(10, 20))
    assert not Forecast(10, 20).exceeds(MemoryLimits())
    assert not Forecast(None, 20).exceeds(MemoryLimits(1, 20)) and Forecast(None, 20).exceeds(MemoryLimits(1, 19))


def test_a_large_batch_is_not_ruled_out_by_what_small_ones_differ_by_from_run_to_run() -> None:
    """1,000 MiB with 64, and 1,030 with 128, which may be no difference: the line says 1,210 with 512, of 1,100."""
    space, limits = worlds.resolved(), MemoryLimits(device_bytes=1100 * MIB)
    close = [trial(0, {}, 1000), trial(1, {"batch_size": 128}, 1030)]
    assert not History(space, worlds.OBJECTIVE, close, limits).is_ruled_out({"batch_size": 512})
    known = [*close, trial(2, {"batch_size": 256}, 1090)]
    assert not History(space, worlds.OBJECTIVE, known, limits).is_ruled_out({"batch_size": 512})
    grows = [trial(0, {}, 600), trial(1, {"batch_size": 128}, 1000)]
    assert History(space, worlds.OBJECTIVE, grows, limits).is_ruled_out({"batch_size": 256})


def test_a_batch_that_would_break_the_limit_is_not_run() -> None:
    """164, 228, 356 MiB are allowed; 612 isn't, and nobody has to try it."""
    space = worlds.resolved("batch_size")
    limits = MemoryLimits(device_bytes=400 * MIB)
    trials = [trial(0, {}, 164)]
    tried = []
    while (proposal := StructuredSampler().propose(History(space, worlds.OBJECTIVE, trials, limits))) is not None:
        size = int(proposal.config["batch_size"])
        tried.append(size)
        trials.append(trial(len(trials), proposal.config, 100 + size))
    assert tried == [128, 256]
