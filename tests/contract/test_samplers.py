"""What every sampler must keep to, on the same made-up world."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support import worlds

from tuner.model import BASELINE, Config, Phase, Trial
from tuner.search.chain import Chain
from tuner.search.history import History, Sampler
from tuner.search.structured import StructuredSampler
from tuner.search.tpe import TpeSampler
from tuner.space.resolve import ResolvedSpace

SAMPLERS: dict[str, Callable[[], Sampler]] = {
    "structured": StructuredSampler,
    "tpe": lambda: TpeSampler(seed=1),
    "chain": lambda: Chain(StructuredSampler(), TpeSampler(seed=1)),
}


def played(
    sampler: Sampler, count: int, world: worlds.World | None = None, space: ResolvedSpace | None = None
) -> list[Trial]:
    """The trials of a search, the baseline first."""
    world = world or worlds.World()
    space = space or worlds.resolved()
    trials = [Trial(0, Phase.BASELINE, BASELINE, "", world.outcome(BASELINE))]
    while len(trials) <= count:
        proposal = sampler.propose(History(space, worlds.OBJECTIVE, trials))
        if proposal is None:
            break
        trials.append(
            Trial(len(trials), Phase.SEARCH, proposal.config, proposal.why, world.outcome(proposal.config))
        )
    return trials


@pytest.fixture(params=sorted(SAMPLERS))
def make(request: pytest.FixtureRequest) -> Callable[[], Sampler]:
    return SAMPLERS[request.param]


def test_nothing_is_proposed_twice(make: Callable[[], Sampler]) -> None:
    trials = played(make(), 60)
    keys = [trial.config for trial in trials]
    assert len(trials) > 8
    assert len(set(keys)) == len(keys)


def test_proposals_are_canonical_and_allowed(make: Callable[[], Sampler]) -> None:
    space = worlds.resolved()
    for trial in played(make(), 40)[1:]:
        assert trial.config
        assert space.canonical(trial.config) == trial.config
        assert space.allows(trial.config)


def test_a_batch_beyond_one_that_ran_out_of_memory_is_never_tried(make: Callable[[], Sampler]) -> None:
    world = worlds.World(fits=64)
    trials = played(make(), 60, world)
    failed = [t.config for t in trials if t.outcome is not None and t.outcome.reason == "device-oom"]
    for position, config in enumerate(failed):
        rest = {k: v for k, v in config.items() if k != "batch_size"}
        for later in failed[position + 1 :]:
            same = {k: v for k, v in later.items() if k != "batch_size"} == rest
            assert not (same and int(later["batch_size"]) >= int(config["batch_size"]))


def test_a_knob_without_effect_leaves_the_search(make: Callable[[], Sampler]) -> None:
    trials = played(make(), 60)
    shown = [t.number for t in trials if "layout" in t.config and t.outcome is not None and t.outcome.complete]
    assert not [t.number for t in trials[shown[0] + 1 :] if "layout" in t.config]


def test_a_value_that_failed_alone_is_not_tried_in_company() -> None:
    trials = played(StructuredSampler(), 60, worlds.World(feed=1e6))
    alone = [t.number for t in trials if t.config == {"precision": "fp16"}]
    assert alone
    space = worlds.resolved()
    history = History(space, worlds.OBJECTIVE, trials)
    assert history.is_ruled_out({"precision": "fp16", "batch_size": 128})
    assert not history.is_ruled_out({"precision": "bf16", "batch_size": 128, "compile": "max"})


def test_a_restart_changes_nothing(make: Callable[[], Sampler]) -> None:
    """The history is all that a sampler has: a new one goes on where the old one died."""
    unbroken = played(make(), 15)
    world = worlds.World()
    trials = [Trial(0, Phase.BASELINE, BASELINE, "", world.outcome(BASELINE))]
    while len(trials) < len(unbroken):
        proposal = make().propose(History(worlds.resolved(), worlds.OBJECTIVE, trials))
        assert proposal is not None
        trials.append(
            Trial(len(trials), Phase.SEARCH, proposal.config, proposal.why, world.outcome(proposal.config))
        )
    assert [t.config for t in trials] == [t.config for t in unbroken]


def test_pinned_knobs_stand_in_every_proposal(make: Callable[[], Sampler]) -> None:
    space = worlds.resolved(workers=2)
    trials = played(make(), 25, space=space)
    assert all(trial.config["workers"] == 2 for trial in trials[1:])


def test_an_exhausted_space_ends_the_search(make: Callable[[], Sampler]) -> None:
    space = worlds.resolved("precision", "compile")
    trials = played(make(), 50, worlds.World(feed=1e9), space)
    assert 4 <= len(trials) <= 9


def test_the_order_of_a_baseline_decides_where_the_walk_begins() -> None:
    waiting = played(StructuredSampler(), 1, worlds.World(feed=100.0))
    assert "workers" in waiting[1].config
    computing = played(StructuredSampler(), 40, worlds.World(feed=1e9))
    assert all("workers" not in trial.config and "prefetch" not in trial.config for trial in computing)


def test_compilers_are_tried_after_the_cheap_knobs() -> None:
    trials = played(StructuredSampler(), 60)
    first = next(trial.number for trial in trials if "compile" in trial.config)
    simpler = [trial.number for trial in trials if "precision" in trial.config and "compile" not in trial.config]
    assert max(simpler) < first


@pytest.mark.parametrize("feed", [100.0, 400.0, 1e6])
def test_the_structured_start_comes_close_to_the_best_there_is(feed: float) -> None:
    world = worlds.World(feed=feed, noise=0.01)
    trials = played(Chain(StructuredSampler(), TpeSampler(seed=3)), 25, world)
    best = History(worlds.resolved(), worlds.OBJECTIVE, trials).best
    assert best is not None
    optimum = max(
        world.truth(Config(workers=w, precision="bf16", compile=c, batch_size=b))[0]
        for w in (0, 4, 8) for c in ("off", "default", "max") for b in (64, 128, 256)
    )  # fmt: skip
    assert world.truth(best.config)[0] > 0.93 * optimum


def test_a_first_worker_that_costs_does_not_hide_what_two_bring() -> None:
    rates = {0: 100.0, 1: 80.0, 2: 160.0, 4: 170.0, 8: 165.0}
    space = worlds.resolved("workers")
    trials = [Trial(0, Phase.BASELINE, BASELINE, "", worlds.measured(rates[0], wait=0.6))]
    while (proposal := StructuredSampler().propose(History(space, worlds.OBJECTIVE, trials))) is not None:
        rate = rates[int(proposal.config["workers"])]
        trials.append(Trial(len(trials), Phase.SEARCH, proposal.config, "", worlds.measured(rate, wait=0.3)))
    assert [trial.config.get("workers", 0) for trial in trials] == [0, 1, 2, 4, 8]
