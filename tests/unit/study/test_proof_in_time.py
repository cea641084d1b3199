"""What is proven where the time isn't enough for the best candidate: by turns, on a made-up machine with a clock."""

from __future__ import annotations

import json
import math
import random
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from support import worlds
from support.ran import of
from support.turning import studied

from tuner.analysis.accuracy import AccuracyLimits
from tuner.analysis.stats import Noninferiority
from tuner.events import Event, Noted
from tuner.export import PROFILE
from tuner.knowledge import Knowledge
from tuner.model import Config, Outcome, Phase, Verdict
from tuner.report.summary import summary
from tuner.result import StudyResult
from tuner.runner.request import TrialRequest
from tuner.study import context
from tuner.study.lengths import FEWEST_SHORT_TURNS, SHORT_TURN_S
from tuner.study.plan import StudyPlan


def speeds(config: Config) -> float:
    """Two workers are half as fast again; with bf16, which needs a screen, twice as fast as the script as written."""
    gain = {0: 1.0, 2: 1.5}.get(int(config.get("workers", 0)), 0.9)
    return gain * {"fp32": 1.0, "bf16": 1.34}.get(str(config.get("precision", "fp32")), 0.5)


UNSCREENED = AccuracyLimits(max_loss_increase=None)
LATE_S = 100.0
"""What the search's last trial takes, so that its proof lacks time; all other runs take ten seconds."""


def seconds_of(request: TrialRequest) -> float:
    late = request.config.get("precision") == "fp16" or request.config.get("workers") == 4
    return LATE_S if late else 10.0


@pytest.mark.slow  # 2 s beside three others
@pytest.mark.parametrize("left_s", [90.0, 100.0, 108.0])
def test_a_candidate_whose_proof_fits_goes_before_a_better_one_whose_proof_may_not(
    tmp_path: Path, left_s: float
) -> None:
    """A screen and three rounds of the better one take about 114 s, as foreseen; three rounds of the other one 54 s."""
    budget_s = 3 * 10.0 + 2 * LATE_S + 10.0 + left_s
    limits = AccuracyLimits(samples=1000)  # ten seconds of training, whatever the budget is
    result, events = studied(tmp_path, speeds, seconds_of=seconds_of, budget_s=budget_s, trials=6, accuracy=limits)
    assert sum(trial.phase in (Phase.BASELINE, Phase.SEARCH) for trial in result.trials) == 6
    assert result.winner is not None and result.winner.verdict is Verdict.IMPROVED
    assert result.winner.config == {"workers": 2} and result.seconds <= budget_s
    assert any("--budget" in note.text and "precision=bf16" in note.text for note in of(events, Noted))
    late = result.lacked_time
    assert late is not None and late.config == late.first == {"workers": 2, "precision": "bf16"}
    said = summary(result, {}, "").splitlines()
    assert "no time was left to prove workers=2 precision=bf16: 2.01x the speed in a single trial" in said
    assert any(line.startswith(f"go on   the same command with --budget {late.budget_s / 60:.0f}m") for line in said)
    [document] = json.loads(PROFILE.serialize(result, None) or b"")["profiles"]
    assert document["lacked_time"]["config"] == {"workers": 2, "precision": "bf16"}


@pytest.mark.parametrize(("gain", "left_s"), [(1.5, 80.0), (1.5, 160.0), (1.2, 100.0)])
def test_a_candidate_whose_proof_fits_goes_before_one_that_takes_longer_without_a_screen(
    tmp_path: Path, gain: float, left_s: float
) -> None:
    """Three rounds of the better one, whose runs take a minute, are foreseen to take 198 s, of the other one 51 s:
    nothing was proven. Where not even three quarters of the time are left, it doesn't matter how much better it is.
    """

    def slow(request: TrialRequest) -> float:
        return 60.0 if request.config.get("precision") == "bf16" else 10.0

    def gains(config: Config) -> float:
        return gain if config == {"workers": 2} else speeds(config)

    budget_s = 4 * 10.0 + 60.0 + left_s
    result, events = studied(tmp_path, gains, seconds_of=slow, budget_s=budget_s, trials=5, accuracy=UNSCREENED)
    assert [trial.config.get("precision") for trial in result.trials if trial.phase is Phase.SEARCH][-1] == "bf16"
    assert result.winner is not None and result.winner.verdict is Verdict.IMPROVED
    assert result.winner.config == {"workers": 2} and result.seconds <= budget_s
    assert any("--budget" in note.text and "precision=bf16" in note.text for note in of(events, Noted))


