"""The walk goes where the bottleneck is, and back when it has moved."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest
from support import worlds

from search_spaces.batches import workers_that_keep_up
from tuner.knowledge import Knowledge
from tuner.model import BASELINE, Block, Config, Outcome, Phase, Ratio, Rotated, Side, Trial
from tuner.objective import Objective
from tuner.search.history import History
from tuner.search.structured import MOST_VISITS, StructuredSampler
from tuner.space.declare import Knob, Known, SearchSpace
from tuner.space.resolve import resolve
from tuner.space.resolved import ResolvedSpace

OutcomeOf = Callable[[Config], Outcome]


def walked(
    outcome_of: OutcomeOf, *selection: str, before: tuple[Trial, ...] = (), of: ResolvedSpace | None = None
) -> list[Trial]:
    """The trials of a whole walk, the baseline first."""
    space = of or worlds.resolved(*selection)
    trials = [Trial(0, Phase.BASELINE, BASELINE, "", outcome_of(BASELINE)), *before]
    while (proposal := StructuredSampler().propose(History(space, worlds.OBJECTIVE, trials))) is not None:
        number = len(trials)
        trials.append(Trial(number, Phase.SEARCH, proposal.config, proposal.why, outcome_of(proposal.config)))
    return trials


def configs(trials: list[Trial]) -> list[Config]:
    return [trial.config for trial in trials if trial.phase is Phase.SEARCH]


class Hidden(worlds.World):
    """A loader of two workers that fp32 computing hides, and bf16 shows: it computes six times as fast."""

    def truth(self, config: Config) -> tuple[float, float]:
        compute = {"fp32": 100.0, "bf16": 600.0, "fp16": 50.0}[str(self.value(config, "precision"))]
        feed = 130.0 * min(4, max(1, int(self.value(config, "workers")) or 2))
        return min(feed, compute), max(0.0, 1 - feed / compute)


def test_a_loader_that_computing_hid_is_looked_at_once_the_loop_waits() -> None:
    """At the very next trial: nothing else could show what it brings."""
    tried = configs(walked(Hidden().outcome, "workers", "precision", "layout", "compile"))
    bf16 = tried.index(Config(precision="bf16"))
    assert not any("workers" in config for config in tried[:bf16]), "before, it cost nothing"
    first = next(place for place, config in enumerate(tried) if "workers" in config)
    others = [config for config in tried[bf16 + 1 : first] if "precision" not in config]
    assert not others, "the knob at hand is finished, and no other comes between"
    assert Config(precision="bf16", workers=4) in tried


def test_a_loader_is_looked_at_again_when_computing_outruns_it() -> None:
    """Two workers are enough for fp32; bf16 waits for them, and four are tried, of which nobody knew before."""
    world = worlds.World(feed=300.0, compute=500.0)
    trials = walked(world.outcome, "workers", "precision", "compile")
    tried = configs(trials)
    again = [trial for trial in trials if "more than when this was tried" in trial.why]
    assert again and all("workers" in trial.config for trial in again)
    best = History(worlds.resolved(), worlds.OBJECTIVE, trials).best
    assert best is not None and best.config["workers"] == 4 and best.config["precision"] == "bf16"
    assert tried.index(again[0].config) > tried.index(Config(workers=2, precision="bf16"))


def test_no_compute_knob_gets_a_trial_while_the_loop_waits_for_its_loader() -> None:
    """However many workers there are, it waits for 95% of its time: what is left is for others to try."""
    trials = walked(lambda config: worlds.measured(100.0 + len(config), 0.95))
    assert configs(trials)
    assert all({*config} <= {"workers", "prefetch"} for config in configs(trials))


def test_what_is_bought_may_be_no_rate_and_then_no_wait_hides_what_computing_brings() -> None:
    objective = Objective("memory", "bytes", False, lambda measurement: 1e9 / measurement.rate)
    history = History(
        worlds.resolved("workers", "precision"), objective,
        [
            Trial(0, Phase.BASELINE, BASELINE, "", worlds.measured(100.0, 0.95)),
            *(Trial(n, Phase.SEARCH, Config(workers=w), "", worlds.measured(90.0, 0.95)) for n, w in ((1, 1), (2, 2))),
        ],
    )  # fmt: skip
    assert not objective.is_rate
    proposal = StructuredSampler().propose(history)
    assert proposal is not None and "precision" in proposal.config


def test_where_the_data_cannot_be_turned_compute_knobs_are_tried_all_the_same() -> None:
    trials = walked(lambda config: worlds.measured(100.0, 0.95), "precision", "compile")
    assert Config(precision="bf16") in configs(trials)


def test_compute_knobs_are_tried_as_soon_as_the_loader_keeps_up() -> None:
    world = worlds.World(feed=30.0, compute=1000.0)  # waits 97%, and 88% with four workers
    tried = configs(walked(world.outcome, "workers", "precision"))
    first = next(place for place, config in enumerate(tried) if "precision" in config)
    assert all("workers" in config for config in tried[: first + 1]) and tried[first]["workers"] == 4


def test_compute_knobs_that_were_tried_beside_a_long_wait_are_tried_again_without_it() -> None:
    """bf16 costs a tenth while the loop waits; with larger batches it waits no more, and bf16 gains."""

    def outcome(config: Config) -> Outcome:
        bf16 = config.get("precision") == "bf16"
        if int(config.get("batch_size", 64)) > 64:
            return worlds.measured(1000.0 * (1.3 if bf16 else 1.0), 0.0)
        return worlds.measured(200.0 * (0.9 if bf16 else 1.0), 0.7)

    trials = walked(outcome, "workers", "precision", "batch_size")
    assert Config(precision="bf16") in configs(trials)
    again = [trial.config for trial in trials if trial.why.endswith("and waited when this was tried")]
    assert Config(precision="bf16", batch_size=128) in again


def test_a_bottleneck_that_noise_moves_to_and_fro_ends_the_walk_all_the_same() -> None:
    seen: list[Config] = []

    def outcome(config: Config) -> Outcome:
        seen.append(config)
        return worlds.measured(100.0 * 1.02 ** len(seen), 0.8 if len(seen) % 2 else 0.02)

    trials = walked(outcome)
    assert len(trials) < MOST_VISITS * 20
    assert len({*configs(trials)}) == len(configs(trials))


def test_every_step_says_what_led_to_it() -> None:
    for trial in walked(worlds.World(feed=300.0, compute=500.0).outcome)[1:]:
        assert trial.why and "\n" not in trial.why
        told = ("the loop waits", "the loop computes", "judged without", "goes with", "the next value, since")
        assert any(word in trial.why for word in told)


def test_a_knob_that_is_unlikely_to_help_comes_behind_the_others_and_says_why() -> None:
    """Before the compilers all the same: later trials don't pay for it."""

    def tried(unlikely: str) -> list[Trial]:
        knobs = [replace(k, unlikely=lambda _: unlikely) if k.name == "precision" else k for k in worlds.SPACE.knobs]
        known = Known(worlds.DEVICE, 8, knowledge=Knowledge(as_written=worlds.WRITTEN))
        space = resolve(replace(worlds.SPACE, knobs=tuple(knobs)), known)
        return walked(lambda config: worlds.measured(100.0), of=space)[1:]

    def order(trials: list[Trial]) -> list[str]:
        return list(dict.fromkeys(next(iter(trial.config)) for trial in trials))

    assert order(tried("")) == ["precision", "batch_size", "layout", "compile"]
    late = tried("no instructions for it")
    assert order(late) == ["batch_size", "layout", "precision", "compile"]
    assert {t.why.endswith("; no instructions for it") for t in late if "precision" in t.config} == {True}


