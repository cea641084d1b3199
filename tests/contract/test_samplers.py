"""What every sampler must keep to, on the same made-up world."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import pytest
from support import worlds

from search_spaces.torch import SPACE as TORCH
from tuner.devices.cpu import cpu_device
from tuner.knowledge import Knowledge
from tuner.model import BASELINE, Config, Outcome, OutcomeKind, Phase, Trial
from tuner.search import tpe
from tuner.search.additive import AdditiveSampler
from tuner.search.chain import Chain
from tuner.search.feasibility import Feasibility
from tuner.search.history import History, Sampler
from tuner.search.structured import StructuredSampler
from tuner.search.tpe import TpeSampler
from tuner.space.declare import Known
from tuner.space.resolve import resolve
from tuner.space.resolved import ResolvedSpace

SAMPLERS: dict[str, Callable[[], Sampler]] = {
    "structured": StructuredSampler,
    "tpe": lambda: TpeSampler(seed=1),
    "additive": lambda: AdditiveSampler(seed=1),
    "chain": lambda: Chain(StructuredSampler(), AdditiveSampler(seed=1), TpeSampler(seed=1)),
}


def played(
    sampler: Sampler, count: int, world: worlds.World | None = None, space: ResolvedSpace | None = None,
    *, known: Sequence[Trial] = (), has_time_for: Callable[[Config], bool] = lambda config: True,
) -> list[Trial]:  # fmt: skip
    """The trials of a search, the baseline first. ``known``: those that it goes on after."""
    world = world or worlds.World()
    space = space or worlds.resolved()
    trials = [*known] or [Trial(0, Phase.BASELINE, BASELINE, "", world.outcome(BASELINE))]
    while len(trials) <= count:
        proposal = sampler.propose(History(space, worlds.OBJECTIVE, trials, has_time_for=has_time_for))
        if proposal is None:
            break
        trials.append(
            Trial(len(trials), Phase.SEARCH, proposal.config, proposal.why, world.outcome(proposal.config))
        )
    return trials


@pytest.fixture(scope="module", autouse=True)
def a_few_asks() -> Iterator[None]:
    """TPE asks less often for what is new: that takes most of the time, and what is proposed is held to the same."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tpe, "ASKS", 8)
        yield


@pytest.fixture(
    scope="module",
    params=[pytest.param(name, marks=[pytest.mark.slow] if name == "additive" else []) for name in sorted(SAMPLERS)],
)  # the chain asks it, too
def make(request: pytest.FixtureRequest) -> Callable[[], Sampler]:
    return SAMPLERS[request.param]


@pytest.fixture(scope="module")
def sixty(make: Callable[[], Sampler]) -> list[Trial]:
    """The trials of one search, for all tests that look at nothing else."""
    return played(make(), 60)


def test_a_trial_whose_value_is_offered_no_more_stops_no_search(make: Callable[[], Sampler]) -> None:
    """Three workers were tried, where a machine of three cores offered them; here they are on no axis."""
    world = worlds.World()
    known = [
        Trial(number, Phase.SEARCH if config else Phase.BASELINE, config, "", world.outcome(config))
        for number, config in enumerate([BASELINE, Config(workers=3), Config(workers=4), Config(precision="bf16")])
    ]
    trials = played(make(), 8, known=known)
    assert len(trials) == 9 and len({trial.config for trial in trials}) == 9


def test_nothing_is_proposed_twice(sixty: list[Trial]) -> None:
    keys = [trial.config for trial in sixty]
    assert len(keys) > 8
    assert len(set(keys)) == len(keys)


def test_proposals_are_canonical_and_allowed(sixty: list[Trial]) -> None:
    space = worlds.resolved()
    for trial in sixty[1:]:
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


def test_a_knob_without_effect_leaves_the_search(sixty: list[Trial]) -> None:
    shown = [t.number for t in sixty if "layout" in t.config and t.outcome is not None and t.outcome.complete]
    assert not [t.number for t in sixty[shown[0] + 1 :] if "layout" in t.config]


def test_a_value_that_failed_alone_is_not_tried_in_company() -> None:
    trials = played(StructuredSampler(), 60, worlds.World(feed=1e6))
    alone = [t.number for t in trials if t.config == {"precision": "fp16"}]
    assert alone
    space = worlds.resolved()
    history = History(space, worlds.OBJECTIVE, trials)
    assert history.is_ruled_out({"precision": "fp16", "batch_size": 128})
    assert not history.is_ruled_out({"precision": "bf16", "batch_size": 128, "compile": "max"})