def test_one_that_passed_its_screen_and_then_gives_way_is_named_with_the_budget_that_would_prove_it(
    tmp_path: Path,
) -> None:
    """Runs of its screen take twice as long as foreseen: 40 s are left for three rounds, which the other one fits in.
    Nothing said that it was found, and had passed.
    """

    def slow_screens(request: TrialRequest) -> float:
        is_screen = bool(request.window.until_samples)
        return 20.0 if is_screen and request.config.get("precision") == "bf16" else seconds_of(request)

    budget_s = 3 * 10.0 + 2 * LATE_S + 10.0 + 160.0
    limits = AccuracyLimits(samples=1000)
    result, events = studied(tmp_path, speeds, seconds_of=slow_screens, budget_s=budget_s, trials=6, accuracy=limits)
    both = Config(workers=2, precision="bf16")
    assert [(each.config, each.verdict) for each in result.screened] == [(both, Noninferiority.PASS)]
    assert result.winner is not None and result.winner.config == {"workers": 2}
    notes = [note.text for note in of(events, Noted)]
    assert any("--budget" in note and "precision=bf16" in note for note in notes)
    assert sum("workers=2 precision=bf16 gives way to workers=2:" in note for note in notes) == 1


@pytest.mark.parametrize("is_screened", [True, False])
def test_the_same_command_with_the_time_for_it_proves_what_was_named(tmp_path: Path, is_screened: bool) -> None:
    """The other one's finals had the first place for good, once they had been run: nothing more was."""

    def slow(request: TrialRequest) -> float:
        return 60.0 if request.config.get("precision") == "bf16" else 10.0

    def within(budget_s: float) -> StudyResult:
        limits = AccuracyLimits(samples=1000) if is_screened else UNSCREENED
        seconds = seconds_of if is_screened else slow
        return studied(
            tmp_path, speeds, seconds_of=seconds, budget_s=budget_s, trials=6 if is_screened else 5, accuracy=limits
        )[0]

    first = within(3 * 10.0 + 2 * LATE_S + 10.0 + 100.0 if is_screened else 4 * 10.0 + 60.0 + 100.0)
    assert first.winner is not None and first.winner.config == {"workers": 2}
    # What the first process spent is told by the wall clock, which the made-up machine hardly uses.
    late = within(1.0)
    assert late.winner == first.winner and len(late.trials) == len(first.trials)
    again = within(150.0 if is_screened else 260.0)
    assert again.winner is not None and again.winner.verdict is Verdict.IMPROVED
    assert again.winner.config == {"workers": 2, "precision": "bf16"}
    assert within(1.0).winner == again.winner