def test_overhead_is_named_where_it_leads_to_larger_batches() -> None:
    overhead = []
    for number, (side, steps_per_s) in enumerate(((Side.COMPUTE, 10.0), (Side.HALF, 10.5)), 1):
        outcome = worlds.measured(100.0)
        assert outcome.measurement is not None
        outcome = replace(outcome, measurement=replace(outcome.measurement, steps_per_s=steps_per_s))
        overhead.append(Trial(number, Phase.PROBE, BASELINE, "", outcome, side=side))
    trials = walked(lambda config: worlds.measured(100.0), before=tuple(overhead))
    first = next(trial for trial in trials if trial.phase is Phase.SEARCH)
    assert first.why == "batch: 90% of a step doesn't grow with its batch; halfway to the largest"


@pytest.mark.parametrize(
    ("effective_batch", "wait", "first"), [("free", 0.0, True), ("free", 0.5, False), ("keep", 0.0, False)]
)
def test_where_the_user_left_them_free_larger_batches_come_first_unless_the_loop_waits(
    effective_batch: str, wait: float, first: bool
) -> None:
    of = worlds.resolved("workers", "precision", "batch_size")
    of = replace(of, knowledge=replace(of.knowledge, effective_batch=effective_batch))
    trials = walked(lambda config: worlds.measured(100.0, wait), of=of)
    assert ("batch_size" in configs(trials)[0]) is first


