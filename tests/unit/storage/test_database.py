"""The repository: what is stored comes back, once and only once, and every fault names the database."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tuner.errors import StorageError
from tuner.knowledge import Knowledge
from tuner.model import (
    BASELINE,
    Block,
    Config,
    Evidence,
    KnobReport,
    LossSeries,
    Measurement,
    Outcome,
    OutcomeKind,
    Phase,
    Side,
    Value,
)
from tuner.storage.database import NewTrial, Repository, TrialState
from tuner.storage.schema import SCHEMA_VERSION

MEASURED = Measurement(
    rate=100.0, low=98.0, high=math.inf, steps_per_s=3.0, unit="samples", data_wait_share=0.25,
    blocks=(Block(32.0, 1, 0.32, 0.08), Block(32.0, 1, 0.33, 0.07)), peak_host_bytes=2**33, peak_device_bytes=0,
    first_step_s=1.5, compile_s=0.0, losses=(LossSeries("train.py:9", "", ((32.0, 2.3), (64.0, math.nan))),),
    steady=True, cpu_s_per_sample=0.01,
    foreign_cpus=0.1, knobs=(KnobReport("num_workers", 2, 1, 1, Evidence.VERIFIED, observed=2),),
    metrics={"accuracy": 0.9}, notes=("ä note",),
)  # fmt: skip
DONE = Outcome(OutcomeKind.COMPLETE, measurement=Measurement(**{**vars(MEASURED), "losses": ()}), seconds=4.5)
FAILED = Outcome(OutcomeKind.INFEASIBLE, "out-of-memory", "no memory left", knowledge=Knowledge(free_host_bytes=2**40))


@pytest.fixture
def repository(tmp_path: Path) -> Iterator[Repository]:
    opened = Repository(f"sqlite:///{tmp_path / 'study.db'}")
    yield opened
    opened.close()


@pytest.fixture
def study(repository: Repository) -> int:
    return repository.create_study("train", {"script": "train.py"}).id


def test_a_study_comes_back_after_reopening(tmp_path: Path, repository: Repository) -> None:
    made = repository.create_study("träin", {"script": "train.py", "argv": ["--lr", 0.1], "bound": math.inf})
    repository.save_space(made.id, {"values": {"num_workers": [0, 2]}})
    repository.save_state(made.id, "finished")
    repository.close()
    again = Repository(repository.url)
    (found,) = again.studies()
    assert found.name == "träin"
    assert found.identity == {"script": "train.py", "argv": ["--lr", 0.1], "bound": math.inf}
    assert found.space == {"values": {"num_workers": [0, 2]}}
    assert (found.id, found.state, found.created) == (made.id, "finished", made.created)
    again.close()


def test_who_meets_in_the_finals_is_kept(repository: Repository, study: int) -> None:
    other = repository.create_study("other", {}).id
    assert repository.finals(study) == {}
    repository.save_finals(study, {"candidates": [3, 7], "rounds": 5})
    assert repository.finals(study) == {"candidates": [3, 7], "rounds": 5}
    assert repository.finals(other) == {}
    with pytest.raises(StorageError, match=r"study\.db"):
        repository.finals(99)


def test_a_name_is_taken_once(repository: Repository, study: int) -> None:
    with pytest.raises(StorageError, match=r"study\.db") as caught:
        repository.create_study("train", {})
    assert "there already" in caught.value.hint
    assert [record.id for record in repository.studies()] == [study]


def test_trials_are_numbered_in_each_study_by_itself(repository: Repository, study: int) -> None:
    other = repository.create_study("other", {}).id
    new = NewTrial(Phase.SEARCH, BASELINE)
    numbers = [repository.start_trial(s, new, "me").number for s in (study, study, other, study)]
    assert numbers == [0, 1, 0, 2]
    assert repository.finish_trial(other, 0, DONE)
    assert [record.state for record in repository.records(study)] == [TrialState.RUNNING] * 3


def test_an_outcome_is_stored_whole(repository: Repository, study: int) -> None:
    config: dict[str, Value] = {"precision": "bf16", "num_workers": 2, "pin_memory": True, "lr": 0.1}
    started = repository.start_trial(study, NewTrial(Phase.BASELINE, Config(config), "the script as it is"), "me")
    assert repository.trials(study) == ()
    assert repository.finish_trial(study, 0, DONE)
    (trial,) = repository.trials(study)
    assert trial.config == config == started.config
    assert {name: type(value) for name, value in trial.config.items()} == {n: type(v) for n, v in config.items()}
    assert (trial.phase, trial.why, trial.outcome) == (Phase.BASELINE, "the script as it is", DONE)
    (record,) = repository.records(study)
    assert record.started is not None and record.finished is not None and record.started <= record.finished


def test_an_outcome_is_stored_once(repository: Repository, study: int) -> None:
    repository.start_trial(study, NewTrial(Phase.SEARCH, BASELINE), "me")
    assert repository.finish_trial(study, 0, FAILED)
    assert not repository.finish_trial(study, 0, DONE)
    assert [trial.outcome for trial in repository.trials(study)] == [FAILED]


def test_a_trial_that_is_not_there_is_not_finished(repository: Repository, study: int) -> None:
    repository.start_trial(study, NewTrial(Phase.SEARCH, BASELINE), "me")
    assert not repository.finish_trial(study, 1, DONE)
    assert not repository.finish_trial(study + 1, 0, DONE)
    assert repository.trials(study) == ()


def test_a_requeued_trial_is_claimed_again(repository: Repository, study: int) -> None:
    for _ in range(3):
        repository.start_trial(study, NewTrial(Phase.SEARCH, Config(num_workers=2), "more workers"), "first")
    assert repository.claim_trial(study, "second") is None
    repository.requeue_trial(study, 2)
    repository.requeue_trial(study, 1)
    claimed = repository.claim_trial(study, "second")
    assert claimed is not None
    assert (claimed.number, claimed.config, claimed.why) == (1, Config(num_workers=2), "more workers")
    assert not repository.finish_trial(study, 2, FAILED), "a trial that waits has no outcome"
    assert repository.finish_trial(study, 1, DONE)
    assert {r.trial.number: (r.state, r.owner, r.attempts) for r in repository.records(study)} == {
        0: (TrialState.RUNNING, "first", 1),
        1: (TrialState.FINISHED, "second", 2),
        2: (TrialState.WAITING, "", 1),
    }


def test_a_finished_trial_that_waits_again_has_lost_its_outcome(repository: Repository, study: int) -> None:
    repository.start_trial(study, NewTrial(Phase.SEARCH, BASELINE), "me")
    repository.finish_trial(study, 0, FAILED)
    repository.requeue_trial(study, 0, attempts=0)
    (record,) = repository.records(study)
    assert (record.state, record.trial.outcome, record.finished, record.attempts) == (TrialState.WAITING, None, None, 0)


def _older(path: Path) -> None:
    """As the first version left it: without the columns of rounds and seeds."""
    Repository(f"sqlite:///{path}").close()
    with sqlite3.connect(path) as connection:
        for column in ("round", "seed", '"group"', "samples", "side"):
            connection.execute(f"ALTER TABLE trial DROP COLUMN {column}")
        connection.execute("UPDATE autotune_schema SET version = 1")
    connection.close()


def _newer(path: Path) -> None:
    Repository(f"sqlite:///{path}").close()
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE autotune_schema SET version = ?", (SCHEMA_VERSION + 1,))
    connection.close()


@pytest.mark.parametrize(
    ("make", "message", "hint"),
    [
        (lambda path: path.write_text("these are notes, not tables\n" * 100), "not a database", "move it away"),
        (_newer, "newer autotune", "upgrade"),
        (_older, r"older autotune \(schema 1, this one knows 3\)", "start a new study with --new: this one is kept"),
        (lambda path: path.mkdir(), "unable to open", "writable"),
    ],
    ids=["a text file", "a newer schema", "an older schema", "a folder"],
)
def test_what_is_no_database_of_ours_is_told(
    tmp_path: Path, make: Callable[[Path], object], message: str, hint: str
) -> None:
    path = tmp_path / "study.db"
    make(path)
    with pytest.raises(StorageError, match=message) as caught:
        Repository(f"sqlite:///{path}")
    assert str(path) in caught.value.message
    assert hint in caught.value.hint


@pytest.mark.parametrize(
    ("url", "place", "hint"),
    [
        ("sqlite:////no/such/folder/study.db", "/no/such/folder/study.db", "must exist"),
        ("what is this", "what is this", "sqlite:///path"),
        ("postgresql+nodriver://me:secret@host/tuning", "host/tuning", "driver"),
    ],
)
def test_an_address_that_leads_nowhere_is_told_without_its_password(url: str, place: str, hint: str) -> None:
    with pytest.raises(StorageError) as caught:
        Repository(url)
    assert place in caught.value.message
    assert "secret" not in caught.value.message
    assert hint in caught.value.hint


@pytest.mark.parametrize("column", ["identity", "space"])
def test_a_study_that_autotune_did_not_write_is_told(repository: Repository, study: int, column: str) -> None:
    with sqlite3.connect(repository.url.removeprefix("sqlite:///")) as connection:
        connection.execute(f"UPDATE study SET {column} = '{{torn'")
    connection.close()
    with pytest.raises(StorageError, match=r"study\.db holds something"):
        repository.studies()


def test_what_tells_runs_apart_is_kept_also_of_a_trial_that_is_run_again(repository: Repository, study: int) -> None:
    begun = [
        repository.start_trial(study, NewTrial(Phase.FINALS, BASELINE, "finals of 4", 2, group=(4,)), "me"),
        repository.start_trial(study, NewTrial(Phase.SCREEN, Config(x=1), "screen", seed=3, samples=2**33), "me"),
        repository.start_trial(study, NewTrial(Phase.PROBE, BASELINE, "half", side=Side.HALF), "me"),
        repository.start_trial(study, NewTrial(Phase.SEARCH, BASELINE), "me"),
    ]
    fields = [(trial.group, trial.round, trial.seed, trial.samples, trial.side) for trial in begun]
    assert fields == [
        ((4,), 2, None, None, None), ((), None, 3, 2**33, None), ((), None, None, None, Side.HALF),
        ((), None, None, None, None),
    ]  # fmt: skip
    assert [record.trial for record in repository.records(study)] == begun
    repository.requeue_trial(study, 1)
    assert repository.claim_trial(study, "another") == begun[1]


@pytest.mark.parametrize(
    ("column", "text"),
    [
        ("outcome", "{torn"), ("outcome", "{}"), ("config", "[1]"), ("phase", "lunch"), ("state", "?"),
        ("side", "east"), ("group", "[1.5]"), ("group", "4"),
    ],
)
def test_a_trial_that_autotune_did_not_write_is_told(
    repository: Repository, study: int, column: str, text: str
) -> None:
    repository.start_trial(study, NewTrial(Phase.SEARCH, BASELINE), "me")
    with sqlite3.connect(repository.url.removeprefix("sqlite:///")) as connection:
        connection.execute(f'UPDATE trial SET "{column}" = ?', (text,))
    connection.close()
    with pytest.raises(StorageError, match=r"study\.db holds something"):
        repository.records(study)