def test_a_screen_that_lacks_the_time_for_more_seeds_is_no_verdict_on_how_a_config_learns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three seeds leave open whether it learns as well, and there is no time for six."""
    usual, losses = worlds.measured, random.Random(3)

    def of_loose_losses(rate: float, wait: float) -> Outcome:
        """The last loss differs from seed to seed by some tenths of the way down."""
        outcome = usual(rate, wait)
        assert outcome.measurement is not None
        end = losses.uniform(0.6, 1.0)
        curve = worlds.series(2.0 - (2.0 - end) * step / 59 for step in range(60))
        return replace(outcome, measurement=replace(outcome.measurement, losses=(curve,)))

    monkeypatch.setattr(worlds, "measured", of_loose_losses)

    def within(budget_s: float) -> tuple[StudyResult, list[Event]]:
        return studied(
            tmp_path / f"{budget_s:.0f}", speeds, seconds_of=lambda request: 10.0, budget_s=budget_s, trials=4,
            accuracy=AccuracyLimits(samples=1000), selection=("precision",),
        )  # fmt: skip

    result, events = within(4 * 10.0 + 135.0)
    [screened] = result.screened
    assert (screened.verdict, screened.seeds, screened.lacked_time) == (Noninferiority.INCONCLUSIVE, 3, True)
    said = summary(result, {}, "")
    assert "not proven: no time left to compare how it learns" in said
    assert "3 seeds, 1,000 samples each, with no time left for more" in said
    named = next(note.text for note in of(events, Noted) if "--budget" in note.text)
    minutes = int(named.split("--budget ")[1].split("m ")[0])
    longer, _ = within(60.0 * minutes)
    assert [(one.seeds, one.lacked_time) for one in longer.screened] == [(6, False)]


def test_behind_one_that_fails_its_screen_the_next_that_lacks_time_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is fastest learns nothing; the next passes its screen, and has the time for one round."""
    usual = worlds.measured

    def of_losses(rate: float, wait: float) -> Outcome:
        outcome = usual(rate, wait)
        assert outcome.measurement is not None
        still = (worlds.series([2.0] * 60),)
        return replace(outcome, measurement=replace(outcome.measurement, losses=still)) if rate == 300.0 else outcome

    def gain_of(config: Config) -> float:
        return 3.0 if config == {"workers": 2, "precision": "fp16"} else speeds(config)

    monkeypatch.setattr(worlds, "measured", of_losses)
    result, events = studied(
        tmp_path, gain_of, seconds_of=lambda request: 10.0, budget_s=200.0, trials=9,
        accuracy=AccuracyLimits(samples=1000),
    )  # fmt: skip
    assert [(one.config["precision"], one.verdict) for one in result.screened] == [
        ("fp16", Noninferiority.FAIL), ("bf16", Noninferiority.PASS),
    ]  # fmt: skip
    notes = [note.text for note in of(events, Noted)]
    assert notes[0] == "not proven: no time left for 3 rounds of the finals of workers=2 precision=bf16"
    assert "--budget" in notes[1] and "workers=2 precision=bf16" in notes[1] and len(notes) == 2


def test_a_much_better_candidate_is_tried_all_the_same(tmp_path: Path) -> None:
    """What is foreseen may be too long, and the other one is hardly worth having."""

    def hardly(config: Config) -> float:
        return 1.02 if config == {"workers": 2} else speeds(config)

    budget_s = 3 * 10.0 + 2 * LATE_S + 10.0 + 100.0
    result, _ = studied(tmp_path, hardly, seconds_of=seconds_of, budget_s=budget_s, trials=6)
    assert any(trial.phase is Phase.SCREEN for trial in result.trials)


def test_finals_that_have_begun_go_on_though_three_rounds_of_another_would_fit(tmp_path: Path) -> None:
    """Three rounds more of the better one, whose runs take 20 s, would not, but one is enough."""
    stop, fresh = threading.Event(), list[TrialRequest]()

    def seconds(request: TrialRequest) -> float:
        by_config = {"bf16": 20.0, "fp32": 4.0 if request.config.get("workers") == 2 else seconds_of(request)}
        return by_config.get(str(request.config.get("precision", "fp32")), LATE_S)

    def until_the_third_round(request: TrialRequest) -> float:
        fresh.extend([request] if request.fresh else [])
        if request.config and request.fresh and len(fresh) > 5:
            stop.set()
        return seconds(request)

    budget_s = 10.0 + 10.0 + 4.0 + 20.0 + 2 * LATE_S + 185.0
    first, _ = studied(tmp_path, speeds, seconds_of=until_the_third_round, stop=stop, trials=6, budget_s=budget_s)
    begun = {trial.group for trial in first.trials if trial.phase is Phase.FINALS}
    assert first.interrupted and len(begun) == 1
    # What the first process spent is told by the wall clock, which the made-up machine hardly uses.
    again, _ = studied(tmp_path, speeds, seconds_of=seconds, trials=6, budget_s=65.0)
    assert {trial.group for trial in again.trials if trial.phase is Phase.FINALS} == begun
    assert again.winner is not None and again.winner.config.get("precision") == "bf16"


@pytest.mark.parametrize(("left_s", "rounds"), [(35.0, 0), (50.0, 1), (58.0, 3)])
def test_once_a_round_has_shown_what_rounds_take_nothing_is_begun_that_can_not_be_ended(
    tmp_path: Path, left_s: float, rounds: int
) -> None:
    """What is foreseen may be too long: one is begun. It took 20 s. The last one may end 3 s earlier."""
    budget_s = 3 * 10.0 + LATE_S + left_s
    result, events = studied(
        tmp_path, speeds, seconds_of=seconds_of, budget_s=budget_s, trials=4, selection=("workers",)
    )
    assert len({trial.round for trial in result.trials if trial.phase is Phase.FINALS}) == rounds
    lacks = any(note.text.startswith("not proven: no time left") for note in of(events, Noted))
    assert lacks is (rounds < 3)