@pytest.mark.parametrize(
    ("rates", "order"),
    [
        pytest.param({256: 90.0, 512: 180.0}, [256, 512], id="one that was read badly doesn't end the climb"),
        pytest.param({128: 150.0, 256: 180.0, 512: 170.0}, [256, 512, 128], id="down where more brings nothing"),
        pytest.param({128: 150.0, 256: 90.0, 512: 80.0}, [256, 512, 128], id="one by one where that brought nothing"),
    ],
)
def test_larger_batches_begin_halfway_to_the_largest(rates: Mapping[int, float], order: list[int]) -> None:
    of = worlds.resolved("batch_size")
    of = replace(of, knowledge=replace(of.knowledge, effective_batch="free"))
    read = {64: 100.0, **rates}
    tried = configs(walked(lambda config: worlds.measured(read.get(int(config.get("batch_size", 64)), 50.0)), of=of))
    assert [config["batch_size"] for config in tried] == order


def test_what_no_wait_is_seen_of_says_what_the_knob_is() -> None:
    def blind(config: Config) -> Outcome:
        outcome = worlds.measured(100.0)
        assert outcome.measurement is not None
        return replace(outcome, measurement=replace(outcome.measurement, data_wait_share=None))

    trials = walked(blind, "workers", "precision")
    assert [trial.why for trial in trials[1:3]] == ["loader workers"] * 2


def read_waiting(rate: float, waits: tuple[float, ...]) -> Outcome:
    """Blocks of a second each that wait so long."""
    outcome = worlds.measured(rate, sum(waits) / len(waits))
    assert outcome.measurement is not None
    blocks = tuple(Block(rate, 16, 1.0, wait) for wait in waits)
    return replace(outcome, measurement=replace(outcome.measurement, blocks=blocks))


UNEVEN = (-0.28, -0.12, 0.0, 0.12, 0.28, -0.2, 0.2, -0.05, 0.05, 0.0)


@pytest.mark.parametrize(("scatter", "on_board"), [(1.0, False), (0.02, True)])
def test_a_gain_behind_the_wait_counts_as_far_as_the_wait_is_known(scatter: float, on_board: bool) -> None:
    """53% of the time against 42% at the same rate: 1.22x of computing, or nothing but uneven blocks."""

    def outcome(config: Config) -> Outcome:
        wait = 0.53 if "precision" in config else 0.42
        return read_waiting(100.0, tuple(wait + scatter * each for each in UNEVEN))

    tried = configs(walked(outcome, "precision", "compile"))
    assert ({"precision": "bf16", "compile": "max"} in tried) is on_board


def test_a_walk_seldom_ends_on_a_knob_that_brings_nothing() -> None:
    """It waits for half of its time, give or take a hundredth, at rates that are read to 0.7%."""
    built_on = 0
    for seed in range(40):
        chance = random.Random(f"nothing:{seed}")

        def outcome(config: Config, chance: random.Random = chance) -> Outcome:
            return worlds.measured(100.0 * (1 + chance.gauss(0, 0.007)), 0.5 + chance.gauss(0, 0.01))

        built_on += any(len(config) > 1 for config in configs(walked(outcome, "precision", "compile", "batch_size")))
    assert built_on < 10, "it was 26 of 40"


