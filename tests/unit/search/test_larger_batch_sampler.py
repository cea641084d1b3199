"""How larger effective batches are climbed: on top of the best config, early where steps cost more than samples."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from support import overhead, worlds

from search_spaces.torch import SPACE
from tuner.analysis.bottleneck import Bottleneck, Bound
from tuner.analysis.memory_forecast import MemoryLimits
from tuner.knowledge import BOTH, FREE, KEEP, Knowledge
from tuner.model import BASELINE, Config, Phase, Side, Trial, Value
from tuner.search.chain import Chain
from tuner.search.history import History, Sampler
from tuner.search.larger_batches import LargerBatchSampler
from tuner.search.structured import StructuredSampler
from tuner.search.tpe import TpeSampler
from tuner.space.declare import Known
from tuner.space.resolve import resolve
from tuner.space.resolved import ResolvedSpace

SELECTION = ("batch_size", "precision")


def space(mode: str = BOTH, pinned: Mapping[str, Value] = BASELINE, **changes: Any) -> ResolvedSpace:
    knowledge = replace(overhead.KNOWN, effective_batch=mode, **changes)
    return resolve(SPACE, Known(worlds.DEVICE, 4, knowledge=knowledge), selection=SELECTION, pinned=pinned)


def trial(world: overhead.Overhead, number: int, config: Config, phase: Phase = Phase.SEARCH) -> Trial:
    return Trial(number, phase, config, "", world.outcome(config, random.Random(number), 0))


def half_a_batch(world: overhead.Overhead) -> list[Trial]:
    """The sides of a probe, by which such a script is overhead-bound."""
    sides = {Side.COMPUTE: BASELINE, Side.HALF: Config(batch_size=16)}
    return [
        replace(trial(world, -1 - number, config, Phase.PROBE), side=side)
        for number, (side, config) in enumerate(sides.items())
    ]


def played(
    sampler: Sampler, world: overhead.Overhead, where: ResolvedSpace, *, probed: bool = False, count: int = 30
) -> list[Trial]:
    """The trials of a search, the baseline first."""
    trials = [trial(world, 0, BASELINE, Phase.BASELINE)]
    beside = half_a_batch(world) if probed else []
    while len(trials) <= count:
        proposal = sampler.propose(History(where, worlds.OBJECTIVE, [*beside, *trials]))
        if proposal is None:
            break
        trials.append(trial(world, len(trials), proposal.config))
    return trials


def verbs() -> Sampler:
    """As ``autotune study`` has it."""
    return Chain(LargerBatchSampler(early=True), StructuredSampler(), LargerBatchSampler(), TpeSampler(1))


def batches(trials: list[Trial]) -> list[int]:
    return [int(t.config["batch_size"]) for t in trials if int(t.config.get("batch_size", 0)) > 32]


def test_it_climbs_while_throughput_grows_by_something_worth_having() -> None:
    saturating = overhead.Overhead(step_s=0.002, sample_s=0.0001, scatter=0.0)
    rates = {size: saturating.rate(Config(batch_size=size)) for size in (32, 64, 128, 256, 512)}
    assert rates[256] > 1.05 * rates[128] and rates[512] < 1.05 * rates[256]
    trials = played(LargerBatchSampler(), saturating, space())
    assert batches(trials) == [64, 128, 256, 512]
    flat = overhead.Overhead(step_s=0.0001, sample_s=0.001, scatter=0.0)
    assert batches(played(LargerBatchSampler(), flat, space())) == [64]


def test_larger_batches_come_with_their_rate_on_top_of_the_best_config() -> None:
    world = overhead.Overhead(step_s=0.004, sample_s=0.0004, bf16=1.5, scatter=0.0)
    trials = played(verbs(), world, space(), count=4)
    assert trials[1].config == {"precision": "bf16"}, "what keeps the batch is walked first"
    assert trials[-1].config == {"precision": "bf16", "batch_size": 128, "lr_scale": 4.0}
    adam = space(optimizers=("AdamW",))
    assert played(LargerBatchSampler(), world, adam, count=2)[-1].config == {"batch_size": 128, "lr_scale": 2.0}


def test_they_come_first_where_steps_cost_more_than_their_samples() -> None:
    world = overhead.Overhead(scatter=0.0)
    history = History(space(), worlds.OBJECTIVE, [*half_a_batch(world), trial(world, 0, BASELINE, Phase.BASELINE)])
    assert isinstance(history.bottleneck, Bottleneck) and history.bottleneck.bound is Bound.OVERHEAD
    assert batches(played(verbs(), world, space(), probed=True, count=2)) == [64, 128]
    assert batches(played(verbs(), world, space(), probed=False, count=2)) == []


def test_an_early_climb_is_gone_on_with_where_the_walk_found_something_better() -> None:
    """From the batch on that was best, and not at all where what was found is hardly better."""
    better = overhead.Overhead(step_s=0.02, sample_s=0.0004, bf16=1.5, scatter=0.0)
    trials = played(verbs(), better, space(), probed=True, count=9)
    larger = [t.config for t in trials if "lr_scale" in t.config]
    alone = [config for config in larger if "precision" not in config]
    together = [config for config in larger if "precision" in config]
    best = max(alone, key=better.rate)
    assert together and together[0]["batch_size"] == best["batch_size"]
    same = overhead.Overhead(bf16=1.0, scatter=0.0)
    assert not [t for t in played(verbs(), same, space(), probed=True) if {"lr_scale", "precision"} <= set(t.config)]


def test_they_never_become_what_the_search_goes_on_from() -> None:
    world = overhead.Overhead()
    trials = played(verbs(), world, space(), probed=True)
    history = History(space(), worlds.OBJECTIVE, trials)
    assert history.best is not None and "lr_scale" not in history.best.config
    assert history.best_larger is not None and history.best_larger.config["batch_size"] == 512
    others = [t.config for t in trials if "lr_scale" not in t.config]
    assert all(space().keeps_batch(config) for config in others)
    assert len({t.config for t in trials}) == len(trials)


def test_on_top_of_the_best_config_they_wait_until_that_changes_less_often() -> None:
    world, where = overhead.Overhead(), space()
    sampler, written = LargerBatchSampler(after=2), trial(world, 0, BASELINE, Phase.BASELINE)
    bf16 = trial(world, 1, Config(precision="bf16"))
    assert sampler.propose(History(where, worlds.OBJECTIVE, [written, bf16])) is None
    fp16 = trial(world, 2, Config(precision="fp16"))
    assert sampler.propose(History(where, worlds.OBJECTIVE, [written, bf16, fp16])) is not None


def test_one_that_runs_out_of_memory_ends_the_climb() -> None:
    assert batches(played(LargerBatchSampler(), overhead.Overhead(fits=64), space())) == [64, 128]


@pytest.mark.parametrize("early", [False, True])
def test_a_restart_changes_nothing(early: bool) -> None:
    """The history is all that it has."""
    world = overhead.Overhead(step_s=0.004, sample_s=0.0004, bf16=1.5)
    whole = [t.config for t in played(verbs(), world, space(), probed=early, count=12)]
    trials = [trial(world, 0, BASELINE, Phase.BASELINE)]
    beside = half_a_batch(world) if early else []
    while len(trials) < len(whole):
        proposal = verbs().propose(History(space(), worlds.OBJECTIVE, [*beside, *trials]))
        assert proposal is not None
        trials.append(trial(world, len(trials), proposal.config))
    assert [t.config for t in trials] == whole


@pytest.mark.parametrize("mode", [KEEP, FREE])
def test_keep_and_free_know_of_no_such_contest(mode: str) -> None:
    assert space(mode).larger is None
    assert played(LargerBatchSampler(), overhead.Overhead(), space(mode)) == played(
        LargerBatchSampler(), overhead.Overhead(), space(mode), count=0
    )
    kept = played(Chain(StructuredSampler(), TpeSampler(1)), overhead.Overhead(), space(mode))
    assert bool(batches(kept)) is (mode == FREE)


def test_what_is_pinned_stands_in_every_larger_batch() -> None:
    world = overhead.Overhead()
    trials = played(verbs(), world, space(pinned={"precision": "bf16"}), count=4)
    assert trials[1].config == {"precision": "bf16"}
    assert all(t.config["precision"] == "bf16" for t in trials[1:]) and batches(trials)
    unscaled = space(pinned={"lr_scale": 1.0})
    larger = [t.config for t in played(LargerBatchSampler(), world, unscaled, count=3)]
    assert larger == [{}], "what is pinned comes first"
    assert unscaled.with_larger(BASELINE, 64) == {"batch_size": 64, "lr_scale": 1.0}


def test_users_own_batches_are_divided_between_the_contests() -> None:
    knob = replace(SPACE.knob("batch_size"), choices=lambda known: (32, 16, 48, 96))
    own = replace(
        SPACE, knobs=tuple(knob if k.name == knob.name else k for k in SPACE.knobs),
        larger=replace(knob, choices=knob.choices),
    )  # fmt: skip
    knowledge = replace(overhead.KNOWN, effective_batch=BOTH)
    where = resolve(own, Known(worlds.DEVICE, 4, knowledge=knowledge), selection=SELECTION)
    trials = played(verbs(), overhead.Overhead(), where)
    sizes = {int(t.config.get("batch_size", 32)) for t in trials}
    assert sizes == {16, 32, 48, 96}
    history = History(where, worlds.OBJECTIVE, trials)
    assert {int(t.config.get("batch_size", 32)) for t in history.trials} == {16, 32}


def test_before_the_script_as_written_was_run_there_is_nothing_to_go_by() -> None:
    history = History(space(), worlds.OBJECTIVE, [])
    assert LargerBatchSampler().propose(history) is None and LargerBatchSampler(early=True).propose(history) is None
    assert Knowledge().effective_batch == KEEP


def sparing(**changes: Any) -> ResolvedSpace:
    """A space with checkpointing, which its model can have."""
    written = {**overhead.KNOWN.as_written, "checkpointing": False, "compile": "off"}
    knowledge = replace(overhead.KNOWN, effective_batch=BOTH, as_written=written)
    known = Known(worlds.DEVICE, 4, knowledge=knowledge)
    return resolve(SPACE, known, selection=(*SELECTION, "checkpointing", "compile"), **changes)


def tried(trials: list[Trial]) -> list[tuple[int, bool]]:
    return [(int(t.config["batch_size"]), bool(t.config.get("checkpointing"))) for t in trials[1:]]


def test_what_spares_memory_is_tried_where_a_batch_ran_out_of_it_and_from_there_on() -> None:
    world = overhead.Overhead(fits=64, fits_spared=256, scatter=0.0)
    trials = played(LargerBatchSampler(), world, sparing())
    assert tried(trials) == [(64, False), (128, False), (128, True), (256, True), (512, True)]
    assert len({t.config for t in trials}) == len(trials)


def test_its_cost_has_to_be_paid_for_by_the_batch() -> None:
    world = overhead.Overhead(step_s=0.002, sample_s=0.0004, fits=64, scatter=0.0)
    assert world.rate({"batch_size": 128, "checkpointing": True}) < 1.05 * world.rate({"batch_size": 64})
    assert tried(played(LargerBatchSampler(), world, sparing())) == [(64, False), (128, False), (128, True)]


def test_without_a_lack_of_memory_it_gets_no_trial() -> None:
    trials = played(verbs(), overhead.Overhead(bf16=1.5), sparing(), count=40)
    assert len(trials) > 5 and not any("checkpointing" in t.config for t in trials)
    assert "checkpointing" not in {axis.knob.name for axis in sparing().axes}


def test_nothing_spares_memory_beside_a_compiler_or_where_it_is_pinned() -> None:
    assert sparing().spared(Config(precision="bf16")) == {"precision": "bf16", "checkpointing": True}
    assert sparing().spared(Config(compile="default")) is None
    assert sparing().spared(Config(checkpointing=True)) is None
    assert sparing(pinned={"checkpointing": True}).lighter is None
    assert space().spared(BASELINE) is None


def test_a_forecast_is_a_lack_of_memory_too() -> None:
    """Two batches tell what the third would take."""
    trials = [trial(overhead.Overhead(scatter=0.0), 0, BASELINE, Phase.BASELINE)]
    for number, size in enumerate((64, 128), 1):
        config = sparing().with_larger(BASELINE, size)
        trials.append(trial(overhead.Overhead(scatter=0.0), number, config))
    peaks = {32: 2**30, 64: 2**31, 128: 2**32}
    heavy = [
        replace(t, outcome=replace(t.outcome, measurement=replace(t.outcome.measurement, peak_host_bytes=peak)))
        for t, peak in zip(trials, peaks.values(), strict=True)
        if t.outcome is not None and t.outcome.measurement is not None
    ]
    history = History(sparing(), worlds.OBJECTIVE, heavy, MemoryLimits(host_bytes=6 * 2**30))
    proposal = LargerBatchSampler().propose(history)
    assert proposal is not None
    assert proposal.config == {"batch_size": 256, "lr_scale": 8.0, "checkpointing": True}
    assert proposal.why == (
        "a larger effective batch (tier 3), on top of the script as written, with checkpointing: there is no"
        " memory for it without"
    )
