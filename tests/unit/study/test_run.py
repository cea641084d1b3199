"""The study's loop on a made-up machine: its order, its bounds, its answers, and what it refuses."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from support import worlds
from support.ran import SEARCHED, Ran, of

from tuner.errors import InfrastructureError, StudyMismatchError, UnknownKnobError, UntunableError, UserScriptError
from tuner.events import (
    FinalsStarted,
    Noted,
    PairFinished,
    SpaceResolved,
    StudyFinished,
    StudyStarted,
    TrialFinished,
    TrialStarted,
)
from tuner.model import BASELINE, CardUse, Config, Outcome, OutcomeKind, Phase, Script, Verdict
from tuner.runner.request import Limits
from tuner.space.choose import Spaces
from tuner.study import execution


def test_a_study_finds_and_proves_the_gain(tmp_path: Path) -> None:
    world = worlds.World(noise=0.01)
    ran = Ran(worlds.plan(tmp_path, finals_rounds=8), world.outcome)
    winner = ran.result.winner
    assert winner is not None
    assert winner.verdict is Verdict.IMPROVED
    truth = world.truth(winner.config)[0] / world.truth(BASELINE)[0]
    assert winner.speedup.low < truth < winner.speedup.high
    assert truth > 4
    assert ran.configs[0] == {}
    assert not ran.result.interrupted


def test_what_is_noticed_in_the_script_as_written_is_told_once(tmp_path: Path) -> None:
    def outcome(config: Config) -> Outcome:
        measured = worlds.World().outcome(config)
        knowledge = replace(measured.knowledge, remarks=("it is traced anew with every step",))
        return replace(measured, knowledge=knowledge)

    told = [
        event.text
        for trials in (3, 4)  # the second study resumes the first one
        for event in of(Ran(worlds.plan(tmp_path, trials=trials), outcome).events, Noted)
    ]
    assert told.count("as written: it is traced anew with every step") == 1


def test_a_window_that_ended_early_is_told_of_the_script_as_written(tmp_path: Path) -> None:
    """Its rate may be that of a warm-up, and "unsteady" alone says that it had a trend."""

    def outcome(config: Config) -> Outcome:
        return replace(worlds.World().outcome(config), detail="the script ended before the window was complete")

    notes = [event.text for event in of(Ran(worlds.plan(tmp_path, trials=2), outcome).events, Noted)]
    told = "as written: the script ended before the window was complete: its rate is a rough one"
    assert notes.count(told) == 1


def test_events_come_in_order(tmp_path: Path) -> None:
    events = Ran(worlds.plan(tmp_path, trials=4), worlds.World().outcome).events
    kinds = [type(event) for event in events]
    assert kinds[:4] == [StudyStarted, TrialStarted, TrialFinished, SpaceResolved]
    assert kinds[-1] is StudyFinished
    assert len(of(events, TrialStarted)) == len(of(events, TrialFinished))
    search = kinds.index(FinalsStarted)
    assert kinds[4:search] == [TrialStarted, TrialFinished] * 3
    finals: FinalsStarted = of(events, FinalsStarted)[0]
    assert len(of(events, PairFinished)) == finals.rounds * len(finals.candidates)


def test_the_number_of_trials_bounds_baseline_and_search(tmp_path: Path) -> None:
    trials = Ran(worlds.plan(tmp_path, trials=7), worlds.World().outcome).result.trials
    assert sum(t.phase in SEARCHED for t in trials) == 7


def test_a_study_that_is_done_is_not_run_again(tmp_path: Path) -> None:
    first = Ran(worlds.plan(tmp_path, trials=6), worlds.World(noise=0.02).outcome)
    again = Ran(worlds.plan(tmp_path, trials=6), worlds.World().outcome)
    assert again.configs == []
    assert again.result.winner == first.result.winner
    assert again.result.trials == first.result.trials


def test_more_trials_continue_a_study_and_hold_new_finals(tmp_path: Path) -> None:
    Ran(worlds.plan(tmp_path, trials=3), worlds.World().outcome)
    more = Ran(worlds.plan(tmp_path, trials=10), worlds.World().outcome)
    assert sum(t.phase in SEARCHED for t in more.result.trials) == 10
    resumed = next(trial for trial in more.result.trials if trial.phase is Phase.ANCHOR)
    assert more.configs[0] == resumed.config == {}, "what comes after a pause is held against a baseline of its own"
    finals = {trial.group for trial in more.result.trials if trial.phase is Phase.FINALS}
    assert more.result.winner is not None
    assert len(finals) == 2


def test_nothing_helps_is_an_answer(tmp_path: Path) -> None:
    ran = Ran(worlds.plan(tmp_path, trials=6), lambda config: worlds.measured(100.0 if not config else 90.0))
    assert ran.result.winner is None
    assert ran.result.best is not None
    assert ran.result.best.config == {}


def test_a_lucky_trial_does_not_become_the_winner(tmp_path: Path) -> None:
    seen: list[Config] = []

    def lucky_once(config: Config) -> Outcome:
        seen.append(config)
        return worlds.measured(200.0 if len(seen) == 3 else 100.0 + len(seen) % 3)

    winner = Ran(worlds.plan(tmp_path, trials=5, finals_rounds=5), lucky_once).result.winner
    assert winner is not None
    assert winner.verdict is Verdict.KEEP_BASELINE


@pytest.mark.parametrize(
    ("outcome", "error", "says"),
    [
        (Outcome(OutcomeKind.USER_ERROR, "script-raised", "ValueError: no data", "..."), UserScriptError, "no data"),
        (Outcome(OutcomeKind.USER_ERROR, "no-step", "without a training step"), UntunableError, "training step"),
        (Outcome(OutcomeKind.INFEASIBLE, "nan", "its loss is nan"), UntunableError, "nan"),
        (Outcome(OutcomeKind.TIMED_OUT, "deadline", "not through after 120 s"), UntunableError, "120 s"),
        (Outcome(OutcomeKind.CRASHED, "signal-segv", "died of SIGSEGV"), UserScriptError, "fails by itself: .*SIGSEGV"),
    ],
)
def test_a_baseline_without_a_figure_ends_the_study(
    tmp_path: Path, outcome: Outcome, error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        Ran(worlds.plan(tmp_path), lambda config: outcome)
    # Whatever it was may have been mended: the same command tries again.
    again = Ran(worlds.plan(tmp_path, trials=2), worlds.World().outcome)
    assert again.configs[0] == {}
    assert [trial.number for trial in again.result.trials][:2] == [0, 1]


def ended_twice_by(fault: Outcome) -> Callable[[Config], Outcome]:
    """The second and the third run end so."""
    attempts = itertools.count(1)
    return lambda config: fault if next(attempts) in (2, 3) else worlds.World().outcome(config)


def test_the_machine_gets_three_attempts(tmp_path: Path) -> None:
    fault = Outcome(OutcomeKind.INFRASTRUCTURE, "no-start", "could not start")
    result = Ran(worlds.plan(tmp_path / "a", trials=3), ended_twice_by(fault)).result
    assert all(t.outcome is not None and t.outcome.kind is not OutcomeKind.INFRASTRUCTURE for t in result.trials)
    with pytest.raises(InfrastructureError, match="3 attempts"):
        Ran(worlds.plan(tmp_path / "b"), lambda config: fault)


def test_a_machine_that_others_filled_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execution, "MEMORY_PAUSE_S", 0.01)
    full = Outcome(OutcomeKind.INFRASTRUCTURE, "machine-full", "other processes hold 60 GiB")
    result = Ran(worlds.plan(tmp_path / "a", trials=3), ended_twice_by(full)).result
    assert all(trial.outcome is not None and trial.outcome.reason != "machine-full" for trial in result.trials)
    with pytest.raises(InfrastructureError, match="memory was full 3 times: other processes hold 60 GiB") as caught:
        Ran(worlds.plan(tmp_path / "b"), lambda config: full)
    assert "end what takes the memory" in caught.value.hint


def test_a_study_of_something_else_is_refused_with_the_difference(tmp_path: Path) -> None:
    Ran(worlds.plan(tmp_path, trials=2), worlds.World().outcome)
    for change, shown in (
        ({"script": Script("train.py", ("--lr", "1"), sha256="0" * 64)}, "script.argv"),
        ({"software": {"python": "4"}}, "software.python: 3 → 4"),
        ({"pinned": {"workers": 2}}, "space.pinned"),
    ):
        with pytest.raises(StudyMismatchError, match=shown):
            Ran(worlds.plan(tmp_path, trials=2, **change), worlds.World().outcome)


def test_the_same_command_studies_a_script_that_failed_and_was_mended(tmp_path: Path) -> None:
    """It was told to mend it and to run the same command again, and that was refused as a study of another script."""
    failed = Outcome(OutcomeKind.USER_ERROR, "script-raised", "SyntaxError: invalid syntax")
    with pytest.raises(UserScriptError):
        Ran(worlds.plan(tmp_path, trials=2), lambda config: failed)
    mended = worlds.plan(tmp_path, trials=2, script=Script("train.py", (), sha256="1" * 64))
    assert Ran(mended, worlds.World().outcome).result.best is not None
    with pytest.raises(StudyMismatchError, match="sha256"):
        Ran(worlds.plan(tmp_path, trials=2), worlds.World().outcome)


def test_a_study_that_died_with_a_trial_stays_that_of_its_script(tmp_path: Path) -> None:
    """What the trial came to may lie on disk: it would pass for the other script's."""

    def dies(config: Config) -> Outcome:
        raise SystemExit

    with pytest.raises(SystemExit):
        Ran(worlds.plan(tmp_path, trials=2), dies)
    with pytest.raises(StudyMismatchError, match="sha256"):
        Ran(worlds.plan(tmp_path, script=Script("train.py", (), sha256="1" * 64)), worlds.World().outcome)


