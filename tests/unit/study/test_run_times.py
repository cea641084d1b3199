"""What runs are foreseen to take: forked and fresh ones, in the finals and in screens."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from support import worlds

from search_spaces.torch import SPACE as TORCH
from tuner.analysis.accuracy import AccuracyLimits
from tuner.child.records import Window
from tuner.devices.cpu import cpu_device
from tuner.knowledge import Knowledge
from tuner.model import BASELINE, Block, Config, Outcome, Phase, Ratio, Reference, Trial
from tuner.runner.request import Limits
from tuner.space.declare import Known
from tuner.space.resolve import resolve
from tuner.study.lengths import FEWEST_SHORT_TURNS, SHORT_TURN_S, SLOWER, WARMUP_S, screen_lengths, screened_samples
from tuner.study.run_times import RunTimes
from tuner.study.study_time import larger_step

IMPORTS_S = 6.0
"""What a fork server is loaded in, and a fresh start takes as well."""
START_S = 2.0
"""Besides, what any trial starts in."""
WINDOW = Window(warmup_s=3.0, max_s=20.0)
MEASURED_S = 3.0
"""Of a search trial, and so many of the script as written beside it; the finals have as long a window."""
FAST, FP16, TWO = Config(precision="bf16"), Config(precision="fp16"), Config(precision="bf16", workers=4)
FRESH = Config(workers=2)


def outcome(seconds: float, *, rate: float = 100.0, spared_s: float = 0.0, beside: float | None = None) -> Outcome:
    """Of a run that was measured for three seconds; ``beside``: the rate of the script as written between its turns."""
    made = worlds.measured(rate)
    assert made.measurement is not None
    measurement = replace(
        made.measurement, blocks=(Block(rate * MEASURED_S, 12, MEASURED_S, 0.0),), spared_s=spared_s,
        first_step_s=IMPORTS_S + START_S,
        reference=None if beside is None else Reference(beside, Ratio(rate / beside, 0.9, 1.1), 10),
    )  # fmt: skip
    return replace(made, seconds=seconds, measurement=measurement)


BY_TURNS_S = START_S + WARMUP_S + 2 * SLOWER * MEASURED_S
"""What a forked trial takes whose server is there already."""
AS_WRITTEN = Trial(0, Phase.BASELINE, BASELINE, "", outcome(IMPORTS_S + START_S + 3.0 + MEASURED_S))


def forked(number: int, config: Config, *, loads: bool = False) -> Trial:
    """A search trial; ``loads``: whether it was the first one of its server."""
    seconds = BY_TURNS_S + (IMPORTS_S if loads else 0.0)
    return Trial(number, Phase.SEARCH, config, "", outcome(seconds, rate=200.0, spared_s=IMPORTS_S, beside=125.0))


def fresh(number: int, config: Config) -> Trial:
    return Trial(number, Phase.SEARCH, config, "", outcome(BY_TURNS_S + IMPORTS_S, beside=125.0, spared_s=0.0))


def times(*trials: Trial, cores: int = 2, by_turns: bool = True) -> RunTimes:
    plan = worlds.plan(Path("nowhere"), window=WINDOW, cores=cores, budget_s=300.0)
    return RunTimes(plan, (AS_WRITTEN, *trials), by_turns)


FORKED_S = START_S + WARMUP_S + SLOWER * MEASURED_S
"""Of a run in the finals, without the loading of its server."""


@pytest.mark.parametrize(("cores", "imports_s"), [(1, 2 * IMPORTS_S), (2, IMPORTS_S), (16, IMPORTS_S)])
def test_the_servers_of_a_round_are_loaded_at_once_where_there_are_cores(cores: int, imports_s: float) -> None:
    """A round of two fresh runs would take twice the imports: half a minute of three rounds that nobody needs."""
    found = times(forked(1, FAST, loads=True), forked(2, FP16), forked(3, FAST), cores=cores)
    assert found.round_s([BASELINE, FAST]) == pytest.approx(imports_s + 2 * FORKED_S)


def test_a_round_with_a_config_that_starts_fresh_has_all_of_them_fresh() -> None:
    found = times(forked(1, FAST), fresh(2, FRESH))
    fresh_s = IMPORTS_S + START_S + WARMUP_S + SLOWER * MEASURED_S
    assert found.round_s([BASELINE, FRESH]) == pytest.approx(2 * fresh_s, rel=0.1)
    assert found.round_s([BASELINE, FAST]) < found.round_s([BASELINE, FRESH])
    assert found.round_s([BASELINE, FAST, FRESH]) > found.round_s([BASELINE, FRESH]) + FORKED_S


def test_a_round_that_memory_keeps_apart_is_foreseen_with_the_windows_of_runs_by_themselves() -> None:
    """Of two beside the script as written; each of them alone fits beside it, and so did its trial. Windows have 10 s
    in place of 3, warm-ups 3 s in place of 1; and the script as written, whose window was cut at 7 s, has 3 s more.
    """
    found = replace(times(forked(1, FAST), forked(2, FP16)), together=lambda configs: len(configs) < 3)
    apart, usual = found.round_s([BASELINE, FAST, FP16]), times(*found.trials[1:]).round_s([BASELINE, FAST])
    assert found.round_s([BASELINE, FAST]) == usual
    alone_s = START_S + WINDOW.warmup_s + SLOWER * 10.0
    assert apart == pytest.approx(IMPORTS_S + START_S + WINDOW.warmup_s + MEASURED_S + 2 * alone_s, rel=0.05)
    own = AS_WRITTEN.outcome
    assert own is not None and own.measurement is not None
    cut = replace(own.measurement, blocks=(Block(700.0, 28, 7.0, 0.0),))
    whole = replace(own, measurement=cut, seconds=own.seconds + 4.0)
    longer = replace(found, trials=(replace(AS_WRITTEN, outcome=whole), *found.trials[1:]))
    fresh_s = IMPORTS_S + START_S + WINDOW.warmup_s + 10.0
    assert longer.round_s([BASELINE, FAST, FP16]) == pytest.approx(3 * fresh_s)


def test_rounds_take_what_rounds_took_once_there_was_one() -> None:
    run = [Trial(n, Phase.FINALS, one, "", outcome(9.0 + n), 1) for n, one in ((2, BASELINE), (3, FAST))]
    assert times(forked(1, FAST), *run).round_s([BASELINE, FAST]) == 11.0 + 12.0
    assert times(forked(1, FAST), *run).round_s([BASELINE, FAST], 30.0) == 11.0 + 30.0


def test_finals_by_short_turns_are_foreseen_to_take_less() -> None:
    """They were foreseen with windows of three seconds, for which the search ended too soon. With another loader turns
    are as long as ever.
    """
    found = times(forked(1, FAST), forked(2, TWO), forked(3, FP16))
    short = replace(found, turn_s=SHORT_TURN_S, loaders=frozenset({"workers"}))
    spared_s = SLOWER * (MEASURED_S - FEWEST_SHORT_TURNS * SHORT_TURN_S)
    assert found.round_s([BASELINE, FAST]) - short.round_s([BASELINE, FAST]) == pytest.approx(2 * spared_s)
    assert found.round_s([BASELINE, TWO]) == short.round_s([BASELINE, TWO])
    unforked = times(fresh(1, FAST))
    spares = unforked.round_s([BASELINE, FAST]) - replace(unforked, turn_s=SHORT_TURN_S).round_s([BASELINE, FAST])
    assert spares == pytest.approx(2 * spared_s)


def test_what_the_first_trial_of_a_server_waited_for_is_no_part_of_a_screen() -> None:
    """Nor of the finals, where servers are loaded at once: other trials tell what a start takes beside that."""
    first = times(forked(1, FAST, loads=True), forked(2, FP16), forked(3, TWO))
    assert first.screen_s(FAST, 1000) == pytest.approx(START_S + SLOWER * 1000 / 200.0)
    alone = times(forked(1, FAST, loads=True))
    assert alone.screen_s(FAST, 1000) == pytest.approx(IMPORTS_S + START_S + SLOWER * 1000 / 200.0), "rather too long"


def test_a_script_that_starts_slowly_by_itself_is_charged_with_that() -> None:
    """It reads its data for as long as its imports take, and longer."""
    for own_s in (IMPORTS_S, 3 * IMPORTS_S):
        both = (forked(1, FAST), forked(2, FP16))
        slow = [replace(t, outcome=replace(t.outcome, seconds=BY_TURNS_S + own_s)) for t in both if t.outcome]
        found = times(*slow)
        assert found.screen_s(FAST, 1000) == pytest.approx(START_S + own_s + SLOWER * 1000 / 200.0)
        assert found.round_s([BASELINE, FAST]) >= IMPORTS_S + 2 * FORKED_S + own_s


@pytest.mark.parametrize("compiler", ["compile", "compile_mode", "jit_compile"])
def test_a_config_that_compiles_is_charged_with_its_own_start(compiler: str) -> None:
    """With the start of the others its rounds would lack time at their end; the others are charged with theirs."""
    compiled = Config({compiler: True if compiler == "jit_compile" else "default"})
    slow = forked(1, compiled)
    assert slow.outcome is not None
    slow = replace(slow, outcome=replace(slow.outcome, seconds=BY_TURNS_S + 12.0))
    found = times(slow, forked(2, FAST), forked(3, FP16))
    assert found.round_s([BASELINE, compiled]) == pytest.approx(IMPORTS_S + 2 * FORKED_S + 12.0)
    assert found.round_s([BASELINE, FAST]) == pytest.approx(IMPORTS_S + 2 * FORKED_S)


def test_the_script_as_written_is_screened_at_the_rate_that_it_has_once_files_are_warm() -> None:
    """Its first run had 100 a second, and beside the trials of the search it has 125."""
    found = times(forked(1, FAST), forked(2, FP16))
    assert found.screen_s(BASELINE, 1000) == pytest.approx(START_S + SLOWER * 1000 / 125.0)


@pytest.mark.parametrize(
    ("budget_s", "samples"), [(None, 1000), (1800.0, 1000), (500.0, 1000), (300.0, 600), (60.0, 375)]
)
def test_screens_of_short_studies_are_shorter_but_never_under_their_fewest_steps(
    tmp_path: Path, budget_s: float | None, samples: int
) -> None:
    """At a hundred samples a second, and sixteen steps: sixty of these are 375 samples."""
    assert screen_lengths(worlds.plan(tmp_path, budget_s=budget_s), AS_WRITTEN)[0] == samples


def test_a_start_that_takes_half_of_the_time_of_a_trial_leaves_the_other_half_to_a_screen(tmp_path: Path) -> None:
    """Of several ranks, which start anew beside others at work: a config that trains half as fast starts as they do.

    What comes between steps has to fit in as well.
    """
    made = outcome(66.0)
    assert made.measurement is not None
    slow = replace(AS_WRITTEN, outcome=replace(made, measurement=replace(made.measurement, first_step_s=60.0)))
    assert screen_lengths(worlds.plan(tmp_path, limits=Limits(trial_timeout_s=120.0)), slow) == (1000, 2608)


RATE = 100.17
"""Lengths have fractions of samples, as real ones do."""


def odd(budget_s: float, recorded: tuple[int, ...] = (), larger_step: int = 0) -> tuple[int, ...]:
    """The lengths of screens of a study whose script has that rate."""
    as_written = replace(AS_WRITTEN, outcome=outcome(14.0, rate=RATE))
    plan = worlds.plan(Path("nowhere"), budget_s=budget_s)
    return screen_lengths(plan, as_written, larger_step, recorded)


def test_what_was_compared_stays_compared_whatever_the_budget_becomes() -> None:
    """Screens that aren't found again are run again, and where there is no time for them a proof is lost."""
    assert screened_samples([AS_WRITTEN]) == frozenset()
    first = odd(1800.0)
    assert first == (1001, 4006), "as versions before this one had them"
    for budget_s in (60.0, 300.0, 1800.0):
        assert odd(budget_s, first) == first
        assert odd(budget_s, first[:1]) in (first, (1001, 4004))
    short = odd(300.0)
    assert short == (601, 2404)
    assert odd(1800.0, short) == odd(300.0, short) == short