@pytest.mark.parametrize(("reason", "is_blamed"), [("no-progress", True), ("crowded-out", False)])
def test_no_value_is_blamed_for_a_trial_that_others_held_up(reason: str, *, is_blamed: bool) -> None:
    trials = [Trial(0, Phase.BASELINE, BASELINE, "", worlds.World().outcome(BASELINE))]
    trials.append(Trial(1, Phase.SEARCH, Config(layout=True), "", Outcome(OutcomeKind.NO_PROGRESS, reason, "no step")))
    history = History(worlds.resolved(), worlds.OBJECTIVE, trials)
    assert history.is_ruled_out({"layout": True, "precision": "bf16"}) is is_blamed
    likely = Feasibility(history).of(np.array([worlds.resolved().row_of(Config(layout=True, precision="bf16"))]))
    assert bool(likely[0] < 1.0) is is_blamed


def test_a_restart_changes_nothing(make: Callable[[], Sampler], sixty: list[Trial]) -> None:
    """The history is all that a sampler has: a new one goes on where the old one died."""
    unbroken = sixty[:16]
    world = worlds.World()
    trials = [Trial(0, Phase.BASELINE, BASELINE, "", world.outcome(BASELINE))]
    while len(trials) < len(unbroken):
        proposal = make().propose(History(worlds.resolved(), worlds.OBJECTIVE, trials))
        assert proposal is not None
        trials.append(
            Trial(len(trials), Phase.SEARCH, proposal.config, proposal.why, world.outcome(proposal.config))
        )
    assert [t.config for t in trials] == [t.config for t in unbroken]


def test_what_there_is_no_time_for_is_left_until_there_is(make: Callable[[], Sampler]) -> None:
    short = played(make(), 12, has_time_for=lambda config: "compile" not in config)
    assert len(short) > 4 and not any("compile" in trial.config for trial in short)
    longer = played(make(), len(short) + 24, known=short)
    assert any("compile" in trial.config for trial in longer)


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


class Storage(worlds.World):
    """Two cores, and a loader whose every worker brings 100 samples/s of the 900 that are computed.

    Each sample costs the loader ``cpu_s`` seconds of a core. Others use ``foreign`` cores, and with one for each
    thread the trial would use ``wanted``: all where its workers compute, hardly any where they sleep.
    """

    def __init__(self, cpu_s: float, written: int = 0, *, foreign: float = 0.0, wanted: float | None = None) -> None:
        super().__init__()
        self.cpu_s, self.foreign, self.wanted = cpu_s, foreign, wanted
        knowledge = Knowledge(
            as_written={"num_workers": written, "prefetch_factor": 2, "persistent_workers": False}, dataset_len=1000
        )
        self.space = resolve(TORCH, Known(cpu_device(), 2, knowledge=knowledge))
        self.written = written

    def outcome(self, config: Config) -> Outcome:
        workers = int(config.get("num_workers", self.written))
        fed = min(100.0 * max(1, workers), (2 - self.foreign) / self.cpu_s)
        rate = min(900.0, fed) if workers else 1 / (1 / fed + 1 / 900)
        outcome = worlds.measured(rate, max(0.0, 1 - rate / 900))
        assert outcome.measurement is not None
        told = replace(
            outcome.measurement, cpu_s_per_sample=self.cpu_s, foreign_cpus=self.foreign, wanted_cpus=self.wanted
        )
        return replace(outcome, measurement=told)

    def workers_of(self, trials: list[Trial]) -> list[int]:
        return [int(trial.config.get("num_workers", self.written)) for trial in trials]


def test_workers_that_wait_are_added_beyond_the_cores() -> None:
    """As long as the loop waits for them; nine would keep up with it, so that the first trial has as many as cores."""
    world = Storage(cpu_s=1e-5)
    workers = world.workers_of(played(SAMPLERS["structured"](), 40, world, world.space))
    assert list(dict.fromkeys(workers)) == [0, 2, 4, 8, 16], "with 16 the loop waits no more"


@pytest.mark.parametrize(
    ("cpu_s", "foreign", "wanted", "most"), [(1e-5, 1.8, 0.1, 16), (0.01, 1.0, 2.0, 2), (1e-5, 1.8, None, 2)]
)
def test_workers_that_sleep_are_added_beside_others_that_keep_the_cores_busy(
    cpu_s: float, foreign: float, wanted: float | None, most: int
) -> None:
    """They lack no core, and those that compute do; where nothing tells, what others have is lacking."""
    world = Storage(cpu_s, foreign=foreign, wanted=wanted)
    assert max(world.workers_of(played(SAMPLERS["structured"](), 40, world, world.space))) == most