def test_a_space_whose_values_changed_is_refused(tmp_path: Path) -> None:
    Ran(worlds.plan(tmp_path, trials=2), worlds.World().outcome)
    knobs = (replace(worlds.SPACE.knobs[0], choices=lambda known: [0, 3]), *worlds.SPACE.knobs[1:])
    changed = worlds.plan(tmp_path, trials=2, spaces=Spaces((replace(worlds.SPACE, knobs=knobs),)))
    with pytest.raises(StudyMismatchError, match="workers"):
        Ran(changed, worlds.World().outcome)


def test_unknown_knobs_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UnknownKnobError, match="wrokers"):
        Ran(worlds.plan(tmp_path, selection=("wrokers",)), worlds.World().outcome)


def test_pinned_knobs_are_in_every_config_but_the_baseline(tmp_path: Path) -> None:
    ran = Ran(worlds.plan(tmp_path, trials=6, pinned=Config(workers=2)), worlds.World().outcome)
    assert ran.configs[0] == {}
    assert ran.configs[1] == {"workers": 2}
    assert all(config.get("workers", 2) == 2 for config in ran.configs)


def test_failures_are_kept_out_of_the_finals_and_out_of_the_answer(tmp_path: Path) -> None:
    ran = Ran(worlds.plan(tmp_path, trials=20), worlds.World(fits=64).outcome)
    assert any(t.outcome is not None and t.outcome.reason == "device-oom" for t in ran.result.trials)
    assert ran.result.winner is not None
    assert "batch_size" not in ran.result.winner.config


