"""Where computing is on the cores that fetch, a loop that waits beside busy ones isn't helped by more that fetch."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support import worlds

from tuner.knowledge import FREE, Knowledge
from tuner.model import BASELINE, Config, Outcome, Phase, Trial
from tuner.search.history import History
from tuner.search.structured import StructuredSampler
from tuner.space.declare import Known
from tuner.space.resolve import ResolvedSpace, resolve

CORES = 2


def measured(rate: float, wait: float, cores: float) -> Outcome:
    """A loop that keeps so many cores busy."""
    outcome = worlds.measured(rate, wait)
    assert outcome.measurement is not None
    return replace(outcome, measurement=replace(outcome.measurement, cpu_s_per_sample=cores / rate))


def space_of(batches: str, *selection: str) -> ResolvedSpace:
    knowledge = Knowledge(as_written=worlds.WRITTEN, effective_batch=batches)
    return resolve(worlds.SPACE, Known(worlds.DEVICE, CORES, knowledge=knowledge), selection=selection)


@pytest.mark.parametrize(
    ("busy", "batches", "knob"),
    [(1.9, FREE, "batch_size"), (1.9, "keep", "precision"), (1.2, FREE, "workers"), (1.2, "keep", "workers")],
)
def test_of_a_loop_that_waits_beside_busy_cores_the_loader_comes_behind_what_computes(
    busy: float, batches: str, knob: str
) -> None:
    """It waits for 40% of its time: as much as idle cores could fetch meanwhile, more workers may save."""
    space = space_of(batches, "workers", "precision", "batch_size")
    trials = [Trial(0, Phase.BASELINE, BASELINE, "", measured(100.0, 0.4, busy))]
    history = History(space, worlds.OBJECTIVE, trials)
    proposal = StructuredSampler().propose(history)
    assert history.on_host and proposal is not None
    assert set(proposal.config) == {knob}
    assert history.idle_share(trials[0]) == pytest.approx(1 - busy / CORES)


def test_larger_batches_follow_once_workers_keep_the_cores_busy() -> None:
    """What a kept batch would have saved the script as written is no reason to stay with the loader."""

    def outcome(config: Config) -> Outcome:
        workers = int(worlds.World.value(config, "workers"))
        rate = 100.0 * min(2, 1 + workers) * (int(worlds.World.value(config, "batch_size")) / 64) ** 0.3
        return measured(rate, 0.8 if not workers else 0.4, 0.5 if not workers else 1.95)

    space = space_of(FREE, "workers", "prefetch", "batch_size")
    trials = [Trial(0, Phase.BASELINE, BASELINE, "", outcome(BASELINE))]
    while (proposal := StructuredSampler().propose(History(space, worlds.OBJECTIVE, trials))) is not None:
        trials.append(Trial(len(trials), Phase.SEARCH, proposal.config, "", outcome(proposal.config)))
    first = {name: next(t.number for t in trials if name in t.config) for name in ("workers", "batch_size", "prefetch")}
    assert first["workers"] < first["batch_size"] < first["prefetch"]