def test_what_others_have_of_cores_that_a_quota_keeps_from_us_is_no_loss() -> None:
    """A container with two cores of three, beside others that use 1.5."""
    world = Storage(cpu_s=1e-5, foreign=1.5)
    trials = [
        Trial(number, Phase.SEARCH if config else Phase.BASELINE, config, "", world.outcome(config))
        for number, config in enumerate([BASELINE, Config(num_workers=2)])
    ]
    for spare_cores, is_ruled_out in ((0, True), (1, False)):
        history = History(replace(world.space, spare_cores=spare_cores), worlds.OBJECTIVE, trials)
        assert history.is_ruled_out(Config(num_workers=4)) is is_ruled_out


def test_more_workers_than_cores_are_not_tried_where_they_would_compute(make: Callable[[], Sampler]) -> None:
    for world in (Storage(cpu_s=0.01), Storage(cpu_s=0.01, written=8)):
        workers = world.workers_of(played(make(), 40, world, world.space))
        assert set(workers) >= {0, 1, 2} and max(workers) == max(2, world.written)


def test_no_sampler_leaps_beyond_the_cores(make: Callable[[], Sampler]) -> None:
    """Each number is tried after half as many were seen to wait."""
    world = Storage(cpu_s=1e-5)
    workers = world.workers_of(played(make(), 60, world, world.space))
    assert max(workers) == 16
    for place, number in enumerate(workers):
        assert number <= 2 or number // 2 in workers[:place]


def test_cores_that_others_use_are_not_idle() -> None:
    """Workers that compute all the time, and get one of two cores: more of them would only take it from others."""
    world = Storage(cpu_s=0.01)
    workers = Config(num_workers=2)
    outcome = world.outcome(workers)
    assert outcome.measurement is not None
    trials = [Trial(0, Phase.BASELINE, BASELINE, "", world.outcome(BASELINE))]
    for foreign_cpus, is_ruled_out in ((0.0, False), (1.0, True)):
        half = replace(outcome.measurement, cpu_s_per_sample=0.005, foreign_cpus=foreign_cpus)
        trial = Trial(1, Phase.SEARCH, workers, "", replace(outcome, measurement=half))
        history = History(world.space, worlds.OBJECTIVE, [*trials, trial])
        assert history.is_ruled_out({"num_workers": 4}) is is_ruled_out


def test_a_stream_gets_no_more_workers_than_cores() -> None:
    """They share it out: each one's last batch may be dropped, and 32 of them dropped 18% of an epoch."""
    for samples, most in ((1000, 64), (None, 2)):
        knowledge = Knowledge(as_written={"num_workers": 0}, dataset_len=samples)
        (axis,) = resolve(TORCH, Known(cpu_device(), 2, knowledge=knowledge)).axes
        assert max(int(value) for value in axis.values) == most


@pytest.mark.parametrize(("wait", "idle", "tried"), [(0.1, 0.1, True), (0.1, 0.02, False), (0.3, 0.3, True)])
def test_workers_that_wait_are_seen_also_where_cores_are_busy_most_of_the_time(
    wait: float, idle: float, *, tried: bool
) -> None:
    """What counts is whether cores are idle while the loop waits: as a share of all cores here."""
    world = Storage(cpu_s=1e-5)
    trials = [Trial(0, Phase.BASELINE, BASELINE, "", world.outcome(BASELINE))]
    outcome = worlds.measured(100.0, wait)
    assert outcome.measurement is not None
    busy = replace(outcome.measurement, cpu_s_per_sample=2 * (1 - idle) / 100.0)
    trials.append(Trial(1, Phase.SEARCH, Config(num_workers=2), "", replace(outcome, measurement=busy)))
    history = History(world.space, worlds.OBJECTIVE, trials)
    assert history.is_ruled_out(Config(num_workers=4)) is not tried


@pytest.mark.parametrize("reason", ["host-oom", "worker-killed", "signal-kill"])
def test_what_is_heavier_than_what_was_killed_each_time_is_not_tried(reason: str) -> None:
    """A guard against full memory that isn't the kernel's kills, and says nothing."""
    world = Storage(cpu_s=1e-5, written=1)
    trials = [Trial(0, Phase.BASELINE, BASELINE, "", world.outcome(BASELINE))]
    killed = Outcome(OutcomeKind.CRASHED, reason, "killed")
    trials.append(Trial(1, Phase.SEARCH, Config(num_workers=2, prefetch_factor=4), "", killed))
    history = History(world.space, worlds.OBJECTIVE, trials)
    assert history.is_ruled_out(Config(num_workers=2, prefetch_factor=8))
    assert not history.is_ruled_out(Config(num_workers=2))