def test_a_device_over_its_limit_is_infeasible_but_never_the_script_as_written(tmp_path: Path) -> None:
    def hungry(config: Config) -> Outcome:
        outcome = worlds.World().outcome(config)
        if outcome.measurement is None:
            return outcome
        return replace(outcome, measurement=replace(outcome.measurement, peak_device_bytes=2_000))

    limits = Limits(max_device_bytes=1_000)
    result = Ran(worlds.plan(tmp_path, trials=5, limits=limits), hungry).result
    assert result.trials[0].outcome is not None and result.trials[0].outcome.complete
    assert {t.outcome.reason for t in result.trials[1:] if t.outcome is not None} <= {"device-oom", "nan"}
    assert not any(t.outcome is not None and t.outcome.complete for t in result.trials[1:])
    assert result.winner is None


@pytest.mark.parametrize("peak", [500, None])
def test_a_limit_that_binds_nobody_is_said_to(tmp_path: Path, peak: int | None) -> None:
    def outcome(config: Config) -> Outcome:
        given = worlds.World().outcome(config)
        measurement = given.measurement
        return replace(given, measurement=measurement and replace(measurement, peak_device_bytes=peak))

    ran = Ran(worlds.plan(tmp_path, trials=2, limits=Limits(max_device_bytes=1_000)), outcome)
    notes = [event.text for event in of(ran.events, Noted)]
    assert any("no config is held to the limit of 1000 B" in note for note in notes) is (peak is None)