def test_of_configs_that_a_rotation_finds_equal_one_gets_a_trial() -> None:
    bf16, both, slower = Config(precision="bf16"), Config(precision="bf16", layout=True), Config(layout=True)
    gains = {bf16: 1.7, both: 1.69, slower: 1.5}
    rotated = tuple(Rotated(config, Ratio(gain, gain / 1.2, gain * 1.2), 5) for config, gain in gains.items())
    rotation = Trial(1, Phase.ROTATION, BASELINE, "", replace(worlds.measured(100.0), rotation=rotated))
    world = worlds.World(feed=1e9)
    trials = walked(lambda config: replace(world.outcome(config), knowledge=Knowledge()), before=(rotation,))
    assert configs(trials)[:2] == [bf16, slower]
    assert both not in configs(trials)


MANY = (0, 1, 2, 4, 8, 12, 16)


class Decoding(worlds.World):
    """Batches take ``feed`` to make in one worker; up to 16 work at once."""

    def truth(self, config: Config) -> tuple[float, float]:
        workers = int(self.value(config, "workers"))
        if not workers:
            return 1 / (1 / self.compute + 1 / self.feed), self.compute / (self.feed + self.compute)
        feed = self.feed * min(workers, 16)
        return min(feed, self.compute), max(0.0, 1 - feed / self.compute)


def decoders(written: int, cores: int) -> ResolvedSpace:
    """A space of numbers of workers alone."""
    knob = Knob(
        "workers", lambda known: MANY, "loader workers", ordered=True, loader=True, on_cores=True,
        keeps_up=workers_that_keep_up,
    )  # fmt: skip
    known = Known(worlds.DEVICE, cores, knowledge=Knowledge(as_written={**worlds.WRITTEN, "workers": written}))
    return resolve(SearchSpace("one", "none", (knob,)), known)


def tried_workers(world: worlds.World, *, written: int = 0, cores: int = 16) -> list[Trial]:
    """The trials of a walk through numbers of workers alone."""
    space = decoders(written, cores)
    trials = [Trial(0, Phase.BASELINE, BASELINE, "", world.outcome(Config(workers=written)))]
    while (proposal := StructuredSampler().propose(History(space, worlds.OBJECTIVE, trials))) is not None:
        outcome = world.outcome(Config({"workers": written, **proposal.config}))
        trials.append(Trial(len(trials), Phase.SEARCH, proposal.config, proposal.why, outcome))
    return trials


@pytest.mark.parametrize(
    ("feed", "written", "first", "wanted"), [(150.0, 0, 8, 7), (100.0, 2, 12, 10), (300.0, 1, 4, 4), (20.0, 0, 16, 50)]
)
def test_workers_begin_with_as_many_as_keep_up_with_the_loop(
    feed: float, written: int, first: int, wanted: int
) -> None:
    """By what a batch takes beside a step: not one after the other from the script's own number on."""
    tried = tried_workers(Decoding(feed=feed, compute=1000.0), written=written)
    assert tried[1].config == Config(workers=first)
    assert tried[1].why.endswith(f"{wanted} would keep up with it")
    assert len(tried) < 3 or tried[2].why != tried[1].why, "what the loop waited then isn't what it waits by now"
    assert not any("keep up" in trial.why for trial in tried[2:]), "those behind it are more than that"
    best = max(tried, key=lambda trial: trial.measurement.rate if trial.measurement is not None else 0.0)
    assert best.config == Config(workers=first)
    assert len(tried) <= 6, "no number loses anything here: it goes up to the last one"


class Busy(Decoding):
    """Up to ``most`` work at once; four and more leave no core idle, though most of them wait."""

    most = 16

    def truth(self, config: Config) -> tuple[float, float]:
        workers = int(self.value(config, "workers"))
        return super().truth(Config({**config, "workers": min(workers, self.most)}))

    def outcome(self, config: Config) -> Outcome:
        outcome = super().outcome(config)
        assert outcome.measurement is not None
        if int(self.value(config, "workers")) < 4:
            return outcome
        return replace(outcome, measurement=replace(outcome.measurement, cpu_s_per_sample=2 / outcome.measurement.rate))


