"""What stands of a study that is stopped: what a look at its finals has proven, and trials that it was stopped in."""

from __future__ import annotations

import itertools
import json
import math
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from support import worlds
from support.life_of_finals import groups, plan
from support.overhead import Overhead, studied
from support.ran import Ran, of

from tuner.errors import DeviceBusyError
from tuner.events import Noted
from tuner.export import PROFILE
from tuner.model import Config, Outcome, Phase, Verdict
from tuner.report.summary import summary
from tuner.storage.lock import DeviceLock
from tuner.study.trials import MOST_STARTS

BF16 = Config(precision="bf16")


def rough(stop: threading.Event, runs: int, *, lucky: int = -1) -> Callable[[Config], Outcome]:
    """bf16 is twice as fast, give or take a tenth: five rounds prove that, and don't tell how fast it is. The study is
    stopped in the run of it that comes after so many; the single run of number ``lucky`` is five times as fast.
    """
    noise, counts = itertools.cycle((0.1, -0.1)), Counter[Config]()

    def outcome(config: Config) -> Outcome:
        counts[config] += 1
        if counts[BF16] > runs:
            stop.set()
        gain = 5.0 if counts.total() - 1 == lucky else 2.0 * math.exp(next(noise)) if config == BF16 else 0.97
        return worlds.measured(100.0 * (gain if config else 1.0))

    return outcome


def rounds(ran: Ran) -> set[int | None]:
    return {trial.round for trial in ran.result.trials if trial.phase is Phase.FINALS and trial.config}


@pytest.mark.slow  # 2 s beside three others
def test_what_a_look_has_proven_stands_where_the_rounds_after_it_are_stopped(tmp_path: Path) -> None:
    """The study said "proven, and there is time to know it better", and, once it was stopped then, that nothing is."""
    study, stop = plan(tmp_path, 2), threading.Event()
    stopped = Ran(study, rough(stop, 7), stop)
    assert stopped.result.interrupted and rounds(stopped) == {*range(1, 7)}
    notes = [note.text for note in of(stopped.events, Noted)]
    assert notes[-2:] == [
        "proven, and there is time to know it better: 3 more rounds",
        "proven by 5 rounds: stopped after 6 of 8 rounds of the finals",
    ]
    winner = stopped.result.winner
    assert winner is not None and (winner.verdict, winner.config, winner.runs) == (Verdict.IMPROVED, BF16, 5)
    assert summary(stopped.result, {}, "").startswith("faster: precision=bf16")
    [document] = json.loads(PROFILE.serialize(stopped.result, None) or b"")["profiles"]
    assert document["config"] == {"precision": "bf16"} and document["runs"] == 5
    again = Ran(study, rough(threading.Event(), 1000)).result
    assert again.winner is not None and again.winner.verdict is Verdict.IMPROVED and again.winner.runs > 5


def test_it_stands_as_well_where_the_search_goes_on_and_others_have_their_finals(tmp_path: Path) -> None:
    stop = threading.Event()
    first = Ran(plan(tmp_path, 2), rough(stop, 7), stop).result
    later = Ran(plan(tmp_path, 4), rough(threading.Event(), 1000, lucky=1)).result
    assert len(groups(later.trials)) == 2, "the lucky one had its finals"
    assert later.winner == first.winner
    [begun] = groups(first.trials)
    still = {trial.round for trial in later.trials if trial.group == begun}
    assert still == {*range(1, 7)}, "what was stopped waits for these finals to go on, and takes no others' time"


@pytest.mark.slow  # 6 s beside three others
def test_so_does_the_proof_of_a_larger_batch(tmp_path: Path) -> None:
    world = replace(Overhead(), scatter=0.1)
    whole = studied(tmp_path / "whole", world)
    finals = [trial for trial in whole.result.trials if trial.phase is Phase.FINALS]
    assert whole.result.larger is not None and whole.result.larger.proven
    looks = [note.text for note in of(whole.events, Noted) if note.text.startswith("proven, and there is time")]
    assert looks and max(trial.round or 0 for trial in finals) > 6
    seventh = next(place for place, request in enumerate(whole.requests) if request.folder.name.endswith(
        str(next(trial.number for trial in finals if trial.round == 7))
    ))  # fmt: skip
    stopped = studied(tmp_path / "stopped", world, stop_at=seventh + 1).result
    assert stopped.interrupted and stopped.larger is not None
    assert stopped.larger.proven and stopped.larger.winner is not None and stopped.larger.winner.runs == 5
    assert not stopped.larger.why and "apply tier 3" in summary(stopped, {"result": "best.json"}, "best.json")


def test_a_trial_that_is_stopped_at_once_again_and_again_is_not_taken_for_the_cause(tmp_path: Path) -> None:
    """A second Ctrl-C counted as a death of the study: after three of them the config was told to have crashed."""
    presses = [MOST_STARTS]

    def outcome(config: Config) -> Outcome:
        if config and presses[0]:
            presses[0] -= 1
            raise KeyboardInterrupt
        return worlds.measured(200.0 if config == BF16 else 100.0)

    for _ in range(MOST_STARTS):
        with pytest.raises(KeyboardInterrupt):
            Ran(plan(tmp_path, 2), outcome)
    result = Ran(plan(tmp_path, 2), outcome).result
    assert presses == [0] and result.improved
    assert all(trial.outcome is not None and trial.outcome.complete for trial in result.trials)


def test_a_study_that_is_refused_since_the_device_is_busy_leaves_no_folder(tmp_path: Path) -> None:
    device, folder = worlds.device("busy"), tmp_path / "study"
    with DeviceLock(device, "another"), pytest.raises(DeviceBusyError):
        Ran(worlds.plan(folder, device=device), worlds.World().outcome)
    assert not folder.exists()