def test_a_screen_that_is_too_short_or_was_for_larger_steps_sets_no_length() -> None:
    """Of ``--screen-samples 128``, once; of a larger batch, whose steps have 512 samples."""
    assert odd(1800.0, (128,)) == odd(1800.0)
    assert odd(1800.0, (10_240,)) == odd(1800.0)
    assert odd(1800.0, (200, 1001)) == odd(1800.0)
    assert odd(1800.0, (601, 2404), larger_step=64)[0] == 64 * 20


@pytest.mark.parametrize("ranks", [1, 4])
def test_a_larger_step_holds_the_samples_of_all_ranks(ranks: int) -> None:
    """A screen is as many samples as all of them have trained on: of four ranks it had five steps of a larger batch."""
    known = Known(cpu_device(), 2, knowledge=Knowledge(as_written={"batch_size": 32}), ranks=ranks)
    space = resolve(TORCH, known)
    assert larger_step(Config(batch_size=128), space) == 128 * ranks
    assert larger_step(Config(batch_size=32), space) == larger_step(Config(batch_size=128), None) == 0


def test_metrics_of_the_users_own_have_the_usual_length(tmp_path: Path) -> None:
    """They may come once an epoch."""
    bounded = AccuracyLimits(max_metric_drop={"accuracy": 0.01})
    assert screen_lengths(worlds.plan(tmp_path, budget_s=300.0, accuracy=bounded), AS_WRITTEN)[0] == 1000