@pytest.mark.slow  # 2 s beside three others
@pytest.mark.parametrize(("budget_s", "rounds"), [(460.0, 18), (None, 8)])
def test_undecided_finals_go_on_for_longer_than_usual_where_there_is_time(
    tmp_path: Path, budget_s: float | None, rounds: int
) -> None:
    """The error is divided by the looks that there may be: at five, eight, twelve and eighteen rounds."""
    chance, in_search = random.Random(1), [True] * 2

    def noisy(config: Config) -> float:
        """Each run asks twice: of its rate, and of that by turns."""
        if config != {"workers": 2}:
            return 0.5 if config else 1.0
        return 1.3 if in_search and in_search.pop() else 1.03 * math.exp(chance.choice([-0.2, 0.2]))

    result, _ = studied(
        tmp_path, noisy, seconds_of=lambda request: 10.0, budget_s=budget_s, trials=4, selection=("workers",),
        most_rounds=8,
    )  # fmt: skip
    assert len({trial.round for trial in result.trials if trial.phase is Phase.FINALS}) == rounds


def test_windows_of_finals_go_by_the_steps_of_the_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of an eighth of a second: fifteen of them, each a turn."""
    windows, usual = list[float](), worlds.measured

    def of_slow_steps(rate: float, wait: float) -> Outcome:
        outcome = usual(rate, wait)
        assert outcome.measurement is not None
        return replace(outcome, measurement=replace(outcome.measurement, steps_per_s=8.0))

    def noted(request: TrialRequest) -> float:
        windows.extend([request.window.max_s] if request.fresh and request.window.block_s == SHORT_TURN_S else [])
        return 10.0

    monkeypatch.setattr(worlds, "measured", of_slow_steps)
    monkeypatch.setattr(context, "turn_length_s", lambda *args, **kwargs: SHORT_TURN_S)
    studied(tmp_path, speeds, seconds_of=noted, trials=4, selection=("workers",))
    assert windows and {*windows} == {FEWEST_SHORT_TURNS / 8.0}


def test_turns_beside_workers_that_the_user_has_set_are_as_long_as_beside_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A turn has to hold some of the batches that they make; those of the script as written may be short."""
    turns = dict[bool, set[float]]()

    def length(plan: StudyPlan, knowledge: Knowledge, *, loads: bool = False) -> float:
        return plan.window.block_s if loads else SHORT_TURN_S

    def noted(request: TrialRequest) -> float:
        turns.setdefault("workers" in request.config, set()).add(request.window.block_s)
        return 10.0

    monkeypatch.setattr(context, "turn_length_s", length)
    studied(tmp_path, speeds, seconds_of=noted, trials=4, selection=("layout",), pinned=Config(workers=2))
    assert turns[True] == {worlds.plan(tmp_path).window.block_s}


def test_nothing_gives_way_to_what_earlier_finals_have_judged(tmp_path: Path) -> None:
    """Three rounds of bf16, whose runs take a minute, are foreseen to take 210 s. It was said to give way to two
    workers, which were proven before, and of which nothing more was run.
    """

    def slow(request: TrialRequest) -> float:
        return 60.0 if request.config.get("precision") == "bf16" else 10.0

    first, _ = studied(tmp_path, speeds, seconds_of=slow, budget_s=2000.0, trials=4, accuracy=UNSCREENED)
    assert first.winner is not None and first.improved and first.winner.config == {"workers": 2}
    again, events = studied(tmp_path, speeds, seconds_of=slow, budget_s=260.0, trials=6, accuracy=UNSCREENED)
    assert again.winner == first.winner and again.lacked_time is not None
    said = [note.text for note in of(events, Noted)]
    assert not any("gives way" in text for text in said)
    assert "not proven: no time left for 3 rounds of the finals of workers=2 precision=bf16" in said
    minutes = again.lacked_time.budget_s / 60
    last, _ = studied(tmp_path, speeds, seconds_of=slow, budget_s=60 * minutes, trials=6, accuracy=UNSCREENED)
    assert last.winner is not None and last.improved and last.winner.config == {"workers": 2, "precision": "bf16"}