def test_stopping_gives_the_best_so_far_and_goes_on_next_time(tmp_path: Path) -> None:
    stop = threading.Event()
    world = worlds.World()
    seen: list[Config] = []

    def until_the_fifth(config: Config) -> Outcome:
        seen.append(config)
        if len(seen) == 5:
            stop.set()
        return world.outcome(config)

    stopped = Ran(worlds.plan(tmp_path, trials=12), until_the_fifth, stop).result
    assert stopped.interrupted
    assert stopped.winner is None
    assert stopped.best is not None and stopped.best_gain is not None and stopped.best_gain > 1
    resumed = Ran(worlds.plan(tmp_path, trials=12), world.outcome).result
    assert not resumed.interrupted
    assert resumed.trials[:4] == stopped.trials[:4]
    searched = [t.config for t in resumed.trials if t.phase in SEARCHED]
    assert len(searched) == len(set(searched)) == 12


def test_a_search_in_which_nothing_works_ends_early(tmp_path: Path) -> None:
    def only_the_baseline(config: Config) -> Outcome:
        return worlds.World().outcome(config) if not config else worlds.infeasible("unsupported")

    result = Ran(worlds.plan(tmp_path, trials=200), only_the_baseline).result
    assert len(result.trials) < 20
    assert result.winner is None


def test_placeholders_reach_the_script_and_the_space(tmp_path: Path) -> None:
    script = Script("train.py", ("--width={width=8|16|32}", "--layout", "{layout}"), sha256="0" * 64)

    def by_width(config: Config) -> Outcome:
        return worlds.measured(float(config.get("width", 8)))

    ran = Ran(worlds.plan(tmp_path, trials=8, script=script, selection=("width", "layout")), by_width)
    assert ran.runner.requests[0].script.argv == ("--width=8",)
    assert ran.result.winner is not None
    assert ran.result.winner.config == {"width": 32}
    widest = next(r for r in ran.runner.requests if r.config == {"width": 32})
    assert widest.script.argv == ("--width=32",)
    assert widest.knowledge.placeholders == ("width", "layout")


@pytest.mark.slow  # 2 s beside three others
def test_the_baseline_is_measured_again_and_again(tmp_path: Path) -> None:
    trials = Ran(worlds.plan(tmp_path, trials=20, anchor_every=4), worlds.World().outcome).result.trials
    phases = [trial.phase for trial in trials if trial.phase is not Phase.FINALS]
    anchors = [number for number, phase in enumerate(phases) if phase is Phase.ANCHOR]
    assert anchors == [5, 10, 15, 20]
    assert all(trials[number].config == {} for number in anchors)