class BusyWithFour(Busy):
    most = 4


@pytest.mark.parametrize(("world", "last"), [(Busy, 16), (BusyWithFour, 8)])
def test_more_workers_than_cores_are_tried_while_they_gain(world: type[Busy], last: int) -> None:
    """Busy cores don't tell whether workers wait for a store; twice as many that are faster by far do."""
    tried = tried_workers(world(feed=20.0, compute=1000.0), cores=2)
    assert max(trial.config["workers"] for trial in tried[1:]) == last


def test_where_the_guess_brings_nothing_the_others_are_tried_one_by_one() -> None:
    """A disk that two readers slow down, say: the wait tells nothing of that."""

    class Crowded(Decoding):
        def truth(self, config: Config) -> tuple[float, float]:
            workers = int(self.value(config, "workers"))
            rate, wait = super().truth(config)
            return (rate * 0.02, 0.9) if workers > 2 else (rate, wait)

    tried = tried_workers(Crowded(feed=150.0, compute=1000.0))
    assert [trial.config["workers"] for trial in tried[1:]] == [8, 12, 1, 2, 4]


def test_a_short_wait_or_few_cores_leave_nothing_to_skip() -> None:
    for world, cores in ((Decoding(feed=1100.0, compute=1000.0), 16), (Decoding(feed=100.0, compute=1000.0), 1)):
        assert tried_workers(world, cores=cores)[1].config == Config(workers=1)


def test_a_walk_of_so_many_trials_leaves_the_rest_to_others() -> None:
    """Counted are those of the search alone, by whomever: not the baseline, nor what a rotation ranked."""
    world = worlds.World(feed=300.0, compute=500.0)
    whole = walked(world.outcome)
    assert len(configs(whole)) > 4, "it goes on if it is let"
    for had, goes_on in ((3, True), (4, False)):
        history = History(worlds.resolved(), worlds.OBJECTIVE, whole[: 1 + had])
        assert (StructuredSampler(most_trials=4).propose(history) is not None) is goes_on


def test_what_a_rotation_ranked_does_not_shorten_the_walk() -> None:
    world = worlds.World(feed=300.0, compute=500.0)
    gains = {Config(precision="bf16"): 1.5, Config(layout=True): 1.2}
    rotated = tuple(Rotated(config, Ratio(gain, gain / 1.5, gain * 1.5), 5) for config, gain in gains.items())
    rotation = Trial(1, Phase.ROTATION, BASELINE, "", replace(worlds.measured(100.0), rotation=rotated))
    trials = [Trial(0, Phase.BASELINE, BASELINE, "", world.outcome(BASELINE)), rotation]
    while (proposal := StructuredSampler(2).propose(History(worlds.resolved(), worlds.OBJECTIVE, trials))) is not None:
        trials.append(Trial(len(trials), Phase.SEARCH, proposal.config, "", world.outcome(proposal.config)))
    ranked = [config for config in configs(trials) if config in gains]
    assert ranked and len(configs(trials)) == len(ranked) + 2


def test_more_workers_are_ruled_in_by_the_next_fewer_alone() -> None:
    """12 that are faster than 4 say nothing of whether more than 8 bring anything."""
    world, space = Busy(feed=20.0, compute=1000.0), decoders(0, 2)
    trials = [Trial(0, Phase.BASELINE, BASELINE, "", world.outcome(BASELINE))]
    for number, workers in enumerate((4, 12), 1):
        config = Config(workers=workers)
        trials.append(Trial(number, Phase.SEARCH, config, "", world.outcome(config)))
    history = History(space, worlds.OBJECTIVE, trials)
    assert history.is_ruled_out(Config(workers=16))
    eight = Trial(3, Phase.SEARCH, Config(workers=8), "", world.outcome(Config(workers=8)))
    assert not History(space, worlds.OBJECTIVE, [*trials, eight]).is_ruled_out(Config(workers=16))