def test_a_drifting_machine_does_not_choose_the_winner(tmp_path: Path) -> None:
    """Everything speeds up by 4% a trial: without anchors each later trial would look better than all before."""
    told: list[Config] = []

    def drifting(config: Config) -> Outcome:
        told.append(config)
        speed = 100.0 * 1.04 ** len(told)
        return worlds.measured(speed * (1.3 if config == {"precision": "bf16"} else 1.0))

    ran = Ran(worlds.plan(tmp_path, trials=16, anchor_every=3), drifting)
    assert ran.result.best is not None
    assert ran.result.best.config == {"precision": "bf16"}
    assert any("drifted" in note.text for note in of(ran.events, Noted))


def test_a_disturbed_trial_is_measured_again_and_the_calmer_one_counts(tmp_path: Path) -> None:
    turns: list[float] = [0.0, 3.0, 0.1, 3.0, 2.0, 0.0]

    def disturbed(config: Config) -> Outcome:
        foreign = turns.pop(0) if turns else 0.0
        outcome = worlds.measured(100.0 - 10 * foreign)
        assert outcome.measurement is not None
        return replace(outcome, measurement=replace(outcome.measurement, foreign_cpus=foreign))

    ran = Ran(worlds.plan(tmp_path, trials=4), disturbed)
    rates = [t.outcome.measurement.rate for t in ran.result.trials[:4] if t.outcome and t.outcome.measurement]
    assert rates == [100.0, 99.0, 80.0, 100.0]
    assert sum("measured again" in note.text for note in of(ran.events, Noted)) == 2
    assert [request.folder.name for request in ran.runner.requests[:5]] == ["0000", "0001", "0001", "0002", "0002"]


def test_a_trial_on_a_card_that_was_too_hot_is_measured_again(tmp_path: Path) -> None:
    turns = [0x4, 0x24, 0x4, 0x24, 0x20]

    def heated(config: Config) -> Outcome:
        reasons = turns.pop(0) if turns else 0x4
        outcome = worlds.measured(50.0 if reasons & 0x20 else 100.0)
        assert outcome.measurement is not None
        card = CardUse(5, 1755, 1740, 88, reasons, 0, None)
        return replace(outcome, measurement=replace(outcome.measurement, card=card))

    ran = Ran(worlds.plan(tmp_path, trials=4), heated)
    rates = [t.outcome.measurement.rate for t in ran.result.trials[:4] if t.outcome and t.outcome.measurement]
    assert rates == [100.0, 100.0, 50.0, 100.0]
    assert sum("measured again: the card was slowed down: heat" in note.text for note in of(ran.events, Noted)) == 2


@pytest.mark.slow  # 2 s beside three others
def test_a_machine_that_is_always_busy_is_taken_as_it_is(tmp_path: Path) -> None:
    def busy(config: Config) -> Outcome:
        outcome = worlds.measured(200.0 if "precision" in config else 100.0)
        assert outcome.measurement is not None
        return replace(outcome, measurement=replace(outcome.measurement, foreign_cpus=4.0))

    ran = Ran(worlds.plan(tmp_path, trials=10), busy)
    assert len(ran.configs) == len(ran.result.trials) + 3
    assert any("stays busy" in note.text for note in of(ran.events, Noted))
    assert ran.result.winner is not None
    assert ran.result.winner.verdict is Verdict.KEEP_BASELINE
    assert "busy" in ran.result.winner.label


def test_undecided_finals_get_more_rounds(tmp_path: Path) -> None:
    turns: dict[bool, int] = {True: 0, False: 0}

    def close(config: Config) -> Outcome:
        turns[bool(config)] += 1
        wobble = 0.05 * (-1) ** turns[True] if config else 0.0
        return worlds.measured(100.0 * (1.06 + wobble if config else 1.0))

    plan = worlds.plan(tmp_path, trials=2, finals_rounds=5, most_rounds=9)
    ran = Ran(plan, close)
    assert ran.result.winner is not None
    assert ran.result.winner.runs > 5
    assert sum("more rounds" in note.text for note in of(ran.events, Noted)) >= 1
    again = Ran(plan, close)
    assert again.configs == []
    assert again.result.winner == ran.result.winner
